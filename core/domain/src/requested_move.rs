//! Moves of running units as somebody asks the binder for them, and why the binder refuses one.

use crate::{allocation::Allocation, decision::RejectionReason};
use godel_base::ids::{HoldId, NodeId, RunningUnitId};

/// Bytes of the name of a movement: with the words before it the name fits into what rows remember of an eviction.
pub const MOVEMENT_LEN_MAX: usize = 80;
/// Moves in one request.
pub const N_MOVES_MAX: usize = 1_024;
/// The longest that room is held for a move, milliseconds: a day.
pub const MOVE_HOLD_MS_MAX: i64 = 86_400_000;

/// A running unit that is to go to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedMove {
    /// Who leaves; the next incarnation of the same replica goes to the target, or another ordinal that runs before.
    pub running: RunningUnitId,
    /// The target.
    pub to: NodeId,
    /// Devices and zones there that are wished for.
    pub wanted: Allocation,
}

/// A move that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeMove {
    /// Room on the target; 0: it has gone by now.
    pub hold: HoldId,
    /// The ordinal that runs before the one stops that moves; `None`: the running unit leaves first.
    pub surge: Option<u32>,
}

/// Why a running unit is not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRefusal {
    /// Why.
    pub reason: RejectionReason,
    /// The same move may be possible in a while.
    pub later: bool,
    /// Resource, label, taint or budget, or a sentence.
    pub detail: String,
}

/// Who had a running unit evicted that a movement moves, as its row remembers it.
pub fn evicted_by(movement: &str) -> String {
    format!("movement {movement}")
}
