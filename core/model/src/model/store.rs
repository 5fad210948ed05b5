//! The store as the parts see it: records and rows with revisions, transactions with conditions and fences, a history.
//!
//! Records are kept by the auditor's [`World`], rows by [`RunningUnits`] too, as the real store does: at the end both must
//! say the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_audit::{Commit, World};
use godel_base::ids::{Epoch, NodeId, Revision, UnitId};
use godel_domain::{
    change::{Change, Lease},
    demand::Pool,
    node::NodeAllocatable,
    records::{Record, RecordKey},
    running_units::{PhaseChange, RunChange, RunningUnits},
    task_group_record::UnitJoin,
    txn::{Receipt, RecordRef, TxnBuilder, TxnRefusal, TxnRefusalReason},
    unit::UnitRecord,
};

/// Unix milliseconds at the beginning.
pub(super) const EPOCH_MS: i64 = 1_000_000;

/// The revision that a record must have; 0: there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Unit(UnitId, Revision),
    Rows(UnitId, Revision),
    Queue(String, Revision),
    Class(String, Revision),
    Budget(String, Revision),
    Reservation(String, Revision),
}

/// A transaction of a part that leads by a lease.
#[derive(Clone, Debug)]
pub(super) struct Txn {
    pub(super) lease: &'static str,
    pub(super) epoch: Epoch,
    pub(super) conditions: Vec<Condition>,
    /// The nodes that it binds to were known as of then.
    pub(super) nodes_as_of: Option<Revision>,
    pub(super) ops: Vec<Change>,
}

impl Txn {
    /// A transaction without operations yet.
    pub(super) fn of(lease: &'static str, epoch: Epoch) -> Self {
        Self { lease, epoch, conditions: Vec::new(), nodes_as_of: None, ops: Vec::new() }
    }
}

impl TxnBuilder for Txn {
    /// Each operation counts 1.
    fn push(&mut self, change: &Change) -> usize {
        self.ops.push(change.clone());
        1
    }

    fn require(&mut self, record: RecordRef<'_>, revision: Revision) -> usize {
        self.conditions.push(match record {
            RecordRef::Unit(unit) => Condition::Unit(unit, revision),
            RecordRef::Rows(unit) => Condition::Rows(unit, revision),
            RecordRef::Queue(path) => Condition::Queue(path.to_owned(), revision),
            RecordRef::PriorityClass(name) => Condition::Class(name.to_owned(), revision),
            RecordRef::Budget(name) => Condition::Budget(name.to_owned(), revision),
            RecordRef::Reservation(name) => Condition::Reservation(name.to_owned(), revision),
        });
        0
    }
}

/// What became of a transaction.
pub(super) type Answer = Result<Receipt, TxnRefusal>;

fn refusal(reason: TxnRefusalReason, index: usize, revision: Revision) -> TxnRefusal {
    TxnRefusal { reason, index, revision, message: String::new() }
}

/// The refusal of an operation that collided with a record of this revision; 0: unknown.
fn op_refusal(index: usize, revision: Revision) -> TxnRefusal {
    let is_record = revision > Revision(0);
    let reason = if is_record { TxnRefusalReason::NodeChanged } else { TxnRefusalReason::RowConflict };
    refusal(reason, index, revision)
}

/// A record of a list.
pub(super) struct ListedRecord {
    pub(super) change: Change,
    pub(super) revision: Revision,
    pub(super) created: Receipt,
}

/// See the module.
#[derive(Default)]
pub(super) struct Store {
    pub(super) world: World,
    pub(super) rows: BTreeMap<UnitId, RunningUnits>,
    pub(super) commits: Vec<Commit>,
    /// The same as followers of units see them.
    pub(super) seen: Vec<Commit>,
    join: UnitJoin,
    /// Changes of phases of running units that were committed.
    pub(super) changes: BTreeSet<PhaseChange>,
    last_unit: UnitId,
    wall_ms: i64,
}

