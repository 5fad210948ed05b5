//! Slots of reservations: what each keeps from those that do not own it, and who takes which.
//!
//! A slot takes its whole room while nobody is in it, and what is left of it while somebody is: whether a running unit comes
//! or goes, together they take the same. Who is in it says its record; who is about to be, whoever decides
//! ([`NodeHolds::occupy`]), until the assumption of that running unit ends. Of best-effort room a slot takes nothing: who
//! uses it meanwhile leaves when the slot is taken. A cluster without reservations pays a look at an empty map.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::ids::{HoldId, IdMap, NodeId, RunningUnitId, UnitId};
use godel_domain::{allocation::Allocation, demand::Pool, hold::Hold, reservation_spec::ReservationSpec};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    charge::Charge,
    devices::DeviceAsk,
    hardware::NodeHardware,
    holds::{Basis, HoldEntry, NodeHolds, SlotOccupant},
    shapes::{Shape, ShapeId},
    taken::TakenRoom,
};

/// Reservations that a unit owns, in order of name; mostly none.
pub type Owned = SmallVec<[Arc<ReservationSpec>; 1]>;

/// Reservations, and where their slots are.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSlots {
    /// By name.
    specs: BTreeMap<String, Arc<ReservationSpec>>,
    /// By node index; ascending.
    at: FxHashMap<usize, SmallVec<[HoldId; 2]>>,
    /// By reservation, those that nobody is in.
    free: BTreeMap<Arc<str>, BTreeSet<HoldId>>,
    /// The slot that somebody took last.
    taken: IdMap<UnitId, FxHashMap<u32, HoldId>>,
}

impl NodeSlots {
    /// Whether there is any slot.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        !self.at.is_empty()
    }

    /// Returns the slots on a node, in order of ids.
    pub(crate) fn on(&self, node: NodeId) -> impl Iterator<Item = &HoldId> {
        self.at.get(&node.idx()).into_iter().flatten()
    }

    /// Returns the reservations that a unit of a pool owns.
    pub(crate) fn owned(&self, pool: Pool, owns: impl Fn(&ReservationSpec) -> bool) -> Owned {
        if pool != Pool::Guaranteed {
            return Owned::new();
        }
        self.specs.values().filter(|spec| owns(spec)).cloned().collect()
    }

    /// Whether some running unit of a unit took a slot.
    pub(crate) fn has_of(&self, unit: UnitId) -> bool {
        self.taken.contains_key(&unit)
    }

    /// Returns the slots of a reservation that nobody is in, in order of ids.
    pub(super) fn free_of(&self, reservation: &str) -> impl Iterator<Item = &HoldId> {
        self.free.get(reservation).into_iter().flatten()
    }

    /// Returns the slot that somebody took last.
    pub(super) fn of(&self, unit: UnitId, ordinal: u32) -> Option<HoldId> {
        self.taken.get(&unit)?.get(&ordinal).copied()
    }

    /// A slot begins to be kept, and nobody is in it.
    fn insert(&mut self, id: HoldId, node: NodeId, reservation: &Arc<str>) {
        let at = self.at.entry(node.idx()).or_default();
        at.push(id);
        at.sort_unstable();
        self.free.entry(Arc::clone(reservation)).or_default().insert(id);
    }

    /// A slot is kept no longer.
    fn forget(&mut self, id: HoldId, node: NodeId, reservation: &Arc<str>) {
        if let Some(ids) = self.at.get_mut(&node.idx()) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.at.remove(&node.idx());
            }
        }
        if let Some(ids) = self.free.get_mut(reservation) {
            ids.remove(&id);
            if ids.is_empty() {
                self.free.remove(reservation);
            }
        }
    }

    /// Somebody is not the one who took a slot any more.
    fn forget_taken(&mut self, occupant: Option<SlotOccupant>, id: HoldId) {
        let Some(RunningUnitId { unit, replica }) = occupant.map(|occupant| occupant.id) else { return };
        let Some(of_unit) = self.taken.get_mut(&unit) else { return };
        if of_unit.get(&replica.ordinal) == Some(&id) {
            of_unit.remove(&replica.ordinal);
        }
        if of_unit.is_empty() {
            self.taken.remove(&unit);
        }
    }
}

