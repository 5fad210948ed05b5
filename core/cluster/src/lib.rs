//! The nodes and what is taken on them: the picture that schedulers and the binder decide on.
//!
//! Arrays by node index hold what a fit reads (free amounts, device summaries, usability); records and strings
//! stay aside. Room is taken by committed rows, through [`RunningUnits`](godel_domain::running_units::RunningUnits), and by assumptions: decisions of the
//! owner that are not committed yet. A committed bind takes the place of its assumption. A hold takes what its victims,
//! as long as they are there, do not take for it, and a slot of a reservation what its occupant leaves. Records may arrive in
//! any order: what is taken on a node not yet known is accounted for, and amounts may go negative while a node
//! shrinks. Nothing here survives a restart: a list and a watch build it again.
//!
//! Each pool has a room of its own: see `best_effort`. Devices are common to both: they are held by one running
//! unit, or shared by some within their thousandths, whoever pays.
//!
//! # Modules
//!
//! - `assumptions`: room taken before it is committed, by unit and ordinal.
//! - `best_effort`: the room of the best-effort pool.
//! - `budgets`: disruption budgets beside the running units that they count.
//! - `devices`: the devices of a node, and which of them are free.
//! - `fit`: whether a node takes one more running unit.
//! - `gathering`: holds that gather room for a gang as it becomes free.
//! - `holds`: holds and what each of them takes from its node.
//! - `labels`: labels and taints of nodes as small integers.
//! - `lifted`: holds set aside for a moment, as if they were not there.
//! - `occupants`: which running units are on which node.
//! - `room`: free amounts of all nodes, by resource.
//! - `shapes`: demands as small integers, with everything resolved that a fit needs.
//! - `shrunk`: nodes that have less than what runs on them takes.
//! - `slots`: slots of reservations and who is in them.
//! - `spread`: replicas of one unit per node, for scores.
//! - `sub_clusters`: which nodes are of which sub-cluster.
//! - `taken`: what units take, by task group.
//! - `unfit`: why a node does not take a running unit.

use std::sync::Arc;

use godel_domain::{
    change::Change,
    demand::{Demand, Pool},
    ids::{IdMap, NODE_ID_MAX, NodeId, Revision, UnitId},
    node::{NodeReport, NodeSpec, NodeUsage},
    resources::Resources,
};
use godel_rules::{
    budget::Budgets,
    frozen::{Frozen, Noted},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::{
    assumptions::Assumptions,
    best_effort::BestEffort,
    devices::{DeviceClasses, NodeDevices},
    holds::NodeHolds,
    labels::Labels,
    occupants::Occupants,
    room::{DeviceRoom, Room},
    shapes::{COUNT, Names, Shape, Shapes},
    shrunk::Holders,
    spread::{Nominal, ReplicaCounts},
    sub_clusters::SubClusters,
    taken::{Ranks, UnitTaken},
};

pub use self::{shapes::ShapeId, slots::Owned, sub_clusters::SubClusterId, taken::GroupDeltas, unfit::Unfit};

mod assumptions;
mod best_effort;
mod budgets;
pub mod devices;
mod fit;
mod gathering;
mod holds;
pub mod labels;
mod lifted;
pub mod occupants;
pub mod room;
pub mod shapes;
pub mod shrunk;
mod slots;
mod spread;
mod sub_clusters;
mod taken;
#[cfg(test)]
mod tests;
mod unfit;

/// The nodes and what is taken on them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    names: Names,
    classes: DeviceClasses,
    labels: Labels,
    shapes: Shapes,
    sub_clusters: SubClusters,
    nodes: Vec<NodeEntry>,
    /// Nodes that have a spec.
    n_known: u32,
    /// Of the guaranteed pool.
    room: Room,
    /// There from the first best-effort demand on.
    best_effort: Option<Box<BestEffort>>,
    device_room: Vec<DeviceRoom>,
    usable: Vec<bool>,
    generations: Vec<u64>,
    generation: u64,
    /// Nodes on which more may fit than before, each once.
    gained: Vec<NodeId>,
    is_gained: Vec<bool>,
    by_name: FxHashMap<String, NodeId>,
    units: IdMap<UnitId, UnitTaken>,
    assumptions: Assumptions,
    holds: NodeHolds,
    ranks: Ranks,
    budgets: Budgets,
    frozen: Frozen,
    /// Who is on which node; there from the first search for victims on.
    occupants: Option<Box<Occupants>>,
    nominal: Nominal,
    tally: ReplicaCounts,
}

