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
//! # Modules
//!
//! - `actions`: what the dispatcher asks to be done.
//! - `attach`: schedulers that connect, report what they hold, and leave.
//! - `budgets`: disruption budgets beside the units that they select.
//! - `directory`: units by namespace and name.
//! - `ended`: units that have ended, until they are deleted.
//! - `follow`: what follows from a unit's record, its running units and where it is.
//! - `frozen`: what is not decided while records cannot be read.
//! - `full`: units of full queues that are worth a try.
//! - `gangs`: which gang may gather room next.
//! - `gauges`: numbers of units for metrics.
//! - `holds`: room that the binder holds for units.
//! - `leader`: the leading dispatcher: requests in, transactions and assignments out.
//! - `limits`: deadlines and time limits of units.
//! - `named`: the unit that a name stands for.
//! - `node_evictions`: which running units have to leave a node, and when.
//! - `nodes`: nodes, as far as the split and lost nodes need them.
//! - `partition_input`: what the strategy that splits nodes looks at.
//! - `partition_mode`: changes between global and partitioned mode.
//! - `pauses`: units that administrators keep from being assigned.
//! - `policy`: which scheduler gets a unit.
//! - `queues`: queues and priority classes, as RPCs show them.
//! - `read`: the state of the dispatcher, as RPCs show it.
//! - `reconcile`: what is compared after a change of leader or a missed message.
//! - `record_changes`: changes of queues, classes, budgets and reservations, checked and written together.
//! - `reservations`: reservations, as RPCs show them.
//! - `rooms`: room on nodes, given out in the order of queues.
//! - `schedulers`: the schedulers that are known, and their credits.
//! - `step`: one step: what is sent, written and answered.
//! - `unit_entry`: what is kept of one unit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_domain::{
    change::PartitionMode,
    hold::Hold,
    ids::{HoldId, IdMap, NodeId, Revision, UnitId},
    pause::{self, Pauses},
    priority_classes::PriorityClasses,
    running_units::{EvictionReason, RunChange, RunningUnits},
    sub_cluster,
    time::Millis,
    unit::UnitSpec,
    unreadable::Subject,
};
use godel_queueing::{self as queue, Queues};
use godel_rules::{
    admission::feasibility::Capacities,
    budget::Budgets,
    frozen::Frozen,
    lost_nodes::{self, BrakeChange, Losses},
    partition::StrategyKind,
};

mod actions;
mod attach;
pub mod budgets;
mod directory;
mod ended;
mod follow;
mod frozen;
mod full;
mod gangs;
pub mod gauges;
mod holds;
pub mod leader;
mod limits;
mod named;
mod node_evictions;
mod nodes;
mod partition_input;
mod partition_mode;
mod pauses;
pub mod policy;
pub mod queues;
pub mod read;
mod reconcile;
pub mod record_changes;
pub mod reservations;
mod rooms;
mod schedulers;
mod step;
mod unit_entry;

pub use actions::{Action, Assignment, EvictRequest};
pub use attach::{Attach, AttachRefusal};
pub use directory::NameClaim;
pub use ended::{DeleteRefusal, EndedView};
pub use gangs::TurnView;
pub use named::Unresolved;
pub use node_evictions::DrainView;
pub use partition_mode::{ModeChoice, SchedulerCounts};
pub use schedulers::SessionId;

use directory::Directory;
use gangs::Gangs;
use limits::TimeLimits;
use node_evictions::Departures;
use partition_input::Racks;
use partition_mode::Shuffler;
use policy::{DispatchPolicy, PolicyKind};
use queues::QueueRecords;
use reservations::ReservationRecords;
use rooms::Rooms;
use schedulers::Schedulers;
use unit_entry::{Dispatched, UnitEntry, Whereabouts};

