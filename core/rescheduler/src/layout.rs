//! Who is where: the nodes with what is free on each, and running units that can be put elsewhere and back.
//!
//! A layout begins as the snapshot says and changes move by move, each of which can be undone. Amounts are columns of
//! integers, demands are interned, devices are thousandths that are left; so a trial costs no allocation. A layout knows
//! nothing of policies, and of the scheduler's filters only the room ([`Filters`](crate::filters::Filters) has the rest).

use godel_base::{
    ids::{IdMap, NodeId, UnitId},
    quantity::MILLI_WHOLE,
    resources::{RUNNING_UNITS, ResourceNames},
    seed::mix,
};
use godel_domain::{
    allocation::DeviceSet,
    demand::{Demand, DeviceRequest},
    node::Device,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    policy::PlannedMove,
    snapshot::{ClusterSnapshot, RunningFacts, cost_of_move},
};

mod queries;
#[cfg(test)]
mod tests;

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
/// What a node has of a resource that bounds only where it is given.
const UNBOUNDED: i64 = i64::MAX / 4;
/// Thousandths in one whole device, signed: what is left may be below zero between two steps of one change.
pub(crate) const WHOLE: i32 = 1000;
const _: () = assert!(MILLI_WHOLE == 1000, "as in demands");

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

/// Devices of some classes that a demand asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeDevices {
    /// Classes accepted: bit i is class i of the layout.
    classes: u64,
    /// How many.
    pub count: u32,
    /// Thousandths of each.
    pub milli: i32,
}

impl ShapeDevices {
    /// Returns the classes accepted, a bit for each.
    pub(crate) fn classes(&self) -> u64 {
        self.classes
    }

    /// Whether devices of a class are accepted.
    pub(crate) fn accepts(&self, class: u8) -> bool {
        self.classes >> class & 1 == 1
    }
}

/// A demand in the integers of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitShape {
    /// Amounts by column.
    pub amounts: SmallVec<[i64; 4]>,
    /// Devices, by kind.
    pub devices: SmallVec<[ShapeDevices; 1]>,
    /// Whether it asks for what a layout does not know: links, places of devices, zones, ports. What does stays where it is
    /// unless it returns there.
    pub is_fixed: bool,
}

impl UnitShape {
    /// Returns the thousandths that it takes of a device of a class.
    pub(crate) fn milli_of(&self, class: u8) -> i32 {
        let ask = self.devices.iter().find(|ask| ask.accepts(class));
        ask.or(self.devices.first()).map_or(0, |ask| ask.milli)
    }

