//! What rejections told of nodes. A scheduler believes it for a while; then the watch must have shown the same.

use std::collections::BTreeSet;

use godel_base::{
    ids::{NodeId, Revision},
    time::Millis,
};
use rustc_hash::FxHashMap;

/// Nodes on which others have taken more than has been read, with the time until which that is believed.
#[derive(Debug, Default)]
pub(super) struct ForeignNotes {
    by_end: BTreeSet<(Millis, NodeId)>,
    ends: FxHashMap<NodeId, Millis>,
    /// By node, the revision of the last change that freed room.
    left: FxHashMap<NodeId, Revision>,
}

impl ForeignNotes {
    /// Believes the note of a node until `end`. It replaces an earlier note of the node.
    pub(super) fn put(&mut self, node: NodeId, end: Millis) {
        if let Some(before) = self.ends.insert(node, end) {
            self.by_end.remove(&(before, node));
        }
        self.by_end.insert((end, node));
    }

    /// Notes that the change of this revision freed room on a node.
    pub(super) fn note_left(&mut self, node: NodeId, revision: Revision) {
        self.left.insert(node, revision);
    }

    /// Whether room of a node was freed after this revision: older figures would show it as taken by others.
    pub(super) fn has_left_since(&self, node: NodeId, revision: Revision) -> bool {
        self.left.get(&node).is_some_and(|at| *at > revision)
    }

    /// Removes the earliest note that has expired, and returns its node.
    pub(super) fn take_ended(&mut self, now: Millis) -> Option<NodeId> {
        let (_, node) = *self.by_end.first().filter(|(end, _)| *end <= now)?;
        self.by_end.pop_first();
        self.ends.remove(&node);
        Some(node)
    }

    /// Returns the time at which the earliest note expires.
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
