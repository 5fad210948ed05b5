//! What is free on each node of a layout, and what demands take of it: columns of integers.

use godel_base::{
    quantity::MILLI_WHOLE,
    resources::{RUNNING_UNITS, ResourceNames},
};
use godel_domain::{
    allocation::DeviceSet,
    demand::{Demand, DeviceRequest},
    node::Device,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{BadSnapshot, N_DEVICE_CLASSES_MAX, NodeIdx, ShapeIdx};
use crate::snapshot::ClusterSnapshot;

/// What a node has of a resource that bounds only where it is given.
const UNBOUNDED: i64 = i64::MAX / 4;
/// Thousandths in one whole device, signed: what is left may be below zero between two steps of one change.
pub(crate) const WHOLE: i32 = 1000;
const _: () = assert!(MILLI_WHOLE == 1000, "as in demands");

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

/// Nodes with what they have and what is free there, and the demands that are interned.
#[derive(Clone, Debug)]
pub struct LayoutRooms {
    names: ResourceNames,
    n_columns: usize,
    capacity: Vec<i64>,
    pub(super) free: Vec<i64>,
    /// Where the devices of each node begin, and of one more, where they end.
    device_start: Vec<u32>,
    device_class: Vec<u8>,
    pub(super) device_left: Vec<i32>,
    classes: Vec<Device>,
    shapes: Vec<UnitShape>,
    shape_ids: FxHashMap<Demand, ShapeIdx>,
}

/// What is free on one node, as a copy that can be changed.
#[derive(Clone, Debug)]
pub(crate) struct NodeRoom {
    /// By column.
    pub(crate) free: SmallVec<[i64; 8]>,
    /// Thousandths of each device.
    pub(crate) left: SmallVec<[i32; 8]>,
}

impl LayoutRooms {
    /// Returns the rooms of nodes on which nothing runs.
    pub(super) fn new(snapshot: &ClusterSnapshot) -> Result<Self, BadSnapshot> {
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
        })
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

    /// Takes room on a node, whether it is free or not.
    pub fn take(&mut self, node: NodeIdx, shape: ShapeIdx, devices: DeviceSet) {
        self.charge(node, shape, devices, true);
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, node: NodeIdx, shape: ShapeIdx, devices: DeviceSet) {
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

    /// Returns a demand in integers.
    pub fn shape(&self, shape: ShapeIdx) -> &UnitShape {
        &self.shapes[shape.idx()]
    }

    /// Returns what is free on a node, by column.
    pub fn free_amounts(&self, node: NodeIdx) -> &[i64] {
        &self.free[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns]
    }

    /// Returns what a node has in all, by column.
    pub fn capacity(&self, node: NodeIdx) -> &[i64] {
        &self.capacity[node.idx() * self.n_columns..(node.idx() + 1) * self.n_columns]
    }

    /// Returns the thousandths that are left of each device of a node.
    pub fn devices_left(&self, node: NodeIdx) -> &[i32] {
        &self.device_left[self.devices_of(node)]
    }

    /// Returns the class of each device of a node.
    pub(crate) fn device_classes(&self, node: NodeIdx) -> &[u8] {
        &self.device_class[self.devices_of(node)]
    }

    /// Returns what is free on a node, as a copy.
    pub(super) fn room(&self, node: NodeIdx) -> NodeRoom {
        NodeRoom {
            free: SmallVec::from_slice(self.free_amounts(node)),
            left: SmallVec::from_slice(self.devices_left(node)),
        }
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
fn fit_in(shape: &UnitShape, free: &[i64], left: &[i32], classes: &[u8]) -> Option<DeviceSet> {
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
