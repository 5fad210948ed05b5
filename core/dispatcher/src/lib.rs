//! The dispatcher's whole state machine: units in, assignments out.
//!
//! Owns the queues, what each scheduler holds, the split of nodes, and the follow-up of what was cancelled,
//! scaled in or has ended. Leaves placement to schedulers and rows to the binder: both are learnt from committed
//! changes. Nothing survives a restart; a new leader reads the records, waits a moment for schedulers to come
//! back with what they hold, and goes on.
//!
//! Events change the state and may leave messages in the outbox; [`Dispatcher::step`] decides and takes the
//! outbox out. Equal events at equal times give equal actions.
//!
//! The state is split into parts, each of which owns its fields: [`Dispatcher`] hands every event and every step to the parts
//! that it concerns, and a method of a part changes nothing but that part and what it is given.
//!
//! # Modules
//!
//! - `actions`: what the dispatcher asks to be done.
//! - `assign`: one pass of assignments: which units go to which schedulers now.
//! - `assignments`: where every unit is, and what follows from its record, its running units and its place.
//! - `attach`: schedulers that connect, report what they hold, and leave.
//! - `budgets`: disruption budgets beside the units that they select.
//! - `compactions`: units of which ended replicas are compacted, and when.
//! - `config`: how the dispatcher works.
//! - `daemons`: how many replicas each daemon has, which follows from the nodes that it is for.
//! - `directory`: units by namespace and name.
//! - `ends`: units that end, and those that have ended, until they are deleted.
//! - `evicted_by`: who had running units leave, in words.
//! - `events`: what has been committed, and what schedulers and the binder say, handed to the parts.
//! - `following`: what has been read of the records.
//! - `gangs`: which gang may gather room next.
//! - `gates`: what keeps units from being assigned: pauses, and records that cannot be read.
//! - `gauges`: numbers of units for metrics.
//! - `history`: ended units for accounting.
//! - `holds`: room that the binder holds for units.
//! - `leader`: the leading dispatcher: requests in, transactions and assignments out.
//! - `limits`: deadlines and time limits of units.
//! - `moves`: units that change their queue while some of them is on nodes.
//! - `named`: the unit that a name stands for.
//! - `node_evictions`: which running units have to leave a node, and when.
//! - `nodes`: nodes that are known: their names, and who could ever hold what.
//! - `partition`: how nodes are split over schedulers.
//! - `partition_mode`: changes between global and partitioned mode.
//! - `policy`: which scheduler gets a unit.
//! - `queues`: queues and priority classes, as RPCs show them.
//! - `read`: the state of the dispatcher, as RPCs show it.
//! - `reconcile`: what is compared after a change of leader or a missed message.
//! - `record_changes`: changes of queues, classes, budgets and reservations, checked and written together.
//! - `reservations`: reservations, as RPCs show them.
//! - `rooms`: room on nodes, given out in the order of queues.
//! - `schedulers`: the schedulers that are known, and their credits.
//! - `surges`: units of which a replica starts before the one stops that it replaces.
//! - `targets`: where replicas of a unit move to, and what they count for meanwhile.
//! - `unit_entry`: what is kept of one unit.
//! - `units`: the units that are known.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{HoldId, UnitId},
    time::Millis,
};
use godel_domain::{change::Partition, hold::Hold, unit::UnitRecord, unit_history::UnitHistory};
use godel_rules::{budget::Budgets, lost_nodes::BrakeChange};

mod actions;
mod assign;
mod assignments;
mod attach;
pub mod budgets;
mod compactions;
mod config;
mod daemons;
mod directory;
mod ends;
mod events;
mod evicted_by;
mod following;
mod gangs;
mod gates;
pub mod gauges;
pub mod history;
mod holds;
pub mod leader;
mod limits;
pub mod moves;
mod named;
mod node_evictions;
mod nodes;
mod partition;
mod partition_mode;
pub mod policy;
pub mod queues;
pub mod read;
mod reconcile;
pub mod record_changes;
pub mod reservations;
mod rooms;
mod schedulers;
mod surges;
mod targets;
mod unit_entry;
mod units;

pub use actions::{Action, EvictRequest};
pub use attach::{Attach, AttachRefusal};
pub use config::Config;
pub use directory::NameClaim;
pub use ends::{DeleteRefusal, EndedView};
pub use events::FOLLOWS;
pub use gangs::TurnView;
pub use named::Unresolved;
pub use node_evictions::DrainView;
pub use partition_mode::{ModeChoice, SchedulerCounts};
pub use schedulers::SessionId;

use assign::AssignmentPass;
use assignments::Assignments;
use compactions::Compactions;
use daemons::Daemons;
use following::{Following, Settle};
use gangs::Gangs;
use gauges::Waits;
use history::{HistoryChunk, HistoryFilter, UnitHistories};
use node_evictions::NodeEvictions;
use nodes::Nodes;
use partition::Partitioning;
use reconcile::Reconciler;
use reservations::ReservationRecords;
use rooms::Rooms;
use surges::Surges;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Units that became durable.
    pub submitted: u64,
    /// Units queued again after a scheduler had them.
    pub redispatched: u64,
    /// Units handed to a scheduler, each as often as that was.
    pub assigned: u64,
    /// What the reconciler had to put right; 0 in a healthy run.
    pub repairs: u64,
    /// Replicas that were to start before those stop that they replace.
    pub surges_started: u64,
    /// Those of them that were given up.
    pub surges_given_up: u64,
}

