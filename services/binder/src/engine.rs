//! The one task that owns the leader: reads the store, the streams and the answers to transactions, and keeps
//! a few transactions under way while this binder leads.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use godel_base::{
    ids::{Revision, StoreId},
    time::Millis,
};
use godel_core_binder::{
    Gathering,
    leader::{Batch, BinderLeader},
};
use godel_crash::CrashPoints;
use godel_domain::txn::{TxnRefusal, TxnRefusalReason};
use godel_kit::{
    clock::SharedClock,
    informer::{FollowEvent, Informer},
    leader::{LeaderGrant, LeaderTerms, TermChange},
    txn::{Conditions, Pending, Receipt, TxnEncoder, TxnError},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error,
    metrics::BinderMetrics,
    rpc::{Input, Leave, LeaveRequest, Role},
    streams::Streams,
};

/// Events of one source taken in one go before transactions are made.
const N_DRAIN: usize = 256;
/// Pause after the store was full.
const STORE_FULL_PAUSE: Duration = Duration::from_millis(250);
/// How often decisions are looked at that wait for a record.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Engine {
    pub(crate) leader: BinderLeader,
    pub(crate) streams: Streams,
    pub(crate) follower: Informer,
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) leaves: mpsc::Receiver<LeaveRequest>,
    pub(crate) terms: LeaderTerms,
    pub(crate) role: watch::Sender<Role>,
    pub(crate) gathering: watch::Sender<Vec<Gathering>>,
    pub(crate) txns_in_flight_max: usize,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: BinderMetrics,
}

/// What changes while the engine runs.
#[derive(Debug, Default)]
struct Run {
    in_flight: VecDeque<(Batch, Pending)>,
    paused_until: Option<Instant>,
    /// It was said that the store is full, and nothing was committed since.
    has_said_full: bool,
    expire_at: Option<Instant>,
}

