//! Questions to a layout.

use godel_domain::allocation::DeviceSet;

use super::{Layout, NodeIdx, NodeRoom, OwnerIdx, RunIdx, ShapeIdx};
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

    /// Returns what would be free on a node if some of the running units there were gone.
    pub(crate) fn room_without(&self, node: NodeIdx, gone: &[RunIdx]) -> NodeRoom {
        let mut room = self.rooms.room(node);
        for unit in gone {
            let placed = &self.placed[unit.idx()];
            self.rooms.change_room(&mut room, node, placed.shape, placed.devices, 1);
        }
        room
    }
}
