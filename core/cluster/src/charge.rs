//! What a hold takes of its node, by resource and by device.

use godel_domain::{
    allocation::{Allocation, DeviceSet},
    demand::Pool,
    hold::Hold,
};
use smallvec::SmallVec;

use super::{
    catalogue::Catalogue,
    devices::{DeviceAsk, NodeDevices},
    hardware::NodeHardware,
    room::Asks,
    shapes::{Shape, ShapeId},
    taken::TakenRoom,
    topology::ZoneTake,
};

/// What a hold takes now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Amounts by resource integer.
    pub asks: Asks,
    /// Of best-effort room. A guaranteed hold takes all that it asks for there: its victims may keep nothing of that room,
    /// if what they use is known, and once they have left it is too late to refuse whoever came meanwhile.
    pub(crate) best_effort: Asks,
    /// Thousandths by device.
    pub devices: SmallVec<[(u8, i32); 4]>,
    /// Of zones.
    pub(crate) zones: ZoneTake,
    /// It keeps the ports of the demand from others: of a target of a movement. What others hold is checked again when it is bound.
    pub(crate) keeps_ports: bool,
}

impl Charge {
    /// Returns all that a hold asks for, whoever covers it; `node` is the devices of its node.
    pub(crate) fn whole(shape: &Shape, hold: &Hold, node: &NodeDevices) -> Self {
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        let asks: Asks = shape.asks.iter().map(|(id, amount)| (*id, amount.saturating_mul(n))).collect();
        let keeps_ports = hold.movement.is_some() && shape.has_ports;
        let mut charge = Self { asks, keeps_ports, ..Self::default() };
        for device in hold.devices.iter().flat_map(|devices| devices.iter()) {
            charge.add_device(device, node.milli_of(&shape.devices, device));
        }
        for zones in &hold.zones {
            charge.zones.add(&ZoneTake::of(shape, *zones));
        }
        charge
    }

    /// Returns what a hold takes beyond what its victims take for it, as long as they are there.
    pub(crate) fn beyond_victims(
        catalogue: &Catalogue,
        taken: &TakenRoom,
        shape: ShapeId,
        hold: &Hold,
        node: &NodeDevices,
    ) -> Self {
        let mut charge = Self::whole(catalogue.shape(shape), hold, node);
        let whole = charge.asks.clone();
        for victim in &hold.victims {
            let Some(row) = taken.rows.remains(victim).filter(|row| row.node == hold.node) else { continue };
            let Some(takes) = taken.rows.shape_of(victim.unit, row) else { continue };
            charge.cover(catalogue.shape(takes), row.allocation, node);
        }
        let charge = charge.tidy();
        let best_effort = if hold.pool == Pool::Guaranteed { whole } else { charge.asks.clone() };
        Self { best_effort, ..charge }
    }

    /// Somebody takes this much of it.
    pub(crate) fn cover(&mut self, takes: &Shape, given: Allocation, node: &NodeDevices) {
        for (id, amount) in &takes.asks {
            if let Some((_, left)) = self.asks.iter_mut().find(|(known, _)| known == id) {
                *left = left.saturating_sub(*amount).max(0);
            }
        }
        if !given.zones.is_empty() {
            self.zones.cover(&ZoneTake::of(takes, given.zones));
        }
        for device in given.devices.iter() {
            if let Some((_, left)) = self.devices.iter_mut().find(|(known, _)| usize::from(*known) == device)
            {
                *left = left.saturating_sub(node.milli_of(&takes.devices, device)).max(0);
            }
        }
    }

    /// Returns the charge without what is nothing.
    pub(crate) fn tidy(mut self) -> Self {
        self.asks.retain(|(_, amount)| *amount > 0);
        self.devices.retain(|(_, milli)| *milli > 0);
        self.zones.tidy();
        self
    }

    /// Returns the amount of a resource.
    pub(crate) fn amount(&self, id: u8) -> i64 {
        self.asks.iter().find(|(known, _)| *known == id).map_or(0, |(_, amount)| *amount)
    }

    /// Returns the thousandths of all devices together.
    pub(crate) fn device_milli(&self) -> i64 {
        self.devices.iter().map(|(_, milli)| i64::from(*milli)).sum()
    }

