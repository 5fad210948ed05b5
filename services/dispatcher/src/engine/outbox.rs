//! What the leader says and writes, carried out: transactions, streams of schedulers, watches, answers, counters and logs.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use godel_base::ids::{Revision, UnitId};
use godel_core_dispatcher::{
    Dispatcher, EvictRequest, SessionId,
    leader::{
        ChangeFailure, DispatcherNote, DispatcherOutbox, EditFailure, Edited, NotSent, NotSubmitted,
        Outgoing, PendingUnit, TxnFailure, TxnTicket, UnitBatch,
    },
    record_changes::EditOutcome,
};
use godel_domain::{
    change::Partition,
    change_line::CallCause,
    txn::TxnRefusalReason,
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};
use godel_kit::{
    informer::OwnWrites,
    status,
    txn::{Conditions, Pending, TXN_BYTES_MAX, TxnEncoder, TxnError, TxnPipeline},
};
use godel_wire::{BadField, to_proto};
use tokio::{
    sync::{mpsc, watch as watch_channel},
    time::Instant,
};
use tonic::Status;

use super::{
    TermContext,
    failures::{failed, not_submitted, overloaded, refused},
    outgoing::{AttachedScheduler, Encoded},
    overload::OverloadControl,
    watch::Watches,
};
use crate::{
    admission_room::RoomTaken,
    call_limiter::CallPermit,
    convert,
    leader_client::LeaderHandle,
    requests::{CallReply, ChangeCaller, PendingSubmission, Refused, StreamItem, SubmittedUnit, Submitter},
};

/// The outbox of one leadership.
pub(crate) struct EngineOutbox {
    pub(super) context: Arc<TermContext>,
    pub(super) pipeline: TxnPipeline,
    /// Transactions on their way to the task that waits for their answers.
    pub(super) tickets: mpsc::UnboundedSender<(Pending, TxnTicket<Self>)>,
    pub(super) handle: LeaderHandle,
    pub(super) publish: watch_channel::Sender<Option<LeaderHandle>>,
    /// Units on their way to the store, for the informer.
    pub(super) written: OwnWrites,
    pub(super) encoded: Encoded,
    pub(super) overload: OverloadControl,
    pub(super) sessions: BTreeMap<SessionId, AttachedScheduler>,
    pub(super) watches: Watches,
    pub(super) evictions: mpsc::Sender<Vec<EvictRequest>>,
}

/// Who waits for a unit to become durable.
pub(crate) struct PendingSubmitter {
    /// Who submits it, for another try.
    pub(crate) by: UnitCaller,
    pub(crate) waiter: Submitter,
    /// When the unit was admitted.
    pub(crate) since: Instant,
    /// Its share of the admission queue.
    pub(crate) room: RoomTaken,
    /// Of a call.
    pub(crate) pass: Option<CallPermit>,
}

/// Who asked for a change of queues or other named records.
pub(crate) struct Editor {
    /// For the change log.
    pub(crate) cause: Option<CallCause>,
    /// What the change log calls each record that is asked for, by position.
    pub(crate) objects: Vec<String>,
    /// Fields that could not be read.
    pub(crate) unread: Vec<BadField>,
    pub(crate) is_apply: bool,
    pub(crate) reply: CallReply<Result<Edited, Status>>,
}

impl EngineOutbox {
    /// Hands a transaction to the pipeline; its ticket goes to the task that waits for its answer.
    fn hand_over(&self, pending: Pending, ticket: TxnTicket<Self>) {
        // The task lives as long as the engine.
        let _ = self.tickets.send((pending, ticket));
    }

    /// A unit has been tried, or whatever else may mean that it waits for something now.
    fn check_owed(&mut self, core: &Dispatcher, unit: UnitId) {
        if self.overload.owes(unit) && !core.pending().is_owed(unit) {
            self.overload.release(unit);
        }
    }

    fn log_partition(core: &Dispatcher, partition: &Partition, revision: Revision) {
        let (before, read) = (core.partition().records().whole(), core.partition().records().revision());
        let is_news = (before.mode, before.by_hand) != (partition.mode, partition.by_hand);
        if is_news && revision > read {
            tracing::info!(
                mode = partition.mode.name(),
                by_hand = partition.by_hand,
                reason = partition.reason,
                "the mode in which nodes are split changed"
            );
        }
    }
}

impl DispatcherOutbox for EngineOutbox {
    type Submitter = PendingSubmitter;
    type Caller = ChangeCaller;
    type Editor = Editor;
    type Record = Bytes;
    type Txn = TxnEncoder;

    fn encode(&mut self, record: &UnitRecord) -> (Bytes, usize) {
        let op = to_proto::put_unit(record);
        let n_bytes = op.len();
        (op, n_bytes)
    }

    fn begin(&mut self) -> TxnEncoder {
        TxnEncoder::default()
    }

