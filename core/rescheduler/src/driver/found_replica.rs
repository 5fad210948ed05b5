//! What the replica of a move says of it, whether it has yet to leave or has come back.

use godel_base::ids::NodeId;
use godel_domain::{
    running_units::{EvictionReason, Phase, RunningUnit},
    unit::UnitRecord,
};

use super::ReplicaView;
use crate::movement::{MovePhase, MovementMove};

impl ReplicaView {
    /// Returns a replica as its unit and its row say; `None`: the unit does not want it any more. What is over, or released, is shown as it was: a unit
    /// that wants nothing any more does not bring it back.
    pub fn of(record: &UnitRecord, ordinal: u32, row: RunningUnit) -> Option<Self> {
        let is_wanted = record.is_wanted() && record.group_of(ordinal).is_some();
        let RunningUnit { incarnation, phase, node, eviction, .. } = row;
        (is_wanted || phase.is_live()).then_some(Self { incarnation, phase, node, eviction })
    }
}

/// What a replica says of its move.
pub(super) enum FoundReplica {
    /// Nothing new.
    Same,
    /// How far the move is, and where its successor is bound.
    Phase(MovePhase, Option<NodeId>),
    /// What it was made for is gone.
    Gone(String),
}

/// What the incarnation that is to leave says of its move. It may have left because of it before the binder's answer is heard.
pub(super) fn predecessor(
    one: &MovementMove,
    replica: ReplicaView,
    was_moved: impl Fn() -> bool,
) -> FoundReplica {
    match (one.phase, replica.phase) {
        (_, Phase::Succeeded | Phase::Failed) => FoundReplica::Gone("it ended by itself".to_owned()),
        (MovePhase::Waiting, Phase::Pending | Phase::Stopped) if was_moved() => {
            FoundReplica::Phase(MovePhase::Leaving, None)
        }
        (MovePhase::Waiting, Phase::Pending | Phase::Stopped) => {
            FoundReplica::Gone("it left its node before its move began".to_owned())
        }
        (MovePhase::Waiting, _) if replica.eviction == Some(EvictionReason::Rescheduled) => {
            FoundReplica::Phase(MovePhase::Leaving, None)
        }
        _ => FoundReplica::Same,
    }
}

/// What the successor of the one that leaves says of its move. One that has ended did run there.
pub(super) fn successor(one: &MovementMove, replica: ReplicaView) -> FoundReplica {
    match replica.phase {
        Phase::Pending => FoundReplica::Phase(MovePhase::Pending, None),
        Phase::Bound | Phase::Starting => FoundReplica::Phase(MovePhase::Starting, Some(replica.node)),
        Phase::Running | Phase::Succeeded | Phase::Failed | Phase::Stopped => {
            let phase = if replica.node == one.to.0 { MovePhase::Moved } else { MovePhase::Mismatched };
            FoundReplica::Phase(phase, Some(replica.node))
        }
    }
}
