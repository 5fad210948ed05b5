//! The nodes and what is taken on them: the picture that schedulers and the binder decide on.
//!
//! [`Cluster`] is made of parts, each of which owns its state. Those below know nothing of those above:
//!
//! 1. `catalogue`: what small integers stand for. It grows, and does not change with running units.
//! 2. `records`: what was said of nodes: their labels and taints, and whether they may be used.
//! 3. `free`: what is free on them, in arrays by node index, which is all that a fit reads.
//! 4. `taken`: who takes it: committed rows, through [`RunningUnits`](godel_domain::running_units::RunningUnits), and
//!    assumptions, which are decisions of the owner that are not committed yet. A committed bind takes the place of its
//!    assumption.
//! 5. `holds`: for whom it is kept. A hold takes what its victims, as long as they are there, do not take for it, and a slot
//!    of a reservation what its occupant leaves.
//!
//! What concerns one part is a method of that part. [`Cluster`] passes questions on (here and in `queries`), and says what a
//! change means for all parts (in `changes`).
//!
//! Records may arrive in any order: what is taken on a node not yet known is accounted for. Nothing here survives a restart:
//! a list and a watch build it again.
//!
//! Each pool has a room of its own: see `best_effort`. Devices are common to both: they are held by one running
//! unit, or shared by some within their thousandths, whoever pays.
//!
//! # Modules
//!
//! - `assumptions`: room taken before it is committed, by unit and ordinal.
//! - `best_effort`: the room of the best-effort pool.
//! - `budgets`: disruption budgets beside the running units that they count.
//! - `catalogue`: what small integers stand for: resources, device models, labels, demands, sub-clusters.
//! - `changes`: what a change of rows, assumptions or holds means for all parts.
//! - `charge`: what a hold takes of its node.
//! - `daemons`: where the replicas of daemons are, and which nodes have none.
//! - `devices`: the devices of a node, and which of them are free.
//! - `domains`: running units by rack, zone or node, for terms that keep units together or apart.
//! - `fit`: whether a node has room for one more running unit.
//! - `followed`: records that change nothing but the cluster, as every decider follows them.
//! - `free`: what is free on every node.
//! - `gathering`: holds that gather room for a gang as it becomes free.
//! - `generations`: when each node changed last, and which have gained room.
//! - `group_deltas`: how many running units of each task group take room now, or no longer.
//! - `holds`: holds and what each of them takes from its node.
//! - `labels`: labels and taints of nodes as small integers.
//! - `loads`: measured use of nodes, as shares of what they have.
//! - `movers`: where terms count replicas that move.
//! - `occupants`: which running units are on which node.
//! - `pools`: the rooms of both pools.
//! - `ports`: ports of nodes that running units listen on.
//! - `queries`: what deciders ask before they choose a node.
//! - `records`: records of nodes, and which nodes may be used.
//! - `reserve`: the point `Reserve`: what a replica takes on its node, kind by kind, and gives back.
//! - `room`: free amounts of all nodes, by resource.
//! - `shapes`: demands as small integers, with everything resolved that a fit needs.
//! - `shrunk`: nodes that have less than what runs on them takes.
//! - `slots`: slots of reservations and who is in them.
//! - `spread`: replicas of one unit per node, for scores.
//! - `sub_clusters`: which nodes are of which sub-cluster.
//! - `taken`: what units take: rows and assumptions.
//! - `topology`: what lies where on one node: zones, devices near them, links.
//! - `unfit`: why a node does not take a running unit.
//! - `work_kinds`: running units by node and kind of work.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::ZoneSet,
    change::Change,
    demand::{Demand, Pool},
    frozen::{Frozen, Noted},
    node::{NodeReport, NodeSpec, NodeUsage},
    node_load::MaxLoad,
    work_kind::WorkKind,
    zone::ZonePolicy,
};

use self::{
    catalogue::Catalogue, domains::KnownNodes, free::FreeRoom, holds::NodeHolds, loads::LoadChange,
    records::NodeRecords, taken::TakenRoom,
};

