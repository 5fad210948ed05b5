//! What the leading binder does: decisions come in, transactions and outcomes go out. No I/O.
//!
//! [`BinderLeader`] owns the conflict check ([`Binder`]), the decisions that wait, which scheduler has which stream, and the
//! requests to evict. Whoever drives it (the service, the model of the whole control plane) hands it what was read
//! and what came, carries its transactions, and gives it an [`BinderOutbox`] for everything that it says.
//!
//! # Modules
//!
//! - `batch`: one transaction under construction, and who asked for what.
//! - `evict_jobs`: requests to evict, each answered once all its parts are durable.
//! - `move_jobs`: requests to move running units, each answered once all its moves are settled.
//! - `outbox`: what the leader says to others.
//! - `queue`: decisions that wait: for their turn, for a revision, for another transaction.
//! - `refused`: transactions that the store refused.
//! - `sessions`: schedulers and their streams.

mod batch;
mod evict_jobs;
mod move_jobs;
mod outbox;
mod queue;
mod refused;
mod sessions;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use godel_base::{
    ids::{Epoch, NodeId, Revision, StoreId, UnitId},
    time::Millis,
};
use godel_domain::{
    change::{Change, Commit},
    decision::{Decision, Outcome, Rejection, RejectionReason},
    hold::GangTurn,
    requested_move::RequestedMove,
    running_units::Evict,
    txn::TxnBuilder,
};

use self::{
    batch::Item,
    evict_jobs::{EvictJobs, split},
    move_jobs::MoveJobs,
    queue::{Queue, Queued},
    sessions::Sessions,
};
use crate::{Accepted, Binder, Gathering, HoldWork, MoveTerms, MoveVerdict, Verdict, moves::check_move};

pub use self::{
    batch::Batch,
    evict_jobs::JobId,
    move_jobs::MoveReport,
    outbox::{BinderNote, BinderOutbox, EvictFailure, StreamEnd},
    sessions::StreamId,
};

/// Refused transactions in a row that one item may cause.
const N_ATTEMPTS_MAX: u32 = 5;
/// Running units that come back in one transaction.
const N_REQUEUE_PART: usize = 16_384;

/// What the leading binder is configured with.
#[derive(Clone, Debug)]
pub struct BinderLeaderConfig {
    /// Bytes of operations and preconditions in one transaction; a single larger decision still goes.
    pub txn_bytes_max: usize,
    /// Running units in one transaction.
    pub txn_placements_max: usize,
    /// Decisions that wait to be checked; beyond that no more are taken.
    pub queued_max: usize,
    /// Running units in decisions without an outcome; beyond that no more are taken.
    pub placements_open_max: usize,
    /// The longest that a decision waits for a record that it rests on and that was not read yet, milliseconds.
    pub wait_ms: u64,
    /// The longest that room is held for running units whose victims have yet to leave, milliseconds.
    pub hold_ms: u64,
    /// The longest that a gang gathers room, milliseconds.
    pub gang_hold_ms: u64,
    /// Best-effort running units leave when they are above their node's room for longer than this, milliseconds.
    pub squeeze_ms: u64,
    /// Label, or else attribute, of a node whose value is its sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

/// A part of a request to evict that still has to be written.
#[derive(Debug)]
struct EvictPart {
    job: JobId,
    unit: UnitId,
    evict: Evict,
    attempts: u32,
}

/// The leading binder, as the module's documentation describes it.
#[derive(Debug)]
pub struct BinderLeader {
    binder: Binder,
    queue: Queue,
    sessions: Sessions,
    jobs: EvictJobs,
    evictions: VecDeque<EvictPart>,
    evictions_waiting: Vec<(Revision, EvictPart)>,
    moves: MoveJobs,
    /// No requeues before this is read: one was refused for something not read yet.
    requeue_from: Revision,
    /// What is to be done about holds, with what was read when it was checked.
    hold_work: VecDeque<(Revision, HoldWork)>,
    /// Nothing is done about holds before this is read.
    holds_from: Revision,
    last_sequence: u64,
    /// Running units in decisions without an outcome.
    n_placements_open: usize,
    synced: bool,
    /// The store that is read.
    store: StoreId,
    config: BinderLeaderConfig,
}

impl BinderLeader {
    /// Returns a binder that has read nothing and leads nothing.
    pub fn new(config: BinderLeaderConfig) -> Self {
        let mut binder = Binder::new();
        binder.set_sub_cluster_key(&config.sub_cluster_key);
        Self {
            binder,
            queue: Queue::default(),
            sessions: Sessions::default(),
            jobs: EvictJobs::default(),
            evictions: VecDeque::new(),
            evictions_waiting: Vec::new(),
            moves: MoveJobs::default(),
            requeue_from: Revision(0),
            hold_work: VecDeque::new(),
            holds_from: Revision(0),
            last_sequence: 0,
            n_placements_open: 0,
            synced: false,
            store: StoreId(0),
            config,
        }
    }

