//! Rejections of a decision, or of a part of it.

use godel_base::ids::NodeId;
use godel_cluster::Unfit;
use godel_domain::decision::{Decision, N_PLACEMENTS_MAX, Rejection, RejectionReason};
use rustc_hash::FxHashMap;

use super::PlacedReplica;

/// Rejections under construction, one per reason, node and detail, in order of first sight.
#[derive(Default)]
pub(crate) struct RejectionList {
    pub(super) rejections: Vec<Rejection>,
    by_key: FxHashMap<(RejectionReason, NodeId, String), usize>,
}

impl RejectionList {
    pub(super) fn add(&mut self, reason: RejectionReason, ordinal: u32, node: NodeId, detail: String) {
        self.add_all(reason, [ordinal], node, detail);
    }

    pub(super) fn add_all(
        &mut self,
        reason: RejectionReason,
        ordinals: impl IntoIterator<Item = u32>,
        node: NodeId,
        detail: String,
    ) {
        let idx = *self.by_key.entry((reason, node, detail)).or_insert_with_key(|(reason, node, detail)| {
            let (reason, node, detail) = (*reason, *node, detail.clone());
            self.rejections.push(Rejection { reason, ordinals: Vec::new(), node, detail });
            self.rejections.len() - 1
        });
        self.rejections[idx].ordinals.extend(ordinals);
    }
}

/// Columns of equal length, nothing twice, something and not too much.
pub(super) fn well_formed(decision: &Decision) -> Result<(), String> {
    let n_placements = decision.len();
    if n_placements == 0 {
        return Err("places nothing".to_owned());
    }
    if n_placements > N_PLACEMENTS_MAX {
        return Err(format!("places {n_placements}, more than {N_PLACEMENTS_MAX}"));
    }
    for placement in &decision.groups {
        let len = placement.ordinals.len();
        let optional = [placement.incarnations.len(), placement.devices.len(), placement.zones.len()];
        if placement.nodes.len() != len || optional.iter().any(|other| *other != 0 && *other != len) {
            return Err(format!("columns of group {} differ in length", placement.group));
        }
    }
    if let [one] = decision.groups.as_slice()
        && one.ordinals.is_sorted_by(|a, b| a < b)
    {
        return Ok(());
    }
    let mut groups: Vec<u16> = decision.groups.iter().map(|placement| placement.group).collect();
    groups.sort_unstable();
    if groups.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a task group stands twice".to_owned());
    }
    let mut ordinals: Vec<u32> =
        decision.groups.iter().flat_map(|placement| placement.ordinals.iter().copied()).collect();
    ordinals.sort_unstable();
    match ordinals.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(format!("ordinal {} stands twice", pair[0])),
    }
}

/// One rejection of everything.
pub(crate) fn whole(decision: &Decision, reason: RejectionReason, detail: String) -> Vec<Rejection> {
    let ordinals = decision.groups.iter().flat_map(|placement| placement.ordinals.iter().copied()).collect();
    vec![Rejection { reason, ordinals, node: NodeId(0), detail }]
}

/// Rejections with `members` refused because of their unit.
pub(super) fn all_of(
    decision: &Decision,
    members: &[PlacedReplica],
    mut refused: RejectionList,
    detail: &str,
) -> Vec<Rejection> {
    for member in members {
        let ordinal = decision.groups[member.group].ordinals[member.idx];
        refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail.to_owned());
    }
    refused.rejections
}

pub(crate) fn reason(refusal: Unfit) -> (RejectionReason, String) {
    match refusal {
        Unfit::Gone => (RejectionReason::NodeGone, String::new()),
        Unfit::NotReady => (RejectionReason::NodeNotReady, String::new()),
        Unfit::Cordoned => (RejectionReason::NodeCordoned, String::new()),
        Unfit::Unreadable => (RejectionReason::NodeNotReady, refusal.to_string()),
        Unfit::NodeClass { .. } | Unfit::Runtime | Unfit::Images => {
            (RejectionReason::NodeSelector, refusal.to_string())
        }
        Unfit::Affinity { terms } => (RejectionReason::NodeSelector, terms),
        Unfit::Selector { key, value } => (RejectionReason::NodeSelector, format!("{key}={value}")),
        Unfit::Taint { taint } | Unfit::BriefTaint { taint } => (RejectionReason::Taint, taint),
        Unfit::Resource { name } => (RejectionReason::InsufficientResources, name),
        Unfit::Device { reason } => (RejectionReason::DeviceTaken, reason),
        Unfit::Zone { reason } => (RejectionReason::ZoneTaken, reason),
        Unfit::Port { port } => (RejectionReason::HostPort, port),
        Unfit::UnitAffinity { reason } => (RejectionReason::UnitAffinity, reason),
        Unfit::TopologySpread { reason } => (RejectionReason::TopologySpread, reason),
        Unfit::Load { reason } => (RejectionReason::LoadThreshold, reason),
        Unfit::Volume { .. } => (RejectionReason::Filter, refusal.to_string()),
        Unfit::Other { reason } => (RejectionReason::Filter, reason),
    }
}

/// One rejection of everything, about a node: its fresh state goes along.
pub(crate) fn at_node(
    decision: &Decision,
    reason: RejectionReason,
    node: NodeId,
    detail: String,
) -> Vec<Rejection> {
    let mut rejections = whole(decision, reason, detail);
    rejections.iter_mut().for_each(|rejection| rejection.node = node);
    rejections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_filters_say_has_a_reason() {
        let said = |words: &str| words.to_owned();
        let label = Unfit::Selector { key: said("zone"), value: said("a") };
        for (refusal, expected) in [
            (Unfit::Gone, (RejectionReason::NodeGone, "")),
            (Unfit::NotReady, (RejectionReason::NodeNotReady, "")),
            (Unfit::Cordoned, (RejectionReason::NodeCordoned, "")),
            (Unfit::Unreadable, (RejectionReason::NodeNotReady, "a record of the node cannot be read")),
            (label, (RejectionReason::NodeSelector, "zone=a")),
            (
                Unfit::Runtime,
                (RejectionReason::NodeSelector, "node runs processes, and the replica has no command"),
            ),
            (Unfit::Images, (RejectionReason::NodeSelector, "node runs no images")),
            (Unfit::Taint { taint: said("k") }, (RejectionReason::Taint, "k")),
            (Unfit::Resource { name: said("cpu") }, (RejectionReason::InsufficientResources, "cpu")),
            (Unfit::Device { reason: said("none free") }, (RejectionReason::DeviceTaken, "none free")),
            // Of a filter that is not built in.
            (
                Unfit::Other { reason: said("the node is virtual") },
                (RejectionReason::Filter, "the node is virtual"),
            ),
        ] {
            let (of, detail) = reason(refusal);
            assert_eq!((of, detail.as_str()), expected);
        }
    }
}
