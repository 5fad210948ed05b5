//! What the strategy that splits nodes looks at.

use std::sync::Arc;

use godel_domain::{
    change::{Partition, PartitionMode},
    ids::NodeId,
    node::{NodeReport, NodeSpec},
};
use godel_rules::partition::{self, StrategyKind, Traits};
use rustc_hash::FxHashMap;

use super::{Config, Dispatcher};

/// What fails together, as far as the strategy asks.
#[derive(Debug)]
pub(super) struct Racks {
    key: Option<String>,
    /// As labelled, which wins, and as reported.
    said: FxHashMap<NodeId, [Option<Arc<str>>; 2]>,
    names: FxHashMap<NodeId, Arc<str>>,
}

impl Racks {
    pub(super) fn new(config: &Config) -> Self {
        let key = (config.strategy == StrategyKind::Topology).then(|| config.topology_key.clone());
        Self { key, said: FxHashMap::default(), names: FxHashMap::default() }
    }

    /// True if the node is of another rack now.
    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec) -> bool {
        let name = self.key.as_ref().and_then(|key| spec.labels.get(key)).map(|name| name.as_str().into());
        self.note(spec.id, 0, name)
    }

    /// True if the node is of another rack now.
    pub(super) fn on_node_report(&mut self, report: &NodeReport) -> bool {
        let name = self.key.as_ref().and_then(|key| report.attributes.get(key));
        self.note(report.id, 1, name.map(|name| name.as_str().into()))
    }

    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.said.remove(&node);
        self.names.remove(&node);
    }

    fn note(&mut self, node: NodeId, source: usize, name: Option<Arc<str>>) -> bool {
        if self.key.is_none() {
            return false;
        }
        let said = self.said.entry(node).or_default();
        said[source] = name;
        let name = said.iter().flatten().next().cloned();
        let before = match name.clone() {
            Some(name) => self.names.insert(node, name),
            None => self.names.remove(&node),
        };
        before != name
    }
}

impl Dispatcher {
    /// The nodes split anew, if that changes anything.
    pub(super) fn split(&self, mode: PartitionMode) -> Option<Partition> {
        let nodes = self.node_names.keys().copied().collect();
        let kind = self.config.strategy;
        let is_split = mode != PartitionMode::Global;
        let weights = if is_split && kind.weighs() { self.weights() } else { Vec::new() };
        let traits = Traits { weights: &weights, domains: Some(&self.racks.names) };
        let strategy = (kind.strategy(), &traits);
        partition::split(self.partition.whole(), mode, &self.schedulers.live(), &nodes, strategy)
    }

    /// How much each node can take, by index. `O(running units)`: nodes are seldom split, so nobody counts along.
    pub(super) fn weights(&self) -> Vec<u64> {
        let total = self.capacities.total();
        let capacities = self.capacities.shares(&total);
        let mut used = vec![0u64; capacities.len()];
        for entry in self.units.values() {
            let group_share = |group: &godel_domain::unit::TaskGroup| {
                partition::share(group.template.demand.amounts(), &total)
            };
            let shares: Vec<u64> = entry.spec.task_groups.iter().map(group_share).collect();
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