/// What is known of one node.
#[derive(Clone, Debug, Default)]
struct NodeEntry {
    spec: Option<(NodeSpec, Revision)>,
    report: Option<(NodeReport, Revision)>,
    grant: Option<(Resources, Revision)>,
    usage: Option<(NodeUsage, Revision)>,
    labels: Box<[u32]>,
    taints: u32,
    devices: NodeDevices,
    holders: Holders,
}

impl Cluster {
    /// Without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets nodes, rows and holds before a new list; assumptions and shapes stay.
    pub fn reset(&mut self) {
        let assumptions = std::mem::take(&mut self.assumptions);
        *self = Self {
            names: std::mem::take(&mut self.names),
            classes: std::mem::take(&mut self.classes),
            labels: std::mem::take(&mut self.labels),
            shapes: std::mem::take(&mut self.shapes),
            sub_clusters: std::mem::take(&mut self.sub_clusters).reset(),
            budgets: std::mem::take(&mut self.budgets).reset(),
            generation: self.generation + 1,
            ..Self::default()
        };
        if self.shapes.has_best_effort() {
            self.keep_best_effort();
        }
        for (unit, ordinal, assumed) in assumptions.iter() {
            self.assume(unit, ordinal, assumed.incarnation, assumed.shape, assumed.node, assumed.mask);
        }
    }

    /// An administrator's record; older ones than the one known are ignored.
    pub fn put_spec(&mut self, spec: NodeSpec, revision: Revision) {
        let Some(idx) = self.node_index(spec.id) else { return };
        if self.nodes[idx].spec.as_ref().is_some_and(|known| known.1 > revision) {
            return;
        }
        if let Some((old, _)) = &self.nodes[idx].spec
            && old.name != spec.name
            && self.by_name.get(&old.name) == Some(&spec.id)
        {
            self.by_name.remove(&old.name);
        }
        self.by_name.insert(spec.name.clone(), spec.id);
        self.nodes[idx].taints = self.labels.taints(&spec.taints);
        let old = self.nodes[idx].spec.replace((spec, revision));
        self.n_known += u32::from(old.is_none());
        self.settle_labels(idx);
        self.settle_usable(idx);
        self.note_gain(idx);
    }

    /// An agent's record; older ones than the one known are ignored.
    pub fn put_report(&mut self, report: NodeReport, revision: Revision) {
        let Some(idx) = self.node_index(report.id) else { return };
        if self.nodes[idx].report.as_ref().is_some_and(|known| known.1 > revision) {
            return;
        }
        let mut is_new = false;
        let classes = &mut self.classes;
        let known = report.devices.iter().take(godel_domain::demand::N_DEVICES_MAX).map(|device| {
            let (id, new) = classes.id(device);
            is_new |= new;
            id
        });
        self.nodes[idx].devices.classes = known.collect();
        if is_new {
            self.shapes.resolve_devices(&self.classes);
        }
        self.settle_frozen(idx);
        self.nodes[idx].report = Some((report, revision));
        self.settle_labels(idx);
        self.settle_allocatable(idx);
        self.settle_usable(idx);
        self.note_gain(idx);
    }

