//! Units on their way to the store: ids, duplicates, transactions of as many as have gathered.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use godel_core_dispatcher::{EndedView, NameClaim};
use godel_domain::{
    ids::{Revision, UnitId},
    time::Millis,
    txn::TxnRefusalReason,
    unit::UnitSpec,
};
use godel_kit::{
    status,
    txn::{Conditions, Receipt, TxnError},
};
use godel_rules::admission::same;
use godel_wire::to_proto;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tonic::{Code, Status};

use super::{DispatcherLeader, Ticket, overloaded, refused};
use crate::requests::{PendingSubmission, Refused, StreamItem, Submitted, Submitter};

/// Units of one transaction, or waiting for one.
#[derive(Default)]
pub(super) struct Batch {
    units: VecDeque<PendingUnit>,
}

/// A submission under the uid of a unit that is on its way to the store.
pub(super) struct Follower {
    spec: UnitSpec,
    waiter: Submitter,
    room: OwnedSemaphorePermit,
}

struct PendingUnit {
    spec: Arc<UnitSpec>,
    op: Bytes,
    waiter: Submitter,
    since: Instant,
    room: OwnedSemaphorePermit,
}

impl DispatcherLeader<'_> {
    /// An admitted unit: known already, refused, or put into the next transaction.
    pub(super) fn admit(&mut self, item: PendingSubmission) {
        if self.core.n_units() >= self.context.config.units_max {
            self.context.metrics.overloaded.inc();
            refuse_full(item, overloaded("as many units are known as the dispatcher takes"));
            return;
        }
        let Some(mut item) = self.edits.hold(item) else { return };
        let spec = &mut item.spec;
        match self.core.reserve(&spec.namespace, &spec.name, &spec.uid) {
            NameClaim::New(unit) => {
                spec.id = unit;
                if let Err(wrong) = self.core.admit(spec) {
                    self.core.release(spec);
                    self.context.metrics.rejected.inc();
                    let refused = Refused::Status(status::unwelcome(wrong));
                    return answer(item.waiter, Err(refused), item.room);
                }
                self.edits.enter(spec);
                let op = to_proto::put_unit_spec(spec);
                let PendingSubmission { spec, waiter, since, room, pass } = item;
                self.overload.take(unit, pass);
                self.batch.units.push_back(PendingUnit { spec: Arc::new(spec), op, waiter, since, room });
            }
            NameClaim::Duplicate(unit) => {
                let view = self.core.unit(unit);
                let revision = view.as_ref().map(|view| view.create_revision).unwrap_or_default();
                let other = view.and_then(|view| differs(view.spec, &item.spec));
                self.again(Follower::of(item), other, (unit, revision));
            }
            NameClaim::Gone { unit, created, digest } => {
                let other = (digest != same::digest(&item.spec)).then(|| was_another(&item.spec, unit));
                self.again(Follower::of(item), other, (unit, created));
            }
            NameClaim::InFlight(unit) => {
                self.followers.entry(unit).or_default().push(Follower::of(item));
            }
            NameClaim::NameTaken(unit) => {
                self.context.metrics.rejected.inc();
                let status = self.name_taken(unit, &item.spec);
                answer(item.waiter, Err(Refused::Status(status)), item.room);
            }
        }
    }

    /// Another unit has the name: what can be done about it.
    fn name_taken(&self, unit: UnitId, spec: &UnitSpec) -> Status {
        let (namespace, name) = (spec.namespace.as_str(), spec.name.as_str());
        let shown = if namespace == "default" { name.to_owned() } else { format!("{namespace}/{name}") };
        let message = match (self.core.ended(unit, self.now()), self.core.unit(unit)) {
            (Some(ended), _) => {
                let EndedView { phase, ago_ms, left_ms } = ended;
                let ago =
                    ago_ms.map_or_else(|| "has ended".to_owned(), |ms| format!("ended {} ago", about(ms)));
                let phase = phase.name().to_lowercase();
                format!(
                    "unit {shown} {ago} ({phase}); its name is free again in {}, or now: godel unit delete {shown}",
                    about(left_ms)
                )
            }
            (None, Some(view)) if view.phase.is_terminal() => {
                let phase = view.phase.name().to_lowercase();
                format!(
                    "unit {shown} has ended ({phase}) and has yet to leave its nodes; then its name is free: \
                     godel unit delete --wait {shown}"
                )
            }
            (None, Some(view)) => {
                let phase = view.phase.name().to_lowercase();
                format!("unit {shown} exists with another uid ({phase}): cancel it, or take another name")
            }
            (None, None) => format!("unit {shown} exists with another uid: it is being submitted"),
        };
        let info = [("namespace", namespace), ("name", name)];
        status::with_info(Code::AlreadyExists, status::reason::DUPLICATE_NAME, message, info)
    }

    /// A submission under a uid that is known: the first one's answer, or why it is `other`.
    fn again(&self, again: Follower, other: Option<Status>, (unit, revision): (UnitId, Revision)) {
        let Follower { spec, waiter, room } = again;
        if let Some(status) = other {
            self.context.metrics.rejected.inc();
            return answer(waiter, Err(Refused::Status(status)), room);
        }
        self.context.metrics.duplicates.inc();
        let infeasible = self.infeasible(&waiter, &spec);
        let uid = uid(&waiter, &spec);
        let submitted = Submitted { unit, uid, revision, infeasible, duplicate: true };
        answer(waiter, Ok(submitted), room);
    }

    fn infeasible(&self, waiter: &Submitter, spec: &UnitSpec) -> String {
        match waiter {
            Submitter::Unary(_) => self.core.infeasible(spec).unwrap_or_default(),
            Submitter::Stream { .. } => String::new(),
        }
    }

    /// Puts what has gathered into transactions, as many as may be under way.
    pub(super) fn flush_batch(&mut self) {
        let config = &self.context.config;
        while !self.batch.units.is_empty() && self.batches_in_flight < config.txns_in_flight_max.max(1) {
            let (mut batch, mut bytes) = (Batch::default(), 0);
            while let Some(next) = self.batch.units.front() {
                let full = batch.units.len() >= config.txn_units_max.max(1)
                    || bytes + next.op.len() > config.txn_bytes_max;
                if full && !batch.units.is_empty() {
                    break;
                }
                bytes += next.op.len();
                batch.units.extend(self.batch.units.pop_front());
            }
            let ops: Vec<Bytes> = batch.units.iter().map(|unit| unit.op.clone()).collect();
            self.written.extend(batch.units.iter().map(|unit| (unit.op.clone(), Arc::clone(&unit.spec))));
            self.context.crash.hit("dispatcher.before-commit");
            match self.pipeline.try_submit(ops, Conditions::default()) {
                Ok(Some(pending)) => {
                    for unit in &mut batch.units {
                        self.encoded.keep(&unit.spec, &std::mem::take(&mut unit.op));
                    }
                    self.batches_in_flight += 1;
                    self.ticket(pending, Ticket::Units(batch));
                }
                Ok(None) => {
                    // No room now: in front of what came later, since ids must rise.
                    while let Some(unit) = batch.units.pop_back() {
                        self.batch.units.push_front(unit);
                    }
                    return;
                }
                Err(error) => {
                    self.fail(batch, &error);
                }
            }
        }
    }

    /// The answer to a transaction of units.
    pub(super) fn on_batch(&mut self, batch: Batch, result: &Result<Receipt, TxnError>, now: Millis) {
        self.batches_in_flight -= 1;
        let committed = match result {
            Ok(committed) => committed,
            Err(error) => return self.fail(batch, error),
        };
        let answered = Instant::now();
        let mut durable = Vec::with_capacity(batch.units.len());
        for unit in batch.units {
            let PendingUnit { spec, waiter, since, room, .. } = unit;
            let (unit, revision) = (spec.id, committed.revision);
            self.edits.leave(&spec);
            self.context.metrics.submit_seconds.observe((answered - since).as_secs_f64());
            self.core.on_unit(Arc::clone(&spec), revision, (revision, committed.time_ms), now);
            self.check_owed(unit);
            self.watches.touch(&self.core, unit);
            let infeasible = self.infeasible(&waiter, &spec);
            durable.push((spec, waiter, room, infeasible));
        }
        // An answer makes room for the next item: streams stop first if these are too many.
        self.mind_streams();
        let revision = committed.revision;
        for (spec, waiter, room, infeasible) in durable {
            let (unit, uid) = (spec.id, uid(&waiter, &spec));
            answer(waiter, Ok(Submitted { unit, uid, revision, infeasible, duplicate: false }), room);
            for follower in self.followers.remove(&unit).unwrap_or_default() {
                let other = differs(&spec, &follower.spec);
                self.again(follower, other, (unit, revision));
            }
        }
    }

    /// None of the batch is durable, or nobody knows.
    fn fail(&mut self, batch: Batch, error: &TxnError) {
        let full =
            matches!(error, TxnError::Refused(refusal) if refusal.reason == TxnRefusalReason::StoreFull);
        self.written.forget(batch.units.iter().map(|unit| unit.spec.id));
        for unit in batch.units {
            let PendingUnit { spec, waiter, since, room, .. } = unit;
            self.encoded.forget(spec.id);
            self.overload.release(spec.id);
            self.core.release(&spec);
            self.edits.leave(&spec);
            let followers = self.followers.remove(&spec.id).unwrap_or_default();
            let first = Follower { spec: (*spec).clone(), waiter, room };
            for Follower { spec, waiter, room } in std::iter::once(first).chain(followers) {
                if full {
                    let item = PendingSubmission { spec, waiter, since, room, pass: None };
                    refuse_full(item, refused(error));
                } else {
                    answer(waiter, Err(Refused::Status(refused(error))), room);
                }
            }
        }
    }
}