/// How the dispatcher works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which scheduler gets a unit.
    pub policy: PolicyKind,
    /// After the start, units read from the store wait so long at most for schedulers that may hold them,
    /// milliseconds. One lease.
    pub settle_ms: u64,
    /// An eviction without effect is asked for again after this, milliseconds.
    pub evict_retry_ms: u64,
    /// Changes of schedulers and nodes are gathered so long before nodes are split anew, milliseconds.
    pub partition_debounce_ms: u64,
    /// Between two passes of the reconciler, milliseconds.
    pub reconcile_ms: u64,
    /// A unit reported as done whose rows still say otherwise after this is queued again, milliseconds.
    pub done_grace_ms: u64,
    /// Gangs that found no place for so long gather room in turn, milliseconds; 0: never.
    pub gang_hold_after_ms: u64,
    /// Ended units kept at most.
    pub n_ended_max: usize,
    /// How queues are served.
    pub queues: queue::Config,
    /// When nodes count as lost.
    pub losses: lost_nodes::Config,
    /// When the mode in which nodes are split changes by itself.
    pub shuffle: godel_rules::partition_mode::Config,
    /// What is balanced when nodes are split.
    pub strategy: StrategyKind,
    /// Label or attribute of nodes whose value says what fails together.
    pub topology_key: String,
    /// Label or attribute of nodes whose value is their sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::LeastLoaded,
            settle_ms: 3_000,
            evict_retry_ms: 2_000,
            partition_debounce_ms: 500,
            reconcile_ms: 2_000,
            done_grace_ms: 5_000,
            gang_hold_after_ms: 60_000,
            n_ended_max: 100_000,
            queues: queue::Config::default(),
            losses: lost_nodes::Config::default(),
            shuffle: godel_rules::partition_mode::Config::default(),
            strategy: StrategyKind::default(),
            topology_key: "rack".to_owned(),
            sub_cluster_key: sub_cluster::KEY.to_owned(),
        }
    }
}

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
}

/// The dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    policy: Box<dyn DispatchPolicy>,
    units: IdMap<UnitId, Box<UnitEntry>>,
    /// Of `units`, in order.
    unit_ids: BTreeSet<UnitId>,
    directory: Directory,
    queues: Queues,
    classes: PriorityClasses,
    records: QueueRecords,
    budgets: Budgets,
    reservations: ReservationRecords,
    schedulers: Schedulers,
    node_names: BTreeMap<NodeId, Box<str>>,
    capacities: Capacities,
    /// Shares follow what the cluster has in all.
    is_total_stale: bool,
    infeasible: BTreeSet<UnitId>,
    evictions: BTreeMap<UnitId, Eviction>,
    /// Units that have to end, and when that is written, or written again.
    ends: BTreeMap<UnitId, Millis>,
    limits: TimeLimits,
    pauses: Pauses,
    frozen: Frozen,
    gangs: Gangs,
    rooms: Rooms,
    losses: Losses,
    brake_changes: Vec<BrakeChange>,
    departures: Departures,
    wall_ms: i64,
    holds: BTreeMap<HoldId, Arc<Hold>>,
    /// Units that wait again, as the room that was held for them is another's now.
    overtaken: BTreeMap<UnitId, UnitId>,
    ended: BTreeSet<(Millis, UnitId)>,
    /// Ended units are deleted again from then on.
    delete_from: Millis,
    tally: gauges::UnitTally,
    waits: gauges::Waits,
    partition: godel_rules::partition::Records,
    partition_due: Option<Millis>,
    partition_writing: bool,
    mode: PartitionMode,
    shuffler: Shuffler,
    racks: Racks,
    unsettled: BTreeSet<UnitId>,
    settle: Settle,
    /// What was seen since a list began; `None` when none is under way.
    listed: Option<ListedRecords>,
    resend: BTreeSet<UnitId>,
    outbox: Vec<Action>,
    reconcile_at: Millis,
    cursor: reconcile::Cursor,
    revision: Revision,
    /// Time of the last step.
    stepped_at: Millis,
    counters: Counters,
}

/// What a list has shown so far.
#[derive(Debug, Default)]
struct ListedRecords {
    nodes: BTreeSet<NodeId>,
    units: BTreeSet<UnitId>,
    queues: BTreeSet<String>,
    classes: BTreeSet<String>,
    budgets: BTreeSet<String>,
    reservations: BTreeSet<String>,
    holds: BTreeSet<HoldId>,
    pauses: BTreeSet<pause::Scope>,
    partition_blocks: BTreeSet<u32>,
    unreadable: BTreeSet<Subject>,
}

/// Whether units read at the start may be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settle {
    /// Reading.
    Loading,
    /// Read; schedulers have until then to come back.
    Until(Millis),
    Settled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Eviction {
    next_at: Millis,
    surplus: u32,
    /// The binder said that it is done.
    answered: bool,
}