pub use self::{
    daemons::DaemonIdx,
    domains::{
        AffinityTerms, ApartRule, DomainIdx, Domains, GroupRef, GroupRules, NearRule, NodeGroups,
        SegmentRule, SpreadRule, StandingTerms, TakersIdx, TopologyKeys, TopologyLevel, UnitRules,
        names_classes,
    },
    followed::follow_record,
    group_deltas::GroupDeltas,
    loads::{LoadLimits, LoadShares, NodeShares},
    reserve::{RESERVES, ReserveEntry},
    room::BlockMask,
    shapes::{Shape, ShapeId},
    slots::Owned,
    sub_clusters::{NodeBlocks, SubClusterId},
    topology::ZoneShares,
    unfit::Unfit,
    work_kinds::KindCounts,
};

mod assumptions;
mod best_effort;
mod budgets;
mod catalogue;
mod changes;
mod charge;
mod daemons;
pub mod devices;
mod domains;
mod fit;
mod followed;
mod free;
mod gathering;
mod generations;
mod group_deltas;
mod holds;
pub mod labels;
mod loads;
mod movers;
pub mod occupants;
mod pools;
mod ports;
mod queries;
mod records;
mod reserve;
pub mod room;
pub mod shapes;
pub mod shrunk;
mod slots;
mod spread;
mod sub_clusters;
mod taken;
#[cfg(test)]
mod tests;
mod topology;
mod unfit;
mod work_kinds;

/// The nodes and what is taken on them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    catalogue: Catalogue,
    records: NodeRecords,
    free: FreeRoom,
    taken: TakenRoom,
    holds: NodeHolds,
    /// Some replica has asked for nodes that are used little.
    limits_load: bool,
}

impl Cluster {
    /// Returns a cluster without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets nodes, rows and holds before a new list; assumptions and shapes stay.
    pub fn reset(&mut self) {
        let assumptions = self.taken.take_assumptions();
        *self = Self {
            catalogue: std::mem::take(&mut self.catalogue).without_nodes(),
            free: self.free.after(),
            taken: self.taken.without_units(),
            limits_load: self.limits_load,
            ..Self::default()
        };
        if self.catalogue.shapes().has_best_effort() {
            self.keep_best_effort();
        }
        for (unit, ordinal, assumed) in assumptions.iter() {
            self.taken.assume(&mut self.catalogue, &mut self.free, unit, ordinal, assumed);
        }
    }

    /// Follows an administrator's record; older ones than the one known are ignored.
    pub fn put_spec(&mut self, spec: NodeSpec, revision: Revision) {
        let Some(idx) = self.free.index(&self.catalogue, spec.id) else { return };
        if self.records.put_spec(&mut self.catalogue, idx, spec, revision) {
            self.taken.daemons.grow(self.free.len());
            self.follow_domain(idx);
            self.free.note_gain(&self.catalogue, idx);
        }
    }

    /// Follows an agent's record; older ones than the one known are ignored.
    pub fn put_report(&mut self, report: NodeReport, revision: Revision) {
        let Some(idx) = self.free.index(&self.catalogue, report.id) else { return };
        let node = report.id;
        if !self.records.put_report(&mut self.catalogue, idx, report, revision) {
            return;
        }
        if let Some(report) = self.records.report(node) {
            self.free.set_devices(&mut self.catalogue, idx, report);
        }
        self.settle_allocatable(idx);
        self.follow_devices(node);
        self.follow_domain(idx);
        self.free.note_gain(&self.catalogue, idx);
    }

    /// Follows the allocatable in force; older ones than the one known are ignored.
    pub fn put_allocatable(&mut self, node: NodeId, allocatable: Resources, revision: Revision) {
        let Some(idx) = self.free.index(&self.catalogue, node) else { return };
        if self.records.put_allocatable(idx, allocatable, revision) {
            self.settle_allocatable(idx);
            self.follow_domain(idx);
            self.free.note_gain(&self.catalogue, idx);
        }
    }

    /// Follows what the state service says of a node's use; older records than the one known are ignored.
    pub fn put_usage(&mut self, usage: NodeUsage, revision: Revision) {
        let Some(idx) = self.free.index(&self.catalogue, usage.id) else { return };
        if self.records.has_later_usage(idx, revision) {
            return;
        }
        let was = self.records.put_usage(idx, usage, revision);
        match self.settle_load(idx) {
            LoadChange::None => {}
            // Those that wait for a load below their limit are the only ones to whom less of it is room.
            LoadChange::Fallen if self.limits_load => self.free.note_gain(&self.catalogue, idx),
            LoadChange::Fallen | LoadChange::Risen => self.free.touch(&self.catalogue, idx),
        }
        let Some(now) = self.records.usage(idx) else { return };
        if was.as_ref().is_some_and(|was| now.as_of_ms < was.as_of_ms) {
            self.forget_usage();
        } else {
            self.free.put_usage(&self.catalogue, idx, was.as_ref(), now);
        }
    }

