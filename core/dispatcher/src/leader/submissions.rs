//! Units on their way to the store: ids, duplicates, transactions of as many as have gathered.

use std::{collections::VecDeque, sync::Arc};

use godel_base::{
    ids::{IdMap, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    txn::Receipt,
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};
use godel_rules::admission::same;

use super::{
    DispatcherLeaderConfig, DispatcherNote, DispatcherOutbox, NameHolder, NotSent, NotSubmitted, TxnFailure,
    edits::Edits,
};
use crate::{Dispatcher, NameClaim};

/// A unit that somebody submits, admitted but for what depends on other records.
pub struct UnitSubmission<O: DispatcherOutbox> {
    /// The unit, to which the leader gives an id.
    pub spec: UnitSpec,
    /// Who submits it.
    pub by: UnitCaller,
    /// Who waits for the answer.
    pub submitter: O::Submitter,
}

/// A new unit that waits for its transaction.
pub struct PendingUnit<O: DispatcherOutbox> {
    /// Its record.
    pub record: Arc<UnitRecord>,
    /// The record as it is sent.
    pub encoded: O::Record,
    n_bytes: usize,
    submitter: O::Submitter,
}

/// New units of one transaction.
pub struct UnitBatch<O: DispatcherOutbox> {
    /// In order of their ids.
    pub units: VecDeque<PendingUnit<O>>,
}

/// Units that wait for a transaction, and submissions that wait for units.
pub(super) struct Submissions<O: DispatcherOutbox> {
    batch: UnitBatch<O>,
    n_in_flight: usize,
    /// Further submissions of uids that are on their way.
    followers: IdMap<UnitId, Vec<UnitSubmission<O>>>,
}

impl<O: DispatcherOutbox> UnitBatch<O> {
    fn new() -> Self {
        Self { units: VecDeque::new() }
    }
}

impl<O: DispatcherOutbox> Submissions<O> {
    pub(super) fn new() -> Self {
        Self { batch: UnitBatch::new(), n_in_flight: 0, followers: IdMap::default() }
    }

    /// An admitted unit: known already, refused, or put into the next transaction.
    pub(super) fn admit(
        &mut self,
        item: UnitSubmission<O>,
        core: &mut Dispatcher,
        edits: &mut Edits<O>,
        config: &DispatcherLeaderConfig,
        now: Millis,
        out: &mut O,
    ) {
        if core.units().n_known() >= config.units_max {
            return out.not_submitted(item.submitter, item.spec, NotSubmitted::TooManyUnits);
        }
        let Some(UnitSubmission { spec, by, mut submitter }) = edits.keep_back(item) else { return };
        match core.assignments.reserve(&spec.namespace, &spec.name, &spec.uid) {
            NameClaim::New(unit) => {
                let mut record = UnitRecord::new(unit, spec);
                record.status.principal = by.principal.to_string();
                if let Err(wrong) = core.admit(&record.spec, &by.names) {
                    core.assignments.units.directory.release(&record);
                    return out.not_submitted(submitter, record.spec, NotSubmitted::Unwelcome(wrong));
                }
                edits.enter(&record.spec);
                let (encoded, n_bytes) = out.encode(&record);
                out.admitted(unit, &mut submitter);
                let record = Arc::new(record);
                self.batch.units.push_back(PendingUnit { record, encoded, n_bytes, submitter });
            }
            NameClaim::Duplicate(unit) => {
                let view = core.unit(unit);
                let revision = view.as_ref().map(|view| view.create_revision).unwrap_or_default();
                let other = view.and_then(|view| differs(view.record, &spec));
                answer_again(UnitSubmission { spec, by, submitter }, other, unit, revision, core, out);
            }
            NameClaim::Gone { unit, created, digest } => {
                let other = digest
                    .is_some_and(|digest| digest != same::digest(&spec, None))
                    .then_some(NotSubmitted::UidUsed(unit));
                answer_again(UnitSubmission { spec, by, submitter }, other, unit, created, core, out);
            }
            NameClaim::InFlight(unit) => {
                let again = UnitSubmission { spec, by, submitter };
                self.followers.entry(unit).or_default().push(again);
            }
            NameClaim::NameTaken(unit) => {
                let holder = match (core.units().ended(unit, now), core.unit(unit)) {
                    (Some(ended), _) => NameHolder::Ended(ended),
                    (None, Some(view)) if view.phase.is_terminal() => NameHolder::Leaving(view.phase),
                    (None, Some(view)) => NameHolder::Present(view.phase),
                    (None, None) => NameHolder::Coming,
                };
                out.not_submitted(submitter, spec, NotSubmitted::NameTaken(holder));
            }
        }
    }

    /// Puts what has gathered into transactions, as many as may be under way.
    pub(super) fn flush(
        &mut self,
        core: &mut Dispatcher,
        edits: &mut Edits<O>,
        config: &DispatcherLeaderConfig,
        out: &mut O,
    ) {
        while !self.batch.units.is_empty() && self.n_in_flight < config.txns_in_flight_max.max(1) {
            let (mut batch, mut n_bytes) = (UnitBatch::new(), 0);
            while let Some(next) = self.batch.units.front() {
                let is_full = batch.units.len() >= config.txn_units_max.max(1)
                    || n_bytes + next.n_bytes > config.txn_bytes_max;
                if is_full && !batch.units.is_empty() {
                    break;
                }
                n_bytes += next.n_bytes;
                batch.units.extend(self.batch.units.pop_front());
            }
            match out.submit_units(batch) {
                Ok(()) => self.n_in_flight += 1,
                Err((mut batch, NotSent::Full)) => {
                    // In front of what came later, since ids must rise.
                    while let Some(unit) = batch.units.pop_back() {
                        self.batch.units.push_front(unit);
                    }
                    return;
                }
                Err((batch, NotSent::Failed(failure))) => self.fail(batch, &failure, core, edits, out),
            }
        }
    }

    /// The answer to a transaction of units.
    pub(super) fn on_answer(
        &mut self,
        batch: UnitBatch<O>,
        answer: Result<Receipt, TxnFailure>,
        core: &mut Dispatcher,
        edits: &mut Edits<O>,
        now: Millis,
        out: &mut O,
    ) {
        self.n_in_flight -= 1;
        let created = match answer {
            Ok(receipt) => receipt,
            Err(failure) => return self.fail(batch, &failure, core, edits, out),
        };
        for PendingUnit { record, .. } in &batch.units {
            edits.remove_unit(&record.spec);
            core.on_unit(Arc::clone(record), created.revision, created, now);
            out.note(core, DispatcherNote::UnitTried(record.id));
            out.note(core, DispatcherNote::UnitChanged(record.id));
        }
        out.note(core, DispatcherNote::UnitsDurable);
        for PendingUnit { record, submitter, .. } in batch.units {
            let unit = record.id;
            out.submitted(core, submitter, &record.spec, unit, created.revision, false);
            for follower in self.followers.remove(&unit).unwrap_or_default() {
                let other = differs(&record, &follower.spec);
                answer_again(follower, other, unit, created.revision, core, out);
            }
        }
    }

    /// None of the batch is durable, or nobody knows.
    fn fail(
        &mut self,
        batch: UnitBatch<O>,
        failure: &TxnFailure,
        core: &mut Dispatcher,
        edits: &mut Edits<O>,
        out: &mut O,
    ) {
        for PendingUnit { record, submitter, .. } in batch.units {
            out.note(core, DispatcherNote::UnitFailed(record.id));
            core.assignments.units.directory.release(&record);
            edits.remove_unit(&record.spec);
            let followers = self.followers.remove(&record.id).unwrap_or_default();
            let first = (Arc::unwrap_or_clone(record).spec, submitter);
            let followers = followers.into_iter().map(|again| (again.spec, again.submitter));
            for (spec, submitter) in std::iter::once(first).chain(followers) {
                out.not_submitted(submitter, spec, NotSubmitted::Txn(failure.clone()));
            }
        }
    }
}

/// A submission under a uid that is known: the first one's answer, or why it is `other`.
fn answer_again<O: DispatcherOutbox>(
    again: UnitSubmission<O>,
    other: Option<NotSubmitted>,
    unit: UnitId,
    revision: Revision,
    core: &Dispatcher,
    out: &mut O,
) {
    let UnitSubmission { spec, by: _, submitter } = again;
    match other {
        Some(why) => out.not_submitted(submitter, spec, why),
        None => out.submitted(core, submitter, &spec, unit, revision, true),
    }
}

/// Why a submission is not the unit that its uid belongs to; `None` if it is.
fn differs(known: &UnitRecord, again: &UnitSpec) -> Option<NotSubmitted> {
    let found = same::differences(known, again);
    (!found.is_empty()).then(|| NotSubmitted::UidTaken {
        known: (known.spec.namespace.clone(), known.spec.name.clone()),
        differences: found.to_string(),
    })
}
