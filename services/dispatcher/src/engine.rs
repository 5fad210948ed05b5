//! One term of leadership: the task that owns the leading dispatcher.
//!
//! Woken by changes of the store, requests, answers of its own transactions and the clock, it takes in whatever
//! has gathered, then decides once and sends what follows from it. It begins with what it has read as a standby
//! ([`crate::standby`]), and acts only after it has read everything up to the grant of its lease.

mod evict;
mod failures;
mod outbox;
mod outgoing;
mod overload;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use godel_base::{ids::Epoch, time::Millis};
use godel_core_dispatcher::{
    AttachRefusal, SessionId,
    leader::{DispatcherLeader, DispatcherLeaderConfig, EditRequest, TxnTicket, UnitSubmission},
    read::Summary,
};
use godel_domain::change_line::LINE_BYTES_MAX;
use godel_kit::{
    CancellationToken,
    client::Directory,
    clock::SharedClock,
    informer::{FollowEvent, Informer, UnreadCount},
    leader::LeaderGrant,
    status,
    txn::{Pending, Receipt, TXN_BYTES_MAX, TxnError},
};
use godel_proto::v1;
use godel_rules::lost_nodes::BrakeChange;
use tokio::sync::{mpsc, watch as watch_channel};

use self::{
    outbox::failure,
    outgoing::{AttachedScheduler, Encoded},
    overload::OverloadControl,
    watch::Watches,
};
use godel_crash::CrashPoints;

use crate::{
    admission_room::AdmissionRoom,
    config::Config,
    leader_client::LeaderHandle,
    metrics::{DispatcherMetrics, N_QUEUES_SHOWN},
    pages,
    requests::{AttachCall, LeaderRequest, PendingSubmission, SchedulerMessage, WatchCall},
    standby::{Standby, start_values},
};

pub(crate) use self::{
    failures::unresolved,
    outbox::{Editor, EngineOutbox, PendingSubmitter},
};

/// Events of one source taken in before the next decision.
const EVENTS_PER_TURN: usize = 256;
/// Units are counted by queue no more often.
const QUEUES_SHOWN_EVERY_MS: u64 = 1_000;
/// Evictions and their answers on their way at most.
const EVICT_QUEUE: usize = 64;

/// What every term needs.
pub(crate) struct TermContext {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) metrics: DispatcherMetrics,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) unread: UnreadCount,
}

/// The store can no longer be followed.
pub(crate) struct Broken;

/// An answer to a transaction.
struct Ack {
    ticket: TxnTicket<EngineOutbox>,
    result: Result<Receipt, TxnError>,
}

struct Engine {
    context: Arc<TermContext>,
    leader: DispatcherLeader<EngineOutbox>,
    out: EngineOutbox,
    epoch: Epoch,
    last_session: u64,
    shown: Summary,
    queues_shown_at: Option<Millis>,
}

/// Leads until the fence is lost or `stop`, on what the standby has read.
pub(crate) async fn run(
    context: &Arc<TermContext>,
    grant: &LeaderGrant,
    standby: Standby,
    publish: &watch_channel::Sender<Option<LeaderHandle>>,
    stop: CancellationToken,
) -> Result<(), Broken> {
    let over = stop.child_token();
    let _guard = over.clone().drop_guard();
    let work = lead(context, grant, standby, publish, over);
    tokio::select! {
        biased;
        () = grant.fence.lost() => Ok(()),
        () = stop.cancelled() => Ok(()),
        ended = work => ended,
    }
}

