//! What the leader says: records to the store, moves to the binder, questions to the dispatcher, plans to a thread of their own, answers to
//! callers. Whatever takes a while comes back as an [`OutsideOutcome`].

use std::time::Duration;

use bytes::Bytes;
use godel_base::ids::{HoldId, UnitId};
use godel_core_rescheduler::MovementRecord;
use godel_core_rescheduler_leader::{
    AbortRefusal, CallRefusal, HeardRefusal, MovesAnswered, MovesAsked, MovesUnanswered, PlanAnswer,
    PlanWork, RescheduleNote, RescheduleOutbox, RescheduleWrite, ShownPlan, WriteFailure, WriteTicket,
};
use godel_crash::CrashPoints;
use godel_domain::{
    change_line::CallCause,
    requested_move::{MadeMove, RequestedMove},
    unit::UnitRecord,
};
use godel_kit::{
    client::Directory,
    clock::SharedClock,
    leader::LeaderTerms,
    message::RECEIVED_BYTES_MAX,
    status, task,
    txn::{Conditions, TXN_BYTES_MAX, TxnError, TxnPipeline},
};
use godel_proto::v1::{self, bind_service_client::BindServiceClient, unit_service_client::UnitServiceClient};
use godel_wire::from_proto;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use super::{outside::OutsideOutcome, show};
use crate::{metrics::RescheduleMetrics, record};

/// Lease of the binder's leader.
const BINDER: &str = "binder";
/// Lease of the leading dispatcher, which knows why units wait.
const DISPATCHER: &str = "dispatcher";
/// Records that one transaction forgets.
const N_FORGOTTEN: usize = 200;

pub(crate) type QuestionReply<T> = oneshot::Sender<Result<T, Status>>;

/// Who waits for an answer of the leader.
pub(crate) struct Caller {
    /// For the change log.
    pub(super) cause: Option<CallCause>,
    pub(super) question: Question,
}

/// What a caller waits for.
pub(crate) enum Question {
    Run(QuestionReply<v1::RunPolicyResponse>),
    Show(QuestionReply<v1::PlanPolicyResponse>),
    Room(QuestionReply<v1::MakeRoomForResponse>),
    Abort(QuestionReply<MovementRecord>),
}

impl Caller {
    /// Answers that it is not done. Nobody may be left to hear it.
    pub(super) fn refuse(self, status: Status) {
        match self.question {
            Question::Run(reply) => drop(reply.send(Err(status))),
            Question::Show(reply) => drop(reply.send(Err(status))),
            Question::Room(reply) => drop(reply.send(Err(status))),
            Question::Abort(reply) => drop(reply.send(Err(status))),
        }
    }
}

/// See the module.
pub(super) struct ReschedulerOutbox {
    pub(super) terms: LeaderTerms,
    pub(super) directory: Directory,
    pub(super) outcomes: mpsc::Sender<OutsideOutcome>,
    pub(super) clock: SharedClock,
    pub(super) crash: CrashPoints,
    pub(super) metrics: RescheduleMetrics,
}

impl ReschedulerOutbox {
    /// Why it does nothing: somebody else leads, or it has not read enough yet.
    pub(super) fn not_leading(&self) -> Status {
        match self.terms.grant() {
            None => status::not_leader(self.terms.other_leader().as_deref()),
            Some(_) => Status::unavailable("the rescheduler has not read the store yet"),
        }
    }

    fn refusal(&self, refusal: CallRefusal) -> Status {
        match refusal {
            CallRefusal::NotLeading => self.not_leading(),
            CallRefusal::TooMany(n) => {
                let why = format!("{n} plans wait already");
                status::resource_exhausted(status::reason::OVERLOADED, why, Duration::from_secs(1))
            }
        }
    }

    /// Has something done elsewhere, and its outcome come back.
    fn spawn(&self, what: &'static str, outcome: impl Future<Output = OutsideOutcome> + Send + 'static) {
        let sender = self.outcomes.clone();
        task::spawn(what, async move {
            // The engine may be gone.
            let _ = sender.send(outcome.await).await;
        });
    }
}