impl Engine {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut run = Run::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                change = self.terms.changed() => match change {
                    Some(TermChange::Elected) => self.lead(&mut run),
                    Some(TermChange::Ended { leader }) => self.step_down(&mut run, leader),
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::Lease),
                },
                answer = front(&mut run.in_flight) => self.on_answer(&mut run, answer),
                event = self.follower.next() => match event {
                    Some(event) => self.on_follow(&mut run, event),
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::Informer),
                },
                Some(request) = self.leaves.recv() => self.on_leave(request),
                Some(input) = self.inputs.recv(), if self.leader.has_room() => self.on_input(input),
                () = at(run.paused_until) => run.paused_until = None,
                () = at(run.expire_at) => self.on_expiry(&mut run),
            }
            self.drain(&mut run);
            self.announce();
            self.write(&mut run);
            self.leader.flush(&mut self.streams);
            self.show(&mut run);
        }
        self.step_down(&mut run, None);
        self.leader.flush(&mut self.streams);
        Ok(())
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn lead(&mut self, run: &mut Run) {
        self.stop_acting(run, None);
        if let Some(grant) = self.terms.grant() {
            self.leader.lead(grant.fence.epoch());
        }
    }

    /// Gives the grant up.
    fn step_down(&mut self, run: &mut Run, leader: Option<String>) {
        self.terms.end();
        self.stop_acting(run, leader);
    }

    /// Stops acting. What is under way is dropped without an answer: it may still commit, which is then read.
    fn stop_acting(&mut self, run: &mut Run, leader: Option<String>) {
        run.in_flight.clear();
        run.paused_until = None;
        self.streams.leader.clone_from(&leader);
        self.leader.step_down(&mut self.streams);
        let role = Role::Standby { leader };
        self.role.send_if_modified(|known| {
            *known != role && {
                *known = role.clone();
                true
            }
        });
    }

    /// Leads once everything up to the grant has been read: an older leader's last binding is in there.
    fn announce(&self) {
        let Some(grant) = self.terms.grant() else { return };
        if !self.reads_enough(grant) {
            return;
        }
        let role = Role::Leader { epoch: grant.fence.epoch(), store: grant.fence.store() };
        self.role.send_if_modified(|known| {
            *known != role && {
                *known = role.clone();
                true
            }
        });
    }

    /// Whether everything up to the grant has been read, of the store in which it was granted.
    fn reads_enough(&self, grant: &LeaderGrant) -> bool {
        let is_same = self.leader.store().may_be(grant.fence.store());
        is_same && self.leader.read().is_some_and(|read| read >= grant.since)
    }

    /// What follows from another store is as after a change of leaders: nothing that was read, decided or asked for
    /// before means anything there.
    fn on_follow(&mut self, run: &mut Run, event: FollowEvent) {
        if let FollowEvent::Reset { store } = &event
            && *store != self.leader.store()
        {
            if self.terms.grant().is_some_and(|grant| !grant.fence.store().may_be(*store)) {
                self.step_down(run, None);
            }
            self.change_store(*store);
        }
        match event {
            FollowEvent::Reset { .. } => self.leader.reset(),
            FollowEvent::Loaded(records) => {
                for record in records {
                    self.leader.load(record.change, record.revision, record.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => self.leader.on_synced(revision, &mut self.streams),
            FollowEvent::Committed(commit) => self.leader.apply(&commit, &mut self.streams),
        }
    }

    fn change_store(&mut self, store: StoreId) {
        let before = self.leader.store();
        if before != StoreId(0) {
            tracing::warn!(
                before = before.0,
                store = store.0,
                "the store is another one: the binder reads everything again"
            );
        }
        self.streams.leader = None;
        self.leader.change_store(store, &mut self.streams);
    }

    fn on_input(&mut self, input: Input) {
        let now = self.now();
        match (input, self.terms.grant()) {
            (Input::Open { id, scheduler, epoch, outcomes }, Some(grant)) => {
                tracing::info!(scheduler, epoch = epoch.0, "scheduler connected");
                self.streams.add(id, scheduler.clone(), epoch, outcomes);
                self.leader.open(id, &scheduler, epoch, grant.fence.epoch(), &mut self.streams);
            }
            (Input::Open { outcomes, .. }, None) => {
                // Leadership went while the stream was opened.
                let _ = outcomes.try_send(Err(godel_kit::status::not_leader(None)));
            }
            (Input::Decisions { id, decisions }, _) => {
                self.leader.decide(id, decisions, now, &mut self.streams);
            }
            (Input::Close { id }, _) => {
                self.streams.remove(id);
                self.leader.close(id);
            }
        }
    }

    fn on_leave(&mut self, request: LeaveRequest) {
        let LeaveRequest { asked, read } = request;
        match (asked, self.terms.grant().is_some()) {
            (Leave::Evict(asked, reply), true) => {
                let job = self.streams.add_job(reply);
                self.leader.evict(job, &asked, read, &mut self.streams);
            }
            (Leave::Move(terms, moves, reply), true) => {
                let job = self.streams.add_moves(reply);
                self.leader.on_wall(self.clock.wall_ms());
                self.leader.move_units(job, terms, moves, read, &mut self.streams);
            }
            // The caller may have gone.
            (Leave::Evict(_, reply), false) => {
                let _ = reply.send(Err(godel_kit::status::not_leader(None)));
            }
            (Leave::Move(_, _, reply), false) => {
                let _ = reply.send(Err(godel_kit::status::not_leader(None)));
            }
        }
    }

    fn on_answer(&mut self, run: &mut Run, answer: Result<Receipt, TxnError>) {
        let Some((batch, _)) = run.in_flight.pop_front() else { return };
        match answer {
            Ok(receipt) => {
                run.has_said_full = false;
                self.crash.hit("binder.after-commit");
                self.leader.on_committed(batch, receipt.revision, &mut self.streams);
            }
            Err(TxnError::Refused(refusal)) => {
                if refusal.reason == TxnRefusalReason::StoreFull {
                    if !std::mem::replace(&mut run.has_said_full, true) {
                        tracing::warn!("the store is full: transactions are tried again until it has room");
                    }
                    run.paused_until = Some(Instant::now() + STORE_FULL_PAUSE);
                }
                self.leader.on_refused(batch, &refusal, &mut self.streams);
            }
            Err(TxnError::LeaseLost | TxnError::Closed) => self.step_down(run, None),
        }
    }

    fn on_expiry(&mut self, run: &mut Run) {
        let still = self.leader.expire(self.clock.now(), &mut self.streams)
            || self.leader.n_holds() > 0
            || self.leader.n_over() > 0;
        run.expire_at = still.then(|| Instant::now() + EXPIRY_INTERVAL);
        self.show_gathering();
    }

    /// Once in a while: it looks at every hold.
    fn show_gathering(&self) {
        let gathering = self.leader.gathering();
        let gauge = |of: fn(&Gathering) -> usize| {
            i64::try_from(gathering.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
        };
        self.metrics.gang_places.set(gauge(|gang| gang.n_wanted));
        self.metrics.gang_places_held.set(gauge(|gang| gang.n_gathered));
        self.gathering.send_if_modified(|known| std::mem::replace(known, gathering.clone()) != gathering);
    }

    /// Takes what else has come, so that it goes into the same transactions.
    fn drain(&mut self, run: &mut Run) {
        for _ in 0..N_DRAIN {
            let Some(answer) = ready(&mut run.in_flight) else { break };
            self.on_answer(run, answer);
        }
        for _ in 0..N_DRAIN {
            let Some(event) = self.follower.try_next() else { break };
            self.on_follow(run, event);
        }
        for _ in 0..N_DRAIN {
            let Ok(request) = self.leaves.try_recv() else { break };
            self.on_leave(request);
        }
        for _ in 0..N_DRAIN {
            if !self.leader.has_room() {
                break;
            }
            let Ok(input) = self.inputs.try_recv() else { break };
            self.on_input(input);
        }
    }

    /// Keeps transactions under way.
    fn write(&mut self, run: &mut Run) {
        self.leader.on_wall(self.clock.wall_ms());
        while let Some(grant) = self.terms.grant() {
            let reads_enough = self.reads_enough(grant);
            let has_place = run.in_flight.len() < self.txns_in_flight_max.max(1);
            if !reads_enough || !has_place || run.paused_until.is_some() || !self.leader.has_work() {
                return;
            }
            let mut txn = TxnEncoder::default();
            let Some(batch) = self.leader.next_batch(&mut txn, &mut self.streams) else { return };
            self.crash.hit("binder.before-commit");
            let TxnEncoder { ops, preconditions } = txn;
            let conditions =
                Conditions { preconditions, nodes_as_of: batch.nodes_as_of(), ..Conditions::default() };
            match grant.pipeline.try_submit(ops, conditions) {
                Ok(Some(pending)) => run.in_flight.push_back((batch, pending)),
                Ok(None) => {
                    // The pipeline is full: as if the store had no room for a moment.
                    let full = TxnRefusal {
                        reason: TxnRefusalReason::StoreFull,
                        index: 0,
                        revision: Revision(0),
                        message: "too many transactions are under way".to_owned(),
                    };
                    self.leader.on_refused(batch, &full, &mut self.streams);
                    run.paused_until = Some(Instant::now() + STORE_FULL_PAUSE);
                }
                Err(TxnError::Refused(refusal)) => self.leader.on_refused(batch, &refusal, &mut self.streams),
                Err(TxnError::LeaseLost | TxnError::Closed) => self.step_down(run, None),
            }
        }
    }

    fn show(&mut self, run: &mut Run) {
        let waits = self.leader.has_waits() || self.leader.n_holds() > 0 || self.leader.n_over() > 0;
        if run.expire_at.is_none() && waits {
            run.expire_at = Some(Instant::now() + EXPIRY_INTERVAL);
        }
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.leader.set(i64::from(matches!(&*self.role.borrow(), Role::Leader { .. })));
        self.metrics.holds.set(i64::try_from(self.leader.n_holds()).unwrap_or(i64::MAX));
        self.metrics.schedulers.set(i64::try_from(self.streams.len()).unwrap_or(i64::MAX));
        self.metrics.queued.set(i64::try_from(self.leader.n_queued()).unwrap_or(i64::MAX));
        self.metrics.revision.set(gauge(self.leader.read().map_or(0, |revision| revision.0)));
    }
}

/// The answer to the first transaction under way: answers come in order.
async fn front(in_flight: &mut VecDeque<(Batch, Pending)>) -> Result<Receipt, TxnError> {
    match in_flight.front_mut() {
        Some((_, pending)) => poll_fn(|cx| Pin::new(&mut *pending).poll(cx)).await,
        None => pending().await,
    }
}

/// The same if it is there already.
fn ready(in_flight: &mut VecDeque<(Batch, Pending)>) -> Option<Result<Receipt, TxnError>> {
    let (_, pending) = in_flight.front_mut()?;
    match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
