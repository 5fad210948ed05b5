//! What the leader wants done, done: calls of the dispatcher and of nodes, records, pauses, and answers.
//!
//! Calls are repeated until the dispatcher accepts or refuses them for good, or this adapter no longer leads; those for clients for a while only.

use std::{sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_core_yarn::{adapter::MASTER, ids::YarnApplicationId};
use godel_core_yarn_leader::{
    CHANGE_LIMIT_MS, ChangedField, JobTicket, LaunchRefusal, MasterLaunch, OrderedPause, RecordsFailure,
    UnitCall, UnitCallRefusal, UnitCallRefused, UnitWaits, YarnNote, YarnOrder, YarnWrite, unit_name,
    unit_name_of,
};
use godel_domain::{
    change::Change, change_line::CallCause, records::Record, refusals::RefusalCount, txn::TxnBuilder as _,
};
use godel_kit::{
    client::{Backoff, Channel},
    message::RECEIVED_BYTES_MAX,
    task,
    txn::{Conditions, TxnEncoder, TxnError},
};
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use godel_wire::to_proto;
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status};

use super::{Orders, Shared, Term};
use crate::{record, unit};

/// Name of the dispatcher's lease.
const DISPATCHER: &str = "dispatcher";
/// Pauses between calls that fail: the first one at most, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Failures in a row after which pauses do not become longer.
const N_PAUSES: u32 = 10;
/// One call of a node.
const LAUNCH_LIMIT: Duration = Duration::from_secs(15);
/// One answer of the dispatcher about what a unit waits for.
const PLACE_LIMIT: Duration = Duration::from_secs(2);

impl Shared {
    /// Carries out what the leader wants done. What needs to lead ends with the term.
    pub(super) fn carry(self: &Arc<Self>, orders: Orders, term: Option<&Term>) {
        for order in orders {
            match (order, term) {
                // Who does not wait any more needs no answer.
                (YarnOrder::Answer(waiter, answer), _) => drop(waiter.send(answer)),
                (YarnOrder::AnswerMaster(waiter, answer), _) => drop(waiter.send(answer)),
                (YarnOrder::Note(note), _) => self.note(note),
                (YarnOrder::Write(ticket, writes, causes), Some(term)) => {
                    let lost = Err(RecordsFailure::LeaseLost);
                    let writing = RecordsUnderWay { shared: Arc::clone(self), ticket, answer: lost };
                    // Who leads next begins when it is known what is written.
                    task::spawn("yarn.records", writing.carry(writes, causes, term.clone()));
                }
                (YarnOrder::Write(ticket, ..), None) => {
                    self.run(|leader, at, out| {
                        leader.work().on_written(ticket, Err(RecordsFailure::LeaseLost), at, out);
                    });
                }
                (YarnOrder::Call(ticket, call), Some(term)) => {
                    self.spawn("yarn.unit", term, |shared| shared.call_for(ticket, call));
                }
                (YarnOrder::Launch(ticket, launch), Some(term)) => {
                    self.spawn("yarn.launch", term, |shared| shared.launch(ticket, *launch, false));
                }
                (YarnOrder::Stop(ticket, launch), Some(term)) => {
                    self.spawn("yarn.stop", term, |shared| shared.launch(ticket, *launch, true));
                }
                (YarnOrder::Pause(ticket, pause), Some(term)) => {
                    self.spawn("yarn.pause", term, |shared| shared.pause(ticket, pause));
                }
                (YarnOrder::AskPlaces(ticket, ids), Some(term)) => {
                    self.spawn("yarn.waits", term, |shared| shared.ask_places(ticket, ids));
                }
                (
                    YarnOrder::Call(..)
                    | YarnOrder::Launch(..)
                    | YarnOrder::Stop(..)
                    | YarnOrder::Pause(..)
                    | YarnOrder::AskPlaces(..),
                    None,
                ) => {}
            }
        }
    }

