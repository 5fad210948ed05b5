//! The conflict check: the one place that says which of the schedulers' decisions become bindings.
//!
//! [`Binder`] is made of parts that each own their state: a picture of the cluster that follows the committed records, and
//! on top of it the bindings that are under way: accepted by [`Binder::check`], not yet known to be committed. Every check
//! counts both, so bindings of several transactions in flight never take the same room, on a node or in a queue. Other parts
//! are the holds, the evictions under way, the running units that have to come back (evicted, ended, still wanted), the slots
//! of reservations and the nodes above their best-effort room. A record, or the fate of a transaction, reaches each part that
//! it concerns; a check reads all of them. Writing transactions, and answering, is the caller's business.
//!
//! Nothing here survives a restart and nothing needs to: a new binder reads the records and goes on.
//!
//! # Modules
//!
//! - `budgets`: what disruption budgets allow, for preemptions and drains.
//! - `check`: one decision against the records and against everything under way.
//! - `claims`: decisions with victims: whether each may leave, and the holds that they become.
//! - `classes`: priorities of units by their class.
//! - `events`: what records and the fates of transactions change.
//! - `frozen`: what is not decided while records cannot be read.
//! - `gangs`: turns of gangs that gather room.
//! - `holds`: holds until they are bound, or end.
//! - `leader`: the leading binder: decisions in, transactions and outcomes out.
//! - `maxima`: maxima of queues where victims leave the queue.
//! - `moves`: running units that move to other nodes.
//! - `pending_evictions`: evictions under way.
//! - `picture`: what the records say, and the room that is taken on top of them.
//! - `quotas`: what queues may use, and do use with bindings under way.
//! - `requeue`: running units that have to come back.
//! - `reservations`: slots of reservations: where they are, and who takes them.
//! - `squeeze_victims`: which best-effort running units leave a node that is over its room.
//! - `squeeze`: when best-effort running units have to leave.
//! - `under_way`: decisions accepted and not yet read as records.
//! - `unit`: what is kept of a unit's record.

mod budgets;
mod check;
mod claims;
mod classes;
mod events;
mod frozen;
mod gangs;
mod holds;
pub mod leader;
mod maxima;
mod moves;
mod pending_evictions;
mod picture;
mod quotas;
mod requeue;
mod reservations;
mod squeeze;
mod squeeze_victims;
mod under_way;
mod unit;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use godel_base::ids::{Epoch, HoldId, Revision, UnitId};
use godel_cluster::Cluster;
use godel_domain::{
    decision::Rejection,
    hold::Hold,
    running_units::{Bind, Evict},
};
use godel_queueing::QueueIdx;

use self::{
    holds::BinderHolds, pending_evictions::PendingEvictions, requeue::Requeues, reservations::ReservedSlots,
    squeeze::Squeezes, under_way::UnderWay,
};

pub use self::{
    events::FOLLOWS,
    gangs::Gathering,
    holds::HoldWork,
    moves::{AcceptedMove, MoveTerms, MoveVerdict},
    pending_evictions::Departure,
    picture::BinderPicture,
    requeue::RequeueWork,
};

/// An accepted decision whose transaction is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Write it; the room is taken until [`Binder::commit`] or [`Binder::take_back`].
    Bind(Box<Accepted>),
    /// Check again later; nothing was taken.
    Wait(Wait),
    /// Nothing of it can be bound; nothing was taken.
    Reject(Vec<Rejection>),
}

/// What a decision has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the records are read up to here.
    Revision(Revision),
    /// Until this transaction's fate is known.
    Ticket(Ticket),
}

/// The part of a decision that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Names it until its transaction's fate is known.
    pub ticket: Ticket,
    /// The unit.
    pub unit: UnitId,
    /// Revision of the unit's record: a precondition.
    pub unit_revision: Revision,
    /// The unit's queue: its record and those of the queues above it are preconditions.
    pub queue: QueueIdx,
    /// By task group, none empty; none at all where room is held instead.
    pub binds: Vec<Bind>,
    /// Room to be held until its victims have left.
    pub holds: Vec<Arc<Hold>>,
    /// The victims.
    pub evictions: Vec<(UnitId, Evict)>,
    /// Units of the victims, with the revisions of their records: preconditions, for by these the victims were judged.
    pub victims: Vec<(UnitId, Revision)>,
    /// Holds that the binding takes the place of, with the revisions of their records.
    pub ends: Vec<(HoldId, Revision)>,
    /// What was refused.
    pub rejections: Vec<Rejection>,
    /// Disruption budgets that the victims rest on, with the revisions of their records: preconditions.
    pub budgets: Vec<(String, Revision)>,
    /// Slots of reservations that are taken, with who is in them now.
    pub slots: Vec<Arc<Hold>>,
    /// Holds that go, and why, as metrics name it: the unit's own, as it is placed elsewhere, and those that it takes over.
    pub gone: Vec<(HoldId, &'static str)>,
}

impl Accepted {
    /// A decision with this ticket, and nothing of it.
    fn new(ticket: Ticket, unit: UnitId, unit_revision: Revision, queue: QueueIdx) -> Self {
        Self {
            ticket,
            unit,
            unit_revision,
            queue,
            binds: Vec::new(),
            holds: Vec::new(),
            evictions: Vec::new(),
            victims: Vec::new(),
            ends: Vec::new(),
            rejections: Vec::new(),
            budgets: Vec::new(),
            slots: Vec::new(),
            gone: Vec::new(),
        }
    }
}

