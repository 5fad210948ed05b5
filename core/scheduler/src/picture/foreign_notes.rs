//! What rejections said of nodes: believed for a while, as the watch shows the same later.

use std::collections::BTreeSet;

use godel_domain::{
    ids::{NodeId, Revision},
    time::Millis,
};
use rustc_hash::FxHashMap;

/// Nodes of which more is taken than has been read, and how long that is believed.
#[derive(Debug, Default)]
pub(super) struct ForeignNotes {
    by_end: BTreeSet<(Millis, NodeId)>,
    ends: FxHashMap<NodeId, Millis>,
    /// The last change after which something had left a node.
    left: FxHashMap<NodeId, Revision>,
}

impl ForeignNotes {
    /// A node's note is believed until `end`, whatever was noted of the node before.
    pub(super) fn put(&mut self, node: NodeId, end: Millis) {
        if let Some(before) = self.ends.insert(node, end) {
            self.by_end.remove(&(before, node));
        }
        self.by_end.insert((end, node));
    }

    /// Something has left a node with the change of this revision.
    pub(super) fn note_left(&mut self, node: NodeId, revision: Revision) {
        self.left.insert(node, revision);
    }

    /// Whether something has left a node since this revision: it would seem to be taken by others.
    pub(super) fn has_left_since(&self, node: NodeId, revision: Revision) -> bool {
        self.left.get(&node).is_some_and(|at| *at > revision)
    }

    /// Takes out the first note that has ended.
    pub(super) fn take_ended(&mut self, now: Millis) -> Option<NodeId> {
        let (_, node) = *self.by_end.first().filter(|(end, _)| *end <= now)?;
        self.by_end.pop_first();
        self.ends.remove(&node);
        Some(node)
    }

    /// Returns when the first note ends.
    pub(super) fn first_end(&self) -> Option<Millis> {
        self.by_end.first().map(|(end, _)| *end)
    }

    pub(super) fn clear(&mut self) {
        self.by_end.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_of_a_node_says_when_it_ends() {
        let mut notes = ForeignNotes::default();
        notes.put(NodeId(1), Millis(10));
        notes.put(NodeId(2), Millis(15));
        notes.put(NodeId(1), Millis(20));
        assert_eq!((notes.first_end(), notes.take_ended(Millis(14))), (Some(Millis(15)), None));
        assert_eq!(notes.take_ended(Millis(20)), Some(NodeId(2)));
        assert_eq!(notes.take_ended(Millis(20)), Some(NodeId(1)));
        assert_eq!((notes.first_end(), notes.take_ended(Millis(99))), (None, None));
    }
}