    /// Does something until the term is over.
    fn spawn<F>(self: &Arc<Self>, name: &'static str, term: &Term, what: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, what) = (term.stop.clone(), what(Arc::clone(self)));
        task::spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = what => {}
            }
        });
    }

    fn note(&self, note: YarnNote) {
        let metrics = &self.context.metrics;
        match note {
            YarnNote::Leads(n_applications) => {
                metrics.leader.set(1);
                tracing::info!(n_applications, "leading");
            }
            YarnNote::SteppedDown => {
                metrics.leader.set(0);
                tracing::info!("no longer the leader");
            }
            YarnNote::Submitted => {
                metrics.submitted.inc();
            }
            YarnNote::Launched => {
                metrics.launched.inc();
            }
            YarnNote::LaunchFailed(attempt, why) => {
                metrics.launches_failed.inc();
                tracing::warn!(%attempt, why, "the application master could not be started");
            }
            YarnNote::StopFailed(attempt, why) => {
                tracing::warn!(%attempt, why, "the application master could not be stopped");
            }
            YarnNote::Refused(application, what, why) => tracing::warn!(%application, why, "{what}"),
        }
    }

    async fn pause(self: Arc<Self>, ticket: JobTicket, pause: OrderedPause) {
        let mut backoff = Backoff::new(PAUSE.0, Duration::from_millis(pause.most_ms));
        for _ in 0..pause.n_before.min(N_PAUSES) {
            backoff.pause();
        }
        sleep(backoff.pause()).await;
        self.run(|leader, at, out| leader.work().on_paused(ticket, at, out));
    }

    /// Has a node start or stop a master.
    async fn launch(self: Arc<Self>, ticket: JobTicket, launch: MasterLaunch, is_stop: bool) {
        let (attempt, node) = (launch.attempt, launch.node.name.clone());
        let launcher = &self.context.launcher;
        let answer =
            async { if is_stop { launcher.stop(launch).await } else { launcher.launch(launch).await } };
        let answer = timeout(LAUNCH_LIMIT, answer)
            .await
            .unwrap_or_else(|_| Err(LaunchRefusal::Unavailable(format!("node {node} did not answer"))));
        match &answer {
            Err(LaunchRefusal::Unavailable(why)) => {
                tracing::debug!(%attempt, node, why, "calling the node of the application master again");
            }
            Ok(()) | Err(_) if is_stop => {}
            Ok(()) | Err(_) => self.context.crash.hit("yarn.after-launch"),
        }
        self.run(|leader, at, out| leader.work().on_launched(ticket, answer, at, out));
    }

    /// Calls the leading dispatcher until it answers for good.
    async fn call<T, F, Fut>(&self, op: F) -> Result<T, Status>
    where
        F: Fn(UnitServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        loop {
            let answer = {
                let _permit =
                    self.calls.acquire().await.map_err(|_| Status::cancelled("the adapter stops"))?;
                let client = |channel: Channel| {
                    op(UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
                };
                self.context.directory.call_leader(DISPATCHER, client).await
            };
            match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if is_passing(&status) => {
                    self.context.metrics.calls_retried.inc();
                    tracing::debug!(code = ?status.code(), why = status.message(), "calling the dispatcher again");
                    sleep(backoff.pause()).await;
                }
                Err(status) => {
                    self.context.metrics.calls_refused.inc();
                    return Err(status);
                }
            }
        }
    }

    /// Makes a call about a unit.
    async fn call_for(self: Arc<Self>, ticket: JobTicket, call: UnitCall) {
        let crash_point = match &call {
            UnitCall::Submit(submission) if submission.side == MASTER => Some("yarn.after-submit"),
            UnitCall::Grow(_) => Some("yarn.after-grow"),
            _ => None,
        };
        let answer = if let UnitCall::Change(..) = call {
            // The leader has given it up by then.
            let limit = Duration::from_millis(CHANGE_LIMIT_MS);
            let Ok(answer) = timeout(limit, self.called(call)).await else { return };
            answer
        } else {
            self.called(call).await
        };
        if let Some(crash_point) = crash_point {
            self.context.crash.hit(crash_point);
        }
        let answer = answer.map(Revision).map_err(|status| UnitCallRefused {
            reason: match status.code() {
                Code::NotFound => UnitCallRefusal::Gone,
                Code::FailedPrecondition => UnitCallRefusal::NotNow,
                Code::InvalidArgument => UnitCallRefusal::Invalid,
                _ => UnitCallRefusal::Other,
            },
            why: status.message().to_owned(),
        });
        self.run(|leader, at, out| leader.work().on_called(ticket, answer, at, out));
    }

    /// The revision of what a call has written.
    async fn called(&self, call: UnitCall) -> Result<u64, Status> {
        let config = &self.context.config;
        let namespace = config.namespace.clone();
        let update = match call {
            UnitCall::Submit(submission) => {
                let spec = Some(unit::unit_spec(config, &submission));
                let request = v1::SubmitUnitRequest { unit: spec };
                let answer = self.call(async |mut client| client.submit_unit(request.clone()).await);
                return Ok(answer.await?.revision);
            }
            UnitCall::Retry(id, avoided) => {
                let request = v1::RetryUnitRequest {
                    namespace,
                    name: unit_name(id),
                    ordinals: vec![MASTER],
                    preferred_nodes: unit::preferred(&avoided),
                    ..v1::RetryUnitRequest::default()
                };
                let answer = self.call(async |mut client| client.retry_unit(request.clone()).await);
                return Ok(answer.await?.revision);
            }
            UnitCall::Cancel(id, side) => {
                let name = unit_name_of(id, side);
                let request = v1::CancelUnitRequest { namespace, name, expected_revision: 0 };
                let answer = self.call(async |mut client| client.cancel_unit(request.clone()).await);
                return Ok(answer.await?.revision);
            }
            UnitCall::Change(record, field) => {
                let mut spec = to_proto::unit_spec(&record.spec);
                match field {
                    ChangedField::Queue(queue) => spec.queue = queue,
                    ChangedField::Priority(priority) => spec.priority = Some(priority),
                }
                v1::UpdateUnitRequest { unit: Some(spec), ..v1::UpdateUnitRequest::default() }
            }
            UnitCall::Grow(growth) => {
                let groups = Some(unit::groups(config, growth));
                v1::UpdateUnitRequest { groups, ..v1::UpdateUnitRequest::default() }
            }
            UnitCall::Release(id, side, released_ordinals) => {
                let name = unit_name_of(id, side);
                let changes =
                    v1::TaskGroupChanges { namespace, name, released_ordinals, ..Default::default() };
                v1::UpdateUnitRequest { groups: Some(changes), ..v1::UpdateUnitRequest::default() }
            }
        };
        let answer = self.call(async |mut client| client.update_unit(update.clone()).await);
        Ok(answer.await?.revision)
    }

    /// Asks what keeps units waiting, one after the other. While the dispatcher does not answer, what it said last stands.
    async fn ask_places(self: Arc<Self>, ticket: JobTicket, ids: Vec<YarnApplicationId>) {
        for id in ids {
            if let Some(unit) = self.ask_place(id).await {
                let waits = unit_waits(unit);
                self.run(|leader, _, _| leader.work().on_place(ticket, id, &waits));
            }
        }
        self.run(|leader, _, _| leader.work().on_looked(ticket));
    }

    async fn ask_place(&self, id: YarnApplicationId) -> Option<v1::Unit> {
        let request = v1::GetUnitRequest {
            namespace: self.context.config.namespace.clone(),
            name: unit_name(id),
            page_size: 1,
            ..v1::GetUnitRequest::default()
        };
        let answer = self.context.directory.call_leader(DISPATCHER, |channel: Channel| {
            let (mut client, request) = (UnitServiceClient::new(channel), request.clone());
            async move { client.get_unit(request).await }
        });
        timeout(PLACE_LIMIT, answer).await.ok()?.ok()?.into_inner().unit
    }
}