impl Dispatcher {
    /// Without units and schedulers.
    pub fn new(config: Config) -> Self {
        Self {
            policy: config.policy.build(),
            queues: Queues::new(config.queues),
            units: IdMap::default(),
            unit_ids: BTreeSet::new(),
            directory: Directory::default(),
            classes: PriorityClasses::default(),
            records: QueueRecords::default(),
            budgets: Budgets::default(),
            reservations: ReservationRecords::default(),
            schedulers: Schedulers::default(),
            node_names: BTreeMap::new(),
            capacities: Capacities::default(),
            is_total_stale: false,
            infeasible: BTreeSet::new(),
            evictions: BTreeMap::new(),
            ends: BTreeMap::new(),
            limits: TimeLimits::default(),
            pauses: Pauses::default(),
            frozen: Frozen::default(),
            gangs: Gangs::new(config.gang_hold_after_ms),
            rooms: Rooms::default(),
            losses: Losses::new(config.losses),
            brake_changes: Vec::new(),
            departures: Departures::default(),
            wall_ms: 0,
            holds: BTreeMap::new(),
            overtaken: BTreeMap::new(),
            ended: BTreeSet::new(),
            delete_from: Millis::default(),
            tally: gauges::UnitTally::default(),
            waits: gauges::Waits::default(),
            partition: godel_rules::partition::Records::default(),
            partition_due: None,
            partition_writing: false,
            mode: PartitionMode::Global,
            shuffler: Shuffler::default(),
            racks: Racks::new(&config),
            unsettled: BTreeSet::new(),
            settle: Settle::Loading,
            listed: None,
            resend: BTreeSet::new(),
            outbox: Vec::new(),
            reconcile_at: Millis(0),
            cursor: reconcile::Cursor::default(),
            revision: Revision(0),
            stepped_at: Millis(0),
            counters: Counters::default(),
            config,
        }
    }

    /// Ids up to this one were used at some time.
    pub fn set_last_unit_id(&mut self, last: UnitId) {
        self.directory.set_last_id(last);
    }

    /// Takes uid and name of a submission, or says what they are already. `uid` must be a UUID.
    pub fn reserve(&mut self, namespace: &str, name: &str, uid: &str) -> NameClaim {
        if let Some(unit) = self.frozen.has_name(namespace, name) {
            return NameClaim::NameTaken(unit);
        }
        self.directory.reserve(namespace, name, uid)
    }

    /// The store refused the unit: its uid and name are free again.
    pub fn release(&mut self, spec: &UnitSpec) {
        self.directory.release(spec);
    }

    /// A list follows: what is not in it is gone. Units, queues and what schedulers hold stay until then.
    pub fn on_reset(&mut self) {
        self.listed = Some(ListedRecords::default());
        self.node_names.clear();
        self.capacities = Capacities::default();
        self.racks = Racks::new(&self.config);
    }

    /// The list is complete and everything up to `revision` is known.
    pub fn on_synced(&mut self, revision: Revision, now: Millis) {
        self.revision = self.revision.max(revision);
        if let Some(listed) = self.listed.take() {
            let old = |unit: &UnitId| self.units.get(unit).is_some_and(|entry| entry.revision <= revision);
            let gone: Vec<UnitId> = self.unit_ids.difference(&listed.units).copied().filter(old).collect();
            for unit in gone {
                self.on_unit_deleted(unit, now);
            }
            self.forget_records(&listed);
            self.losses.retain(&listed.nodes);
            self.departures.retain_nodes(&listed.nodes);
            self.forget_holds(&listed, now);
            self.forget_pauses(&listed, now);
            self.partition.retain_blocks(&listed.partition_blocks, revision);
            self.forget_unreadable(&listed, now);
            self.is_total_stale = true;
        }
        if self.settle == Settle::Loading {
            self.settle = Settle::Until(now.plus(self.config.settle_ms));
            self.reconcile_at = now.plus(self.config.reconcile_ms);
            self.touch_partition(now);
            self.start_losses();
            self.recheck_feasibility(now);
            if self.pauses.iter().next().is_some() || !self.frozen.is_empty() {
                self.follow_pauses(now);
            }
            self.check_settled(now);
        } else {
            self.recheck_feasibility(now);
        }
    }

