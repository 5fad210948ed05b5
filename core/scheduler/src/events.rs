//! Events, and what each of them brings about: committed changes of records, assignments, outcomes.

use std::sync::Arc;

use godel_base::{
    ids::{Revision, RunningUnitId, UnitId},
    time::Millis,
};
use godel_cluster::follow_record;
use godel_domain::{
    assignment::Assignment,
    change::{Change, Commit, Partition},
    decision::{Outcome, RejectionReason},
    pause,
    records::{Record, RecordKey, RecordKind},
    running_units::{RunChange, RunningUnits},
    work_kind::WorkKind,
};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, UnitState},
    assigned_units::{Answered, refused},
    in_flight::Read,
};

/// Records that a scheduler follows.
pub const FOLLOWS: &[RecordKind] = &[
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::NodeUsage,
    RecordKind::Partition,
    RecordKind::PartitionBlock,
    RecordKind::Queue,
    RecordKind::PriorityClass,
    RecordKind::Budget,
    RecordKind::Reservation,
    RecordKind::Hold,
    RecordKind::Pause,
    RecordKind::Rows,
];

/// Records that it follows on a second stream, as long as something selects units by their specs (see [`Scheduler::selection`]).
pub const FOLLOWS_SELECTED: &[RecordKind] = &[RecordKind::Unit];

impl Scheduler {
    /// A committed transaction, after everything that was committed before it.
    pub fn apply(&mut self, commit: &Commit, now: Millis) {
        for change in &commit.changes {
            self.load(change, commit.revision, commit.time_ms, now);
        }
        self.on_listed(commit.revision);
    }

    /// A list follows: nodes and rows are forgotten, units and decisions stay. No step may be made before the
    /// list is complete: half a picture shows room that is taken.
    pub fn on_reset(&mut self) {
        self.picture.reset();
        self.search.set_paused(&pause::Scope::Preemption, false);
        self.in_flight.unread.begin_list();
    }

    /// A record of a list, or one that somebody else follows on another stream: of a node, of rows, of holds, of the partition,
    /// of a queue, of a reservation, of a disruption budget, of a unit as far as budgets select it (see [`Self::selection`]), or
    /// of a priority class; others are ignored.
    pub fn load(&mut self, change: &Change, revision: Revision, time_ms: i64, now: Millis) {
        let picture = &mut self.picture;
        picture.note_time(time_ms);
        if is_of_nodes(change) {
            picture.seen = picture.seen.max(revision);
        }
        if change.kind() == Some(RecordKind::Hold) || matches!(change, Change::Rows(..)) {
            picture.used_as_of = picture.used_as_of.max(revision);
        }
        if !self.note_unreadable(change) {
            return;
        }
        if changes_nodes(change) {
            self.search.on_nodes_changed(&self.units.parked, now);
        }
        let n_gains = self.picture.cluster.taken().budgets().n_gains();
        self.load_readable(change, revision, time_ms, now);
        if self.picture.cluster.taken().budgets().n_gains() > n_gains {
            self.search.on_budget_gain(&self.units.parked, now);
        }
    }