impl Store {
    pub(super) fn revision(&self) -> Revision {
        self.world.revision
    }

    pub(super) fn last_unit(&self) -> UnitId {
        self.last_unit
    }

    pub(super) fn record(&self, unit: UnitId) -> Option<&Arc<UnitRecord>> {
        self.world.units.get(&unit)?.record.as_ref().map(|record| &record.value)
    }

    /// Checks a transaction, and commits it as the next revision.
    pub(super) fn transact(&mut self, txn: Txn, wall_ms: i64) -> Answer {
        let lease = self.world.leases.get(txn.lease).map(|lease| &lease.value);
        if lease.is_none_or(|lease| lease.epoch != txn.epoch || lease.holder.is_empty()) {
            return Err(refusal(TxnRefusalReason::StaleEpoch, 0, Revision(0)));
        }
        for (idx, condition) in txn.conditions.iter().enumerate() {
            let (present, wanted) = self.condition(condition);
            if present != wanted {
                return Err(refusal(TxnRefusalReason::Precondition, idx, present));
            }
        }
        self.commit(txn.ops, txn.nodes_as_of, wall_ms)
    }

    /// What administrators, agents and state itself write.
    pub(super) fn write(&mut self, ops: Vec<Change>, wall_ms: i64) -> Answer {
        self.commit(ops, None, wall_ms)
    }

    fn condition(&self, condition: &Condition) -> (Revision, Revision) {
        let world = &self.world;
        match condition {
            Condition::Unit(unit, revision) => {
                let record = world.units.get(unit).and_then(|unit| unit.record.as_ref());
                (record.map_or(Revision(0), |record| record.revision), *revision)
            }
            Condition::Rows(unit, revision) => {
                let rows = self.rows.get(unit).map(|rows| rows.rows.values().map(|row| row.revision));
                (rows.and_then(Iterator::max).unwrap_or_default(), *revision)
            }
            Condition::Queue(path, revision) => {
                (world.queues.get(path).map_or(Revision(0), |queue| queue.revision), *revision)
            }
            Condition::Class(name, revision) => {
                (world.priority_classes.get(name).map_or(Revision(0), |class| class.revision), *revision)
            }
            Condition::Budget(name, revision) => {
                (world.budgets.get(name).map_or(Revision(0), |budget| budget.revision), *revision)
            }
            Condition::Reservation(name, revision) => {
                let record = world.reservations.get(name);
                (record.map_or(Revision(0), |record| record.revision), *revision)
            }
        }
    }

    fn commit(&mut self, ops: Vec<Change>, as_of: Option<Revision>, wall_ms: i64) -> Answer {
        let revision = Revision(self.world.revision.0 + 1);
        let time_ms = wall_ms.max(self.wall_ms + 1);
        let mut rows: BTreeMap<UnitId, RunningUnits> = BTreeMap::new();
        let mut changes = Vec::new();
        for (idx, op) in ops.iter().enumerate() {
            if let Change::Rows(unit, change) = op {
                self.check_rows(*unit, change, as_of).map_err(|at| op_refusal(idx, at))?;
                let known = || self.rows.get(unit).cloned().unwrap_or_default();
                let rows = rows.entry(*unit).or_insert_with(known);
                rows.check(change).map_err(|_| op_refusal(idx, Revision(0)))?;
                rows.apply(change, revision, time_ms, |_, before, after| {
                    changes.extend(PhaseChange::between(before.progress(), after.progress()));
                });
            } else if let Change::Put(Record::Hold(hold)) = op {
                self.check_nodes(&[hold.node], hold.pool, as_of).map_err(|at| op_refusal(idx, at))?;
            } else if !self.may(op) {
                return Err(op_refusal(idx, Revision(0)));
            }
        }
        self.rows.append(&mut rows);
        self.changes.extend(changes);
        for op in &ops {
            match op {
                Change::Gone(RecordKey::Unit(unit)) => {
                    self.rows.remove(unit);
                }
                Change::Put(Record::Unit(record)) => self.last_unit = self.last_unit.max(record.id),
                _ => {}
            }
        }
        self.wall_ms = time_ms;
        let commit = Commit { revision, time_ms, changes: ops };
        self.world.apply(&commit, |_, _| {});
        let changes = self.join.join(commit.changes.clone());
        for change in &changes {
            if let Change::Put(Record::Unit(record)) = change {
                assert_eq!(
                    Some(record),
                    self.record(record.id),
                    "two ways to join the records of a unit differ"
                );
            }
        }
        self.seen.push(Commit { changes, ..commit });
        self.commits.push(commit);
        Ok(Receipt { revision, time_ms })
    }

