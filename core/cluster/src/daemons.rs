//! Where the replicas of daemons are, and which nodes have none: of each daemon the blocks of nodes that it has yet to reach, so
//! that placing one of ten thousand replicas costs a look at the nodes without one.
//!
//! Counts follow rows and assumptions. Nothing is kept while there is no daemon.

use godel_base::ids::{IdMap, NodeId, UnitId};

use super::room::{BLOCK, BlockMask};

/// A daemon by small integer: valid for the cluster that gave it, and never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DaemonIdx(u32);

/// Daemons by unit.
#[derive(Clone, Debug, Default)]
pub struct DaemonPlaces {
    ids: IdMap<UnitId, DaemonIdx>,
    /// By daemon; empty for one that is gone.
    reached: Vec<ReachedNodes>,
    /// Nodes that are known.
    n_nodes: usize,
}

/// Nodes with a replica of one daemon, and those without.
#[derive(Clone, Debug, Default)]
struct ReachedNodes {
    /// Replicas by node, assumed or there: one, or two while one takes the place of the other.
    counts: Vec<u32>,
    /// Nodes that are known.
    n_nodes: usize,
    /// Blocks with known nodes without a replica, ascending, and which nodes these are.
    open: Vec<(usize, BlockMask)>,
}

impl ReachedNodes {
    fn grow(&mut self, n_nodes: usize) {
        for idx in self.n_nodes..n_nodes {
            if self.count(idx) == 0 {
                self.mark(idx, true);
            }
        }
        self.n_nodes = self.n_nodes.max(n_nodes);
    }

    fn count(&self, idx: usize) -> u32 {
        self.counts.get(idx).copied().unwrap_or(0)
    }

    fn shift(&mut self, idx: usize, sign: i8) {
        if self.counts.len() <= idx {
            self.counts.resize(idx + 1, 0);
        }
        let before = self.counts[idx];
        let after = if sign < 0 { before.saturating_sub(1) } else { before + 1 };
        self.counts[idx] = after;
        if (before == 0) != (after == 0) && idx < self.n_nodes {
            self.mark(idx, after == 0);
        }
    }

    fn mark(&mut self, idx: usize, is_open: bool) {
        let (block, bit) = (idx / BLOCK, 1 << (idx % BLOCK));
        match (self.open.binary_search_by_key(&block, |(block, _)| *block), is_open) {
            (Ok(at), true) => self.open[at].1 |= bit,
            (Err(at), true) => self.open.insert(at, (block, bit)),
            (Ok(at), false) => {
                self.open[at].1 &= !bit;
                if self.open[at].1 == 0 {
                    self.open.remove(at);
                }
            }
            (Err(_), false) => {}
        }
    }
}

impl DaemonPlaces {
    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the integer of a daemon that is known.
    pub fn find(&self, unit: UnitId) -> Option<DaemonIdx> {
        self.ids.get(&unit).copied()
    }

    /// Follows a daemon from now on, whose replicas are on `nodes`; nothing happens to one that is known.
    pub(crate) fn put(&mut self, unit: UnitId, nodes: impl FnOnce() -> Vec<NodeId>) -> DaemonIdx {
        if let Some(known) = self.find(unit) {
            return known;
        }
        let idx = DaemonIdx(u32::try_from(self.reached.len()).expect("memory ends before 2^32 daemons"));
        let mut reached = ReachedNodes::default();
        reached.grow(self.n_nodes);
        nodes().into_iter().for_each(|node| reached.shift(node.idx(), 1));
        self.reached.push(reached);
        self.ids.insert(unit, idx);
        idx
    }

    /// A daemon is gone, and all that ran of it.
    pub fn remove(&mut self, unit: UnitId) {
        if let Some(DaemonIdx(idx)) = self.ids.remove(&unit) {
            self.reached[idx as usize] = ReachedNodes::default();
        }
    }

    /// A new list begins: nobody runs, and no node is known. Daemons stay.
    pub(crate) fn reset(mut self) -> Self {
        self.reached.iter_mut().for_each(|reached| *reached = ReachedNodes::default());
        self.n_nodes = 0;
        self
    }

    /// There are so many nodes now.
    pub(crate) fn grow(&mut self, n_nodes: usize) {
        self.n_nodes = n_nodes;
        for DaemonIdx(idx) in self.ids.values() {
            self.reached[*idx as usize].grow(n_nodes);
        }
    }

    /// One more (`sign` 1) or one less (-1) of a unit on a node, assumed or there.
    #[cold]
    pub(crate) fn shift(&mut self, unit: UnitId, node: NodeId, sign: i8) {
        if let Some(DaemonIdx(idx)) = self.find(unit) {
            self.reached[idx as usize].shift(node.idx(), sign);
        }
    }

    /// Whether a replica of a daemon is on the node at an index, assumed or there.
    #[inline]
    pub fn is_on(&self, DaemonIdx(daemon): DaemonIdx, idx: usize) -> bool {
        self.reached[daemon as usize].count(idx) > 0
    }

    /// Returns the blocks with nodes without a replica of a daemon, ascending, and which nodes these are.
    #[inline]
    pub fn open(&self, DaemonIdx(daemon): DaemonIdx) -> &[(usize, BlockMask)] {
        &self.reached[daemon as usize].open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_a_replica_are_open() {
        let (unit, other) = (UnitId(1), UnitId(2));
        let mut daemons = DaemonPlaces::default();
        daemons.grow(66);
        let idx = daemons.put(unit, || vec![NodeId(1), NodeId(70), NodeId(200)]);
        assert_eq!(daemons.open(idx), [(0, !0b10), (1, 0b11)]);
        daemons.grow(72);
        assert_eq!(daemons.open(idx)[1], (1, 0b1011_1111), "node 70 has one");
        for node in 64..72 {
            daemons.shift(unit, NodeId(node), 1);
        }
        assert_eq!(daemons.open(idx), [(0, !0b10)], "no block without nodes");
        daemons.shift(other, NodeId(2), 1);
        daemons.shift(unit, NodeId(70), -1);
        assert!(daemons.is_on(idx, 70), "the other one is still there");
        daemons.shift(unit, NodeId(70), -1);
        daemons.shift(unit, NodeId(1), -1);
        assert_eq!(daemons.open(idx), [(0, !0), (1, 1 << 6)]);
        assert_eq!(daemons.put(unit, || unreachable!("it is known")), idx);
        daemons.remove(unit);
        assert!(daemons.open(idx).is_empty() && !daemons.is_on(idx, 200) && daemons.is_empty());
    }

    #[test]
    fn a_new_list_leaves_daemons_without_replicas() {
        let mut daemons = DaemonPlaces::default();
        daemons.grow(2);
        let idx = daemons.put(UnitId(1), || vec![NodeId(1)]);
        let mut daemons = daemons.reset();
        assert_eq!((daemons.find(UnitId(1)), daemons.open(idx)), (Some(idx), &[][..]));
        daemons.grow(2);
        assert_eq!(daemons.open(idx), [(0, 0b11)]);
    }
}
