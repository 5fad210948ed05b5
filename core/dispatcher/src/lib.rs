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
//! that it concerns, and a method of a part changes nothing but that part and what it is given. Who reads asks the part
//! ([`Dispatcher::units`], [`Dispatcher::queueing`]); what schedulers say goes to [`Dispatcher::streams`].
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
//! - `pending`: what units wait for, and whether that is the control plane.
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

use godel_base::{ids::HoldId, time::Millis};
use godel_domain::hold::Hold;

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
mod pending;
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
pub use assignments::Assignments;
pub use attach::{Attach, AttachRefusal, SchedulerStreams};
pub use config::Config;
pub use directory::NameClaim;
pub use ends::{DeleteRefusal, EndedView};
pub use events::FOLLOWS;
pub use following::Following;
pub use gangs::TurnView;
pub use named::Unresolved;
pub use node_evictions::{DrainView, NodeEvictions};
pub use nodes::Nodes;
pub use partition::Partitioning;
pub use partition_mode::{ModeChoice, SchedulerCounts};
pub use pending::PendingUnits;
pub use schedulers::{Schedulers, SessionId};
pub use units::Units;

use assign::AssignmentPass;
use budgets::BudgetRecords;
use compactions::Compactions;
use daemons::Daemons;
use following::Settle;
use gangs::Gangs;
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
    budgets: BudgetRecords,
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
            budgets: BudgetRecords::default(),
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
        let by_labels = self.reservations.decide_by_labels(&self.assignments.units);
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
            &mut self.budgets.budgets,
            &self.following,
            now,
            &mut actions,
        );
        self.assignments.ends.delete_ended(&mut self.assignments.units, now, &mut actions);
        let old = self.assignments.units.histories.take_old(self.assignments.wall_ms);
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
}

#[cfg(test)]
mod tests;
