//! Holds: what each takes beyond the room that its victims take for it as long as they are there.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    demand::Pool,
    hold::{Hold, Member},
    ids::{HoldId, IdMap, NodeId, UnitId},
    running_units::RunningUnit,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    Cluster,
    devices::bits,
    gathering::GatheringHolds,
    room::Asks,
    shapes::{Shape, ShapeId},
    slots::NodeSlots,
};
use crate::Unfit;

/// Holds known, by committed records or under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeHolds {
    by_id: IdMap<HoldId, HoldEntry>,
    /// The hold of each victim, by its unit.
    backing: IdMap<UnitId, FxHashMap<u32, HoldId>>,
    pub(super) of_unit: IdMap<UnitId, SmallVec<[HoldId; 2]>>,
    /// The same by node.
    pub(super) on_node: FxHashMap<NodeId, SmallVec<[HoldId; 1]>>,
    /// How many preemptions' holds there are of each priority.
    pub(super) priorities: BTreeMap<i32, usize>,
    pub(super) gathering: GatheringHolds,
    pub(super) slots: NodeSlots,
}

#[derive(Clone, Debug)]
pub(super) struct HoldEntry {
    pub(super) hold: Arc<Hold>,
    pub(super) shape: ShapeId,
    pub(super) charge: Charge,
    /// It gathers, and has not all yet.
    pub(super) lacks: bool,
    /// Of a slot: who took it last, by its record or as decided here.
    pub(super) occupant: Option<SlotOccupant>,
    /// Of a slot: nobody may take it.
    pub(super) is_closed: bool,
}

/// Who is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOccupant {
    pub(super) member: Member,
    /// As decided here: as long as its room is assumed. What is bound is in a slot by the slot's record only.
    pub(super) is_assumed: bool,
}

/// What a hold takes now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    pub asks: Asks,
    /// Of best-effort room. A guaranteed hold takes all that it asks for there: its victims may keep nothing of that room,
    /// if what they use is known, and once they have left it is too late to refuse whoever came meanwhile.
    best_effort: Asks,
    /// Thousandths by device.
    pub devices: SmallVec<[(u8, i32); 4]>,
}

impl NodeHolds {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Hold> {
        self.by_id.values().map(|kept| &*kept.hold)
    }

    pub(super) fn kept(&self, id: HoldId) -> Option<&HoldEntry> {
        self.by_id.get(&id)
    }

    pub(super) fn kept_mut(&mut self, id: HoldId) -> Option<&mut HoldEntry> {
        self.by_id.get_mut(&id)
    }
}

