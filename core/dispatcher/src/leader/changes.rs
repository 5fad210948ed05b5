//! Changes of units' records: cancel, suspend, resume, scale, stop, update, retry and delete, one at a time for each unit.

use std::{collections::VecDeque, sync::Arc};

use godel_base::{
    ids::{IdSet, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    change::Change,
    node_affinity::PreferredNodes,
    records::{Record, RecordKey},
    running_units::{Compaction, RunChange, UnitTerms},
    submission::GroupChanges,
    txn::{RecordRef, TxnBuilder},
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};
use godel_rules::{
    admission::{
        grow::grow,
        retry::{RetryRefusal, RetryScope, retry, retry_replicas},
        scale::{ScaleRefusal, scale},
        stop::stop,
        update::{UnitUpdate, update},
    },
    surge::without_surges,
};

use super::{ChangeFailure, DEFERRED_MAX, DispatcherOutbox, NotSent, TxnTicket, edits::Edits};
use crate::{
    Dispatcher,
    moves::{EnteredQueue, NoRoomToMove},
    read::UnitView,
};

/// What somebody asks of a unit.
pub struct UnitChange<O: DispatcherOutbox> {
    /// Namespace of the unit.
    pub namespace: String,
    /// Its whole name, or its uid.
    pub name: String,
    /// Revision that the unit or its record must have; 0: whatever it is.
    pub expected_revision: Revision,
    /// What is asked for.
    pub kind: UnitChangeKind,
    /// Who asks.
    pub by: UnitCaller,
    /// Who asks may change units of `namespace` only: a uid of another namespace names nothing.
    pub is_bound: bool,
    /// Who waits for the answer.
    pub caller: O::Caller,
}

/// Kinds of changes of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitChangeKind {
    /// It ends.
    Cancel,
    /// Its running units leave until it is resumed.
    Suspend,
    /// It goes on.
    Resume,
    /// A task group gets another number of replicas.
    Scale {
        /// Name of the task group.
        group: String,
        /// The new number.
        replicas: u32,
    },
    /// These running units end for good.
    Stop {
        /// Which.
        ordinals: Vec<u32>,
    },
    /// Its task groups change: some are added, some get another size, some ordinals are released.
    Grow(Box<GroupChanges>),
    /// It becomes this one; an empty uid or owner says nothing.
    Update(Box<UnitSpec>),
    /// It runs again after its end.
    Retry(RetryScope),
    /// These replicas of it run again, each as its next incarnation.
    RetryReplicas {
        /// Which.
        ordinals: Vec<u32>,
        /// What their task groups prefer from then on; empty: what they did.
        preferred: Vec<PreferredNodes>,
    },
    /// The record of a unit that has ended goes.
    Delete,
}

/// What a change comes to.
enum ChangeVerdict {
    /// Nothing to be written.
    Answer(Result<Revision, ChangeFailure>),
    /// Another change of the unit is on its way, or the watch has yet to show its last one.
    Later,
    Write(RecordWrite),
    /// The record goes, if it has this revision.
    Delete(UnitId, Revision),
}

/// A record to be written, and what that rests on.
struct RecordWrite {
    record: Arc<UnitRecord>,
    /// The record that it replaces, and its revision.
    before: Arc<UnitRecord>,
    revision: Revision,
    /// Of the unit's running units, if none may be bound meanwhile.
    rows: Option<Revision>,
    /// Its queue and priority class have to take it, as those of a new unit.
    enters: bool,
    /// All that is on nodes of it changes its queue with it.
    takes_rows_along: bool,
}

/// What is written beside a record.
#[derive(Default)]
struct WrittenBeside {
    /// Terms of what is bound of the unit, where the record changes them.
    terms: Option<Arc<UnitTerms>>,
    /// Queues with a maximum in which what is bound counts from then on.
    entered: Vec<EnteredQueue>,
}

