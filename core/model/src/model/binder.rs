//! The binder: its leader with streams, a lease and transactions that arrive later.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{Epoch, Revision, UnitId};
use godel_core_binder::{
    Binder, Gathering, MoveTerms,
    leader::{
        Batch, BinderLeader, BinderLeaderConfig, BinderNote, BinderOutbox, EvictFailure, JobId, MoveReport,
        StreamEnd, StreamId,
    },
};
use godel_core_dispatcher::EvictRequest;
use godel_core_rescheduler_leader::{HeardRefusal, MovesAnswered, MovesUnanswered};
use godel_domain::{
    decision::{Outcome, Rejection, RejectionReason},
    requested_move::{MadeMove, MoveRefusal},
    running_units::{Evict, EvictionReason},
};

use super::{
    dispatcher::name,
    net::{Event, Line, Message, MoveCall, MoveCaller, Net, Part},
    reach::Mark,
    store::{Answer, Store, Txn},
};

/// Its lease.
pub(super) const LEASE: &str = "binder";
/// Transactions under way at once.
const N_TXNS_MAX: usize = 4;
/// Decisions wait for a record no longer than this, milliseconds.
const WAIT_MS: u64 = 1_000;
/// How often that, holds and nodes above their room are looked at, milliseconds.
const LOOK_MS: u64 = 100;

/// A request of the dispatcher to evict.
struct Job {
    /// Leadership of the dispatcher that asked.
    term: u64,
    asked: Vec<(UnitId, EvictionReason)>,
}

/// Who is at the other end of streams and requests.
#[derive(Default)]
struct BinderCallers {
    streams: BTreeMap<StreamId, usize>,
    jobs: BTreeMap<JobId, Job>,
    /// Calls of the rescheduler that waits for an answer.
    moves: BTreeMap<JobId, MoveCaller>,
}

impl MoveCaller {
    /// It hears an answer, or that there is none.
    fn hear(self, moves: Option<Vec<Result<MadeMove, MoveRefusal>>>, net: &mut Net) {
        let Self { life, number, asked } = self;
        let heard = |MoveRefusal { reason, later, detail }| {
            let why = format!("{}: {detail}", reason.name());
            HeardRefusal { reason: Some(reason), later, why }
        };
        let answer = moves.ok_or(MovesUnanswered::Silent);
        let answer = answer.map(|moves| moves.into_iter().map(|answer| answer.map_err(heard)).collect());
        net.soon(Event::Moved(life, Box::new(MovesAnswered { number, asked, answer })));
    }
}

/// The binder of a case.
pub(super) struct BinderPart {
    leader: BinderLeader,
    config: BinderLeaderConfig,
    callers: BinderCallers,
    pub(super) life: u64,
    /// Rises with each leadership.
    term: u64,
    epoch: Epoch,
    /// Leads, once everything up to then has been read.
    leads_from: Option<Revision>,
    is_synced: bool,
    read: usize,
    hears: bool,
    in_flight: BTreeMap<u64, Batch>,
    last: u64,
    wake: Option<u64>,
}

/// What the leader says goes into the net.
struct Out<'a> {
    net: &'a mut Net,
    callers: &'a mut BinderCallers,
}

impl BinderPart {
    pub(super) fn new(
        batch_max: usize,
        (hold_ms, squeeze_ms): (u64, u64),
        sub_cluster_key: &'static str,
    ) -> Self {
        let config = BinderLeaderConfig {
            txn_bytes_max: batch_max,
            txn_placements_max: usize::MAX,
            queued_max: usize::MAX,
            placements_open_max: usize::MAX,
            wait_ms: WAIT_MS,
            hold_ms,
            gang_hold_ms: 2_000,
            squeeze_ms,
            sub_cluster_key: sub_cluster_key.to_owned(),
        };
        Self {
            leader: BinderLeader::new(config.clone()),
            config,
            callers: BinderCallers::default(),
            life: 0,
            term: 0,
            epoch: Epoch(0),
            leads_from: None,
            is_synced: false,
            read: 0,
            hears: false,
            in_flight: BTreeMap::new(),
            last: 0,
            wake: None,
        }
    }

    /// Marks that a unit gathers room now, and that several units of a pool do.
    pub(super) fn note_turns(&self, net: &mut Net) {
        let gathering = self.leader.gathering();
        if !gathering.is_empty() {
            net.reach.mark(Mark::Gathers);
        }
        let beside = |a: &Gathering| gathering.iter().any(|b| a.unit != b.unit && a.pool == b.pool);
        if gathering.iter().any(beside) {
            net.reach.mark(Mark::GathersBeside);
        }
    }

    pub(super) fn core(&self) -> &Binder {
        self.leader.binder()
    }

    /// Whether it leads and knows enough to act.
    pub(super) fn is_up(&self) -> bool {
        self.leads_from.is_some_and(|from| self.leader.read().is_some_and(|read| read >= from))
    }

