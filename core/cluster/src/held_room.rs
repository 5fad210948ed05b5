//! What holds and slots keep, beside the room that is free.

use godel_base::ids::{HoldId, NodeId, RunningUnitId, UnitId};
use godel_domain::{allocation::Allocation, demand::Pool, hold::Hold, reservation_spec::ReservationSpec};
use smallvec::SmallVec;

use super::{
    Cluster, Owned,
    charge::Charge,
    devices::DeviceAsk,
    fit::{is_known, no_zones},
    holds::HoldEntry,
    shapes::{Shape, ShapeId},
    shrunk::frozen_words,
    unfit::Unfit,
};

/// Running units that have yet to leave, as shapes and devices.
type Remaining = SmallVec<[(ShapeId, Allocation); 2]>;

/// Room that is held, as deciders see it.
#[derive(Clone, Copy, Debug)]
pub struct HeldRoom<'a> {
    pub(crate) cluster: &'a Cluster,
}

/// Room of holds.
impl<'a> HeldRoom<'a> {
    /// Returns what a hold takes now, and those who take the rest of its room until they have left.
    pub fn given_by(self, id: HoldId) -> Option<(&'a Charge, Remaining)> {
        let entry = self.cluster.holds.entry(id)?;
        let victims = entry.hold.victims.iter().filter_map(|victim| {
            let row = self.cluster.taken.rows.remains(victim).filter(|row| row.node == entry.hold.node)?;
            Some((self.cluster.taken.rows.shape_of(victim.unit, row)?, row.allocation))
        });
        Some((self.cluster.free.gathering.charge(id).unwrap_or(&entry.charge), victims.collect()))
    }

    /// Whether the free room of its node suffices for a hold beyond what its victims take.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_hold(self, shape: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        let Cluster { free, catalogue, taken, .. } = self.cluster;
        let Some(idx) = free.known(hold.node) else { return Err(Unfit::Gone) };
        let charge = Charge::beyond_victims(catalogue, taken, shape, hold, &free.hardware[idx].devices);
        self.fits_charge(catalogue.shape(shape), idx, &charge)
    }

    /// Whether a node has enough for all running units of a hold, free or not.
    ///
    /// # Errors
    /// What it has too little of.
    pub fn could_hold(self, id: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        let shape = self.cluster.catalogue.shape(id);
        let Some(idx) = self.cluster.free.known(hold.node) else { return Err(Unfit::Gone) };
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        is_known(shape)?;
        if shape.is_placed {
            (0..hold.ordinals.len())
                .try_for_each(|at| self.cluster.free().suits(id, hold.node, hold.allocation(at)))?;
        } else {
            hold.zones.iter().try_for_each(|zones| no_zones(*zones))?;
        }
        let allocatable = self.cluster.free.room_of(shape).allocatable(idx);
        let is_short = |(id, amount): &&(u8, i64)| amount.saturating_mul(n) > allocatable[usize::from(*id)];
        if let Some((id, _)) = shape.asks.iter().find(is_short) {
            return Err(self.cluster.catalogue.short_of(*id));
        }
        let is_short = |ask: &DeviceAsk| {
            let (accepted, _) = self.cluster.free().devices(idx).count(ask);
            i64::from(accepted).saturating_mul(ask.per_device) < n.saturating_mul(i64::from(ask.count))
        };
        if shape.devices.iter().any(is_short) {
            return Err(Unfit::Device { reason: "the node has too few".to_owned() });
        }
        Ok(())
    }

    /// Whether the free room of a node suffices for what a hold takes of it, and the node has no less than what is there
    /// already takes.
    fn fits_charge(self, shape: &Shape, idx: usize, charge: &Charge) -> Result<(), Unfit> {
        is_known(shape)?;
        if let Some(refusal) = self.shrunk_of(shape, idx) {
            return Err(refusal);
        }
        if let Some(id) = self.cluster.free.room_of(shape).shortage(idx, &charge.asks) {
            return Err(self.cluster.catalogue.short_of(id));
        }
        let node = self.cluster.free().hardware(idx);
        if !node.has_zones_for(charge) {
            return Err(Unfit::Zone { reason: "too little left of the zones for a hold".to_owned() });
        }
        for &(device, milli) in &charge.devices {
            let is_short =
                usize::from(device) >= node.devices.len() || node.devices.free(usize::from(device)) < milli;
            if is_short
                && !self.cluster.free.has_devices_beside_gathered(
                    &self.cluster.catalogue,
                    idx,
                    &charge.devices,
                )
            {
                return Err(Unfit::Device { reason: format!("device {device}: too little left for a hold") });
            }
        }
        Ok(())
    }

    /// Whether a hold has all of its room.
    pub fn has_gathered(self, id: HoldId) -> bool {
        self.cluster.free.gathering.has_all(id).unwrap_or(self.cluster.holds.get(id).is_some())
    }

    /// Returns for how many running units a hold has room.
    pub fn n_gathered(self, id: HoldId) -> usize {
        let Cluster { free, catalogue, holds, .. } = self.cluster;
        let whole = || holds.get(id).map_or(0, |hold| hold.ordinals.len());
        free.gathering.n_gathered(catalogue, &free.hardware, id).unwrap_or_else(whole)
    }
}