    /// Forgets the records of a node; what is taken on it stays accounted for until its rows end.
    pub fn remove_node(&mut self, node: NodeId) {
        let Some(idx) = self.free.known(node) else { return };
        let had_usage = self.records.remove(&mut self.catalogue, idx);
        self.free.clear_devices(&self.catalogue, idx);
        self.settle_allocatable(idx);
        self.follow_domain(idx);
        self.free.touch(&self.catalogue, idx);
        if had_usage {
            self.forget_usage();
        }
    }

    /// Replicas ask for nodes that are used little: a node of which less is used may have room for them from now on.
    pub fn limit_load(&mut self) {
        self.limits_load = true;
    }

    fn settle_allocatable(&mut self, idx: usize) {
        self.free.set_allocatable(&mut self.catalogue, idx, self.records.allocatable(idx));
        // Who changes what a node has says that it has changed.
        self.settle_load(idx);
    }

    /// Compares what is measured of a node and of its zones with what they have now.
    fn settle_load(&mut self, idx: usize) -> LoadChange {
        let of_node = self.records.settle_load(idx);
        let zones = self.records.usage(idx).map_or(&[][..], |usage| &usage.zone_loads);
        of_node.and(self.free.set_zone_loads(idx, zones, self.records.load(idx)))
    }

    /// Returns the shape of a demand of replicas that accept so much use of the zones that they are given. Those that are given none are
    /// judged by the node, and have the shape of the demand.
    pub fn shape_below(&mut self, demand: &Demand, pool: Pool, max_load: MaxLoad) -> ShapeId {
        let has_zones = demand.zones.is_some_and(|request| request.policy != ZonePolicy::BestEffort);
        let shape = self.shape(demand, pool);
        if has_zones && !max_load.is_any() { self.catalogue.intern_below(shape, max_load) } else { shape }
    }

    /// Returns the measured use of zones together, as shares of what they have, and the share that a replica of a shape asks for of each;
    /// `None`: nothing is known of some.
    pub fn zone_load(&self, shape: &Shape, idx: usize, zones: ZoneSet) -> Option<ZoneShares> {
        self.free.devices(idx).topology.as_deref()?.loads_of(shape, zones)
    }

    /// Whether so many zones of the node at an index are used as little as a shape accepts that it could be given enough of them; true
    /// on a node without zones, and for a shape that says nothing of them.
    pub fn has_calm_zones(&self, shape: ShapeId, idx: usize) -> bool {
        let shape = self.catalogue.shape(shape);
        let topology = self.free.devices(idx).topology.as_deref();
        topology.is_none_or(|topology| topology.has_calm(shape))
    }

    /// Follows what of a change cannot be read, before it is applied; it is not to be applied where it builds on that.
    pub fn note_unreadable(&mut self, change: &Change) -> Noted {
        let noted = self.records.note_unreadable(change);
        if noted.any_node {
            for idx in 0..self.free.len() {
                self.follow_domain(idx);
                self.free.note_gain(&self.catalogue, idx);
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
        match self.free.known(node) {
            Some(idx) if gained => self.free.note_gain(&self.catalogue, idx),
            Some(idx) => self.free.touch(&self.catalogue, idx),
            None => {}
        }
    }

    /// Returns what cannot be read.
    pub fn frozen(&self) -> &Frozen {
        self.records.frozen()
    }

    /// Returns a node's spec.
    pub fn spec(&self, node: NodeId) -> Option<&NodeSpec> {
        self.records.spec(node)
    }

    /// Returns a node's report.
    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.records.report(node)
    }

    /// Returns the value of a node's label; an administrator's wins over the agent's.
    pub fn label(&self, node: NodeId, key: &str) -> Option<&str> {
        self.records.label(node, key)
    }

    /// Returns when what labels and taints of a node rest on changed last: its spec or its report; 0 when unknown.
    pub fn changed_at(&self, node: NodeId) -> Revision {
        self.records.changed_at(node)
    }

    /// Returns the nodes that have a spec, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.records.nodes()
    }

