//! What the leader says to others: outcomes to schedulers, answers to those who asked to evict, notes for counters and logs.

use godel_base::ids::{Epoch, Revision, UnitId};
use godel_domain::{
    decision::{Outcome, Rejection, RejectionReason},
    hold::GangTurn,
    running_units::EvictionReason,
    txn::TxnRefusal,
};

use super::{JobId, StreamId, move_jobs::MoveReport};
use crate::{Accepted, AcceptedMove};

/// Where the leader's messages go.
pub trait BinderOutbox {
    /// The stream is open under a binder that leads with this epoch. The default does nothing.
    fn welcome(&mut self, _stream: StreamId, _leader: Epoch) {}

    /// Outcomes of decisions, in order. Returns false if the stream takes no more: the leader forgets the stream then.
    fn outcomes(&mut self, stream: StreamId, outcomes: Vec<Outcome>) -> bool;

    /// The stream ends. The default does nothing.
    fn end(&mut self, _stream: StreamId, _why: StreamEnd) {}

    /// The answer to a request to evict: the revision from which on all of it is durable, or why not. The default does
    /// nothing.
    fn evicted(&mut self, _job: JobId, _answer: Result<Revision, EvictFailure>) {}

    /// The answer to a request to move running units. The default does nothing.
    fn moved(&mut self, _job: JobId, _answer: Result<MoveReport, EvictFailure>) {}

    /// Something happened that is counted or logged. The default does nothing.
    fn note(&mut self, _note: BinderNote<'_>) {}
}

/// Why the leader ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The scheduler opened another stream.
    Replaced,
    /// A later epoch of the scheduler's lease has a stream.
    StaleEpoch,
    /// This binder leads no longer.
    NotLeader,
}

/// Why a request to evict, or to move, failed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictFailure {
    /// This binder leads no longer.
    NotLeader,
    /// The store refused it; in words.
    Refused(String),
}

/// Something that is counted or logged.
#[derive(Clone, Copy, Debug)]
pub enum BinderNote<'a> {
    /// A decision was taken up.
    Decision,
    /// A transaction is durable.
    Committed,
    /// The store refused a transaction.
    Refused(&'a TxnRefusal),
    /// Running units of a decision were refused.
    Rejected(&'a [Rejection]),
    /// A decision is durable: bound, or its room is held.
    Accepted(&'a Accepted),
    /// Holds have turned into bindings.
    HoldsBound(&'a Accepted),
    /// Slots of a reservation are held.
    SlotsHeld {
        /// The reservation's name.
        reservation: &'a str,
        /// How many slots.
        n_slots: usize,
    },
    /// Holds were given up.
    HoldsDropped {
        /// Why, as metrics name it.
        why: &'static str,
        /// How many holds.
        n_holds: usize,
    },
    /// Evicted running units have come back.
    Requeued(usize),
    /// Evictions are durable.
    Evicted {
        /// Why the running units leave.
        reason: EvictionReason,
        /// How many running units.
        n: usize,
    },
    /// A move is durable.
    Moved(&'a AcceptedMove),
    /// A move was refused.
    MoveRefused(RejectionReason),
    /// Best-effort running units were found above the room of their nodes.
    Squeezed(usize),
    /// Decisions are checked again after a wait or a refusal.
    Rechecked(usize),
    /// A stream was cut, as nobody read its outcomes.
    StreamCut,
    /// A gang gathers room no longer.
    TurnEnded {
        /// The gang.
        unit: UnitId,
        /// Its turn.
        turn: &'a GangTurn,
        /// Why, as metrics name it.
        why: &'static str,
    },
}