    /// Allocatable in force; older ones than the one known are ignored.
    pub fn put_grant(&mut self, node: NodeId, allocatable: Resources, revision: Revision) {
        let Some(idx) = self.node_index(node) else { return };
        if self.nodes[idx].grant.as_ref().is_some_and(|known| known.1 > revision) {
            return;
        }
        self.nodes[idx].grant = Some((allocatable, revision));
        self.settle_allocatable(idx);
        self.note_gain(idx);
    }

    /// The records of a node are gone; what is taken on it stays accounted for until its rows end.
    pub fn remove_node(&mut self, node: NodeId) {
        let Some(idx) = self.known(node) else { return };
        let old = &mut self.nodes[idx];
        if let Some((spec, _)) = old.spec.take() {
            self.n_known -= 1;
            if self.by_name.get(&spec.name) == Some(&node) {
                self.by_name.remove(&spec.name);
            }
        }
        old.report = None;
        old.grant = None;
        let had_usage = old.usage.take().is_some();
        old.taints = 0;
        old.devices.classes.clear();
        old.devices.freeze(0);
        self.settle_labels(idx);
        self.settle_allocatable(idx);
        self.settle_usable(idx);
        self.touch(idx);
        if had_usage {
            self.forget_usage();
        }
    }

    /// Interns a demand.
    pub fn shape(&mut self, demand: &Demand, pool: Pool) -> ShapeId {
        self.keep_pool(pool);
        self.shapes.intern(demand, pool, &self.names, &self.classes)
    }

    /// The demand of a shape.
    pub fn demand(&self, shape: ShapeId) -> &Arc<Demand> {
        &self.shapes.get(shape).demand
    }

    /// Value of a node's label; an administrator's wins over the agent's.
    pub fn label(&self, node: NodeId, key: &str) -> Option<&str> {
        let own = self.spec(node).and_then(|spec| spec.labels.get(key));
        own.or_else(|| self.report(node)?.attributes.get(key)).map(String::as_str)
    }

    /// Taken on a node of the guaranteed pool, assumptions included and foreign notes not, and the thousandths free per
    /// device.
    pub fn node_state(&self, node: NodeId) -> Option<(Resources, Vec<u32>)> {
        self.pool_state(node, Pool::Guaranteed)
    }

    /// The same of either pool. Of best-effort room what guaranteed running units use is taken too.
    pub fn pool_state(&self, node: NodeId, pool: Pool) -> Option<(Resources, Vec<u32>)> {
        let idx = self.known(node)?;
        let devices = &self.nodes[idx].devices;
        let free = (0..devices.len()).map(|device| devices.free_seen(device)).collect();
        let room = match (pool, &self.best_effort) {
            (Pool::BestEffort, Some(best_effort)) => &best_effort.room,
            (Pool::Guaranteed, _) | (Pool::BestEffort, None) => &self.room,
        };
        Some((self.resources(&room.taken(idx)), free))
    }

    /// Allocatable in force; empty when the node has not reported.
    pub fn allocatable(&self, node: NodeId) -> Option<Resources> {
        let mut amounts: SmallVec<[i64; 8]> = SmallVec::from_slice(self.room.allocatable(self.known(node)?));
        // It is none that a node reports.
        if let Some(count) = amounts.get_mut(usize::from(COUNT)) {
            *count = 0;
        }
        Some(self.resources(&amounts))
    }

    /// When what labels and taints of a node rest on changed last: its spec or its report; 0 when unknown.
    pub fn changed_at(&self, node: NodeId) -> Revision {
        let Some(node) = self.nodes.get(node.idx()) else { return Revision(0) };
        let spec = node.spec.as_ref().map(|(_, revision)| *revision);
        let report = node.report.as_ref().map(|(_, revision)| *revision);
        spec.max(report).unwrap_or(Revision(0))
    }

    /// A node's spec.
    pub fn spec(&self, node: NodeId) -> Option<&NodeSpec> {
        self.nodes.get(node.idx())?.spec.as_ref().map(|(spec, _)| spec)
    }

