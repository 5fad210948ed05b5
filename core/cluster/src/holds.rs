//! Holds: what each takes beyond the room that its victims take for it as long as they are there.
//!
//! What a hold that gathers takes is known where room is free: see `gathering`.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{HoldId, IdMap, NodeId, RunningUnitId, UnitId};
use godel_domain::{demand::Pool, hold::Hold};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    catalogue::Catalogue, charge::Charge, free::FreeRoom, room::Asks, shapes::ShapeId, slots::NodeSlots,
    taken::TakenRoom,
};

/// Holds known, by committed records or under way.
#[derive(Clone, Debug, Default)]
pub struct NodeHolds {
    by_id: IdMap<HoldId, HoldEntry>,
    /// The hold of each victim, by its unit.
    backing: IdMap<UnitId, FxHashMap<u32, HoldId>>,
    of_unit: IdMap<UnitId, SmallVec<[HoldId; 2]>>,
    /// The same by node.
    on_node: FxHashMap<NodeId, SmallVec<[HoldId; 1]>>,
    /// How many preemptions' holds there are of each priority.
    priorities: BTreeMap<i32, usize>,
    pub(super) slots: NodeSlots,
}

/// A hold, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct HoldEntry {
    pub(super) hold: Arc<Hold>,
    pub(super) shape: ShapeId,
    /// What it takes now; nothing of one that gathers.
    pub(super) charge: Charge,
    /// Of a slot: who took it last, by its record or as decided here.
    pub(super) occupant: Option<SlotOccupant>,
    /// Of a slot: nobody may take it.
    pub(super) is_closed: bool,
}

/// Who is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotOccupant {
    pub(super) id: RunningUnitId,
    /// As decided here: as long as its room is assumed. What is bound is in a slot by the slot's record only.
    pub(super) is_assumed: bool,
}

/// What holds rest on: the units that take room for them, and the room that is free.
#[derive(Debug)]
pub(crate) struct Basis<'a> {
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) taken: &'a TakenRoom,
    pub(crate) free: &'a mut FreeRoom,
}

impl Basis<'_> {
    /// A hold takes what it keeps (`sign` 1) or gives it back (-1).
    pub(super) fn shift_charge(&mut self, idx: usize, shape: ShapeId, charge: &Charge, sign: i8) {
        self.free.shift_charge(self.catalogue, idx, shape, charge, sign);
    }

    /// Returns what a hold takes beyond what its victims take for it.
    fn beyond_victims(&self, shape: ShapeId, hold: &Hold) -> Charge {
        let node = &self.free.hardware[hold.node.idx()].devices;
        Charge::beyond_victims(self.catalogue, self.taken, shape, hold, node)
    }

    /// A node has changed.
    pub(super) fn touch(&mut self, idx: usize) {
        self.free.touch(self.catalogue, idx);
    }

    /// More may fit on a node than before.
    pub(super) fn note_gain(&mut self, idx: usize) {
        self.free.note_gain(self.catalogue, idx);
    }
}

