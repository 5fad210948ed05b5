//! What rejections told of nodes. A scheduler believes it for a while; then the watch must have shown the same.

use std::collections::BTreeSet;

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    time::Millis,
};
use godel_cluster::Cluster;
use godel_domain::{decision::FreshNode, running_units::RunChange};
use rustc_hash::FxHashMap;

/// Nodes on which others have taken more than has been read, with the time until which that is believed.
#[derive(Debug, Default)]
pub(crate) struct ForeignNotes {
    by_end: BTreeSet<(Millis, NodeId)>,
    ends: FxHashMap<NodeId, Millis>,
    /// By node, the revision of the last change that freed room.
    left: FxHashMap<NodeId, Revision>,
}

impl ForeignNotes {
    /// A rejection says what is taken of a node: that is believed until `end`, unless something has left the node since the
    /// binder looked.
    pub(crate) fn put(&mut self, fresh: &FreshNode, end: Millis, cluster: &mut Cluster) {
        if self.left.get(&fresh.node).is_none_or(|at| *at <= fresh.revision) {
            cluster.nodes_mut().note_foreign(
                fresh.node,
                fresh.pool,
                &fresh.allocated,
                &fresh.device_free_milli,
            );
            self.note_end(fresh.node, end);
        }
    }

    /// Believes the note of a node until `end`. It replaces an earlier note of the node.
    fn note_end(&mut self, node: NodeId, end: Millis) {
        if let Some(before) = self.ends.insert(node, end) {
            self.by_end.remove(&(before, node));
        }
        self.by_end.insert((end, node));
    }

    /// Notes that the change of this revision freed room on a node.
    pub(super) fn note_left(&mut self, node: NodeId, revision: Revision) {
        self.left.insert(node, revision);
    }

    /// Notes the nodes that running units leave by a change, before it is applied.
    pub(super) fn note_leaving(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        cluster: &Cluster,
    ) {
        let RunChange::Statuses(statuses) = change else { return };
        let Some(rows) = cluster.rows().of(unit) else { return };
        for (ordinal, phase) in statuses.ordinals.iter().zip(&statuses.phases) {
            if !phase.is_live() {
                self.note_left(rows.row(*ordinal).node, revision);
            }
        }
    }

    /// Ends the belief in notes that have expired. Returns whether there were some.
    pub(crate) fn end_expired(&mut self, now: Millis, cluster: &mut Cluster) -> bool {
        let mut any = false;
        while let Some(node) = self.take_ended(now) {
            cluster.nodes_mut().clear_foreign(node);
            any = true;
        }
        any
    }

    /// Removes the earliest note that has expired, and returns its node.
    fn take_ended(&mut self, now: Millis) -> Option<NodeId> {
        let (_, node) = *self.by_end.first().filter(|(end, _)| *end <= now)?;
        self.by_end.pop_first();
        self.ends.remove(&node);
        Some(node)
    }

    /// Returns the time at which the earliest note expires.
    pub(crate) fn first_end(&self) -> Option<Millis> {
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
        notes.note_end(NodeId(1), Millis(10));
        notes.note_end(NodeId(2), Millis(15));
        notes.note_end(NodeId(1), Millis(20));
        assert_eq!((notes.first_end(), notes.take_ended(Millis(14))), (Some(Millis(15)), None));
        assert_eq!(notes.take_ended(Millis(20)), Some(NodeId(2)));
        assert_eq!(notes.take_ended(Millis(20)), Some(NodeId(1)));
        assert_eq!((notes.first_end(), notes.take_ended(Millis(99))), (None, None));
    }
}
