//! All records as plain maps, and the plainest possible way to apply commits to them.
//!
//! Kept apart from `core::rows` on purpose: an auditor that applied changes through the audited code would repeat its mistakes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{HoldId, NodeId, Revision, UnitId},
    resources::{CPU, MEMORY, RUNNING_UNITS, Resources},
};
use godel_domain::{
    allocation::Allocation,
    budget_spec::BudgetSpec,
    change::{Block, Change, Lease, Partition},
    demand::{Demand, Pool},
    hold::Hold,
    node::{Device, NodeReport, NodeSpec, NodeUsage, TaintEffect},
    pause::Pause,
    queue_spec::{PriorityClass, QueueSpec},
    records::{Record, RecordKey, RecordKind},
    reservation_spec::ReservationSpec,
    running_units::{EvictionReason, N_PREEMPTORS_MAX, Phase, PreemptionTerms, RunChange, RunningUnits},
    task_group_record::TaskGroupKey,
    task_group_record::TaskGroupRecord,
    unit::UnitRecord,
};
use rustc_hash::FxHashSet;

use super::compaction;

pub use godel_domain::change::Commit;

/// Kinds of records that an audit reads: all but what is kept of deleted units, which nothing is judged by, and what state keeps to itself. Of some
/// of them it only asks whether they can be read.
pub fn follows() -> impl Iterator<Item = RecordKind> {
    RecordKind::ALL.iter().copied().filter(|kind| *kind != RecordKind::UnitHistory && !kind.is_hidden())
}

/// A record with its revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// Of the first put; 0 when not known.
    pub created: Revision,
    /// Of the last put.
    pub revision: Revision,
    /// As put.
    pub value: T,
}

/// The records of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldNode {
    /// An administrator's.
    pub spec: Option<Versioned<NodeSpec>>,
    /// Its agent's.
    pub report: Option<Versioned<NodeReport>>,
    /// The binder's.
    pub allocatable: Option<Versioned<Resources>>,
    /// State's.
    pub usage: Option<Versioned<NodeUsage>>,
}

impl WorldNode {
    /// Allocatable in force.
    pub fn allocatable(&self) -> Cow<'_, Resources> {
        match (&self.allocatable, &self.report) {
            (Some(allocatable), _) => Cow::Borrowed(&allocatable.value),
            (None, Some(report)) => Cow::Borrowed(&report.value.capacity),
            (None, None) => Cow::default(),
        }
    }

    /// Running units that it takes, whatever they ask for.
    pub fn max_running_units(&self) -> i64 {
        self.report.as_ref().map_or(0, |report| i64::from(report.value.max_running_units))
    }

    /// What best-effort running units may take, of the measured resources and all others, beside guaranteed ones that
    /// keep `kept` from them.
    pub fn best_effort_allocatable(&self, kept: &Resources) -> Resources {
        let mut left = self.allocatable().into_owned();
        left.add_amount(RUNNING_UNITS, self.max_running_units());
        left.add(kept, -1);
        if let Some(usage) = &self.usage {
            left.add(&usage.value.reserved, -1);
        }
        left
    }

    /// What a guaranteed running unit bound at a time keeps from best-effort ones.
    pub fn kept<'a>(
        &self,
        requests: &'a Resources,
        bound_time_ms: i64,
    ) -> impl Iterator<Item = (&'a str, i64)> {
        let is_reserved = self.usage.as_ref().is_some_and(|usage| bound_time_ms <= usage.value.as_of_ms);
        requests.iter().filter(move |(name, _)| !is_reserved || (*name != CPU && *name != MEMORY))
    }

    /// Name, or `?` without a spec.
    pub fn name(&self) -> &str {
        self.spec.as_ref().map_or("?", |spec| spec.value.name.as_str())
    }
}

/// One running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldRow {
    /// Current incarnation.
    pub incarnation: u32,
    /// Where it is or was.
    pub node: NodeId,
    /// What it was given there.
    pub allocation: Allocation,
    /// Life.
    pub phase: Phase,
    /// Told to leave.
    pub eviction: Option<EvictionReason>,
    /// Task group.
    pub group: u16,
    /// Of an ended one.
    pub exit_code: i32,
    /// In place.
    pub restarts: u32,
    /// Of the last change.
    pub revision: Revision,
    /// Of its binding, Unix milliseconds.
    pub bound_time_ms: i64,
}

impl WorldRow {
    /// Holds room.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Bound | Phase::Starting | Phase::Running)
    }
}