    fn check_rows(&self, unit: UnitId, change: &RunChange, as_of: Option<Revision>) -> Result<(), Revision> {
        let world = &self.world;
        if self.record(unit).is_none() {
            return Err(Revision(0));
        }
        match change {
            RunChange::Bind(bind) => self.check_nodes(&bind.nodes, bind.pool, as_of)?,
            RunChange::Evict(evict) if evict.reason.is_end() => {
                let rows = self.rows.get(&unit);
                for ordinal in &evict.ordinals {
                    let node = rows.map(|rows| rows.row(*ordinal).node).unwrap_or_default();
                    let report = world.nodes.get(&node).and_then(|node| node.report.as_ref());
                    if let Some(report) = report.filter(|report| report.value.ready) {
                        return Err(report.revision);
                    }
                }
            }
            RunChange::Evict(_) | RunChange::Statuses(_) | RunChange::Requeue(_) | RunChange::Terms(_) => {}
            RunChange::Compact(_) => {}
        }
        Ok(())
    }

    /// That none has changed since, nor what is used of it where the pool depends on that.
    fn check_nodes(&self, nodes: &[NodeId], pool: Pool, as_of: Option<Revision>) -> Result<(), Revision> {
        for node in nodes {
            let node = self.world.nodes.get(node).filter(|node| node.spec.is_some());
            let Some(node) = node else { return Err(Revision(0)) };
            let usage = node.usage.as_ref().filter(|_| pool == Pool::BestEffort);
            let revisions = [
                node.spec.as_ref().map(|spec| spec.revision),
                node.report.as_ref().map(|report| report.revision),
                usage.map(|usage| usage.revision),
            ];
            let last = revisions.into_iter().flatten().max().unwrap_or_default();
            if as_of.is_some_and(|as_of| last > as_of) {
                return Err(last);
            }
        }
        Ok(())
    }

    fn may(&self, op: &Change) -> bool {
        let world = &self.world;
        let is_live = |unit: &UnitId| self.rows.get(unit).is_some_and(|rows| rows.live().next().is_some());
        match op {
            Change::Put(Record::Unit(record)) => {
                record.id > self.last_unit || self.record(record.id).is_some()
            }
            Change::Put(Record::TaskGroup(group)) => self.record(group.unit).is_some(),
            Change::Gone(RecordKey::Unit(unit)) => self.record(*unit).is_some() && !is_live(unit),
            Change::Gone(RecordKey::Hold(id)) => world.holds.contains_key(id),
            Change::Gone(RecordKey::Queue(path)) => world.queues.contains_key(path),
            Change::Gone(RecordKey::Reservation(name)) => world.reservations.contains_key(name),
            Change::Gone(RecordKey::NodeSpec(node)) => {
                let mut rows = self.rows.values().flat_map(RunningUnits::live);
                let mut holds = world.holds.values();
                world.nodes.contains_key(node)
                    && !rows.any(|(_, row)| row.node == *node)
                    && !holds.any(|hold| hold.value.node == *node)
            }
            _ => true,
        }
    }

    /// A lease as it would be granted to this holder now.
    pub(super) fn grant(&self, name: &str, holder: &str) -> Lease {
        let epoch = self.world.leases.get(name).map_or(0, |lease| lease.value.epoch.0);
        Lease {
            name: name.to_owned(),
            holder: holder.to_owned(),
            epoch: Epoch(epoch + 1),
            ..Lease::default()
        }
    }