impl Cluster {
    /// Keeps room; a hold known by its id is replaced.
    pub fn put_hold(&mut self, hold: Arc<Hold>) {
        self.remove_hold(hold.id);
        if self.node_index(hold.node).is_none() {
            return;
        }
        let shape = self.shape(&hold.demand, hold.pool);
        if self.shapes.get(shape).unknown.is_some() {
            self.amounts(&hold.demand.requests);
        }
        for victim in &hold.victims {
            self.holds.backing.entry(victim.unit).or_default().insert(victim.ordinal, hold.id);
        }
        let (id, unit, gathers) = (hold.id, hold.unit, hold.turn.as_ref().map(|_| hold.node.idx()));
        let kept = HoldEntry {
            hold: Arc::clone(&hold),
            shape,
            charge: Charge::default(),
            lacks: gathers.is_some(),
            occupant: None,
            is_closed: false,
        };
        self.holds.by_id.insert(id, kept);
        if hold.slot.is_some() {
            self.begin_slot(id, &hold);
            return;
        }
        self.holds.of_unit.entry(unit).or_default().push(id);
        self.holds.on_node.entry(hold.node).or_default().push(id);
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim()) {
            *self.holds.priorities.entry(priority).or_default() += 1;
        }
        match gathers {
            Some(idx) => self.begin_gathering(idx, id, unit),
            None => self.recharge(id),
        }
    }

    /// Gives a hold's room back.
    pub fn remove_hold(&mut self, id: HoldId) -> Option<Arc<Hold>> {
        let kept = self.holds.by_id.remove(&id)?;
        let hold = Arc::clone(&kept.hold);
        if hold.slot.is_some() {
            self.end_slot(id, &kept);
            return Some(hold);
        }
        if hold.turn.is_none() {
            self.charge((hold.node, kept.shape), &kept.charge, -1);
        }
        for victim in &hold.victims {
            let Some(of_unit) = self.holds.backing.get_mut(&victim.unit) else { continue };
            if of_unit.get(&victim.ordinal) == Some(&id) {
                of_unit.remove(&victim.ordinal);
            }
            if of_unit.is_empty() {
                self.holds.backing.remove(&victim.unit);
            }
        }
        if let Some(of_unit) = self.holds.of_unit.get_mut(&hold.unit) {
            of_unit.retain(|other| *other != id);
            if of_unit.is_empty() {
                self.holds.of_unit.remove(&hold.unit);
            }
        }
        if let Some(on_node) = self.holds.on_node.get_mut(&hold.node) {
            on_node.retain(|other| *other != id);
            if on_node.is_empty() {
                self.holds.on_node.remove(&hold.node);
            }
        }
        if let Some(priority) = hold.priority.filter(|_| hold.is_claim())
            && let Some(n) = self.holds.priorities.get_mut(&priority)
        {
            *n -= 1;
            if *n == 0 {
                self.holds.priorities.remove(&priority);
            }
        }
        if hold.turn.is_some() {
            self.end_gathering(hold.node.idx(), id, &kept);
        }
        Some(hold)
    }

    /// A hold by id.
    pub fn hold(&self, id: HoldId) -> Option<&Arc<Hold>> {
        self.holds.by_id.get(&id).map(|kept| &kept.hold)
    }

    /// Holds of a unit, in order of their ids.
    pub fn holds_of(&self, unit: UnitId) -> SmallVec<[HoldId; 2]> {
        let mut ids = self.holds.of_unit.get(&unit).cloned().unwrap_or_default();
        ids.sort_unstable();
        ids
    }

    /// Whether a unit has any hold.
    pub fn has_holds_of(&self, unit: UnitId) -> bool {
        self.holds.of_unit.contains_key(&unit)
    }

    /// Every hold, in order of ids.
    pub fn holds(&self) -> Vec<&Arc<Hold>> {
        let mut holds: Vec<_> = self.holds.by_id.values().map(|kept| &kept.hold).collect();
        holds.sort_unstable_by_key(|hold| hold.id);
        holds
    }

    /// What each takes now of best-effort room, by node.
    pub(super) fn held(&self) -> impl Iterator<Item = (NodeId, &Asks)> {
        self.holds.by_id.values().filter_map(|kept| {
            let asks = match (&kept.hold.turn, kept.hold.pool) {
                (None, _) => &kept.charge.best_effort,
                (Some(_), Pool::BestEffort) => &kept.charge.asks,
                (Some(_), Pool::Guaranteed) => return None,
            };
            Some((kept.hold.node, asks))
        })
    }

    /// What holds of the guaranteed pool take of a node that is promised to them, slots included.
    pub(super) fn charges_on(&self, node: NodeId) -> impl Iterator<Item = &Charge> {
        let ids = self.holds.on_node.get(&node).into_iter().flatten().chain(self.holds.slots.on(node));
        let kept = ids.filter_map(|id| self.holds.kept(*id));
        let promised = kept.filter(|kept| kept.hold.turn.is_none() && kept.hold.pool == Pool::Guaranteed);
        promised.map(|kept| &kept.charge)
    }

    /// Whether there is any.
    pub fn has_holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// The hold that a running unit backs.
    pub(super) fn backs(&self, unit: UnitId, ordinal: u32) -> Option<HoldId> {
        self.holds.backing.get(&unit)?.get(&ordinal).copied()
    }

    /// Whether some running unit of a unit backs a hold.
    pub fn backs_any(&self, unit: UnitId) -> bool {
        self.holds.backing.contains_key(&unit)
    }

    /// The row of a victim that still takes room.
    pub fn remains(&self, victim: &Member) -> Option<&RunningUnit> {
        let row = self.units.get(&victim.unit)?.rows.rows.get(victim.ordinal as usize)?;
        (row.phase.is_live() && row.incarnation == victim.incarnation).then_some(row)
    }

    /// Whether the free room of its node suffices for a hold beyond what its victims take.
    ///
    /// # Errors
    /// What is short.
    pub fn fits_hold(&self, shape: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        let idx = self.known(hold.node).ok_or(Unfit::Gone)?;
        if let Some(name) = &self.shapes.get(shape).unknown {
            return Err(Unfit::Resource { name: name.clone() });
        }
        if let Some(refusal) = self.shrunk_of(shape, idx) {
            return Err(refusal);
        }
        let charge = self.charge_of(shape, hold);
        if let Some(id) = self.room(shape).shortage(idx, &charge.asks) {
            return Err(Unfit::Resource { name: self.names.name(usize::from(id)).to_owned() });
        }
        let devices = &self.nodes[idx].devices;
        for &(device, milli) in &charge.devices {
            let is_short = usize::from(device) >= devices.len() || devices.free(usize::from(device)) < milli;
            if is_short && !self.has_devices_beside_gathered(idx, &charge.devices) {
                return Err(Unfit::Device { reason: format!("device {device}: too little left for a hold") });
            }
        }
        Ok(())
    }

    /// Whether devices chosen for a running unit are what its shape asks for, taken or not.
    pub fn suits(&self, shape: ShapeId, node: NodeId, mask: u64) -> Result<(), Unfit> {
        let idx = self.known(node).ok_or(Unfit::Gone)?;
        let Some(ask) = &self.shapes.get(shape).devices else {
            let refusal = || Unfit::Device { reason: "devices chosen, none asked".to_owned() };
            return if mask == 0 { Ok(()) } else { Err(refusal()) };
        };
        let classes = &self.nodes[idx].devices.classes;
        let suits = |at: usize| classes.get(at).is_some_and(|class| ask.accepts(*class));
        if mask.count_ones() == ask.count && bits(mask).all(suits) {
            return Ok(());
        }
        Err(Unfit::Device { reason: "devices chosen are not those asked for".to_owned() })
    }

    /// A running unit's row is live no longer, or live again: what its hold takes follows.
    pub(super) fn follow_victim(&mut self, unit: UnitId, ordinal: u32) {
        if let Some(id) = self.backs(unit, ordinal) {
            self.recharge(id);
        }
        self.follow_slot(unit, ordinal);
    }

    /// The same for all running units of a unit.
    pub(super) fn follow_victims(&mut self, unit: UnitId) {
        self.follow_slots(unit);
        let Some(of_unit) = self.holds.backing.get(&unit) else { return };
        let mut ids: Vec<HoldId> = of_unit.values().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().for_each(|id| self.recharge(id));
    }

    fn recharge(&mut self, id: HoldId) {
        let Some(kept) = self.holds.by_id.get(&id) else { return };
        let (node, charge) = ((kept.hold.node, kept.shape), self.charge_of(kept.shape, &kept.hold));
        if charge == kept.charge {
            return;
        }
        self.charge(node, &charge, 1);
        if let Some(kept) = self.holds.by_id.get_mut(&id) {
            let before = std::mem::replace(&mut kept.charge, charge);
            self.charge(node, &before, -1);
        }
    }

    /// What a hold takes beyond its victims, by resource and by device.
    pub(super) fn charge_of(&self, shape: ShapeId, hold: &Hold) -> Charge {
        let mut charge = Charge::whole(self.shapes.get(shape), hold);
        let whole = charge.asks.clone();
        for victim in &hold.victims {
            let Some(row) = self.remains(victim).filter(|row| row.node == hold.node) else { continue };
            let Some(takes) = self.taken_shape(victim.unit, row) else { continue };
            charge.cover(self.shapes.get(takes), row.device_mask);
        }
        let charge = charge.tidy();
        let best_effort = if hold.pool == Pool::Guaranteed { whole } else { charge.asks.clone() };
        Charge { best_effort, ..charge }
    }

    fn charge(&mut self, (node, shape): (NodeId, ShapeId), charge: &Charge, sign: i8) {
        let Some(idx) = self.known(node) else { return };
        self.shift_charge(idx, shape, charge, sign);
        if sign < 0 { self.note_gain(idx) } else { self.touch(idx) }
    }

    pub(super) fn shift_charge(&mut self, idx: usize, shape: ShapeId, charge: &Charge, sign: i8) {
        let pool = self.shapes.get(shape).pool;
        if pool == Pool::Guaranteed && !charge.asks.is_empty() {
            self.room.shift(idx, &charge.asks, i64::from(sign));
        }
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.room.shift(idx, &charge.best_effort, i64::from(sign));
        }
        for &(device, milli) in &charge.devices {
            self.nodes[idx].devices.shift(1 << device, milli, i32::from(sign));
            self.shift_holders(idx, shape, 1 << device, i32::from(sign));
        }
        if !charge.devices.is_empty() {
            self.settle_devices(idx);
        }
    }
}

impl Charge {
    /// All that a hold asks for, whoever covers it.
    pub(super) fn whole(shape: &Shape, hold: &Hold) -> Self {
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        let asks: Asks = shape.asks.iter().map(|(id, amount)| (*id, amount.saturating_mul(n))).collect();
        let mut charge = Self { asks, ..Self::default() };
        hold.device_masks.iter().for_each(|mask| charge.add_devices(*mask, shape.device_milli()));
        charge
    }

    /// Somebody takes this much of it.
    pub(super) fn cover(&mut self, takes: &Shape, mask: u64) {
        for (id, amount) in &takes.asks {
            if let Some((_, left)) = self.asks.iter_mut().find(|(known, _)| known == id) {
                *left = left.saturating_sub(*amount).max(0);
            }
        }
        for device in bits(mask) {
            if let Some((_, left)) = self.devices.iter_mut().find(|(known, _)| usize::from(*known) == device)
            {
                *left = left.saturating_sub(takes.device_milli()).max(0);
            }
        }
    }

    /// Without what is nothing.
    pub(super) fn tidy(mut self) -> Self {
        self.asks.retain(|(_, amount)| *amount > 0);
        self.devices.retain(|(_, milli)| *milli > 0);
        self
    }
}
