//! Slots of reservations: what each keeps from those that do not own it, and who takes which.
//!
//! A slot takes its whole room while nobody is in it, and what is left of it while somebody is: whether a running unit comes
//! or goes, together they take the same. Who is in it says its record; who is about to be, whoever decides
//! ([`Cluster::occupy`]), until the assumption of that running unit ends. Of best-effort room a slot takes nothing: who
//! uses it meanwhile leaves when the slot is taken. A cluster without reservations pays a look at an empty map.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_domain::{
    demand::Pool,
    hold::{Hold, Member},
    ids::{HoldId, IdMap, NodeId, UnitId},
    reservation_spec::ReservationSpec,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    Cluster,
    devices::bits,
    holds::{Charge, HoldEntry, SlotOccupant},
    shapes::ShapeId,
};

/// Reservations that a unit owns, in order of name; mostly none.
pub type Owned = SmallVec<[Arc<ReservationSpec>; 1]>;

/// Reservations, and where their slots are.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSlots {
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
    pub(super) fn on(&self, node: NodeId) -> impl Iterator<Item = &HoldId> {
        self.at.get(&node.idx()).into_iter().flatten()
    }
}

impl Cluster {
    /// A reservation's record.
    pub fn put_reservation(&mut self, spec: Arc<ReservationSpec>) {
        self.holds.slots.specs.insert(spec.name.clone(), spec);
    }

    /// A reservation's record is gone.
    pub fn remove_reservation(&mut self, name: &str) {
        self.holds.slots.specs.remove(name);
    }

    /// Whether there is any slot.
    pub fn has_slots(&self) -> bool {
        !self.holds.slots.at.is_empty()
    }

    /// Reservations that a unit owns.
    pub fn owned(&self, pool: Pool, owns: impl Fn(&ReservationSpec) -> bool) -> Owned {
        if pool != Pool::Guaranteed {
            return Owned::new();
        }
        self.holds.slots.specs.values().filter(|spec| owns(spec)).cloned().collect()
    }

    /// Slots of some reservations that nobody is in and that have all that a shape takes, with their nodes; those of the
    /// first reservation first, then in order of ids. Says nothing of labels and taints.
    pub fn free_slots(&self, owned: &Owned, shape: ShapeId) -> Vec<(HoldId, NodeId)> {
        let names = owned.iter().map(|spec| spec.name.as_str());
        let ids = names.filter_map(|name| self.holds.slots.free.get(name)).flatten();
        let serving = ids.filter_map(|id| Some((*id, self.holds.kept(*id)?)));
        let serving = serving.filter(|(_, kept)| self.serves(kept, shape));
        serving.map(|(id, kept)| (id, kept.hold.node)).collect()
    }

    /// The slot on a node that one more of a shape takes, and the devices that it gets there.
    pub fn slot_on(&self, owned: &Owned, shape: ShapeId, node: NodeId) -> Option<(HoldId, u64)> {
        let ids = self.holds.slots.at.get(&node.idx())?;
        let of = |spec: &Arc<ReservationSpec>| {
            let mut kept = ids.iter().filter_map(|id| Some((*id, self.holds.kept(*id)?)));
            kept.find(|(_, kept)| {
                let is_of = kept.hold.slot.as_ref().is_some_and(|slot| *slot.reservation == *spec.name);
                is_of && !self.is_taken(kept) && self.serves(kept, shape)
            })
        };
        let (id, kept) = owned.iter().find_map(of)?;
        let n = self.shapes.get(shape).devices.as_ref().map_or(0, |ask| ask.count as usize);
        let mask = bits(kept.hold.device_mask(0)).take(n).fold(0, |mask, device| mask | 1 << device);
        Some((id, mask))
    }

    /// Whether some slot of a node would do for a shape, whoever owns it.
    pub fn may_serve(&self, shape: ShapeId, node: NodeId) -> bool {
        let ids = self.holds.slots.at.get(&node.idx()).into_iter().flatten();
        let mut kept = ids.filter_map(|id| self.holds.kept(*id));
        kept.any(|kept| !self.is_taken(kept) && self.serves(kept, shape))
    }

