//! When the record of a node goes by itself, because its machine has been away for so long.

use godel_base::{ids::NodeId, time::Millis};

/// A node as its absence is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePresence {
    /// The node.
    pub node: NodeId,
    /// The lease of its session ends then, or has ended.
    pub lease_ends: Millis,
    /// Running units are bound to it.
    pub has_units: bool,
}

/// Returns the nodes whose records go: those without a session for `limit_ms` on which nothing runs, the longest absent first and at most
/// `n_max` of them. A limit of 0: none ever goes.
pub fn absent(
    nodes: impl IntoIterator<Item = NodePresence>,
    now: Millis,
    limit_ms: u64,
    n_max: usize,
) -> Vec<NodeId> {
    if limit_ms == 0 {
        return Vec::new();
    }
    let is_gone = |one: &NodePresence| !one.has_units && now.since(one.lease_ends) >= limit_ms;
    let mut gone: Vec<(Millis, NodeId)> =
        nodes.into_iter().filter(is_gone).map(|one| (one.lease_ends, one.node)).collect();
    gone.sort_unstable();
    gone.into_iter().take(n_max).map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, lease_ends: u64, has_units: bool) -> NodePresence {
        NodePresence { node: NodeId(id), lease_ends: Millis(lease_ends), has_units }
    }

    #[test]
    fn a_node_goes_after_its_absence_unless_something_runs_there() {
        let nodes = [node(1, 1_000, false), node(2, 500, false), node(3, 0, true), node(4, 9_000, false)];
        for (now, limit_ms, expected) in [
            (1_499, 1_000, &[][..]),
            (1_500, 1_000, &[2]),
            (1_999, 1_000, &[2]),
            (2_000, 1_000, &[2, 1]),
            // A lease that is in force ends later.
            (9_999, 1_000, &[2, 1]),
            (10_000, 1_000, &[2, 1]),
            (99_999, 1_000, &[2, 1]),
            (99_999, 0, &[]),
            (99_999, u64::MAX, &[]),
        ] {
            let gone = absent(nodes, Millis(now), limit_ms, 2);
            assert_eq!(gone.iter().map(|node| node.0).collect::<Vec<_>>(), expected, "{now} {limit_ms}");
        }
        assert_eq!(absent(nodes, Millis(10_000), 1_000, 9).len(), 3);
    }
}