/// A span of time as people say it: `3 min`, `2 h`.
fn about(ms: u64) -> String {
    match ms / 1_000 {
        s @ ..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

impl Follower {
    fn of(item: PendingSubmission) -> Self {
        let PendingSubmission { spec, waiter, room, .. } = item;
        Self { spec, waiter, room }
    }
}

/// Why a submission is not the unit that its uid belongs to; `None` if it is.
fn differs(known: &UnitSpec, again: &UnitSpec) -> Option<Status> {
    let found = same::differences(known, again);
    (!found.is_empty()).then(|| {
        let UnitSpec { namespace, name, uid, .. } = known;
        let message = format!(
            "uid {uid} is that of unit {namespace}/{name}; this one differs in {found}: leave the uid out, or give a new one"
        );
        duplicate_uid(message, uid)
    })
}

/// The same of a unit that is deleted, of which no more is known.
fn was_another(again: &UnitSpec, unit: UnitId) -> Status {
    let uid = &again.uid;
    let message = format!(
        "uid {uid} was that of another unit, which is over and deleted (id {unit}): leave the uid out, or give a new one"
    );
    duplicate_uid(message, uid)
}

fn duplicate_uid(message: String, uid: &str) -> Status {
    status::with_info(Code::AlreadyExists, status::reason::DUPLICATE_UID, message, [("uid", uid)])
}

/// A unary call says it to the client; on a stream nobody asks.
fn uid(waiter: &Submitter, spec: &UnitSpec) -> String {
    match waiter {
        Submitter::Unary(_) => spec.uid.clone(),
        Submitter::Stream { .. } => String::new(),
    }
}

/// There is no room: a stream tries again later, a unary call is told to.
fn refuse_full(item: PendingSubmission, status: Status) {
    match &item.waiter {
        Submitter::Unary(_) => answer(item.waiter, Err(Refused::Status(status)), item.room),
        Submitter::Stream { index, done } => {
            let (index, done) = (*index, done.clone());
            let result = Err(Refused::Full(Box::new(item), status));
            let _ = done.send(StreamItem { index, result, room: None });
        }
    }
}

/// Whoever waited may be gone.
fn answer(waiter: Submitter, result: Result<Submitted, Refused>, room: OwnedSemaphorePermit) {
    match waiter {
        Submitter::Unary(reply) => {
            let _ = reply.send(result);
            drop(room);
        }
        Submitter::Stream { index, done } => {
            let _ = done.send(StreamItem { index, result, room: Some(room) });
        }
    }
}