    /// Somebody whose room is assumed takes a slot.
    pub fn occupy(&mut self, id: HoldId, member: Member) {
        self.settle_occupant(id, Some(SlotOccupant { member, is_assumed: true }));
    }

    /// The slot that a running unit is in, or about to be.
    pub fn slot_of(&self, member: &Member) -> Option<HoldId> {
        let id = *self.holds.slots.taken.get(&member.unit)?.get(&member.ordinal)?;
        let kept = self.holds.kept(id)?;
        (kept.occupant?.member == *member && self.is_taken(kept)).then_some(id)
    }

    /// Who is in a slot, or about to be.
    pub fn occupant_of(&self, id: HoldId) -> Option<Member> {
        let kept = self.holds.kept(id)?;
        Some(kept.occupant.filter(|_| self.is_taken(kept))?.member)
    }

    /// Nobody takes a slot from now on, or somebody may.
    pub fn close_slot(&mut self, id: HoldId, is_closed: bool) {
        if let Some(kept) = self.holds.kept_mut(id) {
            kept.is_closed = is_closed;
        }
    }

    /// Whether some running unit of a unit took a slot.
    pub fn is_in_slots(&self, unit: UnitId) -> bool {
        self.holds.slots.taken.contains_key(&unit)
    }

    /// Whether the node of a slot has what the slot keeps.
    pub fn is_sound(&self, id: HoldId) -> bool {
        let Some(kept) = self.holds.kept(id) else { return false };
        let (node, mask) = (kept.hold.node, kept.hold.device_mask(0));
        !self.is_overfull(node, kept.shape) && self.suits(kept.shape, node, mask).is_ok()
    }

    /// Less is there of some resource than is taken of it, or of devices that a shape asks for than are held.
    fn is_overfull(&self, node: NodeId, shape: ShapeId) -> bool {
        self.known(node).is_some_and(|idx| {
            self.room.free(idx).iter().any(|free| *free < 0) || self.shrunk_of(shape, idx).is_some()
        })
    }

    /// A slot that was just kept.
    pub(super) fn begin_slot(&mut self, id: HoldId, hold: &Hold) {
        let Some(slot) = &hold.slot else { return };
        let at = self.holds.slots.at.entry(hold.node.idx()).or_default();
        at.push(id);
        at.sort_unstable();
        self.holds.slots.free.entry(Arc::clone(&slot.reservation)).or_default().insert(id);
        self.settle_occupant(id, slot.occupant.map(|member| SlotOccupant { member, is_assumed: false }));
        // Whoever owns it has more room.
        self.note_gain(hold.node.idx());
    }

