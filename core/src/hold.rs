//! Room on a node that is kept for someone: what a preemption claims until its victims have left.

use std::sync::Arc;

use crate::{
    demand::{Demand, Pool},
    ids::{HoldId, NodeId, Revision, UnitId},
};

/// A running unit of some unit, in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The unit.
    pub unit: UnitId,
    /// Which.
    pub ordinal: u32,
    /// Of it.
    pub incarnation: u32,
}

/// Room on one node for running units of one task group. It turns into their binding once those that back it have left,
/// or goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Never reused.
    pub id: HoldId,
    /// Where.
    pub node: NodeId,
    /// For whom.
    pub unit: UnitId,
    /// Revision of the unit's record that it rests on: it goes when the unit changes.
    pub spec_revision: Revision,
    /// Index of the task group.
    pub group: u16,
    /// What each of them takes.
    pub demand: Arc<Demand>,
    /// Pool that pays.
    pub pool: Pool,
    /// Which; ascending, not empty.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Empty: no devices.
    pub device_masks: Vec<u64>,
    /// Running units of the same node that have to leave first; they take the room until then.
    pub victims: Vec<Member>,
    /// It goes if it has not turned into a binding by then, Unix milliseconds.
    pub expires_ms: i64,
    /// Path of the queue that pays; `None`: `default`.
    pub queue: Option<Arc<str>>,
    /// What the binder had read when it judged who has to leave.
    pub judged: Revision,
}

impl Hold {
    /// Incarnation of the running unit at `idx` of the columns.
    pub fn incarnation(&self, idx: usize) -> u32 {
        self.incarnations.get(idx).copied().unwrap_or(0)
    }

    /// Devices of the running unit at `idx` of the columns.
    pub fn device_mask(&self, idx: usize) -> u64 {
        self.device_masks.get(idx).copied().unwrap_or(0)
    }

    /// For whom: (ordinal, incarnation).
    pub fn members(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ordinals.iter().enumerate().map(|(idx, ordinal)| (*ordinal, self.incarnation(idx)))
    }
}
