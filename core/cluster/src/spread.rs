//! What scores need to spread running units: how many of one unit are on each node, and what those count that ask for
//! nothing.
//!
//! The unit is the one that is being placed: its counts are made when its turn comes, in the time of its running units, and
//! follow assumptions and rows from then on, so that a placement costs an addition.

use godel_base::ids::{NodeId, UnitId};

/// By node what those there count in scores beyond what they take, of cpu and memory; empty while that is nothing everywhere.
#[derive(Clone, Debug, Default)]
pub(super) struct Nominal(Vec<[i64; 2]>);

impl Nominal {
    /// One more (`sign` 1) or one less (-1).
    #[cold]
    pub(super) fn shift(&mut self, idx: usize, nominal: [i64; 2], sign: i8) {
        if self.0.len() <= idx {
            self.0.resize(idx + 1, [0; 2]);
        }
        for (sum, amount) in self.0[idx].iter_mut().zip(nominal) {
            *sum = sum.saturating_add(amount * i64::from(sign));
        }
    }

    /// Returns what those on the node at an index count.
    #[inline]
    pub(super) fn of(&self, idx: usize) -> [i64; 2] {
        self.0.get(idx).copied().unwrap_or_default()
    }
}

/// Running units of one unit by node, assumed or there.
#[derive(Clone, Debug, Default)]
pub struct ReplicaCounts {
    /// 0: none.
    unit: UnitId,
    counts: Vec<u32>,
    /// Those that have had a count; once they are as many as all are, nobody is noted any more.
    nodes: Vec<u32>,
}

impl ReplicaCounts {
    /// Whether it is this unit that is counted.
    #[inline]
    pub(super) fn counts(&self, unit: UnitId) -> bool {
        unit == self.unit
    }

    /// Whether the running units of a unit are counted, on as many nodes as there are now.
    pub(super) fn is_of(&self, unit: UnitId, n_nodes: usize) -> bool {
        self.unit == unit && self.counts.len() == n_nodes
    }

    /// Counts the running units of a unit from now on, where `replicas` says they are.
    pub(super) fn begin(&mut self, unit: UnitId, n_nodes: usize, replicas: impl Iterator<Item = NodeId>) {
        self.clear(n_nodes);
        self.unit = unit;
        replicas.for_each(|node| self.shift(node, 1));
    }

    /// Returns how many of the unit that is counted are on the node at an index.
    #[inline]
    pub fn of(&self, idx: usize) -> u32 {
        self.counts.get(idx).copied().unwrap_or(0)
    }

    /// One more (`sign` 1) or one less (-1) of the unit that is counted.
    pub(super) fn shift(&mut self, node: NodeId, sign: i8) {
        let n_nodes = self.counts.len();
        let Some(count) = self.counts.get_mut(node.idx()) else { return };
        if sign < 0 {
            *count = count.saturating_sub(1);
            return;
        }
        if *count == 0 && self.nodes.len() < n_nodes {
            self.nodes.push(node.0);
        }
        *count += 1;
    }

    fn clear(&mut self, n_nodes: usize) {
        if self.nodes.len() < self.counts.len() {
            for node in self.nodes.drain(..) {
                self.counts[NodeId(node).idx()] = 0;
            }
        } else {
            self.nodes.clear();
            self.counts.fill(0);
        }
        self.counts.resize(n_nodes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_one_unit_and_are_cleared_for_the_next() {
        let (first, second) = (UnitId(1), UnitId(2));
        let mut counts = ReplicaCounts::default();
        counts.begin(first, 4, [1, 3, 3].map(NodeId).into_iter());
        assert!(counts.counts(first) && !counts.counts(second));
        counts.shift(NodeId(2), 1);
        counts.shift(NodeId(1), -1);
        counts.shift(NodeId(7), 1);
        assert_eq!([0, 1, 2, 3, 7].map(|idx| counts.of(idx)), [0, 0, 1, 2, 0]);
        assert!(counts.is_of(first, 4) && !counts.is_of(first, 8) && !counts.is_of(second, 4));
        counts.begin(second, 8, std::iter::once(NodeId(7)));
        assert_eq!([1, 2, 3, 7].map(|idx| counts.of(idx)), [0, 0, 0, 1]);
    }
}
