//! What scores need to spread running units: how many of one unit are on each node, and what those count that ask for
//! nothing.
//!
//! The unit is the one that is being placed: its counts are made when its turn comes, in the time of its running units, and
//! follow assumptions and rows from then on, so that a placement costs an addition.

use godel_domain::ids::{NodeId, UnitId};

use super::Cluster;

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

    fn of(&self, idx: usize) -> [i64; 2] {
        self.0.get(idx).copied().unwrap_or_default()
    }
}

/// Running units of one unit by node, assumed or there.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaCounts {
    /// 0: none.
    unit: UnitId,
    counts: Vec<u32>,
    /// Those that have had a count; once they are as many as all are, nobody is noted any more.
    nodes: Vec<u32>,
}

impl ReplicaCounts {
    /// One more (`sign` 1) or one less (-1) of a unit.
    #[inline]
    pub(super) fn shift(&mut self, unit: UnitId, node: NodeId, sign: i8) {
        if unit == self.unit {
            self.turn(node, sign);
        }
    }

    fn turn(&mut self, node: NodeId, sign: i8) {
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

    fn begin(&mut self, unit: UnitId, n_nodes: usize) {
        self.unit = unit;
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

impl Cluster {
    /// From here on running units of this unit are counted by node. `O(running units of both)` if it was another one.
    pub fn count_unit(&mut self, unit: UnitId) {
        if self.tally.unit == unit && self.tally.counts.len() == self.nodes.len() {
            return;
        }
        self.tally.begin(unit, self.nodes.len());
        if let Some(taken) = self.units.get(&unit) {
            for (_, row) in taken.rows.live() {
                self.tally.turn(row.node, 1);
            }
        }
        for assumed in self.assumptions.of(unit) {
            self.tally.turn(assumed.node, 1);
        }
    }

    /// How many of the unit that is counted are on a node, assumed or there.
    pub fn n_of_unit(&self, idx: usize) -> u32 {
        self.tally.counts.get(idx).copied().unwrap_or(0)
    }

    /// What running units on a node count in scores beyond what they take, of cpu and memory.
    #[inline]
    pub fn nominal(&self, idx: usize) -> [i64; 2] {
        self.nominal.of(idx)
    }
}
