//! What the leading binder does: decisions come in, transactions and outcomes go out. No I/O.
//!
//! Owns the conflict check ([`godel_core_binder::Binder`]), the decisions that wait, the streams' addresses
//! and the requests to evict. The [`engine`](crate::engine) feeds it and carries its transactions.

mod batch;
mod jobs;
mod queue;
mod sessions;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use godel_core_binder::{Binder, Departure, Gathering, HoldWork, Verdict, Wait};
use godel_domain::{
    decision::{Decision, Outcome, Rejection, RejectionReason},
    ids::{Epoch, NodeId, Revision, StoreId, UnitId},
    running_units::Evict,
    time::Millis,
};
use godel_kit::{informer::FollowEvent, status, txn::Committed};
use godel_proto::v1::{self, TxnRefusalReason};
use godel_wire::to_proto;
use tonic::Status;

use self::{
    jobs::{JobId, Jobs, split},
    queue::{Queue, Queued},
    sessions::Sessions,
};
use crate::{
    config::Config,
    metrics::{BinderMetrics, WhyLabel},
};

pub(crate) use self::{
    batch::{Batch, Item},
    jobs::Reply,
    sessions::{OutcomeSender, StreamId},
};

/// Refused transactions in a row that one item may cause.
const N_ATTEMPTS_MAX: u32 = 5;
/// Running units that come back in one transaction.
const N_REQUEUE_PART: usize = 16_384;

/// A part of a request to evict that still has to be written.
#[derive(Debug)]
struct EvictPart {
    job: JobId,
    unit: UnitId,
    evict: Evict,
    attempts: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct BinderLeader {
    binder: Binder,
    queue: Queue,
    sessions: Sessions,
    jobs: Jobs,
    evictions: VecDeque<EvictPart>,
    evictions_waiting: Vec<(Revision, EvictPart)>,
    /// No requeues before this is read: one was refused for something not read yet.
    requeue_from: Revision,
    /// What is to be done about holds, and not before this is read.
    /// With what was read when it was checked.
    hold_work: VecDeque<(Revision, HoldWork)>,
    holds_from: Revision,
    last_sequence: u64,
    /// Running units in decisions without an outcome.
    n_placements_open: usize,
    synced: bool,
    /// What is read.
    store: StoreId,
    config: Config,
    metrics: BinderMetrics,
}

impl BinderLeader {
    pub(crate) fn new(config: Config, metrics: BinderMetrics) -> Self {
        let mut binder = Binder::new();
        binder.set_sub_cluster_key(&config.sub_cluster_key);
        Self {
            binder,
            queue: Queue::default(),
            sessions: Sessions::default(),
            jobs: Jobs::default(),
            evictions: VecDeque::new(),
            evictions_waiting: Vec::new(),
            requeue_from: Revision(0),
            hold_work: VecDeque::new(),
            holds_from: Revision(0),
            last_sequence: 0,
            n_placements_open: 0,
            synced: false,
            store: StoreId(0),
            config,
            metrics,
        }
    }

    /// Everything up to here has been read; `None` while a list is being read.
    pub(crate) fn read(&self) -> Option<Revision> {
        self.synced.then(|| self.binder.revision())
    }

    /// The store that is read; 0 before the first list.
    pub(crate) fn store(&self) -> StoreId {
        self.store
    }

    /// Another store is read from here on: streams, decisions and requests are of the one before. Epochs of leases may
    /// begin anew there.
    pub(crate) fn change_store(&mut self, store: StoreId) {
        if self.store != StoreId(0) {
            tracing::warn!(
                before = self.store.0,
                store = store.0,
                "the store is another one, everything is read anew"
            );
            self.step_down(None);
            self.sessions = Sessions::default();
        }
        self.store = store;
    }

    /// More decisions may come.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.config.queued_max && self.n_placements_open < self.config.placements_open_max
    }

