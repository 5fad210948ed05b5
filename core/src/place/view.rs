//! Which nodes are whose, as bits by block.

use crate::{
    change::{Partition, PartitionMode, Scope},
    cluster::room::{BLOCK, Nodes},
};

/// Which nodes are whose.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    mode: PartitionMode,
    /// Of the unit that is tried now.
    pub(super) scope: Scope,
    /// `None`: not in the partition (yet), all nodes are alike.
    pub(super) slot: Option<usize>,
    pub(super) n_slots: usize,
    /// Own nodes of each block, a bit each.
    own: Vec<Nodes>,
}

impl View {
    pub(crate) fn new(partition: &Partition, name: &str) -> Self {
        let slot = partition.schedulers.iter().position(|scheduler| scheduler == name);
        let n_slots = partition.schedulers.len();
        let mut view = Self { mode: partition.mode, scope: Scope::default(), slot, n_slots, own: Vec::new() };
        let n_nodes = partition.slots.iter().map(|(node, _)| node.idx() + 1).max().unwrap_or(0);
        let mut own: Vec<Nodes> = (0..n_nodes.div_ceil(BLOCK)).map(|block| view.unlisted(block)).collect();
        for (node, owner) in &partition.slots {
            let (block, bit) = (node.idx() / BLOCK, 1 << (node.idx() % BLOCK));
            own[block] &= !bit;
            own[block] |= if Some(*owner as usize) == slot { bit } else { 0 };
        }
        view.own = own;
        view
    }

    /// Own nodes of a block of which none is listed.
    fn unlisted(&self, block: usize) -> Nodes {
        let Some(slot) = self.slot else { return Nodes::MAX };
        let is_own = |at: &usize| (block * BLOCK + at) % self.n_slots == slot;
        (0..BLOCK).filter(is_own).fold(0, |own, at| own | 1 << at)
    }

    /// Nodes of a block within a reach.
    pub(super) fn within(&self, reach: Reach, block: usize) -> Nodes {
        let own = || self.own.get(block).copied().unwrap_or_else(|| self.unlisted(block));
        match reach {
            Reach::All => Nodes::MAX,
            Reach::Own => own(),
            Reach::Others => !own(),
        }
    }

    pub(crate) fn is_own(&self, idx: usize) -> bool {
        let is_shared = self.mode == PartitionMode::Global || self.slot.is_none();
        is_shared || self.within(Reach::Own, idx / BLOCK) >> (idx % BLOCK) & 1 == 1
    }

    /// Where the scans of this scheduler begin: those of a cluster's schedulers are as far apart as that goes, so
    /// that they rarely look at the same nodes at the same time.
    pub(super) fn origin(&self, n_nodes: usize) -> usize {
        self.slot.map_or(0, |slot| n_nodes * slot / self.n_slots)
    }

    /// Which nodes to look at, one after the other.
    pub(super) fn reaches(&self) -> &'static [Reach] {
        match (self.mode, self.slot) {
            (PartitionMode::Global, _) | (_, None) => &[Reach::All],
            (PartitionMode::Preferred, _) => &[Reach::Own, Reach::Others],
            (PartitionMode::Strict, _) => match self.scope {
                Scope::Partition => &[Reach::Own],
                Scope::Global => &[Reach::Own, Reach::Others],
            },
        }
    }

    /// Own nodes come before others.
    pub(crate) fn is_preferred(&self) -> bool {
        self.reaches().len() > 1
    }

    /// Others' nodes may not be used now.
    pub(crate) fn is_confined(&self) -> bool {
        self.is_strict() && self.scope == Scope::Partition
    }

    pub(super) fn is_strict(&self) -> bool {
        self.mode == PartitionMode::Strict && self.slot.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    All,
    Own,
    Others,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::NodeId;

    proptest! {
        /// Blocks and bits say what the partition says of each node.
        #[test]
        fn a_view_is_its_partition(
            slots in prop::collection::btree_map(1..200u32, 0..4u32, 0..60),
            n_slots in 1..5u32,
            own in 0..6u32,
            is_strict in any::<bool>(),
            is_wide in any::<bool>(),
        ) {
            let mode = if is_strict { PartitionMode::Strict } else { PartitionMode::Preferred };
            let schedulers = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let listed = slots.iter().map(|(node, owner)| (NodeId(*node), *owner)).collect();
            let mut view = View::new(&Partition { mode, generation: 1, schedulers, slots: listed, ..Partition::default() }, &format!("s{own}"));
            view.scope = if is_wide { Scope::Global } else { Scope::Partition };
            let naive = |idx: u32| own >= n_slots || slots.get(&idx).map_or(idx % n_slots, |owner| *owner) == own;
            for idx in 0..300u32 {
                let at = idx as usize;
                prop_assert_eq!(view.is_own(at), naive(idx), "{}", idx);
                let reached: Vec<Reach> = view
                    .reaches()
                    .iter()
                    .copied()
                    .filter(|reach| view.within(*reach, at / BLOCK) >> (at % BLOCK) & 1 == 1)
                    .collect();
                let expected = match (own >= n_slots, naive(idx)) {
                    (true, _) => vec![Reach::All],
                    (false, true) => vec![Reach::Own],
                    (false, false) if is_strict && !is_wide => vec![],
                    (false, false) => vec![Reach::Others],
                };
                prop_assert_eq!(reached, expected, "{}: once, if at all", idx);
            }
        }

        /// The scans of all schedulers begin as far apart as that goes, and within the cluster.
        #[test]
        fn origins_are_apart(n_slots in 1..8usize, n_nodes in 1..500usize) {
            let schedulers: Vec<String> = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let partition = Partition { schedulers: schedulers.clone(), ..Partition::default() };
            let origins: Vec<usize> =
                schedulers.iter().map(|name| View::new(&partition, name).origin(n_nodes)).collect();
            prop_assert!(origins.iter().all(|origin| *origin < n_nodes));
            prop_assert!(origins.windows(2).all(|pair| pair[1] - pair[0] >= n_nodes / n_slots));
        }
    }
}
