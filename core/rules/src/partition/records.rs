//! The records in which a split is kept: one for the mode and the schedulers, one for each block of nodes.

use std::collections::BTreeMap;

use godel_base::ids::{NodeId, Revision};
use godel_domain::{
    change::{Block, Change, Partition, PartitionMode},
    records::Record,
};

/// How nodes are split, as recorded.
#[derive(Clone, Debug, Default)]
pub struct PartitionRecords {
    /// The record of the mode and the schedulers, with the slots of all nodes, whoever keeps them.
    whole: Partition,
    /// Of the former.
    revision: Revision,
    /// It is of an earlier version and keeps them itself: blocks do not count.
    lists_all: bool,
    /// None is empty.
    blocks: BTreeMap<u32, Block>,
    /// Of each block ever seen, one that is gone included.
    revisions: BTreeMap<u32, Revision>,
}

impl PartitionRecords {
    /// The mode, the schedulers, and the slots of all nodes that are listed.
    pub fn whole(&self) -> &Partition {
        &self.whole
    }

    /// Of the record of the mode and the schedulers; 0: there is none.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The record of the mode and the schedulers changed. Whether that is news.
    pub fn put(&mut self, partition: Partition, revision: Revision) -> bool {
        if revision <= self.revision {
            return false;
        }
        self.lists_all = !partition.slots.is_empty();
        self.revision = revision;
        self.whole = partition;
        if !self.lists_all {
            self.whole.slots = self.blocks.values().flat_map(Block::iter).collect();
        }
        true
    }

    /// A block changed. `O(nodes of the block)`, and more where it lists more of them than before.
    pub fn put_block(&mut self, block: Block, revision: Revision) {
        let known = self.revisions.entry(block.number).or_default();
        if revision <= *known {
            return;
        }
        *known = revision;
        if !self.lists_all {
            let slots = &mut self.whole.slots;
            let start = slots.partition_point(|(node, _)| Block::of(*node) < block.number);
            let len = slots[start..].partition_point(|(node, _)| Block::of(*node) == block.number);
            slots.splice(start..start + len, block.iter());
        }
        if block.slots.is_empty() {
            self.blocks.remove(&block.number);
        } else {
            self.blocks.insert(block.number, block);
        }
    }

    /// After a list as of `revision`: blocks that it did not show are gone.
    pub fn retain_blocks(&mut self, is_listed: impl Fn(u32) -> bool, revision: Revision) {
        let is_old = |number: &u32| self.revisions.get(number).is_none_or(|at| *at < revision);
        let gone = self.blocks.keys().filter(|number| !is_listed(**number) && is_old(number));
        for number in gone.copied().collect::<Vec<_>>() {
            self.put_block(Block { number, slots: Vec::new() }, revision);
        }
    }

    /// What is to be written so that this is how nodes are split: the blocks in which nodes move, and the record of the mode
    /// and the schedulers where that is another one.
    pub fn changes_to(&self, new: &Partition) -> Vec<Change> {
        let head = Partition { slots: Vec::new(), ..new.clone() };
        let before = Partition { slots: Vec::new(), generation: head.generation, ..self.whole.clone() };
        let mut changes = Vec::new();
        if self.revision == Revision(0) || self.lists_all || head != before {
            changes.push(Change::Put(Record::Partition(Partition {
                generation: self.whole.generation + 1,
                ..head
            })));
        }
        let is_split = new.mode != PartitionMode::Global;
        let wanted = if is_split { blocks(&new.slots) } else { BTreeMap::new() };
        let gone = self.blocks.keys().filter(|number| !wanted.contains_key(number));
        changes.extend(
            gone.map(|number| {
                Change::Put(Record::PartitionBlock(Block { number: *number, slots: Vec::new() }))
            }),
        );
        let moved = wanted.into_values().filter(|block| self.blocks.get(&block.number) != Some(block));
        changes.extend(moved.map(|it| Change::Put(Record::PartitionBlock(it))));
        changes
    }
}

/// The blocks of nodes in ascending order.
pub fn blocks(slots: &[(NodeId, u32)]) -> BTreeMap<u32, Block> {
    let mut blocks: BTreeMap<u32, Block> = BTreeMap::new();
    for &(node, slot) in slots {
        let number = Block::of(node);
        let block = blocks.entry(number).or_insert_with(|| Block { number, slots: Vec::new() });
        block.slots.resize(node.idx() % Block::N_NODES as usize, 0);
        block.slots.push(slot.saturating_add(1));
    }
    blocks
}