/// Nodes that have less than what is there takes.
impl<'a> HeldRoom<'a> {
    /// Whether a node has too little, of all that a guaranteed shape asks for, for what is committed there already, holds
    /// included: what others have yet to leave may be assumed. Occupants must be kept.
    /// `O(1)` where no more is assumed than there is, else `O(running units of the node)`.
    pub fn is_shrunk_of(self, shape: &Shape, idx: usize) -> bool {
        let Cluster { free, catalogue, taken, holds, .. } = self.cluster;
        if free.hardware[idx].devices.first_frozen(&shape.devices).is_some() {
            return true;
        }
        let Ok(node) = u32::try_from(idx).map(NodeId) else { return false };
        let allocatable = free.pools.guaranteed().allocatable(idx);
        self.overdrawn(shape, idx).any(|(id, _)| {
            let there = taken.occupants.on(node).iter().filter(|one| one.pool == Pool::Guaranteed);
            let asks = there.flat_map(|one| &catalogue.shape(one.shape).asks);
            let held = holds.charges_on(node).flat_map(|charge| &charge.asks);
            let asks = asks.chain(held).filter(|(of, _)| of == id);
            asks.fold(0i64, |sum, (_, amount)| sum.saturating_add(*amount)) > allocatable[usize::from(*id)]
        })
    }

    /// Whether less is there of some resource than is taken of it, or of devices that a shape asks for than are held.
    fn is_overfull(self, shape: ShapeId, node: NodeId) -> bool {
        self.cluster.free.known(node).is_some_and(|idx| {
            self.cluster.free.pools.guaranteed().free(idx).iter().any(|free| *free < 0)
                || self.shrunk_of(self.cluster.catalogue.shape(shape), idx).is_some()
        })
    }

    /// Returns what a node has too little of for what is there already, of all that a guaranteed shape asks for: none of it
    /// is given away there until that fits, whoever would leave. Best-effort room is often below nothing, and those above
    /// it leave by themselves. For the binder: whoever assumes more than is free sees the same.
    pub(super) fn shrunk_of(self, shape: &Shape, idx: usize) -> Option<Unfit> {
        if let Some(at) = self.cluster.free().devices(idx).first_frozen(&shape.devices) {
            return Some(Unfit::Device { reason: frozen_words(&shape.demand.devices[at].kind) });
        }
        let (id, _) = self.overdrawn(shape, idx).next()?;
        Some(self.cluster.catalogue.short_of(*id))
    }

    /// Returns of what a guaranteed shape asks for that of which a node has less than nothing left.
    fn overdrawn(self, shape: &'a Shape, idx: usize) -> impl Iterator<Item = &'a (u8, i64)> {
        let free = self.cluster.free.pools.guaranteed().free(idx);
        let asks = shape.asks.iter().filter(|_| shape.pool == Pool::Guaranteed);
        asks.filter(|(id, _)| free[usize::from(*id)] < 0)
    }
}

/// Slots of reservations.
impl HeldRoom<'_> {
    /// Whether there is any slot.
    #[inline]
    pub fn has_slots(self) -> bool {
        self.cluster.holds.slots.is_any()
    }

