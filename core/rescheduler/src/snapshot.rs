//! What the rescheduler is given: the nodes, what runs on them, and what is known of both. Plain data, made by whoever reads
//! the store; a plan names the revision that it rests on, so that an old one is not executed.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, Revision, RunningUnitId, UnitId},
    resources::Resources,
    time::Millis,
};
use godel_domain::{allocation::DeviceSet, demand::Demand, node::Device, unit::WorkloadClass};

use crate::kept::KeptReason;

/// The cluster at one moment, as far as it concerns plans.
#[derive(Clone, Debug, Default)]
pub struct ClusterSnapshot {
    /// The last change that it contains.
    pub revision: Revision,
    /// When it was taken.
    pub now: Millis,
    /// All nodes that running units are on or may go to, each id once.
    pub nodes: Vec<NodeFacts>,
    /// The units that something runs of, each id once.
    pub units: Vec<UnitFacts>,
    /// What runs; what waits for its first place is not here.
    pub running: Vec<RunningFacts>,
    /// Disruption budgets, with what each allows now.
    pub budgets: Vec<BudgetRoom>,
    /// Which units talk to one another, and how much.
    pub traffic: Vec<TrafficShare>,
}

/// What is known of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Its id.
    pub id: NodeId,
    /// Its name, as reasons give it.
    pub name: String,
    /// The sub-cluster that it is of; empty: none.
    pub sub_cluster: String,
    /// What it has in all. An amount of `running-units` bounds how many run on it; without that amount nothing does.
    pub capacity: Resources,
    /// Its devices, in the order of their indices.
    pub devices: Vec<Device>,
    /// Its labels; those of topology levels among them.
    pub labels: BTreeMap<String, String>,
    /// Whether running units may be sent to it: it is ready, and neither cordoned nor drained.
    pub accepts: bool,
    /// How many running units it takes at most; `None`: as many as its capacity says.
    pub n_running_max: Option<u32>,
    /// What is used there beside what its running units use, a high percentile of the last minutes.
    pub other_use: MeasuredUse,
}

impl NodeFacts {
    /// Returns a node that accepts work, without devices, labels and sub-cluster.
    pub fn new(id: NodeId, name: impl Into<String>, capacity: Resources) -> Self {
        Self { id, name: name.into(), capacity, accepts: true, ..Self::default() }
    }
}

/// What is known of a unit, the owner of the running units that are its replicas.
#[derive(Clone, Debug)]
pub struct UnitFacts {
    /// Its id.
    pub id: UnitId,
    /// Its name, as reasons give it.
    pub name: String,
    /// The kind of work.
    pub class: WorkloadClass,
    /// The queue that pays for it.
    pub queue: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Time from leaving a node until it does again on another one what it did, milliseconds.
    pub restart_ms: u64,
    /// How many of its replicas may be missing at a time because they are moved: as many as a drain would take.
    pub spare: u32,
}

impl UnitFacts {
    /// Returns a unit without queue and labels, which loses this time by a restart and can spare all of its replicas.
    pub fn new(id: UnitId, name: impl Into<String>, class: WorkloadClass, restart_ms: u64) -> Self {
        let (queue, labels) = (String::new(), BTreeMap::new());
        Self { id, name: name.into(), class, queue, labels, restart_ms, spare: u32::MAX }
    }
}

/// What is known of a running unit.
#[derive(Clone, Debug)]
pub struct RunningFacts {
    /// Its id; its unit is among [`ClusterSnapshot::units`].
    pub id: RunningUnitId,
    /// The node that it is on.
    pub node: NodeId,
    /// What it takes there.
    pub demand: Demand,
    /// The devices that it has there.
    pub devices: DeviceSet,
    /// When it began to run.
    pub started_at: Millis,
    /// When it last saved its work; `None`: never, or it has none to save.
    pub checkpoint_at: Option<Millis>,
    /// When it is expected to end; `None`: never, or nobody knows.
    pub ends_at: Option<Millis>,
    /// What it really uses, a high percentile of the last minutes.
    pub usage: MeasuredUse,
    /// What keeps it where it is, whatever a policy wants; `None`: nothing.
    pub kept: Option<KeptReason>,
}

impl RunningFacts {
    /// Returns a running unit that has no devices, runs since ever and for ever, has never saved its work, and uses nothing.
    pub fn new(id: RunningUnitId, node: NodeId, demand: Demand) -> Self {
        Self {
            id,
            node,
            demand,
            devices: DeviceSet::NONE,
            started_at: Millis(0),
            checkpoint_at: None,
            ends_at: None,
            usage: MeasuredUse::default(),
            kept: None,
        }
    }
}

