//! What is free on every node: room of both pools and devices, as running units, holds and gathering holds leave it.
//!
//! Columns by node index. Whatever takes room or gives it back does so here, and the node's generation rises; who takes it,
//! and for how long, is known to others. Amounts may go negative while a node shrinks.

use std::sync::Arc;

use godel_base::{
    ids::{NODE_ID_MAX, NodeId},
    resources::Resources,
};
use godel_domain::{
    allocation::{Allocation, DeviceSet},
    demand::Pool,
    node::{NodeReport, NodeUsage},
    running_units::RunningUnit,
};
use smallvec::SmallVec;

use super::{
    best_effort::BestEffort,
    catalogue::Catalogue,
    charge::Charge,
    gathering::GatheringHolds,
    generations::Generations,
    hardware::NodeHardware,
    pools::PoolRooms,
    ports::TakenPorts,
    room::{DeviceRoom, Room},
    shapes::{COUNT, Shape, ShapeId},
    shrunk::DeviceHolders,
    spread::Nominal,
};

/// What is free, by node index.
#[derive(Clone, Debug, Default)]
pub struct FreeRoom {
    pub(super) pools: PoolRooms,
    pub(super) hardware: Vec<NodeHardware>,
    holders: DeviceHolders,
    /// A summary of what is free of the devices.
    pub(super) device_room: Vec<DeviceRoom>,
    pub(super) nominal: Nominal,
    pub(super) ports: TakenPorts,
    /// When nodes changed last.
    pub generations: Generations,
    /// Holds that gather.
    pub gathering: GatheringHolds,
}

/// What is known of nodes.
impl FreeRoom {
    /// Returns what a new list of records begins with: no node, and a later generation than all before.
    pub(crate) fn after(&self) -> Self {
        Self { generations: self.generations.after(), ..Self::default() }
    }

