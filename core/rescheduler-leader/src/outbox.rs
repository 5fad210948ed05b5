//! What the leader says to others, and what it writes.

use std::sync::Arc;

use godel_base::ids::{Revision, StoreId, UnitId};
use godel_core_rescheduler::{MovementRecord, OrderedPlan, RunCause};
use godel_domain::{
    decision::RejectionReason,
    requested_move::{MadeMove, RequestedMove},
    unit::UnitRecord,
};

use crate::PlanWork;

/// Where the leader's records, requests and answers go.
pub trait RescheduleOutbox {
    /// Who asked for a plan, or for the end of a movement. The leader keeps it and hands it back with the answer.
    type Caller;

    /// Writes records in their order, in as many transactions as they need, on behalf of `callers`, who wait for that. The answer comes by
    /// [`on_written`](crate::ReschedulerLeader::on_written) with the ticket; nothing else is written before.
    fn write(&mut self, ticket: WriteTicket, records: Vec<RescheduleWrite>, callers: &[&Self::Caller]);

    /// Asks the binder for moves. The answer comes by [`on_moves_answered`](crate::ReschedulerLeader::on_moves_answered).
    fn move_units(&mut self, asked: MovesAsked);

    /// Has a plan made. It comes back by [`on_plan`](crate::ReschedulerLeader::on_plan); no other one is wanted before.
    fn plan(&mut self, work: PlanWork);

    /// Asks the dispatcher what keeps a gang out. The answer comes by [`on_gang`](crate::ReschedulerLeader::on_gang).
    fn ask_refusals(&mut self, gang: &UnitRecord);

    /// The answer to somebody who wanted a plan, a run of a policy, or room.
    fn planned(&mut self, caller: Self::Caller, answer: Result<PlanAnswer, CallRefusal>);

    /// The answer to somebody who wanted a movement to end: the movement, whose record says so.
    fn aborted(&mut self, caller: Self::Caller, answer: Result<MovementRecord, AbortRefusal>);

    /// Something happened that is counted or logged. The default does nothing.
    fn note(&mut self, _note: RescheduleNote<'_>) {}
}

/// Names records that are being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteTicket {
    /// The leadership, counted by the leader.
    pub term: u64,
    /// Counts from 1 in each leadership.
    pub number: u64,
}

/// A change of the records of the rescheduler.
#[derive(Clone, Debug, PartialEq)]
pub enum RescheduleWrite {
    /// A movement is as this says.
    Movement(Arc<MovementRecord>),
    /// A movement is forgotten, by its name.
    MovementGone(String),
    /// Replicas of a unit were moved at these times, Unix milliseconds.
    Rate(UnitId, Vec<u64>),
    /// No rate looks at the moves of a unit any more.
    RateGone(UnitId),
}

/// Why records are not (known to be) written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The store refused a transaction; those before it are made.
    Refused,
    /// The leadership ended before the answer.
    LeaseLost,
}

/// What a leader begins with: the records of those before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredMovements {
    /// Movements that can be read.
    pub movements: Vec<MovementRecord>,
    /// When replicas of units were moved, Unix milliseconds.
    pub rates: Vec<(UnitId, Vec<u64>)>,
}

/// Moves that the binder is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovesAsked {
    /// The number of the movement.
    pub number: u64,
    /// Which of its moves, by position.
    pub asked: Vec<usize>,
    /// The name of the movement.
    pub movement: String,
    /// The moves.
    pub moves: Vec<RequestedMove>,
    /// Their targets are held until then, Unix milliseconds.
    pub expires_ms: i64,
    /// What the plan rests on.
    pub read: Revision,
    /// The store of which that is a revision.
    pub store: StoreId,
}

/// What the binder says to [`MovesAsked`].
#[derive(Clone, Debug)]
pub struct MovesAnswered {
    /// The number of the movement.
    pub number: u64,
    /// Which of its moves, by position.
    pub asked: Vec<usize>,
    /// The answer to each; what was not answered is asked for again.
    pub answer: Result<Vec<Result<MadeMove, HeardRefusal>>, MovesUnanswered>,
}

/// Why the binder refuses a move, as it was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardRefusal {
    /// `None`: a later binder says something that is not known here.
    pub reason: Option<RejectionReason>,
    /// The same move may be possible in a while.
    pub later: bool,
    /// In words.
    pub why: String,
}

/// Why there is no answer to moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MovesUnanswered {
    /// The binder refuses the request as a whole, in words: it will never take it.
    Unusable(String),
    /// The binder may have done it.
    Silent,
}

/// A plan as somebody who asked for it sees it.
#[derive(Clone, Debug)]
pub struct ShownPlan {
    /// The plan.
    pub plan: Arc<OrderedPlan>,
    /// The policy; empty: room for a unit.
    pub policy: String,
    /// What it rests on.
    pub revision: Revision,
    /// How long it took to make it, milliseconds.
    pub planning_ms: u64,
    /// Why it is not executed by itself, in words; empty: it is.
    pub held_back: String,
}

/// The answer to somebody who wanted a plan.
#[derive(Clone, Debug)]
pub struct PlanAnswer {
    /// The plan, or why there is none.
    pub shown: Result<ShownPlan, String>,
    /// The movement that executes it; empty: none does.
    pub movement: String,
    /// Why none does, in words.
    pub why_not: String,
}

/// Why somebody gets no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefusal {
    /// This rescheduler does not lead (any more).
    NotLeading,
    /// So many plans wait already.
    TooMany(usize),
}

/// Why a movement is not ended.
#[derive(Clone, Debug, PartialEq)]
pub enum AbortRefusal {
    /// This rescheduler does not lead (any more).
    NotLeading,
    /// There is none of this name.
    Unknown(String),
    /// It has ended otherwise.
    HasEnded(MovementRecord),
    /// The store refused the record that says so: it is written later.
    NotRecorded,
}

/// Something that is counted or logged.
#[derive(Clone, Copy, Debug)]
pub enum RescheduleNote<'a> {
    /// It leads, with so many movements.
    Leads(usize),
    /// A movement that was open goes on.
    GoesOn(&'a MovementRecord),
    /// It leads no longer.
    SteppedDown,
    /// So many units wait for a place as of a revision.
    Observed(u64, Revision),
    /// A plan was made in so many milliseconds.
    Planned(u64),
    /// A policy ran.
    PolicyRan {
        /// Its name.
        policy: &'a str,
        /// What made it run.
        cause: RunCause,
        /// The movement; empty: none.
        movement: &'a str,
        /// What came of it, in words.
        result: &'a str,
    },
    /// A gang asked for room by itself.
    RoomAsked {
        /// The gang.
        gang: UnitId,
        /// The movement; empty: none.
        movement: &'a str,
        /// Why there is none, in words.
        why_not: &'a str,
    },
    /// The record of the movement that is being made is written.
    Recorded,
    /// A movement has ended, and its record says so.
    Ended(&'a MovementRecord),
}
