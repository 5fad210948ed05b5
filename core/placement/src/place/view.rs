//! Which nodes are whose, as bits by block.

use std::collections::BTreeMap;

use godel_base::ids::NodeId;
use godel_cluster::room::{BLOCK, BlockMask};
use godel_domain::change::{Block, NodeScope, Partition, PartitionMode};
use godel_rules::partition;

const _: () = assert!(BLOCK == Block::N_NODES as usize, "a record says whose the nodes of a block are");

/// Which nodes are whose.
#[derive(Clone, Debug, Default)]
pub struct View {
    mode: PartitionMode,
    /// Of the unit that is tried now.
    pub(super) scope: NodeScope,
    /// `None`: not in the partition (yet), all nodes are alike.
    pub(super) slot: Option<usize>,
    pub(super) n_slots: usize,
    /// Slots of nodes by block, as recorded.
    blocks: BTreeMap<u32, Block>,
    /// The same as a record of an earlier version lists them: then `blocks` do not count.
    whole: Option<BTreeMap<u32, Block>>,
    /// Own nodes of each block, a bit each.
    own: Vec<BlockMask>,
}

/// Nodes of a block that have come to be its own, or have ceased to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    block: usize,
    gained: BlockMask,
    lost: BlockMask,
}

impl Moved {
    /// Each node, and whether it was gained.
    pub fn nodes(self) -> impl Iterator<Item = (NodeId, bool)> {
        let moved = self.gained | self.lost;
        (0..BLOCK).filter(move |at| moved >> at & 1 == 1).filter_map(move |at| {
            Some((NodeId(u32::try_from(self.block * BLOCK + at).ok()?), self.gained >> at & 1 == 1))
        })
    }
}

impl View {
    /// The mode or the schedulers changed. Of a cluster of `n_nodes` nodes those that moved, where nodes are reached in the
    /// same way as before, own ones apart from others. `O(nodes / 64)` beside them.
    pub fn set(&mut self, partition: &Partition, name: &str, n_nodes: usize) -> Vec<Moved> {
        let way = self.way();
        let n_listed = partition.slots.last().map_or(0, |(node, _)| node.idx() + 1);
        let n_blocks = n_nodes.max(n_listed).div_ceil(BLOCK).max(self.own.len());
        let before: Vec<BlockMask> = (0..n_blocks).map(|block| self.within(NodeReach::Own, block)).collect();
        self.mode = partition.mode;
        self.slot = partition.schedulers.iter().position(|scheduler| scheduler == name);
        self.n_slots = partition.schedulers.len();
        self.whole = (!partition.slots.is_empty()).then(|| partition::blocks(&partition.slots));
        self.own = (0..n_blocks).map(|block| self.of_block(block)).collect();
        if self.is_shared() || self.way() != way {
            return Vec::new();
        }
        let both = before.into_iter().zip(&self.own).enumerate();
        both.filter_map(|(block, (before, after))| moved(block, before, *after)).collect()
    }

    /// Nodes of a block have other owners. Those that moved; `O(nodes of the block)`.
    pub fn put_block(&mut self, block: Block) -> Option<Moved> {
        let number = block.number as usize;
        let before = self.within(NodeReach::Own, number);
        let record = (!block.slots.is_empty()).then_some(block);
        match record {
            Some(block) => self.blocks.insert(block.number, block),
            None => u32::try_from(number).ok().and_then(|number| self.blocks.remove(&number)),
        };
        while self.own.len() <= number {
            self.own.push(self.of_block(self.own.len()));
        }
        self.own[number] = self.of_block(number);
        moved(number, before, self.own[number]).filter(|_| !self.is_shared())
    }

    /// A list follows, with all blocks that there are. What is its own stays until they have been read.
    pub fn forget_blocks(&mut self) {
        self.blocks.clear();
    }

    fn of_block(&self, number: usize) -> BlockMask {
        let blocks = self.whole.as_ref().unwrap_or(&self.blocks);
        let block = u32::try_from(number).ok().and_then(|number| blocks.get(&number));
        let (Some(block), Some(slot)) = (block, self.slot) else { return self.unlisted(number) };
        let mut own = self.unlisted(number);
        for (node, owner) in block.iter() {
            let bit = 1 << (node.idx() % BLOCK);
            own &= !bit;
            own |= if owner as usize == slot { bit } else { 0 };
        }
        own
    }