    fn load_readable(&mut self, change: &Change, revision: Revision, time_ms: i64, now: Millis) {
        let Self { picture, units, search, .. } = self;
        match change {
            Change::Rows(unit, rows) => {
                let deltas = picture.change_running_units(*unit, rows, revision, time_ms);
                search.on_running_units(*unit, &deltas, picture, &units.parked, now);
                if let RunChange::Bind(bind) = rows {
                    units.remove_bound(*unit, Some(&bind.ordinals), picture);
                }
            }
            Change::RowsLoaded(unit, rows) => {
                picture.load_running_units(*unit, rows.clone());
                units.remove_bound(*unit, None, picture);
            }
            Change::Gone(RecordKey::Unit(unit)) => {
                picture.remove_unit(*unit);
                units.revoke(*unit, &mut picture.placer.templates);
            }
            Change::Put(Record::Hold(hold)) => {
                picture.cluster.held_mut().put(Arc::clone(hold));
                picture.shares.count_hold(hold, &mut picture.cluster);
                units.try_unit_with_hold(hold.unit, &mut picture.placer.templates);
                search.on_hold(hold, picture, &units.parked, now);
            }
            Change::Gone(RecordKey::Hold(id)) => {
                let hold = picture.remove_hold(*id, revision);
                if let Some(hold) = hold {
                    units.requeue_after_hold(&hold, picture);
                }
            }
            Change::Put(Record::Partition(partition)) => self.on_partition(partition),
            Change::Put(Record::PartitionBlock(block)) => picture.put_block(block.clone()),
            Change::Put(Record::PriorityClass(class)) => {
                picture.classes.put(class.clone());
                self.update_priorities(&class.name);
            }
            Change::Gone(RecordKey::PriorityClass(name)) => {
                picture.classes.remove(name);
                self.update_priorities(name);
            }
            Change::Put(Record::Pause(pause)) => {
                picture.pauses.put(pause.clone());
                search.set_paused(&pause.scope, true);
            }
            Change::Gone(RecordKey::Pause(scope)) => {
                if let Some(scope) = pause::Scope::parse(scope) {
                    picture.pauses.remove(&scope);
                    search.set_paused(&scope, false);
                }
            }
            Change::Put(Record::Queue(record)) => {
                let may_outrank = picture.shares.put_queue(record, &mut picture.cluster);
                if may_outrank {
                    self.ask_all();
                }
            }
            Change::Gone(RecordKey::Queue(path)) => {
                let may_outrank = picture.shares.remove_queue(path, &mut picture.cluster);
                if may_outrank {
                    self.ask_all();
                }
            }
            Change::Put(Record::Budget(spec)) => {
                picture.selection.put_budget(spec, revision, &mut picture.cluster);
            }
            Change::Put(Record::Unit(record)) => {
                picture
                    .cluster
                    .units_mut()
                    .offer(record.id, &UnitIdentity::of(&record.spec), || WantedOrdinals::of(record));
                if record.spec.has_terms() {
                    picture.selection.put_terms(record, &mut picture.cluster);
                }
                if picture.cluster.taken().work.is_active() {
                    picture.cluster.units_mut().put_work(record.id, WorkKind::of(&record.spec));
                }
            }
            // It is taken as if there were no such record.
            Change::Unreadable(unreadable) if is_absent(&unreadable.key) => {
                self.load_readable(&unreadable.key.clone().gone(), revision, time_ms, now);
            }
            _ => {
                follow_record(&mut picture.cluster, change, revision);
                let may_go_anywhere = match change {
                    // What waited for its volumes.
                    Change::Gone(key) => key.kind() == Some(RecordKind::NodeSpec) && units.has_volumes(),
                    // Others may own it now.
                    Change::Put(record) => record.kind() == RecordKind::Reservation,
                    _ => false,
                };
                if may_go_anywhere {
                    self.ask_all();
                }
            }
        }
    }

    /// Everything up to `revision` has been read: a list is complete, or a transaction is applied.
    pub fn on_listed(&mut self, revision: Revision) {
        let Self { picture, units, in_flight, .. } = self;
        picture.revision = picture.revision.max(revision);
        if in_flight.unread.end_list(picture.revision) {
            units.requeue_all_released(&in_flight.unread, picture);
        }
        units.try_those_that_read(picture.revision, &mut picture.placer.templates);
        self.forget_read();
        self.units.parked.note_change();
    }

    /// What is read is assumed no longer. Rows see to that, but for bindings that had gone when a list was made.
    fn forget_read(&mut self) {
        let Self { picture, search, in_flight, .. } = self;
        while let Some(read) = in_flight.unread.take_read(picture.revision) {
            let decision = match read {
                Read::Shown(decision) => decision,
                Read::Listed(decision) => {
                    picture.forget_assumed(decision.unit, &decision.groups);
                    decision
                }
                Read::Held(decision) => {
                    if let Some(preemption) = decision.claim.preemption() {
                        search.unclaim(&mut picture.cluster, preemption);
                    }
                    picture.forget_assumed(decision.unit, &decision.groups);
                    decision
                }
            };
            picture.shares.end_decision(decision.id);
            picture.shares.settle_movers(decision.unit, &picture.cluster);
        }
    }

