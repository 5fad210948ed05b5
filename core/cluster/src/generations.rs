//! When each node changed last, and which nodes have gained room.

use godel_base::ids::NodeId;

/// Changes of nodes by number, and the nodes on which more may fit than before.
#[derive(Clone, Debug, Default)]
pub struct Generations {
    /// The number of the last change of any node.
    last: u64,
    /// By node index.
    of: Vec<u64>,
    /// Nodes that have gained room since somebody asked, each once.
    gained: Vec<NodeId>,
    is_gained: Vec<bool>,
}

impl Generations {
    /// Returns what a new list of records begins with: no node, and a later generation than all before.
    pub(crate) fn after(&self) -> Self {
        Self { last: self.last + 1, ..Self::default() }
    }

    /// Makes place for nodes; never shrinks.
    pub(crate) fn grow(&mut self, n_nodes: usize) {
        self.of.resize(n_nodes, 0);
        self.is_gained.resize(n_nodes, false);
    }

    /// The node at an index has changed.
    #[inline]
    pub(crate) fn touch(&mut self, idx: usize) {
        self.last += 1;
        self.of[idx] = self.last;
    }

    /// More may fit on the node at an index than before.
    #[inline]
    pub(crate) fn note_gain(&mut self, idx: usize) {
        if !self.is_gained[idx]
            && let Ok(node) = u32::try_from(idx)
        {
            self.is_gained[idx] = true;
            self.gained.push(NodeId(node));
        }
    }

    /// Fills `into` with the nodes that have gained room since the last call.
    pub fn take_gained(&mut self, into: &mut Vec<NodeId>) {
        into.clear();
        std::mem::swap(into, &mut self.gained);
        for node in into.iter() {
            self.is_gained[node.idx()] = false;
        }
    }

    /// Whether some node has gained room since [`Self::take_gained`].
    #[inline]
    pub fn has_gained(&self) -> bool {
        !self.gained.is_empty()
    }

    /// Returns the number of the last change of any node.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of a node's last change; 0 if there was none.
    #[inline]
    pub fn of(&self, node: NodeId) -> u64 {
        self.of.get(node.idx()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_gains_twice_is_named_once() {
        let mut generations = Generations::default();
        generations.grow(3);
        let mut gained = vec![NodeId(9)];
        for idx in [2, 0, 2] {
            generations.touch(idx);
            generations.note_gain(idx);
        }
        generations.touch(1);
        assert!(generations.has_gained());
        generations.take_gained(&mut gained);
        assert_eq!(gained, [NodeId(2), NodeId(0)]);
        assert!(!generations.has_gained());
        generations.note_gain(2);
        generations.take_gained(&mut gained);
        assert_eq!(gained, [NodeId(2)]);
    }

    #[test]
    fn generations_rise_over_a_new_list() {
        let mut generations = Generations::default();
        generations.grow(2);
        generations.touch(1);
        assert_eq!((generations.of(NodeId(0)), generations.of(NodeId(1))), (0, 1));
        let next = generations.after();
        assert_eq!((next.last(), next.of(NodeId(1))), (2, 0));
    }
}