impl RecordWrite {
    fn new(record: UnitRecord, view: &UnitView<'_>) -> Self {
        Self {
            record: Arc::new(record),
            before: Arc::clone(view.record),
            revision: view.spec_revision,
            rows: None,
            enters: false,
            takes_rows_along: false,
        }
    }
}

/// Changes on their way, and those that wait.
pub(super) struct Changes<O: DispatcherOutbox> {
    /// Units with a change on its way.
    changing: IdSet<UnitId>,
    /// Of those the ones whose queue and priority class have to stay.
    entering: IdSet<UnitId>,
    deferred: VecDeque<UnitChange<O>>,
}

impl<O: DispatcherOutbox> Changes<O> {
    pub(super) fn new() -> Self {
        Self { changing: IdSet::default(), entering: IdSet::default(), deferred: VecDeque::new() }
    }

    /// Somebody asks for a change.
    pub(super) fn ask(
        &mut self,
        change: UnitChange<O>,
        core: &mut Dispatcher,
        edits: &mut Edits<O>,
        now: Millis,
        out: &mut O,
    ) {
        let verdict = match self.decide(&change, core) {
            ChangeVerdict::Write(write) if write.enters => welcome(write, &change.by, core, edits),
            verdict => verdict,
        };
        match verdict {
            ChangeVerdict::Answer(answer) => out.answer(change.caller, answer.map(Some)),
            ChangeVerdict::Later => self.defer(change, "too many changes of units wait", out),
            ChangeVerdict::Write(write) => match beside(&write, core) {
                Ok(beside) => self.write(change, write, beside, edits, out),
                Err(refusal) => out.answer(change.caller, Err(ChangeFailure::NoRoomToMove(refusal))),
            },
            ChangeVerdict::Delete(unit, revision) => self.delete(change, unit, revision, core, now, out),
        }
    }

    /// Changes that waited may go on now.
    pub(super) fn retry(&mut self, core: &mut Dispatcher, edits: &mut Edits<O>, now: Millis, out: &mut O) {
        for _ in 0..self.deferred.len() {
            if let Some(change) = self.deferred.pop_front() {
                self.ask(change, core, edits, now, out);
            }
        }
    }

    /// Whether a change of a unit is on its way.
    pub(super) fn is_changing(&self, unit: UnitId) -> bool {
        self.changing.contains(&unit)
    }

    /// The transaction of a unit's change has its answer.
    pub(super) fn on_answer(&mut self, unit: UnitId, record: Option<&UnitRecord>, edits: &mut Edits<O>) {
        self.changing.remove(&unit);
        if let (true, Some(record)) = (self.entering.remove(&unit), record) {
            edits.remove_unit(&record.spec);
        }
    }

    /// The dispatcher's own change of a unit. What cannot be written now is asked for again by the core. Returns whether it is on
    /// its way.
    pub(super) fn write_own(
        &mut self,
        record: &Arc<UnitRecord>,
        revision: Revision,
        core: &Dispatcher,
        out: &mut O,
    ) -> bool {
        self.submit_own(record, revision, None, Vec::new(), core, out)
    }

    /// A replica of a unit starts before the one stops that it replaces, or that is over. What cannot be written now is asked for
    /// again by the core. Returns whether it is on its way.
    pub(super) fn surge(
        &mut self,
        record: &Arc<UnitRecord>,
        revision: Revision,
        rows: Option<Revision>,
        core: &Dispatcher,
        out: &mut O,
    ) -> bool {
        self.submit_own(record, revision, rows, Vec::new(), core, out)
    }

    /// Replicas of a unit that ended long ago are compacted. What cannot be written now is asked for again by the core.
    pub(super) fn compact(
        &mut self,
        record: &Arc<UnitRecord>,
        revision: Revision,
        compaction: Compaction,
        core: &Dispatcher,
        out: &mut O,
    ) {
        let Some(view) = core.unit(record.id) else { return };
        // A minimum that nothing reaches any more may fall with the replicas.
        let terms = core.queueing().changed_terms(&view.record.spec, &record.spec);
        let mut beside: Vec<RunChange> =
            terms.map(|terms| RunChange::Terms(Arc::new(terms))).into_iter().collect();
        beside.push(RunChange::Compact(compaction));
        self.submit_own(record, revision, None, beside, core, out);
    }