    /// Returns how many nodes have a spec.
    pub fn n_nodes(&self) -> u32 {
        self.records.n_nodes()
    }

    /// Returns a number that rises with each change of a node.
    pub fn generation(&self) -> u64 {
        self.free.generations().last()
    }

    /// Returns the [`Self::generation`] of a node's last change.
    pub fn node_generation(&self, node: NodeId) -> u64 {
        self.free.generations().of(node)
    }

    /// Fills `into` with the nodes on which more may fit than at the last call: room given back, records changed.
    pub fn take_gained(&mut self, into: &mut Vec<NodeId>) {
        self.free.take_gained(into);
    }

    /// Whether some node has gained room since [`Self::take_gained`].
    pub fn has_gained(&self) -> bool {
        self.free.generations().has_gained()
    }
}

/// Terms of units about running units.
impl Cluster {
    /// Returns the running units by domain.
    #[inline]
    pub fn domains(&self) -> &Domains {
        &self.taken.domains
    }

    /// Whether some unit has had terms about running units.
    #[inline]
    pub fn has_terms(&self) -> bool {
        self.taken.domains.is_active()
    }

    /// Whether a node ever takes a replica of a template, whatever runs there: the one answer to the question which domains of a spread are
    /// usable.
    pub fn takes(&self, terms: &StandingTerms, node: NodeId) -> bool {
        let Self { records, free, catalogue, .. } = self;
        KnownNodes { records, free, catalogue }.takes(terms, node.idx())
    }

    /// Returns the node of the first of some replicas that has one, assumed or there; of one that moves its target.
    pub fn node_of_any(&self, unit: UnitId, mut ordinals: impl Iterator<Item = u32>) -> Option<NodeId> {
        let rows = self.rows(unit);
        let movers = &self.taken.movers;
        ordinals.find_map(|ordinal| {
            let mover = if movers.is_empty() { None } else { movers.get(unit, ordinal) };
            let stays = mover.is_none_or(|mover| !mover.leaves());
            let row = rows.map(|rows| rows.row(ordinal)).filter(|row| row.phase.is_live() && stays);
            let assumed = || Some(self.taken.assumed(unit, ordinal)?.node);
            row.map(|row| row.node).or_else(assumed).or_else(|| mover?.comes())
        })
    }

    /// Whether some replica of a unit runs and stays, or is about to run where it moves to.
    pub fn is_somewhere(&self, unit: UnitId) -> bool {
        let movers = &self.taken.movers;
        if movers.is_empty() {
            return self.rows(unit).is_some_and(|rows| rows.live().next().is_some());
        }
        let stays = |ordinal| movers.get(unit, ordinal).is_none_or(|mover| !mover.leaves());
        movers.targets(unit).next().is_some()
            || self.rows(unit).is_some_and(|rows| rows.live().any(|(ordinal, _)| stays(ordinal)))
    }

    /// Whether a replica of a unit may go to a node as its segment goes. A task group that has to be in one domain is a segment.
    ///
    /// # Errors
    /// The node is in no domain, or another replica of the segment is in another one.
    pub fn fits_segment(
        &self,
        unit: UnitId,
        rule: &SegmentRule,
        ordinal: u32,
        node: NodeId,
    ) -> Result<(), Unfit> {
        let domains = &self.taken.domains;
        if !domains.is_one_segment(rule, node.idx(), node.idx()) {
            let reason = "in no domain that a segment of the unit may be in".to_owned();
            return Err(Unfit::UnitAffinity { reason });
        }
        let others = rule.ordinals(rule.of(ordinal)).filter(|other| *other != ordinal);
        match self.node_of_any(unit, others) {
            Some(other) if !domains.is_one_segment(rule, other.idx(), node.idx()) => {
                let reason = "another replica of the segment is in another domain".to_owned();
                Err(Unfit::UnitAffinity { reason })
            }
            _ => Ok(()),
        }
    }
}

/// Kinds of work.
impl Cluster {
    /// Counts running units by kind of work from now on. To be said before any unit is known.
    pub fn count_work(&mut self) {
        self.taken.work.begin();
    }