impl RescheduleOutbox for ReschedulerOutbox {
    type Caller = Caller;

    fn write(&mut self, ticket: WriteTicket, records: Vec<RescheduleWrite>, callers: &[&Caller]) {
        let mut causes: Vec<CallCause> = callers.iter().filter_map(|caller| caller.cause.clone()).collect();
        let pipeline = self.terms.grant().map(|grant| grant.pipeline.clone());
        let (crash, metrics) = (self.crash.clone(), self.metrics.clone());
        self.spawn("rescheduler.records", async move {
            let Some(pipeline) = pipeline else {
                return OutsideOutcome::Written(ticket, Err(WriteFailure::LeaseLost));
            };
            let mut written = Ok(());
            for ops in transactions(&records) {
                crash.hit("rescheduler.before-commit");
                let conditions = Conditions::default().on_behalf_of(causes.drain(..));
                written = commit(&pipeline, ops, conditions, &metrics).await;
                if written.is_err() {
                    break;
                }
                crash.hit("rescheduler.after-commit");
            }
            OutsideOutcome::Written(ticket, written)
        });
    }

    /// Calls the binder within the retry bounds.
    fn move_units(&mut self, asked: MovesAsked) {
        let Some(fence) = self.terms.grant().map(|grant| grant.fence.clone()) else { return };
        let MovesAsked { number, asked, movement, moves, expires_ms, read, store } = asked;
        self.metrics.asked.inc_by(u64::try_from(asked.len()).unwrap_or(u64::MAX));
        self.crash.hit("rescheduler.before-move");
        let message = v1::MoveRunningUnitsRequest {
            movement,
            moves: moves.into_iter().map(requested).collect(),
            expires_ms,
            read_revision: read.0,
            store_id: store.0,
        };
        let (directory, sender) = (self.directory.clone(), self.outcomes.clone());
        task::spawn("rescheduler.moves", async move {
            let call = directory.call_leader(BINDER, |channel| {
                let message = message.clone();
                let mut client =
                    BindServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
                async move { client.move_running_units(message).await }
            });
            let answer = tokio::select! {
                () = fence.lost() => return,
                answer = call => answer,
            };
            let answer = match answer {
                Ok(answer) => Ok(answer.into_inner().answers.into_iter().map(heard).collect()),
                Err(status) => Err(unanswered(&status)),
            };
            // The engine may be gone.
            let _ = sender.send(OutsideOutcome::Moves(MovesAnswered { number, asked, answer })).await;
        });
    }

    fn plan(&mut self, mut work: PlanWork) {
        let clock = self.clock.clone();
        let started = clock.now();
        self.spawn("rescheduler.plan", async move {
            let mut done = work.unmade();
            let plan = tokio::task::spawn_blocking(move || work.make()).await;
            done.plan = plan.unwrap_or_else(|error| Err(format!("the plan was not made: {error}")));
            done.planning_ms = clock.now().since(started);
            OutsideOutcome::Plan(Box::new(done))
        });
    }

    fn ask_refusals(&mut self, gang: &UnitRecord) {
        let directory = self.directory.clone();
        let (gang, namespace, name) = (gang.id, gang.spec.namespace.clone(), gang.spec.name.clone());
        let message = v1::GetUnitRequest { namespace, name, page_size: 1, page_token: String::new() };
        self.spawn("rescheduler.gangs", async move {
            OutsideOutcome::Gang(GangRefusals {
                gang,
                refused_by: refused_by(&directory, gang, &message).await,
            })
        });
    }