    /// Node ids are below this.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.hardware.len()
    }

    /// Returns the index of a node that something was said of.
    #[inline]
    pub(crate) fn known(&self, node: NodeId) -> Option<usize> {
        (node.idx() < self.hardware.len()).then_some(node.idx())
    }

    /// Returns the index of a node, which has a place in all columns from now on.
    #[inline]
    pub(crate) fn index(&mut self, catalogue: &Catalogue, node: NodeId) -> Option<usize> {
        if node.0 > NODE_ID_MAX {
            return None;
        }
        let idx = node.idx();
        if idx >= self.hardware.len() {
            self.grow(catalogue, idx + 1);
        }
        Some(idx)
    }

    #[cold]
    fn grow(&mut self, catalogue: &Catalogue, len: usize) {
        self.pools.grow(len, catalogue.n_resources());
        self.hardware.resize_with(len, NodeHardware::default);
        self.holders.grow(len);
        self.device_room.resize(len, DeviceRoom::default());
        self.generations.grow(len);
    }

    /// Returns amounts by resource integer; every name has a column from now on.
    pub(crate) fn amounts(&mut self, catalogue: &mut Catalogue, resources: &Resources) -> Vec<(u8, i64)> {
        let n_known = catalogue.n_resources();
        let amounts = catalogue.amounts(resources);
        if catalogue.n_resources() > n_known {
            self.pools.grow(self.len(), catalogue.n_resources());
        }
        amounts
    }

    /// Every resource that a shape asks for has a column from now on.
    #[inline]
    pub(crate) fn resolve(&mut self, catalogue: &mut Catalogue, shape: ShapeId) {
        if catalogue.shape(shape).unknown.is_some() {
            self.add_columns(catalogue, shape);
        }
    }

    #[cold]
    fn add_columns(&mut self, catalogue: &mut Catalogue, shape: ShapeId) {
        let demand = Arc::clone(&catalogue.shape(shape).demand);
        self.amounts(catalogue, &demand.requests);
    }

    /// Replaces what a node has, and how many running units it takes.
    pub(crate) fn set_allocatable(
        &mut self,
        catalogue: &mut Catalogue,
        idx: usize,
        allocatable: Option<(&Resources, u32)>,
    ) {
        let (mut amounts, max) = match allocatable {
            Some((allocatable, max)) => (self.amounts(catalogue, allocatable), max),
            None => (Vec::new(), 0),
        };
        amounts.retain(|(id, _)| *id != COUNT);
        amounts.push((COUNT, i64::from(max)));
        self.pools.set_allocatable(idx, &amounts);
        self.settle_devices(idx);
    }

    /// Replaces which devices and zones a node has; what is free of them is settled by [`Self::set_allocatable`].
    pub(crate) fn set_devices(&mut self, catalogue: &mut Catalogue, idx: usize, report: &NodeReport) {
        let classes = catalogue.device_classes(&report.devices);
        let devices = &mut self.hardware[idx].devices;
        self.holders.set_classes(catalogue, idx, devices, classes);
        self.holders.settle_frozen(catalogue, idx, devices);
        let capacities =
            report.zones.iter().map(|zone| self.amounts(catalogue, &zone.capacity).into()).collect();
        self.hardware[idx].set_topology(report, capacities);
    }

    /// A node has no devices any more; what is free of them is settled by [`Self::set_allocatable`].
    pub(crate) fn clear_devices(&mut self, catalogue: &Catalogue, idx: usize) {
        let node = &mut self.hardware[idx];
        self.holders.set_classes(catalogue, idx, &mut node.devices, SmallVec::new());
        node.devices.freeze(DeviceSet::NONE);
        node.set_topology(&NodeReport::default(), Vec::new());
    }

    /// Something about a node has changed: who gathers there takes what is free now.
    #[inline]
    pub(crate) fn touch(&mut self, catalogue: &Catalogue, idx: usize) {
        if self.gathering.is_any() {
            self.settle_gathered(catalogue, idx);
        }
        self.generations.touch(idx);
    }

    /// More may fit on a node than before.
    #[inline]
    pub(crate) fn note_gain(&mut self, catalogue: &Catalogue, idx: usize) {
        self.touch(catalogue, idx);
        self.generations.note_gain(idx);
    }

    /// More may fit on some nodes than before.
    #[cold]
    pub(crate) fn note_gains(&mut self, catalogue: &Catalogue, nodes: Vec<usize>) {
        let n_nodes = self.len();
        nodes.into_iter().filter(|idx| *idx < n_nodes).for_each(|idx| self.note_gain(catalogue, idx));
    }

    /// Something about some nodes has changed.
    #[cold]
    pub(crate) fn touch_each(&mut self, catalogue: &Catalogue, nodes: Vec<usize>) {
        let n_nodes = self.len();
        nodes.into_iter().filter(|idx| *idx < n_nodes).for_each(|idx| self.touch(catalogue, idx));
    }

    /// Every node has changed.
    pub(crate) fn touch_all(&mut self, catalogue: &Catalogue) {
        (0..self.len()).for_each(|idx| self.touch(catalogue, idx));
    }

    /// Returns the room of the pool that a shape is of.
    #[inline]
    pub(crate) fn room_of(&self, shape: &Shape) -> &Room {
        self.pools.of(shape.pool)
    }

    /// The bounds of a block are exact from now on, for shapes of a pool.
    pub fn tighten(&mut self, block: usize, pool: Pool) {
        self.pools.tighten(block, pool, &self.device_room);
    }
}

/// What takes room and gives it back.
impl FreeRoom {
    /// A shape of which something is about to be taken or given back on a node: both have a place in all columns from now on. False: no
    /// node can have this id.
    #[inline]
    pub(crate) fn begin_shift(&mut self, catalogue: &mut Catalogue, shape: ShapeId, node: NodeId) -> bool {
        if self.index(catalogue, node).is_none() {
            return false;
        }
        self.resolve(catalogue, shape);
        true
    }

    /// Takes devices (`sign` 1) or gives them back (-1).
    #[inline]
    pub(crate) fn shift_devices(
        &mut self,
        catalogue: &Catalogue,
        idx: usize,
        shape: ShapeId,
        devices: DeviceSet,
        sign: i8,
    ) {
        let (asks, sign) = (&catalogue.shape(shape).devices, i32::from(sign));
        let node = &mut self.hardware[idx].devices;
        node.shift(devices, asks, sign);
        if asks.len() > 1 {
            self.holders.shift_mixed(idx, shape, devices, sign);
        }
        self.holders.shift(catalogue, idx, node, shape, devices, sign);
        self.settle_devices(idx);
    }

    /// A row's full request was taken (`sign` 1) or is given back (-1): of best-effort room less counts if the row is in the
    /// use that is known.
    #[inline]
    pub(crate) fn follow_row(&mut self, catalogue: &Catalogue, shape: ShapeId, row: &RunningUnit, sign: i8) {
        if self.pools.best_effort().is_some() {
            self.follow_measured(catalogue, shape, row, sign);
        }
    }

