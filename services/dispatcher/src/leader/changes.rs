//! Changes of units' records: cancel, suspend, resume, scale, stop and delete, one at a time for each unit.

use std::sync::Arc;

use godel_core_dispatcher::{DeleteRefusal, read::UnitView};
use godel_domain::{
    ids::{Revision, UnitId},
    unit::UnitSpec,
    words::{count, one_or},
};
use godel_kit::{
    status,
    txn::{Conditions, TxnError},
};
use godel_proto::v1;
use godel_rules::admission::{
    scale::{ScaleRefusal, scale},
    stop::stop,
};
use godel_wire::to_proto;
use tonic::{Code, Status};

use super::{DEFERRED_MAX, DispatcherLeader, Ticket, overloaded, refused};
use crate::{
    convert,
    requests::{Change, ChangeKind},
};

/// What a change comes to.
enum Outcome {
    /// Nothing to be written.
    Answer(Result<Revision, Status>),
    /// Another change of the unit is on its way, or the watch has yet to show its last one.
    Later,
    Write(Arc<UnitSpec>, Revision),
    /// The record goes, if it has this revision.
    Delete(UnitId, Revision),
}

impl DispatcherLeader<'_> {
    pub(super) fn change(&mut self, change: Change) {
        match self.decide(&change) {
            Outcome::Answer(answer) => {
                let _ = change.reply.send(answer);
            }
            Outcome::Later if self.deferred.len() < DEFERRED_MAX => self.deferred.push_back(change),
            Outcome::Later => {
                let _ = change.reply.send(Err(overloaded("too many changes of units wait")));
            }
            Outcome::Write(spec, revision) => self.write_change(change, spec, revision),
            Outcome::Delete(unit, revision) => self.write_delete(change, unit, revision),
        }
    }

    /// Changes that waited may go on now.
    pub(super) fn retry_deferred(&mut self) {
        for _ in 0..self.deferred.len() {
            if let Some(change) = self.deferred.pop_front() {
                self.change(change);
            }
        }
    }

    fn write_change(&mut self, change: Change, spec: Arc<UnitSpec>, revision: Revision) {
        let unit = spec.id;
        let precondition = to_proto::precondition(v1::Kind::UnitSpec, unit.0, revision);
        match self.pipeline.try_submit(vec![to_proto::put_unit_spec(&spec)], precondition.into()) {
            Ok(Some(pending)) => {
                self.changing.insert(unit);
                self.ticket(pending, Ticket::Change { unit, spec, reply: Some(change.reply) });
            }
            Ok(None) if self.deferred.len() < DEFERRED_MAX => self.deferred.push_back(change),
            Ok(None) => {
                let _ = change.reply.send(Err(overloaded("too many transactions are under way")));
            }
            Err(error) => {
                let _ = change.reply.send(Err(refused(&error)));
            }
        }
    }

    /// Deletes the record of a unit that has ended, as retention would in the end.
    fn write_delete(&mut self, change: Change, unit: UnitId, revision: Revision) {
        let now = self.now();
        let op = to_proto::delete(v1::Kind::UnitSpec, unit.0);
        let precondition = to_proto::precondition(v1::Kind::UnitSpec, unit.0, revision);
        match self.pipeline.try_submit(vec![op], precondition.into()) {
            Ok(Some(pending)) => {
                self.changing.insert(unit);
                self.ticket(pending, Ticket::Delete(unit, change.reply));
            }
            Ok(None) => {
                self.core.on_delete_failed(unit, now);
                if self.deferred.len() < DEFERRED_MAX {
                    return self.deferred.push_back(change);
                }
                let _ = change.reply.send(Err(overloaded("too many transactions are under way")));
            }
            Err(error) => {
                self.core.on_delete_failed(unit, now);
                let _ = change.reply.send(Err(refused(&error)));
            }
        }
    }

    /// The dispatcher's own change of a unit. What cannot be written now is asked for again by the core.
    pub(super) fn write_end(&mut self, spec: Arc<UnitSpec>, revision: Revision) {
        let unit = spec.id;
        if self.changing.contains(&unit) {
            return;
        }
        let precondition = to_proto::precondition(v1::Kind::UnitSpec, unit.0, revision);
        let sent = self.pipeline.try_submit(vec![to_proto::put_unit_spec(&spec)], precondition.into());
        if let Ok(Some(pending)) = sent {
            tracing::info!(
                unit = unit.0,
                name = spec.name,
                reason = spec.ended.map(tracing::field::debug),
                restarting = spec.restarting,
                whole_restarts = spec.whole_restarts,
                "a unit is ended, or starts again as a whole"
            );
            self.changing.insert(unit);
            self.ticket(pending, Ticket::Change { unit, spec, reply: None });
        }
    }

    fn decide(&mut self, change: &Change) -> Outcome {
        let unit = match self.find(&change.namespace, &change.name) {
            Ok(unit) => unit,
            Err(status) => return Outcome::Answer(Err(status)),
        };
        let Some(view) = self.core.unit(unit) else {
            return Outcome::Answer(Err(Status::not_found("the unit is gone")));
        };
        if self.changing.contains(&unit) {
            return Outcome::Later;
        }
        // The revision of the whole unit, rows included, says even more than that of its record.
        let expected = change.expected_revision;
        if expected > Revision(0) && expected != view.spec_revision && expected != view.revision {
            let current = view.spec_revision.to_string();
            return Outcome::Answer(Err(status::with_info(
                Code::Aborted,
                status::reason::REVISION_MISMATCH,
                format!("the unit is at revision {current}, not {expected}"),
                [("revision", current)],
            )));
        }
        match &change.kind {
            ChangeKind::Cancel => cancel(&view),
            ChangeKind::Suspend => suspended(&view, true),
            ChangeKind::Resume => suspended(&view, false),
            ChangeKind::Scale { group, replicas } => {
                // New ordinals begin after every one ever bound: all rows up to the record must be known.
                if self.core.revision() < view.spec_revision {
                    return Outcome::Later;
                }
                scaled(&view, scale(view.spec, view.rows, group, *replicas))
            }
            ChangeKind::Delete => {
                let (revision, name) = (view.spec_revision, name(&view));
                match self.core.delete(unit) {
                    Ok(true) => Outcome::Delete(unit, revision),
                    // The watch shows that it is gone.
                    Ok(false) => Outcome::Later,
                    Err(refusal) => Outcome::Answer(Err(not_deleted(name, refusal))),
                }
            }
            ChangeKind::Stop { .. } if self.core.revision() < view.spec_revision => Outcome::Later,
            ChangeKind::Stop { ordinals } => scaled(&view, stop(view.spec, view.rows, ordinals)),
        }
    }

    /// Hands a transaction to the task that waits for its answer.
    pub(super) fn ticket(&self, pending: godel_kit::txn::Pending, ticket: Ticket) {
        // The task lives as long as this loop.
        let _ = self.tickets.send((pending, ticket));
    }

    /// The next change of the mode, if none is on its way.
    pub(super) fn next_mode(&mut self) {
        while !self.mode_writing && !self.core.is_partition_writing() {
            let Some((choice, reply)) = self.modes.pop_front() else { return };
            let now = self.now();
            match self.core.set_mode(choice, now) {
                None => {
                    let _ = reply.send(Ok(self.core.partition().1));
                }
                Some(split) => {
                    let changes = self.core.partition_changes(&split);
                    let ops = changes.iter().filter_map(to_proto::op).collect();
                    match self.pipeline.try_submit(ops, Conditions::default()) {
                        Ok(Some(pending)) => {
                            self.mode_writing = true;
                            self.ticket(pending, Ticket::Partition(changes, Some(reply)));
                        }
                        Ok(None) => {
                            self.core.on_partition_failed(now);
                            let _ = reply.send(Err(overloaded("too many transactions are under way")));
                        }
                        Err(error) => {
                            self.core.on_partition_failed(now);
                            let _ = reply.send(Err(refused(&error)));
                        }
                    }
                }
            }
        }
    }
}