/// The records of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldUnit {
    /// The dispatcher's, with the task groups that were added.
    pub record: Option<Versioned<Arc<UnitRecord>>>,
    /// The records of task groups that were added, by position.
    pub added_groups: BTreeMap<u16, Versioned<Arc<TaskGroupRecord>>>,
    /// What a running unit of a group takes, as its first binding said.
    pub demands: BTreeMap<u16, (Arc<Demand>, Pool)>,
    /// How running units of a group stand, as its first binding said, or the last change of its unit's terms.
    pub standings: BTreeMap<u16, Arc<PreemptionTerms>>,
    /// By ordinal.
    pub rows: BTreeMap<u32, WorldRow>,
    /// Who preempted some of it, the newest last.
    pub preemptors: Vec<UnitId>,
}

impl WorldUnit {
    /// Puts the added task groups behind those of the unit's own record. Each counts as a change of the unit.
    fn join_groups(&mut self) {
        let Some(record) = self.record.as_mut().filter(|_| !self.added_groups.is_empty()) else { return };
        let unit = Arc::make_mut(&mut record.value);
        let n_own = usize::from(unit.status.own_groups);
        unit.spec.task_groups.truncate(n_own);
        unit.status.ordinals.truncate(n_own);
        for added in self.added_groups.values() {
            unit.spec.task_groups.push(added.value.group.clone());
            unit.status.ordinals.push(added.value.ordinals.clone());
            record.revision = record.revision.max(added.revision);
        }
    }

    /// `namespace/name`, or `?` without a record.
    pub fn name(&self) -> String {
        self.record.as_ref().map_or_else(|| "?".to_owned(), |record| shown(&record.value))
    }
}

/// `name`, with its namespace unless that is `default`.
pub(super) fn shown(record: &UnitRecord) -> String {
    if record.spec.namespace == "default" {
        record.spec.name.clone()
    } else {
        format!("{}/{}", record.spec.namespace, record.spec.name)
    }
}

/// Everything, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Commits up to here are applied.
    pub revision: Revision,
    /// By id.
    pub nodes: BTreeMap<NodeId, WorldNode>,
    /// By id.
    pub units: BTreeMap<UnitId, WorldUnit>,
    /// By name.
    pub leases: BTreeMap<String, Versioned<Lease>>,
    /// The one there is.
    pub partition: Option<Versioned<Partition>>,
    /// By number.
    pub partition_blocks: BTreeMap<u32, Versioned<Block>>,
    /// By path.
    pub queues: BTreeMap<String, Versioned<Arc<QueueSpec>>>,
    /// By name.
    pub priority_classes: BTreeMap<String, Versioned<PriorityClass>>,
    /// By name.
    pub budgets: BTreeMap<String, Versioned<Arc<BudgetSpec>>>,
    /// By name.
    pub reservations: BTreeMap<String, Versioned<Arc<ReservationSpec>>>,
    /// By scope.
    pub pauses: BTreeMap<String, Versioned<Pause>>,
    /// Nodes that were drained at some time: an eviction may be on its way when a drain ends.
    pub drained: BTreeSet<NodeId>,
    /// Units that were suspended at some time: an eviction may be on its way when one is resumed.
    pub suspended: BTreeSet<UnitId>,
    /// Units that started again as a whole at some time.
    pub restarted: BTreeSet<UnitId>,
    /// Nodes that had a taint at some time that evicts.
    pub tainted: BTreeSet<NodeId>,
    /// Nodes that have come to have less than before, until what runs there fits again. Seen in a history only.
    pub shrunk: BTreeSet<NodeId>,
    /// By id.
    pub holds: BTreeMap<HoldId, Versioned<Arc<Hold>>>,
}

/// A row before and after one change of it.
#[derive(Clone, Copy, Debug)]
pub struct RowStep<'a> {
    /// The unit.
    pub unit: UnitId,
    /// Which replica.
    pub ordinal: u32,
    /// As it was; default for one never bound.
    pub before: WorldRow,
    /// As it is now; `None`: the rules do not allow the change.
    pub after: Option<WorldRow>,
    /// As the change asks for, whether the rules allow it or not.
    pub change: &'a RunChange,
    /// Position in the change's columns.
    pub idx: usize,
}

impl World {
    /// Loads a listed record. `created` and `revision` are those of the record; rows carry their own.
    pub fn load(&mut self, created: Revision, revision: Revision, change: &Change) {
        match change {
            Change::RowsLoaded(unit, rows) => load_rows(self.units.entry(*unit).or_default(), rows),
            _ => {
                self.put(created, revision, change);
            }
        }
    }