    pub(super) fn leads(&self) -> bool {
        self.leads_from.is_some()
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.leader.n_queued() == 0 && self.in_flight.is_empty() && self.core().n_open() == 0
    }

    pub(super) fn begin(&mut self, net: &mut Net) {
        self.kill(net);
        self.leader = BinderLeader::new(self.config.clone());
        self.relist(net);
    }

    pub(super) fn kill(&mut self, net: &mut Net) {
        self.step_down(net);
        self.life += 1;
        (self.is_synced, self.hears) = (false, false);
    }

    /// Stops acting. What is under way may still commit, which is then read.
    pub(super) fn step_down(&mut self, net: &mut Net) {
        self.term += 1;
        self.leads_from = None;
        self.in_flight.clear();
        self.leader.step_down(&mut Out { net, callers: &mut self.callers });
    }

    pub(super) fn lead(&mut self, epoch: Epoch, since: Revision) {
        self.epoch = epoch;
        self.leads_from = Some(since);
        self.leader.lead(epoch);
    }

    pub(super) fn relist(&mut self, net: &mut Net) {
        self.leader.reset();
        (self.is_synced, self.hears) = (false, false);
        net.soon(Event::List(Part::Binder, self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store, net: &mut Net) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        for listed in store.list() {
            self.leader.load(listed.change, listed.revision, listed.created.time_ms);
        }
        (self.is_synced, self.read) = (true, store.commits.len());
        self.leader.on_synced(store.revision(), &mut Out { net, callers: &mut self.callers });
    }

    pub(super) fn receive_changes(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(Part::Binder, self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store, net: &mut Net) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        let out = &mut Out { net, callers: &mut self.callers };
        for commit in &store.seen[self.read..] {
            self.leader.apply(commit, out);
        }
        self.read = store.commits.len();
    }

    pub(super) fn take(&mut self, scheduler: usize, stream: u64, message: Message, net: &mut Net) {
        let (id, now, is_up) = (StreamId(stream), net.millis(), self.is_up());
        let out = &mut Out { net, callers: &mut self.callers };
        match message {
            Message::Open(..) if !is_up => out.net.close(scheduler, Line::Decide, stream),
            Message::Open(epoch, again) => {
                out.callers.streams.insert(id, scheduler);
                self.leader.open(id, &name(scheduler), epoch, self.epoch, out);
                self.leader.decide(id, again, now, out);
            }
            Message::Decisions(decisions) => self.leader.decide(id, decisions, now, out),
            Message::Closed => {
                out.callers.streams.remove(&id);
                self.leader.close(id);
            }
            other => unreachable!("not for the binder: {other:?}"),
        }
    }

    /// The dispatcher asks to evict.
    pub(super) fn evict(&mut self, term: u64, requests: Vec<EvictRequest>, net: &mut Net) {
        let read = requests.iter().map(|request| request.read).max().unwrap_or_default();
        let asked: Vec<_> = requests.iter().map(|request| (request.unit, request.reason)).collect();
        if !self.is_up() {
            return net.soon(Event::Evicted(term, asked, false));
        }
        let evict = |request: EvictRequest| {
            let EvictRequest { unit, reason, ordinals, incarnations, by, read: _ } = request;
            (unit, Evict { ordinals, incarnations, reason, by, preemptor: UnitId(0) })
        };
        let wanted: Vec<(UnitId, Evict)> = requests.into_iter().map(evict).collect();
        self.last += 1;
        let job = JobId(self.last);
        self.callers.jobs.insert(job, Job { term, asked });
        self.leader.evict(job, &wanted, read, &mut Out { net, callers: &mut self.callers });
    }

    /// The rescheduler asks to move running units. A binder that does not lead, or dies meanwhile, has no answer.
    pub(super) fn move_units(&mut self, call: MoveCall, net: &mut Net) {
        if !self.is_up() {
            if let Some(caller) = call.caller {
                caller.hear(None, net);
            }
            return;
        }
        self.last += 1;
        if let Some(caller) = call.caller {
            self.callers.moves.insert(JobId(self.last), caller);
        }
        let terms = MoveTerms { movement: Arc::from(call.movement), expires_ms: call.expires_ms };
        let out = &mut Out { net, callers: &mut self.callers };
        self.leader.move_units(JobId(self.last), terms, call.moves, call.read, out);
    }

    /// Writes what can be written, answers, and says when it wants to be woken.
    pub(super) fn act(&mut self, net: &mut Net) {
        self.leader.on_wall(net.wall_ms());
        let now = net.millis();
        self.leader.expire(now, &mut Out { net, callers: &mut self.callers });
        while self.is_up() && self.in_flight.len() < N_TXNS_MAX {
            let mut txn = Txn::of(LEASE, self.epoch);
            let out = &mut Out { net, callers: &mut self.callers };
            let Some(batch) = self.leader.next_batch(&mut txn, out) else { break };
            txn.nodes_as_of = Some(batch.nodes_as_of());
            self.last += 1;
            self.in_flight.insert(self.last, batch);
            net.send((1, 0), Event::Txn(Part::Binder, self.term, self.last, Box::new(txn)));
        }
        self.leader.flush(&mut Out { net, callers: &mut self.callers });
        let waits = self.leader.has_waits() || self.leader.n_holds() > 0 || self.leader.n_over() > 0;
        let at = net.now + LOOK_MS;
        if waits && self.is_up() && self.wake.is_none_or(|known| at < known || known <= net.now) {
            self.wake = Some(at);
            net.at(at, Event::Wake(Part::Binder));
        }
    }

    /// The store's answer to a transaction of this leadership.
    pub(super) fn on_answer(&mut self, term: u64, id: u64, answer: Answer, net: &mut Net) {
        if term != self.term {
            return;
        }
        let Some(batch) = self.in_flight.remove(&id) else { return };
        match answer {
            Ok(receipt) => {
                let out = &mut Out { net, callers: &mut self.callers };
                self.leader.on_committed(batch, receipt.revision, out);
            }
            // State says that the lease is lost before anybody else does.
            Err(refusal) if refusal.reason.is_stale() => self.step_down(net),
            Err(refusal) => {
                self.leader.on_refused(batch, &refusal, &mut Out { net, callers: &mut self.callers });
            }
        }
    }
}

impl BinderOutbox for Out<'_> {
    fn welcome(&mut self, stream: StreamId, _leader: Epoch) {
        if let Some(&scheduler) = self.callers.streams.get(&stream) {
            self.net.message(scheduler, Line::Decide, true, stream.0, Message::Welcome);
        }
    }