    /// A slot that was just forgotten.
    pub(super) fn end_slot(&mut self, id: HoldId, kept: &HoldEntry) {
        let Some(slot) = &kept.hold.slot else { return };
        let idx = kept.hold.node.idx();
        let NodeSlots { at, free, .. } = &mut self.holds.slots;
        if let Some(ids) = at.get_mut(&idx) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                at.remove(&idx);
            }
        }
        if let Some(ids) = free.get_mut(&slot.reservation) {
            ids.remove(&id);
            if ids.is_empty() {
                free.remove(&slot.reservation);
            }
        }
        self.forget_taken(kept.occupant, id);
        self.shift_charge(idx, kept.shape, &kept.charge, -1);
        self.note_gain(idx);
    }

    /// A running unit came or went: its slot follows.
    pub(super) fn follow_slot(&mut self, unit: UnitId, ordinal: u32) {
        let taken = self.holds.slots.taken.get(&unit).and_then(|of_unit| of_unit.get(&ordinal));
        if let Some(id) = taken.copied() {
            self.settle_slot(id);
        }
    }

    /// A running unit is not about to come any more: nobody is in its slot, even should it be assumed there again.
    pub(super) fn leave_slot(&mut self, unit: UnitId, ordinal: u32) {
        let taken = self.holds.slots.taken.get(&unit).and_then(|of_unit| of_unit.get(&ordinal));
        if let Some(id) = taken.copied()
            && self.holds.kept(id).is_some_and(|kept| !self.is_taken(kept))
        {
            self.settle_occupant(id, None);
        }
    }

    /// Running units of a unit came or went: their slots follow.
    pub(super) fn follow_slots(&mut self, unit: UnitId) {
        let Some(of_unit) = self.holds.slots.taken.get(&unit) else { return };
        let mut ids: Vec<HoldId> = of_unit.values().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.settle_slot(id));
    }

    fn settle_occupant(&mut self, id: HoldId, occupant: Option<SlotOccupant>) {
        let Some(kept) = self.holds.kept_mut(id) else { return };
        let before = std::mem::replace(&mut kept.occupant, occupant);
        self.forget_taken(before, id);
        let mut other = None;
        if let Some(Member { unit, ordinal, .. }) = occupant.map(|occupant| occupant.member) {
            other = self.holds.slots.taken.entry(unit).or_default().insert(ordinal, id);
        }
        self.settle_slot(id);
        // Others chose another slot for it.
        if let Some(other) = other.filter(|other| *other != id)
            && let Some(kept) = self.holds.kept_mut(other)
        {
            kept.occupant = None;
            self.settle_slot(other);
        }
    }

    fn forget_taken(&mut self, occupant: Option<SlotOccupant>, id: HoldId) {
        let Some(Member { unit, ordinal, .. }) = occupant.map(|occupant| occupant.member) else { return };
        let taken = &mut self.holds.slots.taken;
        let Some(of_unit) = taken.get_mut(&unit) else { return };
        if of_unit.get(&ordinal) == Some(&id) {
            of_unit.remove(&ordinal);
        }
        if of_unit.is_empty() {
            taken.remove(&unit);
        }
    }

    /// What a slot takes now. Nobody gains by it: it takes no less than before but for what its occupant takes.
    fn settle_slot(&mut self, id: HoldId) {
        let Some(kept) = self.holds.kept(id) else { return };
        let (idx, shape, charge) = (kept.hold.node.idx(), kept.shape, self.slot_charge(kept));
        let is_free = !self.is_taken(kept);
        if let Some(slot) = &kept.hold.slot {
            let reservation = Arc::clone(&slot.reservation);
            let free = self.holds.slots.free.entry(reservation).or_default();
            let _ = if is_free { free.insert(id) } else { free.remove(&id) };
        }
        self.shift_charge(idx, shape, &charge, 1);
        if let Some(kept) = self.holds.kept_mut(id) {
            let before = std::mem::replace(&mut kept.charge, charge);
            self.shift_charge(idx, shape, &before, -1);
        }
        self.touch(idx);
    }

    fn slot_charge(&self, kept: &HoldEntry) -> Charge {
        let mut charge = Charge::whole(self.shapes.get(kept.shape), &kept.hold);
        if let Some((shape, mask)) = self.takes(kept) {
            charge.cover(self.shapes.get(shape), mask);
        }
        charge.tidy()
    }

    fn is_taken(&self, kept: &HoldEntry) -> bool {
        self.takes(kept).is_some()
    }

    /// It is open, and sound, and has all that a shape takes.
    fn serves(&self, kept: &HoldEntry, shape: ShapeId) -> bool {
        let node = kept.hold.node;
        let asks = self.shapes.get(shape);
        asks.pool == Pool::Guaranteed
            && !kept.is_closed
            && kept.hold.demand.covers(&asks.demand)
            && self.usable(node).is_ok()
            && !self.is_overfull(node, kept.shape)
    }

    /// What the occupant of a slot takes, if it is there.
    fn takes(&self, kept: &HoldEntry) -> Option<(ShapeId, u64)> {
        let (SlotOccupant { member, is_assumed }, node) = (kept.occupant?, kept.hold.node);
        if is_assumed {
            let assumed = self.assumptions.get(member.unit, member.ordinal)?;
            let is_it = (assumed.incarnation, assumed.node) == (member.incarnation, node);
            return is_it.then_some((assumed.shape, assumed.mask));
        }
        let row = self.remains(&member).filter(|row| row.node == node)?;
        Some((self.taken_shape(member.unit, row)?, row.device_mask))
    }
}
