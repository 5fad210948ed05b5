//! `godel`.

use std::process::ExitCode;

use clap::Parser as _;
use godel_cli::{
    args::{Agent, AgentVerb, Args, Verb},
    command,
};
use godel_client::process;

/// The system's allocator gives back memory late and locks much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    // There may be hundreds of keepers on a node: none of them has a runtime.
    if let Verb::Agent(Agent { verb: Some(AgentVerb::Keep { dir }), .. }) = &args.verb {
        return godel_agent::keeper::keep(dir);
    }
    process::run(n_threads(&args.verb), command::run(args))
}

/// Threads that run tasks.
fn n_threads(verb: &Verb) -> usize {
    let n_cores = process::n_cores();
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