    fn outcomes(&mut self, stream: StreamId, outcomes: Vec<Outcome>) -> bool {
        let Some(&scheduler) = self.callers.streams.get(&stream) else { return false };
        self.net.message(scheduler, Line::Decide, true, stream.0, Message::Outcomes(outcomes));
        true
    }

    fn end(&mut self, stream: StreamId, _why: StreamEnd) {
        if let Some(scheduler) = self.callers.streams.remove(&stream) {
            self.net.close(scheduler, Line::Decide, stream.0);
        }
    }

    fn evicted(&mut self, job: JobId, answer: Result<Revision, EvictFailure>) {
        if let Some(Job { term, asked }) = self.callers.jobs.remove(&job) {
            self.net.soon(Event::Evicted(term, asked, answer.is_ok()));
        }
    }

    fn moved(&mut self, job: JobId, answer: Result<MoveReport, EvictFailure>) {
        if let Some(caller) = self.callers.moves.remove(&job) {
            caller.hear(answer.ok().map(|report| report.moves), self.net);
        }
    }

    fn note(&mut self, note: BinderNote<'_>) {
        let reach = &mut self.net.reach;
        match note {
            BinderNote::Refused(refusal) => {
                reach.mark(Mark::Refused);
                self.net.trace(|| format!("binder refused {refusal:?}"));
            }
            BinderNote::Rejected(rejections) => mark(rejections, self.net),
            BinderNote::Accepted(accepted) => {
                if !accepted.slots.is_empty() {
                    reach.mark(Mark::SlotTaken);
                }
                for (_, why) in &accepted.gone {
                    reach.mark(match *why {
                        "taken-over" => Mark::TakenOver,
                        "placed" => Mark::MovedIn,
                        _ => Mark::Elsewhere,
                    });
                }
            }
            BinderNote::HoldsBound(_) => reach.mark(Mark::HoldBound),
            BinderNote::SlotsHeld { .. } => reach.mark(Mark::Reserved),
            BinderNote::HoldsDropped { .. } => reach.mark(Mark::HoldDropped),
            BinderNote::Requeued(_) => reach.mark(Mark::Requeue),
            BinderNote::Moved(_) => reach.mark(Mark::Moved),
            BinderNote::MoveRefused(reason) => {
                reach.mark(match reason {
                    RejectionReason::DisruptionBudget => Mark::MoveKept,
                    _ => Mark::MoveRefused,
                });
                self.net.trace(|| format!("binder refuses a move: {reason:?}"));
            }
            BinderNote::Decision
            | BinderNote::Committed
            | BinderNote::Evicted { .. }
            | BinderNote::Squeezed(_)
            | BinderNote::Rechecked(_)
            | BinderNote::StreamCut
            | BinderNote::TurnEnded { .. } => {}
        }
    }
}

fn mark(rejections: &[Rejection], net: &mut Net) {
    for rejection in rejections {
        net.trace(|| format!("binder rejects {rejection:?}"));
        net.reach.mark(Mark::Rejection);
        if rejection.reason.is_conflict() {
            net.reach.mark(Mark::Conflict);
        }
        if rejection.reason == RejectionReason::QueueFull {
            net.reach.mark(Mark::FullQueue);
            if rejection.detail.contains("max_per_owner") {
                net.reach.mark(Mark::OwnerFull);
            }
            if rejection.detail.contains("am_share") {
                net.reach.mark(Mark::MastersFull);
            }
        }
    }
}
