//! The fragmentation of devices: which share of what is idle the typical work cannot use.
//!
//! Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC '23),
//! section 4: of a node and a typical demand, all that is idle if the demand does not fit there or asks for no device, and else
//! what is idle on devices that are too small for it; of a node, the mean over the typical demands.

use godel_domain::demand::Demand;

use crate::{
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, NodeRoom, RunIdx, ShapeIdx, UnitShape, WHOLE},
};

/// A demand that comes often, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct TypicalDemand {
    /// The demand. What is left out, as memory, is not looked at.
    pub demand: Demand,
    /// Its share of the work; they need not sum up to one.
    pub weight: f64,
}

/// How fragmented every node of a layout is, kept up to date.
#[derive(Clone, Debug)]
pub struct Fragmentation {
    typical: Vec<(ShapeIdx, f64)>,
    of_node: Vec<f64>,
    sum: f64,
    total: f64,
    at_first: f64,
}

impl Fragmentation {
    /// Returns the fragmentation of a layout by typical demands.
    pub fn new(layout: &mut Layout<'_>, typical: &[TypicalDemand]) -> Self {
        let weights: f64 = typical.iter().map(|one| one.weight).sum();
        let share = |weight: f64| if weights > 0.0 { weight / weights } else { 0.0 };
        let typical: Vec<(ShapeIdx, f64)> =
            typical.iter().map(|one| (layout.rooms_mut().intern(&one.demand), share(one.weight))).collect();
        let mut table = Self { typical, of_node: Vec::new(), sum: 0.0, total: 0.0, at_first: 0.0 };
        for node in layout.nodes() {
            let value = table.of_room(layout, node, &layout.room_without(node, &[]));
            table.of_node.push(value);
            table.sum += value;
            let n_devices = u32::try_from(layout.rooms().devices_left(node).len()).unwrap_or(u32::MAX);
            table.total += f64::from(n_devices) * f64::from(WHOLE);
        }
        table.at_first = table.rate();
        table
    }

    /// Returns the share of all thousandths of devices that typical work cannot use.
    pub fn rate(&self) -> f64 {
        if self.total > 0.0 { (self.sum / self.total).max(0.0) } else { 0.0 }
    }

    /// Returns the rate of the layout that it was made for.
    pub(crate) fn rate_at_first(&self) -> f64 {
        self.at_first
    }

    /// Returns the thousandths of a node that typical work cannot use.
    pub fn of(&self, node: NodeIdx) -> f64 {
        self.of_node.get(node.idx()).copied().unwrap_or(0.0)
    }

    fn of_room(&self, layout: &Layout<'_>, node: NodeIdx, room: &NodeRoom) -> f64 {
        let idle: i32 = room.left.iter().map(|left| (*left).max(0)).sum();
        if idle == 0 {
            return 0.0;
        }
        let classes = layout.rooms().device_classes(node);
        let of_typical = self.typical.iter().map(|(shape, weight)| {
            let unusable = unusable(layout.rooms().shape(*shape), room, classes).unwrap_or(idle);
            weight * f64::from(unusable)
        });
        of_typical.sum()
    }

    /// Returns by how many thousandths the fragmentation of a node rises when a demand comes; `None`: it does not fit.
    pub fn rise(&self, layout: &Layout<'_>, shape: ShapeIdx, node: NodeIdx) -> Option<f64> {
        let mut room = layout.room_without(node, &[]);
        let devices = layout.rooms().fit_room(shape, node, &room)?;
        layout.rooms().change_room(&mut room, node, shape, devices, -1);
        Some(self.of_room(layout, node, &room) - self.of(node))
    }

    /// Returns by how many thousandths the fragmentation of its node falls when a running unit leaves, below zero if so.
    pub(crate) fn fall(&self, layout: &Layout<'_>, unit: RunIdx) -> f64 {
        let node = layout.node_of(unit);
        self.of(node) - self.of_room(layout, node, &layout.room_without(node, &[unit]))
    }

    fn update(&mut self, layout: &Layout<'_>, node: NodeIdx) {
        let value = self.of_room(layout, node, &layout.room_without(node, &[]));
        if let Some(known) = self.of_node.get_mut(node.idx()) {
            self.sum += value - *known;
            *known = value;
        }
    }
}

/// Returns the thousandths on devices that are too small for a demand; `None`: it does not fit, or asks for no device, or for
/// several kinds of them.
fn unusable(shape: &UnitShape, room: &NodeRoom, classes: &[u8]) -> Option<i32> {
    let [ask] = shape.devices.as_slice() else { return None };
    if room.free.iter().zip(&shape.amounts).any(|(free, asked)| *asked > 0 && asked > free) {
        return None;
    }
    let (mut n_fitting, mut small) = (0, 0);
    for (left, class) in room.left.iter().zip(classes) {
        if *left >= ask.milli && ask.accepts(*class) {
            n_fitting += 1;
        } else {
            small += (*left).max(0);
        }
    }
    (n_fitting >= ask.count).then_some(small)
}

/// The goal that the rate falls.
impl Goal for Fragmentation {
    fn value(&self) -> f64 {
        self.rate()
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        if to == layout.node_of(unit) || self.total <= 0.0 {
            return 0.0;
        }
        let Some(devices) = layout.devices_for(unit, to) else { return f64::INFINITY };
        let mut room = layout.room_without(to, &[]);
        layout.rooms().change_room(&mut room, to, layout.shape_of(unit), devices, -1);
        let rise = self.of_room(layout, to, &room) - self.of(to);
        (rise - self.fall(layout, unit)) / self.total
    }

    fn on_moved(&mut self, layout: &Layout<'_>, _unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        self.update(layout, from);
        self.update(layout, to);
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        let rises = self.rate() + self.change(layout, unit, to) > self.at_first + EPSILON;
        rises.then_some(CheckPoint::Move)
    }
}
