//! The messages of the hot path between schedulers and the binder.

use godel_core::{
    decision::{Decision, FreshNode, GroupPlacement, Outcome, Rejection, RejectionReason},
    ids::{NodeId, Revision},
};
use godel_proto::v1;
use godel_store::ops::{N_ORDINALS_MAX, N_TASK_GROUPS_MAX};

use super::{BadField, Result, each, node_id, resources, unit_id, unknown};

/// Places for one unit.
///
/// # Errors
/// Columns differ in length, ordinals do not ascend, or a group stands twice.
pub fn decision(pb: v1::Decision) -> Result<Decision> {
    let unit = unit_id(pb.unit_id, "unit_id")?;
    let groups = each("groups", pb.groups, group_placement)?;
    for (idx, placed) in groups.iter().enumerate() {
        if groups[..idx].iter().any(|earlier| earlier.group == placed.group) {
            return Err(BadField::new(format!("groups[{idx}].task_group"), "stands twice"));
        }
    }
    Ok(Decision { id: pb.decision_id, unit, spec_revision: Revision(pb.spec_revision), groups })
}

fn group_placement(pb: v1::GroupPlacement) -> Result<GroupPlacement> {
    let len = pb.ordinals.len();
    exact("node_ids", len, pb.node_ids.len())?;
    exact("node_revisions", len, pb.node_revisions.len())?;
    column("incarnations", len, pb.incarnations.len())?;
    column("device_masks", len, pb.device_masks.len())?;
    if pb.node_ids.contains(&0) {
        return Err(BadField::new("node_ids", "0 is not a node"));
    }
    if !pb.ordinals.is_sorted_by(|a, b| a < b) {
        return Err(BadField::new("ordinals", "do not ascend"));
    }
    if pb.ordinals.last().is_some_and(|last| *last >= N_ORDINALS_MAX) {
        return Err(BadField::new("ordinals", format!("not below {N_ORDINALS_MAX}")));
    }
    let group = u16::try_from(pb.task_group).ok().filter(|group| u32::from(*group) < N_TASK_GROUPS_MAX);
    let group = group.ok_or_else(|| BadField::new("task_group", format!("not below {N_TASK_GROUPS_MAX}")))?;
    Ok(GroupPlacement {
        group,
        ordinals: pb.ordinals,
        incarnations: pb.incarnations,
        nodes: pb.node_ids.into_iter().map(NodeId).collect(),
        node_revisions: pb.node_revisions.into_iter().map(Revision).collect(),
        device_masks: pb.device_masks,
    })
}

/// What became of a decision.
///
/// # Errors
/// A reason is missing, or an amount is negative.
pub fn outcome(pb: v1::Outcome) -> Result<Outcome> {
    Ok(Outcome {
        decision_id: pb.decision_id,
        unit: unit_id(pb.unit_id, "unit_id")?,
        revision: Revision(pb.revision),
        rejections: each("rejections", pb.rejections, rejection)?,
        nodes: each("nodes", pb.nodes, fresh_node)?,
    })
}

fn rejection(pb: v1::Rejection) -> Result<Rejection> {
    Ok(Rejection {
        reason: rejection_reason(pb.reason)?.ok_or_else(|| BadField::new("reason", "missing"))?,
        ordinals: pb.ordinals,
        node: NodeId(pb.node_id),
        detail: pb.detail,
    })
}

/// A node as the binder sees it.
///
/// # Errors
/// The id is 0 or an amount is negative.
pub fn fresh_node(pb: v1::NodeState) -> Result<FreshNode> {
    Ok(FreshNode {
        node: node_id(pb.node_id, "node_id")?,
        allocated: resources(pb.allocated.unwrap_or_default()).map_err(|bad| bad.under("allocated"))?,
        device_free_milli: pb.device_free_milli,
        revision: Revision(pb.revision),
    })
}

/// Why the binder refused; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn rejection_reason(number: i32) -> Result<Option<RejectionReason>> {
    use v1::RejectionReason as Pb;
    Ok(match Pb::try_from(number).map_err(|_| unknown("reason", number))? {
        Pb::Unspecified => None,
        Pb::InsufficientResources => Some(RejectionReason::InsufficientResources),
        Pb::DeviceTaken => Some(RejectionReason::DeviceTaken),
        Pb::NodeNotReady => Some(RejectionReason::NodeNotReady),
        Pb::NodeCordoned => Some(RejectionReason::NodeCordoned),
        Pb::NodeSelector => Some(RejectionReason::NodeSelector),
        Pb::Taint => Some(RejectionReason::Taint),
        Pb::NodeGone => Some(RejectionReason::NodeGone),
        Pb::UnitChanged => Some(RejectionReason::UnitChanged),
        Pb::AlreadyBound => Some(RejectionReason::AlreadyBound),
        Pb::MinMember => Some(RejectionReason::MinMember),
        Pb::Invalid => Some(RejectionReason::Invalid),
    })
}

/// A column that may be empty for all 0.
fn column(path: &str, len: usize, other: usize) -> Result<()> {
    if other == 0 { Ok(()) } else { exact(path, len, other) }
}

fn exact(path: &str, len: usize, other: usize) -> Result<()> {
    if len == other {
        Ok(())
    } else {
        Err(BadField::new(path, format!("has {other} entries, but there are {len} ordinals")))
    }
}
