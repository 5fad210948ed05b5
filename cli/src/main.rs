//! `godel`.

use std::process::ExitCode;

use clap::Parser as _;
use godel_cli::{
    args::{Args, Verb},
    command, output,
};

/// The system's allocator gives back memory late and locks much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Set: memory may come in huge pages, as the system's setting says.
const HUGE_PAGES: &str = "GODEL_HUGE_PAGES";

fn main() -> ExitCode {
    choose_pages();
    let args = Args::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        runtime.worker_threads(worker_threads(&args.verb));
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(format!("error: no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(command::run(args));
    // Whatever still blocks does not keep the process.
    runtime.shutdown_background();
    match ended {
        // A panic of a task is a failure even where the work went on.
        Ok(()) if godel_kit::task::panics() > 0 => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format!("error: {failure}"));
            failure.code.into()
        }
    }
}

/// Asks for no huge pages (docs/performance.md): where they are scarce, as in a virtual machine whose host takes back
/// free memory, each costs more than it saves. Processes that this one starts inherit it.
fn choose_pages() {
    let without = std::env::var_os(HUGE_PAGES).is_none();
    // A kernel without the switch goes on as it is set.
    let _ = rustix::thread::disable_transparent_huge_pages(without);
}

/// Threads that run tasks.
fn worker_threads(verb: &Verb) -> usize {
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    match verb {
        // Every part of the control plane is in this process: with a thread per core alone, a few schedulers at
        // work would keep leases from being renewed in time.
        Verb::Up(_) | Verb::Demo(_) => 4 * n_cores,
        // Whatever comes alone, a heartbeat or a call, wakes one more worker to look for work: on few cores that
        // costs more than it finds, and the log, the deciders and the other parts have threads of their own.
        Verb::Serve(_) => (n_cores - 1).max(1),
        _ => n_cores,
    }
}