    fn submit_own(
        &mut self,
        record: &Arc<UnitRecord>,
        revision: Revision,
        rows: Option<Revision>,
        beside: Vec<RunChange>,
        core: &Dispatcher,
        out: &mut O,
    ) -> bool {
        let known = core.unit(record.id).map(|view| Arc::clone(view.record));
        let Some(before) = known.filter(|_| !self.changing.contains(&record.id)) else { return false };
        let mut txn = put(record, &before, revision, out);
        for change in beside {
            txn.push(&Change::Rows(record.id, change));
        }
        if let Some(rows) = rows {
            txn.require(RecordRef::Rows(record.id), rows);
        }
        let is_sent = out.submit(txn, TxnTicket::Change(Arc::clone(record), None)).is_ok();
        if is_sent {
            self.changing.insert(record.id);
        }
        is_sent
    }

    fn defer(&mut self, change: UnitChange<O>, why: &'static str, out: &mut O) {
        if self.deferred.len() < DEFERRED_MAX {
            self.deferred.push_back(change);
        } else {
            out.answer(change.caller, Err(ChangeFailure::Overloaded(why)));
        }
    }

    fn write(
        &mut self,
        change: UnitChange<O>,
        write: RecordWrite,
        beside: WrittenBeside,
        edits: &mut Edits<O>,
        out: &mut O,
    ) {
        let RecordWrite { record, before, revision, rows, enters, takes_rows_along: _ } = write;
        let unit = record.id;
        let mut txn = put(&record, &before, revision, out);
        if let Some(terms) = beside.terms {
            txn.push(&Change::Rows(unit, RunChange::Terms(terms)));
        }
        for EnteredQueue { spec, revision } in beside.entered {
            txn.require(RecordRef::Queue(&spec.name), revision);
            txn.push(&Change::Put(Record::Queue(spec)));
        }
        if let Some(rows) = rows {
            txn.require(RecordRef::Rows(unit), rows);
        }
        let entering = enters.then(|| Arc::clone(&record));
        let UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller } = change;
        match out.submit(txn, TxnTicket::Change(record, Some(caller))) {
            Ok(()) => {
                self.changing.insert(unit);
                if let Some(record) = entering {
                    edits.enter(&record.spec);
                    self.entering.insert(unit);
                }
            }
            Err((TxnTicket::Change(_, Some(caller)), NotSent::Full)) => {
                let change = UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller };
                self.defer(change, "too many transactions are under way", out);
            }
            Err((TxnTicket::Change(_, Some(caller)), NotSent::Failed(failure))) => {
                out.answer(caller, Err(ChangeFailure::Txn(failure)));
            }
            Err(_) => unreachable!("the ticket that was given comes back"),
        }
    }

    /// Deletes the record of a unit that has ended, as retention would in the end.
    fn delete(
        &mut self,
        change: UnitChange<O>,
        unit: UnitId,
        revision: Revision,
        core: &mut Dispatcher,
        now: Millis,
        out: &mut O,
    ) {
        let mut txn = out.begin();
        txn.push(&Change::Gone(RecordKey::Unit(unit)));
        if let Some(kept) = core.units().history_of(unit) {
            txn.push(&Change::Put(Record::UnitHistory(Arc::new(kept))));
        }
        txn.require(RecordRef::Unit(unit), revision);
        let UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller } = change;
        match out.submit(txn, TxnTicket::Delete(unit, caller)) {
            Ok(()) => {
                self.changing.insert(unit);
            }
            Err((TxnTicket::Delete(_, caller), NotSent::Full)) => {
                core.assignments.on_delete_failed(unit, now);
                let change = UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller };
                self.defer(change, "too many transactions are under way", out);
            }
            Err((TxnTicket::Delete(_, caller), NotSent::Failed(failure))) => {
                core.assignments.on_delete_failed(unit, now);
                out.answer(caller, Err(ChangeFailure::Txn(failure)));
            }
            Err(_) => unreachable!("the ticket that was given comes back"),
        }
    }

    fn decide(&self, change: &UnitChange<O>, core: &mut Dispatcher) -> ChangeVerdict {
        let UnitChange { namespace, name, expected_revision: expected, kind, by, is_bound, .. } = change;
        let units = core.units();
        let found = if *is_bound { units.find_within(namespace, name) } else { units.find(namespace, name) };
        let unit = match found {
            Ok(unit) => unit,
            Err(why) => {
                let (namespace, name) = (namespace.clone(), name.clone());
                return ChangeVerdict::Answer(Err(ChangeFailure::Unresolved { namespace, name, why }));
            }
        };
        let read = core.following().revision();
        let Some(view) = core.unit(unit) else { return ChangeVerdict::Answer(Err(ChangeFailure::UnitGone)) };
        if self.changing.contains(&unit) {
            return ChangeVerdict::Later;
        }
        // The revision of the whole unit, rows included, says even more than that of its record.
        let (current, expected) = (view.spec_revision, *expected);
        if expected > Revision(0) && expected != current && expected != view.revision {
            // Who did not hear that it was made asks again.
            if is_as_wanted(&view, kind) {
                return ChangeVerdict::Answer(Ok(current));
            }
            return ChangeVerdict::Answer(Err(ChangeFailure::Revision { current, expected }));
        }
        match kind {
            UnitChangeKind::Update(_) | UnitChangeKind::Grow(_)
                if !view.record.may_be_rewritten_by(&by.principal) =>
            {
                let submitter = view.record.status.principal.clone();
                ChangeVerdict::Answer(Err(ChangeFailure::NotOwn(shown(&view), submitter)))
            }
            UnitChangeKind::Cancel => cancel(&view),
            UnitChangeKind::Suspend if read < current && !view.record.status.surges.is_empty() => {
                ChangeVerdict::Later
            }
            UnitChangeKind::Suspend => suspend(&view, true),
            UnitChangeKind::Resume => suspend(&view, false),
            // New ordinals begin after every one ever bound: all rows up to the record must be known.
            UnitChangeKind::Scale { .. }
            | UnitChangeKind::Stop { .. }
            | UnitChangeKind::Grow(_)
            | UnitChangeKind::Update(_)
                if read < current =>
            {
                ChangeVerdict::Later
            }
            // Who wants another size says what it is without replicas that are to replace others.
            UnitChangeKind::Update(wanted) => {
                let record = without_surges(view.record, view.rows);
                updated(&view, update(&record, view.rows, view.counts, wanted))
            }
            UnitChangeKind::Grow(changes) => {
                let record = without_surges(view.record, view.rows);
                updated(&view, grow(&record, view.rows, changes))
            }
            UnitChangeKind::Scale { group, replicas } => {
                let record = without_surges(view.record, view.rows);
                scaled(&view, scale(&record, view.rows, group, *replicas))
            }
            UnitChangeKind::Stop { ordinals } => scaled(&view, stop(view.record, view.rows, ordinals)),
            // It goes; the watch shows that it is gone.
            UnitChangeKind::Retry(_) | UnitChangeKind::RetryReplicas { .. }
                if core.units().is_deleting(unit) =>
            {
                ChangeVerdict::Later
            }
            // Which incarnation is the next one its rows say.
            UnitChangeKind::RetryReplicas { .. } if read < current => ChangeVerdict::Later,
            UnitChangeKind::RetryReplicas { ordinals, preferred } => {
                retried_replicas(&view, ordinals, preferred)
            }
            UnitChangeKind::Retry(scope) => retried(&view, *scope, core.assignments.wall_ms),
            UnitChangeKind::Delete => {
                let name = shown(&view);
                match core.assignments.delete(unit) {
                    Ok(true) => ChangeVerdict::Delete(unit, current),
                    // The watch shows that it is gone.
                    Ok(false) => ChangeVerdict::Later,
                    Err(refusal) => ChangeVerdict::Answer(Err(ChangeFailure::NotDeleted(name, refusal))),
                }
            }
        }
    }
}

