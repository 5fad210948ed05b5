//! Nodes that are known: their names, and who could ever hold what.

use std::collections::BTreeMap;

use godel_base::ids::NodeId;
use godel_domain::{
    node::{NodeReport, NodeSpec},
    unit::TaskGroup,
};
use godel_queueing::{QueueIdx, Queues, Quota};
use godel_rules::{admission::feasibility::Capacities, partition};

use super::units::Units;

/// Nodes by id.
#[derive(Debug, Default)]
pub struct Nodes {
    pub(super) names: BTreeMap<NodeId, Box<str>>,
    pub(super) capacities: Capacities,
    /// Shares follow what the cluster has in all.
    is_total_stale: bool,
}

impl Nodes {
    /// A list follows: what is not in it is gone.
    pub(super) fn reset(&mut self) {
        self.names.clear();
        self.capacities = Capacities::default();
    }

    /// An administrator's record of a node. True: it is new.
    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec) -> bool {
        self.names.insert(spec.id, spec.name.as_str().into()).is_none()
    }

    /// An agent's record of a node. True: something may fit that did not before, or does not any more.
    pub(super) fn on_node_report(&mut self, report: &NodeReport) -> bool {
        self.is_total_stale = true;
        self.capacities.put(report)
    }

    /// A node is gone. True: it was known.
    pub(super) fn on_node_deleted(&mut self, node: NodeId) -> bool {
        self.capacities.remove(node);
        self.is_total_stale = true;
        self.names.remove(&node).is_some()
    }

    /// Who could ever hold what.
    pub fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// Name of a node; empty when it is not known.
    pub fn name(&self, node: NodeId) -> &str {
        self.names.get(&node).map_or("", |name| name)
    }

    /// The node of a name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.iter().find(|(_, known)| ***known == *name).map(|(node, _)| *node)
    }

    /// Name of a node; its id if it has none.
    pub(super) fn name_or_id(&self, node: NodeId) -> String {
        self.names.get(&node).map_or_else(|| node.to_string(), |name| name.to_string())
    }

    /// What the cluster has in all may be another amount now.
    pub(super) fn touch_total(&mut self) {
        self.is_total_stale = true;
    }

    /// Shares of queues are parts of what the cluster has in all.
    pub(super) fn follow_total(&mut self, queues: &mut Queues) {
        if std::mem::take(&mut self.is_total_stale) {
            let total = self.capacities.total();
            queues.set_total(total.iter().map(|(name, amount)| (name.as_str(), *amount)));
        }
    }

    /// Of the scarcest resource, what is bound.
    pub(super) fn allocated_permille(&self, quota: &Quota) -> u32 {
        let total = self.capacities.total();
        let share = |(name, amount): (&str, i128)| {
            u32::try_from((amount * 1_000).checked_div(i128::from(*total.get(name)?))?).ok()
        };
        quota.usage().bound(QueueIdx::ROOT).1.filter_map(share).max().unwrap_or(0)
    }

    /// How much each node can take, by index. `O(running units)`: nodes are seldom split, so nobody counts along.
    pub(super) fn weights(&self, units: &Units) -> Vec<u64> {
        let total = self.capacities.total();
        let capacities = self.capacities.shares(&total);
        let mut used = vec![0u64; capacities.len()];
        for entry in units.entries.values() {
            let group_share = |group: &TaskGroup| partition::share(group.template.demand.amounts(), &total);
            let shares: Vec<u64> = entry.record.spec.task_groups.iter().map(group_share).collect();
            for (_, row) in entry.rows.live() {
                let share = shares.get(usize::from(row.group)).copied().unwrap_or(0);
                if let Some(used) = used.get_mut(row.node.idx()) {
                    *used = used.saturating_add(share);
                }
            }
        }
        capacities.iter().zip(used).map(|(capacity, used)| partition::weight(*capacity, used)).collect()
    }
}
