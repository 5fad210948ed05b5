//! Free room of one node, to be tried out on.

use godel_base::ids::HoldId;
use godel_cluster::{Cluster, ShapeId, hardware::NodeHardware, shapes::Shape};
use godel_domain::allocation::{Allocation, DeviceSet};
use smallvec::SmallVec;

/// Free room of one node, to be tried out on.
#[derive(Clone, Debug)]
pub(crate) struct NodeTrial {
    pub(super) free: SmallVec<[i64; 8]>,
    hardware: NodeHardware,
}

impl NodeTrial {
    /// The room of a shape's pool as it is.
    pub(crate) fn new(cluster: &Cluster, shape: ShapeId, idx: usize) -> Self {
        let free = SmallVec::from_slice(cluster.free().room(shape).free(idx));
        Self { free, hardware: cluster.free().hardware(idx).clone() }
    }

    /// Gives back (`sign` 1) or takes (-1).
    pub(crate) fn shift(&mut self, shape: &Shape, given: Allocation, sign: i64) {
        for (id, amount) in &shape.asks {
            let free = &mut self.free[usize::from(*id)];
            *free = free.saturating_add(amount.saturating_mul(sign));
        }
        self.hardware.shift_given(shape, given, if sign > 0 { -1 } else { 1 });
    }

    /// The same of devices only.
    pub(crate) fn shift_devices(&mut self, shape: &Shape, given: DeviceSet, sign: i64) {
        self.hardware.devices.shift(given, &shape.devices, if sign > 0 { -1 } else { 1 });
    }

    /// Gives back (`sign` 1) or takes (-1) what a hold does, and those who leave for it.
    pub(super) fn shift_hold(&mut self, cluster: &Cluster, id: HoldId, sign: i64) {
        let Some((charge, victims)) = cluster.held().given_by(id) else { return };
        for (id, amount) in &charge.asks {
            let free = &mut self.free[usize::from(*id)];
            *free = free.saturating_add(amount.saturating_mul(sign));
        }
        self.hardware.shift_charge(charge, if sign > 0 { -1 } else { 1 });
        for (shape, given) in victims {
            self.shift(cluster.catalogue().shape(shape), given, sign);
        }
    }

    /// Nothing that a shape asks for is taken more than once.
    pub(super) fn is_sound(&self, shape: &Shape) -> bool {
        let is_free = |(id, _): &(u8, i64)| self.free[usize::from(*id)] >= 0;
        shape.asks.iter().all(is_free) && self.hardware.is_sound()
    }

    /// Leaves nothing free that was not free before.
    pub(super) fn cap(&mut self, before: &Self) {
        for (free, before) in self.free.iter_mut().zip(&before.free) {
            *free = (*free).min((*before).max(0));
        }
        self.hardware.cap(&before.hardware);
    }

    pub(crate) fn pick(&self, shape: &Shape) -> Option<Allocation> {
        if !shape.fits(&self.free) {
            return None;
        }
        self.hardware.pick(shape)
    }
}
