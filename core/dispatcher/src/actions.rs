//! What the dispatcher asks to be done.

use std::sync::Arc;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    change::{NodeScope, Partition},
    running_units::{Compaction, EvictionReason},
    unit::UnitRecord,
};

use super::SessionId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand a unit to a scheduler, or hand it anew.
    Assign(Assignment),
    /// Take a unit away from a scheduler.
    Revoke(SessionId, UnitId),
    /// End a scheduler's stream: its lease is lost, or it has a newer stream.
    Close(SessionId),
    /// Ask the binder to make running units leave.
    Evict(EvictRequest),
    /// Write a unit's record anew, which was at this revision: it ends.
    End(Arc<UnitRecord>, Revision),
    /// Write the record of a daemon anew, which was at this revision: it has the replicas that the nodes want.
    Follow(Arc<UnitRecord>, Revision),
    /// Write a unit's record anew, which was at this revision: replicas of it that ended long ago are compacted.
    Compact(Arc<UnitRecord>, Revision, Compaction),
    /// Write a unit's record anew, which was at this revision: a replica starts before the one stops that it replaces, or that
    /// is over. With a revision of its running units: none of them may have changed since.
    Surge(Arc<UnitRecord>, Revision, Option<Revision>),
    /// Delete a unit's record.
    Delete(UnitId),
    /// Delete what was kept of these units.
    DeleteHistory(Vec<UnitId>),
    /// Write how nodes are split.
    WritePartition(Partition),
}

/// A unit for a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its stream.
    pub session: SessionId,
    /// The unit.
    pub record: Arc<UnitRecord>,
    /// Revision of `spec`.
    pub revision: Revision,
    /// To be placed, ascending.
    pub ordinals: Vec<u32>,
    /// Of each.
    pub incarnations: Vec<u32>,
    /// Counts towards `min_member` already.
    pub bound: u32,
    /// Whose nodes may be used.
    pub scope: NodeScope,
    /// A queue of it is at a maximum: others there have to leave first.
    pub at_maximum: bool,
    /// Should the unit find no place it is its turn to gather room.
    pub turn: bool,
    /// There is room for it, as its scheduler said of such units.
    pub called: bool,
    /// So many are placed at most before it waits for room again; `None`: as many as there is room for.
    pub places_max: Option<u32>,
    /// The scheduler decides once it has read up to here: it has to know the room that is held for replicas that are moved. 0: it
    /// need not wait.
    pub read: Revision,
}

/// Running units that must leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictRequest {
    /// Their unit.
    pub unit: UnitId,
    /// Why.
    pub reason: EvictionReason,
    /// Which.
    pub ordinals: Vec<u32>,
    /// Of each.
    pub incarnations: Vec<u32>,
    /// Who asks, for events.
    pub by: String,
    /// What was read when it was asked: who has read less does not know yet whom it is about.
    pub read: Revision,
}
