//! What a scheduler tells the dispatcher about units that it was assigned.

use std::sync::Arc;

use crate::refusals::Refusals;
use godel_base::ids::{Revision, UnitId};

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitReport {
    /// The unit.
    pub unit: UnitId,
    /// As assigned.
    pub spec_revision: Revision,
    /// What became of it.
    pub state: ReportState,
    /// Of a failed try.
    pub refusals: Option<Arc<Refusals>>,
    /// Of a parked unit: what it lacks, a number of this scheduler's for [`RoomReport`]; else 0.
    pub need: u64,
    /// Of a parked unit: running units of it that have no place. The others are decided, bound or have room held for them:
    /// they use room in its queue though the records have yet to say so.
    pub unplaced: Option<u32>,
    /// Of a parked unit: its task groups that lack a place, ascending. Records that have yet to be read may say that others do.
    pub lacking: Vec<u32>,
    /// Assignments of this stream that were taken before: what is said of an earlier one is no answer to a later one. 0: not known.
    pub assigned: u64,
}

/// What became of a unit at a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReportState {
    /// No place now; called by the dispatcher when there is room. Holds no credit.
    Parked,
    /// Back at work after being parked: it searches for victims.
    Woken,
    /// Given back: another scheduler may try.
    Returned,
    /// Given back: a queue is at a maximum. It is to wait where that is known to end.
    QueueFull,
    /// Every ordinal handed out is bound; no longer held.
    Done,
}

/// Room for parked units that lack the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomReport {
    /// As in [`UnitReport`].
    pub need: u64,
    /// Running units that find a place, as far as is known; of units that must be placed together those of one of them.
    pub places: u32,
    /// Assignments of this stream that were taken before this was counted.
    pub assigned: u64,
    /// Of the last change of running units or holds that was read by then.
    pub revision: Revision,
}