    fn planned(&mut self, caller: Caller, answer: Result<PlanAnswer, CallRefusal>) {
        let PlanAnswer { shown, movement, why_not } = match answer {
            Ok(answer) => answer,
            Err(refusal) => return caller.refuse(self.refusal(refusal)),
        };
        let plan = shown.map(|plan| show_plan(&plan)).map_err(Status::failed_precondition);
        // Nobody may be left to hear it.
        match caller.question {
            Question::Run(reply) => {
                let answer = plan.map(|plan| v1::RunPolicyResponse { movement, why_not, plan: Some(plan) });
                drop(reply.send(answer));
            }
            Question::Show(reply) => {
                drop(reply.send(plan.map(|plan| v1::PlanPolicyResponse { plan: Some(plan) })));
            }
            Question::Room(reply) => {
                let plan = plan.ok();
                drop(reply.send(Ok(v1::MakeRoomForResponse { movement, why_not, plan })));
            }
            // Who wants a movement to end has no plan made.
            Question::Abort(_) => {}
        }
    }

    fn aborted(&mut self, caller: Caller, answer: Result<MovementRecord, AbortRefusal>) {
        let Question::Abort(reply) = caller.question else { return };
        let answer = answer.map_err(|refusal| match refusal {
            AbortRefusal::NotLeading => self.not_leading(),
            AbortRefusal::Unknown(name) => show::unknown("movement", &name),
            AbortRefusal::HasEnded(movement) => {
                let ended = format!("{:?}", movement.phase).to_lowercase();
                let why = format!("movement `{}` has ended already: {ended}", movement.name);
                status::failed_precondition("MOVEMENT", &movement.name, why)
            }
            AbortRefusal::NotRecorded => Status::unavailable("the end of the movement is not recorded yet"),
        });
        // Nobody may be left to hear it.
        drop(reply.send(answer));
    }

    fn note(&mut self, note: RescheduleNote<'_>) {
        let metrics = &self.metrics;
        match note {
            RescheduleNote::Leads(n_movements) => {
                metrics.leader.set(1);
                tracing::info!(n_movements, "leading");
            }
            RescheduleNote::GoesOn(movement) => tracing::info!(movement = movement.name, "goes on"),
            RescheduleNote::SteppedDown => {
                metrics.leader.set(0);
                tracing::info!("no longer the leader");
            }
            RescheduleNote::Observed(n_waiting, read) => {
                metrics.pending.set(i64::try_from(n_waiting).unwrap_or(i64::MAX));
                metrics.revision.set(i64::try_from(read.0).unwrap_or(i64::MAX));
            }
            RescheduleNote::Planned(planning_ms) => {
                metrics.plans.inc();
                metrics.planning.observe(Duration::from_millis(planning_ms).as_secs_f64());
            }
            RescheduleNote::PolicyRan { policy, cause, movement, result } => {
                tracing::info!(policy, cause = cause.name(), movement, result, "a policy ran");
            }
            RescheduleNote::RoomAsked { gang, movement, why_not } => {
                tracing::info!(unit = %gang, movement, why_not, "a gang that waits asked for room");
            }
            RescheduleNote::Recorded => {
                metrics.records.inc();
            }
            RescheduleNote::Ended(movement) => {
                let counts = movement.counts();
                metrics.moved.inc_by(u64::from(counts.moved));
                metrics.mismatched.inc_by(u64::from(counts.mismatched));
                metrics.failed.inc_by(u64::from(counts.failed));
                metrics.movements.inc();
                tracing::info!(
                    movement = movement.name,
                    phase = ?movement.phase,
                    moved = counts.moved,
                    mismatched = counts.mismatched,
                    failed = counts.failed,
                    "a movement has ended"
                );
            }
        }
    }
}

/// What the dispatcher says of a gang that waits.
pub(super) struct GangRefusals {
    pub(super) gang: UnitId,
    /// What refused it in its last try; `None`: that is not known.
    pub(super) refused_by: Option<Vec<String>>,
}

