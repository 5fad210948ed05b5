//! Which nodes are of which sub-cluster, as small integers. Of each sub-cluster the blocks are known that have nodes of it, so
//! that looking through one costs what it has and not what the cluster has.

use std::{collections::BTreeMap, num::NonZeroU32};

use godel_base::ids::NodeId;
use godel_domain::sub_cluster::demanded;
use rustc_hash::FxHashMap;

use super::room::{BLOCK, BlockMask};

/// A sub-cluster by small integer: valid for the cluster that gave it, for as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubClusterId(NonZeroU32);

impl SubClusterId {
    /// In order of first mention, from 0 on.
    pub fn idx(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The blocks with nodes that something may use, ascending, and which nodes these are; `None`: all nodes.
pub type NodeBlocks<'a> = Option<&'a [(usize, BlockMask)]>;

/// Returns the indices of the nodes of some blocks, ascending.
pub(super) fn nodes_of(blocks: &[(usize, BlockMask)]) -> impl Iterator<Item = usize> {
    blocks.iter().flat_map(|(block, nodes)| {
        (0..BLOCK).filter(move |at| nodes >> at & 1 == 1).map(move |at| block * BLOCK + at)
    })
}

/// Sub-clusters by name and by node. Names stay, whether nodes have them or not.
#[derive(Clone, Debug, Default)]
pub struct SubClusters {
    /// Label of nodes; empty: there are no sub-clusters.
    key: String,
    ids: FxHashMap<String, SubClusterId>,
    /// By sub-cluster: blocks with nodes of it, ascending, and which nodes these are.
    blocks: Vec<Vec<(usize, BlockMask)>>,
    /// By node; those beyond the end are of none.
    of: Vec<Option<SubClusterId>>,
}

impl SubClusters {
    /// Returns no sub-clusters yet, which the values of a label are to name; of an empty label there are none.
    pub(super) fn by_label(key: &str) -> Self {
        Self { key: key.to_owned(), ..Self::default() }
    }

    /// Returns the sub-cluster of a name, known or new.
    pub(super) fn id(&mut self, name: &str) -> SubClusterId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        self.blocks.push(Vec::new());
        let n = u32::try_from(self.blocks.len()).ok().and_then(NonZeroU32::new);
        let id = SubClusterId(n.expect("memory ends before 2^32 sub-clusters"));
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// Returns the sub-cluster that a node selector demands.
    pub(super) fn demanded(&mut self, selector: &BTreeMap<String, String>) -> Option<SubClusterId> {
        let name = demanded(selector, &self.key)?;
        Some(self.id(name))
    }

    /// The labels of the node at an index are these now, `over` winning over `under`.
    pub(super) fn set_labels(
        &mut self,
        idx: usize,
        under: &BTreeMap<String, String>,
        over: &BTreeMap<String, String>,
    ) {
        let labels = if over.contains_key(&self.key) { over } else { under };
        let new = self.demanded(labels);
        let old = self.of(idx);
        if new == old {
            return;
        }
        if self.of.len() <= idx {
            self.of.resize(idx + 1, None);
        }
        self.of[idx] = new;
        if let Some(old) = old {
            self.mark(old, idx, false);
        }
        if let Some(new) = new {
            self.mark(new, idx, true);
        }
    }

    fn mark(&mut self, id: SubClusterId, idx: usize, is_of_it: bool) {
        let (block, bit) = (idx / BLOCK, 1 << (idx % BLOCK));
        let blocks = &mut self.blocks[id.idx()];
        match (blocks.binary_search_by_key(&block, |(block, _)| *block), is_of_it) {
            (Ok(at), true) => blocks[at].1 |= bit,
            (Err(at), true) => blocks.insert(at, (block, bit)),
            (Ok(at), false) => {
                blocks[at].1 &= !bit;
                if blocks[at].1 == 0 {
                    blocks.remove(at);
                }
            }
            (Err(_), false) => {}
        }
    }

    /// Returns the sub-cluster of the node at an index.
    pub(super) fn of(&self, idx: usize) -> Option<SubClusterId> {
        self.of.get(idx).copied().flatten()
    }

    /// Whether a node is of a sub-cluster; each node is for `None`.
    #[inline]
    pub fn has(&self, id: Option<SubClusterId>, node: NodeId) -> bool {
        id.is_none() || self.of(node.idx()) == id
    }

    /// Returns the label of nodes whose value is their sub-cluster; empty: there are no sub-clusters.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the blocks with nodes of a sub-cluster, ascending, and which nodes these are.
    #[inline]
    pub fn blocks_of(&self, id: SubClusterId) -> &[(usize, BlockMask)] {
        &self.blocks[id.idx()]
    }

    /// Returns the same names without nodes.
    pub(super) fn without_nodes(mut self) -> Self {
        self.of.clear();
        self.blocks.iter_mut().for_each(Vec::clear);
        self
    }
}