    /// Returns the conflict check, to be looked at.
    pub fn binder(&self) -> &Binder {
        &self.binder
    }

    /// Returns the revision up to which everything has been read; `None` while a list is being read.
    pub fn read(&self) -> Option<Revision> {
        self.synced.then(|| self.binder.revision())
    }

    /// Returns the store that is read; 0 before the first list.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Another store is read from here on: streams, decisions and requests are of the one before. Epochs of leases may
    /// begin again there.
    pub fn change_store(&mut self, store: StoreId, out: &mut impl BinderOutbox) {
        if self.store != StoreId(0) {
            self.step_down(out);
            self.sessions = Sessions::default();
        }
        self.store = store;
    }

    /// Whether more decisions may come.
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.config.queued_max && self.n_placements_open < self.config.placements_open_max
    }

    /// Returns how many decisions wait.
    pub fn n_queued(&self) -> usize {
        self.queue.len()
    }

    /// Forgets everything that was read: a list follows.
    pub fn reset(&mut self) {
        self.binder.reset();
        self.synced = false;
    }

    /// Reads a record of the list.
    pub fn load(&mut self, change: Change, revision: Revision, created_ms: i64) {
        self.binder.on_change(change, revision, created_ms);
    }

    /// Everything up to `revision` has been read: a list is complete, or the commits since had nothing for the binder.
    pub fn on_synced(&mut self, revision: Revision, out: &mut impl BinderOutbox) {
        self.synced = true;
        self.binder.on_revision(revision);
        self.on_read(revision, out);
    }

    /// Reads a commit after the list.
    pub fn apply(&mut self, commit: &Commit, out: &mut impl BinderOutbox) {
        self.binder.apply(commit);
        self.on_read(commit.revision, out);
    }

    /// Goes on with what waited for this revision.
    fn on_read(&mut self, revision: Revision, out: &mut impl BinderOutbox) {
        let n_woken = self.queue.on_revision(revision);
        recheck(n_woken, out);
        let ready = self.evictions_waiting.extract_if(.., |(at, _)| *at <= revision);
        self.evictions.extend(ready.map(|(_, part)| part));
        self.moves.on_read(revision);
    }

    /// Begins to lead, with this epoch.
    pub fn lead(&mut self, epoch: Epoch) {
        self.binder.lead(epoch, self.config.hold_ms, self.config.squeeze_ms);
        self.binder.gather_for(self.config.gang_hold_ms);
    }

    /// Takes the time of day, Unix milliseconds.
    pub fn on_wall(&mut self, wall_ms: i64) {
        self.binder.on_wall(wall_ms);
    }

    /// Returns how many holds there are.
    pub fn n_holds(&self) -> usize {
        self.binder.n_holds()
    }

    /// Returns the gangs that gather room now.
    pub fn gathering(&self) -> Vec<Gathering> {
        self.binder.picture().gathering()
    }