/// What is held.
impl NodeHolds {
    /// Whether there is any hold, or slot.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.by_id.is_empty()
    }

    /// Returns what is known of a hold.
    pub(super) fn entry(&self, id: HoldId) -> Option<&HoldEntry> {
        self.by_id.get(&id)
    }

    /// Returns what is known of a hold, to be changed.
    pub(super) fn entry_mut(&mut self, id: HoldId) -> Option<&mut HoldEntry> {
        self.by_id.get_mut(&id)
    }

    /// Returns a hold by id.
    pub fn get(&self, id: HoldId) -> Option<&Arc<Hold>> {
        self.by_id.get(&id).map(|entry| &entry.hold)
    }

    /// Returns every hold, in order of ids.
    pub fn all(&self) -> Vec<&Arc<Hold>> {
        let mut holds: Vec<_> = self.by_id.values().map(|entry| &entry.hold).collect();
        holds.sort_unstable_by_key(|hold| hold.id);
        holds
    }

    /// Returns the holds of preemptions, in order of ids.
    pub fn claims(&self) -> Vec<&Hold> {
        let holds = self.by_id.values().map(|entry| &*entry.hold);
        let mut claims: Vec<&Hold> = holds.filter(|hold| hold.is_claim()).collect();
        claims.sort_unstable_by_key(|hold| hold.id);
        claims
    }

    /// Whether some preemption's hold is of a lower priority; `None`: of any.
    pub fn has_claims_below(&self, priority: Option<i32>) -> bool {
        let lowest = self.priorities.first_key_value();
        lowest.is_some_and(|(lowest, _)| priority.is_none_or(|priority| *lowest < priority))
    }

    /// Returns the holds of a unit, in order of ids.
    pub fn of(&self, unit: UnitId) -> SmallVec<[HoldId; 2]> {
        let mut ids = self.of_unit.get(&unit).cloned().unwrap_or_default();
        ids.sort_unstable();
        ids
    }

    /// Whether a unit has any hold.
    pub fn has_of(&self, unit: UnitId) -> bool {
        self.of_unit.contains_key(&unit)
    }

    /// Returns the holds on a node but for slots, in no order that may show.
    pub fn on(&self, node: NodeId) -> &[HoldId] {
        self.on_node.get(&node).map_or(&[], SmallVec::as_slice)
    }

    /// Whether some running unit of a unit backs a hold.
    pub fn backs_any(&self, unit: UnitId) -> bool {
        self.backing.contains_key(&unit)
    }

    /// Returns what each hold takes of best-effort room, by node; those that gather aside.
    pub(crate) fn best_effort_asks(&self) -> impl Iterator<Item = (NodeId, &Asks)> {
        let promised = self.by_id.values().filter(|entry| entry.hold.turn.is_none());
        promised.map(|entry| (entry.hold.node, &entry.charge.best_effort))
    }

    /// Returns what holds of the guaranteed pool take of a node that is promised to them, slots included.
    pub(crate) fn charges_on(&self, node: NodeId) -> impl Iterator<Item = &Charge> {
        let ids = self.on(node).iter().chain(self.slots.on(node));
        let entries = ids.filter_map(|id| self.by_id.get(id));
        let promised =
            entries.filter(|entry| entry.hold.turn.is_none() && entry.hold.pool == Pool::Guaranteed);
        promised.map(|entry| &entry.charge)
    }
}

