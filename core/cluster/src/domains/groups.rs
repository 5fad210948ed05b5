//! Nodes in groups among which a whole unit chooses: those that are alike in some labels, which are domains, and others that a grouper
//! of a profile has made.

use std::sync::Arc;

use godel_base::ids::NodeId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Domains, topology::DomainIdx};
use crate::{
    NodeBlocks,
    room::{BLOCK, BlockMask},
};

/// NodeDomains keys by position: nodes that have the same value of each are one group.
pub type TopologyLevel = Vec<usize>;

/// One group of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRef {
    /// Position of the level among those asked for.
    level: usize,
    group: usize,
}

/// All groups of a level.
#[derive(Clone, Debug, Default)]
pub struct NodeGroups {
    /// What they were made of.
    version: u64,
    /// Empty if they are not alike in keys.
    level: TopologyLevel,
    /// A grouper has made them.
    is_made: bool,
    groups: Vec<NodeGroup>,
}

/// Nodes that are alike.
#[derive(Clone, Debug, Default)]
struct NodeGroup {
    nodes: Vec<u32>,
    blocks: Vec<(usize, BlockMask)>,
}

impl NodeGroups {
    /// Returns how many groups there are.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether no node has a value of each key.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the nodes of a group, ascending.
    pub fn nodes(&self, group: usize) -> &[u32] {
        self.groups.get(group).map_or(&[], |group| &group.nodes)
    }
}

/// Groups of all levels that were asked for.
#[derive(Clone, Debug, Default)]
pub struct GroupCache(Vec<Arc<NodeGroups>>);

impl GroupCache {
    /// Takes groups that a grouper has made, instead of those before.
    pub fn put(&mut self, groups: &[Vec<u32>]) -> (usize, Arc<NodeGroups>) {
        let of = |nodes: &Vec<u32>| {
            let mut group = NodeGroup::default();
            nodes.iter().for_each(|node| group.add(*node as usize));
            group
        };
        let made =
            NodeGroups { is_made: true, groups: groups.iter().map(of).collect(), ..NodeGroups::default() };
        let known = self.0.iter().position(|groups| groups.is_made);
        let at = known.unwrap_or_else(|| {
            self.0.push(Arc::default());
            self.0.len() - 1
        });
        self.0[at] = Arc::new(made);
        (at, Arc::clone(&self.0[at]))
    }

    /// Whether the node at `idx` is one of a group.
    pub fn is_in(&self, of: GroupRef, idx: usize) -> bool {
        let Some(blocks) = self.blocks_of(of) else { return false };
        let at = blocks.binary_search_by_key(&(idx / BLOCK), |(block, _)| *block);
        at.is_ok_and(|at| blocks[at].1 >> (idx % BLOCK) & 1 == 1)
    }

    /// Returns the topology keys of a level, as [`Domains::groups_at`] numbers it.
    pub fn keys_of(&self, level: usize) -> &[usize] {
        self.0.get(level).map_or(&[], |groups| &groups.level)
    }

    /// Returns the blocks of the nodes of a group.
    pub fn blocks_of(&self, of: GroupRef) -> NodeBlocks<'_> {
        let group = self.0.get(of.level)?.groups.get(of.group)?;
        Some(&group.blocks)
    }
}

impl Domains {
    /// Returns the groups of a level, and a reference to the first of them; made anew once nodes have moved: `O(nodes)` then.
    pub fn groups_at(&mut self, level: &TopologyLevel) -> (usize, Arc<NodeGroups>) {
        let known = self.groups.0.iter().position(|groups| !groups.is_made && groups.level == *level);
        let at = known.unwrap_or_else(|| {
            self.groups.0.push(Arc::default());
            self.groups.0.len() - 1
        });
        if known.is_none() || self.groups.0[at].version != self.nodes_version {
            self.groups.0[at] = Arc::new(self.group(level));
        }
        (at, Arc::clone(&self.groups.0[at]))
    }

    fn group(&self, level: &TopologyLevel) -> NodeGroups {
        let topologies: Option<Vec<_>> = level.iter().map(|at| self.topologies.get(*at)).collect();
        let topologies = topologies.unwrap_or_default();
        let n_nodes = topologies.first().map_or(0, |topology| topology.n_nodes());
        let mut ids: FxHashMap<Vec<DomainIdx>, usize> = FxHashMap::default();
        let mut groups: Vec<NodeGroup> = Vec::new();
        for idx in 0..n_nodes {
            let values: Option<Vec<DomainIdx>> = topologies.iter().map(|topology| topology.of(idx)).collect();
            let Some(values) = values else { continue };
            let at = *ids.entry(values).or_insert_with(|| {
                groups.push(NodeGroup::default());
                groups.len() - 1
            });
            groups[at].add(idx);
        }
        NodeGroups { version: self.nodes_version, level: level.clone(), is_made: false, groups }
    }

    /// Returns the domains of a node at a level, those of each of its keys.
    pub fn values_of(&self, level: &TopologyLevel, node: NodeId) -> SmallVec<[Option<DomainIdx>; 2]> {
        level.iter().map(|key| self.topologies.get(*key)?.of(node.idx())).collect()
    }
}

impl GroupRef {
    /// Returns one group of a level, the level as [`Domains::groups_at`] numbers it.
    pub fn new(level: usize, group: usize) -> Self {
        Self { level, group }
    }
}

impl NodeGroup {
    fn add(&mut self, idx: usize) {
        self.nodes.extend(u32::try_from(idx));
        let (block, bit) = (idx / BLOCK, 1 << (idx % BLOCK));
        match self.blocks.last_mut() {
            Some((last, nodes)) if *last == block => *nodes |= bit,
            _ => self.blocks.push((block, bit)),
        }
    }
}