    /// A node's report.
    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.nodes.get(node.idx())?.report.as_ref().map(|(report, _)| report)
    }

    /// A node by name.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Nodes that have a spec, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter_map(|node| node.spec.as_ref()).map(|(spec, _)| spec.id)
    }

    /// How many have a spec.
    pub fn n_nodes(&self) -> u32 {
        self.n_known
    }

    /// Rises with each change of a node.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// [`Self::generation`] of a node's last change.
    pub fn node_generation(&self, node: NodeId) -> u64 {
        self.generations.get(node.idx()).copied().unwrap_or(0)
    }

    /// Nodes on which more may fit than at the last call: room given back, records changed.
    pub fn take_gained(&mut self, into: &mut Vec<NodeId>) {
        into.clear();
        std::mem::swap(into, &mut self.gained);
        for node in into.iter() {
            self.is_gained[node.idx()] = false;
        }
    }

    /// Whether some node has gained room since [`Self::take_gained`].
    pub fn has_gained(&self) -> bool {
        !self.gained.is_empty()
    }

    fn amounts(&mut self, resources: &Resources) -> Vec<(u8, i64)> {
        let known = self.names.len();
        let amounts =
            resources.iter().filter_map(|(name, amount)| Some((self.names.id(name)?, amount))).collect();
        if self.names.len() > known {
            self.shapes.resolve_names(&self.names);
            self.room.grow(self.nodes.len(), self.names.len());
            if let Some(best_effort) = &mut self.best_effort {
                best_effort.grow(self.nodes.len(), self.names.len());
            }
        }
        amounts
    }

    fn resources(&self, row: &[i64]) -> Resources {
        let positive = row.iter().enumerate().filter(|(_, amount)| **amount > 0);
        Resources::new(positive.map(|(id, amount)| (self.names.name(id), *amount))).unwrap_or_default()
    }

    fn known(&self, node: NodeId) -> Option<usize> {
        (node.idx() < self.nodes.len()).then_some(node.idx())
    }

    /// The index of a node, with room in the arrays.
    fn node_index(&mut self, node: NodeId) -> Option<usize> {
        if node.0 > NODE_ID_MAX {
            return None;
        }
        let idx = node.idx();
        if idx >= self.nodes.len() {
            let len = idx + 1;
            self.nodes.resize_with(len, NodeEntry::default);
            self.room.grow(len, self.names.len());
            if let Some(best_effort) = &mut self.best_effort {
                best_effort.grow(len, self.names.len());
            }
            self.device_room.resize(len, DeviceRoom::default());
            self.usable.resize(len, false);
            self.generations.resize(len, 0);
            self.is_gained.resize(len, false);
        }
        Some(idx)
    }

    fn touch(&mut self, idx: usize) {
        if self.is_gathering() {
            self.settle_gathered(idx);
        }
        self.generation += 1;
        self.generations[idx] = self.generation;
    }

    /// A node may be used by others than before: what is known of it is looked at again. `gained`: more may find room there.
    pub fn note_moved(&mut self, node: NodeId, gained: bool) {
        match self.known(node) {
            Some(idx) if gained => self.note_gain(idx),
            Some(idx) => self.touch(idx),
            None => {}
        }
    }

    fn note_gain(&mut self, idx: usize) {
        self.touch(idx);
        if !self.is_gained[idx]
            && let Ok(node) = u32::try_from(idx)
        {
            self.is_gained[idx] = true;
            self.gained.push(NodeId(node));
        }
    }

    fn settle_labels(&mut self, idx: usize) {
        let node = &self.nodes[idx];
        let none = std::collections::BTreeMap::new();
        let under = node.report.as_ref().map_or(&none, |(report, _)| &report.attributes);
        let over = node.spec.as_ref().map_or(&none, |(spec, _)| &spec.labels);
        let labels = self.labels.intern(under, over);
        self.sub_clusters.settle(idx, under, over);
        self.nodes[idx].labels = labels;
    }

    fn settle_allocatable(&mut self, idx: usize) {
        let node = &self.nodes[idx];
        let granted = node.grant.as_ref().map(|(grant, _)| grant);
        let reported = node.report.as_ref().map(|(report, _)| &report.capacity);
        // A grant says how much of a reported node may be used; without the report there is no node yet.
        let allocatable = reported.map(|capacity| granted.unwrap_or(capacity).clone()).unwrap_or_default();
        let max = self.nodes[idx].report.as_ref().map_or(0, |(report, _)| report.max_running_units);
        let mut amounts = self.amounts(&allocatable);
        amounts.retain(|(id, _)| *id != COUNT);
        amounts.push((COUNT, i64::from(max)));
        self.room.set_allocatable(idx, &amounts);
        if let Some(room) = self.room_mut(Pool::BestEffort) {
            room.set_allocatable(idx, &amounts);
        }
        self.settle_devices(idx);
    }

    fn settle_devices(&mut self, idx: usize) {
        let devices = self.nodes[idx].devices.room();
        self.device_room[idx] = devices;
        self.room.raise_devices(idx, devices);
        if let Some(room) = self.room_mut(Pool::BestEffort) {
            room.raise_devices(idx, devices);
        }
    }

    fn settle_usable(&mut self, idx: usize) {
        let node = &self.nodes[idx];
        let ready = node.report.as_ref().is_some_and(|(report, _)| report.ready);
        let is_open = ready && node.spec.as_ref().is_some_and(|(spec, _)| !spec.is_closed());
        self.usable[idx] =
            is_open && !u32::try_from(idx).is_ok_and(|node| self.frozen.has_node(NodeId(node)));
    }

    /// Follows what of a change cannot be read, before it is applied; it is not to be applied where it builds on that.
    pub fn note_unreadable(&mut self, change: &Change) -> Noted {
        let noted = self.frozen.note(change);
        if noted.any_node {
            for idx in 0..self.nodes.len() {
                self.settle_usable(idx);
                self.note_gain(idx);
            }
        }
        for node in &noted.nodes {
            if let Some(idx) = self.known(*node) {
                self.settle_usable(idx);
                self.note_gain(idx);
            }
        }
        noted
    }

    /// What cannot be read.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }
}

