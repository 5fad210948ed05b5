//! One term of leadership: the task that owns the dispatcher's state.
//!
//! Woken by changes of the store, requests, answers of its own transactions and the clock, it takes in whatever
//! has gathered, then decides once and sends what follows from it. It acts only after it has read everything
//! up to the grant of its lease.

mod admit;
mod attach;
mod changes;
mod edits;
mod evict;
mod follow;
mod named;
mod outgoing;
mod overload;
mod pauses;
mod watch;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use admit::Batch;
use edits::{Edits, SentEdit};
use godel_core_dispatcher::{Dispatcher, ModeChoice, SessionId, read::Summary};
use godel_domain::{
    change::Partition,
    ids::{Epoch, IdMap, IdSet, Revision, UnitId},
    time::Millis,
    txn::TxnRefusalReason,
};
use godel_kit::{
    CancellationToken,
    client::{Directory, retry_idempotent},
    clock::SharedClock,
    crash::CrashPoints,
    informer::{FollowConfig, Informer, OwnWrites, Shared, UnreadCount},
    lease::Fence,
    message::RECEIVED_BYTES_MAX,
    status,
    txn::{Pending, Receipt, TxnError, TxnPipeline},
};
use godel_proto::v1::{self, state_service_client::StateServiceClient};
use godel_rules::lost_nodes::{self, BrakeChange};
use outgoing::{Encoded, Session};
use overload::Overload;
use tokio::sync::{Semaphore, mpsc, watch as watch_channel};
use tonic::Status;
use watch::Watches;

use crate::{
    config::Config,
    convert,
    leader_client::LeaderHandle as Handle,
    metrics::{DispatcherMetrics, N_QUEUES_SHOWN},
    requests::{Change, LeaderRequest, ListCall, ListPart, Reply, RowsPage, Schedulers, StatusAnswer},
};

/// Events of one source taken in before the next decision.
const EVENTS_PER_TURN: usize = 256;
/// Units are counted by queue no more often.
const QUEUES_SHOWN_EVERY_MS: u64 = 1_000;
/// Changes of units that wait for the watch or for another change at most.
const DEFERRED_MAX: usize = 1_024;
/// Evictions and their answers on their way at most.
const EVICT_QUEUE: usize = 64;

/// What every term needs.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) metrics: DispatcherMetrics,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) unread: UnreadCount,
}

/// The store can no longer be followed.
pub(crate) struct Broken;

/// What a transaction was for.
enum Ticket {
    Units(Batch),
    Change {
        unit: UnitId,
        spec: Arc<godel_domain::unit::UnitSpec>,
        /// `None`: the dispatcher's own.
        reply: Option<Reply<Result<Revision, Status>>>,
    },
    /// The deletion of a unit's record that somebody asked for.
    Delete(UnitId, Reply<Result<Revision, Status>>),
    Edit(Box<SentEdit>),
    Pause(Box<pauses::PauseChange>, Reply<Result<Option<Revision>, Status>>),
    Deletes(Vec<UnitId>),
    /// What a split changes.
    Partition(Vec<godel_domain::change::Change>, Option<Reply<Result<Revision, Status>>>),
}

/// An answer to a transaction.
struct Ack {
    ticket: Ticket,
    result: Result<Receipt, TxnError>,
}

struct DispatcherLeader<'a> {
    context: &'a Context,
    core: Dispatcher,
    epoch: Epoch,
    since: Revision,
    pipeline: TxnPipeline,
    /// Transactions on their way to the task that waits for their answers.
    tickets: mpsc::UnboundedSender<(Pending, Ticket)>,
    handle: Handle,
    publish: &'a watch_channel::Sender<Option<Handle>>,
    /// Units that wait for a transaction.
    batch: Batch,
    /// Units on their way to the store, for the follower.
    written: OwnWrites,
    encoded: Encoded,
    overload: Overload,
    batches_in_flight: usize,
    /// Further submissions of uids that are on their way.
    followers: IdMap<UnitId, Vec<admit::Follower>>,
    /// Units with a change on its way.
    changing: IdSet<UnitId>,
    deferred: VecDeque<Change>,
    edits: Edits,
    modes: VecDeque<(ModeChoice, Reply<Result<Revision, Status>>)>,
    mode_writing: bool,
    sessions: BTreeMap<SessionId, Session>,
    last_session: u64,
    watches: Watches,
    evictions: mpsc::Sender<Vec<godel_core_dispatcher::EvictRequest>>,
    shown: Summary,
    queues_shown_at: Option<Millis>,
}

