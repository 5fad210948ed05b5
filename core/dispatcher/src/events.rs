//! Events: what has been committed, and what schedulers and the binder say. Each is handed to the parts that it concerns.

use std::sync::Arc;

use godel_base::{
    ids::{HoldId, NodeId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    change::{Block, Change, Partition},
    hold::Hold,
    node::{NodeReport, NodeSpec},
    pause::Scope,
    records::{BlockNumber, Record, RecordKey, RecordKind},
    running_units::{RunChange, RunningUnits},
    txn::Receipt,
    unit::UnitRecord,
    unreadable::Unreadable,
};

use super::{
    Assignments, Dispatcher, SchedulerStreams,
    following::ListedRecords,
    gates::{self, Concerned},
    holds, limits,
};

/// Records that the dispatcher follows.
pub const FOLLOWS: &[RecordKind] = &[
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::Lease,
    RecordKind::Partition,
    RecordKind::PartitionBlock,
    RecordKind::Queue,
    RecordKind::PriorityClass,
    RecordKind::Budget,
    RecordKind::Reservation,
    RecordKind::Unit,
    RecordKind::UnitHistory,
    RecordKind::Hold,
    RecordKind::Pause,
    RecordKind::Rows,
];

impl Dispatcher {
    /// A list follows: what is not in it is gone. Units, queues and what schedulers hold stay until then.
    pub fn on_reset(&mut self) {
        self.following.listed = Some(ListedRecords::default());
        self.nodes.reset();
        self.daemons.reset();
        self.partition.reset();
    }

    /// The list is complete, or nothing came, and everything up to `revision` is known: of a standby, which decides nothing.
    pub fn on_followed(&mut self, revision: Revision, now: Millis) {
        self.following.advance(revision);
        if let Some(listed) = self.following.listed.take() {
            self.forget_unlisted(&listed, revision, now);
            self.assignments.units.histories.retain(|unit| listed.has(&RecordKey::UnitHistory(unit)));
            self.daemons.on_listed(now);
        }
    }

    /// The same of a leader. It decides from the first time on, whether it has read a list since its election or has followed before as a standby:
    /// times that count from an election begin now.
    pub fn on_synced(&mut self, revision: Revision, now: Millis) {
        self.on_followed(revision, now);
        if self.assignments.settling.is_loading() {
            self.assignments.refresh_set_aside(now);
            self.assignments.settling.begin(now);
            self.reconciler.at = now.plus(self.config.reconcile_ms);
            self.partition.touch(now);
            self.node_evictions.start_losses(&self.assignments.units, now);
            self.assignments.recheck_feasibility(&self.nodes.capacities, now);
            if self.assignments.gates.is_any() {
                self.assignments.refresh_all(now);
            }
            self.assignments.check_settled(now);
        } else {
            self.assignments.recheck_feasibility(&self.nodes.capacities, now);
        }
    }

    /// After a list: what it did not show is gone.
    fn forget_unlisted(&mut self, listed: &ListedRecords, revision: Revision, now: Millis) {
        let units = &self.assignments.units;
        let old = |unit: &UnitId| units.get(*unit).is_some_and(|entry| entry.revision <= revision);
        let gone: Vec<UnitId> = units.ids.difference(&listed.units).copied().filter(old).collect();
        for unit in gone {
            self.on_unit_deleted(unit, now);
        }
        let records = &self.assignments.queueing.records;
        let queues = records.queues.names().map(RecordKey::Queue);
        let classes = records.classes.names().map(RecordKey::PriorityClass);
        let budgets = self.budgets.versions.names().map(RecordKey::Budget);
        let reservations = self.reservations.versions.names().map(RecordKey::Reservation);
        let holds = self.holds.keys().map(|id| RecordKey::Hold(*id));
        let pauses = self.assignments.gates.pauses.iter();
        let pauses = pauses.map(|pause| RecordKey::Pause(pause.scope.to_string()));
        let known = queues.chain(classes).chain(budgets).chain(reservations).chain(holds).chain(pauses);
        let gone: Vec<RecordKey> = known.filter(|key| !listed.has(key)).collect();
        self.node_evictions.retain_nodes(&|node| listed.has_report(node));
        let thaws = self.assignments.gates.frozen.retain(&listed.unreadable);
        let created = Receipt { revision, time_ms: 0 };
        for key in gone {
            self.on_change(&Change::Gone(key), revision, created, now);
        }
        let is_listed = |number: u32| listed.has(&RecordKey::PartitionBlock(BlockNumber(number)));
        self.partition.records.retain_blocks(is_listed, revision);
        if thaws {
            self.assignments.refresh_all(now);
        }
        self.nodes.touch_total();
    }

    /// Everything up to `revision` is known.
    pub fn on_revision(&mut self, revision: Revision) {
        self.following.advance(revision);
    }

    /// A change as committed at `revision`, from the watch in its order or from a list. `created` is the transaction that
    /// created its record, used when that is new. Returns the unit whose record, running units or holds it is about, unless
    /// that is gone.
    pub fn on_change(
        &mut self,
        change: &Change,
        revision: Revision,
        created: Receipt,
        now: Millis,
    ) -> Option<UnitId> {
        if !self.note_unreadable(change, revision, now) {
            return None;
        }
        self.surges.note(change, revision, &mut self.assignments, now);
        if let Change::Put(record) = change {
            self.following.note_record(record);
        }
        let Assignments { units, queueing, .. } = &mut self.assignments;
        match change {
            Change::Put(Record::Unit(record)) => {
                self.on_unit(Arc::clone(record), revision, created, now);
                return Some(record.id);
            }
            Change::Rows(unit, rows) => {
                self.on_rows(*unit, rows, revision, created.time_ms, now);
                return Some(*unit);
            }
            Change::RowsLoaded(unit, rows) => {
                self.on_rows_loaded(*unit, rows.clone(), now);
                return Some(*unit);
            }
            Change::Put(Record::Hold(hold)) => return Some(self.on_hold(Arc::clone(hold), now)),
            Change::Gone(RecordKey::Hold(id)) => return self.on_hold_deleted(*id, now),
            Change::Unreadable(unreadable) => return unreadable.key.unit(),
            Change::Put(Record::NodeSpec(spec)) => self.on_node_spec(spec, now),
            Change::Put(Record::NodeReport(report)) => self.on_node_report(report, now),
            Change::Gone(RecordKey::NodeSpec(node)) => self.on_node_deleted(*node, now),
            Change::Gone(RecordKey::Unit(unit)) => self.on_unit_deleted(*unit, now),
            Change::Put(Record::UnitHistory(kept)) => units.histories.put(Arc::clone(kept)),
            Change::Gone(RecordKey::UnitHistory(unit)) => units.histories.remove(*unit),
            Change::Put(Record::Lease(lease)) => self.streams().on_lease(lease, now),
            Change::Put(Record::Partition(partition)) => {
                self.partition.on_partition(partition.clone(), revision);
            }
            Change::Put(Record::PartitionBlock(block)) => self.partition.on_block(block.clone(), revision),
            Change::Put(Record::Queue(queue)) => queueing.on_queue(Arc::clone(queue), revision, created),
            Change::Gone(RecordKey::Queue(path)) => queueing.on_queue_deleted(path),
            Change::Put(Record::PriorityClass(class)) => {
                queueing.on_class(class.clone(), revision, created, units);
            }
            Change::Gone(RecordKey::PriorityClass(name)) => queueing.on_class_deleted(name, units),
            Change::Put(Record::Budget(budget)) => {
                self.budgets.put(Arc::clone(budget), revision, created, units);
            }
            Change::Gone(RecordKey::Budget(name)) => self.budgets.remove(name),
            Change::Put(Record::Reservation(spec)) => {
                self.reservations.put(Arc::clone(spec), revision, created);
            }
            Change::Gone(RecordKey::Reservation(name)) => self.reservations.remove(name),
            Change::Put(Record::Pause(pause)) => self.assignments.on_pause(pause.clone(), now),
            Change::Gone(RecordKey::Pause(scope)) => {
                let scopes = Scope::parse(scope);
                scopes.iter().for_each(|scope| self.assignments.on_pause_deleted(scope, now));
            }
            // Allocatable in force is the schedulers' and the binder's business, keys that of the YARN adapter and of agents. What
            // cannot be read was noted above. Task groups come as parts of their units.
            _ => {}
        }
        None
    }

    /// Follows what of a change cannot be read. Call with every change, before it is applied; it is not to be applied where
    /// this says so.
    #[must_use]
    pub fn note_unreadable(&mut self, change: &Change, revision: Revision, now: Millis) -> bool {
        let noted = self.assignments.gates.frozen.note(change);
        if let Change::Unreadable(unreadable) = change {
            self.freeze(unreadable, revision, now);
        }
        if noted.is_news {
            match gates::concerned(change) {
                Concerned::Unit(unit) => self.assignments.refresh(unit, now),
                Concerned::All => self.assignments.refresh_all(now),
                Concerned::None => {}
            }
        }
        !noted.is_void
    }

    fn freeze(&mut self, unreadable: &Unreadable, revision: Revision, now: Millis) {
        let subject = &unreadable.key;
        if let Some(listed) = &mut self.following.listed {
            listed.note_unreadable(subject);
        }
        match subject {
            // Whether it is there cannot be told: what runs on it stays.
            RecordKey::NodeReport(node) => self.node_evictions.on_node_report(*node, true, now),
            // Nobody knows that it is to be left.
            RecordKey::NodeSpec(node) => self.node_evictions.forget_spec(*node),
            // Whoever held it takes it anew; what it had in hand is handed out again, and the binder settles conflicts.
            RecordKey::Lease(name) => {
                if let Some(lease) = self.assignments.schedulers.released_lease(name) {
                    self.streams().on_lease(&lease, now);
                }
            }
            // As without a record: everybody sees all nodes.
            RecordKey::Partition => self.partition.on_partition(Partition::default(), revision),
            // The same: its nodes are nobody's until they are split anew.
            RecordKey::PartitionBlock(BlockNumber(number)) => {
                self.partition.on_block(Block { number: *number, slots: Vec::new() }, revision);
            }
            _ => {}
        }
    }

    /// A unit's record as committed at `revision`, from the store's answer or the watch, in any order and as often as it comes.
    /// `created` is the transaction that created it, used when it is new.
    pub fn on_unit(&mut self, record: Arc<UnitRecord>, revision: Revision, created: Receipt, now: Millis) {
        let unit = record.id;
        let mut was_over = false;
        if let Some(listed) = &mut self.following.listed {
            listed.note(RecordKey::Unit(unit));
        }
        if let Some(entry) = self.assignments.units.get_mut(unit) {
            if revision <= entry.revision {
                return;
            }
            was_over = entry.phase.is_terminal();
            let (old, new) = (&entry.record.spec, &record.spec);
            if old.active_deadline_ms != new.active_deadline_ms {
                self.assignments.ends.limits.remove(unit);
            }
            if old.scheduling_timeout_ms != new.scheduling_timeout_ms {
                // The wait begins anew.
                (entry.wait_due, entry.is_overdue) = (limits::NEVER, false);
            }
            entry.revision = revision;
            entry.tried.clear();
            self.gangs.change(unit);
            self.assignments.queueing.enroll_again(unit, record, &mut self.assignments.units);
        } else {
            self.assignments.insert(record, revision, created);
        }
        self.assignments.set_feasible(unit, &self.nodes.capacities);
        if let Some(entry) = self.assignments.units.get(unit) {
            self.daemons.on_unit(&entry.record, now);
            self.compactions.watch(entry, now);
            if !self.budgets.budgets.is_empty() {
                self.budgets.offer(entry);
            }
        }
        self.assignments.refresh(unit, now);
        if was_over {
            // Of one that runs again nobody has asked since its end.
            self.assignments.set_feasible(unit, &self.nodes.capacities);
            self.assignments.refresh(unit, now);
        }
    }

    /// All rows of a unit, from a list.
    pub fn on_rows_loaded(&mut self, unit: UnitId, rows: RunningUnits, now: Millis) {
        let Some(entry) = self.assignments.units.get_mut(unit) else { return };
        entry.load(rows);
        self.budgets.budgets.recount(unit, Some(&entry.rows));
        self.compactions.watch(entry, now);
        if let Some(held) = entry.dispatched_mut() {
            self.assignments.schedulers.tell_again(unit, held);
        }
        self.assignments.refresh(unit, now);
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
        let units = &mut self.assignments.units;
        let Some(entry) = units.entries.get_mut(&unit) else { return };
        if !entry.apply(change, revision, time_ms) {
            return;
        }
        if !matches!(change, RunChange::Terms(_)) {
            entry.rows_revision = revision;
        }
        self.daemons.on_rows(unit, change);
        self.compactions.watch(entry, now);
        self.budgets.budgets.recount(unit, Some(&entry.rows));
        match change {
            RunChange::Bind(bind) => {
                if entry.bound_time_ms == 0 {
                    entry.bound_time_ms = time_ms;
                    units.waits.bound(entry.record.spec.class, entry.create_time_ms, time_ms);
                }
                self.node_evictions.on_bind(unit, bind);
                self.gangs.on_bind(entry, &self.rooms, &self.assignments.queueing);
            }
            RunChange::Evict(_) => self.node_evictions.on_evicted(unit, &mut self.budgets.budgets, units),
            RunChange::Requeue(_) => {
                if let Some(held) = entry.dispatched_mut() {
                    self.assignments.schedulers.tell_again(unit, held);
                }
            }
            // Its queue is told how its running units stand when the unit is refreshed.
            RunChange::Statuses(_) | RunChange::Terms(_) | RunChange::Compact(_) => {}
        }
        self.assignments.refresh(unit, now);
    }

    /// A unit's record and rows are gone.
    pub fn on_unit_deleted(&mut self, unit: UnitId, now: Millis) {
        if self.assignments.remove(unit, now) {
            self.node_evictions.on_evicted(unit, &mut self.budgets.budgets, &self.assignments.units);
            self.node_evictions.remove_unit(unit);
            self.daemons.remove_unit(unit);
            self.compactions.remove_unit(unit);
            self.budgets.budgets.forget(unit);
            self.gangs.remove(unit);
        }
    }

    /// An administrator's record of a node.
    pub fn on_node_spec(&mut self, spec: &NodeSpec, now: Millis) {
        self.node_evictions.on_node_spec(spec);
        self.daemons.on_node_spec(spec, &self.assignments.units);
        let is_new = self.nodes.on_node_spec(spec);
        if self.partition.on_node_spec(spec) || is_new {
            self.partition.touch_if_split(now);
        }
    }

    /// An agent's record of a node.
    pub fn on_node_report(&mut self, report: &NodeReport, now: Millis) {
        self.node_evictions.on_node_report(report.id, report.ready, now);
        self.daemons.on_node_report(report, &self.assignments.units);
        if self.partition.on_node_report(report) {
            self.partition.touch_if_split(now);
        }
        if self.nodes.on_node_report(report)
            && !self.assignments.settling.is_loading()
            && !self.following.is_listing()
        {
            self.assignments.recheck_feasibility(&self.nodes.capacities, now);
        }
    }

    /// A node is gone.
    pub fn on_node_deleted(&mut self, node: NodeId, now: Millis) {
        self.node_evictions.remove_node(node);
        self.daemons.remove_node(node, &self.assignments.units);
        self.partition.remove_node(node);
        if self.nodes.on_node_deleted(node) {
            self.partition.touch_if_split(now);
        }
    }

    /// A hold's record: whoever it is for is not handed out while it lasts. A scheduler places who moves to it as any other
    /// replica. Returns its unit.
    pub fn on_hold(&mut self, hold: Arc<Hold>, now: Millis) -> UnitId {
        let (id, unit) = (hold.id, hold.unit);
        self.holds.insert(id, Arc::clone(&hold));
        self.reservations.on_slot(&hold);
        self.gangs.on_gathering(&hold, now);
        self.assignments.units.on_taken_over(&hold);
        let Some(entry) = self.assignments.units.get_mut(unit) else { return unit };
        if hold.movement.is_some() {
            entry.targets.put(hold);
        } else {
            entry.holds.retain(|other| other.id != id);
            entry.holds.push(hold);
        }
        self.assignments.refresh(unit, now);
        unit
    }

    /// A hold's record is gone: whoever it was for is bound, or pending again. Returns its unit.
    pub fn on_hold_deleted(&mut self, id: HoldId, now: Millis) -> Option<UnitId> {
        let hold = self.holds.remove(&id)?;
        self.reservations.on_slot_gone(&hold);
        let unit = hold.unit;
        let entry = self.assignments.units.get_mut(unit);
        self.gangs.on_hold_gone(&hold, entry.as_deref(), now);
        let is_more = holds::remove_hold(entry?, id)?;
        if let Some(held) = self.assignments.units.dispatched_mut(unit).filter(|_| is_more) {
            self.assignments.schedulers.tell_again(unit, held);
        }
        self.assignments.refresh(unit, now);
        Some(unit)
    }

    /// What schedulers say on their streams.
    pub fn streams(&mut self) -> SchedulerStreams<'_> {
        SchedulerStreams {
            assignments: &mut self.assignments,
            partition: &mut self.partition,
            rooms: &mut self.rooms,
            gangs: &mut self.gangs,
            reservations: &self.reservations,
            read: self.following.revision,
        }
    }
}
