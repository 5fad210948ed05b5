//! How nodes are split over schedulers: what is committed, when they are split again, and what the strategy looks at.

use std::sync::Arc;

use godel_base::{
    ids::{NodeId, Revision},
    time::Millis,
};
use godel_domain::{
    change::{Block, Change, NodeScope, Partition, PartitionMode},
    node::{NodeReport, NodeSpec},
    records::Record,
};
use godel_rules::{
    partition::{self, StrategyKind, Traits},
    partition_mode,
};
use rustc_hash::FxHashMap;

use super::{Action, Config, assignments::Assignments, nodes::Nodes, partition_mode::Shuffler};

/// The split of nodes.
#[derive(Debug)]
pub struct Partitioning {
    pub(super) records: partition::PartitionRecords,
    /// When nodes are split again; `None`: nothing has changed.
    pub(super) due: Option<Millis>,
    /// A split is on its way to the store.
    pub(super) is_writing: bool,
    pub(super) mode: PartitionMode,
    pub(super) shuffler: Shuffler,
    pub(super) shuffle: partition_mode::Config,
    racks: Racks,
    strategy: StrategyKind,
    debounce_ms: u64,
    retry_ms: u64,
}

impl Partitioning {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            records: partition::PartitionRecords::default(),
            due: None,
            is_writing: false,
            mode: PartitionMode::Global,
            shuffler: Shuffler::default(),
            shuffle: config.shuffle.clone(),
            racks: Racks::new(config),
            strategy: config.strategy,
            debounce_ms: config.partition_debounce_ms,
            retry_ms: config.reconcile_ms,
        }
    }

    /// How nodes are split, as committed.
    pub fn records(&self) -> &partition::PartitionRecords {
        &self.records
    }

    /// The present mode.
    pub fn mode(&self) -> PartitionMode {
        self.mode
    }

    /// A list follows: what is not in it is gone.
    pub(super) fn reset(&mut self) {
        self.racks.clear();
    }

    /// Schedulers or nodes are others: nodes are split again a little later.
    pub(super) fn touch(&mut self, now: Millis) {
        let due = now.plus(self.debounce_ms);
        self.due.get_or_insert(due);
    }

    /// Nodes are others: they are split again a little later, if they are split.
    pub(super) fn touch_if_split(&mut self, now: Millis) {
        if self.mode != PartitionMode::Global {
            self.touch(now);
        }
    }

    /// An administrator's record of a node. True: it is of another rack now.
    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec) -> bool {
        self.racks.on_node_spec(spec)
    }

    /// An agent's record of a node. True: it is of another rack now.
    pub(super) fn on_node_report(&mut self, report: &NodeReport) -> bool {
        self.racks.on_node_report(report)
    }

    /// A node is gone.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.racks.remove_node(node);
    }

    /// How nodes are split, as committed: the mode and the schedulers.
    pub(super) fn on_partition(&mut self, partition: Partition, revision: Revision) {
        let mode = partition.mode;
        if self.records.put(partition, revision) {
            self.mode = mode;
            self.is_writing = false;
        }
    }

    /// What was to be written for a split is committed.
    pub(super) fn on_written(&mut self, changes: Vec<Change>, revision: Revision) {
        self.is_writing = false;
        for change in changes {
            match change {
                Change::Put(Record::Partition(partition)) => self.on_partition(partition, revision),
                Change::Put(Record::PartitionBlock(block)) => self.on_block(block, revision),
                other => debug_assert!(false, "not of a split: {other:?}"),
            }
        }
    }

    /// How nodes of a block are split, as committed.
    pub(super) fn on_block(&mut self, block: Block, revision: Revision) {
        self.records.put_block(block, revision);
    }

    /// The split could not be written.
    pub(super) fn on_failed(&mut self, now: Millis) {
        self.is_writing = false;
        self.mode = self.records.whole().mode;
        self.due = Some(now.plus(self.retry_ms));
    }

    /// Where a unit is tried that no node had room for when all were asked.
    pub(super) fn scope_of_all(&self) -> NodeScope {
        if self.mode == PartitionMode::Strict { NodeScope::Global } else { NodeScope::Partition }
    }

    /// When nodes are split next; `None`: only after an event.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.due.filter(|_| !self.is_writing)
    }

    /// Splits nodes again when that is due.
    pub(super) fn split_when_due(
        &mut self,
        nodes: &Nodes,
        assignments: &Assignments,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        if self.is_writing || self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        if let Some(split) = self.split(self.mode, nodes, assignments) {
            self.is_writing = true;
            actions.push(Action::WritePartition(split));
        }
    }

    /// The nodes split anew, if that changes anything.
    pub(super) fn split(
        &self,
        mode: PartitionMode,
        nodes: &Nodes,
        assignments: &Assignments,
    ) -> Option<Partition> {
        let known = nodes.names.keys().copied().collect();
        let is_split = mode != PartitionMode::Global;
        let weights =
            if is_split && self.strategy.weighs() { nodes.weights(&assignments.units) } else { Vec::new() };
        let traits = Traits { weights: &weights, domains: Some(&self.racks.names) };
        let (whole, live) = (self.records.whole(), assignments.schedulers.live());
        partition::split(whole, mode, &live, &known, self.strategy.strategy(), &traits)
    }
}

/// What fails together, as far as the strategy asks.
#[derive(Debug)]
struct Racks {
    key: Option<String>,
    /// As labelled, which wins, and as reported.
    said: FxHashMap<NodeId, [Option<Arc<str>>; 2]>,
    names: FxHashMap<NodeId, Arc<str>>,
}

impl Racks {
    fn new(config: &Config) -> Self {
        let key = (config.strategy == StrategyKind::Topology).then(|| config.topology_key.clone());
        Self { key, said: FxHashMap::default(), names: FxHashMap::default() }
    }

    /// True if the node is of another rack now.
    fn on_node_spec(&mut self, spec: &NodeSpec) -> bool {
        let name = self.key.as_ref().and_then(|key| spec.labels.get(key)).map(|name| name.as_str().into());
        self.note(spec.id, 0, name)
    }

    /// True if the node is of another rack now.
    fn on_node_report(&mut self, report: &NodeReport) -> bool {
        let name = self.key.as_ref().and_then(|key| report.attributes.get(key));
        self.note(report.id, 1, name.map(|name| name.as_str().into()))
    }

    /// A list follows: what is not in it is gone.
    fn clear(&mut self) {
        self.said.clear();
        self.names.clear();
    }

    fn remove_node(&mut self, node: NodeId) {
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
