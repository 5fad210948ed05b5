//! What the dispatcher shows of itself: its parts, units, counters.

use std::sync::Arc;

use godel_base::ids::{Epoch, Revision, UnitId};
use godel_domain::{
    lifecycle::{Counts, UnitPhase},
    pause::Pauses,
    refusals::Refusals,
    running_units::RunningUnits,
    sub_cluster,
    unit::{UnitRecord, UnitSpec},
};

use super::{
    Assignments, Counters, Dispatcher, Following, NodeEvictions, Nodes, Partitioning, PendingUnits,
    Schedulers, TurnView, Units,
    budgets::BudgetRecords,
    gangs,
    queues::{Queueing, Unwelcome},
    reservations::{ReservationRecords, ReservationView},
    schedulers::SchedulerEntry,
    unit_entry::Whereabouts,
};

mod list;

pub(super) use self::list::is_within;
pub use self::list::{ListChunk, ListFilter};

/// A unit as shown.
#[derive(Clone, Debug)]
pub struct UnitView<'a> {
    /// Its record.
    pub record: &'a Arc<UnitRecord>,
    /// Revision of its record.
    pub spec_revision: Revision,
    /// Revision of its record or rows, whichever changed last.
    pub revision: Revision,
    /// Revision of its rows; 0: there are none.
    pub rows_revision: Revision,
    /// Of the creating transaction.
    pub create_revision: Revision,
    /// Of the creating transaction, Unix milliseconds.
    pub create_time_ms: i64,
    /// Derived.
    pub phase: UnitPhase,
    /// Derived.
    pub counts: &'a Counts,
    /// Its running units.
    pub rows: &'a RunningUnits,
    /// Soft: who has it.
    pub scheduler: Option<&'a str>,
    /// Soft: what its queue holds it up for, of the last failed try, or why no node could ever hold it.
    pub refusals: Option<Arc<Refusals>>,
    /// Commit time of the first binding, Unix milliseconds; 0 before.
    pub bound_time_ms: i64,
    /// Whose leaving it waits for, in words; empty: nobody's.
    pub waits_for: String,
    /// Its turn to gather room, while that lasts.
    pub turn: Option<TurnView>,
    /// Units that preempted some of its running units, the newest last.
    pub preempted_by: Vec<String>,
    /// What all its task groups demand.
    pub sub_cluster: Option<&'a str>,
}

/// A scheduler as the dispatcher sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerView {
    /// As in its lease.
    pub name: String,
    /// Where it serves.
    pub address: String,
    /// Of its lease.
    pub epoch: Epoch,
    /// Its lease is in force.
    pub live: bool,
    /// Its stream is open.
    pub attached: bool,
    /// Nodes of its own; all of them in global mode.
    pub nodes: u32,
    /// Units held.
    pub units: u32,
    /// Running units that it works on.
    pub running_units: u64,
    /// Units held without a place.
    pub parked_units: u32,
    /// Running units handed to it so far.
    pub dispatched: u64,
}

/// Lengths and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Units known.
    pub units: u64,
    /// Waiting for a scheduler.
    pub queued_units: u64,
    /// Running units to place of those.
    pub queued_running_units: u64,
    /// With a scheduler.
    pub dispatched_units: u64,
    /// Without a place, with a scheduler or not.
    pub parked_units: u64,
    /// Since the start.
    pub counters: Counters,
    /// Everything up to here is known.
    pub revision: Revision,
    /// By phase, in order of [`UnitPhase::ALL`].
    pub n_by_phase: [u64; UnitPhase::ALL.len()],
    /// Units on their way to the store.
    pub n_in_flight: usize,
    /// Evictions asked for or to be asked for.
    pub evictions: usize,
    /// Ended units kept.
    pub ended: usize,
    /// Nodes known.
    pub nodes: usize,
    /// Nodes that are not ready.
    pub nodes_not_ready: usize,
    /// So many nodes were lost at once that nothing is evicted from them.
    pub evictions_paused: bool,
    /// Drained nodes that are not empty yet.
    pub nodes_draining: usize,
    /// Gangs that have waited for room for so long that they gather it in turn.
    pub gangs_waiting: usize,
    /// Of the running units handed out at least so many per cent are of each lower band that waits.
    pub floor_percent: u8,
}

impl Dispatcher {
    /// Units, and where they are.
    pub fn assignments_mut(&mut self) -> &mut Assignments {
        &mut self.assignments
    }

    /// The units that are known, and what is kept of those that were.
    pub fn units(&self) -> &Units {
        &self.assignments.units
    }

    /// Queues and priority classes.
    pub fn queueing(&self) -> &Queueing {
        &self.assignments.queueing
    }