    /// The lease of nobody.
    pub(super) fn expired(&self, name: &str) -> Option<Lease> {
        let lease = &self.world.leases.get(name)?.value;
        Some(Lease { holder: String::new(), ..lease.clone() })
    }

    /// Everything, as a list shows it: units before their rows.
    pub(super) fn list(&self) -> Vec<ListedRecord> {
        let world = &self.world;
        let mut listed = Vec::new();
        let time = |revision: Revision| match revision.0 {
            0 => 0,
            at => self.commits[usize::try_from(at - 1).expect("a position")].time_ms,
        };
        let mut add = |created: Revision, revision: Revision, change: Change| {
            let created = Receipt { revision: created, time_ms: time(created) };
            listed.push(ListedRecord { change, revision, created });
        };
        for (id, node) in &world.nodes {
            if let Some(spec) = &node.spec {
                add(spec.created, spec.revision, Change::Put(Record::NodeSpec(spec.value.clone())));
            }
            if let Some(report) = &node.report {
                add(report.created, report.revision, Change::Put(Record::NodeReport(report.value.clone())));
            }
            if let Some(allocatable) = &node.allocatable {
                add(
                    allocatable.created,
                    allocatable.revision,
                    Change::Put(Record::NodeAllocatable(NodeAllocatable {
                        id: *id,
                        amounts: allocatable.value.clone(),
                    })),
                );
            }
            if let Some(usage) = &node.usage {
                add(usage.created, usage.revision, Change::Put(Record::NodeUsage(usage.value.clone())));
            }
        }
        for lease in world.leases.values() {
            add(lease.created, lease.revision, Change::Put(Record::Lease(lease.value.clone())));
        }
        if let Some(partition) = &world.partition {
            add(
                partition.created,
                partition.revision,
                Change::Put(Record::Partition(partition.value.clone())),
            );
        }
        for block in world.partition_blocks.values() {
            add(block.created, block.revision, Change::Put(Record::PartitionBlock(block.value.clone())));
        }
        for queue in world.queues.values() {
            add(queue.created, queue.revision, Change::Put(Record::Queue(Arc::clone(&queue.value))));
        }
        for class in world.priority_classes.values() {
            add(class.created, class.revision, Change::Put(Record::PriorityClass(class.value.clone())));
        }
        for spec in world.reservations.values() {
            add(spec.created, spec.revision, Change::Put(Record::Reservation(Arc::clone(&spec.value))));
        }
        for budget in world.budgets.values() {
            add(budget.created, budget.revision, Change::Put(Record::Budget(Arc::clone(&budget.value))));
        }
        for record in world.units.values().filter_map(|unit| unit.record.as_ref()) {
            add(record.created, record.revision, Change::Put(Record::Unit(Arc::clone(&record.value))));
        }
        for hold in world.holds.values() {
            add(hold.created, hold.revision, Change::Put(Record::Hold(Arc::clone(&hold.value))));
        }
        for pause in world.pauses.values() {
            add(pause.created, pause.revision, Change::Put(Record::Pause(pause.value.clone())));
        }
        for (unit, rows) in &self.rows {
            let last = rows.rows.values().map(|row| row.revision).max().unwrap_or_default();
            add(Revision(0), last, Change::RowsLoaded(*unit, rows.clone()));
        }
        listed
    }

    /// Nodes that a commit changes what runs on.
    pub(super) fn touched_nodes(&self, commit: &Commit) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for change in &commit.changes {
            match change {
                Change::Rows(_, RunChange::Bind(bind)) => nodes.extend(&bind.nodes),
                Change::Rows(unit, RunChange::Evict(evict)) => {
                    let rows = self.rows.get(unit);
                    let of = |ordinal: &u32| rows.map(|rows| rows.row(*ordinal).node);
                    nodes.extend(evict.ordinals.iter().filter_map(of));
                }
                _ => {}
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}
