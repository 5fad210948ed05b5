//! Nodes that have come to have less than what is there takes: what is short is given to nobody until it fits.
//!
//! Resources show it by themselves: less than nothing of them is free. A device that is gone, or that has become another
//! one, does not, as devices are told apart: who holds which is kept for each node, and as long as somebody holds one that
//! is not there, or not of those that it asked for, the devices of that kind that are left count as not free.

use godel_domain::{demand::Pool, ids::NodeId};

use super::{
    Cluster,
    devices::{DeviceAsk, DeviceClasses, bits},
    shapes::{Shape, ShapeId, Shapes},
    unfit::Unfit,
};

/// Who holds devices of one node: what they asked for, which ones they hold, and how many hold the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders(Vec<(ShapeId, u64, i32)>);

impl Holders {
    /// One more (`sign` 1) or one less (-1).
    pub(crate) fn shift(&mut self, shape: ShapeId, mask: u64, sign: i32) {
        let same = |(of, held, _): &(ShapeId, u64, i32)| (*of, *held) == (shape, mask);
        match self.0.iter().position(same) {
            Some(at) => {
                self.0[at].2 += sign;
                if self.0[at].2 == 0 {
                    self.0.swap_remove(at);
                }
            }
            None => self.0.push((shape, mask, sign)),
        }
    }

    /// Devices of every kind of which somebody holds one that the node no longer has, or that has become another one than
    /// was asked for: of such a kind the node gives nothing away until those have ended.
    pub(crate) fn frozen(&self, classes: &[u16], all: &DeviceClasses, shapes: &Shapes) -> u64 {
        let mut frozen = 0;
        for (shape, mask, _) in &self.0 {
            let shape = shapes.get(*shape);
            if let (Some(ask), Some(request)) = (&shape.devices, &shape.demand.devices)
                && is_astray(ask, *mask, classes)
            {
                let of_kind =
                    classes.iter().enumerate().filter(|(_, class)| all.is_kind(**class, &request.kind));
                frozen |= of_kind.fold(0, |mask, (idx, _)| mask | 1 << idx);
            }
        }
        frozen
    }
}

/// Whether some of the devices held are not there, or not of those asked for.
pub fn is_astray(ask: &DeviceAsk, mask: u64, classes: &[u16]) -> bool {
    bits(mask).any(|idx| classes.get(idx).is_none_or(|class| !ask.accepts(*class)))
}

/// Why nothing of a kind is given away though some of it may be left.
pub fn frozen_words(kind: &str) -> String {
    format!("{kind}: what runs there holds some that the node no longer has")
}

impl Cluster {
    /// What a node has too little of for what is there already, of all that a guaranteed shape asks for: none of it is
    /// given away there until that fits, whoever would leave. Best-effort room is often below nothing, and those above it
    /// leave by themselves. For the binder: whoever assumes more than is free sees the same.
    pub(crate) fn shrunk_of(&self, shape: ShapeId, idx: usize) -> Option<Unfit> {
        let shape = self.shapes.get(shape);
        if let (Some(ask), Some(request)) = (&shape.devices, &shape.demand.devices)
            && self.nodes[idx].devices.is_frozen(ask)
        {
            return Some(Unfit::Device { reason: frozen_words(&request.kind) });
        }
        let (id, _) = self.overdrawn(shape, idx).next()?;
        Some(Unfit::Resource { name: self.names.name(usize::from(*id)).to_owned() })
    }

    /// The same by what is committed alone, holds included, for those that assume what others have yet to leave. Occupants
    /// must be kept.
    /// `O(1)` where no more is assumed than there is, else `O(running units of the node)`.
    pub fn is_shrunk_of(&self, shape: &Shape, idx: usize) -> bool {
        if shape.devices.as_ref().is_some_and(|ask| self.nodes[idx].devices.is_frozen(ask)) {
            return true;
        }
        let Ok(node) = u32::try_from(idx).map(NodeId) else { return false };
        let allocatable = self.room.allocatable(idx);
        self.overdrawn(shape, idx).any(|(id, _)| {
            let there = self.occupants(node).iter().filter(|one| one.pool == Pool::Guaranteed);
            let asks = there.flat_map(|one| &self.shapes.get(one.shape).asks);
            let held = self.charges_on(node).flat_map(|charge| &charge.asks);
            let asks = asks.chain(held).filter(|(of, _)| of == id);
            asks.fold(0i64, |sum, (_, amount)| sum.saturating_add(*amount)) > allocatable[usize::from(*id)]
        })
    }

    /// Of what a guaranteed shape asks for that of which a node has less than nothing left.
    fn overdrawn<'a>(&'a self, shape: &'a Shape, idx: usize) -> impl Iterator<Item = &'a (u8, i64)> {
        let free = self.room.free(idx);
        let asks = shape.asks.iter().filter(|_| shape.pool == Pool::Guaranteed);
        asks.filter(|(id, _)| free[usize::from(*id)] < 0)
    }

    /// Devices of a node are what they are now: those that somebody holds may be others, or gone.
    pub(super) fn settle_frozen(&mut self, idx: usize) {
        let node = &mut self.nodes[idx];
        let frozen = node.holders.frozen(&node.devices.classes, &self.classes, &self.shapes);
        node.devices.freeze(frozen);
    }

    /// Devices of a node are held by one more (`sign` 1) or one less (-1).
    pub(super) fn shift_holders(&mut self, idx: usize, shape: ShapeId, mask: u64, sign: i32) {
        let node = &mut self.nodes[idx];
        node.holders.shift(shape, mask, sign);
        let ask = self.shapes.get(shape).devices.as_ref();
        if ask.is_some_and(|ask| is_astray(ask, mask, &node.devices.classes)) {
            self.settle_frozen(idx);
        }
    }
}