    /// Everything up to `revision` is known.
    pub fn on_revision(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// A unit's record as committed at `revision`, from the store's answer or the watch, in any order and as
    /// often as it comes. `created`: revision and commit time of the transaction that created it, used when it
    /// is new.
    pub fn on_unit(
        &mut self,
        spec: Arc<UnitSpec>,
        revision: Revision,
        created: (Revision, i64),
        now: Millis,
    ) {
        let unit = spec.id;
        if let Some(listed) = &mut self.listed {
            listed.units.insert(unit);
        }
        if let Some(entry) = self.units.get_mut(&unit) {
            if revision <= entry.revision {
                return;
            }
            entry.revision = revision;
            entry.tried.clear();
            self.gangs.change(unit);
            self.enroll_again(unit, spec);
        } else {
            self.directory.insert(&spec);
            let account = self.queues.enroll(&spec);
            self.records.note_unit(&spec, account.queue);
            let entry = UnitEntry::new(spec, revision, created, account);
            self.tally.enter(entry.account.queue, entry.phase);
            self.units.insert(unit, Box::new(entry));
            self.unit_ids.insert(unit);
            if self.settle != Settle::Loading {
                self.counters.submitted += 1;
            }
        }
        self.set_feasible(unit);
        self.offer(unit);
        self.refresh(unit, now);
    }

    /// All rows of a unit, from a list.
    pub fn on_rows_loaded(&mut self, unit: UnitId, rows: RunningUnits, now: Millis) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        entry.rows_revision = rows.rows.iter().map(|row| row.revision).max().unwrap_or_default();
        let first = rows.rows.iter().map(|row| row.bound_time_ms).filter(|time| *time > 0).min();
        entry.bound_time_ms = first.unwrap_or(entry.bound_time_ms);
        entry.rows = rows;
        entry.recount();
        self.budgets.recount(unit, Some(&entry.rows));
        if let Whereabouts::Dispatched(held) = &mut entry.place {
            held.resend = true;
            self.resend.insert(unit);
        }
        self.refresh(unit, now);
    }

    /// A committed change of rows.
    pub fn on_rows(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
        now: Millis,
    ) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        if !entry.apply(change, revision, time_ms) {
            return;
        }
        entry.rows_revision = revision;
        self.budgets.recount(unit, Some(&entry.rows));
        match change {
            RunChange::Bind(bind) => {
                if entry.bound_time_ms == 0 {
                    entry.bound_time_ms = time_ms;
                    self.waits.bound(entry.spec.class, entry.create_time_ms, time_ms);
                }
                self.departures.on_bind(unit, bind);
            }
            RunChange::Evict(_) => self.on_evicted(unit),
            RunChange::Requeue(_) => {
                if let Whereabouts::Dispatched(held) = &mut entry.place {
                    held.resend = true;
                    self.resend.insert(unit);
                }
            }
            RunChange::Statuses(_) => {}
        }
        self.refresh(unit, now);
    }

    /// A unit's record and rows are gone.
    pub fn on_unit_deleted(&mut self, unit: UnitId, now: Millis) {
        let Some(mut entry) = self.units.remove(&unit) else { return };
        self.unit_ids.remove(&unit);
        self.on_evicted(unit);
        self.budgets.forget(unit);
        self.tally.leave(entry.account.queue, entry.phase);
        self.directory.remove(&entry.spec, entry.create_revision, now);
        self.infeasible.remove(&unit);
        self.evictions.remove(&unit);
        self.ends.remove(&unit);
        self.limits.remove(unit);
        self.gangs.remove(unit);
        self.overtaken.remove(&unit);
        self.departures.remove_unit(unit);
        self.unsettled.remove(&unit);
        self.resend.remove(&unit);
        if let Some(at) = entry.delete_at {
            self.ended.remove(&(at, unit));
        }
        match entry.place {
            Whereabouts::Queued(waiting) => {
                self.queues.remove(&waiting);
            }
            Whereabouts::Dispatched(held) => self.take_back(unit, held, Revocation::Tell),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused => {}
        }
        self.records.forget_unit(&entry.spec, entry.account.queue, entry.is_wanting);
        entry.discharge(&mut self.queues);
        self.queues.leave(&entry.account);
    }

    /// The transaction that was to delete a unit failed.
    pub fn on_delete_failed(&mut self, unit: UnitId, now: Millis) {
        if let Some(entry) = self.units.get_mut(&unit) {
            let at = now.plus(self.config.reconcile_ms);
            entry.deleting = false;
            entry.delete_at = Some(at);
            self.ended.insert((at, unit));
        }
    }

    /// The binder's answer to an [`EvictRequest`] for `reason`: `done`, or it has to be asked again.
    pub fn on_evict_answer(&mut self, unit: UnitId, reason: EvictionReason, done: bool) {
        let is_surplus = matches!(
            reason,
            EvictionReason::Cancelled
                | EvictionReason::ScaledIn
                | EvictionReason::Suspended
                | EvictionReason::Deadline
                | EvictionReason::BelowMin
                | EvictionReason::Failure
        );
        if let Some(eviction) = self.evictions.get_mut(&unit).filter(|_| is_surplus) {
            eviction.answered = done;
        }
    }
}

/// Whether the scheduler has to hear that a unit is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Revocation {
    Tell,
    Silent,
}

#[cfg(test)]
mod tests;