/// The transaction that makes a unit what it is to be, if it has this revision: its own record if that differs, and those of
/// the added task groups that differ.
fn put<O: DispatcherOutbox>(
    record: &Arc<UnitRecord>,
    before: &UnitRecord,
    revision: Revision,
    out: &mut O,
) -> O::Txn {
    let mut txn = out.begin();
    let added = record.added_since(before).map(Arc::new).collect::<Vec<_>>();
    if added.is_empty() || record.own() != before.own() {
        txn.push(&Change::Put(Record::Unit(Arc::clone(record))));
    }
    for group in added {
        txn.push(&Change::Put(Record::TaskGroup(group)));
    }
    txn.require(RecordRef::Unit(record.id), revision);
    txn
}

/// What has to be written beside a record: whatever is bound of the unit by then follows it.
///
/// # Errors
/// The queue that the record names has no room for what is on nodes.
fn beside(write: &RecordWrite, core: &Dispatcher) -> Result<WrittenBeside, NoRoomToMove> {
    let RecordWrite { record, takes_rows_along, .. } = write;
    let Some(view) = core.unit(record.id) else { return Ok(WrittenBeside::default()) };
    let terms = core.queueing().changed_terms(&view.record.spec, &record.spec).map(Arc::new);
    let entered = if *takes_rows_along {
        core.queueing().enter(record.id, &record.spec.queue, core.units())?
    } else {
        Vec::new()
    };
    Ok(WrittenBeside { terms, entered })
}