    /// Applies a commit; what the world already has as new or newer is left alone. `on_row` sees every row
    /// that a change names, allowed or not.
    pub fn apply<'a>(&mut self, commit: &'a Commit, mut on_row: impl FnMut(&Self, RowStep<'a>)) {
        let mut touched = FxHashSet::default();
        for change in &commit.changes {
            match change {
                Change::Rows(unit, rows) => self.apply_rows(commit, *unit, rows, &mut touched, &mut on_row),
                _ => self.put(commit.revision, commit.revision, change),
            }
        }
        self.revision = self.revision.max(commit.revision);
    }

    fn put(&mut self, created: Revision, revision: Revision, change: &Change) {
        match change {
            Change::Put(record) if record.node().is_some() => self.put_node(created, revision, record),
            Change::Put(record) => self.put_record(created, revision, record),
            Change::Gone(key) => self.remove(key),
            // What cannot be read is the auditor's business: see `Evidence`.
            Change::Rows(..) | Change::RowsLoaded(..) | Change::Unreadable(_) => {}
        }
    }

    fn put_node(&mut self, created: Revision, revision: Revision, record: &Record) {
        let Some(id) = record.node() else { return };
        let node = self.nodes.entry(id).or_default();
        match record {
            Record::NodeSpec(spec) => {
                if spec.drain.is_some() {
                    self.drained.insert(id);
                }
                if spec.taints.iter().any(|taint| taint.effect == TaintEffect::NoExecute) {
                    self.tainted.insert(id);
                }
                set(&mut node.spec, created, revision, spec);
            }
            Record::NodeReport(report) => {
                if node.report.as_ref().is_some_and(|old| is_less(report, &old.value)) {
                    self.shrunk.insert(id);
                }
                set(&mut node.report, created, revision, report);
            }
            Record::NodeAllocatable(record) => {
                set(&mut node.allocatable, created, revision, &record.amounts);
            }
            Record::NodeUsage(usage) => set(&mut node.usage, created, revision, usage),
            _ => {}
        }
    }

    /// A record that is of no node. Nothing is decided by what is kept of deleted units, by keys of tokens, and by
    /// what the adapter and the rescheduler remember.
    fn put_record(&mut self, created: Revision, revision: Revision, record: &Record) {
        match record {
            _ if record.unit().is_some() => self.put_unit(created, revision, record),
            Record::Lease(lease) => set_keyed(&mut self.leases, &lease.name, created, revision, lease),
            Record::Partition(partition) => set(&mut self.partition, created, revision, partition),
            Record::PartitionBlock(block) if record.is_gone() => {
                self.partition_blocks.remove(&block.number);
            }
            Record::PartitionBlock(block) => {
                set_keyed(&mut self.partition_blocks, &block.number, created, revision, block);
            }
            Record::Queue(queue) => set_keyed(&mut self.queues, &queue.name, created, revision, queue),
            Record::PriorityClass(class) => {
                set_keyed(&mut self.priority_classes, &class.name, created, revision, class);
            }
            Record::Budget(budget) => set_keyed(&mut self.budgets, &budget.name, created, revision, budget),
            Record::Reservation(spec) => {
                set_keyed(&mut self.reservations, &spec.name, created, revision, spec);
            }
            Record::Hold(hold) => set_keyed(&mut self.holds, &hold.id, created, revision, hold),
            Record::Pause(pause) => {
                set_keyed(&mut self.pauses, &pause.scope.to_string(), created, revision, pause);
            }
            _ => {}
        }
    }

    fn remove(&mut self, key: &RecordKey) {
        match key {
            RecordKey::NodeSpec(node) => {
                self.nodes.remove(node);
                self.shrunk.remove(node);
            }
            RecordKey::Unit(unit) => {
                self.units.remove(unit);
                self.suspended.remove(unit);
                self.restarted.remove(unit);
            }
            RecordKey::TaskGroup(TaskGroupKey { unit, idx }) => {
                let unit = self.units.entry(*unit).or_default();
                unit.added_groups.remove(idx);
                unit.join_groups();
            }
            RecordKey::Queue(path) => drop(self.queues.remove(path)),
            RecordKey::PriorityClass(name) => drop(self.priority_classes.remove(name)),
            RecordKey::Budget(name) => drop(self.budgets.remove(name)),
            RecordKey::Reservation(name) => drop(self.reservations.remove(name)),
            RecordKey::Hold(id) => drop(self.holds.remove(id)),
            RecordKey::Pause(scope) => drop(self.pauses.remove(scope)),
            _ => {}
        }
    }