/// A transaction with records. The leader is answered when it is dropped: whoever ends before the store has answered has lost track of it.
struct RecordsUnderWay {
    shared: Arc<Shared>,
    ticket: JobTicket,
    answer: Result<(), RecordsFailure>,
}

impl RecordsUnderWay {
    /// Writes records in one transaction, with the lines of the change log for those on whose behalf they have changed.
    async fn carry(mut self, writes: Vec<YarnWrite>, causes: Vec<CallCause>, term: Term) {
        let is_application = |write: &&YarnWrite| matches!(write, YarnWrite::Application(..));
        let n_records = writes.iter().filter(is_application).count();
        let mut encoder = TxnEncoder::default();
        for write in writes {
            match write {
                YarnWrite::Application(record, notes) => encoder.ops.push(record::put(*record, &notes)),
                YarnWrite::ApplicationGone(id) => {
                    encoder.ops.push(to_proto::delete_named(v1::Kind::YarnApplication, &id.to_string()));
                }
                YarnWrite::Keys(keys) => {
                    encoder.push(&Change::Put(Record::YarnKeys(keys)));
                }
            }
        }
        let Shared { context, quiet, .. } = &*self.shared;
        context.crash.hit("yarn.before-commit");
        let answer = match term.pipeline.submit(encoder.ops, Conditions::default().on_behalf_of(causes)).await
        {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        self.answer = match answer {
            Ok(_) => {
                context.crash.hit("yarn.after-commit");
                context.metrics.records.inc_by(u64::try_from(n_records).unwrap_or(u64::MAX));
                Ok(())
            }
            Err(TxnError::Refused(refusal)) => {
                context.metrics.records_refused.inc();
                if quiet.may_speak() {
                    tracing::warn!(reason = ?refusal.reason, why = refusal.message, "records of applications are not written");
                }
                Err(RecordsFailure::Refused)
            }
            Err(TxnError::LeaseLost | TxnError::Closed) => Err(RecordsFailure::LeaseLost),
        };
    }
}

impl Drop for RecordsUnderWay {
    fn drop(&mut self) {
        let (ticket, answer) = (self.ticket, self.answer);
        self.shared.run(|leader, at, out| leader.work().on_written(ticket, answer, at, out));
        self.shared.written.notify_one();
    }
}

/// Why a unit waits.
fn unit_waits(unit: v1::Unit) -> UnitWaits {
    let refusals = unit.refusals.unwrap_or_default();
    let reason =
        |of: v1::RefusalCount| RefusalCount { plugin: of.plugin.into(), reason: of.reason, nodes: of.nodes };
    UnitWaits {
        reasons: refusals.reasons.into_iter().map(reason).collect(),
        nearest_miss: refusals.nearest_miss,
        waits_for: unit.waits_for,
        queue: unit.spec.map(|spec| spec.queue).unwrap_or_default(),
    }
}

/// Whether the same call may succeed later.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Cancelled
            | Code::Unknown
    )
}