fn cancel(view: &UnitView<'_>) -> ChangeVerdict {
    if view.record.status.cancelled {
        return ChangeVerdict::Answer(Ok(view.spec_revision));
    }
    if view.phase.is_terminal() {
        return over(view);
    }
    let mut record = (**view.record).clone();
    record.status.cancelled = true;
    ChangeVerdict::Write(RecordWrite::new(record, view))
}

/// Suspends a unit, or resumes it.
fn suspend(view: &UnitView<'_>, suspended: bool) -> ChangeVerdict {
    if view.phase.is_terminal() {
        return over(view);
    }
    if view.record.status.suspended == suspended {
        return ChangeVerdict::Answer(Ok(view.spec_revision));
    }
    let mut record = without_surges(view.record, view.rows).into_owned();
    record.status.suspended = suspended;
    ChangeVerdict::Write(RecordWrite::new(record, view))
}

/// Whether the queue and the priority class of a unit take it from whoever changes it, as they would a new one.
fn welcome<O: DispatcherOutbox>(
    write: RecordWrite,
    by: &UnitCaller,
    core: &Dispatcher,
    edits: &Edits<O>,
) -> ChangeVerdict {
    if edits.is_closing(&write.record.spec) {
        return ChangeVerdict::Later;
    }
    match core.admit(&write.record.spec, &by.names) {
        Ok(()) => ChangeVerdict::Write(write),
        Err(wrong) => ChangeVerdict::Answer(Err(ChangeFailure::Unwelcome(wrong))),
    }
}

/// Whether a unit is what somebody wants to make of it.
fn is_as_wanted(view: &UnitView<'_>, kind: &UnitChangeKind) -> bool {
    let record = without_surges(view.record, view.rows);
    let update = match kind {
        UnitChangeKind::Update(wanted) => update(&record, view.rows, view.counts, wanted),
        UnitChangeKind::Grow(changes) => grow(&record, view.rows, changes),
        _ => return false,
    };
    matches!(update, Ok(None))
}

