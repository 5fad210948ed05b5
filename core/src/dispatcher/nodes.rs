//! Nodes: who could ever hold what, and how they are split over schedulers.

use super::{Dispatcher, Settle};
use crate::{
    change::{Partition, PartitionMode},
    ids::{NodeId, Revision, UnitId},
    node::{NodeReport, NodeSpec},
    time::Millis,
};

impl Dispatcher {
    /// An administrator's record of a node.
    pub fn on_node_spec(&mut self, spec: &NodeSpec, now: Millis) {
        self.departures.on_node_spec(spec);
        let is_new = self.node_names.insert(spec.id, spec.name.as_str().into()).is_none();
        if (self.racks.on_node_spec(spec) || is_new) && self.mode != PartitionMode::Global {
            self.touch_partition(now);
        }
    }

    /// An agent's record of a node.
    pub fn on_node_report(&mut self, report: &NodeReport, now: Millis) {
        self.is_total_stale = true;
        self.losses.put(report.id, report.ready, now);
        if self.racks.on_node_report(report) && self.mode != PartitionMode::Global {
            self.touch_partition(now);
        }
        if let Some(listed) = &mut self.listed {
            listed.nodes.insert(report.id);
        }
        if self.capacities.put(report) && self.settle != Settle::Loading && self.listed.is_none() {
            self.recheck_feasibility(now);
        }
    }

    /// A node is gone.
    pub fn on_node_deleted(&mut self, node: NodeId, now: Millis) {
        self.capacities.remove(node);
        self.losses.remove(node);
        self.departures.remove_node(node);
        self.racks.remove_node(node);
        self.is_total_stale = true;
        if self.node_names.remove(&node).is_some() && self.mode != PartitionMode::Global {
            self.touch_partition(now);
        }
    }

    /// How nodes are split, as committed.
    pub fn on_partition(&mut self, partition: Partition, revision: Revision) {
        if revision <= self.partition_revision {
            return;
        }
        self.mode = partition.mode;
        self.partition = partition;
        self.partition_revision = revision;
        self.partition_writing = false;
    }

    /// The split could not be written.
    pub fn on_partition_failed(&mut self, now: Millis) {
        self.partition_writing = false;
        self.mode = self.partition.mode;
        self.partition_due = Some(now.plus(self.config.reconcile_ms));
    }

    pub(super) fn set_feasible(&mut self, unit: UnitId) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        if self.settle == Settle::Loading || entry.phase.is_terminal() {
            return;
        }
        entry.infeasible = self.capacities.infeasible(&entry.spec).is_some();
        if entry.infeasible {
            self.infeasible.insert(unit);
        } else {
            self.infeasible.remove(&unit);
        }
    }

    pub(super) fn recheck_feasibility(&mut self, now: Millis) {
        // After the list every unit that waits is looked at, later only those that no node could hold.
        let units: Vec<UnitId> = self.infeasible.union(&self.unsettled).copied().collect();
        for unit in units {
            self.set_feasible(unit);
            self.refresh_ends(unit, now);
        }
    }

    /// Shares of queues are parts of what the cluster has in all.
    pub(super) fn follow_total(&mut self) {
        if self.is_total_stale && self.listed.is_none() {
            self.is_total_stale = false;
            let total = self.capacities.total();
            self.queues.set_total(total.iter().map(|(name, amount)| (name.as_str(), *amount)));
        }
    }

    pub(super) fn touch_partition(&mut self, now: Millis) {
        let due = now.plus(self.config.partition_debounce_ms);
        self.partition_due.get_or_insert(due);
    }
}