    /// The time of day, Unix milliseconds: how long victims have run.
    pub fn on_wall(&mut self, wall_ms: i64) {
        self.picture.note_time(wall_ms);
    }

    /// Parked units may find room on any node, or victims.
    fn ask_all(&mut self) {
        self.search.note_change();
        self.units.parked.ask_all();
        self.search.times.search_again_at(Millis(0));
    }

    /// A class may have another priority now.
    fn update_priorities(&mut self, class: &str) {
        let Self { picture, units, .. } = self;
        units.update_priorities(class, picture.classes.value(class), &mut picture.placer.templates);
    }

    /// Follows what cannot be read. Whether the change is to be applied. Units that cannot be read are the dispatcher's and
    /// the binder's business: their records are followed here now and then only.
    fn note_unreadable(&mut self, change: &Change) -> bool {
        if let Change::Unreadable(unreadable) = change
            && matches!(unreadable.key, RecordKey::Unit(_))
        {
            return false;
        }
        let noted = self.picture.cluster.nodes_mut().note_unreadable(change);
        if noted.is_news {
            // What no search looked for, or found, may be found now.
            self.ask_all();
        }
        !noted.is_void
    }

    /// The mode or the schedulers changed.
    pub(crate) fn on_partition(&mut self, partition: &Partition) {
        self.picture.set_partition(partition, &self.config.name);
    }

    /// A unit to place, or a unit assigned already with an equal or newer record: what is pending by the assignment replaces
    /// what was to be placed. What rows or decisions under way cover is left out.
    pub fn on_assign(&mut self, assignment: &Assignment, now: Millis) {
        let Self { picture, units, in_flight, .. } = self;
        let (record, revision) = (&*assignment.record, assignment.revision);
        let unit = record.id;
        units.count_assignment(assignment.permit.called);
        if units.get(unit).is_some_and(|assigned| assigned.revision > revision) {
            return;
        }
        let (groups, awaiting_hold) = picture.group_work(record, revision, assignment.pending());
        let old = units.detach(unit);
        let order = units.dispatch_order(old.as_deref());
        let mut assigned = Box::new(AssignedUnit::new(picture, record, revision, order, groups));
        (assigned.permit, assigned.gang.bound) = (assignment.permit, assignment.bound);
        assigned.awaiting_hold = awaiting_hold;
        assigned.is_partial =
            assignment.bound == 0 && assignment.ordinals.len() < record.spec.replicas() as usize;
        assigned.decisions = units.take_orphans(unit);
        if let Some(mut old) = old {
            assigned.tries = old.tries.carry_over(old.revision == revision);
            assigned.decisions = std::mem::take(&mut old.decisions);
            units.release_unit(old, &mut picture.placer.templates);
        }
        in_flight.remove_decided(&mut assigned);
        assigned.remove_placed(&picture.cluster);
        picture.note_device_work(&assigned);
        if assigned.permit.at_maximum && !assigned.is_done() {
            picture.shares.count_for_maxima(&mut picture.cluster, now);
        }
        units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
    }

    /// A stream to a dispatcher opens. The inventory is to be taken after that: what was assigned in part is not in it any more.
    pub fn on_attach(&mut self) {
        self.units.begin_stream(&mut self.picture.placer.templates);
    }

    /// The unit is no longer its business. Decisions under way stay until their outcome.
    pub fn on_revoke(&mut self, unit: UnitId) {
        self.units.revoke(unit, &mut self.picture.placer.templates);
    }

