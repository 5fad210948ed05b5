//! What changed records of nodes mean for all parts of the cluster.

use godel_base::{
    ids::{NodeId, Revision},
    resources::Resources,
};
use godel_domain::{
    change::Change,
    demand::Pool,
    frozen::Noted,
    node::{NodeReport, NodeSpec, NodeUsage},
};

use super::{Cluster, free_view::FreeView, loads::LoadChange};

/// Records of nodes, to be changed: all parts of the cluster follow.
#[derive(Debug)]
pub struct NodeUpdates<'a> {
    pub(super) cluster: &'a mut Cluster,
}

impl NodeUpdates<'_> {
    /// Follows an administrator's record; older ones than the one known are ignored.
    pub fn put_spec(&mut self, spec: NodeSpec, revision: Revision) {
        let Some(idx) = self.cluster.free.index(&self.cluster.catalogue, spec.id) else { return };
        if self.cluster.records.put_spec(&mut self.cluster.catalogue, idx, spec, revision) {
            self.cluster.taken.daemons.grow(self.cluster.free.len());
            self.follow_domain(idx);
            self.cluster.free.note_gain(&self.cluster.catalogue, idx);
        }
    }

    /// Follows an agent's record; older ones than the one known are ignored.
    pub fn put_report(&mut self, report: NodeReport, revision: Revision) {
        let Some(idx) = self.cluster.free.index(&self.cluster.catalogue, report.id) else { return };
        let node = report.id;
        if !self.cluster.records.put_report(&mut self.cluster.catalogue, idx, report, revision) {
            return;
        }
        if let Some(report) = self.cluster.records.report(node) {
            self.cluster.free.set_devices(&mut self.cluster.catalogue, idx, report);
        }
        self.settle_allocatable(idx);
        self.follow_devices(node);
        self.follow_domain(idx);
        self.cluster.free.note_gain(&self.cluster.catalogue, idx);
    }

    /// Follows the allocatable in force; older ones than the one known are ignored.
    pub fn put_allocatable(&mut self, node: NodeId, allocatable: Resources, revision: Revision) {
        let Some(idx) = self.cluster.free.index(&self.cluster.catalogue, node) else { return };
        if self.cluster.records.put_allocatable(idx, allocatable, revision) {
            self.settle_allocatable(idx);
            self.follow_domain(idx);
            self.cluster.free.note_gain(&self.cluster.catalogue, idx);
        }
    }

    /// Follows what the state service says of a node's use; older records than the one known are ignored.
    pub fn put_usage(&mut self, usage: NodeUsage, revision: Revision) {
        let Some(idx) = self.cluster.free.index(&self.cluster.catalogue, usage.id) else { return };
        if self.cluster.records.has_later_usage(idx, revision) {
            return;
        }
        let was = self.cluster.records.put_usage(idx, usage, revision);
        match self.settle_load(idx) {
            LoadChange::None => {}
            // Those that wait for a load below their limit are the only ones to whom less of it is room.
            LoadChange::Fallen if self.cluster.limits_load => {
                self.cluster.free.note_gain(&self.cluster.catalogue, idx)
            }
            LoadChange::Fallen | LoadChange::Risen => self.cluster.free.touch(&self.cluster.catalogue, idx),
        }
        let Some(now) = self.cluster.records.usage(idx) else { return };
        if was.as_ref().is_some_and(|was| now.as_of_ms < was.as_of_ms) {
            self.forget_usage();
        } else {
            self.cluster.free.put_usage(&self.cluster.catalogue, idx, was.as_ref(), now);
        }
    }

    /// Forgets the records of a node; what is taken on it stays accounted for until its rows end.
    pub fn remove(&mut self, node: NodeId) {
        let Some(idx) = self.cluster.free.known(node) else { return };
        let had_usage = self.cluster.records.remove(&mut self.cluster.catalogue, idx);
        self.cluster.free.clear_devices(&self.cluster.catalogue, idx);
        self.settle_allocatable(idx);
        self.follow_domain(idx);
        self.cluster.free.touch(&self.cluster.catalogue, idx);
        if had_usage {
            self.forget_usage();
        }
    }

    /// Follows what of a change cannot be read, before it is applied; it is not to be applied where it builds on that.
    pub fn note_unreadable(&mut self, change: &Change) -> Noted {
        let noted = self.cluster.records.note_unreadable(change);
        if noted.any_node {
            for idx in 0..self.cluster.free.len() {
                self.follow_domain(idx);
                self.cluster.free.note_gain(&self.cluster.catalogue, idx);
            }
        }
        for node in &noted.nodes {
            self.follow_domain(node.idx());
            self.note_moved(*node, true);
        }
        noted
    }

    /// A node may be used by others than before: what is known of it is looked at again. `gained`: more may find room there.
    pub fn note_moved(&mut self, node: NodeId, gained: bool) {
        match self.cluster.free.known(node) {
            Some(idx) if gained => self.cluster.free.note_gain(&self.cluster.catalogue, idx),
            Some(idx) => self.cluster.free.touch(&self.cluster.catalogue, idx),
            None => {}
        }
    }

    /// Takes the fresh state of a node from a rejection: what others have taken of a pool there and we have not seen is kept
    /// from new placements until their binds arrive, or until [`Self::clear_foreign`].
    pub fn note_foreign(
        &mut self,
        node: NodeId,
        pool: Pool,
        allocated: &Resources,
        device_free_milli: &[u32],
    ) {
        self.cluster.free.note_foreign(&mut self.cluster.catalogue, node, pool, allocated, device_free_milli);
    }

    /// Ends a foreign note.
    pub fn clear_foreign(&mut self, node: NodeId) {
        self.cluster.free.clear_foreign(&self.cluster.catalogue, node);
    }

    /// Replicas ask for nodes that are used little: a node of which less is used may have room for them from now on.
    pub fn limit_load(&mut self) {
        self.cluster.limits_load = true;
    }

    /// The value of this label is a node's sub-cluster; empty: there are none. To be said before anything else.
    pub fn set_sub_cluster_key(&mut self, key: &str) {
        self.cluster.catalogue.set_sub_cluster_key(key);
        self.cluster.records.settle_all_labels(&mut self.cluster.catalogue);
    }

    fn settle_allocatable(&mut self, idx: usize) {
        self.cluster.free.set_allocatable(
            &mut self.cluster.catalogue,
            idx,
            self.cluster.records.allocatable(idx),
        );
        // Who changes what a node has says that it has changed.
        self.settle_load(idx);
    }

    /// Compares what is measured of a node and of its zones with what they have now.
    fn settle_load(&mut self, idx: usize) -> LoadChange {
        let of_node = self.cluster.records.settle_load(idx);
        let Cluster { records, free, .. } = &mut *self.cluster;
        let Some(topology) = &mut free.hardware[idx].topology else { return of_node.and(LoadChange::None) };
        let zones = records.usage(idx).map_or(&[][..], |usage| &usage.zone_loads);
        of_node.and(topology.set_loads(zones, records.load(idx)))
    }

    /// The records of the node at an index changed: it may be of another domain.
    fn follow_domain(&mut self, idx: usize) {
        if !self.cluster.taken.domains.is_active() {
            return;
        }
        let Cluster { catalogue, records, free, taken, .. } = &mut *self.cluster;
        taken.domains.set_node(idx, FreeView { records, free, catalogue });
        self.cluster.settle_opened();
    }

    /// A node has other devices than before.
    fn follow_devices(&mut self, node: NodeId) {
        if self.cluster.holds.is_any() {
            let (holds, on) = self.cluster.holding();
            holds.follow_devices(on, node);
        }
    }

    /// Usage of a node is known no longer, or of an earlier time: what was left out counts again.
    fn forget_usage(&mut self) {
        if self.cluster.free.pools.end_best_effort() {
            self.cluster.keep_pool(Pool::BestEffort);
            self.cluster.free.touch_all(&self.cluster.catalogue);
        }
    }
}