/// Holds come and go, and those that back them do.
impl NodeHolds {
    /// Keeps room for a hold that is not known yet.
    pub(crate) fn put(&mut self, mut on: Basis<'_>, hold: Arc<Hold>, shape: ShapeId) {
        for victim in &hold.victims {
            self.backing.entry(victim.unit).or_default().insert(victim.replica.ordinal, hold.id);
        }
        let id = hold.id;
        let entry = HoldEntry {
            hold: Arc::clone(&hold),
            shape,
            charge: Charge::default(),
            occupant: None,
            is_closed: false,
        };
        self.by_id.insert(id, entry);
        if hold.slot.is_some() {
            self.begin_slot(&mut on, id, &hold);
            return;
        }
        self.of_unit.entry(hold.unit).or_default().push(id);
        self.on_node.entry(hold.node).or_default().push(id);
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim()) {
            *self.priorities.entry(priority).or_default() += 1;
        }
        if hold.turn.is_some() {
            on.free.begin_gathering(on.catalogue, hold, shape);
        } else {
            self.recharge(&mut on, id);
        }
    }

    /// Gives a hold's room back.
    pub(crate) fn remove(&mut self, mut on: Basis<'_>, id: HoldId) -> Option<Arc<Hold>> {
        let entry = self.by_id.remove(&id)?;
        let hold = Arc::clone(&entry.hold);
        if hold.slot.is_some() {
            self.end_slot(&mut on, id, &entry);
            return Some(hold);
        }
        if hold.turn.is_none() {
            charge(&mut on, hold.node, entry.shape, &entry.charge, -1);
        }
        for victim in &hold.victims {
            let Some(of_unit) = self.backing.get_mut(&victim.unit) else { continue };
            if of_unit.get(&victim.replica.ordinal) == Some(&id) {
                of_unit.remove(&victim.replica.ordinal);
            }
            if of_unit.is_empty() {
                self.backing.remove(&victim.unit);
            }
        }
        if let Some(of_unit) = self.of_unit.get_mut(&hold.unit) {
            of_unit.retain(|other| *other != id);
            if of_unit.is_empty() {
                self.of_unit.remove(&hold.unit);
            }
        }
        if let Some(on_node) = self.on_node.get_mut(&hold.node) {
            on_node.retain(|other| *other != id);
            if on_node.is_empty() {
                self.on_node.remove(&hold.node);
            }
        }
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim())
            && let Some(n) = self.priorities.get_mut(&priority)
        {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&priority);
            }
        }
        if hold.turn.is_some() {
            on.free.end_gathering(on.catalogue, id);
        }
        Some(hold)
    }

    /// A running unit's row is live no longer, or live again: what its hold takes follows.
    pub(crate) fn follow_victim(&mut self, on: &mut Basis<'_>, unit: UnitId, ordinal: u32) {
        if let Some(id) = self.backing.get(&unit).and_then(|of_unit| of_unit.get(&ordinal)) {
            self.recharge(on, *id);
        }
        self.follow_slot(on, unit, ordinal);
    }

    /// The rows of a unit are others than before: what the holds that they back take follows.
    pub(crate) fn follow_victims(&mut self, mut on: Basis<'_>, unit: UnitId) {
        self.follow_slots(&mut on, unit);
        let Some(of_unit) = self.backing.get(&unit) else { return };
        let mut ids: Vec<HoldId> = of_unit.values().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().for_each(|id| self.recharge(&mut on, id));
    }

    /// Takes no account of some holds until [`Self::settle_lifted`] of the same ones. Slots stay. Nothing that is lifted
    /// counts as room given back: whoever is parked is not woken by somebody who only looks.
    pub(crate) fn lift(&mut self, mut on: Basis<'_>, ids: &[HoldId]) {
        if on.free.gathering.is_any() && !ids.is_empty() {
            // Who gathers there does not take what is lifted meanwhile.
            on.free.gathering.lift();
        }
        for id in ids {
            let Some(entry) = self.by_id.get_mut(id).filter(|entry| entry.hold.slot.is_none()) else {
                continue;
            };
            if entry.hold.turn.is_some() {
                on.free.lift_gathering(on.catalogue, *id);
                continue;
            }
            let (idx, shape, charge) =
                (entry.hold.node.idx(), entry.shape, std::mem::take(&mut entry.charge));
            on.shift_charge(idx, shape, &charge, -1);
            on.touch(idx);
        }
    }

    /// Holds that were lifted count again: those that gather take what is free then, the others all that they did.
    pub(crate) fn settle_lifted(&mut self, mut on: Basis<'_>, ids: &[HoldId]) {
        for id in ids {
            let is_promised = |hold: &Hold| hold.slot.is_none() && hold.turn.is_none();
            let Some(entry) = self.by_id.get_mut(id).filter(|entry| is_promised(&entry.hold)) else {
                continue;
            };
            let idx = entry.hold.node.idx();
            entry.charge = on.beyond_victims(entry.shape, &entry.hold);
            on.shift_charge(idx, entry.shape, &entry.charge, 1);
            on.touch(idx);
        }
        if on.free.gathering.is_any() && !ids.is_empty() {
            on.free.settle_lifted(on.catalogue);
        }
    }

    /// A node has other devices: what holds of several kinds take of each follows.
    pub(crate) fn follow_devices(&mut self, mut on: Basis<'_>, node: NodeId) {
        let ids = self.on(node).iter().chain(self.slots.on(node)).copied();
        let is_mixed = |id: &HoldId| {
            self.by_id.get(id).is_some_and(|entry| on.catalogue.shape(entry.shape).devices.len() > 1)
        };
        let ids: Vec<HoldId> = ids.filter(is_mixed).collect();
        for id in ids {
            if self.get(id).is_some_and(|hold| hold.slot.is_some()) {
                self.settle_slot(&mut on, id);
            } else {
                self.recharge(&mut on, id);
            }
        }
    }

    fn recharge(&mut self, on: &mut Basis<'_>, id: HoldId) {
        // What gathers takes what is free, whoever leaves.
        let Some(entry) = self.by_id.get_mut(&id).filter(|entry| entry.hold.turn.is_none()) else { return };
        let (node, shape) = (entry.hold.node, entry.shape);
        let now = on.beyond_victims(shape, &entry.hold);
        if now == entry.charge {
            return;
        }
        charge(on, node, shape, &now, 1);
        let before = std::mem::replace(&mut entry.charge, now);
        charge(on, node, shape, &before, -1);
    }
}

/// A hold takes this of a node (`sign` 1) or gives it back, for others to have (-1).
fn charge(on: &mut Basis<'_>, node: NodeId, shape: ShapeId, charge: &Charge, sign: i8) {
    let Some(idx) = on.free.known(node) else { return };
    on.shift_charge(idx, shape, charge, sign);
    if sign < 0 { on.note_gain(idx) } else { on.touch(idx) }
}
