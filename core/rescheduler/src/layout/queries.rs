//! Questions to a layout.

use godel_domain::allocation::DeviceSet;
use smallvec::SmallVec;

use super::{Layout, NodeIdx, NodeRoom, OwnerIdx, RunIdx, ShapeIdx, UnitShape, WHOLE, fit_in};
use crate::snapshot::{ClusterSnapshot, NodeFacts, RunningFacts, UnitFacts};

impl<'a> Layout<'a> {
    /// Returns the snapshot that the layout began as.
    pub fn snapshot(&self) -> &'a ClusterSnapshot {
        self.snapshot
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIdx> + use<> {
        (0..self.on.len()).map(NodeIdx::at)
    }

    /// Returns the number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.on.len()
    }

    /// Returns all running units.
    pub fn running(&self) -> impl Iterator<Item = RunIdx> + use<> {
        (0..self.placed.len()).map(RunIdx::at)
    }

    /// Returns the number of running units.
    pub fn n_running(&self) -> usize {
        self.placed.len()
    }

    /// Returns what is known of a node.
    pub fn node(&self, node: NodeIdx) -> &'a NodeFacts {
        &self.snapshot.nodes[node.idx()]
    }

    /// Returns what is known of a running unit.
    pub fn facts(&self, unit: RunIdx) -> &'a RunningFacts {
        &self.snapshot.running[unit.idx()]
    }

    /// Returns what is known of the unit that a running unit is a replica of.
    pub fn owner_facts(&self, unit: RunIdx) -> &'a UnitFacts {
        &self.snapshot.units[self.owner(unit).idx()]
    }

    /// Returns the unit that a running unit is a replica of.
    pub fn owner(&self, unit: RunIdx) -> OwnerIdx {
        self.placed[unit.idx()].owner
    }

    /// Returns the running units of a unit.
    pub fn replicas(&self, owner: OwnerIdx) -> &[RunIdx] {
        self.replicas.get(owner.idx()).map_or(&[], Vec::as_slice)
    }

    /// Returns the interned demand of a running unit.
    pub fn shape_of(&self, unit: RunIdx) -> ShapeIdx {
        self.placed[unit.idx()].shape
    }

    /// Returns a demand in integers.
    pub fn shape(&self, shape: ShapeIdx) -> &UnitShape {
        &self.shapes[shape.idx()]
    }

    /// Returns the number of demands interned.
    pub fn n_shapes(&self) -> usize {
        self.shapes.len()
    }

    /// Returns the node that a running unit is on now.
    pub fn node_of(&self, unit: RunIdx) -> NodeIdx {
        self.placed[unit.idx()].node
    }

    /// Returns the node that a running unit is on in the snapshot.
    pub fn home(&self, unit: RunIdx) -> NodeIdx {
        self.placed[unit.idx()].home
    }

    /// Returns the devices that a running unit has now.
    pub fn devices(&self, unit: RunIdx) -> DeviceSet {
        self.placed[unit.idx()].devices
    }

    /// Returns the devices that a running unit has in the snapshot.
    pub(crate) fn home_devices(&self, unit: RunIdx) -> DeviceSet {
        self.placed[unit.idx()].home_devices
    }

    /// Whether a running unit is elsewhere than in the snapshot.
    pub fn is_moved(&self, unit: RunIdx) -> bool {
        let placed = &self.placed[unit.idx()];
        placed.node != placed.home
    }

    /// Returns how many running units are elsewhere than in the snapshot.
    pub fn n_moved(&self) -> usize {
        self.moved.len()
    }

    /// Returns the running units that are elsewhere than in the snapshot, in no order that may show.
    pub fn moved(&self) -> &[RunIdx] {
        &self.moved
    }

    /// Returns a number that two layouts of a snapshot share if the same running units are moved to the same nodes, 0 if none is; others have
    /// another one but for a chance of 2^-64.
    pub fn moves_stamp(&self) -> u64 {
        self.moves_stamp
    }

    /// Returns how many replicas of a unit are elsewhere than in the snapshot.
    pub fn n_moved_of(&self, owner: OwnerIdx) -> u32 {
        self.n_moved_of[owner.idx()]
    }

    /// Returns the running units on a node, in no order that means anything.
    pub fn on(&self, node: NodeIdx) -> &[RunIdx] {
        &self.on[node.idx()]
    }

    /// Returns what a move of a running unit costs, milliseconds of work.
    pub fn cost(&self, unit: RunIdx) -> u64 {
        self.costs[unit.idx()]
    }

    /// Returns what is free on a node, by column.
    pub fn free_amounts(&self, node: NodeIdx) -> &[i64] {
        &self.free[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns]
    }

    /// Returns what a node has in all, by column.
    pub fn capacity(&self, node: NodeIdx) -> &[i64] {
        &self.capacity[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns]
    }

    /// Returns the column of a resource, `None` if no node and no demand has it.
    pub fn column(&self, name: &str) -> Option<usize> {
        (0..self.n_columns).find(|column| self.names.name(*column) == name)
    }

    /// Returns the thousandths that are left of each device of a node.
    pub fn devices_left(&self, node: NodeIdx) -> &[i32] {
        &self.device_left[self.devices_of(node)]
    }

    /// Returns the class of each device of a node.
    pub(crate) fn device_classes(&self, node: NodeIdx) -> &[u8] {
        &self.device_class[self.devices_of(node)]
    }

    /// Returns what would be free on a node if some of the running units there were gone.
    pub(crate) fn room_without(&self, node: NodeIdx, gone: &[RunIdx]) -> NodeRoom {
        let mut room = NodeRoom {
            free: SmallVec::from_slice(self.free_amounts(node)),
            left: SmallVec::from_slice(self.devices_left(node)),
        };
        for unit in gone {
            let placed = &self.placed[unit.idx()];
            self.change_room(&mut room, node, placed.shape, placed.devices, 1);
        }
        room
    }

    /// Gives room back that a demand takes with some devices (`sign` 1), or takes it (`sign` -1).
    pub(crate) fn change_room(
        &self,
        room: &mut NodeRoom,
        node: NodeIdx,
        shape: ShapeIdx,
        devices: DeviceSet,
        sign: i32,
    ) {
        let classes = self.device_classes(node);
        let shape = &self.shapes[shape.idx()];
        for (free, amount) in room.free.iter_mut().zip(&shape.amounts) {
            *free += amount * i64::from(sign);
        }
        for device in devices.iter().filter(|device| *device < classes.len()) {
            room.left[device] += sign * shape.milli_of(classes[device]);
        }
    }

    /// Returns the devices that a demand would get of a room on a node.
    pub(crate) fn fit_room(&self, shape: ShapeIdx, node: NodeIdx, room: &NodeRoom) -> Option<DeviceSet> {
        fit_in(&self.shapes[shape.idx()], &room.free, &room.left, self.device_classes(node))
    }

    /// Whether a demand has room with these devices.
    pub(crate) fn room_has(
        &self,
        shape: ShapeIdx,
        node: NodeIdx,
        room: &NodeRoom,
        devices: DeviceSet,
    ) -> bool {
        let classes = self.device_classes(node);
        let shape = &self.shapes[shape.idx()];
        let has_amounts =
            room.free.iter().zip(&shape.amounts).all(|(free, asked)| *asked <= 0 || asked <= free);
        let is_free = |device: usize| {
            classes.get(device).is_none_or(|class| room.left[device] >= shape.milli_of(*class))
        };
        has_amounts && devices.iter().all(is_free)
    }

    /// Returns how many running units of a demand would fit into a room on a node, at most `n_max`.
    pub(crate) fn copies_in(&self, shape: ShapeIdx, node: NodeIdx, mut room: NodeRoom, n_max: u32) -> u32 {
        for n in 0..n_max {
            let Some(devices) = self.fit_room(shape, node, &room) else { return n };
            self.change_room(&mut room, node, shape, devices, -1);
        }
        n_max
    }

    /// Returns what a node has if nothing runs there.
    pub(crate) fn empty_room(&self, node: NodeIdx) -> NodeRoom {
        NodeRoom {
            free: SmallVec::from_slice(self.capacity(node)),
            left: SmallVec::from_elem(WHOLE, self.devices_left(node).len()),
        }
    }

    /// Whether a demand would fit on a node if some of the running units there were gone.
    pub fn fits_without(&self, shape: ShapeIdx, node: NodeIdx, gone: &[RunIdx]) -> bool {
        self.fit_room(shape, node, &self.room_without(node, gone)).is_some()
    }

    /// Whether a demand would fit on a node if nothing ran there.
    pub fn fits_empty(&self, shape: ShapeIdx, node: NodeIdx) -> bool {
        self.fit_room(shape, node, &self.empty_room(node)).is_some()
    }
}
