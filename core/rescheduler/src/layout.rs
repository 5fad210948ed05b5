//! Who is where: the nodes with what is free on each, and running units that can be put elsewhere and back.
//!
//! A layout begins as the snapshot says and changes move by move, each of which can be undone. Amounts are columns of
//! integers, demands are interned, devices are thousandths that are left; so a trial costs no allocation. A layout knows
//! nothing of policies, and of the scheduler's filters only the room ([`Filters`](crate::filters::Filters) has the rest).

use godel_base::{
    ids::{IdMap, NodeId, UnitId},
    seed::mix,
};
use godel_domain::allocation::DeviceSet;

use crate::{
    policy::PlannedMove,
    snapshot::{ClusterSnapshot, RunningFacts, cost_of_move},
};

mod queries;
mod rooms;
#[cfg(test)]
mod tests;

pub use rooms::{LayoutRooms, ShapeDevices, UnitShape};
pub(crate) use rooms::{NodeRoom, WHOLE};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the index that stands at a position.
            pub fn at(position: usize) -> Self {
                Self(u32::try_from(position).unwrap_or(u32::MAX))
            }

            /// Returns the position in dense arrays.
            pub fn idx(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// A node of a snapshot, by its position there.
    NodeIdx
}
index! {
    /// A running unit of a snapshot, by its position there.
    RunIdx
}
index! {
    /// A unit of a snapshot, by its position there.
    OwnerIdx
}
index! {
    /// A demand that a layout has interned.
    ShapeIdx
}

/// Most classes of devices that demands tell apart: a set of them has a bit for each.
const N_DEVICE_CLASSES_MAX: usize = 64;

/// Why a snapshot makes no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    /// Two nodes have one id.
    #[error("node {0} is twice in the snapshot")]
    NodeTwice(NodeId),
    /// Two units have one id.
    #[error("unit {0} is twice in the snapshot")]
    UnitTwice(UnitId),
    /// A running unit is on a node that is not there.
    #[error("running unit {unit}/{ordinal} is on node {node}, which is not in the snapshot")]
    NoNode {
        /// Its unit.
        unit: UnitId,
        /// Its ordinal.
        ordinal: u32,
        /// The node.
        node: NodeId,
    },
    /// A running unit is of a unit that is not there.
    #[error("running unit {unit}/{ordinal} is of a unit that is not in the snapshot")]
    NoUnit {
        /// Its unit.
        unit: UnitId,
        /// Its ordinal.
        ordinal: u32,
    },
    /// More kinds and models of devices than a set has bits.
    #[error("more than {N_DEVICE_CLASSES_MAX} kinds and models of devices are in the snapshot")]
    DeviceClasses,
}

/// A running unit as it stands in a layout.
#[derive(Clone, Copy, Debug)]
struct Placed {
    shape: ShapeIdx,
    owner: OwnerIdx,
    home: NodeIdx,
    home_devices: DeviceSet,
    node: NodeIdx,
    devices: DeviceSet,
    /// Its position among those on its node.
    place: u32,
    /// Its position among those that are moved; of no meaning while it is at home.
    moved_at: u32,
}

/// A step that can be undone.
#[derive(Clone, Copy, Debug)]
enum LayoutStep {
    Moved { unit: RunIdx, from: NodeIdx, from_devices: DeviceSet },
    Kept { shape: ShapeIdx, node: NodeIdx, devices: DeviceSet },
}

/// A point in the history of a layout to which it can return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayoutMark(usize);

/// Who is where.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    snapshot: &'a ClusterSnapshot,
    rooms: LayoutRooms,
    placed: Vec<Placed>,
    on: Vec<Vec<RunIdx>>,
    costs: Vec<u64>,
    steps: Vec<LayoutStep>,
    /// Those that are elsewhere than in the snapshot, in no order that may show.
    moved: Vec<RunIdx>,
    /// Alike for two layouts of a snapshot in which the same running units are moved to the same nodes.
    moves_stamp: u64,
    n_moved_of: Vec<u32>,
    /// Running units of each unit.
    replicas: Vec<Vec<RunIdx>>,
}

