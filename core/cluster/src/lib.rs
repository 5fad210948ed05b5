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
//! What concerns one part is a method of that part, and [`Cluster`] hands the parts out: [`Cluster::nodes`], [`Cluster::rows`],
//! [`Cluster::domains`], [`Cluster::holds`], and views of several parts, [`Cluster::free`] and [`Cluster::held`]. It says itself what a
//! change means for all of them (in `changes`, and in `node_updates` for records of nodes).
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
//! - `free_view`: nodes and what is free on them, as deciders see them.
//! - `gathering`: holds that gather room for a gang as it becomes free.
//! - `generations`: when each node changed last, and which have gained room.
//! - `group_deltas`: how many running units of each task group take room now, or no longer.
//! - `hardware`: devices and zones of a node, as they lie together.
//! - `held_room`: what holds and slots keep, beside the room that is free.
//! - `hold_updates`: holds and slots, to be changed.
//! - `holds`: holds and what each of them takes from its node.
//! - `labels`: labels and taints of nodes as small integers.
//! - `loads`: measured use of nodes, as shares of what they have.
//! - `movers`: where terms count replicas that move.
//! - `node_updates`: what changed records of nodes mean for all parts.
//! - `occupants`: which running units are on which node.
//! - `pools`: the rooms of both pools.
//! - `ports`: ports of nodes that running units listen on.
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
//! - `trial`: room taken and given up on probation.
//! - `unfit`: why a node does not take a running unit.
//! - `unit_rows`: committed rows of units, and the shapes of their task groups.
//! - `unit_updates`: what units say, to be changed.
//! - `work_kinds`: running units by node and kind of work.

use godel_domain::demand::Pool;

use self::{
    catalogue::Catalogue, free::FreeRoom, holds::NodeHolds, records::NodeRecords, taken::TakenRoom,
    trial::TrialJournal, unit_rows::UnitRows,
};

pub use self::{
    daemons::DaemonIdx,
    domains::{
        AffinityTerms, ApartRule, DomainIdx, Domains, GroupCache, GroupRef, GroupRules, NearRule, NodeGroups,
        SegmentRule, SpreadRule, StandingTerms, TakersIdx, TopologyKeys, TopologyLevel, UnitRules,
        names_classes,
    },
    followed::follow_record,
    free_view::FreeView,
    group_deltas::GroupDeltas,
    held_room::HeldRoom,
    hold_updates::HoldUpdates,
    loads::{LoadLimits, LoadShares, NodeShares},
    node_updates::NodeUpdates,
    reserve::{RESERVES, ReserveEntry},
    room::BlockMask,
    shapes::{Shape, ShapeId},
    slots::Owned,
    sub_clusters::{NodeBlocks, SubClusterId},
    topology::ZoneShares,
    trial::{Trial, TrialMark},
    unfit::Unfit,
    unit_updates::UnitUpdates,
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
mod free_view;
mod gathering;
mod generations;
mod group_deltas;
pub mod hardware;
mod held_room;
mod hold_updates;
mod holds;
pub mod labels;
mod loads;
mod movers;
mod node_updates;
pub mod occupants;
mod pools;
mod ports;
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
mod trial;
mod unfit;
mod unit_rows;
mod unit_updates;
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
    journal: TrialJournal,
}

impl Cluster {
    /// Returns a cluster without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets nodes, rows and holds before a new list; assumptions and shapes stay.
    pub fn reset(&mut self) {
        let assumptions = std::mem::take(&mut self.taken.assumptions);
        *self = Self {
            catalogue: std::mem::take(&mut self.catalogue).without_nodes(),
            free: self.free.after(),
            taken: self.taken.without_units(),
            limits_load: self.limits_load,
            ..Self::default()
        };
        if self.catalogue.shapes().has_best_effort() {
            self.keep_pool(Pool::BestEffort);
        }
        for (unit, ordinal, assumed) in assumptions.iter() {
            self.taken.assume(&mut self.catalogue, &mut self.free, unit, ordinal, assumed, drop);
        }
    }

    /// Returns the records of nodes.
    #[inline]
    pub fn nodes(&self) -> &NodeRecords {
        &self.records
    }

    /// Returns the records of nodes, to be changed.
    #[inline]
    pub fn nodes_mut(&mut self) -> NodeUpdates<'_> {
        NodeUpdates { cluster: self }
    }

    /// Returns what small integers stand for.
    #[inline]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Returns what small integers stand for, to be added to.
    #[inline]
    pub fn catalogue_mut(&mut self) -> &mut Catalogue {
        &mut self.catalogue
    }

    /// Returns what is free on nodes.
    #[inline]
    pub fn free(&self) -> FreeView<'_> {
        FreeView { records: &self.records, free: &self.free, catalogue: &self.catalogue }
    }

    /// Returns what is free on nodes, to be changed where that concerns nothing else.
    #[inline]
    pub fn free_mut(&mut self) -> &mut FreeRoom {
        &mut self.free
    }

    /// Returns what units take: rows and assumptions.
    #[inline]
    pub fn taken(&self) -> &TakenRoom {
        &self.taken
    }

    /// Returns what units take, to be changed where that concerns nothing else.
    #[inline]
    pub fn taken_mut(&mut self) -> &mut TakenRoom {
        &mut self.taken
    }

    /// Returns the committed rows of units.
    #[inline]
    pub fn rows(&self) -> &UnitRows {
        &self.taken.rows
    }

    /// Returns the running units by domain.
    #[inline]
    pub fn domains(&self) -> &Domains {
        &self.taken.domains
    }

    /// Returns the holds.
    #[inline]
    pub fn holds(&self) -> &NodeHolds {
        &self.holds
    }

    /// Returns the holds, to be changed where that concerns nothing else.
    #[inline]
    pub fn holds_mut(&mut self) -> &mut NodeHolds {
        &mut self.holds
    }

    /// Returns what units say, to be changed.
    #[inline]
    pub fn units_mut(&mut self) -> UnitUpdates<'_> {
        UnitUpdates { cluster: self }
    }

    /// Returns the holds and slots, to be changed.
    #[inline]
    pub fn held_mut(&mut self) -> HoldUpdates<'_> {
        HoldUpdates { cluster: self }
    }

    /// Returns the room of holds and slots.
    #[inline]
    pub fn held(&self) -> HeldRoom<'_> {
        HeldRoom { cluster: self }
    }
}
