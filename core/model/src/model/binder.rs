//! The binder with its streams, as its service drives it: what the leader of `services/binder` does, without bytes.

mod batch;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use godel_core_binder::{Accepted, Binder, Departure, HoldWork, Ticket, Verdict, Wait};
use godel_core_dispatcher::EvictRequest;
use godel_domain::{
    decision::{Decision, Outcome, Rejection, RejectionReason},
    ids::{Epoch, NodeId, Revision, UnitId},
    running_units::{Evict, EvictionReason},
};

use self::batch::{Batch, Item, Queued};
use super::{
    net::{Event, Line, Message, Net, Part},
    reach::Mark,
    store::{Answer, Condition, Refusal, Store, Txn},
};

/// Its lease.
pub(super) const LEASE: &str = "binder";
/// Transactions under way at once.
const N_TXNS_MAX: usize = 4;
/// Refused transactions in a row that one item may cause.
const N_ATTEMPTS_MAX: u32 = 5;
/// Decisions wait so long at most for a record, milliseconds.
const WAIT_MS: u64 = 1_000;
/// How often that, holds and nodes above their room are looked at, milliseconds.
const LOOK_MS: u64 = 100;

struct Leaving {
    job: u64,
    unit: UnitId,
    evict: Evict,
    attempts: u32,
}

struct Job {
    n_left: usize,
    /// Leadership of the dispatcher that asked.
    term: u64,
    asked: Vec<(UnitId, EvictionReason)>,
}

#[derive(Default)]
struct Session {
    epoch: Epoch,
    stream: u64,
    live: BTreeSet<u64>,
}

/// See the module.
pub(super) struct BinderPart {
    pub(super) core: Binder,
    pub(super) life: u64,
    /// Rises with each leadership.
    term: u64,
    epoch: Epoch,
    /// Leads, once everything up to then has been read.
    leads_from: Option<Revision>,
    is_synced: bool,
    read: usize,
    hears: bool,
    ready: BTreeMap<(Reverse<i32>, u64), Queued>,
    waiting: Vec<(Wait, Queued)>,
    sessions: BTreeMap<usize, Session>,
    jobs: BTreeMap<u64, Job>,
    evictions: VecDeque<Leaving>,
    evictions_waiting: Vec<(Revision, Leaving)>,
    requeue_from: Revision,
    sub_cluster_key: &'static str,
    /// With what was read when it was checked.
    hold_work: VecDeque<(Revision, HoldWork)>,
    holds_from: Revision,
    in_flight: BTreeMap<u64, Batch>,
    last: u64,
    outcomes: BTreeMap<usize, Vec<Outcome>>,
    batch_max: usize,
    hold_ms: u64,
    squeeze_ms: u64,
    wake: Option<u64>,
}

impl BinderPart {
    pub(super) fn new(
        batch_max: usize,
        (hold_ms, squeeze_ms): (u64, u64),
        sub_cluster_key: &'static str,
    ) -> Self {
        Self {
            core: Binder::new(),
            sub_cluster_key,
            life: 0,
            term: 0,
            epoch: Epoch(0),
            leads_from: None,
            is_synced: false,
            read: 0,
            hears: false,
            ready: BTreeMap::new(),
            waiting: Vec::new(),
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            evictions: VecDeque::new(),
            evictions_waiting: Vec::new(),
            requeue_from: Revision(0),
            hold_work: VecDeque::new(),
            holds_from: Revision(0),
            in_flight: BTreeMap::new(),
            last: 0,
            outcomes: BTreeMap::new(),
            batch_max,
            hold_ms,
            squeeze_ms,
            wake: None,
        }
    }

    /// Whether it leads and knows enough to act.
    pub(super) fn is_up(&self) -> bool {
        self.is_synced && self.leads_from.is_some_and(|from| self.core.revision() >= from)
    }

    pub(super) fn leads(&self) -> bool {
        self.leads_from.is_some()
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
            && self.waiting.is_empty()
            && self.in_flight.is_empty()
            && self.core.n_open() == 0
    }