    fn submit(&mut self, txn: TxnEncoder, ticket: TxnTicket<Self>) -> Result<(), (TxnTicket<Self>, NotSent)> {
        let TxnEncoder { ops, preconditions } = txn;
        let conditions = Conditions { preconditions, ..Conditions::default() };
        match self.pipeline.try_submit(ops, conditions.on_behalf_of(cause(&ticket))) {
            Ok(Some(pending)) => {
                self.hand_over(pending, ticket);
                Ok(())
            }
            Ok(None) => Err((ticket, NotSent::Full)),
            Err(error) => Err((ticket, NotSent::Failed(failure(error)))),
        }
    }

    fn submit_units(&mut self, batch: UnitBatch<Self>) -> Result<(), (UnitBatch<Self>, NotSent)> {
        let ops: Vec<Bytes> = batch.units.iter().map(|unit| unit.encoded.clone()).collect();
        let sent = |unit: &PendingUnit<Self>| (unit.encoded.clone(), Arc::clone(&unit.record));
        self.written.extend(batch.units.iter().map(sent));
        self.context.crash.hit("dispatcher.before-commit");
        let why = match self.pipeline.try_submit(ops, Conditions::default()) {
            Ok(Some(pending)) => {
                for unit in &batch.units {
                    self.encoded.keep(&unit.record, &unit.encoded);
                }
                self.hand_over(pending, TxnTicket::Units(batch));
                return Ok(());
            }
            Ok(None) => NotSent::Full,
            Err(error) => NotSent::Failed(failure(error)),
        };
        self.written.forget(batch.units.iter().map(|unit| unit.record.id));
        Err((batch, why))
    }

    fn admitted(&mut self, unit: UnitId, submitter: &mut PendingSubmitter) {
        self.overload.take(unit, submitter.pass.take());
    }

    fn submitted(
        &mut self,
        core: &Dispatcher,
        submitter: PendingSubmitter,
        spec: &UnitSpec,
        unit: UnitId,
        revision: Revision,
        duplicate: bool,
    ) {
        let PendingSubmitter { waiter, since, room, .. } = submitter;
        let metrics = &self.context.metrics;
        if duplicate {
            metrics.duplicates.inc();
        } else {
            metrics.submit_seconds.observe(since.elapsed().as_secs_f64());
        }
        // A unary call says more to the client; on a stream nobody asks.
        let (uid, infeasible, warnings) = match &waiter {
            Submitter::Unary(_) => {
                let capacities = core.nodes().capacities();
                (spec.uid.clone(), capacities.infeasible(spec).unwrap_or_default(), capacities.warnings(spec))
            }
            Submitter::Stream { .. } => (String::new(), String::new(), Vec::new()),
        };
        answer(waiter, Ok(SubmittedUnit { unit, uid, revision, infeasible, warnings, duplicate }), room);
    }

    fn not_submitted(&mut self, submitter: PendingSubmitter, spec: UnitSpec, why: NotSubmitted) {
        let PendingSubmitter { by, waiter, since, room, .. } = submitter;
        let metrics = &self.context.metrics;
        let is_full = match &why {
            NotSubmitted::TooManyUnits => {
                metrics.overloaded.inc();
                true
            }
            NotSubmitted::Txn(TxnFailure::Refused(refusal)) => refusal.reason == TxnRefusalReason::StoreFull,
            NotSubmitted::Txn(TxnFailure::LeaseLost) => false,
            NotSubmitted::Unwelcome(_)
            | NotSubmitted::NameTaken(_)
            | NotSubmitted::UidTaken { .. }
            | NotSubmitted::UidUsed(_) => {
                metrics.rejected.inc();
                false
            }
        };
        let status = not_submitted(&spec, why);
        match &waiter {
            // There is no room: a stream tries again later, a unary call says so.
            Submitter::Stream { index, done } if is_full => {
                let (index, done) = (*index, done.clone());
                let item = PendingSubmission { spec, by, waiter, since, room, pass: None };
                let result = Err(Refused::Full(Box::new(item), status));
                let _ = done.send(StreamItem { index, result, room: None });
            }
            Submitter::Stream { .. } | Submitter::Unary(_) => {
                answer(waiter, Err(Refused::Status(status)), room);
            }
        }
    }

    fn answer(&mut self, caller: Self::Caller, answer: Result<Option<Revision>, ChangeFailure>) {
        // The caller may be gone.
        let _ = caller.reply.send(answer.map_err(failed));
    }

    fn edited(&mut self, editor: Editor, answer: Result<Edited, EditFailure>) {
        let Editor { unread, is_apply, reply, .. } = editor;
        let answer = answer.map_err(|why| match why {
            EditFailure::Overloaded => overloaded("too many changes of queues wait"),
            EditFailure::Refused(refusal) if is_apply => convert::queue::refusal_of_all(refusal, unread),
            EditFailure::Refused(refusal) => convert::queue::refusal_of_one(refusal, unread),
            EditFailure::TooLarge(n_bytes) => {
                let description = format!(
                    "{n_bytes} bytes in one transaction; at most {TXN_BYTES_MAX}: apply fewer at once"
                );
                status::invalid_argument([BadField::new("queues", description)])
            }
            EditFailure::Txn(failure) => refused(&failure),
        });
        // The caller may be gone.
        let _ = reply.send(answer);
    }