    /// Opens the stream of a scheduler under the epoch of its lease; `leader` is the epoch of the binder's.
    pub fn open(
        &mut self,
        id: StreamId,
        scheduler: &str,
        epoch: Epoch,
        leader: Epoch,
        out: &mut impl BinderOutbox,
    ) {
        match self.sessions.open(id, scheduler, epoch, out) {
            Ok(()) => out.welcome(id, leader),
            Err(_later) => out.end(id, StreamEnd::StaleEpoch),
        }
    }

    /// Ends a stream.
    pub fn close(&mut self, id: StreamId) {
        self.sessions.close(id);
    }

    /// Takes decisions of a stream; those of a stream that was replaced are left to the new one.
    pub fn decide(
        &mut self,
        id: StreamId,
        decisions: Vec<Decision>,
        now: Millis,
        out: &mut impl BinderOutbox,
    ) {
        let Some((scheduler, epoch)) = self.sessions.of(id) else { return };
        for decision in decisions {
            if !self.sessions.take(&scheduler, decision.id) {
                continue;
            }
            out.note(BinderNote::Decision);
            self.last_sequence += 1;
            self.n_placements_open += decision.len();
            self.queue.push(Box::new(Queued {
                scheduler: scheduler.clone(),
                epoch,
                priority: self.binder.picture.priority(decision.unit),
                decision,
                sequence: self.last_sequence,
                attempts: 0,
                arrived: now,
            }));
        }
    }

    /// Takes a request to evict, which is answered once it is durable. `read` is what its caller had read: what the request is about may
    /// not have been read here, though it was bound here, so that the request waits for that.
    pub fn evict(
        &mut self,
        job: JobId,
        asked: &[(UnitId, Evict)],
        read: Revision,
        out: &mut impl BinderOutbox,
    ) {
        let waits = read > self.binder.revision();
        let asked = if waits { asked.to_vec() } else { self.binder.evictions(asked) };
        let parts: Vec<(UnitId, Evict)> =
            asked.into_iter().flat_map(|(unit, evict)| split(unit, evict)).collect();
        if parts.is_empty() {
            return out.evicted(job, Ok(self.binder.revision()));
        }
        self.jobs.open(job, parts.len());
        let parts = parts.into_iter().map(|(unit, evict)| EvictPart { job, unit, evict, attempts: 0 });
        if waits {
            self.evictions_waiting.extend(parts.map(|part| (read, part)));
        } else {
            self.evictions.extend(parts);
        }
    }

    /// Takes a request to move running units, which is answered once each of them is durable or refused. `read` is what its caller
    /// had read, as with [`Self::evict`].
    pub fn move_units(
        &mut self,
        job: JobId,
        terms: MoveTerms,
        moves: Vec<RequestedMove>,
        read: Revision,
        out: &mut impl BinderOutbox,
    ) {
        self.moves.open(job, terms, moves, read, self.binder.revision(), out);
    }

    /// Adds the moves that wait, as far as they may be made now.
    fn add_moves(&mut self, batch: &mut Batch, txn: &mut impl TxnBuilder, out: &mut impl BinderOutbox) {
        while !self.is_full(batch)
            && let Some((part, terms)) = self.moves.pop()
        {
            let read = self.binder.revision();
            match check_move(&mut self.binder, &terms, &part.asked) {
                MoveVerdict::Move(accepted) => {
                    let queue = accepted.queue.filter(|queue| !batch.rests_on(*queue));
                    batch.push(Item::Move { part, accepted }, txn);
                    if let Some(queue) = queue {
                        batch.need_queues(queue, self.binder.picture.quotas.records(queue), txn);
                    }
                }
                MoveVerdict::Made(made) => self.moves.settle(&part, Ok(made), read, out),
                MoveVerdict::Refuse(refusal) => {
                    out.note(BinderNote::MoveRefused(refusal.reason));
                    self.moves.settle(&part, Err(refusal), read, out);
                }
            }
        }
    }