/// Leads until the fence is lost or `stop`.
pub(crate) async fn run(
    context: &Context,
    (epoch, since, fence): (Epoch, Revision, Fence),
    publish: &watch_channel::Sender<Option<Handle>>,
    stop: CancellationToken,
) -> Result<(), Broken> {
    let over = stop.child_token();
    let _guard = over.clone().drop_guard();
    let work = lead(context, (epoch, since, fence.clone()), publish, over);
    tokio::select! {
        biased;
        () = fence.lost() => Ok(()),
        () = stop.cancelled() => Ok(()),
        ended = work => ended,
    }
}

async fn lead(
    context: &Context,
    (epoch, since, fence): (Epoch, Revision, Fence),
    publish: &watch_channel::Sender<Option<Handle>>,
    over: CancellationToken,
) -> Result<(), Broken> {
    let state = context.directory.state();
    let (last_unit_id, node_grace_ms) = start_values(context).await;
    let kinds = vec![
        v1::Kind::NodeSpec,
        v1::Kind::NodeReport,
        v1::Kind::Lease,
        v1::Kind::Partition,
        v1::Kind::PartitionBlock,
        v1::Kind::Queue,
        v1::Kind::PriorityClass,
        v1::Kind::DisruptionBudget,
        v1::Kind::Reservation,
        v1::Kind::UnitSpec,
        v1::Kind::Hold,
        v1::Kind::Pause,
        v1::Kind::Rows,
    ];
    let written = OwnWrites::default();
    let shared = Shared { written: written.clone(), unread: context.unread.clone() };
    let follower = Informer::spawn_with(state.clone(), kinds, FollowConfig::default(), shared, over.clone());
    let store = fence.store();
    let pipeline = TxnPipeline::spawn(state, fence, &context.config.txn);
    let (tickets, acks) = answers();
    let (evictions, evicted) = evict::spawn(context.directory.clone(), store, over.clone());
    let (calls_sender, calls) = mpsc::channel(context.config.calls_queued_max.max(1));
    let room = usize::try_from(context.config.admission_queue_kib).unwrap_or(usize::MAX);
    let room = Arc::new(Semaphore::new(room.clamp(64, Semaphore::MAX_PERMITS)));
    let overload = Overload::new(&context.config);
    let mut core = Dispatcher::new(context.config.core(node_grace_ms));
    core.set_last_unit_id(last_unit_id);
    let mut term = DispatcherLeader {
        context,
        core,
        epoch,
        since,
        pipeline,
        tickets,
        handle: Handle {
            calls: calls_sender,
            room,
            call_limiter: Arc::clone(&overload.call_limiter),
            store,
            read: Arc::default(),
        },
        publish,
        batch: Batch::default(),
        written,
        encoded: Encoded::default(),
        overload,
        batches_in_flight: 0,
        followers: IdMap::default(),
        changing: IdSet::default(),
        deferred: VecDeque::new(),
        edits: Edits::default(),
        modes: VecDeque::new(),
        mode_writing: false,
        sessions: BTreeMap::new(),
        last_session: 0,
        watches: Watches::new(context.config.watches_max, store),
        evictions,
        shown: Summary::default(),
        queues_shown_at: None,
    };
    term.run(Sources { follower, calls, acks, evicted }).await
}

/// Ids up to this one were used: whoever led before can write no more, so the answer is final. And the grace of lost
/// nodes, milliseconds.
async fn start_values(context: &Context) -> (UnitId, u64) {
    let policy = context.directory.policy();
    loop {
        let answer = retry_idempotent(&policy, || async {
            let mut client = StateServiceClient::new(context.directory.state())
                .max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_store_status(v1::GetStoreStatusRequest {}).await
        })
        .await;
        match answer {
            Ok(status) => {
                let status = status.into_inner();
                let grace_ms = match status.node_grace_ms {
                    // A state that does not say.
                    0 => lost_nodes::Config::default().grace_ms,
                    grace_ms => grace_ms,
                };
                return (UnitId(status.last_unit_id), grace_ms);
            }
            // The lease is lost soon if state stays away.
            Err(failure) => tracing::info!(code = ?failure.code(), "state does not answer, asking again"),
        }
    }
}