async fn lead(
    context: &Arc<TermContext>,
    LeaderGrant { fence, since, pipeline }: &LeaderGrant,
    standby: Standby,
    publish: &watch_channel::Sender<Option<LeaderHandle>>,
    over: CancellationToken,
) -> Result<(), Broken> {
    let (store, start) = (fence.store(), start_values(context).await);
    let standby = if standby.store.may_be(store) && standby.node_grace_ms == start.node_grace_ms {
        standby
    } else {
        // What it has read is of another store, or another state.
        Standby::begin(Arc::clone(context), over.clone()).await
    };
    let Standby { core, follower, written, read, .. } = standby;
    let (tickets, acks) = answers();
    let (evictions, evicted) = evict::spawn(context.directory.clone(), store, over.clone());
    let (calls_sender, calls) = mpsc::channel(context.config.calls_queued_max.max(1));
    let room = usize::try_from(context.config.admission_queue_kib).unwrap_or(usize::MAX);
    let room = AdmissionRoom::new(room.max(64));
    let overload = OverloadControl::new(&context.config);
    let mut leader = DispatcherLeader::new(core, start.last_unit_id, leader_config(&context.config));
    leader.lead(*since);
    let handle = LeaderHandle {
        calls: calls_sender,
        room,
        call_limiter: Arc::clone(&overload.call_limiter),
        store,
        epoch: fence.epoch(),
        read: Arc::default(),
    };
    let out = EngineOutbox {
        context: Arc::clone(context),
        pipeline: pipeline.clone(),
        tickets,
        handle,
        publish: publish.clone(),
        written,
        encoded: Encoded::default(),
        overload,
        sessions: BTreeMap::new(),
        watches: Watches::new(context.config.watches_max, store),
        evictions,
    };
    let mut engine = Engine {
        context: Arc::clone(context),
        leader,
        out,
        epoch: fence.epoch(),
        last_session: 0,
        shown: Summary::default(),
        queues_shown_at: None,
    };
    if let Some(revision) = read {
        // Perhaps nothing comes for a while.
        engine.on_follow(FollowEvent::Synced { revision });
    }
    engine.run(Sources { follower, calls, acks, evicted }).await
}

fn leader_config(config: &Config) -> DispatcherLeaderConfig {
    DispatcherLeaderConfig {
        units_max: config.units_max,
        txn_units_max: config.txn_units_max,
        txn_bytes_max: config.txn_bytes_max,
        txns_in_flight_max: config.txns_in_flight_max,
        // The store adds a few bytes of its own, and the transaction a line of the change log.
        edit_bytes_max: TXN_BYTES_MAX - LINE_BYTES_MAX - 64,
        sub_cluster_key: config.sub_cluster_key.clone(),
    }
}

struct Sources {
    follower: Informer,
    calls: mpsc::Receiver<LeaderRequest>,
    acks: mpsc::UnboundedReceiver<Ack>,
    evicted: mpsc::Receiver<evict::EvictAnswer>,
}

