//! Devices and zones of a node, as they lie together. What goes together of them is chosen in `topology`.

use godel_domain::{
    allocation::{Allocation, ZoneSet},
    node::NodeReport,
};

use super::{
    charge::Charge,
    devices::NodeDevices,
    room::Asks,
    shapes::Shape,
    topology::{NodeTopology, ZoneShares, ZoneTake},
};

/// Devices of one node, and what lies where on it.
#[derive(Clone, Debug, Default)]
pub struct NodeHardware {
    /// Its devices by index.
    pub devices: NodeDevices,
    /// `None`: the node is one whole.
    pub(crate) topology: Option<Box<NodeTopology>>,
}

impl NodeHardware {
    /// Returns the measured use of zones together, as shares of what they have, and the share that a replica of a shape asks for of each;
    /// `None`: nothing is known of some.
    #[inline]
    pub fn zone_load(&self, shape: &Shape, zones: ZoneSet) -> Option<ZoneShares> {
        self.topology.as_deref()?.loads_of(shape, zones)
    }

    /// Replaces which zones the node has, and what lies near them.
    pub(crate) fn set_topology(&mut self, report: &NodeReport, capacities: Vec<Asks>) {
        let mut topology = self.topology.take().unwrap_or_default();
        topology.set_report(report, capacities);
        self.topology = (!topology.is_empty()).then_some(topology);
    }

    /// Somebody takes (`sign` 1) or gives back (-1) some of its zones.
    pub(crate) fn shift_zones(&mut self, take: &ZoneTake, sign: i32) {
        if !take.is_empty() {
            self.topology.get_or_insert_default().shift(take, i64::from(sign));
        }
    }

    /// Takes (`sign` 1) or gives back (-1) what a running unit of a shape is given.
    #[inline]
    pub fn shift_given(&mut self, shape: &Shape, given: Allocation, sign: i32) {
        if !given.is_empty() {
            self.shift_some(shape, given, sign);
        }
    }

    fn shift_some(&mut self, shape: &Shape, given: Allocation, sign: i32) {
        self.devices.shift(given.devices, &shape.devices, sign);
        if !given.zones.is_empty() {
            self.shift_zones(&ZoneTake::of(shape, given.zones), sign);
        }
    }

    /// Takes (`sign` 1) or gives back (-1) what a hold takes.
    pub fn shift_charge(&mut self, charge: &Charge, sign: i32) {
        for &(device, milli) in &charge.devices {
            self.devices.shift_one(usize::from(device), milli, sign);
        }
        self.shift_zones(&charge.zones, sign);
    }

    /// Returns the devices and zones as if nothing were free but what a hold takes of them.
    pub(crate) fn only(&self, charge: &Charge) -> Self {
        let mut only = self.clone();
        for idx in 0..only.devices.len() {
            let free = only.devices.free(idx).max(0);
            only.devices.shift_one(idx, free, 1);
        }
        if let Some(topology) = &mut only.topology {
            topology.take_all(&charge.zones);
        }
        only.shift_charge(charge, -1);
        only
    }

    /// Whether no more is taken of any device or zone than there is.
    pub fn is_sound(&self) -> bool {
        (0..self.devices.len()).all(|device| self.devices.free(device) >= 0)
            && self.topology.as_ref().is_none_or(|topology| topology.is_sound())
    }

    /// Leaves nothing free of devices and zones that was not free before.
    pub fn cap(&mut self, before: &Self) {
        if let (Some(now), Some(before)) = (&mut self.topology, &before.topology) {
            now.cap(before);
        }
        for idx in 0..self.devices.len() {
            let excess = self.devices.free(idx).saturating_sub(before.devices.free(idx).max(0));
            self.devices.shift_one(idx, excess.max(0), 1);
        }
    }
}