struct Sources {
    follower: Informer,
    calls: mpsc::Receiver<LeaderRequest>,
    acks: mpsc::UnboundedReceiver<Ack>,
    evicted: mpsc::Receiver<evict::Answer>,
}

/// Waits for transactions in their order and passes their answers on. Bounded by the pipeline.
fn answers() -> (mpsc::UnboundedSender<(Pending, Ticket)>, mpsc::UnboundedReceiver<Ack>) {
    let (tickets, mut waiting) = mpsc::unbounded_channel::<(Pending, Ticket)>();
    let (sender, acks) = mpsc::unbounded_channel();
    godel_kit::task::spawn("answers", async move {
        while let Some((pending, ticket)) = waiting.recv().await {
            let result = pending.await;
            if sender.send(Ack { ticket, result }).is_err() {
                return;
            }
        }
    });
    (tickets, acks)
}

impl DispatcherLeader<'_> {
    async fn run(&mut self, mut from: Sources) -> Result<(), Broken> {
        loop {
            let wake = self.wake_in();
            let mut follower_over = false;
            tokio::select! {
                biased;
                Some(ack) = from.acks.recv() => self.on_ack(ack),
                Some(answer) = from.evicted.recv() => self.on_evicted(answer),
                event = from.follower.next() => match event {
                    Some(event) => self.on_follow(event),
                    None => follower_over = true,
                },
                Some(call) = from.calls.recv() => self.on_call(call),
                () = tokio::time::sleep(wake) => {}
            }
            if follower_over {
                return Err(Broken);
            }
            self.drain(&mut from);
            self.act();
        }
    }

    /// Whatever has gathered, each source in turn.
    fn drain(&mut self, from: &mut Sources) {
        for _ in 0..EVENTS_PER_TURN {
            let Ok(ack) = from.acks.try_recv() else { break };
            self.on_ack(ack);
        }
        for _ in 0..EVENTS_PER_TURN {
            let Ok(answer) = from.evicted.try_recv() else { break };
            self.on_evicted(answer);
        }
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = from.follower.try_next() else { break };
            self.on_follow(event);
        }
        for _ in 0..EVENTS_PER_TURN {
            let Ok(call) = from.calls.try_recv() else { break };
            self.on_call(call);
        }
    }

    /// Decides once, and sends what follows.
    fn act(&mut self) {
        // A process that was stopped for a while may no longer lead before any timer has fired.
        if self.core.is_loaded() && self.pipeline.fence().is_valid() {
            self.retry_deferred();
            self.next_mode();
            self.go_on_with_edits();
            self.flush_batch();
            let now = self.now();
            self.core.set_wall(self.context.clock.wall_ms());
            let actions = self.core.step(now);
            self.log_brake();
            self.carry_out(actions);
            self.update_limits();
        }
        self.watches.flush(&self.core, self.context.clock.now());
        self.context.metrics.watches.set(i64::try_from(self.watches.len()).unwrap_or(i64::MAX));
        let shown = self.core.summary();
        self.context.metrics.follow(&self.shown, &shown);
        self.shown = shown;
        self.context.metrics.waited(&self.core.take_waits());
        let now = self.now();
        if self.queues_shown_at.is_none_or(|at| now.since(at) >= QUEUES_SHOWN_EVERY_MS) {
            self.queues_shown_at = Some(now);
            self.context.metrics.show_queues(self.core.units_by_queue(N_QUEUES_SHOWN));
        }
    }

    fn now(&self) -> Millis {
        self.context.clock.now()
    }

    fn wake_in(&self) -> Duration {
        let now = self.now();
        let wakes = [self.core.next_wake(now), self.watches.next_wake(now)];
        let wake = wakes.into_iter().flatten().min().map_or(1_000, |at| at.since(now));
        Duration::from_millis(wake.min(1_000))
    }

    fn on_call(&mut self, call: LeaderRequest) {
        match call {
            LeaderRequest::Submit(items) => items.into_iter().for_each(|item| self.admit(item)),
            LeaderRequest::Change(change) => self.change(change),
            LeaderRequest::Get { namespace, name, page, reply } => {
                let answer = self.resolve(&namespace, &name).and_then(|unit| self.show(unit, &page));
                // Whoever asked may be gone.
                let _ = reply.send(answer);
            }
            LeaderRequest::List(call) => self.list(call),
            LeaderRequest::Watch(call) => self.watch(call),
            LeaderRequest::Attach(call) => self.attach(call),
            LeaderRequest::FromScheduler(session, message) => self.on_scheduler(session, message),
            LeaderRequest::Detach(session) => {
                self.sessions.remove(&session);
                self.core.on_detached(session);
            }
            LeaderRequest::Edit(call) => self.edit(call),
            LeaderRequest::GetQueue { name, reply } => {
                let _ = reply.send(self.show_queue(&name));
            }
            LeaderRequest::ListQueues(call) => self.list_queues(call),
            LeaderRequest::GetPriorityClass { name, reply } => {
                let _ = reply.send(self.show_class(&name));
            }
            LeaderRequest::ListPriorityClasses(call) => self.list_classes(call),
            LeaderRequest::GetBudget { name, reply } => {
                let _ = reply.send(self.show_budget(&name));
            }
            LeaderRequest::ListBudgets(call) => self.list_budgets(call),
            LeaderRequest::GetReservation { name, reply } => {
                let _ = reply.send(self.show_reservation(&name));
            }
            LeaderRequest::ListReservations(call) => self.list_reservations(call),
            LeaderRequest::Schedulers(reply) => {
                let answer = Schedulers { views: self.core.schedulers(), mode: self.core.mode() };
                let _ = reply.send(answer);
            }
            LeaderRequest::Counted(counted) => self.core.on_counted(counted),
            LeaderRequest::SetMode { choice, reply } => {
                if self.modes.len() < DEFERRED_MAX {
                    self.modes.push_back((choice, reply));
                } else {
                    let _ = reply.send(Err(overloaded("too many changes of the mode wait")));
                }
            }
            LeaderRequest::Drain(node, reply) => {
                let _ = reply.send(convert::drain(&self.core, node));
            }
            LeaderRequest::ResumeEvictions(reply) => {
                let resumed = self.core.resume_evictions();
                let _ = reply.send((resumed, self.core.summary()));
            }
            LeaderRequest::SetPause(call) => self.set_pause(call),
            LeaderRequest::Status(reply) => {
                let partition = Partition { slots: Vec::new(), ..self.core.partition().0.clone() };
                let summary = self.core.summary();
                let pauses = self.core.pauses().iter().cloned().collect();
                let (epoch, allocated) = (self.epoch, self.core.allocated());
                let _ = reply.send(StatusAnswer { summary, pauses, epoch, partition, allocated });
            }
        }
    }

    fn on_ack(&mut self, Ack { ticket, result }: Ack) {
        match &result {
            Ok(_) => {
                self.context.metrics.txns.inc();
                // A test may kill the process where the store has it and nobody was told.
                self.context.crash.hit("dispatcher.after-commit");
            }
            Err(error) => {
                self.context.metrics.txns_refused.inc();
                tracing::debug!(%error, "transaction failed");
            }
        }
        let now = self.now();
        match ticket {
            Ticket::Units(batch) => self.on_batch(batch, &result, now),
            Ticket::Change { unit, spec, reply } => {
                self.changing.remove(&unit);
                if let Ok(committed) = result {
                    self.core.on_unit(spec, committed.revision, (committed.revision, committed.time_ms), now);
                    self.watches.touch(&self.core, unit);
                }
                if let Some(reply) = reply {
                    let _ = reply
                        .send(result.map(|committed| committed.revision).map_err(|error| refused(&error)));
                }
            }
            Ticket::Delete(unit, reply) => {
                self.changing.remove(&unit);
                match &result {
                    Ok(committed) => self.forget(unit, committed.revision, now),
                    Err(_) => self.core.on_delete_failed(unit, now),
                }
                let _ =
                    reply.send(result.map(|committed| committed.revision).map_err(|error| refused(&error)));
            }
            Ticket::Pause(change, reply) => self.on_pause_written(*change, reply, &result),
            Ticket::Edit(sent) => self.on_edit(*sent, result),
            Ticket::Deletes(units) => {
                for unit in units {
                    match result {
                        Ok(committed) => self.forget(unit, committed.revision, now),
                        Err(_) => self.core.on_delete_failed(unit, now),
                    }
                }
            }
            Ticket::Partition(changes, reply) => {
                match &result {
                    Ok(committed) => self.on_partition_written(changes, committed.revision),
                    Err(_) => self.core.on_partition_failed(now),
                }
                if let Some(reply) = reply {
                    self.mode_writing = false;
                    let _ = reply
                        .send(result.map(|committed| committed.revision).map_err(|error| refused(&error)));
                }
            }
        }
    }

    fn log_brake(&mut self) {
        for change in self.core.take_brake_changes() {
            match change {
                BrakeChange::Engaged { lost, nodes } => tracing::error!(
                    lost,
                    nodes,
                    "so many nodes were lost at once that nothing is evicted from them: look why, then \
                     `godel node resume-evictions`, or wait until they are back"
                ),
                BrakeChange::Released => tracing::info!("evictions from lost nodes go on"),
            }
        }
    }

    fn on_evicted(&mut self, answer: evict::Answer) {
        for (unit, reason) in answer.units {
            self.core.on_evict_answer(unit, reason, answer.done);
        }
    }

    fn show(&self, unit: UnitId, page: &RowsPage) -> Result<v1::GetUnitResponse, Status> {
        let Some(view) = self.core.unit(unit) else { return Ok(v1::GetUnitResponse::default()) };
        let from = page.from(unit)?;
        let (running_units, next) = convert::running_units(&self.core, &view, from, page.n_max);
        Ok(v1::GetUnitResponse {
            unit: Some(convert::unit(&view)),
            running_units,
            next_page_token: next.map(|next| RowsPage::token(unit, next)).unwrap_or_default(),
        })
    }

    fn list(&self, call: ListCall) {
        let ListCall { filter, after, n_scan, n_units, reply } = call;
        let chunk = self.core.list(&filter, &after, n_scan, n_units);
        let part = ListPart {
            units: chunk
                .units
                .iter()
                .filter_map(|unit| self.core.unit(*unit))
                .map(|view| convert::unit(&view))
                .collect(),
            n_matched: chunk.n_matched,
            next: chunk.next,
            total: self.core.total(&filter),
            revision: self.core.revision(),
        };
        let _ = reply.send(part);
    }

    fn watch(&mut self, call: crate::requests::WatchCall) {
        let only = match call.name.as_str() {
            "" => None,
            name => match self.resolve(&call.namespace, name) {
                Ok(unit) => Some(unit),
                Err(status) => {
                    let _ = call.messages.try_send(Err(status));
                    return;
                }
            },
        };
        let now = self.now();
        self.watches.open(&self.core, call, only, now);
    }
}