/// What the cycle reads, by node index.
impl Cluster {
    /// Node ids are below this.
    pub fn n_indices(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the node at an index may get something new.
    #[inline]
    pub fn is_usable(&self, idx: usize) -> bool {
        self.usable[idx]
    }

    /// Returns the label pairs and taint lists of all nodes.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the label pairs of the node at an index, ascending.
    #[inline]
    pub fn node_labels(&self, idx: usize) -> &[u32] {
        &self.nodes[idx].labels
    }

    /// Returns the taint list of the node at an index.
    #[inline]
    pub fn node_taints(&self, idx: usize) -> u32 {
        self.nodes[idx].taints
    }

    /// Returns the devices of the node at an index.
    #[inline]
    pub fn devices(&self, idx: usize) -> &NodeDevices {
        &self.nodes[idx].devices
    }

    /// Returns what every demand asks for, as integers.
    #[inline]
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// The room of a shape's pool.
    #[inline]
    pub fn room(&self, shape: ShapeId) -> &Room {
        self.room_of(self.shapes.get(shape))
    }

    /// Returns the room of the pool that a shape is of.
    #[inline]
    pub fn room_of(&self, shape: &Shape) -> &Room {
        match (shape.pool, &self.best_effort) {
            (Pool::BestEffort, Some(best_effort)) => &best_effort.room,
            (Pool::Guaranteed, _) | (Pool::BestEffort, None) => &self.room,
        }
    }

    /// Returns the name of a resource; `?` for a number that no resource has.
    pub fn resource_name(&self, id: u8) -> &str {
        self.names.name(usize::from(id))
    }
}