impl HoldEntry {
    /// Returns what the occupant of a slot takes, as its shape and devices, if the occupant is there.
    fn occupied(&self, taken: &TakenRoom) -> Option<(ShapeId, Allocation)> {
        let (SlotOccupant { id, is_assumed }, node) = (self.occupant?, self.hold.node);
        if is_assumed {
            let assumed = taken.assumptions.get(id.unit, id.replica.ordinal)?;
            let is_it = (assumed.incarnation, assumed.node) == (id.replica.incarnation, node);
            return is_it.then_some((assumed.shape, assumed.allocation));
        }
        let row = taken.rows.remains(&id).filter(|row| row.node == node)?;
        Some((taken.rows.shape_of(id.unit, row)?, row.allocation))
    }

    /// Whether somebody is in a slot, or about to be.
    pub(super) fn is_taken(&self, taken: &TakenRoom) -> bool {
        self.occupied(taken).is_some()
    }

    /// Whether a slot is open and has all that a shape takes.
    pub(super) fn has_place_for(&self, shape: &Shape) -> bool {
        shape.pool == Pool::Guaranteed && !self.is_closed && self.hold.demand.covers(&shape.demand)
    }

    /// Returns what a slot takes now.
    fn slot_charge(&self, on: &Basis<'_>) -> Charge {
        let node = &on.free.hardware[self.hold.node.idx()].devices;
        let mut charge = Charge::whole(on.catalogue.shape(self.shape), &self.hold, node);
        if let Some((shape, allocation)) = self.occupied(on.taken) {
            charge.cover(on.catalogue.shape(shape), allocation, node);
        }
        charge.tidy()
    }

    /// Returns of what a slot keeps as many devices of each kind as a shape asks for, and the zones that it needs; `None`: they do not
    /// lie as the shape asks for. Nobody is in the slot.
    pub(super) fn allocation_for(&self, shape: &Shape, node: &NodeHardware) -> Option<Allocation> {
        if shape.is_placed {
            return node.only(&self.charge).pick(shape);
        }
        let kept = self.hold.allocation(0);
        let is_mixed = self.hold.demand.devices.len() > 1;
        let of =
            |ask: &DeviceAsk| if is_mixed { node.devices.accepted(ask, kept.devices) } else { kept.devices };
        let devices = shape.devices.iter().flat_map(|ask| of(ask).iter().take(ask.count as usize));
        Some(Allocation { devices: devices.collect(), ..kept })
    }
}

/// Who comes into slots, and who leaves them.
impl NodeHolds {
    /// Follows a reservation's record.
    pub fn put_reservation(&mut self, spec: Arc<ReservationSpec>) {
        self.slots.specs.insert(spec.name.clone(), spec);
    }

    /// Forgets a reservation's record.
    pub fn remove_reservation(&mut self, name: &str) {
        self.slots.specs.remove(name);
    }

    /// Nobody takes a slot from now on, or somebody may.
    pub fn close_slot(&mut self, id: HoldId, is_closed: bool) {
        if let Some(entry) = self.entry_mut(id) {
            entry.is_closed = is_closed;
        }
    }

    /// Somebody whose room is assumed takes a slot.
    pub(crate) fn occupy(&mut self, mut on: Basis<'_>, id: HoldId, occupant: RunningUnitId) {
        self.settle_occupant(&mut on, id, Some(SlotOccupant { id: occupant, is_assumed: true }));
    }

    /// A slot that was just kept.
    pub(super) fn begin_slot(&mut self, on: &mut Basis<'_>, id: HoldId, hold: &Hold) {
        let Some(slot) = &hold.slot else { return };
        self.slots.insert(id, hold.node, &slot.reservation);
        let occupant = slot.occupant.map(|id| SlotOccupant { id, is_assumed: false });
        self.settle_occupant(on, id, occupant);
        // Whoever owns it has more room.
        on.note_gain(hold.node.idx());
    }