async fn refused_by(
    directory: &Directory,
    gang: UnitId,
    message: &v1::GetUnitRequest,
) -> Option<Vec<String>> {
    let answer = directory.call_leader(DISPATCHER, |channel| {
        let message = message.clone();
        let mut client = UnitServiceClient::new(channel);
        async move { client.get_unit(message).await }
    });
    match answer.await {
        Ok(answer) => {
            let unit = answer.into_inner().unit.unwrap_or_default();
            let refusals = unit.refusals.unwrap_or_default();
            // Another one may have the name by now.
            let reasons = refusals.reasons.into_iter().filter(|_| unit.unit_id == gang.0);
            Some(reasons.map(|refused| refused.plugin).collect())
        }
        Err(status) => {
            tracing::debug!(code = ?status.code(), why = status.message(), "what keeps a gang out is not known");
            None
        }
    }
}

/// Records as transactions. What is written goes into one if its bytes allow: a movement and the rates of its moves belong together.
fn transactions(records: &[RescheduleWrite]) -> Vec<Vec<Bytes>> {
    let mut transactions = Vec::new();
    let mut batch = Vec::new();
    let mut n_bytes = 0;
    for record in records {
        let op = record::encode(record);
        let len = op.len() + 4;
        let forgets = matches!(record, RescheduleWrite::MovementGone(_) | RescheduleWrite::RateGone(_));
        let is_full = n_bytes + len > TXN_BYTES_MAX || forgets && batch.len() >= N_FORGOTTEN;
        if is_full && !batch.is_empty() {
            transactions.push(std::mem::take(&mut batch));
            n_bytes = 0;
        }
        n_bytes += len;
        batch.push(op);
    }
    transactions.push(batch);
    transactions
}

async fn commit(
    pipeline: &TxnPipeline,
    ops: Vec<Bytes>,
    conditions: Conditions,
    metrics: &RescheduleMetrics,
) -> Result<(), WriteFailure> {
    let answer = match pipeline.submit(ops, conditions).await {
        Ok(pending) => pending.await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) => Ok(()),
        Err(TxnError::Refused(refusal)) => {
            metrics.records_refused.inc();
            tracing::warn!(reason = ?refusal.reason, why = refusal.message, "a record is not written");
            Err(WriteFailure::Refused)
        }
        Err(TxnError::LeaseLost | TxnError::Closed) => Err(WriteFailure::LeaseLost),
    }
}

fn requested(one: RequestedMove) -> v1::RequestedMove {
    v1::RequestedMove {
        unit_id: one.running.unit.0,
        ordinal: one.running.replica.ordinal,
        incarnation: one.running.replica.incarnation,
        to_node_id: one.to.0,
        device_mask: one.wanted.devices.0,
        zone_mask: 0,
        core_mask: 0,
    }
}

/// What the binder says to a move.
fn heard(answer: v1::MoveAnswer) -> Result<MadeMove, HeardRefusal> {
    let Some(refused) = answer.refused else {
        return Ok(MadeMove { hold: HoldId(answer.hold_id), surge: answer.surge_ordinal });
    };
    let name = refused
        .reason()
        .as_str_name()
        .trim_start_matches("REJECTION_REASON_")
        .to_lowercase()
        .replace('_', "-");
    let why = if refused.detail.is_empty() { name } else { format!("{name}: {}", refused.detail) };
    let later = refused.later;
    let reason = from_proto::move_refusal(refused).ok().map(|refusal| refusal.reason);
    Err(HeardRefusal { reason, later, why })
}

fn unanswered(status: &Status) -> MovesUnanswered {
    tracing::info!(code = ?status.code(), why = status.message(), "the binder did not answer");
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented => MovesUnanswered::Unusable(status.message().to_owned()),
        _ => MovesUnanswered::Silent,
    }
}

/// A plan as a message.
fn show_plan(shown: &ShownPlan) -> v1::ReschedulePlan {
    let ShownPlan { plan, policy, revision, planning_ms, held_back } = shown;
    let mut message = record::shown_plan(plan, policy, *revision);
    message.planning_ms = *planning_ms;
    message.held_back.clone_from(held_back);
    show::fit(&mut message.moves);
    message
}
