//! `godel bench`: how fast the control plane is, measured on real processes, and the limits of the machine beside it.
//!
//! Each verb is one file: its arguments, its run, its report. A report is one object a run with stable field names;
//! a run whose audit fails has no figure.

mod agents;
mod board;
mod cap;
mod cases;
mod chart;
mod cluster;
mod colocation;
mod core;
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

use clap::Subcommand;

use crate::{exit::Failure, output::Format};

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
    Core(core::Core),
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
pub async fn run(bench: Bench, format: Format) -> Result<(), Failure> {
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
        Bench::Core(wanted) => core::run(wanted, format).await,
        Bench::Suite(wanted) => suite::run(wanted, format).await,
        Bench::Store(wanted) => store::run(wanted, format).await,
        Bench::Wire(wanted) => wire::run(wanted, format).await,
        Bench::WireServe => wire::serve().await,
    }
}
