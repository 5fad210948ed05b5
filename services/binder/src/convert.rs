//! Decisions from the wire, leniently: what makes no sense is left to the check, which says so in the outcome.
//! One bad decision must not end the stream of its scheduler.

use godel_core::{
    decision::{Decision, GroupPlacement},
    ids::{NodeId, Revision, UnitId},
};
use godel_proto::v1;

/// A decision as sent.
pub(crate) fn decision(pb: v1::Decision) -> Decision {
    Decision {
        id: pb.decision_id,
        unit: UnitId(pb.unit_id),
        spec_revision: Revision(pb.spec_revision),
        groups: pb.groups.into_iter().map(group_placement).collect(),
    }
}

fn group_placement(pb: v1::GroupPlacement) -> GroupPlacement {
    GroupPlacement {
        // Units have at most 64 groups: the check finds no such group.
        group: u16::try_from(pb.task_group).unwrap_or(u16::MAX),
        ordinals: pb.ordinals,
        incarnations: pb.incarnations,
        nodes: pb.node_ids.into_iter().map(NodeId).collect(),
        node_revisions: pb.node_revisions.into_iter().map(Revision).collect(),
        device_masks: pb.device_masks,
    }
}