    /// Returns the next transaction: evictions, moves, running units that come back, then decisions by priority. `None`
    /// when there is nothing to write now. Decisions that bind nothing are answered on the way.
    pub fn next_batch(&mut self, txn: &mut impl TxnBuilder, out: &mut impl BinderOutbox) -> Option<Batch> {
        if self.binder.has_squeezes() {
            self.squeeze(out);
        }
        let mut batch = Batch::new(self.binder.revision());
        while !self.is_full(&batch)
            && let Some(part) = self.evictions.pop_front()
        {
            match self.binder.depart(part.unit, part.evict) {
                Some(departure) => {
                    let departure = Box::new(departure);
                    let item = Item::Evict { job: part.job, departure, attempts: part.attempts };
                    batch.push(item, txn);
                }
                None => self.jobs.part_done(part.job, self.binder.revision(), out),
            }
        }
        self.add_moves(&mut batch, txn, out);
        if !self.is_full(&batch)
            && self.binder.requeues.has_ready()
            && self.binder.revision() >= self.requeue_from
        {
            for work in self.binder.take_requeues(N_REQUEUE_PART) {
                batch.push(Item::Requeue(work), txn);
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
                let turn = ends.first().and_then(|(id, _)| self.binder.holds.known.turn_of(*id));
                batch.turn_ends.extend(turn.map(|(unit, turn)| (unit, turn, why)));
                let item = match work {
                    HoldWork::Bind(accepted) => Item::Convert(accepted),
                    HoldWork::Reserve { reservation, holds } => Item::Reserve { reservation, holds },
                    HoldWork::Drop { holds, why } => Item::Drop { holds, why },
                };
                batch.push(item, txn);
            }
        }
        while !self.is_full(&batch)
            && let Some(queued) = self.queue.pop()
        {
            match self.binder.check(&queued.decision) {
                Verdict::Bind(accepted) => {
                    let queue = accepted.queue;
                    batch.turn_ends.extend(self.turn_ended(&accepted));
                    batch.push(Item::Decision { queued, accepted }, txn);
                    if !batch.rests_on(queue) {
                        batch.need_queues(queue, self.binder.picture.quotas.records(queue), txn);
                    }
                }
                Verdict::Wait(wait) => self.queue.park(queued, wait),
                Verdict::Reject(rejections) => self.answer(&queued, Revision(0), false, rejections, out),
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Whether something could be written now.
    pub fn has_work(&self) -> bool {
        let requeues = self.binder.requeues.has_ready() && self.binder.revision() >= self.requeue_from;
        let evicts = !self.evictions.is_empty() || self.moves.has_ready() || self.binder.has_squeezes();
        self.queue.has_ready() || evicts || requeues || self.has_hold_work()
    }

    /// Best-effort running units above the room of their nodes are to leave: nobody asked, so nobody is answered.
    fn squeeze(&mut self, out: &mut impl BinderOutbox) {
        for (unit, evict) in self.binder.take_squeezes() {
            out.note(BinderNote::Squeezed(evict.ordinals.len()));
            let parts = split(unit, evict).into_iter();
            self.evictions.extend(parts.map(|(unit, evict)| EvictPart {
                job: JobId::NONE,
                unit,
                evict,
                attempts: 0,
            }));
        }
    }

    /// Returns the nodes whose best-effort running units are above their room.
    pub fn n_over(&self) -> usize {
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
    pub fn on_committed(&mut self, batch: Batch, revision: Revision, out: &mut impl BinderOutbox) {
        out.note(BinderNote::Committed);
        for (unit, turn, why) in &batch.turn_ends {
            out.note(BinderNote::TurnEnded { unit: *unit, turn, why });
        }
        for item in batch.items {
            let n = item.len();
            match item {
                Item::Decision { queued, accepted } => {
                    out.note(BinderNote::Accepted(&accepted));
                    self.binder.commit(accepted.ticket, revision);
                    recheck(self.queue.on_ticket(accepted.ticket), out);
                    let held = !accepted.holds.is_empty();
                    self.answer(&queued, revision, held, accepted.rejections, out);
                }
                Item::Convert(accepted) => {
                    out.note(BinderNote::HoldsBound(&accepted));
                    self.binder.commit(accepted.ticket, revision);
                    recheck(self.queue.on_ticket(accepted.ticket), out);
                }
                Item::Reserve { reservation: (reservation, _), .. } => {
                    out.note(BinderNote::SlotsHeld { reservation: &reservation, n_slots: n });
                }
                Item::Drop { why, .. } => out.note(BinderNote::HoldsDropped { why, n_holds: n }),
                Item::Requeue(_) => out.note(BinderNote::Requeued(n)),
                Item::Evict { job, departure, .. } => {
                    out.note(BinderNote::Evicted { reason: departure.evict.reason, n });
                    self.jobs.part_done(job, revision, out);
                }
                Item::Move { part, accepted } => {
                    out.note(BinderNote::Moved(&accepted));
                    self.moves.settle(&part, Ok(accepted.made()), revision, out);
                }
            }
        }
    }

    /// Takes up decisions that have waited too long: those that rest on a record that was never read are
    /// rejected, the others checked again by what has been read. Whether some still wait.
    pub fn expire(&mut self, now: Millis, out: &mut impl BinderOutbox) -> bool {
        for mut queued in self.queue.expire(Millis(now.0.saturating_sub(self.config.wait_ms))) {
            if queued.decision.spec_revision > self.binder.revision() {
                let detail = "a record that it rests on was not read in time".to_owned();
                let rejections = vec![everything(&queued.decision, RejectionReason::Stale, detail)];
                self.answer(&queued, Revision(0), false, rejections, out);
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

    /// Whether some decisions wait for a revision.
    pub fn has_waits(&self) -> bool {
        self.queue.has_waits()
    }

    /// Leadership is over: nothing is answered, everything under way is forgotten. The schedulers send it
    /// again to the next leader.
    pub fn step_down(&mut self, out: &mut impl BinderOutbox) {
        self.binder.take_back_all();
        self.queue.clear();
        self.n_placements_open = 0;
        self.sessions.close_all(out);
        self.jobs.fail_all(out);
        self.moves.fail_all(out);
        self.evictions.clear();
        self.evictions_waiting.clear();
        self.requeue_from = Revision(0);
        self.hold_work.clear();
        self.holds_from = Revision(0);
    }

    /// Sends the outcomes that have gathered.
    pub fn flush(&mut self, out: &mut impl BinderOutbox) {
        self.sessions.flush(out);
    }

    /// Returns the turn that a decision of its gang ends: it fits elsewhere, or has others leave.
    fn turn_ended(&self, accepted: &Accepted) -> Option<(UnitId, GangTurn, &'static str)> {
        let (unit, turn) = accepted.gone.iter().find_map(|(id, _)| self.binder.holds.known.turn_of(*id))?;
        Some((unit, turn, if accepted.holds.is_empty() { "bound" } else { "preempts" }))
    }

    fn answer(
        &mut self,
        queued: &Queued,
        revision: Revision,
        held: bool,
        rejections: Vec<Rejection>,
        out: &mut impl BinderOutbox,
    ) {
        self.n_placements_open -= queued.decision.len();
        if !rejections.is_empty() {
            out.note(BinderNote::Rejected(&rejections));
        }
        let outcome = Outcome {
            decision_id: queued.decision.id,
            unit: queued.decision.unit,
            revision,
            held,
            nodes: self.binder.picture.fresh_nodes(queued.decision.unit, &rejections),
            rejections,
        };
        self.sessions.answer(&queued.scheduler, queued.epoch, outcome);
    }
}

fn recheck(n_woken: usize, out: &mut impl BinderOutbox) {
    if n_woken > 0 {
        out.note(BinderNote::Rechecked(n_woken));
    }
}

fn everything(decision: &Decision, reason: RejectionReason, detail: String) -> Rejection {
    let ordinals = decision.groups.iter().flat_map(|group| group.ordinals.iter().copied()).collect();
    Rejection { reason, ordinals, node: NodeId(0), detail }
}