    /// Whether running units are counted by kind of work.
    #[inline]
    pub fn counts_work(&self) -> bool {
        self.taken.work.is_active()
    }

    /// A unit is of a kind, wherever its running units are. Without effect where nobody counts kinds.
    pub fn put_work(&mut self, unit: UnitId, kind: WorkKind) {
        if self.counts_work() {
            for node in self.taken.put_work(unit, kind) {
                self.note_moved(node, false);
            }
        }
    }

    /// Returns how many running units of each kind are on the node at an index, assumed or there.
    #[inline]
    pub fn work_on(&self, idx: usize) -> KindCounts {
        self.taken.work.of(idx)
    }
}

/// Daemons.
impl Cluster {
    /// Returns the integer of a unit that is a daemon; `None`: it is none, as far as is known.
    #[inline]
    pub fn daemon(&self, unit: UnitId) -> Option<DaemonIdx> {
        if self.taken.daemons.is_empty() { None } else { self.taken.daemons.find(unit) }
    }

    /// Whether a replica of a daemon is on the node at an index, assumed or there.
    #[inline]
    pub fn has_daemon(&self, daemon: DaemonIdx, idx: usize) -> bool {
        self.taken.daemons.is_on(daemon, idx)
    }

    /// Returns the node on which a replica ran last or runs; `None`: it never had one.
    pub fn last_node(&self, unit: UnitId, ordinal: u32) -> Option<NodeId> {
        Some(self.rows(unit)?.row(ordinal).node).filter(|node| *node != NodeId(0))
    }

    /// Returns the block of a node, and the node alone as a mask of it.
    pub fn block_of(node: NodeId) -> (usize, BlockMask) {
        (node.idx() / room::BLOCK, 1 << (node.idx() % room::BLOCK))
    }

    /// Returns the blocks with nodes without a replica of a daemon, ascending, and which nodes these are.
    #[inline]
    pub fn without_daemon(&self, daemon: DaemonIdx) -> &[(usize, BlockMask)] {
        self.taken.daemons.open(daemon)
    }
}

/// Sub-clusters.
impl Cluster {
    /// The value of this label is a node's sub-cluster; empty: there are none. To be said before anything else.
    pub fn set_sub_cluster_key(&mut self, key: &str) {
        self.catalogue.set_sub_cluster_key(key);
        self.records.settle_all_labels(&mut self.catalogue);
    }

    /// Returns the sub-cluster of a name, known or new.
    pub fn sub_cluster(&mut self, name: &str) -> SubClusterId {
        self.catalogue.sub_cluster(name)
    }

    /// Returns the sub-cluster that a node selector demands.
    pub fn demanded_sub_cluster(&mut self, selector: &BTreeMap<String, String>) -> Option<SubClusterId> {
        self.catalogue.demanded_sub_cluster(selector)
    }

    /// Returns the label of nodes whose value is their sub-cluster; empty: there are no sub-clusters.
    pub fn sub_cluster_key(&self) -> &str {
        self.catalogue.sub_clusters().key()
    }

    /// Returns the blocks with nodes of a sub-cluster, ascending, and which nodes these are.
    #[inline]
    pub fn blocks_of(&self, id: SubClusterId) -> &[(usize, BlockMask)] {
        self.catalogue.sub_clusters().blocks_of(id)
    }

    /// Returns the indices of the nodes of some blocks, ascending; of all nodes for `None`.
    pub fn located(&self, blocks: NodeBlocks<'_>) -> impl Iterator<Item = usize> {
        let all = if blocks.is_none() { 0..self.n_indices() } else { 0..0 };
        all.chain(blocks.into_iter().flat_map(sub_clusters::nodes_of))
    }

    /// Returns [`Self::located`], of nodes that have a spec.
    pub fn located_nodes(&self, blocks: NodeBlocks<'_>) -> impl Iterator<Item = NodeId> {
        self.located(blocks).filter_map(|idx| self.records.id_at(idx))
    }

    /// Whether a node is of a sub-cluster; each node is for `None`.
    #[inline]
    pub fn is_located(&self, id: Option<SubClusterId>, node: NodeId) -> bool {
        id.is_none() || self.catalogue.sub_clusters().of(node.idx()) == id
    }
}
