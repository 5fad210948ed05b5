//! Nodes that have come to have less than what is there takes: what is short is given to nobody until it fits.
//!
//! Resources show it by themselves: less than nothing of them is free. A device that is gone, or that has become another
//! one, does not, as devices are told apart: who holds which is kept for each node, and as long as somebody holds one that
//! is not there, or not of those that it asked for, the devices of that kind that are left count as not free.

use godel_domain::allocation::DeviceSet;

use super::{
    devices::{DeviceAsk, DeviceClasses},
    shapes::{ShapeId, Shapes},
};

/// Who holds devices of one node: what they asked for, which ones they hold, and how many hold the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders(Vec<(ShapeId, DeviceSet, i32)>);

impl Holders {
    /// One more (`sign` 1) or one less (-1).
    pub(crate) fn shift(&mut self, shape: ShapeId, devices: DeviceSet, sign: i32) {
        let same = |(of, held, _): &(ShapeId, DeviceSet, i32)| (*of, *held) == (shape, devices);
        match self.0.iter().position(same) {
            Some(at) => {
                self.0[at].2 += sign;
                if self.0[at].2 == 0 {
                    self.0.swap_remove(at);
                }
            }
            None => self.0.push((shape, devices, sign)),
        }
    }

    /// Devices of every kind of which somebody holds one that the node no longer has, or that has become another one than
    /// was asked for: of such a kind the node gives nothing away until those have ended.
    pub(crate) fn frozen(&self, classes: &[u16], all: &DeviceClasses, shapes: &Shapes) -> DeviceSet {
        let mut frozen = DeviceSet::NONE;
        for (shape, held, _) in &self.0 {
            let shape = shapes.get(*shape);
            if let (Some(ask), Some(request)) = (&shape.devices, &shape.demand.devices)
                && is_astray(ask, *held, classes)
            {
                let of_kind =
                    classes.iter().enumerate().filter(|(_, class)| all.is_kind(**class, &request.kind));
                of_kind.for_each(|(idx, _)| frozen.insert(idx));
            }
        }
        frozen
    }
}

/// Whether some of the devices held are not there, or not of those asked for.
pub fn is_astray(ask: &DeviceAsk, held: DeviceSet, classes: &[u16]) -> bool {
    held.iter().any(|idx| classes.get(idx).is_none_or(|class| !ask.accepts(*class)))
}

/// Why nothing of a kind is given away though some of it may be left.
pub fn frozen_words(kind: &str) -> String {
    format!("{kind}: what runs there holds some that the node no longer has")
}
