//! `godel bench`: how fast the control plane is, measured on real processes, and the limits of the machine beside it.
//!
//! Each verb is one file: its arguments, its run, its report. A report is one object a run with stable field names;
//! a run whose audit fails has no figure. It is a program of its own, `godel-bench`, beside `godel`, which runs it: what
//! only measurements need is not in the operator's binary.
//!
//! # Modules
//!
//! - `agents`: what idle agents cost state.
//! - `board`: what is bound, ended and gone, as the watch shows it.
//! - `cap`: a limit of the machine beside each figure.
//! - `cases`: cases of a benchmark and how they are shown.
//! - `chart`: charts of the suite.
//! - `cluster`: a cluster of real processes.
//! - `colocation`: a day of online work in minutes, and best-effort work that fills what it leaves.
//! - `decisions`: the decisions alone, without input and output.
//! - `e2e`: placements per second over real processes.
//! - `endurance`: what grows while running units come and go.
//! - `explain`: how long until one knows why a unit has no place.
//! - `latency`: latency of single units offered at a steady rate.
//! - `load`: submitters.
//! - `once`: figures of one run.
//! - `overload`: what is admitted while many times more is offered than can be placed.
//! - `processes`: the processes of a cluster.
//! - `report`: what a run says.
//! - `restart`: from SIGKILL for everything to the first new binding.
//! - `setup`: flags that benchmarks share.
//! - `simulate`: any number of schedulers in modelled time.
//! - `store`: what the store bears on this disk.
//! - `suite`: the whole table of targets.
//! - `turns`: full nodes and many queues that wait.
//! - `wire`: what gRPC bears between two processes.
//! - `workload`: what is submitted.

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
mod explain;
mod latency;
mod load;
mod once;
mod overload;
mod processes;
mod report;
mod restart;
mod setup;
mod simulate;
mod store;
mod suite;
mod turns;
mod wire;
mod workload;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use godel_client::{
    exit::{EXIT_CODES, Failure},
    output::Format,
    process,
};

/// How fast the control plane is, measured on real processes, and the limits of this machine beside it.
#[derive(Debug, Parser)]
#[command(name = "godel-bench", bin_name = "godel bench", version, propagate_version = true, after_long_help = EXIT_CODES)]
pub struct Args {
    /// How results are printed.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub output: Format,
    /// Log lines on standard error, as `info,godel_state=debug`.
    #[arg(long, global = true, env = "GODEL_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// What to measure.
    #[command(subcommand)]
    pub bench: Bench,
}

/// `godel bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Placements per second and CPU time of each, over real processes.
    E2e(e2e::E2e),
    /// Latency of single units offered at a steady rate.
    Latency(latency::Latency),
    /// What grows while running units come and go: memory, disk, latency.
    Endurance(endurance::Arguments),
    /// What is admitted, and how fast it is bound, while many times more is offered than can be placed.
    Overload(overload::Arguments),
    /// How long until one knows why a unit has no place.
    Explain(explain::Arguments),
    /// From SIGKILL for everything to the first new binding.
    Restart(restart::Arguments),
    /// What idle agents cost state.
    Agents(agents::Arguments),
    /// A day of online work in minutes, and best-effort work that fills what it leaves.
    Tide(colocation::Arguments),
    /// Full nodes and many queues that wait: how soon a place is given out, and to whom.
    Turns(turns::Arguments),
    /// A chart of the suite, from the JSON of its runs.
    Chart(chart::Chart),
    /// Any number of schedulers in modelled time: conflicts, and where adding one stops paying.
    Simulate(Box<simulate::Simulate>),
    /// The decisions alone, without input and output.
    Core(decisions::Core),
    /// The whole table of targets, with charts.
    Suite(suite::Suite),
    /// What the store bears on this disk.
    Store(store::Store),
    /// What gRPC bears between two processes.
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
        Bench::Agents(wanted) => agents::run(wanted, format).await,
        Bench::Tide(wanted) => colocation::run(wanted, format).await,
        Bench::Turns(wanted) => turns::run(wanted, format).await,
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
    Err(Failure::failed(format!("there is no {}: `make build` builds it", program.display())))
}