/// The dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    assignments: Assignments,
    rooms: Rooms,
    gangs: Gangs,
    holds: BTreeMap<HoldId, Arc<Hold>>,
    histories: UnitHistories,
    budgets: Budgets,
    reservations: ReservationRecords,
    nodes: Nodes,
    daemons: Daemons,
    compactions: Compactions,
    surges: Surges,
    partition: Partitioning,
    node_evictions: NodeEvictions,
    following: Following,
    reconciler: Reconciler,
    /// Time of the last step.
    stepped_at: Millis,
}

impl Dispatcher {
    /// Without units and schedulers.
    pub fn new(config: Config) -> Self {
        Self {
            assignments: Assignments::new(&config),
            rooms: Rooms::default(),
            gangs: Gangs::new(config.gang_hold_after_ms),
            holds: BTreeMap::new(),
            histories: UnitHistories::new(config.history),
            budgets: Budgets::default(),
            reservations: ReservationRecords::default(),
            nodes: Nodes::default(),
            daemons: Daemons::default(),
            compactions: Compactions::new(config.compact_after_ms),
            surges: Surges::new(config.evict_retry_ms),
            partition: Partitioning::new(&config),
            node_evictions: NodeEvictions::new(config.losses, config.evict_retry_ms),
            following: Following::default(),
            reconciler: Reconciler::default(),
            stepped_at: Millis(0),
            config,
        }
    }

    /// Decides what is to be done now. Call after events, and at [`Self::next_wake`].
    pub fn step(&mut self, now: Millis) -> Vec<Action> {
        self.stepped_at = now;
        self.assignments.check_settled(now);
        self.assignments.end_rests(now);
        if !self.following.is_listing() {
            self.nodes.follow_total(&mut self.assignments.queueing.queues);
        }
        if now >= self.reconciler.at && !self.assignments.settling.is_loading() {
            self.reconcile(now);
            self.reconciler.at = now.plus(self.config.reconcile_ms);
        }
        let mut actions = self.assignments.schedulers.take_outbox();
        if self.assignments.settling.is_loading() {
            return actions;
        }
        if self.assignments.gates.frozen.is_all() {
            // It may be any record: nothing is decided before all are listed again.
            return actions;
        }
        self.assignments.check_limits(now);
        let mode = self.partition.mode;
        self.gangs.offer_turns(
            &mut self.assignments,
            &mut self.rooms,
            &self.config.sub_cluster_key,
            mode,
            now,
        );
        let by_labels = self.goes_by_labels();
        let mut pass = AssignmentPass {
            assignments: &mut self.assignments,
            rooms: &mut self.rooms,
            gangs: &mut self.gangs,
            scope_of_all: self.partition.scope_of_all(),
            by_labels,
            read: self.following.revision,
            now,
            actions: &mut actions,
            calls: Vec::new(),
        };
        pass.send_again();
        pass.dispatch();
        let Assignments { units, ends, counters, wall_ms, .. } = &mut self.assignments;
        ends.evict(units, counters, self.following.revision, now, &mut actions);
        ends.end(units, *wall_ms, now, &mut actions);
        if !self.following.is_listing() {
            let Assignments { units, gates, .. } = &self.assignments;
            let (read, wall_ms) = (self.following.revision, self.assignments.wall_ms);
            self.daemons.follow(units, gates, read, now, &mut actions);
            self.compactions.compact(units, gates, read, wall_ms, now, &mut actions);
            self.surges.follow(units, gates, read, wall_ms, now, &mut actions);
        }
        self.node_evictions.depart(
            &self.assignments,
            &self.nodes,
            &mut self.budgets,
            &self.following,
            now,
            &mut actions,
        );
        self.assignments.ends.delete_ended(&mut self.assignments.units, now, &mut actions);
        let old = self.histories.take_old(self.assignments.wall_ms);
        actions.extend((!old.is_empty()).then_some(Action::DeleteHistory(old)));
        self.partition.follow_load(&self.nodes, &self.assignments, now, &mut actions);
        self.partition.split_when_due(&self.nodes, &self.assignments, now, &mut actions);
        actions
    }