impl<'a> Layout<'a> {
    /// Returns the layout that a snapshot shows. `O(nodes + running units)`.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn new(snapshot: &'a ClusterSnapshot) -> Result<Self, BadSnapshot> {
        let mut layout = Self {
            snapshot,
            rooms: LayoutRooms::new(snapshot)?,
            placed: Vec::with_capacity(snapshot.running.len()),
            on: vec![Vec::new(); snapshot.nodes.len()],
            costs: Vec::with_capacity(snapshot.running.len()),
            steps: Vec::new(),
            moved: Vec::new(),
            moves_stamp: 0,
            n_moved_of: vec![0; snapshot.units.len()],
            replicas: vec![Vec::new(); snapshot.units.len()],
        };
        let mut node_at = IdMap::default();
        for (position, node) in snapshot.nodes.iter().enumerate() {
            if node_at.insert(node.id, NodeIdx::at(position)).is_some() {
                return Err(BadSnapshot::NodeTwice(node.id));
            }
        }
        let mut owner_at = IdMap::default();
        for (position, unit) in snapshot.units.iter().enumerate() {
            if owner_at.insert(unit.id, OwnerIdx::at(position)).is_some() {
                return Err(BadSnapshot::UnitTwice(unit.id));
            }
        }
        for running in &snapshot.running {
            let (unit, ordinal) = (running.id.unit, running.id.replica.ordinal);
            let Some(&node) = node_at.get(&running.node) else {
                return Err(BadSnapshot::NoNode { unit, ordinal, node: running.node });
            };
            let Some(&owner) = owner_at.get(&unit) else {
                return Err(BadSnapshot::NoUnit { unit, ordinal });
            };
            let shape = layout.rooms.intern(&running.demand);
            layout.settle(running, node, owner, shape);
        }
        Ok(layout)
    }

    /// Puts the next running unit of the snapshot where it is. A node may be over-committed by that, as in the cluster.
    fn settle(&mut self, running: &RunningFacts, node: NodeIdx, owner: OwnerIdx, shape: ShapeIdx) {
        let unit = RunIdx::at(self.placed.len());
        let devices = running.devices;
        let place = u32::try_from(self.on[node.idx()].len()).unwrap_or(u32::MAX);
        let home = (node, devices);
        self.placed.push(Placed {
            shape,
            owner,
            home: home.0,
            home_devices: home.1,
            node,
            devices,
            place,
            moved_at: 0,
        });
        self.costs.push(cost_of_move(self.snapshot.now, &self.snapshot.units[owner.idx()], running));
        self.on[node.idx()].push(unit);
        self.replicas[owner.idx()].push(unit);
        self.rooms.take(node, shape, devices);
    }

    /// What is free on each node.
    pub fn rooms(&self) -> &LayoutRooms {
        &self.rooms
    }

    /// The same, to intern demands, and to take and give back room not as a step that can be undone.
    pub fn rooms_mut(&mut self) -> &mut LayoutRooms {
        &mut self.rooms
    }

    /// Whether a running unit has room on a node. At its home, it has room only with the devices that it had there.
    pub fn has_room(&self, unit: RunIdx, node: NodeIdx) -> bool {
        self.devices_for(unit, node).is_some()
    }

    /// Returns the devices that a running unit would get on a node; `None`: it has no room there.
    pub(crate) fn devices_for(&self, unit: RunIdx, node: NodeIdx) -> Option<DeviceSet> {
        let placed = &self.placed[unit.idx()];
        let shape = self.rooms.shape(placed.shape);
        if node == placed.node {
            return Some(placed.devices);
        }
        if node == placed.home {
            let is_free = self.rooms.can_take(placed.shape, node, placed.home_devices);
            return is_free.then_some(placed.home_devices);
        }
        if shape.is_fixed { None } else { self.rooms.fit(placed.shape, node) }
    }

    /// Puts a running unit on a node if it has room there; says whether it has.
    pub fn relocate(&mut self, unit: RunIdx, to: NodeIdx) -> bool {
        let Some(devices) = self.devices_for(unit, to) else { return false };
        self.force(unit, to, devices);
        true
    }

    /// Puts a running unit on a node with some devices, whether they are free or not: in the end, the caller has all of them in
    /// a state that was possible.
    pub(crate) fn force(&mut self, unit: RunIdx, to: NodeIdx, devices: DeviceSet) {
        let Placed { node: from, devices: from_devices, .. } = self.placed[unit.idx()];
        if from == to {
            return;
        }
        self.put(unit, to, devices);
        self.steps.push(LayoutStep::Moved { unit, from, from_devices });
    }

    fn put(&mut self, unit: RunIdx, to: NodeIdx, devices: DeviceSet) {
        let placed = self.placed[unit.idx()];
        self.rooms.give_back(placed.node, placed.shape, placed.devices);
        self.rooms.take(to, placed.shape, devices);
        let list = &mut self.on[placed.node.idx()];
        list.swap_remove(placed.place as usize);
        if let Some(follower) = list.get(placed.place as usize) {
            self.placed[follower.idx()].place = placed.place;
        }
        let place = u32::try_from(self.on[to.idx()].len()).unwrap_or(u32::MAX);
        self.on[to.idx()].push(unit);
        self.placed[unit.idx()] = Placed { node: to, devices, place, ..placed };
        match (placed.node == placed.home, to == placed.home) {
            (true, false) => self.note_moved(unit),
            (false, true) => self.note_home(unit),
            (true, true) | (false, false) => {}
        }
        let part = |node: NodeIdx| match node == placed.home {
            true => 0,
            false => mix(mix(u64::from(unit.0)) ^ u64::from(node.0)),
        };
        self.moves_stamp ^= part(placed.node) ^ part(to);
    }

    fn note_moved(&mut self, unit: RunIdx) {
        let placed = &mut self.placed[unit.idx()];
        placed.moved_at = u32::try_from(self.moved.len()).unwrap_or(u32::MAX);
        self.n_moved_of[placed.owner.idx()] += 1;
        self.moved.push(unit);
    }

    fn note_home(&mut self, unit: RunIdx) {
        let Placed { moved_at, owner, .. } = self.placed[unit.idx()];
        self.n_moved_of[owner.idx()] -= 1;
        self.moved.swap_remove(moved_at as usize);
        if let Some(follower) = self.moved.get(moved_at as usize) {
            self.placed[follower.idx()].moved_at = moved_at;
        }
    }

    /// Puts running units where a plan has them.
    pub fn apply(&mut self, moves: &[PlannedMove]) {
        moves.iter().for_each(|planned| self.force(planned.unit, planned.to.0, planned.devices));
    }

    /// Keeps room on a node for a demand that is to come, if there is room; says whether there is.
    pub fn keep(&mut self, shape: ShapeIdx, node: NodeIdx) -> bool {
        let Some(devices) = self.rooms.fit(shape, node) else { return false };
        self.rooms.take(node, shape, devices);
        self.steps.push(LayoutStep::Kept { shape, node, devices });
        true
    }

    /// Returns the point in its history that the layout is at.
    pub fn mark(&self) -> LayoutMark {
        LayoutMark(self.steps.len())
    }

    /// Undoes the last step after a mark, and says which running unit went back from where; `None`: it is at the mark. A step
    /// that kept room names no running unit.
    pub fn undo_one(&mut self, mark: LayoutMark) -> Option<Option<(RunIdx, NodeIdx)>> {
        if self.steps.len() <= mark.0 {
            return None;
        }
        match self.steps.pop()? {
            LayoutStep::Moved { unit, from, from_devices } => {
                let at = self.node_of(unit);
                self.put(unit, from, from_devices);
                Some(Some((unit, at)))
            }
            LayoutStep::Kept { shape, node, devices } => {
                self.rooms.give_back(node, shape, devices);
                Some(None)
            }
        }
    }

    /// Undoes everything after a mark.
    pub fn undo_to(&mut self, mark: LayoutMark) {
        while self.undo_one(mark).is_some() {}
    }

    /// Forgets how the layout came to be as it is, so that a long search needs no memory. Marks made before are void.
    pub fn forget_steps(&mut self) {
        self.steps.clear();
    }
}