    /// A unit, or a task group that was added to one.
    fn put_unit(&mut self, created: Revision, revision: Revision, record: &Record) {
        let Some(id) = record.unit() else { return };
        let unit = self.units.entry(id).or_default();
        match record {
            Record::Unit(record) => {
                if record.status.suspended {
                    self.suspended.insert(id);
                }
                if record.status.restarting {
                    self.restarted.insert(id);
                }
                set(&mut unit.record, created, revision, record);
            }
            Record::TaskGroup(group) => {
                set_keyed(&mut unit.added_groups, &group.idx, created, revision, group);
            }
            _ => {}
        }
        unit.join_groups();
    }

    fn apply_rows<'a>(
        &mut self,
        commit: &Commit,
        unit: UnitId,
        change: &'a RunChange,
        touched: &mut FxHashSet<(UnitId, u32)>,
        on_row: &mut impl FnMut(&Self, RowStep<'a>),
    ) {
        if let RunChange::Bind(bind) = change {
            let demands = &mut self.units.entry(unit).or_default().demands;
            demands.entry(bind.group).or_insert_with(|| (Arc::clone(&bind.demand), bind.pool));
            if let Some(standing) = &bind.standing {
                let standings = &mut self.units.entry(unit).or_default().standings;
                standings.entry(bind.group).or_insert_with(|| Arc::clone(standing));
            }
        }
        if let RunChange::Terms(terms) = change
            && let Some(unit) = self.units.get_mut(&unit)
        {
            unit.standings =
                unit.demands.keys().map(|group| (*group, terms.of_group(usize::from(*group)))).collect();
        }
        compaction::follow(self, commit, unit, change, on_row);
        let ordinals: &[u32] = match change {
            RunChange::Terms(_) | RunChange::Compact(_) => &[],
            RunChange::Bind(bind) => &bind.ordinals,
            RunChange::Evict(evict) => &evict.ordinals,
            RunChange::Statuses(statuses) => &statuses.ordinals,
            RunChange::Requeue(requeue) => &requeue.ordinals,
        };
        for (idx, &ordinal) in ordinals.iter().enumerate() {
            let rows = &mut self.units.entry(unit).or_default().rows;
            let before = rows.get(&ordinal).copied().unwrap_or_default();
            // Rows that a list showed as of this revision or later are not touched again by this commit.
            if before.revision >= commit.revision && !touched.contains(&(unit, ordinal)) {
                continue;
            }
            let after = next_row(before, change, idx, commit);
            let after = after.map(|row| WorldRow { revision: commit.revision, ..row });
            if let Some(row) = after {
                rows.insert(ordinal, row);
                touched.insert((unit, ordinal));
            }
            on_row(self, RowStep { unit, ordinal, before, after, change, idx });
        }
        if let RunChange::Evict(evict) = change
            && evict.preemptor != UnitId(0)
        {
            let known = &mut self.units.entry(unit).or_default().preemptors;
            known.retain(|other| *other != evict.preemptor);
            known.push(evict.preemptor);
            let n_old = known.len().saturating_sub(N_PREEMPTORS_MAX);
            known.drain(..n_old);
        }
    }
}