    /// Returns the thousandths of devices that it takes in all.
    pub fn device_milli(&self) -> i64 {
        self.devices.iter().map(|ask| i64::from(ask.count) * i64::from(ask.milli)).sum()
    }
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
    names: ResourceNames,
    n_columns: usize,
    capacity: Vec<i64>,
    free: Vec<i64>,
    /// Where the devices of each node begin, and of one more, where they end.
    device_start: Vec<u32>,
    device_class: Vec<u8>,
    device_left: Vec<i32>,
    classes: Vec<Device>,
    shapes: Vec<UnitShape>,
    shape_ids: FxHashMap<Demand, ShapeIdx>,
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
        let mut layout = Self::of_nodes(snapshot)?;
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
            let shape = layout.intern(&running.demand);
            layout.settle(running, node, owner, shape);
        }
        Ok(layout)
    }

    fn of_nodes(snapshot: &'a ClusterSnapshot) -> Result<Self, BadSnapshot> {
        let mut names = ResourceNames::default();
        let count_column = names.id(RUNNING_UNITS);
        let mut classes: Vec<Device> = Vec::new();
        let (mut device_start, mut device_class) = (vec![0], Vec::new());
        for node in &snapshot.nodes {
            node.capacity.iter().for_each(|(name, _)| {
                names.id(name);
            });
            for device in &node.devices {
                let class = class_of(device);
                let found = classes.iter().position(|known| *known == class);
                let at = found.unwrap_or_else(|| {
                    classes.push(class);
                    classes.len() - 1
                });
                device_class.push(u8::try_from(at).map_err(|_| BadSnapshot::DeviceClasses)?);
            }
            device_start.push(u32::try_from(device_class.len()).unwrap_or(u32::MAX));
        }
        if classes.len() > N_DEVICE_CLASSES_MAX {
            return Err(BadSnapshot::DeviceClasses);
        }
        for demand in snapshot.running.iter().map(|running| &running.demand) {
            demand.requests.iter().for_each(|(name, _)| {
                names.id(name);
            });
        }
        let n_columns = names.len();
        let mut capacity = vec![0; n_columns * snapshot.nodes.len()];
        for (node, row) in snapshot.nodes.iter().zip(capacity.chunks_mut(n_columns)) {
            for (column, amount) in row.iter_mut().enumerate() {
                *amount = node.capacity.get(names.name(column));
            }
            match node.n_running_max {
                Some(most) => row[count_column] = i64::from(most),
                None if row[count_column] == 0 => row[count_column] = UNBOUNDED,
                None => {}
            }
        }
        Ok(Self {
            snapshot,
            names,
            n_columns,
            free: capacity.clone(),
            capacity,
            device_left: vec![WHOLE; device_class.len()],
            device_start,
            device_class,
            classes,
            shapes: Vec::new(),
            shape_ids: FxHashMap::default(),
            placed: Vec::with_capacity(snapshot.running.len()),
            on: vec![Vec::new(); snapshot.nodes.len()],
            costs: Vec::with_capacity(snapshot.running.len()),
            steps: Vec::new(),
            moved: Vec::new(),
            moves_stamp: 0,
            n_moved_of: vec![0; snapshot.units.len()],
            replicas: vec![Vec::new(); snapshot.units.len()],
        })
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
        self.take(node, shape, devices);
    }

    /// Returns the small integer of a demand, which may be of no running unit, as the typical ones of defragmentation.
    pub fn intern(&mut self, demand: &Demand) -> ShapeIdx {
        if let Some(known) = self.shape_ids.get(demand) {
            return *known;
        }
        let mut amounts: SmallVec<[i64; 4]> = SmallVec::from_elem(0, self.n_columns);
        let mut is_known = true;
        for (name, amount) in demand.requests.iter() {
            let column = (0..self.n_columns).find(|column| self.names.name(*column) == name);
            match column {
                Some(column) => amounts[column] = amount,
                None => is_known = false,
            }
        }
        if let Some(column) = (0..self.n_columns).find(|column| self.names.name(*column) == RUNNING_UNITS) {
            amounts[column] = 1;
        }
        let devices = demand.devices.iter().map(|request| {
            let accepted = self.classes.iter().enumerate().filter(|(_, device)| request.accepts(device));
            let classes = accepted.fold(0, |set, (class, _)| set | 1 << class);
            ShapeDevices {
                classes,
                count: request.count,
                milli: i32::try_from(request.milli).unwrap_or(WHOLE),
            }
        });
        let is_about_places =
            |request: &DeviceRequest| request.terms.as_ref().is_some_and(|terms| terms.is_about_places());
        let is_fixed = !is_known
            || demand.zones.is_some()
            || !demand.host_ports.is_empty()
            || demand.devices.iter().any(is_about_places);
        let shape = UnitShape { amounts, devices: devices.collect(), is_fixed };
        let idx = ShapeIdx::at(self.shapes.len());
        self.shapes.push(shape);
        self.shape_ids.insert(demand.clone(), idx);
        idx
    }

    fn devices_of(&self, node: NodeIdx) -> std::ops::Range<usize> {
        self.device_start[node.idx()] as usize..self.device_start[node.idx() + 1] as usize
    }

    fn take(&mut self, node: NodeIdx, shape: ShapeIdx, devices: DeviceSet) {
        self.charge(node, shape, devices, true);
    }

    fn give_back(&mut self, node: NodeIdx, shape: ShapeIdx, devices: DeviceSet) {
        self.charge(node, shape, devices, false);
    }

    fn charge(&mut self, node: NodeIdx, shape: ShapeIdx, devices: DeviceSet, takes: bool) {
        let range = self.devices_of(node);
        let shape = &self.shapes[shape.idx()];
        let row = &mut self.free[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns];
        for (free, amount) in row.iter_mut().zip(&shape.amounts) {
            *free = if takes { free.saturating_sub(*amount) } else { free.saturating_add(*amount) };
        }
        for device in devices.iter() {
            let Some(at) = range.clone().nth(device) else { continue };
            let milli = shape.milli_of(self.device_class[at]);
            self.device_left[at] += if takes { -milli } else { milli };
        }
    }

    /// Returns the devices that a demand would get on a node, `None` if it does not fit. A share goes to the device with the
    /// least left that has enough, whole devices are the first free ones.
    pub fn fit(&self, shape: ShapeIdx, node: NodeIdx) -> Option<DeviceSet> {
        let range = self.devices_of(node);
        let row = &self.free[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns];
        let shape = &self.shapes[shape.idx()];
        fit_in(shape, row, &self.device_left[range.clone()], &self.device_class[range])
    }

    /// Whether a running unit has room on a node. At its home, it has room only with the devices that it had there.
    pub fn has_room(&self, unit: RunIdx, node: NodeIdx) -> bool {
        self.devices_for(unit, node).is_some()
    }

    /// Returns the devices that a running unit would get on a node; `None`: it has no room there.
    pub(crate) fn devices_for(&self, unit: RunIdx, node: NodeIdx) -> Option<DeviceSet> {
        let placed = &self.placed[unit.idx()];
        let shape = &self.shapes[placed.shape.idx()];
        if node == placed.node {
            return Some(placed.devices);
        }
        if node == placed.home {
            let is_free = self.can_take(placed.shape, node, placed.home_devices);
            return is_free.then_some(placed.home_devices);
        }
        if shape.is_fixed { None } else { self.fit(placed.shape, node) }
    }

    /// Whether a demand fits on a node with these devices.
    pub fn can_take(&self, shape: ShapeIdx, node: NodeIdx, devices: DeviceSet) -> bool {
        let shape = &self.shapes[shape.idx()];
        let has_amounts =
            self.free_amounts(node).iter().zip(&shape.amounts).all(|(free, ask)| *ask <= 0 || ask <= free);
        has_amounts
            && devices.iter().all(|device| {
                self.devices_of(node)
                    .nth(device)
                    .is_none_or(|at| self.device_left[at] >= shape.milli_of(self.device_class[at]))
            })
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
        self.give_back(placed.node, placed.shape, placed.devices);
        self.take(to, placed.shape, devices);
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
        let Some(devices) = self.fit(shape, node) else { return false };
        self.take(node, shape, devices);
        self.steps.push(LayoutStep::Kept { shape, node, devices });
        true
    }

    /// Takes room on a node whether it is free or not, until it is released, and not as a step that can be undone.
    pub(crate) fn hold(&mut self, shape: ShapeIdx, node: NodeIdx, devices: DeviceSet) {
        self.take(node, shape, devices);
    }

    /// Gives back what was held.
    pub(crate) fn release(&mut self, shape: ShapeIdx, node: NodeIdx, devices: DeviceSet) {
        self.give_back(node, shape, devices);
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
                self.give_back(node, shape, devices);
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

/// What is free on one node, as a copy that can be changed.
#[derive(Clone, Debug)]
pub(crate) struct NodeRoom {
    /// By column.
    pub(crate) free: SmallVec<[i64; 8]>,
    /// Thousandths of each device.
    pub(crate) left: SmallVec<[i32; 8]>,
}

/// What a demand can tell devices apart by.
fn class_of(device: &Device) -> Device {
    let mut details = device.details.clone();
    if let Some(details) = &mut details {
        details.link_group = 0;
    }
    Device { kind: device.kind.clone(), model: device.model.clone(), numa_zone: 0, details }
}

/// Returns the devices that a demand would get of what is free.
pub(crate) fn fit_in(shape: &UnitShape, free: &[i64], left: &[i32], classes: &[u8]) -> Option<DeviceSet> {
    if free.iter().zip(&shape.amounts).any(|(free, asked)| *asked > 0 && asked > free) {
        return None;
    }
    let mut chosen = DeviceSet::NONE;
    for ask in &shape.devices {
        let fits = |device: &usize| {
            ask.accepts(classes[*device]) && left[*device] >= ask.milli && !chosen.contains(*device)
        };
        let fitting = (0..left.len().min(u64::BITS as usize)).filter(fits);
        if ask.milli < WHOLE {
            let tightest = fitting.min_by_key(|device| (left[*device], *device))?;
            chosen.insert(tightest);
        } else {
            let taken: DeviceSet = fitting.take(ask.count as usize).collect();
            if taken.len() < ask.count {
                return None;
            }
            chosen = chosen.union(taken);
        }
    }
    Some(chosen)
}