    /// Own nodes of a block of which none is listed.
    fn unlisted(&self, block: usize) -> BlockMask {
        let Some(slot) = self.slot else { return BlockMask::MAX };
        let is_own = |at: &usize| (block * BLOCK + at) % self.n_slots == slot;
        (0..BLOCK).filter(is_own).fold(0, |own, at| own | 1 << at)
    }

    /// Nodes of a block within a reach.
    pub(super) fn within(&self, reach: NodeReach, block: usize) -> BlockMask {
        let own = || self.own.get(block).copied().unwrap_or_else(|| self.unlisted(block));
        match reach {
            NodeReach::All => BlockMask::MAX,
            NodeReach::Own => own(),
            NodeReach::Others => !own(),
        }
    }

    /// Whether the node at an index is of the own partition; every node is while none is split off.
    pub fn is_own(&self, idx: usize) -> bool {
        self.is_shared() || self.within(NodeReach::Own, idx / BLOCK) >> (idx % BLOCK) & 1 == 1
    }

    /// All nodes are alike.
    fn is_shared(&self) -> bool {
        self.mode == PartitionMode::Global || self.slot.is_none()
    }

    /// Where the scans of this scheduler begin: those of a cluster's schedulers are as far apart as that goes, so
    /// that they rarely look at the same nodes at the same time.
    pub(super) fn origin(&self, n_nodes: usize) -> usize {
        self.slot.map_or(0, |slot| n_nodes * slot / self.n_slots)
    }

    /// Which nodes to look at, one after the other.
    pub(super) fn reaches(&self) -> &'static [NodeReach] {
        match (self.mode, self.slot) {
            (PartitionMode::Global, _) | (_, None) => &[NodeReach::All],
            (PartitionMode::Preferred, _) => &[NodeReach::Own, NodeReach::Others],
            (PartitionMode::Strict, _) => match self.scope {
                NodeScope::Partition => &[NodeReach::Own],
                NodeScope::Global => &[NodeReach::Own, NodeReach::Others],
            },
        }
    }

    /// How nodes are reached for all units: what is listed of candidates for one way means nothing for another.
    pub(super) fn way(&self) -> (PartitionMode, bool) {
        (self.mode, self.slot.is_some())
    }

    /// Whether a node is within a reach.
    pub(super) fn reaches_node(&self, reach: NodeReach, idx: usize) -> bool {
        reach == NodeReach::All || self.within(reach, idx / BLOCK) >> (idx % BLOCK) & 1 == 1
    }

    /// Own nodes come before others.
    pub fn is_preferred(&self) -> bool {
        self.reaches().len() > 1
    }

    /// Others' nodes may not be used now.
    pub fn is_confined(&self) -> bool {
        self.is_strict() && self.scope == NodeScope::Partition
    }

    /// Whether only nodes of the own partition may be used.
    pub fn is_strict(&self) -> bool {
        self.mode == PartitionMode::Strict && self.slot.is_some()
    }
}

