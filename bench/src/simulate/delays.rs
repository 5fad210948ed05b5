//! What takes how long: the modelled part of the simulation.
//!
//! Of the defaults, the deciders' own work (dispatcher 3.7 µs a unit; binder 5.1 a unit and 0.22 a running unit, both with the
//! reading of changes; scheduler: see [`WorkCost::PLAIN`]) was timed in `core` on a release build, the better of two runs on
//! a machine that was not quiet. The rest is estimated and not measured: encoding, state, fan-out, the latencies. A
//! figure of a simulation is as good as these; `godel bench e2e` gives CPU by process to put in their place.

use clap::Args;
use godel_model::simulation::{Delay, SimulationDelays, WorkCost};

/// Every part has a core of its own. Costs are CPU-microseconds as `PER_UNIT+PER_RUNNING_UNIT`, encoding and
/// decoding included; a unit that comes back after a conflict costs again.
#[derive(Args, Clone, Debug)]
pub(super) struct DelayArgs {
    /// Dispatcher: admitting a unit and making it durable.
    #[arg(long, default_value = "5+0.02", value_name = "COST", help_heading = "Delays")]
    pub(super) submit_us: WorkCost,
    /// Dispatcher: assigning a unit.
    #[arg(long, default_value = "5+0.05", value_name = "COST", help_heading = "Delays")]
    pub(super) dispatch_us: WorkCost,
    /// Scheduler: trying a unit, and each place. Default 10+0.5, or 36+1.5 for the mixed workload.
    #[arg(long, value_name = "COST", help_heading = "Delays")]
    pub(super) scheduler_us: Option<WorkCost>,
    /// Binder: checking a decision.
    #[arg(long, default_value = "6+0.25", value_name = "COST", help_heading = "Delays")]
    pub(super) binder_us: WorkCost,
    /// State: logging and applying a unit's record or its rows.
    #[arg(long, default_value = "4+0.4", value_name = "COST", help_heading = "Delays")]
    pub(super) state_us: WorkCost,
    /// State: sending a unit's change to one follower.
    #[arg(long, default_value = "0.2+0.01", value_name = "COST", help_heading = "Delays")]
    pub(super) fan_out_us: WorkCost,
    /// Dispatcher, binder and each scheduler: reading a unit's change.
    #[arg(long, default_value = "1+0.1", value_name = "COST", help_heading = "Delays")]
    pub(super) follow_us: WorkCost,
    /// State: a synced group commit, during which the next one collects.
    #[arg(long, default_value = "300", value_name = "US", help_heading = "Delays")]
    pub(super) commit_us: Delay,
    /// From the commit until a follower has the change.
    #[arg(long, default_value = "100", value_name = "US", help_heading = "Delays")]
    pub(super) watch_us: Delay,
    /// A message from one service to another.
    #[arg(long, default_value = "50", value_name = "US", help_heading = "Delays")]
    pub(super) hop_us: Delay,
}

impl DelayArgs {
    /// Returns the delays of a simulation whose schedulers cost so much unless they are told.
    pub(super) fn delays(&self, scheduler: WorkCost) -> SimulationDelays {
        SimulationDelays {
            submit: self.submit_us,
            dispatch: self.dispatch_us,
            scheduler: self.scheduler_us.unwrap_or(scheduler),
            binder: self.binder_us,
            state: self.state_us,
            fan_out: self.fan_out_us,
            follow: self.follow_us,
            commit: self.commit_us,
            watch: self.watch_us,
            hop: self.hop_us,
        }
    }
}