    /// Returns the reservations that a unit of a pool owns.
    pub fn owned(self, pool: Pool, owns: impl Fn(&ReservationSpec) -> bool) -> Owned {
        self.cluster.holds.slots.owned(pool, owns)
    }

    /// Returns the slots of some reservations that nobody is in and that have all that a shape takes, with their nodes; those
    /// of the first reservation first, then in order of ids. Says nothing of labels and taints.
    pub fn free_slots(self, owned: &Owned, shape: ShapeId) -> Vec<(HoldId, NodeId)> {
        let shape = self.cluster.catalogue.shape(shape);
        let ids = owned.iter().flat_map(|spec| self.cluster.holds.slots.free_of(&spec.name));
        let entries = ids.filter_map(|id| Some((*id, self.cluster.holds.entry(*id)?)));
        let serving = entries.filter(|(_, entry)| self.serves(entry, shape));
        serving.map(|(id, entry)| (id, entry.hold.node)).collect()
    }

    /// Returns the slot on a node that one more of a shape takes, of the first reservation that has one, and what it is given there.
    pub fn slot_on(self, owned: &Owned, shape: ShapeId, node: NodeId) -> Option<(HoldId, Allocation)> {
        let Cluster { free, catalogue, holds, .. } = self.cluster;
        let hardware = &free.hardware[free.known(node)?];
        let shape = catalogue.shape(shape);
        owned.iter().find_map(|spec| {
            let mut entries = holds.slots.on(node).filter_map(|id| Some((*id, holds.entry(*id)?)));
            entries.find_map(|(id, entry)| {
                let slot = entry.hold.slot.as_ref();
                let is_owned = slot.is_some_and(|slot| *slot.reservation == *spec.name);
                let serves = is_owned && self.serves_now(entry, shape);
                Some((id, if serves { entry.allocation_for(shape, hardware) } else { None }?))
            })
        })
    }

    /// Whether some slot of a node would do for a shape, whoever owns it.
    pub fn may_serve(self, shape: ShapeId, node: NodeId) -> bool {
        let Cluster { catalogue, holds, .. } = self.cluster;
        let mut slots = holds.slots.on(node).filter_map(|id| holds.entry(*id));
        slots.any(|slot| self.serves_now(slot, catalogue.shape(shape)))
    }

    fn serves_now(self, slot: &HoldEntry, shape: &Shape) -> bool {
        !slot.is_taken(&self.cluster.taken) && self.serves(slot, shape)
    }

    /// Whether a slot is open, and has all that a shape takes, on a node that may be used and has what is taken of it.
    fn serves(self, slot: &HoldEntry, shape: &Shape) -> bool {
        let node = slot.hold.node;
        slot.has_place_for(shape)
            && self.cluster.records.usable(node).is_ok()
            && !self.is_overfull(slot.shape, node)
    }

    /// Returns the slot that a running unit is in, or about to be.
    pub fn slot_of(self, member: &RunningUnitId) -> Option<HoldId> {
        let Cluster { holds, taken, .. } = self.cluster;
        let id = holds.slots.of(member.unit, member.replica.ordinal)?;
        let entry = holds.entry(id)?;
        (entry.occupant?.id == *member && entry.is_taken(taken)).then_some(id)
    }

    /// Returns who is in a slot, or about to be.
    pub fn occupant_of(self, id: HoldId) -> Option<RunningUnitId> {
        let entry = self.cluster.holds.entry(id)?;
        Some(entry.occupant.filter(|_| entry.is_taken(&self.cluster.taken))?.id)
    }

    /// Whether some running unit of a unit took a slot.
    pub fn is_in_slots(self, unit: UnitId) -> bool {
        self.cluster.holds.slots.has_of(unit)
    }

    /// Whether the node of a slot has what the slot keeps.
    pub fn is_sound(self, id: HoldId) -> bool {
        let Some(slot) = self.cluster.holds.entry(id) else { return false };
        let (node, kept) = (slot.hold.node, slot.hold.allocation(0));
        !self.is_overfull(slot.shape, node) && self.cluster.free().suits(slot.shape, node, kept).is_ok()
    }
}
