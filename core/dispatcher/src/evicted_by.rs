//! Who had running units leave, in words: for people who ask why a replica was evicted.

use std::collections::BTreeMap;

use godel_base::ids::{NodeId, ReplicaId};
use godel_domain::{
    node::{NodeSpec, Taint, TaintEffect},
    running_units::{EvictionReason, RunningUnits},
    unit::UnitSpec,
};

use super::nodes::Nodes;

/// Nodes that one text names.
const N_NAMED_MAX: usize = 3;

/// The words that nodes to be left have for it.
#[derive(Debug, Default)]
pub(super) struct Grounds {
    /// Why the machines of nodes go away, of those that have a notice.
    notices: BTreeMap<NodeId, Box<str>>,
}

impl Grounds {
    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec) {
        match &spec.notice {
            Some(notice) => self.notices.insert(spec.id, notice.reason.as_str().into()),
            None => self.notices.remove(&spec.id),
        };
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.notices.remove(&node);
    }

    /// After a list: all other nodes are gone.
    pub(super) fn retain(&mut self, is_listed: impl Fn(NodeId) -> bool) {
        self.notices.retain(|node, _| is_listed(*node));
    }

    /// Who has these leave because of the nodes that they are on. `taints` are those that evict.
    pub(super) fn by(
        &self,
        reason: EvictionReason,
        members: &[ReplicaId],
        rows: &RunningUnits,
        nodes: &Nodes,
        taints: &BTreeMap<NodeId, Vec<Taint>>,
    ) -> String {
        let mut on: Vec<NodeId> = members.iter().map(|member| rows.row(member.ordinal).node).collect();
        on.sort_unstable();
        on.dedup();
        let names: Vec<String> = on.iter().take(N_NAMED_MAX).map(|node| nodes.name_or_id(*node)).collect();
        let of = match on.len() - names.len() {
            0 if names.len() == 1 => format!("of node {}", names[0]),
            0 => format!("of nodes {}", names.join(", ")),
            n => format!("of nodes {} and {n} more", names.join(", ")),
        };
        // Words of their own have those that are all of one node.
        let one = match on[..] {
            [node] => Some(node),
            _ => None,
        };
        match reason {
            EvictionReason::NodeLost => format!("loss {of}"),
            EvictionReason::Tainted => match one.and_then(|node| taints.get(&node)).map(Vec::as_slice) {
                Some([taint]) => format!("taint {} {of}", shown(taint)),
                _ => format!("taints {of}"),
            },
            _ => match one.and_then(|node| self.notices.get(&node)) {
                Some(why) => format!("notice {of}: {why}"),
                None => format!("drain {of}"),
            },
        }
    }
}

/// Who has running units of a unit leave that the unit itself does not want, or not now.
pub(super) fn by_unit(reason: EvictionReason, spec: &UnitSpec) -> String {
    let words = match reason {
        EvictionReason::Cancelled => "cancel of the unit",
        EvictionReason::ScaledIn if spec.is_daemon() => "nodes that the daemon is no longer for",
        EvictionReason::ScaledIn => "scale of the unit, or stop or replacement of the replica",
        EvictionReason::Suspended => "suspend of the unit",
        EvictionReason::Deadline => "active_deadline of the unit",
        EvictionReason::BelowMin => "on_below_min of the unit",
        EvictionReason::Failure => "on_failure of the unit",
        EvictionReason::Preempted
        | EvictionReason::NodeLost
        | EvictionReason::Drained
        | EvictionReason::Squeezed
        | EvictionReason::Rescheduled
        | EvictionReason::Tainted => "the unit",
    };
    words.to_owned()
}

/// A taint as it is given: `key=value:no-execute`.
fn shown(taint: &Taint) -> String {
    let Taint { key, value, effect, .. } = taint;
    let value = if value.is_empty() { String::new() } else { format!("={value}") };
    let effect = match effect {
        TaintEffect::NoExecute => "no-execute",
        TaintEffect::NoSchedule => "no-schedule",
        TaintEffect::PreferNoSchedule => "prefer-no-schedule",
    };
    format!("{key}{value}:{effect}")
}

#[cfg(test)]
mod tests {
    use godel_domain::{node::Notice, running_units::RunningUnit};

    use super::*;

    #[test]
    fn words_name_the_nodes_and_what_is_the_matter_with_them() {
        let spec = |id: u32, why: Option<&str>| NodeSpec {
            id: NodeId(id),
            name: format!("n{id}"),
            notice: why.map(|why| Notice { reason: why.to_owned(), ..Notice::default() }),
            ..NodeSpec::default()
        };
        let (mut nodes, mut grounds) = (Nodes::default(), Grounds::default());
        for node in
            [spec(1, None), spec(2, Some("spot reclaim")), spec(3, Some("old")), spec(3, None), spec(4, None)]
        {
            nodes.on_node_spec(&node);
            grounds.on_node_spec(&node);
        }
        let taint = |key: &str, value: &str| Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: TaintEffect::NoExecute,
            added_ms: 0,
        };
        let taints = BTreeMap::from([
            (NodeId(1), vec![taint("disk", "bad")]),
            (NodeId(2), vec![taint("a", ""), taint("b", "")]),
            (NodeId(3), vec![taint("a", "")]),
        ]);
        let row = |node| RunningUnit { node: NodeId(node), ..RunningUnit::default() };
        let by = |reason, on: &[u32]| {
            let rows =
                RunningUnits { rows: on.iter().map(|node| row(*node)).collect(), ..RunningUnits::default() };
            let members: Vec<ReplicaId> =
                (0..).zip(on).map(|(ordinal, _)| ReplicaId::new(ordinal, 0)).collect();
            grounds.by(reason, &members, &rows, &nodes, &taints)
        };
        use EvictionReason::{Drained, NodeLost, Tainted};
        for (reason, on, expected) in [
            (NodeLost, &[1, 1][..], "loss of node n1"),
            (NodeLost, &[4, 3, 1], "loss of nodes n1, n3, n4"),
            (NodeLost, &[5, 4, 3, 2, 1], "loss of nodes n1, n2, n3 and 2 more"),
            (Drained, &[1], "drain of node n1"),
            (Drained, &[2, 2], "notice of node n2: spot reclaim"),
            (Drained, &[3], "drain of node n3"),
            (Drained, &[1, 2], "drain of nodes n1, n2"),
            (Tainted, &[1], "taint disk=bad:no-execute of node n1"),
            (Tainted, &[3], "taint a:no-execute of node n3"),
            (Tainted, &[2], "taints of node n2"),
            (Tainted, &[1, 3], "taints of nodes n1, n3"),
        ] {
            assert_eq!(by(reason, on), expected);
        }
    }
}