fn moved(block: usize, before: BlockMask, after: BlockMask) -> Option<Moved> {
    (before != after).then_some(Moved { block, gained: after & !before, lost: before & !after })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NodeReach {
    #[default]
    All,
    Own,
    Others,
}

/// The nodes of a block from one place up to another.
pub(super) fn between(from: usize, to: usize) -> BlockMask {
    let below = |end: usize| if end >= BLOCK { BlockMask::MAX } else { (1 << end) - 1 };
    below(to) & !below(from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_node_that_moves_is_told_alone() {
        let schedulers = vec!["a".to_owned(), "b".to_owned()];
        let head = Partition { mode: PartitionMode::Strict, schedulers, ..Partition::default() };
        let slots: Vec<(NodeId, u32)> = (1..=200).map(|id| (NodeId(id), id / 100)).collect();
        let mut view = View::default();
        view.set(&head, "a", 200);
        for block in partition::blocks(&slots).into_values() {
            view.put_block(block);
        }
        let mut block = partition::blocks(&slots).remove(&1).unwrap();
        assert_eq!(view.put_block(block.clone()), None, "as it was");
        block.slots[99 - 64] = 2;
        block.slots[120 - 64] = 1;
        let moved: Vec<_> = view.put_block(block).into_iter().flat_map(Moved::nodes).collect();
        assert_eq!(moved, [(NodeId(99), false), (NodeId(120), true)]);
        // Another one takes the slot of the other one: nothing of this is its business.
        let renamed = Partition { schedulers: vec!["a".to_owned(), "c".to_owned()], ..head };
        assert_eq!(view.set(&renamed, "a", 200), []);
    }

    proptest! {
        /// Blocks and bits say what the partition says of each node.
        #[test]
        fn a_view_is_its_partition(
            slots in prop::collection::btree_map(1..200u32, 0..4u32, 0..60),
            n_slots in 1..5u32,
            own in 0..6u32,
            is_strict in any::<bool>(),
            is_wide in any::<bool>(),
            is_older in any::<bool>(),
        ) {
            let mode = if is_strict { PartitionMode::Strict } else { PartitionMode::Preferred };
            let schedulers = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let listed = slots.iter().map(|(node, owner)| (NodeId(*node), *owner)).collect();
            let partition = Partition { mode, generation: 1, schedulers, slots: listed, ..Partition::default() };
            let mut view = View::default();
            let name = format!("s{own}");
            if is_older {
                view.set(&partition, &name, 300);
            } else {
                // In whatever order.
                let mut blocks: Vec<_> = partition::blocks(&partition.slots).into_values().collect();
                let rest = blocks.split_off(blocks.len() / 2);
                for block in blocks {
                    view.put_block(block);
                }
                view.set(&Partition { slots: Vec::new(), ..partition }, &name, 0);
                for block in rest {
                    view.put_block(block);
                }
            }
            view.scope = if is_wide { NodeScope::Global } else { NodeScope::Partition };
            let naive = |idx: u32| own >= n_slots || slots.get(&idx).map_or(idx % n_slots, |owner| *owner) == own;
            for idx in 0..300u32 {
                let at = idx as usize;
                prop_assert_eq!(view.is_own(at), naive(idx), "{}", idx);
                let reached: Vec<NodeReach> = view
                    .reaches()
                    .iter()
                    .copied()
                    .filter(|reach| view.within(*reach, at / BLOCK) >> (at % BLOCK) & 1 == 1)
                    .collect();
                let expected = match (own >= n_slots, naive(idx)) {
                    (true, _) => vec![NodeReach::All],
                    (false, true) => vec![NodeReach::Own],
                    (false, false) if is_strict && !is_wide => vec![],
                    (false, false) => vec![NodeReach::Others],
                };
                prop_assert_eq!(reached, expected, "{}: once, if at all", idx);
            }
        }

        #[test]
        fn between_is_every_place_from_one_up_to_another(from in 0..=BLOCK, to in 0..=BLOCK) {
            let places = (0..BLOCK).filter(|at| between(from, to) >> at & 1 == 1);
            prop_assert!(places.eq(from..to.max(from)));
        }

        /// The scans of all schedulers begin as far apart as that goes, and within the cluster.
        #[test]
        fn origins_are_apart(n_slots in 1..8usize, n_nodes in 1..500usize) {
            let schedulers: Vec<String> = (0..n_slots).map(|slot| format!("s{slot}")).collect();
            let partition = Partition { schedulers: schedulers.clone(), ..Partition::default() };
            let origin = |name: &String| {
                let mut view = View::default();
                view.set(&partition, name, n_nodes);
                view.origin(n_nodes)
            };
            let origins: Vec<usize> = schedulers.iter().map(origin).collect();
            prop_assert!(origins.iter().all(|origin| *origin < n_nodes));
            prop_assert!(origins.windows(2).all(|pair| pair[1] - pair[0] >= n_nodes / n_slots));
        }
    }
}
