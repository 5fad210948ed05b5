//! Nodes: who could ever hold what, and how they are split over schedulers.

use godel_domain::{
    change::{Block, Change, Partition, PartitionMode},
    ids::{NodeId, Revision, UnitId},
    node::{NodeReport, NodeSpec},
    time::Millis,
};

use super::{Dispatcher, Settle};

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

    /// How nodes are split, as committed: the mode and the schedulers.
    pub fn on_partition(&mut self, partition: Partition, revision: Revision) {
        let mode = partition.mode;
        if self.partition.put(partition, revision) {
            self.mode = mode;
            self.partition_writing = false;
        }
    }

    /// The same of a block of nodes.
    pub fn on_partition_block(&mut self, block: Block, revision: Revision) {
        if let Some(listed) = &mut self.listed {
            listed.partition_blocks.insert(block.number);
        }
        self.partition.put_block(block, revision);
    }

    /// What is to be written for a split: what moves, and no more.
    pub fn partition_changes(&self, split: &Partition) -> Vec<Change> {
        self.partition.changes_to(split)
    }

    /// What was to be written for a split is committed.
    pub fn on_partition_written(&mut self, changes: Vec<Change>, revision: Revision) {
        self.partition_writing = false;
        for change in changes {
            match change {
                Change::Partition(partition) => self.on_partition(partition, revision),
                Change::PartitionBlock(block) => self.partition.put_block(block, revision),
                other => debug_assert!(false, "not of a split: {other:?}"),
            }
        }
    }

    /// The split could not be written.
    pub fn on_partition_failed(&mut self, now: Millis) {
        self.partition_writing = false;
        self.mode = self.partition.whole().mode;
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