/// The conflict check.
#[derive(Debug, Default)]
pub struct Binder {
    picture: BinderPicture,
    under_way: UnderWay,
    holds: BinderHolds,
    evictions: PendingEvictions,
    requeues: Requeues,
    reservations: ReservedSlots,
    squeezes: Squeezes,
}

impl Binder {
    /// Without nodes and units.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leads with this epoch: holds get ids that no other binder gives, and last `hold_ms`; nodes may be above their
    /// best-effort room for `squeeze_ms`.
    pub fn lead(&mut self, epoch: Epoch, hold_ms: u64, squeeze_ms: u64) {
        self.holds.issuer.lead(epoch, hold_ms);
        self.squeezes.lead(squeeze_ms);
    }

    /// Gangs gather room for so long at most, milliseconds.
    pub fn gather_for(&mut self, turn_ms: u64) {
        self.holds.issuer.gather_for(turn_ms);
    }

    /// The value of this label is a node's sub-cluster: gangs of different ones gather at the same time.
    pub fn set_sub_cluster_key(&mut self, key: &str) {
        key.clone_into(&mut self.picture.sub_cluster_key);
    }

    /// Everything up to here has been read.
    pub fn revision(&self) -> Revision {
        self.picture.revision
    }

    /// What is read, and the room that is taken on top of that.
    pub fn picture(&self) -> &BinderPicture {
        &self.picture
    }

    /// The nodes, and what is taken on them.
    pub fn cluster(&self) -> &Cluster {
        &self.picture.cluster
    }

    /// Decisions accepted whose transactions are under way, or committed and not read yet.
    pub fn n_open(&self) -> usize {
        self.under_way.len()
    }

    /// Of the evictions asked for those that make sense now: live, of the current incarnation, not leaving
    /// yet and not being told to; for the loss of a node those on nodes that are not ready. Empty when there is nothing
    /// (left) to do.
    pub fn evictions(&self, asked: &[(UnitId, Evict)]) -> Vec<(UnitId, Evict)> {
        self.evictions.evictions(asked, &self.picture)
    }

    /// One eviction of those asked for, as far as it makes sense now and budgets allow it; it counts as under way until the
    /// rows show it, or [`Self::departure_refused`]. `None`: nothing of it is to be written.
    pub fn depart(&mut self, unit: UnitId, evict: Evict) -> Option<Departure> {
        self.evictions.depart(unit, evict, &mut self.picture)
    }

    /// The transaction of an eviction was refused.
    pub fn departure_refused(&mut self, unit: UnitId, evict: &Evict) {
        self.evictions.end(unit, evict.replicas(), &mut self.picture.cluster);
    }

    /// Takes up to `max` running units that have to come back, by unit, ascending. Each is given out
    /// once, until [`Self::requeue_refused`].
    pub fn take_requeues(&mut self, max: usize) -> Vec<RequeueWork> {
        self.requeues.take(max, &self.picture)
    }

    /// The transaction was refused: those that still have to come back are given out again.
    pub fn requeue_refused(&mut self, work: &RequeueWork) {
        self.requeues.refused(work, &self.picture);
    }

    /// Holds, those under way among them.
    pub fn n_holds(&self) -> usize {
        self.holds.known.len()
    }

    /// Some holds may have come to their end.
    pub fn has_hold_work(&self) -> bool {
        let cluster = &self.picture.cluster;
        self.holds.has_work(self.picture.now_ms)
            || cluster.free().gathering().is_met()
            || self.reservations.has_work(cluster)
    }

    /// What is to be done about holds now; each piece is given out once, until its transaction is refused.
    pub fn take_hold_work(&mut self) -> Vec<HoldWork> {
        let Self { picture, under_way, holds, reservations, .. } = self;
        let mut work = holds.take_work(picture, under_way, reservations.expiries());
        reservations.reserve(&mut work, picture, holds);
        work
    }

    /// The transaction that was to end some holds was refused.
    pub fn keep_holds(&mut self, ids: &[(HoldId, Revision)]) {
        self.holds.cancel_ends(ids, &mut self.picture.cluster);
    }

    /// The transaction that was to hold some slots was refused.
    pub fn unreserve(&mut self, holds: &[Arc<Hold>]) {
        let made: Vec<HoldId> = holds.iter().map(|hold| hold.id).collect();
        self.holds.forget_made(&made, &mut self.picture);
    }

    /// Nodes above their best-effort room, in their grace too.
    pub fn n_over(&self) -> usize {
        self.squeezes.n_over(&self.picture.cluster)
    }

    /// Somebody may have to leave now.
    pub fn has_squeezes(&self) -> bool {
        self.squeezes.is_due(&self.picture)
    }

    /// Evictions of best-effort running units that are above the room of their nodes for longer than the grace. What is
    /// asked for and does not come to pass is asked for again.
    pub fn take_squeezes(&mut self) -> Vec<(UnitId, Evict)> {
        self.squeezes.take(&mut self.picture, &self.evictions)
    }
}
