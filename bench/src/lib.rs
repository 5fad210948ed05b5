//! `godel bench`: the speed of the control plane, measured on real processes, and the limits of the machine.
//!
//! Each verb is one file: its arguments, its run, its report. A report is one object a run with stable field names;
//! a run whose audit fails has no figure. It is a program of its own, `godel-bench`, beside `godel`, which runs it: what
//! only measurements need is not in the operator's binary.
//!
//! # Modules
//!
//! - `agents`: cost of idle agents for state.
//! - `board`: bound, ended and deleted units, as the watch shows them.
//! - `cap`: a CPU limit for processes.
//! - `cases`: cases of a benchmark and their output.
//! - `chart`: charts of the suite.
//! - `cluster`: a cluster of real processes.
//! - `colocation`: a day of online work in minutes, with best-effort work that fills the rest.
//! - `decisions`: the decisions alone, without I/O.
//! - `e2e`: placements per second over real processes.
//! - `endurance`: growth while running units come and go.
//! - `engine`: the engine of the store, and the etcd of a run.
//! - `explain`: time until the reasons for a unit without a place are known.
//! - `hostile`: connections that mean harm to a server with TLS.
//! - `latency`: latency of single units offered at a steady rate.
//! - `load`: submitters.
//! - `once`: figures of one run.
//! - `overload`: admission while many times more units are offered than can be placed.
//! - `processes`: the processes of a cluster.
//! - `reconnect`: time until agents are back after a kill of state.
//! - `report`: the report of a run.
//! - `reschedule`: plans of the rescheduler on a cluster that runs.
//! - `restart`: time from SIGKILL for all processes to the first new binding.
//! - `setup`: flags that benchmarks share.
//! - `simulate`: any number of schedulers in simulated time.
//! - `store`: maximum throughput of the store on this disk.
//! - `suite`: the whole table of targets.
//! - `turns`: full nodes and many waiting queues.
//! - `wire`: maximum throughput of gRPC between two processes.
//! - `workload`: the submitted workload.
//! - `yarn`: the load of application masters on the YARN adapter.
//! - `yarn_load`: applications of YARN, submitted at a rate or replayed from a trace.

mod agents;
mod board;
mod cap;
mod cases;
mod chart;
mod cluster;
mod colocation;
mod decisions;
mod e2e;
mod endurance;
mod engine;
mod explain;
mod hostile;
mod latency;
mod load;
mod once;
mod overload;
mod processes;
mod reconnect;
mod report;
mod reschedule;
mod restart;
mod setup;
mod simulate;
mod store;
mod suite;
mod turns;
mod wire;
mod workload;
mod yarn;
mod yarn_load;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use godel_client::{
    exit::{EXIT_CODES, Failure},
    output::Format,
    process,
};

/// Measure the speed of the control plane on real processes, and the limits of this machine.
#[derive(Debug, Parser)]
#[command(name = "godel-bench", bin_name = "godel bench", version, propagate_version = true, after_long_help = EXIT_CODES)]
pub struct Args {
    /// Output format.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub output: Format,
    /// Filter of log lines on standard error, as `info,godel_state=debug`.
    #[arg(long, global = true, env = "GODEL_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// The benchmark.
    #[command(subcommand)]
    pub bench: Bench,
}

/// `godel bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Placements per second and CPU time per placement, with real processes.
    E2e(e2e::E2e),
    /// Latency of single units offered at a steady rate.
    Latency(latency::LatencyArgs),
    /// Growth of memory, disk and latency while running units come and go.
    Endurance(endurance::EnduranceArgs),
    /// Admission rate and latency in an overload: many times more units are offered than can be placed.
    Overload(overload::OverloadArgs),
    /// Time until the reasons for a unit without a place are known.
    Explain(explain::ExplainArgs),
    /// Time from SIGKILL for all processes to the first new binding.
    Restart(restart::RestartArgs),
    /// Time from SIGKILL for state until every agent, on a connection of its own, is back.
    Reconnect(reconnect::ReconnectArgs),
    /// Cost of idle agents for state.
    Agents(agents::AgentsArgs),
    /// A day of online work in minutes, with best-effort work that fills the rest.
    Tide(colocation::TideArgs),
    /// Full nodes and many waiting queues: how soon a free place is assigned, and to which queue.
    Turns(turns::TurnsArgs),
    /// Application masters of YARN over Hadoop RPC: containers per second, and calls per second that change nothing.
    Yarn(yarn::YarnArgs),
    /// A day of a Hadoop cluster as applications of YARN, in three queues that wait: what each of them gets.
    YarnReplay(yarn_load::replay::YarnReplayArgs),
    /// Applications of YARN at a steady rate, each with a master that registers, gets a container and finishes.
    YarnSubmissions(yarn_load::submissions::YarnSubmissionsArgs),
    /// Plans of the rescheduler on a cluster that runs: how long each kind takes, and memory.
    Reschedule(reschedule::RescheduleArgs),
    /// Draw a chart of the suite from the JSON of its runs.
    Chart(chart::ChartArgs),
    /// Any number of schedulers in simulated time: conflicts, and the number beyond which another scheduler gains
    /// nothing.
    Simulate(Box<simulate::Simulate>),
    /// Time of the decisions alone, without I/O.
    Core(decisions::Core),
    /// Run the whole table of targets, with charts.
    Suite(suite::Suite),
    /// Maximum throughput of the store on this disk.
    Store(store::StoreArgs),
    /// Maximum throughput of gRPC between two processes.
    Wire(wire::Wire),
    /// The other process of `wire`.
    #[command(hide = true)]
    WireServe,
}

/// Runs one benchmark.
///
/// # Errors
/// What went wrong, with the exit code of the process.
pub async fn run(args: Args) -> Result<(), Failure> {
    let Args { output: format, log, bench } = args;
    let _guard = process::quiet_telemetry(log)?;
    match bench {
        Bench::E2e(wanted) => e2e::run(wanted, format).await,
        Bench::Latency(wanted) => latency::run(wanted, format).await,
        Bench::Endurance(wanted) => endurance::run(wanted, format).await,
        Bench::Overload(wanted) => overload::run(wanted, format).await,
        Bench::Explain(wanted) => explain::run(wanted, format).await,
        Bench::Restart(wanted) => restart::run(wanted, format).await,
        Bench::Reconnect(wanted) => reconnect::run(wanted, format).await,
        Bench::Agents(wanted) => agents::run(wanted, format).await,
        Bench::Tide(wanted) => colocation::run(wanted, format).await,
        Bench::Turns(wanted) => turns::run(wanted, format).await,
        Bench::Yarn(wanted) => yarn::run(wanted, format).await,
        Bench::YarnReplay(wanted) => yarn_load::replay::run(wanted, format).await,
        Bench::YarnSubmissions(wanted) => yarn_load::submissions::run(wanted, format).await,
        Bench::Reschedule(wanted) => reschedule::run(wanted, format).await,
        Bench::Chart(wanted) => chart::run(&wanted),
        Bench::Simulate(wanted) => simulate::run(&wanted, format),
        Bench::Core(wanted) => decisions::run(wanted, format).await,
        Bench::Suite(wanted) => suite::run(wanted, format).await,
        Bench::Store(wanted) => store::run(wanted, format).await,
        Bench::Wire(wanted) => wire::run(wanted, format).await,
        Bench::WireServe => wire::serve().await,
    }
}

/// The program `godel` beside this one, whose services are measured.
fn godel() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program cannot be found: {error}")))?
        .with_file_name("godel");
    if program.is_file() {
        return Ok(program);
    }
    Err(Failure::failed(format!("{} does not exist; `make build` builds it", program.display())))
}
