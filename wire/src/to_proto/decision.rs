//! The messages of the hot path between schedulers and the binder.

use godel_domain::{
    decision::{
        Claim, Decision, FreshNode, GroupPlacement, NodeVictims, Outcome, Preemption, Rejection,
        RejectionReason,
    },
    refusals::{RefusalCount, Refusals},
};
use godel_proto::v1;

use super::{pool, resources, running_unit_id};
use crate::zones;

/// Places for one unit.
pub fn decision(decision: &Decision) -> v1::Decision {
    let Decision { id, unit, spec_revision, nodes_as_of, groups, claim } = decision;
    v1::Decision {
        decision_id: *id,
        unit_id: unit.0,
        spec_revision: spec_revision.0,
        nodes_as_of: nodes_as_of.0,
        groups: groups.iter().map(group_placement).collect(),
        claim: self::claim(claim),
    }
}

fn claim(claim: &Claim) -> Option<v1::decision::Claim> {
    match claim {
        Claim::FreeRoom => None,
        Claim::Preemption(preemption) => Some(v1::decision::Claim::Preemption(self::preemption(preemption))),
        Claim::Gathering => Some(v1::decision::Claim::GatherRoom(v1::GatherRoom {})),
    }
}

fn preemption(preemption: &Preemption) -> v1::Preemption {
    let Preemption { nodes, others } = preemption;
    let on_node = |NodeVictims { group, node, victims, holds }: &NodeVictims| v1::NodeVictims {
        task_group: u32::from(*group),
        node_id: node.0,
        victims: victims.iter().map(running_unit_id).collect(),
        hold_ids: holds.iter().map(|hold| hold.0).collect(),
    };
    v1::Preemption {
        nodes: nodes.iter().map(on_node).collect(),
        others: others.iter().map(running_unit_id).collect(),
    }
}

fn group_placement(placement: &GroupPlacement) -> v1::GroupPlacement {
    let GroupPlacement { group, ordinals, incarnations, nodes, devices, zones } = placement;
    v1::GroupPlacement {
        task_group: u32::from(*group),
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        node_ids: nodes.iter().map(|node| node.0).collect(),
        device_masks: devices.iter().map(|devices| devices.0).collect(),
        zone_masks: zones::zone_masks(zones),
        core_masks: zones::core_masks(zones),
    }
}

/// What became of a decision.
pub fn outcome(outcome: &Outcome) -> v1::Outcome {
    let Outcome { decision_id, unit, revision, held, rejections, nodes } = outcome;
    v1::Outcome {
        decision_id: *decision_id,
        unit_id: unit.0,
        revision: revision.0,
        rejections: rejections.iter().map(rejection).collect(),
        nodes: nodes.iter().map(fresh_node).collect(),
        held: *held,
    }
}

fn rejection(rejection: &Rejection) -> v1::Rejection {
    let Rejection { reason, ordinals, node, detail } = rejection;
    v1::Rejection {
        reason: rejection_reason(*reason).into(),
        ordinals: ordinals.clone(),
        node_id: node.0,
        detail: detail.clone(),
    }
}

/// A node as the binder sees it.
pub fn fresh_node(fresh: &FreshNode) -> v1::NodeState {
    let FreshNode { node, pool: of, allocated, device_free_milli, revision } = fresh;
    v1::NodeState {
        node_id: node.0,
        allocated: Some(resources(allocated)),
        device_free_milli: device_free_milli.clone(),
        revision: revision.0,
        pool: pool(*of).into(),
    }
}

/// Why the binder refused.
pub fn rejection_reason(reason: RejectionReason) -> v1::RejectionReason {
    match reason {
        RejectionReason::InsufficientResources => v1::RejectionReason::InsufficientResources,
        RejectionReason::DeviceTaken => v1::RejectionReason::DeviceTaken,
        RejectionReason::NodeNotReady => v1::RejectionReason::NodeNotReady,
        RejectionReason::NodeCordoned => v1::RejectionReason::NodeCordoned,
        RejectionReason::NodeSelector => v1::RejectionReason::NodeSelector,
        RejectionReason::Taint => v1::RejectionReason::Taint,
        RejectionReason::NodeGone => v1::RejectionReason::NodeGone,
        RejectionReason::UnitChanged => v1::RejectionReason::UnitChanged,
        RejectionReason::AlreadyBound => v1::RejectionReason::AlreadyBound,
        RejectionReason::MinMember => v1::RejectionReason::MinMember,
        RejectionReason::Invalid => v1::RejectionReason::Invalid,
        RejectionReason::QueueFull => v1::RejectionReason::QueueFull,
        RejectionReason::VictimGone => v1::RejectionReason::VictimGone,
        RejectionReason::PreemptionLoop => v1::RejectionReason::PreemptionLoop,
        RejectionReason::GangTurn => v1::RejectionReason::GangTurn,
        RejectionReason::Stale => v1::RejectionReason::Stale,
        RejectionReason::AlreadyHeld => v1::RejectionReason::AlreadyHeld,
        RejectionReason::Filter => v1::RejectionReason::Filter,
        RejectionReason::HostPort => v1::RejectionReason::HostPort,
        RejectionReason::UnitAffinity => v1::RejectionReason::UnitAffinity,
        RejectionReason::TopologySpread => v1::RejectionReason::TopologySpread,
        RejectionReason::ZoneTaken => v1::RejectionReason::ZoneTaken,
        RejectionReason::LoadThreshold => v1::RejectionReason::LoadThreshold,
        RejectionReason::DisruptionBudget => v1::RejectionReason::DisruptionBudget,
        RejectionReason::NotThere => v1::RejectionReason::NotThere,
        RejectionReason::NotMovable => v1::RejectionReason::NotMovable,
    }
}

/// Why nodes refused a unit.
pub fn refusals(refusals: &Refusals) -> v1::Refusals {
    let Refusals { reasons, nearest_miss, nodes, attempts } = refusals;
    let reasons = reasons.iter().map(|RefusalCount { plugin, reason, nodes }| v1::RefusalCount {
        plugin: plugin.to_string(),
        reason: reason.clone(),
        nodes: *nodes,
    });
    v1::Refusals {
        reasons: reasons.collect(),
        nearest_miss: nearest_miss.clone(),
        nodes: *nodes,
        attempts: *attempts,
    }
}