/// Makes a unit into another one.
fn updated(view: &UnitView<'_>, update: Result<Option<UnitUpdate>, ScaleRefusal>) -> ChangeVerdict {
    if view.phase.is_terminal() {
        return over(view);
    }
    match update {
        Ok(Some(UnitUpdate { record, rests_on_rows, is_moved, takes_rows_along })) => {
            // Of a suspended unit nothing is bound: whoever would bind it rests on its record.
            let is_fenced = view.record.status.suspended;
            let rows = (rests_on_rows && !is_fenced).then_some(view.rows_revision);
            let write = RecordWrite::new(record, view);
            ChangeVerdict::Write(RecordWrite { rows, enters: is_moved, takes_rows_along, ..write })
        }
        Ok(None) => ChangeVerdict::Answer(Ok(view.spec_revision)),
        Err(refusal) => scaled(view, Err(refusal)),
    }
}

/// Runs a unit again. One that runs again already is left alone.
fn retried(view: &UnitView<'_>, scope: RetryScope, now_ms: i64) -> ChangeVerdict {
    if !view.phase.is_terminal() {
        return ChangeVerdict::Answer(match view.record.status.retried_ms {
            0 => Err(ChangeFailure::NotEnded(shown(view), view.phase)),
            _ => Ok(view.spec_revision),
        });
    }
    match retry(view.record, view.counts, scope, now_ms) {
        Ok(record) => ChangeVerdict::Write(RecordWrite { enters: true, ..RecordWrite::new(record, view) }),
        Err(refusal) => ChangeVerdict::Answer(Err(ChangeFailure::NotRetried(shown(view), refusal))),
    }
}

/// Runs single replicas of a unit again. A unit that is over by that they have ended goes on.
fn retried_replicas(view: &UnitView<'_>, ordinals: &[u32], preferred: &[PreferredNodes]) -> ChangeVerdict {
    match retry_replicas(view.record, view.rows, ordinals, preferred) {
        Ok(Some(record)) => {
            let enters = view.phase.is_terminal();
            ChangeVerdict::Write(RecordWrite { enters, ..RecordWrite::new(record, view) })
        }
        Ok(None) => ChangeVerdict::Answer(Ok(view.spec_revision)),
        Err(RetryRefusal::Invalid(violation)) => {
            ChangeVerdict::Answer(Err(ChangeFailure::Invalid(vec![violation])))
        }
        Err(refusal) => ChangeVerdict::Answer(Err(ChangeFailure::NotRetried(shown(view), refusal))),
    }
}

fn scaled(view: &UnitView<'_>, scaled: Result<Option<UnitRecord>, ScaleRefusal>) -> ChangeVerdict {
    if view.phase.is_terminal() && !view.record.status.cancelled {
        return over(view);
    }
    match scaled {
        Ok(Some(record)) => ChangeVerdict::Write(RecordWrite::new(record, view)),
        Ok(None) => ChangeVerdict::Answer(Ok(view.spec_revision)),
        Err(ScaleRefusal::Invalid(violations)) => {
            ChangeVerdict::Answer(Err(ChangeFailure::Invalid(violations)))
        }
        Err(ScaleRefusal::Cancelled) => over(view),
        Err(ScaleRefusal::OrdinalsUsedUp) => {
            ChangeVerdict::Answer(Err(ChangeFailure::OrdinalsUsedUp(shown(view))))
        }
    }
}

fn over(view: &UnitView<'_>) -> ChangeVerdict {
    ChangeVerdict::Answer(Err(ChangeFailure::UnitOver(shown(view), view.phase)))
}

/// A unit as messages name it.
fn shown(view: &UnitView<'_>) -> String {
    format!("{}/{}", view.record.spec.namespace, view.record.spec.name)
}
