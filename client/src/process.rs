//! How a program of ours starts and ends.

use std::{future::Future, process::ExitCode};

use godel_kit::{config::TelemetryConfig, telemetry};

use crate::{
    exit::{Code, Failure},
    output,
};

/// Set: memory may come in huge pages, as the system's setting says.
const HUGE_PAGES: &str = "GODEL_HUGE_PAGES";

/// Runs a program to its end, on so many threads unless the environment says how many (`TOKIO_WORKER_THREADS`). What failed
/// is said on standard error; a panic of a task is a failure even where the work went on.
pub fn run(n_threads: usize, work: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    choose_pages();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        runtime.worker_threads(n_threads);
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(format!("error: no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(work);
    // Whatever still blocks does not keep the process.
    runtime.shutdown_background();
    match ended {
        Ok(()) if godel_kit::task::panics() > 0 => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format!("error: {failure}"));
            failure.code.into()
        }
    }
}

/// Sets up logs; a filter given on the command line wins.
///
/// # Errors
/// The filter cannot be understood.
pub fn telemetry(config: TelemetryConfig, filter: Option<String>) -> Result<telemetry::Guard, Failure> {
    let config = TelemetryConfig { filter: filter.unwrap_or_else(|| config.filter.clone()), ..config };
    telemetry::init(&config).map_err(|error| Failure::chain(Code::Usage, &error))
}

/// The same of a client: what goes wrong, unless the command line says more.
///
/// # Errors
/// As [`telemetry()`].
pub fn quiet_telemetry(filter: Option<String>) -> Result<telemetry::Guard, Failure> {
    telemetry(TelemetryConfig::default(), filter.or_else(|| Some("error".to_owned())))
}

/// Cores of this machine that this process may use.
pub fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Asks for no huge pages (docs/performance.md): where they are scarce, as in a virtual machine whose host takes back
/// free memory, each costs more than it saves. Processes that this one starts inherit it.
fn choose_pages() {
    let without = std::env::var_os(HUGE_PAGES).is_none();
    // A kernel without the switch goes on as it is set.
    let _ = rustix::thread::disable_transparent_huge_pages(without);
}