/// What is measured of a running unit, or what a node has of the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredUse {
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// Bits per second, the greater of both directions.
    pub network_bps: i64,
}

/// How many running units a disruption budget allows to leave at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetRoom {
    /// Name of the budget.
    pub name: String,
    /// How many may leave now. What has left and runs again elsewhere does not count any more.
    pub allowed: u32,
    /// The running units that it counts.
    pub members: Vec<RunningUnitId>,
}

/// Traffic between two units: of each replica of one to all replicas of the other alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficShare {
    /// The two units, in either order.
    pub between: (UnitId, UnitId),
    /// How much it is, in any measure that is the same for all pairs; neither negative nor infinite.
    pub weight: f64,
}

/// Work of a class that loses nothing but the time of a restart when it is moved: its replicas serve, and keep no progress.
fn serves(class: WorkloadClass) -> bool {
    match class {
        WorkloadClass::Service | WorkloadClass::Stateful | WorkloadClass::Daemon => true,
        WorkloadClass::Batch
        | WorkloadClass::Gang
        | WorkloadClass::Stream
        | WorkloadClass::Training
        | WorkloadClass::Yarn => false,
    }
}

/// Returns when a running unit saved its work last: what it has reported, unless it began anew since; or else the last multiple of
/// `every_ms` milliseconds (0: never) from its start on; `None`: it saves nothing, or has said nothing of it.
pub fn last_checkpoint(
    now: Millis,
    started_at: Millis,
    every_ms: u64,
    reported: Option<Millis>,
) -> Option<Millis> {
    if let Some(at) = reported.filter(|at| *at >= started_at) {
        return Some(at);
    }
    let since_last = now.since(started_at).checked_rem(every_ms)?;
    Some(Millis(now.0.saturating_sub(since_last).max(started_at.0)))
}

/// Returns what a move of a running unit costs, in milliseconds of its work: what is lost since its last checkpoint, or else
/// since its start, and the time of its restart (ADR 0067).
pub fn cost_of_move(now: Millis, unit: &UnitFacts, running: &RunningFacts) -> u64 {
    let since = running.checkpoint_at.map_or(running.started_at, |at| at.max(running.started_at));
    let lost = if serves(unit.class) { 0 } else { now.since(since) };
    lost.saturating_add(unit.restart_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_checkpoint_is_reported_or_counted_from_the_start() {
        for (started, every, reported, expected) in [
            (100, 0, None, None),
            (100, 300, None, Some(1_000)),
            (100, 400, None, Some(900)),
            (100, 900, None, Some(1_000)),
            (100, 901, None, Some(100)),
            (1_000, 10, None, Some(1_000)),
            // A clock that is ahead of this one: it has just begun.
            (1_007, 10, None, Some(1_007)),
            // Reports come first, whether they are older or newer than what the template says.
            (100, 0, Some(250), Some(250)),
            (100, 400, Some(250), Some(250)),
            (100, 400, Some(950), Some(950)),
            (100, 400, Some(1_010), Some(1_010)),
            (100, 400, Some(100), Some(100)),
            // It was restarted on its node since.
            (500, 400, Some(499), Some(900)),
            (500, 0, Some(499), None),
        ] {
            let found = last_checkpoint(Millis(1_000), Millis(started), every, reported.map(Millis));
            assert_eq!(found, expected.map(Millis), "{started} {every} {reported:?}");
        }
    }

    #[test]
    fn a_move_costs_what_is_lost_and_a_restart() {
        let unit = |class| UnitFacts::new(UnitId(1), "a", class, 7);
        let running = |checkpoint: Option<u64>| RunningFacts {
            started_at: Millis(100),
            checkpoint_at: checkpoint.map(Millis),
            ..RunningFacts::new(RunningUnitId::new(UnitId(1), 0, 0), NodeId(1), Demand::default())
        };
        for (class, checkpoint, expected) in [
            (WorkloadClass::Training, None, 907),
            (WorkloadClass::Training, Some(900), 107),
            (WorkloadClass::Batch, Some(50), 907),
            (WorkloadClass::Batch, Some(2_000), 7),
            (WorkloadClass::Service, None, 7),
        ] {
            assert_eq!(
                cost_of_move(Millis(1_000), &unit(class), &running(checkpoint)),
                expected,
                "{class:?} {checkpoint:?}"
            );
        }
    }
}