impl Drop for DispatcherLeader<'_> {
    /// Streams end with a reason; whoever waits for an answer sees its channel close.
    fn drop(&mut self) {
        self.watches.close(&crate::leader_client::term_over());
        for session in self.sessions.values() {
            session.close(crate::leader_client::term_over());
        }
    }
}

fn overloaded(message: &str) -> Status {
    status::resource_exhausted(status::reason::OVERLOADED, message, Duration::from_millis(100))
}

/// What a client hears of a failed transaction.
fn refused(error: &TxnError) -> Status {
    match error {
        TxnError::LeaseLost | TxnError::Closed => crate::leader_client::term_over(),
        TxnError::Refused(refusal) => match refusal.reason {
            TxnRefusalReason::StoreFull => status::resource_exhausted(
                status::reason::STORE_FULL,
                "the store's disk is full",
                Duration::from_secs(1),
            ),
            TxnRefusalReason::StaleEpoch | TxnRefusalReason::StoreChanged => {
                crate::leader_client::term_over()
            }
            TxnRefusalReason::Precondition | TxnRefusalReason::FutureRevision => status::with_info(
                tonic::Code::Aborted,
                status::reason::REVISION_MISMATCH,
                "the record changed meanwhile",
                [("revision", refusal.revision.to_string())],
            ),
            TxnRefusalReason::Forbidden
            | TxnRefusalReason::Invalid
            | TxnRefusalReason::RowConflict
            | TxnRefusalReason::NodeChanged => {
                tracing::error!(reason = ?refusal.reason, why = refusal.message, "the store refused a transaction");
                Status::internal("the store refused the transaction")
            }
        },
    }
}
