//! The messages of the hot path between schedulers and the binder, leniently: one bad decision or outcome must not
//! end a stream. What makes no sense is left to the binder's check, which says so in the outcome.

use godel_base::ids::{HoldId, NodeId, Revision, UnitId};
use godel_domain::{
    allocation::DeviceSet,
    decision::{
        Claim, Decision, FreshNode, GroupPlacement, NodeVictims, Outcome, Preemption, Rejection,
        RejectionReason,
    },
};
use godel_proto::v1;

use super::{Result, node_id, pool, resources, running_unit_id, value};
use crate::{to_proto, zones};

/// Places for one unit, as sent.
pub fn decision(pb: v1::Decision) -> Decision {
    Decision {
        id: pb.decision_id,
        unit: UnitId(pb.unit_id),
        spec_revision: Revision(pb.spec_revision),
        nodes_as_of: Revision(pb.nodes_as_of),
        groups: pb.groups.into_iter().map(group_placement).collect(),
        claim: claim(pb.claim),
    }
}

fn claim(pb: Option<v1::decision::Claim>) -> Claim {
    match pb {
        None => Claim::FreeRoom,
        Some(v1::decision::Claim::Preemption(pb)) => preemption(pb).into(),
        Some(v1::decision::Claim::GatherRoom(v1::GatherRoom {})) => Claim::Gathering,
    }
}

fn preemption(pb: v1::Preemption) -> Preemption {
    let on_node = |on: v1::NodeVictims| NodeVictims {
        group: u16::try_from(on.task_group).unwrap_or(u16::MAX),
        node: NodeId(on.node_id),
        victims: on.victims.into_iter().map(running_unit_id).collect(),
        holds: on.hold_ids.into_iter().map(HoldId).collect(),
    };
    Preemption {
        nodes: pb.nodes.into_iter().map(on_node).collect(),
        others: pb.others.into_iter().map(running_unit_id).collect(),
    }
}

fn group_placement(pb: v1::GroupPlacement) -> GroupPlacement {
    GroupPlacement {
        // Units have at most 64 groups: the check finds no such group.
        group: u16::try_from(pb.task_group).unwrap_or(u16::MAX),
        ordinals: pb.ordinals,
        incarnations: pb.incarnations,
        nodes: pb.node_ids.into_iter().map(NodeId).collect(),
        devices: pb.device_masks.into_iter().map(DeviceSet).collect(),
        zones: zones::given(pb.zone_masks, &pb.core_masks),
    }
}

/// What became of a decision, as sent.
pub fn outcome(pb: v1::Outcome) -> Outcome {
    Outcome {
        decision_id: pb.decision_id,
        unit: UnitId(pb.unit_id),
        revision: Revision(pb.revision),
        held: pb.held,
        rejections: pb.rejections.into_iter().map(rejection).collect(),
        // A node whose amounts make no sense teaches nothing.
        nodes: pb.nodes.into_iter().filter_map(|node| fresh_node(node).ok()).collect(),
    }
}

fn rejection(pb: v1::Rejection) -> Rejection {
    // A reason of a newer binder: refused all the same.
    let reason = rejection_reason(pb.reason).ok().flatten().unwrap_or(RejectionReason::Invalid);
    Rejection { reason, ordinals: pb.ordinals, node: NodeId(pb.node_id), detail: pb.detail }
}

/// A node as the binder sees it.
///
/// # Errors
/// The id is 0 or an amount is negative.
fn fresh_node(pb: v1::NodeState) -> Result<FreshNode> {
    Ok(FreshNode {
        node: node_id(pb.node_id, "node_id")?,
        pool: pool(pb.pool)?,
        allocated: resources(pb.allocated.unwrap_or_default()).map_err(|bad| bad.under("allocated"))?,
        device_free_milli: pb.device_free_milli,
        revision: Revision(pb.revision),
    })
}

/// Why the binder refused; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub(super) fn rejection_reason(number: i32) -> Result<Option<RejectionReason>> {
    value("reason", number, &RejectionReason::ALL, to_proto::rejection_reason)
}