    /// When to step again without an event; `None`: only after one.
    pub fn next_wake(&self, now: Millis) -> Option<Millis> {
        let Assignments { queueing, schedulers, gates, settling, ends, wall_ms, .. } = &self.assignments;
        if settling.is_loading() {
            return None;
        }
        if gates.frozen.is_all() {
            return Some(self.reconciler.at);
        }
        let is_due = !schedulers.outbox().is_empty()
            || (queueing.queues.is_ready() && schedulers.candidates().next().is_some());
        let settles_at = match settling.phase {
            Settle::Until(until) => Some(until),
            Settle::Loading | Settle::Settled => None,
        };
        let wakes = [
            is_due.then_some(now),
            self.assignments.full_queues_due(),
            self.partition.window_ends(),
            settles_at,
            settling.rest_ends(),
            ends.next_at(),
            self.partition.next_at(),
            self.gangs.next_at(!self.rooms.is_empty()),
            self.daemons.next_at().filter(|_| !self.following.is_listing()),
            self.compactions.next_at().filter(|_| !self.following.is_listing()),
            self.surges.next_at().filter(|_| !self.following.is_listing()),
            self.node_evictions.next_at(*wall_ms, now),
        ];
        let first = wakes.into_iter().flatten().fold(self.reconciler.at, Millis::min);
        Some(first)
    }

    /// Compares what the dispatcher believes with what follows from the records.
    fn reconcile(&mut self, now: Millis) {
        let capacities = (!self.following.is_listing()).then_some(&self.nodes.capacities);
        let (assignments, done_grace_ms) = (&mut self.assignments, self.config.done_grace_ms);
        let adrift = self.reconciler.check_units(assignments, &self.holds, capacities, done_grace_ms, now);
        assignments.counters.repairs += self.node_evictions.give_up(adrift, now);
        for hold in self.reconciler.check_holds(&assignments.units, &self.holds) {
            self.assignments.counters.repairs += 1;
            self.on_hold(hold, now);
        }
        reconcile::check_schedulers(&mut self.assignments, now);
        self.rooms.recount_rooms();
    }

    /// Ids up to this one were used at some time.
    pub fn set_last_unit_id(&mut self, last: UnitId) {
        self.assignments.units.directory.set_last_id(last);
    }

    /// Unix time, milliseconds: deadlines are in it.
    pub fn set_wall(&mut self, wall_ms: i64) {
        self.assignments.wall_ms = wall_ms;
    }

    /// Unix time of the last look at the clock, milliseconds.
    pub fn wall_ms(&self) -> i64 {
        self.assignments.wall_ms
    }

    /// Whether the deletion of a unit's record is on its way.
    pub fn is_deleting(&self, unit: UnitId) -> bool {
        self.assignments.units.get(unit).is_some_and(|entry| entry.deleting)
    }

    /// Takes uid and name of a submission, or says what they are already. `uid` must be a UUID.
    pub fn reserve(&mut self, namespace: &str, name: &str, uid: &str) -> NameClaim {
        if let Some(unit) = self.assignments.gates.frozen.has_name(namespace, name) {
            return NameClaim::NameTaken(unit);
        }
        self.assignments.units.directory.reserve(namespace, name, uid)
    }

    /// The store refused the unit: its uid and name are free again.
    pub fn release(&mut self, record: &UnitRecord) {
        self.assignments.units.directory.release(record);
    }

    /// Begins to delete the record of a unit that has ended, as retention does in the end. Whoever asked writes the
    /// deletion, or calls [`Self::on_delete_failed`]. False: it is being deleted already.
    ///
    /// # Errors
    /// The unit has not ended, or something of it is still on a node.
    pub fn delete(&mut self, unit: UnitId) -> Result<bool, DeleteRefusal> {
        self.assignments.ends.delete(unit, &mut self.assignments.units)
    }

    /// What is to be kept of a unit whose record is deleted; `None`: nothing is kept.
    pub fn history_of(&self, unit: UnitId) -> Option<UnitHistory> {
        history::of_deleted(&self.histories, &self.assignments.units, unit)
    }

    /// Ended units that are older than `before`, the newest first: looks at `n_scan` units at most, and keeps the first
    /// `n_units` matches.
    pub fn list_history(
        &self,
        filter: &HistoryFilter,
        before: Option<UnitId>,
        n_scan: usize,
        n_units: usize,
    ) -> HistoryChunk {
        history::list(&self.histories, &self.assignments.units, filter, before, n_scan, n_units)
    }

    /// Old histories were not deleted.
    pub fn on_history_delete_failed(&mut self) {
        self.histories.on_delete_failed();
    }

    /// Another way to split nodes: the record to be written, or `None` when it is in force already.
    pub fn set_mode(&mut self, choice: ModeChoice, now: Millis) -> Option<Partition> {
        self.partition.set_mode(choice, &self.nodes, &self.assignments, now)
    }

    /// Somebody says that the nodes that are absent now are lost. Whether evictions were paused.
    pub fn resume_evictions(&mut self) -> bool {
        self.node_evictions.resume_evictions()
    }

    /// Changes of the brake since the last call, for the log.
    pub fn take_brake_changes(&mut self) -> Vec<BrakeChange> {
        self.node_evictions.take_brake_changes()
    }

    /// Waits that have ended since the last call.
    pub fn take_waits(&mut self) -> Waits {
        std::mem::take(&mut self.assignments.units.waits)
    }
}

#[cfg(test)]
mod tests;