    /// A slot that was just forgotten.
    pub(super) fn end_slot(&mut self, on: &mut Basis<'_>, id: HoldId, entry: &HoldEntry) {
        let Some(slot) = &entry.hold.slot else { return };
        let idx = entry.hold.node.idx();
        self.slots.forget(id, entry.hold.node, &slot.reservation);
        self.slots.forget_taken(entry.occupant, id);
        on.shift_charge(idx, entry.shape, &entry.charge, -1);
        on.note_gain(idx);
    }

    /// A running unit came or went: its slot follows.
    pub(crate) fn follow_slot(&mut self, on: &mut Basis<'_>, unit: UnitId, ordinal: u32) {
        if let Some(id) = self.slots.of(unit, ordinal) {
            self.settle_slot(on, id);
        }
    }

    /// A running unit is not about to come any more: nobody is in its slot, even should it be assumed there again.
    pub(crate) fn leave_slot(&mut self, mut on: Basis<'_>, unit: UnitId, ordinal: u32) {
        if let Some(id) = self.slots.of(unit, ordinal)
            && self.entry(id).is_some_and(|entry| !entry.is_taken(on.taken))
        {
            self.settle_occupant(&mut on, id, None);
        }
    }

    /// Running units of a unit came or went: their slots follow.
    pub(super) fn follow_slots(&mut self, on: &mut Basis<'_>, unit: UnitId) {
        let Some(of_unit) = self.slots.taken.get(&unit) else { return };
        let mut ids: Vec<HoldId> = of_unit.values().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.settle_slot(on, id));
    }

    fn settle_occupant(&mut self, on: &mut Basis<'_>, id: HoldId, occupant: Option<SlotOccupant>) {
        let occupant = occupant.filter(|occupant| !self.is_outdated(id, occupant.id));
        let Some(entry) = self.entry_mut(id) else { return };
        let before = std::mem::replace(&mut entry.occupant, occupant);
        self.slots.forget_taken(before, id);
        let mut other = None;
        if let Some(RunningUnitId { unit, replica }) = occupant.map(|occupant| occupant.id) {
            other = self.slots.taken.entry(unit).or_default().insert(replica.ordinal, id);
        }
        self.settle_slot(on, id);
        // Others chose another slot for it.
        if let Some(other) = other.filter(|other| *other != id)
            && let Some(entry) = self.entry_mut(other)
        {
            entry.occupant = None;
            self.settle_slot(on, other);
        }
    }

    /// Whether a later incarnation of a replica is in another slot. A slot's record keeps its last occupant after that has
    /// left, and in a list it may stand after the record of the slot where the replica is now.
    fn is_outdated(&self, id: HoldId, occupant: RunningUnitId) -> bool {
        let other = self.slots.of(occupant.unit, occupant.replica.ordinal).filter(|other| *other != id);
        let known = other.and_then(|other| self.entry(other)?.occupant);
        known.is_some_and(|known| known.id.replica.incarnation > occupant.replica.incarnation)
    }

    /// What a slot takes now. Nobody gains by it: it takes no less than before but for what its occupant takes.
    pub(super) fn settle_slot(&mut self, on: &mut Basis<'_>, id: HoldId) {
        let Some(entry) = self.entry(id) else { return };
        let (idx, shape, is_free) = (entry.hold.node.idx(), entry.shape, !entry.is_taken(on.taken));
        let charge = entry.slot_charge(on);
        if let Some(slot) = &entry.hold.slot {
            let reservation = Arc::clone(&slot.reservation);
            let free = self.slots.free.entry(reservation).or_default();
            let _ = if is_free { free.insert(id) } else { free.remove(&id) };
        }
        on.shift_charge(idx, shape, &charge, 1);
        if let Some(entry) = self.entry_mut(id) {
            let before = std::mem::replace(&mut entry.charge, charge);
            on.shift_charge(idx, shape, &before, -1);
        }
        on.touch(idx);
    }
}
