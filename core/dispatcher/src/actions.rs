//! What the dispatcher asks to be done.

use std::sync::Arc;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    assignment::Assignment,
    change::Partition,
    running_units::{Compaction, EvictionReason},
    unit::UnitRecord,
};

use super::SessionId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand a unit to a scheduler, or hand it anew.
    Assign(SessionId, Assignment),
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