    /// Decisions that wait.
    pub(crate) fn n_queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { .. } => {
                self.binder.reset();
                self.synced = false;
            }
            FollowEvent::Loaded(records) => {
                for record in records {
                    self.binder.on_change(record.change, record.revision, record.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => {
                self.synced = true;
                self.on_revision(revision);
            }
            FollowEvent::Changes { revision, time_ms, changes } => {
                for change in changes {
                    self.binder.on_change(change, revision, time_ms);
                }
                self.on_revision(revision);
            }
        }
    }

    fn on_revision(&mut self, revision: Revision) {
        self.binder.on_revision(revision);
        let n_woken = self.queue.on_revision(revision);
        self.count_rechecks(n_woken);
        let ready = self.evictions_waiting.extract_if(.., |(at, _)| *at <= revision);
        self.evictions.extend(ready.map(|(_, part)| part));
    }

    /// Leads with this epoch.
    pub(crate) fn lead(&mut self, epoch: Epoch) {
        let hold_ms = u64::try_from(self.config.hold_max.as_millis()).unwrap_or(u64::MAX);
        let squeeze_ms = u64::try_from(self.config.squeeze_after.as_millis()).unwrap_or(u64::MAX);
        self.binder.lead(epoch, hold_ms, squeeze_ms);
        self.binder.gather_for(u64::try_from(self.config.gang_hold_max.as_millis()).unwrap_or(u64::MAX));
    }

    /// The time of day, Unix milliseconds.
    pub(crate) fn on_wall(&mut self, wall_ms: i64) {
        self.binder.on_wall(wall_ms);
    }

    /// Holds now.
    pub(crate) fn n_holds(&self) -> usize {
        self.binder.n_holds()
    }

    /// Gangs that gather room now.
    pub(crate) fn gathering(&self) -> Vec<Gathering> {
        self.binder.gathering()
    }

    /// A scheduler opened a stream.
    pub(crate) fn open(
        &mut self,
        id: StreamId,
        scheduler: &str,
        epoch: Epoch,
        leader: Epoch,
        sender: OutcomeSender,
    ) {
        let welcome = v1::decide_response::Message::Welcome(v1::DecideWelcome { epoch: leader.0 });
        let first = match self.sessions.open(id, scheduler, epoch, sender.clone()) {
            Ok(()) => Ok(v1::DecideResponse { message: Some(welcome) }),
            Err(_later) => Err(status::stale_epoch(&format!("scheduler/{scheduler}"), epoch.0)),
        };
        // The queue of a new stream is empty, and if nobody reads it the stream's end is noticed.
        let _ = sender.try_send(first);
    }

    /// A stream ended.
    pub(crate) fn close(&mut self, id: StreamId) {
        self.sessions.close(id);
    }

    /// Decisions of a stream; those of a stream that was replaced are left to the new one.
    pub(crate) fn decide(&mut self, id: StreamId, decisions: Vec<Decision>, now: Millis) {
        let Some((scheduler, epoch)) = self.sessions.of(id) else { return };
        for decision in decisions {
            if !self.sessions.take(&scheduler, decision.id) {
                continue;
            }
            self.metrics.decisions.inc();
            self.last_sequence += 1;
            self.n_placements_open += decision.len();
            self.queue.push(Box::new(Queued {
                scheduler: scheduler.clone(),
                epoch,
                priority: self.binder.priority(decision.unit),
                decision,
                sequence: self.last_sequence,
                attempts: 0,
                arrived: now,
            }));
        }
    }

    /// A request to evict by somebody who had read so much; answered once it is durable. What it is about may not have
    /// been read here, though it was bound here: it waits for that.
    pub(crate) fn evict(&mut self, asked: &[(UnitId, Evict)], read: Revision, reply: Reply) {
        let waits = read > self.binder.revision();
        let asked = if waits { asked.to_vec() } else { self.binder.evictions(asked) };
        let parts: Vec<(UnitId, Evict)> =
            asked.into_iter().flat_map(|(unit, evict)| split(unit, evict)).collect();
        if parts.is_empty() {
            // The caller may have gone.
            let _ = reply.send(Ok(self.binder.revision()));
            return;
        }
        let job = self.jobs.open(parts.len(), reply);
        let parts = parts.into_iter().map(|(unit, evict)| EvictPart { job, unit, evict, attempts: 0 });
        if waits {
            self.evictions_waiting.extend(parts.map(|part| (read, part)));
        } else {
            self.evictions.extend(parts);
        }
    }

    /// The next transaction: evictions, running units that come back, then decisions by priority. `None`
    /// when there is nothing to write now. Decisions that bind nothing are answered on the way.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        if self.binder.has_squeezes() {
            self.squeeze();
        }
        let mut batch = Batch::new(self.binder.revision());
        while !self.is_full(&batch)
            && let Some(part) = self.evictions.pop_front()
        {
            match self.binder.depart(part.unit, part.evict) {
                Some(departure) => {
                    let departure = Box::new(departure);
                    batch.push(Item::Evict { job: part.job, departure, attempts: part.attempts });
                }
                None => self.jobs.part_done(part.job, self.binder.revision()),
            }
        }
        if !self.is_full(&batch) && self.binder.has_requeues() && self.binder.revision() >= self.requeue_from
        {
            for work in self.binder.take_requeues(N_REQUEUE_PART) {
                batch.push(Item::Requeue(work));
            }
        }
        if self.has_hold_work() {
            let read = self.binder.revision();
            self.hold_work.extend(self.binder.take_hold_work().into_iter().map(|work| (read, work)));
            while !self.is_full(&batch)
                && let Some((read, work)) = self.hold_work.pop_front()
            {
                batch.read = batch.read.min(read);
                let (ends, why) = match &work {
                    HoldWork::Bind(accepted) => (accepted.ends.as_slice(), "bound"),
                    HoldWork::Drop { holds, why } => (holds.as_slice(), *why),
                    HoldWork::Reserve { .. } => (&[][..], ""),
                };
                let turn = ends.first().and_then(|(id, _)| self.binder.turn_of(*id));
                batch.turn_ends.extend(turn.map(|(unit, turn)| (unit, turn, why)));
                batch.push(match work {
                    HoldWork::Bind(accepted) => Item::Convert(accepted),
                    HoldWork::Reserve { reservation, holds } => Item::Reserve { reservation, holds },
                    HoldWork::Drop { holds, why } => Item::Drop { holds, why },
                });
            }
        }
        while !self.is_full(&batch)
            && let Some(queued) = self.queue.pop()
        {
            match self.binder.check(&queued.decision) {
                Verdict::Bind(accepted) => {
                    let queue = accepted.queue;
                    batch.turn_ends.extend(self.turn_ended(&accepted));
                    batch.push(Item::Decision { queued, accepted });
                    if !batch.rests_on(queue) {
                        batch.need_queues(queue, self.binder.queue_records(queue));
                    }
                }
                Verdict::Wait(wait) => self.queue.park(queued, wait),
                Verdict::Reject(rejections) => self.answer(&queued, Revision(0), rejections),
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Something could be written now.
    pub(crate) fn has_work(&self) -> bool {
        let requeues = self.binder.has_requeues() && self.binder.revision() >= self.requeue_from;
        let evicts = !self.evictions.is_empty() || self.binder.has_squeezes();
        self.queue.has_ready() || evicts || requeues || self.has_hold_work()
    }

    /// Best-effort running units above the room of their nodes are to leave: nobody asked, so nobody is answered.
    fn squeeze(&mut self) {
        for (unit, evict) in self.binder.take_squeezes() {
            self.metrics.squeezed.inc_by(evict.ordinals.len() as u64);
            let parts = split(unit, evict).into_iter();
            self.evictions.extend(parts.map(|(unit, evict)| EvictPart {
                job: JobId::NONE,
                unit,
                evict,
                attempts: 0,
            }));
        }
    }

    /// Nodes whose best-effort running units are above their room.
    pub(crate) fn n_over(&self) -> usize {
        self.binder.n_over()
    }

    fn has_hold_work(&self) -> bool {
        let any = !self.hold_work.is_empty() || self.binder.has_hold_work();
        any && self.binder.revision() >= self.holds_from
    }

    fn is_full(&self, batch: &Batch) -> bool {
        batch.n_bytes() >= self.config.txn_bytes_max || batch.n_placements() >= self.config.txn_placements_max
    }

    /// A transaction is durable.
    pub(crate) fn on_committed(&mut self, batch: Batch, committed: Committed) {
        self.metrics.txns.inc();
        let revision = committed.revision;
        for (unit, turn, why) in batch.turn_ends {
            self.metrics.gang_turns_ended.get_or_create(&WhyLabel { why }).inc();
            tracing::info!(unit = unit.0, why, since_ms = turn.since_ms, "a gang gathers no longer");
        }
        for item in batch.items {
            let count = u64::try_from(item.len()).unwrap_or(u64::MAX);
            match item {
                Item::Decision { queued, accepted } => {
                    if accepted.holds.is_empty() {
                        self.metrics.bound.inc_by(count);
                    } else {
                        self.metrics.held.inc_by(count);
                        let n =
                            accepted.evictions.iter().map(|(_, evict)| evict.ordinals.len()).sum::<usize>();
                        self.metrics.preempted.inc_by(u64::try_from(n).unwrap_or(u64::MAX));
                    }
                    self.count_gone(&accepted);
                    self.begin_turn(&accepted);
                    self.binder.commit(accepted.ticket, revision);
                    let n_woken = self.queue.on_ticket(accepted.ticket);
                    self.count_rechecks(n_woken);
                    let held = !accepted.holds.is_empty();
                    self.answer_held(&queued, revision, held, accepted.rejections);
                }
                Item::Convert(accepted) => {
                    self.metrics.bound.inc_by(count);
                    self.metrics.holds_bound.inc_by(u64::try_from(accepted.ends.len()).unwrap_or(u64::MAX));
                    self.binder.commit(accepted.ticket, revision);
                    let n_woken = self.queue.on_ticket(accepted.ticket);
                    self.count_rechecks(n_woken);
                }
                Item::Reserve { reservation: (name, _), .. } => {
                    self.metrics.slots_held.inc_by(count);
                    tracing::info!(reservation = name, slots = count, "slots of a reservation are held");
                }
                Item::Drop { why, .. } => {
                    self.metrics.holds_dropped.get_or_create(&WhyLabel { why }).inc_by(count);
                }
                Item::Requeue(_) => {
                    self.metrics.requeued.inc_by(count);
                }
                Item::Evict { job, departure, .. } => {
                    self.metrics.evict(departure.evict.reason, count);
                    self.jobs.part_done(job, revision);
                }
            }
        }
    }

    /// The store refused a transaction: its items are taken back. The one that it was refused for is checked
    /// again once what it collided with has been read, the others at once.
    pub(crate) fn on_refused(&mut self, batch: Batch, refusal: &v1::TxnRefusal) {
        self.metrics.txns_refused.inc();
        let idx = usize::try_from(refusal.index).unwrap_or(usize::MAX);
        let (offenders, hopeless) = match refusal.reason() {
            TxnRefusalReason::Precondition | TxnRefusalReason::FutureRevision => {
                (batch.items_of_precondition(idx), false)
            }
            TxnRefusalReason::RowConflict | TxnRefusalReason::NodeChanged => (batch.item_of_op(idx), false),
            TxnRefusalReason::Invalid | TxnRefusalReason::Forbidden | TxnRefusalReason::Unspecified => {
                tracing::error!(reason = ?refusal.reason(), why = refusal.message, "the store refused a transaction");
                (batch.item_of_op(idx), true)
            }
            // Nobody's fault.
            TxnRefusalReason::StoreFull | TxnRefusalReason::StaleEpoch | TxnRefusalReason::StoreChanged => {
                (Vec::new(), false)
            }
        };
        let by_record =
            matches!(refusal.reason(), TxnRefusalReason::Precondition | TxnRefusalReason::NodeChanged);
        let at = match refusal.revision {
            0 => Revision(batch.read.0 + 1),
            revision => Revision(revision),
        };
        for (idx, item) in batch.items.into_iter().enumerate() {
            let offends = offenders.contains(&idx);
            match item {
                Item::Decision { mut queued, accepted } => {
                    self.binder.take_back(accepted.ticket);
                    let n_woken = self.queue.on_ticket(accepted.ticket);
                    self.count_rechecks(n_woken);
                    queued.attempts += u32::from(offends);
                    let is_worn = queued.attempts > N_ATTEMPTS_MAX;
                    if offends && (hopeless || (is_worn && !by_record)) {
                        let reason = if hopeless { RejectionReason::Invalid } else { RejectionReason::Stale };
                        let rejections = vec![everything(&queued.decision, reason, refusal.message.clone())];
                        self.answer(&queued, Revision(0), rejections);
                    } else if offends && (is_worn || at > self.binder.revision()) {
                        // Records may change as often as they like, but we have to see them do so.
                        let at = if is_worn { at.max(Revision(self.binder.revision().0 + 1)) } else { at };
                        self.queue.park(queued, Wait::Revision(at));
                    } else {
                        self.queue.push(queued);
                    }
                }
                Item::Convert(accepted) => {
                    self.binder.take_back(accepted.ticket);
                    let n_woken = self.queue.on_ticket(accepted.ticket);
                    self.count_rechecks(n_woken);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Reserve { holds, .. } => {
                    self.binder.unreserve(&holds);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Drop { holds, .. } => {
                    self.binder.keep_holds(&holds);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Requeue(work) => {
                    self.binder.requeue_refused(&work);
                    if offends {
                        self.requeue_from = at;
                    }
                }
                Item::Evict { job, departure, attempts } => {
                    let Departure { unit, evict, .. } = *departure;
                    self.binder.departure_refused(unit, &evict);
                    let part = EvictPart { job, unit, evict, attempts: attempts + u32::from(offends) };
                    if part.attempts > N_ATTEMPTS_MAX || (offends && hopeless) {
                        self.jobs.fail(job, Status::aborted(refusal.message.clone()));
                    } else if offends && at > self.binder.revision() {
                        self.evictions_waiting.push((at, part));
                    } else {
                        self.evictions.push_back(part);
                    }
                }
            }
        }
    }

    /// Takes up decisions that have waited too long: those that rest on a record that was never read are
    /// rejected, the others checked again by what has been read. Whether some still wait.
    pub(crate) fn expire(&mut self, now: Millis) -> bool {
        let wait_max = u64::try_from(self.config.wait_max.as_millis()).unwrap_or(u64::MAX);
        for mut queued in self.queue.expire(Millis(now.0.saturating_sub(wait_max))) {
            if queued.decision.spec_revision > self.binder.revision() {
                let detail = "a record that it rests on was not read in time".to_owned();
                let rejections = vec![everything(&queued.decision, RejectionReason::Stale, detail)];
                self.answer(&queued, Revision(0), rejections);
            } else {
                // Nothing is known of a node that it was not known to know of: this is not the time for another wait.
                let read = self.binder.revision();
                queued.decision.nodes_as_of = queued.decision.nodes_as_of.min(read);
                queued.arrived = now;
                self.queue.push(queued);
            }
        }
        self.queue.has_waits()
    }

    /// Some decisions wait for a revision.
    pub(crate) fn has_waits(&self) -> bool {
        self.queue.has_waits()
    }

    /// Leadership is over: nothing is answered, everything under way is forgotten. The schedulers send it
    /// again to the next leader.
    pub(crate) fn step_down(&mut self, leader: Option<&str>) {
        let status = status::not_leader(leader);
        self.binder.take_back_all();
        self.queue.clear();
        self.n_placements_open = 0;
        self.sessions.close_all(&status);
        self.jobs.fail_all(&status);
        self.evictions.clear();
        self.evictions_waiting.clear();
        self.requeue_from = Revision(0);
        self.hold_work.clear();
        self.holds_from = Revision(0);
    }

    /// Sends the outcomes that have gathered.
    pub(crate) fn flush(&mut self) {
        self.metrics.streams_cut.inc_by(self.sessions.flush());
    }

    fn answer(&mut self, queued: &Queued, revision: Revision, rejections: Vec<Rejection>) {
        self.answer_held(queued, revision, false, rejections);
    }

    fn answer_held(&mut self, queued: &Queued, revision: Revision, held: bool, rejections: Vec<Rejection>) {
        self.n_placements_open -= queued.decision.len();
        for rejection in &rejections {
            self.metrics.reject(rejection.reason, rejection.ordinals.len());
        }
        let outcome = Outcome {
            decision_id: queued.decision.id,
            unit: queued.decision.unit,
            revision,
            held,
            nodes: self.binder.fresh_nodes(queued.decision.unit, &rejections),
            rejections,
        };
        self.sessions.answer(&queued.scheduler, queued.epoch, to_proto::outcome(&outcome));
    }

    fn count_rechecks(&self, n_woken: usize) {
        self.metrics.rechecked.inc_by(u64::try_from(n_woken).unwrap_or(u64::MAX));
    }
}

fn everything(decision: &Decision, reason: RejectionReason, detail: String) -> Rejection {
    let ordinals = decision.groups.iter().flat_map(|group| group.ordinals.iter().copied()).collect();
    Rejection { reason, ordinals, node: NodeId(0), detail }
}