    /// The schedulers that are known.
    pub fn schedulers(&self) -> &Schedulers {
        &self.assignments.schedulers
    }

    /// Pauses in force.
    pub fn pauses(&self) -> &Pauses {
        &self.assignments.gates.pauses
    }

    /// Disruption budgets.
    pub fn budgets(&self) -> &BudgetRecords {
        &self.budgets
    }

    /// Reservations.
    pub fn reservations(&self) -> &ReservationRecords {
        &self.reservations
    }

    /// A reservation as shown; `None` if there is no such reservation.
    pub fn reservation(&self, name: &str) -> Option<ReservationView> {
        self.reservations.view(name, self.units(), &self.nodes, self.assignments.wall_ms)
    }

    /// The nodes that are known.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// How nodes are split over schedulers.
    pub fn partition(&self) -> &Partitioning {
        &self.partition
    }

    /// Which running units have to leave a node.
    pub fn node_evictions(&self) -> &NodeEvictions {
        &self.node_evictions
    }

    /// The same, for what is taken out of it to be shown.
    pub fn node_evictions_mut(&mut self) -> &mut NodeEvictions {
        &mut self.node_evictions
    }

    /// How far the records have been read.
    pub fn following(&self) -> &Following {
        &self.following
    }

    /// What units wait for, as of the last step.
    pub fn pending(&self) -> PendingUnits<'_> {
        PendingUnits {
            assignments: &self.assignments,
            gangs: &self.gangs,
            nodes: &self.nodes,
            at: self.stepped_at,
        }
    }

    /// Schedulers may attach: everything has been read.
    pub fn is_loaded(&self) -> bool {
        !self.assignments.settling.is_loading()
    }

    /// A unit as shown.
    pub fn unit(&self, unit: UnitId) -> Option<UnitView<'_>> {
        let Assignments { units, schedulers, .. } = &self.assignments;
        let entry = units.get(unit)?;
        let scheduler = match &entry.place {
            Whereabouts::Dispatched(held) => Some(schedulers.all[held.scheduler].name.as_str()),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => None,
        };
        Some(UnitView {
            record: &entry.record,
            spec_revision: entry.revision,
            revision: entry.revision.max(entry.rows_revision),
            rows_revision: entry.rows_revision,
            create_revision: entry.create_revision,
            create_time_ms: entry.create_time_ms,
            phase: entry.phase,
            counts: &entry.counts,
            rows: &entry.rows,
            scheduler,
            refusals: self.pending().refusals(entry),
            bound_time_ms: entry.bound_time_ms,
            waits_for: self.pending().waits_for(entry),
            turn: gangs::turn_of(entry.holds()),
            preempted_by: units.preemptors(entry.rows.preemptors()),
            sub_cluster: sub_cluster::of(&entry.record.spec, &self.config.sub_cluster_key),
        })
    }

    /// Lengths and counters.
    pub fn summary(&self) -> Summary {
        let Assignments { units, queueing: Queueing { queues, .. }, schedulers, settling, ends, .. } =
            &self.assignments;
        let held = |count: fn(&SchedulerEntry) -> u64| schedulers.all.iter().map(count).sum();
        Summary {
            units: units.len() as u64,
            queued_units: (queues.len() + settling.unsettled.len()) as u64,
            queued_running_units: queues.running_units(),
            dispatched_units: held(|one| one.held.len() as u64),
            parked_units: held(|one| u64::from(one.parked)) + queues.rooms().n_unheld() as u64,
            counters: self.assignments.counters,
            revision: self.following.revision,
            n_by_phase: *units.tally.all(),
            n_in_flight: units.directory.n_in_flight(),
            evictions: ends.n_evictions(),
            ended: ends.n_ended(),
            nodes: self.node_evictions.n_nodes(),
            nodes_not_ready: self.node_evictions.n_not_ready(),
            evictions_paused: self.node_evictions.is_braked(),
            nodes_draining: self.node_evictions.n_draining(),
            gangs_waiting: self.gangs.n_due(self.stepped_at),
            floor_percent: self.config.queues.floor_percent_in_force(),
        }
    }

    /// Whether a unit may be submitted where it wants to go; `names` are those of whoever submits it, as queues list them.
    ///
    /// # Errors
    /// Everything wrong.
    pub fn admit(&self, spec: &UnitSpec, names: &[String]) -> Result<(), Vec<Unwelcome>> {
        if let Some(why) = self.assignments.frozen_target(spec) {
            return Err(vec![Unwelcome::Unreadable(Box::new(why.clone()))]);
        }
        self.assignments.queueing.admit(spec, names, &self.config.sub_cluster_key)
    }
}