    /// The binder's answer. One to a decision that is not known (any more) changes nothing.
    pub fn on_outcome(&mut self, outcome: &Outcome, now: Millis) {
        let Self { picture, units, search, in_flight, .. } = self;
        let Some(decision) = in_flight.take(outcome.decision_id) else { return };
        if let Some(preemption) = decision.claim.preemption().filter(|_| !outcome.held) {
            search.unclaim(&mut picture.cluster, preemption);
        }
        let refused = refused(&decision, outcome);
        let n_placed = decision.len() - refused.len();
        if !refused.is_empty() || outcome.revision <= picture.revision {
            picture.shares.end_decision(decision.id);
        }
        let n_bound = if outcome.held { 0 } else { n_placed };
        let n_conflicts = refused.iter().filter(|(_, _, reason)| reason.is_conflict()).count();
        in_flight.count_answers(decision.len(), n_bound, n_conflicts);
        for &(_, replica, _) in &refused {
            picture.cluster.forget(RunningUnitId { unit: decision.unit, replica });
        }
        picture.shares.settle_movers(decision.unit, &picture.cluster);
        if !refused.is_empty() {
            // Others may have those that it claimed, or its room.
            search.on_nodes_changed(&units.parked, now);
        }
        for fresh in &outcome.nodes {
            let end = now.plus(self.config.foreign_ms);
            picture.foreign.put(fresh, end, &mut picture.cluster);
        }
        if outcome.held {
            units.await_hold(&decision);
        }
        let answered = Answered { decision: &decision, refused: &refused, n_bound };
        units.on_answer(&answered, in_flight, picture, now);
        let revision = outcome.revision;
        if outcome.held {
            let (unit, spec_revision) = (decision.unit, decision.spec_revision);
            in_flight.unread.put_held(revision, decision);
            self.on_hold_granted(unit, spec_revision, revision);
            return;
        }
        let is_of_terms =
            |reason| matches!(reason, RejectionReason::UnitAffinity | RejectionReason::TopologySpread);
        if refused.iter().any(|(_, _, reason)| is_of_terms(*reason)) {
            picture.selection.note_unknown_terms();
        }
        let full = outcome.rejections.iter().find(|one| one.reason == RejectionReason::QueueFull);
        if let Some(full) = full {
            units.on_queue_full(&decision, &full.detail, n_bound, picture);
        }
        if n_bound > 0 {
            in_flight.unread.put_bound(revision, decision, picture.revision);
            self.forget_read();
        }
    }

    /// The binder holds room for a decision on a unit's record since `revision`: its room stays assumed until the hold's
    /// record is read. What was assigned after the hold had ended may come before this answer: then nothing of it has to wait.
    fn on_hold_granted(&mut self, unit: UnitId, spec_revision: Revision, revision: Revision) {
        self.forget_read();
        let Self { picture, units, in_flight, .. } = self;
        let is_read = revision <= picture.revision;
        if is_read {
            // It may have ended already.
            units.requeue_released(unit, &in_flight.unread, picture);
        }
        let waits = |assigned: &AssignedUnit| {
            assigned.revision == spec_revision
                && assigned.gang.bound == 0
                && !(is_read && assigned.awaiting_hold.is_empty())
        };
        let was_bound = picture.cluster.rows().of(unit).is_some_and(RunningUnits::was_placed);
        if !was_bound && units.get(unit).is_some_and(waits) {
            units.wait_for_hold(unit, &mut picture.placer.templates);
        }
        if is_read {
            units.try_unit_with_hold(unit, &mut picture.placer.templates);
        }
    }
}

/// Kinds of records that the binder follows too: to wait until it has read a revision of any other would be to wait for its next bookmark.
const FOLLOWED_BY_BINDER: [RecordKind; 9] = [
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::NodeUsage,
    RecordKind::Hold,
    RecordKind::Queue,
    RecordKind::Budget,
    RecordKind::Reservation,
    RecordKind::Rows,
];

/// Whether the binder follows a change too.
fn is_of_nodes(change: &Change) -> bool {
    change.kind().is_some_and(|kind| FOLLOWED_BY_BINDER.contains(&kind))
        || matches!(change, Change::Gone(RecordKey::Unit(_)))
}

/// Whether a record that cannot be read is taken as if there were none.
fn is_absent(key: &RecordKey) -> bool {
    use RecordKind::{Partition, PartitionBlock, Reservation};
    matches!(key.kind(), Some(Partition | PartitionBlock | Reservation))
}

/// Whether a change may let somebody have others leave without anybody coming or going.
fn changes_nodes(change: &Change) -> bool {
    match change {
        Change::Put(record) => record.kind().is_of_node(),
        Change::Gone(key) => key.kind() == Some(RecordKind::Hold),
        Change::RowsLoaded(..) => true,
        Change::Rows(..) | Change::Unreadable(_) => false,
    }
}