    fn send(&mut self, messages: Vec<Outgoing>) -> Vec<SessionId> {
        self.send_out(messages)
    }

    fn new_uid(&mut self) -> String {
        uuid::Uuid::now_v7().to_string()
    }

    fn note(&mut self, core: &Dispatcher, note: DispatcherNote<'_>) {
        match note {
            DispatcherNote::Read { revision, is_list, is_first } => {
                self.handle.read.store(revision.0, Ordering::Relaxed);
                if is_list {
                    self.watches.begin(revision);
                }
                if is_first {
                    let units = core.units().n_known();
                    tracing::info!(revision = revision.0, units, "read, dispatching");
                    self.publish.send_replace(Some(self.handle.clone()));
                }
            }
            DispatcherNote::UnitChanged(unit) => self.watches.touch(core, unit),
            DispatcherNote::UnitTried(unit) => self.check_owed(core, unit),
            DispatcherNote::UnitBound(unit) => self.overload.release(unit),
            DispatcherNote::UnitGone(unit, revision) => {
                self.watches.gone(core, unit, revision);
                self.overload.release(unit);
                self.encoded.forget(unit);
            }
            DispatcherNote::UnitFailed(unit) => {
                self.written.forget([unit]);
                self.overload.release(unit);
                self.encoded.forget(unit);
            }
            // An answer makes room for the next item: streams stop first if these are too many.
            DispatcherNote::UnitsDurable => self.mind_streams(core),
            DispatcherNote::UnitEnds(record) => tracing::info!(
                unit = record.id.0,
                name = record.spec.name,
                reason = record.status.ended.map(tracing::field::debug),
                restarting = record.status.restarting,
                whole_restarts = record.status.whole_restarts,
                "a unit is ended, or starts again as a whole"
            ),
            DispatcherNote::DaemonFollows(record) => tracing::info!(
                unit = record.id.0,
                name = record.spec.name,
                replicas = record.spec.replicas(),
                "a daemon follows the nodes"
            ),
            DispatcherNote::Surges(record) => tracing::info!(
                unit = record.id.0,
                name = record.spec.name,
                surges = record.status.surges.len(),
                "a replacement is to start, or is over"
            ),
            DispatcherNote::Partition(partition, revision) => Self::log_partition(core, partition, revision),
            DispatcherNote::Paused(pause) => {
                tracing::warn!(scope = %pause.scope, reason = pause.reason, "paused");
            }
            DispatcherNote::PauseEnded(scope) => tracing::info!(%scope, "a pause is over"),
        }
    }
}

impl Drop for EngineOutbox {
    /// Streams end with a reason; whoever waits for an answer sees its channel close.
    fn drop(&mut self) {
        self.watches.close(&crate::leader_client::term_over());
        for session in self.sessions.values() {
            session.close(crate::leader_client::term_over());
        }
    }
}

/// On whose behalf a transaction is made; `None`: on that of the dispatcher, or of those who submit, whom the units name themselves.
fn cause(ticket: &TxnTicket<EngineOutbox>) -> Option<CallCause> {
    match ticket {
        // A unit may have been asked for by its uid.
        TxnTicket::Change(record, Some(caller)) => {
            let UnitSpec { namespace, name, .. } = &record.spec;
            let cause = caller.cause.clone()?;
            Some(cause.about(namespace, [format!("unit/{namespace}/{name}")]))
        }
        TxnTicket::Delete(_, caller) | TxnTicket::Pause(_, caller) | TxnTicket::PauseEnd(_, caller) => {
            caller.cause.clone()
        }
        TxnTicket::Partition(_, caller) => caller.as_ref()?.cause.clone(),
        TxnTicket::Edit(edited, editor) => {
            let Edited { revision: _, uid: _, queues, classes, budgets, reservations } = &**edited;
            let outcomes = [queues, classes, budgets, reservations].into_iter().flatten();
            let changed = editor.objects.iter().zip(outcomes).filter(|(_, outcome)| match outcome {
                EditOutcome::Created | EditOutcome::Updated | EditOutcome::Deleted => true,
                EditOutcome::Unchanged(_) => false,
            });
            Some(editor.cause.clone()?.about("", changed.map(|(object, _)| object.clone())))
        }
        TxnTicket::Units(_)
        | TxnTicket::Change(_, None)
        | TxnTicket::Deletes(_)
        | TxnTicket::HistoryDeletes => None,
    }
}

/// Why a transaction failed, as the leader knows it.
pub(super) fn failure(error: TxnError) -> TxnFailure {
    match error {
        TxnError::Refused(refusal) => TxnFailure::Refused(refusal),
        TxnError::LeaseLost | TxnError::Closed => TxnFailure::LeaseLost,
    }
}

/// The caller may be gone.
fn answer(waiter: Submitter, result: Result<SubmittedUnit, Refused>, room: RoomTaken) {
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