/// Waits for transactions in their order and passes their answers on. Bounded by the pipeline.
fn answers() -> (mpsc::UnboundedSender<(Pending, TxnTicket<EngineOutbox>)>, mpsc::UnboundedReceiver<Ack>) {
    let (tickets, mut waiting) = mpsc::unbounded_channel::<(Pending, TxnTicket<EngineOutbox>)>();
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

impl Engine {
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
        let now = self.now();
        // A process that was stopped for a while may no longer lead before any timer has fired.
        if self.leader.core().is_loaded() && self.out.pipeline.fence().is_valid() {
            self.leader.step(now, self.context.clock.wall_ms(), &mut self.out);
            self.log_brake();
            self.out.update_limits(self.leader.core());
        }
        let core = self.leader.core();
        self.out.watches.flush(core, now);
        let metrics = &self.context.metrics;
        metrics.watches.set(i64::try_from(self.out.watches.len()).unwrap_or(i64::MAX));
        let shown = core.summary();
        metrics.follow(&self.shown, &shown);
        self.shown = shown;
        metrics.waited(&self.leader.core_mut().assignments_mut().take_waits());
        if self.queues_shown_at.is_none_or(|at| now.since(at) >= QUEUES_SHOWN_EVERY_MS) {
            self.queues_shown_at = Some(now);
            let core = self.leader.core();
            let (queues, others) =
                core.units().tally().by_queue(N_QUEUES_SHOWN, core.queueing().quota().tree());
            metrics.show_queues(queues, others);
        }
    }

    fn now(&self) -> Millis {
        self.context.clock.now()
    }

    fn wake_in(&self) -> Duration {
        let now = self.now();
        let wakes = [self.leader.next_wake(now), self.out.watches.next_wake()];
        let wake = wakes.into_iter().flatten().min().map_or(1_000, |at| at.since(now));
        Duration::from_millis(wake.min(1_000))
    }

    fn on_follow(&mut self, event: FollowEvent) {
        let now = self.now();
        let (leader, out) = (&mut self.leader, &mut self.out);
        match event {
            FollowEvent::Reset { store } => {
                if !out.handle.store.may_be(store) {
                    // The lease of this term is over too: the next one begins with nothing.
                    tracing::warn!(
                        before = out.handle.store.0,
                        store = store.0,
                        "the store is another one: the leadership ends"
                    );
                    out.pipeline.fence().revoke();
                }
                leader.reset();
            }
            FollowEvent::Loaded(records) => {
                for record in records {
                    let created =
                        Receipt { revision: record.create_revision, time_ms: record.create_time_ms };
                    leader.load(&record.change, record.revision, created, now, out);
                }
            }
            FollowEvent::Synced { revision } => leader.on_synced(revision, now, out),
            FollowEvent::Committed(commit) => leader.apply(&commit, now, out),
        }
    }

    fn on_call(&mut self, call: LeaderRequest) {
        let now = self.now();
        let (leader, out) = (&mut self.leader, &mut self.out);
        match call {
            LeaderRequest::Submit(items) => {
                for PendingSubmission { spec, by, waiter, since, room, pass } in items {
                    let submitter = PendingSubmitter { by: by.clone(), waiter, since, room, pass };
                    leader.submit(UnitSubmission { spec, by, submitter }, now, out);
                }
            }
            LeaderRequest::Change(change) => leader.change(change, now, out),
            LeaderRequest::Edit(edit, editor) => {
                let is_unreadable = !editor.unread.is_empty();
                leader.edit(EditRequest { edit, is_unreadable, editor }, out);
            }
            LeaderRequest::Read(look) => look(leader.core()),
            LeaderRequest::SetMode { choice, caller } => leader.set_mode(choice, caller, out),
            LeaderRequest::SetPause { scope, paused, reason, caller } => {
                let wall_ms = self.context.clock.wall_ms();
                leader.set_pause(scope, paused, reason, caller, wall_ms, out);
            }
            LeaderRequest::ResumeEvictions(reply) => {
                let resumed = leader.resume_evictions();
                // The caller may be gone.
                let _ = reply.send((resumed, leader.core().summary()));
            }
            LeaderRequest::Attach(call) => self.attach(call),
            LeaderRequest::FromScheduler(session, message) => match message {
                SchedulerMessage::Credits(credits) => leader.on_credits(session, credits),
                SchedulerMessage::Rooms(rooms) => leader.on_rooms(session, &rooms),
                SchedulerMessage::Reports(reports) => leader.on_reports(session, reports, now, out),
            },
            LeaderRequest::Detach(session) => {
                out.sessions.remove(&session);
                leader.detach(session);
            }
            LeaderRequest::Counted(counted) => leader.on_counted(counted),
            LeaderRequest::Watch(call) => self.watch(call),
        }
    }

    fn attach(&mut self, call: AttachCall) {
        let AttachCall { mut attach, messages, over, reply } = call;
        self.last_session += 1;
        let session = SessionId(self.last_session);
        attach.session = session;
        let (name, n_held) = (attach.name.clone(), attach.inventory.len());
        match self.leader.attach(attach, self.now()) {
            Ok(()) => {
                tracing::info!(scheduler = name, n_held, "scheduler attached");
                let welcome = v1::AttachWelcome { epoch: self.epoch.0 };
                let welcome =
                    v1::AttachResponse { message: Some(v1::attach_response::Message::Welcome(welcome)) };
                let _ = messages.try_send(Ok(welcome));
                self.out.sessions.insert(session, AttachedScheduler::new(messages, over));
                if reply.send(Ok(session)).is_err() {
                    self.out.sessions.remove(&session);
                    self.leader.detach(session);
                }
            }
            Err(AttachRefusal::StaleEpoch { asked, .. }) => {
                let _ = reply.send(Err(status::stale_epoch(&format!("scheduler/{name}"), asked.0)));
            }
        }
    }

    fn watch(&mut self, call: WatchCall) {
        let core = self.leader.core();
        let only = match call.name.as_str() {
            "" => None,
            name => match pages::resolve(core, &call.sight, &call.namespace, name) {
                Ok(unit) => Some(unit),
                Err(status) => {
                    let _ = call.messages.try_send(Err(status));
                    return;
                }
            },
        };
        let now = self.now();
        self.out.watches.open(core, call, only, now);
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
        self.leader.on_answer(ticket, result.map_err(failure), now, &mut self.out);
    }

    fn log_brake(&mut self) {
        for change in self.leader.core_mut().node_evictions_mut().take_brake_changes() {
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

    fn on_evicted(&mut self, answer: evict::EvictAnswer) {
        self.leader.on_evicted(answer.units, answer.done);
    }
}