    /// Returns the thousandths of all devices that serve one of a shape's requests; `node` is the devices of the node.
    pub(crate) fn milli_for(&self, shape: &Shape, ask: &DeviceAsk, node: &NodeDevices) -> i64 {
        if shape.devices.len() == 1 {
            return self.device_milli();
        }
        let serves =
            |device: u8| node.classes.get(usize::from(device)).is_some_and(|class| ask.accepts(*class));
        self.devices.iter().filter(|(device, _)| serves(*device)).map(|(_, milli)| i64::from(*milli)).sum()
    }

    /// Takes devices for `n` of all that is asked, as many as are free. Returns whether some are missing.
    pub(crate) fn choose_devices(&mut self, devices: &mut NodeDevices, asks: &[DeviceAsk], n: i64) -> bool {
        let mut is_short = false;
        for ask in asks {
            is_short |= self.choose_of(devices, ask, n);
        }
        is_short
    }

    /// Takes of what somebody would take of devices and zones as much as is free. Returns whether something is missing.
    pub(crate) fn take_free(&mut self, wanted: &Self, node: &NodeHardware) -> bool {
        let mut is_short = false;
        for &(device, milli) in &wanted.devices {
            let is_there = usize::from(device) < node.devices.len();
            let free = if is_there { node.devices.free(usize::from(device)).clamp(0, milli) } else { 0 };
            is_short |= free < milli;
            if free > 0 {
                self.add_device(usize::from(device), free);
            }
        }
        if wanted.zones.is_empty() {
            return is_short;
        }
        let Some(topology) = node.topology.as_deref() else { return true };
        let (zones, lacks) = topology.free_of(&wanted.zones);
        self.zones = zones;
        is_short | lacks
    }

    fn choose_of(&mut self, devices: &mut NodeDevices, ask: &DeviceAsk, n: i64) -> bool {
        for _ in 0..n {
            let picked = devices.pick_one(ask);
            let Some(taken) = picked.or_else(|| part_of(devices, ask)) else { return true };
            for device in taken.iter() {
                devices.shift_one(device, ask.milli, 1);
                self.add_device(device, ask.milli);
            }
            if picked.is_none() {
                return true;
            }
        }
        false
    }

    fn add_device(&mut self, device: usize, more: i32) {
        let Ok(device) = u8::try_from(device) else { return };
        match self.devices.iter_mut().find(|(known, _)| *known == device) {
            Some((_, milli)) => *milli = milli.saturating_add(more),
            None => self.devices.push((device, more)),
        }
    }
}

/// As many whole devices as are free, of too few for one running unit.
fn part_of(devices: &NodeDevices, ask: &DeviceAsk) -> Option<DeviceSet> {
    let mut part = ask.clone();
    (1..ask.count).rev().find_map(|count| {
        part.count = count;
        devices.pick_one(&part)
    })
}

#[cfg(test)]
mod tests {
    use godel_base::resources::{CPU, Resources};
    use godel_domain::demand::{Demand, DeviceRequest};

    use super::*;

    #[test]
    fn a_charge_is_what_nobody_covers() {
        let (mut catalogue, node) = (Catalogue::default(), NodeDevices::default());
        let demand = |cpu| Demand {
            requests: Resources::new([(CPU, cpu)]).unwrap(),
            devices: vec![DeviceRequest {
                kind: "gpu".to_owned(),
                count: 1,
                milli: 1000,
                models: Vec::new(),
                terms: None,
            }],
            host_ports: Vec::new(),
            zones: None,
        };
        let asked = catalogue.intern(&demand(300), Pool::Guaranteed);
        let victim = catalogue.intern(&demand(500), Pool::Guaranteed);
        let hold =
            Hold { ordinals: vec![0, 1], devices: vec![DeviceSet(0b01), DeviceSet(0b10)], ..Hold::default() };
        let mut charge = Charge::whole(catalogue.shape(asked), &hold, &node);
        assert_eq!((charge.amount(0), charge.amount(1), charge.device_milli()), (600, 0, 2000));
        charge.cover(catalogue.shape(victim), DeviceSet(0b10).into(), &node);
        assert_eq!(charge.devices.as_slice(), [(0, 1000), (1, 0)]);
        let charge = charge.tidy();
        assert_eq!((charge.amount(0), charge.devices.as_slice()), (100, &[(0, 1000)][..]));
        let whole = Charge::beyond_victims(&catalogue, &TakenRoom::default(), asked, &hold, &node);
        assert_eq!((whole.amount(0), whole.best_effort.first()), (600, Some(&(0, 600))));
    }
}