/// The rules of rows, once more: what a change makes of a row, `None` when it may not touch it.
fn next_row(row: WorldRow, change: &RunChange, idx: usize, commit: &Commit) -> Option<WorldRow> {
    match change {
        RunChange::Terms(_) | RunChange::Compact(_) => None,
        RunChange::Bind(bind) => (row.phase == Phase::Pending
            && row.incarnation == column(&bind.incarnations, idx))
        .then(|| WorldRow {
            node: column(&bind.nodes, idx),
            allocation: bind.allocation(idx),
            phase: Phase::Bound,
            eviction: None,
            group: bind.group,
            bound_time_ms: commit.time_ms,
            ..row
        }),
        RunChange::Evict(evict) => {
            let current = row.is_live() && row.incarnation == column(&evict.incarnations, idx);
            match (evict.reason, row.eviction) {
                (EvictionReason::NodeLost, eviction) => current.then_some(WorldRow {
                    eviction: eviction.or(Some(EvictionReason::NodeLost)),
                    phase: Phase::Stopped,
                    ..row
                }),
                (_, Some(_)) => None,
                (reason, None) => current.then_some(WorldRow { eviction: Some(reason), ..row }),
            }
        }
        RunChange::Statuses(statuses) => {
            let phase = statuses.phases.get(idx).copied().unwrap_or_default();
            let restarts: u32 = column(&statuses.restarts, idx);
            let is_news = match phase {
                Phase::Pending | Phase::Bound => false,
                Phase::Starting | Phase::Running => (restarts, age(phase)) > (row.restarts, age(row.phase)),
                Phase::Succeeded | Phase::Failed | Phase::Stopped => true,
            };
            (row.incarnation == column(&statuses.incarnations, idx) && row.is_live() && is_news).then(|| {
                WorldRow {
                    phase,
                    exit_code: column(&statuses.exit_codes, idx),
                    restarts: restarts.max(row.restarts),
                    ..row
                }
            })
        }
        RunChange::Requeue(requeue) => {
            let ended = row.phase != Phase::Pending && !row.is_live();
            let goes_aside =
                matches!(row.eviction, Some(EvictionReason::Suspended | EvictionReason::Failure));
            let set_aside = row.phase == Phase::Stopped && goes_aside;
            // Who ended by itself comes back with the whole unit only.
            let by_itself = matches!(row.phase, Phase::Succeeded | Phase::Failed) && row.eviction.is_none();
            let whole = requeue.anew || by_itself;
            (ended && column(&requeue.incarnations, idx) == row.incarnation + 1).then(|| WorldRow {
                incarnation: row.incarnation + 1,
                eviction: row.eviction.filter(|_| set_aside).or(whole.then_some(EvictionReason::Failure)),
                group: row.group,
                node: row.node,
                ..WorldRow::default()
            })
        }
    }
}

/// Whether a node has less of something than it had, or another device in the place of one.
fn is_less(new: &NodeReport, old: &NodeReport) -> bool {
    let has_less = |(name, amount): (&str, i64)| new.capacity.get(name) < amount;
    let is_other = |(idx, old): (usize, &Device)| {
        new.devices.get(idx).is_none_or(|new| (&new.kind, &new.model) != (&old.kind, &old.model))
    };
    let takes_fewer = new.max_running_units < old.max_running_units;
    let has_other_zones = !old.zones.is_empty() && new.zones != old.zones;
    takes_fewer
        || has_other_zones
        || old.capacity.iter().any(has_less)
        || old.devices.iter().enumerate().any(is_other)
}

/// How far a phase is into a life.
fn age(phase: Phase) -> u8 {
    match phase {
        Phase::Pending => 0,
        Phase::Bound => 1,
        Phase::Starting => 2,
        Phase::Running => 3,
        Phase::Succeeded => 4,
        Phase::Failed => 5,
        Phase::Stopped => 6,
    }
}

/// An entry of a column in which a missing one stands for the default.
pub(super) fn column<T: Copy + Default>(column: &[T], idx: usize) -> T {
    column.get(idx).copied().unwrap_or_default()
}

fn set<T: Clone>(slot: &mut Option<Versioned<T>>, created: Revision, revision: Revision, value: &T) {
    match slot {
        Some(record) if record.revision > revision => {}
        Some(record) => (record.revision, record.value) = (revision, value.clone()),
        None => *slot = Some(Versioned { created, revision, value: value.clone() }),
    }
}

fn set_keyed<K: Ord + Clone, T: Clone>(
    records: &mut BTreeMap<K, Versioned<T>>,
    key: &K,
    created: Revision,
    revision: Revision,
    value: &T,
) {
    let mut slot = records.remove(key);
    set(&mut slot, created, revision, value);
    records.extend(slot.map(|record| (key.clone(), record)));
}

/// Listed rows add to what is there: a large unit comes in parts.
fn load_rows(unit: &mut WorldUnit, rows: &RunningUnits) {
    unit.preemptors = rows.preemptors().to_vec();
    for (group, demand) in (0u16..).zip(&rows.groups) {
        if let Some(demand) = demand {
            unit.demands.insert(group, (Arc::clone(&demand.demand), demand.pool));
            unit.standings.extend(demand.standing.iter().map(|standing| (group, Arc::clone(standing))));
        }
    }
    for (ordinal, row) in &rows.rows {
        // A row that nothing ever changed only fills the gap below a higher ordinal.
        if row.revision.0 > 0 {
            unit.rows.insert(
                ordinal,
                WorldRow {
                    incarnation: row.incarnation,
                    node: row.node,
                    allocation: row.allocation,
                    phase: row.phase,
                    eviction: row.eviction,
                    group: row.group,
                    exit_code: row.exit_code,
                    restarts: row.restarts,
                    revision: row.revision,
                    bound_time_ms: row.bound_time_ms,
                },
            );
        }
    }
}
