//! Events: what has been committed, and what schedulers and the binder say. Each is handed to the parts that it concerns.

use std::sync::Arc;

use godel_base::{
    ids::{HoldId, NodeId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    budget_spec::BudgetSpec,
    change::{Block, Change, Lease, Partition},
    hold::Hold,
    node::{NodeReport, NodeSpec},
    pause::{Pause, Scope},
    queue_spec::{PriorityClass, QueueSpec},
    records::{BlockNumber, Record, RecordKey, RecordKind},
    reservation_spec::ReservationSpec,
    running_units::{EvictionReason, RunChange, RunningUnits},
    txn::Receipt,
    unit::UnitRecord,
    unit_report::{RoomReport, UnitReport},
    unreadable::Unreadable,
};

use super::{
    Attach, AttachRefusal, Dispatcher, SchedulerCounts, SessionId, budgets,
    following::ListedRecords,
    gates::{self, Concerned},
    holds, limits,
    queues::note,
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

    /// The list is complete and everything up to `revision` is known.
    pub fn on_synced(&mut self, revision: Revision, now: Millis) {
        self.following.advance(revision);
        if let Some(listed) = self.following.listed.take() {
            self.forget_unlisted(&listed, revision, now);
            self.histories.retain(|unit| listed.has(&RecordKey::UnitHistory(unit)));
            self.daemons.on_listed(now);
        }
        if self.assignments.settling.is_loading() {
            self.assignments.settling.begin(now);
            self.reconciler.at = now.plus(self.config.reconcile_ms);
            self.partition.touch(now);
            self.node_evictions.start_losses(&self.assignments.units);
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
        let is_gone = |unit: &UnitId| !listed.has(&RecordKey::Unit(*unit));
        let gone: Vec<UnitId> = units.ids.iter().copied().filter(is_gone).filter(old).collect();
        for unit in gone {
            self.on_unit_deleted(unit, now);
        }
        let records = &self.assignments.queueing.records;
        let gone: Vec<RecordKey> = records.keys().filter(|key| !listed.has(key)).collect();
        let holds = self.holds.keys().map(|id| RecordKey::Hold(*id));
        let pauses = self.assignments.gates.pauses.iter();
        let pauses = pauses.map(|pause| RecordKey::Pause(pause.scope.to_string()));
        let others: Vec<RecordKey> = holds.chain(pauses).filter(|key| !listed.has(key)).collect();
        self.node_evictions.retain_nodes(&|node| listed.has_report(node));
        let created = Receipt { revision, time_ms: 0 };
        for key in gone.into_iter().chain(others) {
            self.on_change(&Change::Gone(key), revision, created, now);
        }
        let is_listed = |number: u32| listed.has(&RecordKey::PartitionBlock(BlockNumber(number)));
        self.partition.records.retain_blocks(is_listed, revision);
        if self.assignments.gates.frozen.retain(&listed.unreadable) {
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
        if let (Some(listed), Change::Put(record)) = (&mut self.following.listed, change) {
            listed.note(record.key());
        }
        self.surges.note(change, revision, &mut self.assignments, now);
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
            Change::Put(Record::UnitHistory(kept)) => self.histories.put(Arc::clone(kept)),
            Change::Gone(RecordKey::UnitHistory(unit)) => self.histories.remove(*unit),
            Change::Put(Record::Lease(lease)) => self.on_lease(lease, now),
            Change::Put(Record::Partition(partition)) => self.on_partition(partition.clone(), revision),
            Change::Put(Record::PartitionBlock(block)) => self.on_partition_block(block.clone(), revision),
            Change::Put(Record::Queue(queue)) => self.on_queue(Arc::clone(queue), revision, created),
            Change::Gone(RecordKey::Queue(path)) => self.on_queue_deleted(path),
            Change::Put(Record::PriorityClass(class)) => {
                self.on_priority_class(class.clone(), revision, created)
            }
            Change::Gone(RecordKey::PriorityClass(name)) => self.on_priority_class_deleted(name),
            Change::Put(Record::Budget(budget)) => self.on_budget(Arc::clone(budget), revision, created),
            Change::Gone(RecordKey::Budget(name)) => self.on_budget_deleted(name),
            Change::Put(Record::Reservation(spec)) => {
                self.on_reservation(Arc::clone(spec), revision, created)
            }
            Change::Gone(RecordKey::Reservation(name)) => self.on_reservation_deleted(name),
            Change::Put(Record::Pause(pause)) => self.on_pause(pause.clone(), now),
            Change::Gone(RecordKey::Pause(scope)) => {
                Scope::parse(scope).iter().for_each(|scope| self.on_pause_deleted(scope, now));
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
                if let Some(lease) = self.assignments.released_lease(name) {
                    self.on_lease(&lease, now);
                }
            }
            // As without a record: everybody sees all nodes.
            RecordKey::Partition => self.on_partition(Partition::default(), revision),
            // The same: its nodes are nobody's until they are split anew.
            RecordKey::PartitionBlock(number) => {
                self.on_partition_block(Block { number: number.0, slots: Vec::new() }, revision);
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
            if !self.budgets.is_empty() {
                budgets::offer(&mut self.budgets, unit, entry);
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
        self.budgets.recount(unit, Some(&entry.rows));
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
        self.budgets.recount(unit, Some(&entry.rows));
        match change {
            RunChange::Bind(bind) => {
                if entry.bound_time_ms == 0 {
                    entry.bound_time_ms = time_ms;
                    units.waits.bound(entry.record.spec.class, entry.create_time_ms, time_ms);
                }
                self.node_evictions.on_bind(unit, bind);
                self.gangs.on_bind(entry, &self.rooms, &self.assignments.queueing);
            }
            RunChange::Evict(_) => self.node_evictions.on_evicted(unit, &mut self.budgets, units),
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
            self.node_evictions.on_evicted(unit, &mut self.budgets, &self.assignments.units);
            self.node_evictions.remove_unit(unit);
            self.daemons.remove_unit(unit);
            self.compactions.remove_unit(unit);
            self.budgets.forget(unit);
            self.gangs.remove(unit);
        }
    }

    /// The transaction that was to delete a unit failed.
    pub fn on_delete_failed(&mut self, unit: UnitId, now: Millis) {
        if let Some(entry) = self.assignments.units.get_mut(unit) {
            self.assignments.ends.on_delete_failed(entry, now);
        }
    }

    /// The binder's answer to an [`super::EvictRequest`] for `reason`: `done`, or it has to be asked again.
    pub fn on_evict_answer(&mut self, unit: UnitId, reason: EvictionReason, done: bool) {
        self.assignments.ends.on_evict_answer(unit, reason, done);
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

    /// A lease was granted, released or expired; others than those of schedulers are ignored.
    pub fn on_lease(&mut self, lease: &Lease, now: Millis) {
        self.assignments.on_lease(lease, &mut self.partition, &mut self.rooms, now);
    }

    /// A queue's record as committed at `revision`, from the watch in its order. `created` is the transaction that
    /// created it, used when it is new.
    pub fn on_queue(&mut self, spec: Arc<QueueSpec>, revision: Revision, created: Receipt) {
        self.assignments.queueing.on_queue(spec, revision, created);
    }

    /// A queue's record is gone.
    pub fn on_queue_deleted(&mut self, path: &str) {
        self.assignments.queueing.on_queue_deleted(path);
    }

    /// A priority class's record, as [`Self::on_queue`]. Units that name it and have no priority of their own follow.
    pub fn on_priority_class(&mut self, class: PriorityClass, revision: Revision, created: Receipt) {
        self.assignments.queueing.on_class(class, revision, created, &mut self.assignments.units);
    }

    /// A priority class's record is gone.
    pub fn on_priority_class_deleted(&mut self, name: &str) {
        self.assignments.queueing.on_class_deleted(name, &mut self.assignments.units);
    }

    /// A budget's record, as [`Self::on_queue`].
    pub fn on_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision, created: Receipt) {
        note(&mut self.assignments.queueing.records.budgets, &spec.name, revision, created);
        if self.budgets.put(spec, revision) {
            budgets::offer_all(&mut self.budgets, &self.assignments.units);
        }
    }

    /// A budget's record is gone.
    pub fn on_budget_deleted(&mut self, name: &str) {
        self.assignments.queueing.records.budgets.remove(name);
        self.budgets.remove(name);
    }

    /// A reservation's record, as [`Self::on_queue`].
    pub fn on_reservation(&mut self, spec: Arc<ReservationSpec>, revision: Revision, created: Receipt) {
        note(&mut self.assignments.queueing.records.reservations, &spec.name, revision, created);
        self.reservations.specs.insert(spec.name.clone(), spec);
    }

    /// A reservation's record is gone.
    pub fn on_reservation_deleted(&mut self, name: &str) {
        self.assignments.queueing.records.reservations.remove(name);
        self.reservations.specs.remove(name);
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

    /// A pause's record: what is with schedulers of its scope comes back, and waits.
    pub fn on_pause(&mut self, pause: Pause, now: Millis) {
        // It may come from the answer to its transaction while a list is read.
        if let Some(listed) = &mut self.following.listed {
            listed.note(RecordKey::Pause(pause.scope.to_string()));
        }
        if self.assignments.gates.pauses.put(pause) {
            self.assignments.refresh_all(now);
        }
    }

    /// A pause's record is gone.
    pub fn on_pause_deleted(&mut self, scope: &Scope, now: Millis) {
        if self.assignments.gates.pauses.remove(scope) {
            self.assignments.refresh_all(now);
        }
    }

    /// How nodes are split, as committed: the mode and the schedulers.
    pub fn on_partition(&mut self, partition: Partition, revision: Revision) {
        self.partition.on_partition(partition, revision);
    }

    /// How nodes of a block are split, as committed.
    pub fn on_partition_block(&mut self, block: Block, revision: Revision) {
        self.partition.on_block(block, revision);
    }

    /// What was to be written for a split is committed.
    pub fn on_partition_written(&mut self, changes: Vec<Change>, revision: Revision) {
        self.partition.on_written(changes, revision);
    }

    /// The split could not be written.
    pub fn on_partition_failed(&mut self, now: Millis) {
        self.partition.on_failed(now);
    }

    /// A scheduler opens its stream: what it holds rightly is adopted, the rest revoked, what it should hold
    /// and does not is sent again. An older stream of the same scheduler is closed.
    ///
    /// # Errors
    /// Its epoch is not in force.
    pub fn on_attached(&mut self, attach: Attach, now: Millis) -> Result<(), AttachRefusal> {
        self.assignments.on_attached(attach, &mut self.partition, &mut self.rooms, now)
    }

    /// A stream has ended. What the scheduler holds stays with it until its lease is lost.
    pub fn on_detached(&mut self, session: SessionId) {
        if let Some(idx) = self.assignments.schedulers.of_session(session) {
            self.assignments.schedulers.detach(idx);
            self.rooms.forget_rooms_of(idx);
        }
    }

    /// A scheduler says how many running units more it takes.
    pub fn on_credits(&mut self, session: SessionId, credits: u32) {
        if let Some(idx) = self.assignments.schedulers.of_session(session) {
            self.assignments.schedulers.all[idx].credits = i64::from(credits);
            self.rooms.feed(idx);
        }
    }

    /// Schedulers say what they have counted so far. One not heard before says where it stands; a new process counts
    /// from 0.
    pub fn on_counted(&mut self, counted: Vec<SchedulerCounts>) {
        self.partition.shuffler.on_counted(counted);
    }

    /// A scheduler says what became of a try; what it says of older records or of units it does not hold is
    /// ignored. True when the unit's shown state may have changed.
    pub fn on_report(&mut self, session: SessionId, report: UnitReport, now: Millis) -> bool {
        let by_labels = self.goes_by_labels();
        self.assignments.on_report(session, report, &mut self.rooms, &mut self.gangs, by_labels, now)
    }

    /// Whether where a unit may go depends on its labels.
    pub(super) fn goes_by_labels(&self) -> bool {
        !self.reservations.specs.is_empty() || self.assignments.units.n_keeping > 0
    }

    /// A scheduler says how much room there is for what it has parked.
    pub fn on_rooms(&mut self, session: SessionId, reports: &[RoomReport]) {
        if let Some(idx) = self.assignments.schedulers.of_session(session) {
            self.rooms.on_rooms(idx, reports, self.following.revision);
        }
    }
}