    fn follow_measured(&mut self, catalogue: &Catalogue, shape: ShapeId, row: &RunningUnit, sign: i8) {
        let n_nodes = self.len();
        let Some(best_effort) = self.pools.best_effort_mut() else { return };
        let resolved = catalogue.shape(shape);
        if resolved.pool == Pool::Guaranteed
            && row.node.idx() < n_nodes
            && best_effort.count_row(shape, &resolved.measured(), row, sign)
        {
            self.note_gain(catalogue, row.node.idx());
        }
    }

    /// A hold takes what it keeps (`sign` 1) or gives it back (-1).
    pub(crate) fn shift_charge(
        &mut self,
        catalogue: &Catalogue,
        idx: usize,
        shape: ShapeId,
        charge: &Charge,
        sign: i8,
    ) {
        let pool = catalogue.shape(shape).pool;
        self.pools.shift_charge(idx, pool, charge, i64::from(sign));
        let node = &mut self.hardware[idx];
        for &(device, milli) in &charge.devices {
            node.devices.shift_one(usize::from(device), milli, i32::from(sign));
            let held = DeviceSet(1 << device);
            self.holders.shift(catalogue, idx, &mut node.devices, shape, held, i32::from(sign));
        }
        node.shift_zones(&charge.zones, i32::from(sign));
        if !charge.devices.is_empty() {
            self.settle_devices(idx);
        }
        if charge.keeps_ports {
            self.ports.shift(idx, &catalogue.shape(shape).demand.host_ports, sign);
        }
    }

    /// Fresh state of a node from a rejection: what others have taken of a pool there and was not seen is kept from new
    /// placements.
    pub(crate) fn note_foreign(
        &mut self,
        catalogue: &mut Catalogue,
        node: NodeId,
        pool: Pool,
        allocated: &Resources,
        device_free_milli: &[u32],
    ) {
        let Some(idx) = self.known(node) else { return };
        let amounts = self.amounts(catalogue, allocated);
        self.pools.set_foreign(idx, pool, &amounts);
        self.hardware[idx].devices.set_foreign(device_free_milli);
        self.settle_devices(idx);
        // It may say less than the note before.
        self.note_gain(catalogue, idx);
    }

    /// Ends a foreign note.
    pub(crate) fn clear_foreign(&mut self, catalogue: &Catalogue, node: NodeId) {
        let Some(idx) = self.known(node).filter(|idx| self.has_foreign(*idx)) else { return };
        self.pools.set_foreign(idx, Pool::Guaranteed, &[]);
        self.pools.set_foreign(idx, Pool::BestEffort, &[]);
        self.hardware[idx].devices.set_foreign(&[]);
        self.settle_devices(idx);
        self.note_gain(catalogue, idx);
    }

    /// A running unit that may have been believed to be there became seen.
    #[inline]
    pub(crate) fn consume_foreign(
        &mut self,
        catalogue: &Catalogue,
        shape: ShapeId,
        node: NodeId,
        allocation: Allocation,
    ) {
        let Some(idx) = self.known(node).filter(|idx| self.has_foreign(*idx)) else { return };
        let resolved = catalogue.shape(shape);
        self.pools.consume_foreign(idx, resolved);
        self.hardware[idx].devices.consume_foreign(allocation.devices, &resolved.devices);
    }

    #[inline]
    fn has_foreign(&self, idx: usize) -> bool {
        self.pools.has_foreign(idx) || self.hardware[idx].devices.has_foreign()
    }

    /// Returns the best-effort pool's room on empty nodes; `None` if it is kept already.
    pub(crate) fn empty_best_effort(&self, catalogue: &Catalogue) -> Option<Box<BestEffort>> {
        let is_kept = self.pools.best_effort().is_some();
        let beside =
            || BestEffort::beside(self.pools.guaranteed(), catalogue.n_resources(), &self.device_room);
        (!is_kept).then(|| Box::new(beside()))
    }

    /// The use of a node is known up to a later time.
    pub(crate) fn put_usage(
        &mut self,
        catalogue: &Catalogue,
        idx: usize,
        was: Option<&NodeUsage>,
        now: &NodeUsage,
    ) {
        let Some(best_effort) = self.pools.best_effort_mut() else { return };
        let gains = best_effort.put_usage(catalogue.shapes(), idx, was, now);
        if gains { self.note_gain(catalogue, idx) } else { self.touch(catalogue, idx) }
    }

    /// What is free of a node's devices is what they say now.
    pub(super) fn settle_devices(&mut self, idx: usize) {
        let devices = self.hardware[idx].devices.room();
        self.device_room[idx] = devices;
        self.pools.raise_devices(idx, devices);
    }
}