fn cancel(view: &UnitView<'_>) -> Outcome {
    if view.spec.cancelled {
        return Outcome::Answer(Ok(view.spec_revision));
    }
    if view.phase.is_terminal() {
        return over(view);
    }
    let spec = UnitSpec { cancelled: true, ..(**view.spec).clone() };
    Outcome::Write(Arc::new(spec), view.spec_revision)
}

/// Suspends a unit, or resumes it.
fn suspended(view: &UnitView<'_>, suspended: bool) -> Outcome {
    if view.phase.is_terminal() {
        return over(view);
    }
    if view.spec.suspended == suspended {
        return Outcome::Answer(Ok(view.spec_revision));
    }
    let spec = UnitSpec { suspended, ..(**view.spec).clone() };
    Outcome::Write(Arc::new(spec), view.spec_revision)
}

fn scaled(view: &UnitView<'_>, scaled: Result<Option<UnitSpec>, ScaleRefusal>) -> Outcome {
    if view.phase.is_terminal() && !view.spec.cancelled {
        return over(view);
    }
    match scaled {
        Ok(Some(spec)) => Outcome::Write(Arc::new(spec), view.spec_revision),
        Ok(None) => Outcome::Answer(Ok(view.spec_revision)),
        Err(ScaleRefusal::Invalid(violations)) => {
            Outcome::Answer(Err(status::invalid_argument(convert::bad_fields(violations))))
        }
        Err(ScaleRefusal::Cancelled) => over(view),
        Err(ScaleRefusal::OrdinalsUsedUp) => Outcome::Answer(Err(status::failed_precondition(
            "ORDINALS",
            name(view),
            "so many ordinals were used up that the unit must be submitted anew",
        ))),
    }
}

fn not_deleted(name: String, refusal: DeleteRefusal) -> Status {
    let description = match refusal {
        DeleteRefusal::Unknown => return Status::not_found("the unit is gone"),
        DeleteRefusal::Phase(phase) => {
            format!("unit {name} is {}: cancel it first, or wait until it has ended", phase.name())
        }
        DeleteRefusal::Leaving(n) => {
            let (running, have) = (count(n, "running unit"), one_or(n, "has", "have"));
            format!("unit {name} has ended, and {running} {have} yet to leave: wait for that")
        }
    };
    status::failed_precondition("PHASE", name, description)
}

fn over(view: &UnitView<'_>) -> Outcome {
    let description = format!("the unit is over: {}", view.phase.name());
    Outcome::Answer(Err(status::failed_precondition("PHASE", name(view), description)))
}

fn name(view: &UnitView<'_>) -> String {
    format!("{}/{}", view.spec.namespace, view.spec.name)
}

impl DispatcherLeader<'_> {
    /// Writes what the core decided on by itself; false when it must be tried again.
    #[allow(
        clippy::result_large_err,
        reason = "the ticket comes back to its only owner, a few times a second"
    )]
    pub(super) fn write(
        &mut self,
        ops: Vec<bytes::Bytes>,
        ticket: Ticket,
    ) -> Result<(), (Ticket, Option<TxnError>)> {
        match self.pipeline.try_submit(ops, Conditions::default()) {
            Ok(Some(pending)) => {
                self.ticket(pending, ticket);
                Ok(())
            }
            Ok(None) => Err((ticket, None)),
            Err(error) => Err((ticket, Some(error))),
        }
    }
}