    pub(super) fn begin(&mut self, net: &mut Net) {
        self.kill(net);
        self.core = Binder::new();
        self.core.set_sub_cluster_key(self.sub_cluster_key);
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
        self.core.take_back_all();
        self.in_flight.clear();
        self.ready.clear();
        self.waiting.clear();
        for (scheduler, session) in std::mem::take(&mut self.sessions) {
            net.close(scheduler, Line::Decide, session.stream);
        }
        for (_, job) in std::mem::take(&mut self.jobs) {
            net.soon(Event::Evicted(job.term, job.asked, false));
        }
        self.evictions.clear();
        self.evictions_waiting.clear();
        (self.requeue_from, self.holds_from) = (Revision(0), Revision(0));
        self.hold_work.clear();
        self.outcomes.clear();
    }

    pub(super) fn lead(&mut self, epoch: Epoch, since: Revision) {
        self.epoch = epoch;
        self.leads_from = Some(since);
        self.core.lead(epoch, self.hold_ms, self.squeeze_ms);
    }

    pub(super) fn relist(&mut self, net: &mut Net) {
        self.core.reset();
        (self.is_synced, self.hears) = (false, false);
        net.soon(Event::List(Part::Binder, self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        for listed in store.list() {
            self.core.on_change(listed.change, listed.revision, listed.created.1);
        }
        (self.is_synced, self.read) = (true, store.commits.len());
        self.on_revision(store.revision());
    }

    pub(super) fn hear(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(Part::Binder, self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        for commit in &store.commits[self.read..] {
            for change in &commit.changes {
                self.core.on_change(change.clone(), commit.revision, commit.time_ms);
            }
            self.on_revision(commit.revision);
        }
        self.read = store.commits.len();
    }

    fn on_revision(&mut self, revision: Revision) {
        self.core.on_revision(revision);
        self.wake_waiting(|wait| matches!(wait, Wait::Revision(at) if *at <= revision));
        let ready = self.evictions_waiting.extract_if(.., |(at, _)| *at <= revision);
        self.evictions.extend(ready.map(|(_, part)| part));
    }

    fn wake_waiting(&mut self, is_over: impl Fn(&Wait) -> bool) {
        let woken: Vec<_> = self.waiting.extract_if(.., |(wait, _)| is_over(wait)).collect();
        woken.into_iter().for_each(|(_, queued)| self.push(queued));
    }

    fn push(&mut self, queued: Queued) {
        self.ready.insert((Reverse(queued.priority), queued.sequence), queued);
    }

    pub(super) fn take(&mut self, scheduler: usize, stream: u64, message: Message, net: &mut Net) {
        match message {
            Message::Open(epoch, again) => {
                if !self.is_up() {
                    return net.close(scheduler, Line::Decide, stream);
                }
                let session = self.sessions.entry(scheduler).or_default();
                if session.epoch > epoch {
                    return net.close(scheduler, Line::Decide, stream);
                }
                if session.epoch < epoch {
                    (session.epoch, session.live) = (epoch, BTreeSet::new());
                }
                let old = std::mem::replace(&mut session.stream, stream);
                net.close(scheduler, Line::Decide, old);
                self.outcomes.remove(&scheduler);
                net.message(scheduler, Line::Decide, true, stream, Message::Welcome);
                self.decide(scheduler, again, net);
            }
            Message::Decisions(decisions) => {
                if self.sessions.get(&scheduler).is_some_and(|session| session.stream == stream) {
                    self.decide(scheduler, decisions, net);
                }
            }
            Message::Closed => {
                if let Some(session) = self.sessions.get_mut(&scheduler)
                    && session.stream == stream
                {
                    session.stream = 0;
                    self.outcomes.remove(&scheduler);
                    if session.live.is_empty() {
                        self.sessions.remove(&scheduler);
                    }
                }
            }
            other => unreachable!("not for the binder: {other:?}"),
        }
    }

    fn decide(&mut self, scheduler: usize, decisions: Vec<Decision>, net: &Net) {
        for decision in decisions {
            let Some(session) = self.sessions.get_mut(&scheduler) else { return };
            if !session.live.insert(decision.id) {
                continue;
            }
            let epoch = session.epoch;
            self.last += 1;
            let priority = self.core.priority(decision.unit);
            let (sequence, arrived) = (self.last, net.now);
            self.push(Queued { scheduler, epoch, decision, priority, sequence, attempts: 0, arrived });
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
        let waits = read > self.core.revision();
        let parts = if waits { wanted } else { self.core.evictions(&wanted) };
        if parts.is_empty() {
            return net.soon(Event::Evicted(term, asked, true));
        }
        self.last += 1;
        let job = self.last;
        self.jobs.insert(job, Job { n_left: parts.len(), term, asked });
        let part = |(unit, evict)| Leaving { job, unit, evict, attempts: 0 };
        if waits {
            self.evictions_waiting.extend(parts.into_iter().map(part).map(|part| (read, part)));
        } else {
            self.evictions.extend(parts.into_iter().map(part));
        }
    }

    fn part_done(&mut self, id: u64, is_done: bool, net: &mut Net) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.n_left -= 1;
        if (job.n_left == 0 || !is_done)
            && let Some(job) = self.jobs.remove(&id)
        {
            net.soon(Event::Evicted(job.term, job.asked, is_done));
        }
    }

    /// Writes what can be written, answers, and says when it wants to be woken.
    pub(super) fn turn(&mut self, net: &mut Net) {
        self.core.on_wall(net.wall_ms());
        self.expire(net);
        while self.is_up() && self.in_flight.len() < N_TXNS_MAX {
            let batch = self.next_batch(net);
            if batch.items.is_empty() {
                break;
            }
            self.send(batch, net);
        }
        for (scheduler, outcomes) in std::mem::take(&mut self.outcomes) {
            if let Some(session) = self.sessions.get(&scheduler).filter(|session| session.stream > 0) {
                net.message(scheduler, Line::Decide, true, session.stream, Message::Outcomes(outcomes));
            }
        }
        let waits = !self.waiting.is_empty() || self.core.n_holds() > 0 || self.core.n_over() > 0;
        let at = net.now + LOOK_MS;
        if waits && self.is_up() && self.wake.is_none_or(|known| at < known || known <= net.now) {
            self.wake = Some(at);
            net.at(at, Event::Wake(Part::Binder));
        }
    }

    fn send(&mut self, mut batch: Batch, net: &mut Net) {
        self.last += 1;
        let txn = Txn {
            lease: LEASE,
            epoch: self.epoch,
            conditions: std::mem::take(&mut batch.conditions),
            nodes_as_of: Some(batch.read),
            ops: std::mem::take(&mut batch.ops),
        };
        self.in_flight.insert(self.last, batch);
        net.send((1, 0), Event::Txn(Part::Binder, self.term, self.last, Box::new(txn)));
    }

    fn next_batch(&mut self, net: &mut Net) -> Batch {
        if self.core.has_squeezes() {
            for (unit, evict) in self.core.take_squeezes() {
                self.evictions.push_back(Leaving { job: 0, unit, evict, attempts: 0 });
            }
        }
        let mut batch = Batch { read: self.core.revision(), ..Batch::default() };
        while batch.items.len() < self.batch_max
            && let Some(part) = self.evictions.pop_front()
        {
            match self.core.depart(part.unit, part.evict) {
                Some(departure) => {
                    batch.push(Item::Evict { job: part.job, departure, attempts: part.attempts });
                }
                None => self.part_done(part.job, true, net),
            }
        }
        if self.core.has_requeues() && self.core.revision() >= self.requeue_from {
            for work in self.core.take_requeues(usize::MAX / 2) {
                batch.push(Item::Requeue(work));
            }
        }
        let has_hold_work = !self.hold_work.is_empty() || self.core.has_hold_work();
        if has_hold_work && self.core.revision() >= self.holds_from {
            let read = self.core.revision();
            self.hold_work.extend(self.core.take_hold_work().into_iter().map(|work| (read, work)));
            while batch.items.len() < self.batch_max
                && let Some((read, work)) = self.hold_work.pop_front()
            {
                batch.read = batch.read.min(read);
                batch.push(match work {
                    HoldWork::Bind(accepted) => Item::Convert(accepted),
                    HoldWork::Reserve { reservation, holds } => Item::Reserve(reservation, holds),
                    HoldWork::Drop { holds, .. } => Item::Drop(holds),
                });
            }
        }
        while batch.items.len() < self.batch_max
            && let Some((_, queued)) = self.ready.pop_first()
        {
            match self.core.check(&queued.decision) {
                Verdict::Bind(accepted) => {
                    let queue = accepted.queue;
                    mark(&accepted.rejections, net);
                    batch.push(Item::Decision(queued, accepted));
                    let at = batch.items.len() - 1;
                    for (_, path, revision) in self.core.queue_records(queue) {
                        batch.need(Condition::Queue(path.to_owned(), revision), at);
                    }
                }
                Verdict::Wait(wait) => self.waiting.push((wait, queued)),
                Verdict::Reject(rejections) => {
                    mark(&rejections, net);
                    self.answer(&queued, Revision(0), false, rejections);
                }
            }
        }
        batch
    }

    fn answer(&mut self, queued: &Queued, revision: Revision, held: bool, rejections: Vec<Rejection>) {
        let Queued { scheduler, epoch, decision, .. } = queued;
        let nodes = self.core.fresh_nodes(decision.unit, &rejections);
        let outcome =
            Outcome { decision_id: decision.id, unit: decision.unit, revision, held, rejections, nodes };
        let Some(session) = self.sessions.get_mut(scheduler).filter(|session| session.epoch == *epoch) else {
            return;
        };
        session.live.remove(&decision.id);
        if session.stream > 0 {
            self.outcomes.entry(*scheduler).or_default().push(outcome);
        } else if session.live.is_empty() {
            self.sessions.remove(scheduler);
        }
    }

    fn expire(&mut self, net: &Net) {
        let is_old = |queued: &Queued| net.now >= queued.arrived + WAIT_MS;
        let for_revision = |wait: &Wait| matches!(wait, Wait::Revision(_));
        let old: Vec<_> =
            self.waiting.extract_if(.., |(wait, queued)| for_revision(wait) && is_old(queued)).collect();
        for (_, mut queued) in old {
            if queued.decision.spec_revision > self.core.revision() {
                let rejections = vec![everything(&queued.decision, RejectionReason::Stale)];
                self.answer(&queued, Revision(0), false, rejections);
            } else {
                queued.arrived = net.now;
                self.push(queued);
            }
        }
    }

    /// The store's answer to a transaction of this leadership.
    pub(super) fn on_answer(&mut self, term: u64, id: u64, answer: Answer, net: &mut Net) {
        if term != self.term {
            return;
        }
        let Some(batch) = self.in_flight.remove(&id) else { return };
        match answer {
            Ok((revision, _)) => self.on_committed(batch, revision, net),
            // State says that the lease is lost before anybody else does.
            Err(Refusal::StaleEpoch) => self.step_down(net),
            Err(refusal) => {
                net.reach.mark(Mark::Refused);
                net.tell(|| format!("binder refused {refusal:?}"));
                self.on_refused(batch, refusal, net);
            }
        }
    }

    fn on_committed(&mut self, batch: Batch, revision: Revision, net: &mut Net) {
        for item in batch.items {
            match item {
                Item::Decision(queued, accepted) => {
                    self.close(&accepted, Some(revision));
                    let held = !accepted.holds.is_empty();
                    if !accepted.slots.is_empty() {
                        net.reach.mark(Mark::SlotTaken);
                    }
                    for (_, why) in &accepted.gone {
                        let taken_over = *why == "taken-over";
                        net.reach.mark(if taken_over { Mark::TakenOver } else { Mark::Elsewhere });
                    }
                    self.answer(&queued, revision, held, accepted.rejections);
                }
                Item::Convert(accepted) => {
                    net.reach.mark(Mark::HoldBound);
                    self.close(&accepted, Some(revision));
                }
                Item::Reserve(..) => net.reach.mark(Mark::Reserved),
                Item::Drop(_) => net.reach.mark(Mark::HoldDropped),
                Item::Requeue(_) => net.reach.mark(Mark::Requeue),
                Item::Evict { job, .. } => self.part_done(job, true, net),
            }
        }
    }

    fn close(&mut self, accepted: &Accepted, revision: Option<Revision>) {
        let ticket: Ticket = accepted.ticket;
        match revision {
            Some(revision) => self.core.commit(ticket, revision),
            None => self.core.take_back(ticket),
        }
        self.wake_waiting(|wait| *wait == Wait::Ticket(ticket));
    }

    fn on_refused(&mut self, batch: Batch, refusal: Refusal, net: &mut Net) {
        let (offenders, at, by_record) = match refusal {
            Refusal::Condition(idx, at) => (batch.condition_items[idx].clone(), at, true),
            Refusal::Op(idx, at) => (vec![batch.op_items[idx]], at, at.0 > 0),
            Refusal::StaleEpoch => (Vec::new(), Revision(0), false),
        };
        let at = if at.0 == 0 { Revision(batch.read.0 + 1) } else { at };
        for (idx, item) in batch.items.into_iter().enumerate() {
            let offends = offenders.contains(&idx);
            match item {
                Item::Decision(mut queued, accepted) => {
                    self.close(&accepted, None);
                    queued.attempts += u32::from(offends);
                    let is_worn = queued.attempts > N_ATTEMPTS_MAX;
                    if offends && is_worn && !by_record {
                        let rejections = vec![everything(&queued.decision, RejectionReason::Stale)];
                        self.answer(&queued, Revision(0), false, rejections);
                    } else if offends && (is_worn || at > self.core.revision()) {
                        let at = if is_worn { at.max(Revision(self.core.revision().0 + 1)) } else { at };
                        self.waiting.push((Wait::Revision(at), queued));
                    } else {
                        self.push(queued);
                    }
                }
                Item::Convert(accepted) => {
                    self.close(&accepted, None);
                    self.holds_from = if offends { at } else { self.holds_from };
                }
                Item::Reserve(_, holds) => {
                    self.core.unreserve(&holds);
                    self.holds_from = if offends { at } else { self.holds_from };
                }
                Item::Drop(holds) => {
                    self.core.keep_holds(&holds);
                    self.holds_from = if offends { at } else { self.holds_from };
                }
                Item::Requeue(work) => {
                    self.core.requeue_refused(&work);
                    self.requeue_from = if offends { at } else { self.requeue_from };
                }
                Item::Evict { job, departure: Departure { unit, evict, .. }, attempts } => {
                    self.core.departure_refused(unit, &evict);
                    let part = Leaving { job, unit, evict, attempts: attempts + u32::from(offends) };
                    if part.attempts > N_ATTEMPTS_MAX {
                        self.part_done(job, false, net);
                    } else if offends && at > self.core.revision() {
                        self.evictions_waiting.push((at, part));
                    } else {
                        self.evictions.push_back(part);
                    }
                }
            }
        }
    }
}

fn mark(rejections: &[Rejection], net: &mut Net) {
    for rejection in rejections {
        net.tell(|| format!("binder rejects {rejection:?}"));
        net.reach.mark(Mark::Rejection);
        if rejection.reason.is_conflict() {
            net.reach.mark(Mark::Conflict);
        }
        if rejection.reason == RejectionReason::QueueFull {
            net.reach.mark(Mark::FullQueue);
        }
    }
}

fn everything(decision: &Decision, reason: RejectionReason) -> Rejection {
    let ordinals = decision.groups.iter().flat_map(|group| group.ordinals.iter().copied()).collect();
    Rejection { reason, ordinals, node: NodeId(0), detail: String::new() }
}
