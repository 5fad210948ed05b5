//! Holds that gather: of a gang's room on a node they take what is free, and what becomes free, until they have all of it.
//!
//! Such a hold promises nothing but that nobody else gets this room first. What it takes follows from what is free on its
//! node without it, so it is settled again with every change of the node, and gives way where a node shrinks. A cluster in
//! which nobody gathers pays one look at an empty map per change.
//!
//! Amounts say nothing of zones and links: of running units that have to lie somewhere on their node the hold says which zones and devices
//! each of them will have, and these are gathered, each zone as far as it is free. Cores of a zone are as good as others of it.

use std::sync::Arc;

use godel_base::ids::{HoldId, IdMap, NodeId, UnitId};
use godel_domain::{
    demand::Pool,
    hold::{Borrower, Hold},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    catalogue::Catalogue, charge::Charge, devices::DeviceAsk, free::FreeRoom, hardware::NodeHardware,
    room::Asks, shapes::ShapeId,
};

/// What is known of holds that gather.
#[derive(Clone, Debug, Default)]
pub struct GatheringHolds {
    by_id: IdMap<HoldId, GatheringHold>,
    /// By node index; ascending.
    at: FxHashMap<usize, SmallVec<[HoldId; 1]>>,
    /// By unit: how many of its holds lack something; none is 0.
    n_lacking: IdMap<UnitId, usize>,
    /// Nothing is settled while some are lifted.
    is_lifted: bool,
    /// All of some unit's have what they need, since this was asked last.
    is_met: bool,
}

/// A hold that gathers.
#[derive(Clone, Debug)]
struct GatheringHold {
    hold: Arc<Hold>,
    shape: ShapeId,
    /// What it has.
    charge: Charge,
    /// It does not have all that it needs.
    lacks: bool,
}

impl GatheringHold {
    /// Returns how many running units it is for.
    fn n(&self) -> i64 {
        i64::try_from(self.hold.ordinals.len()).unwrap_or(i64::MAX)
    }
}

impl GatheringHolds {
    /// Whether somebody gathers room.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.at.is_empty()
    }

    /// Whether all of some unit's holds have what they need, since [`Self::take_met`].
    pub fn is_met(&self) -> bool {
        self.is_met
    }

    /// Returns [`Self::is_met`], which is false from then on.
    pub fn take_met(&mut self) -> bool {
        std::mem::take(&mut self.is_met)
    }

    /// Whether a hold that gathers has all that it needs; `None` if there is no such hold.
    pub(crate) fn has_all(&self, id: HoldId) -> Option<bool> {
        self.by_id.get(&id).map(|entry| !entry.lacks)
    }

    /// Returns what a hold that gathers has.
    pub(crate) fn charge(&self, id: HoldId) -> Option<&Charge> {
        self.by_id.get(&id).map(|entry| &entry.charge)
    }

    /// Returns for how many running units a hold that gathers has room; `None` if there is no such hold. `hardware` is that of
    /// all nodes.
    pub(super) fn n_gathered(
        &self,
        catalogue: &Catalogue,
        hardware: &[NodeHardware],
        id: HoldId,
    ) -> Option<usize> {
        let entry = self.by_id.get(&id)?;
        let n_needed = entry.hold.ordinals.len();
        if !entry.lacks {
            return Some(n_needed);
        }
        let shape = catalogue.shape(entry.shape);
        let asks = shape.asks.iter().filter(|(_, amount)| *amount > 0);
        let resources = asks.map(|(id, amount)| entry.charge.amount(*id) / amount);
        let devices = shape.devices.iter().map(|ask| {
            let milli = entry.charge.milli_for(shape, ask, &hardware[entry.hold.node.idx()].devices);
            milli / (i64::from(ask.count) * i64::from(ask.milli)).max(1)
        });
        let n = resources.chain(devices).min().unwrap_or(0);
        // Where amounts suffice zones or links are what is lacking.
        let n_most = if shape.is_placed { n_needed.saturating_sub(1) } else { n_needed };
        Some(usize::try_from(n).unwrap_or(0).min(n_most))
    }

    /// Whether another unit of a pool gathers room on a node.
    pub fn gathers_beside(&self, unit: UnitId, pool: Pool, node: NodeId) -> bool {
        self.on(node.idx()).any(|entry| entry.hold.unit != unit && entry.hold.pool == pool)
    }

    /// Whether a unit may take some of what is gathered.
    pub fn admits(&self, borrower: &Borrower) -> bool {
        let mut ids = self.at.values().flatten();
        ids.any(|id| self.by_id.get(id).is_some_and(|entry| entry.hold.admits(borrower)))
    }

    /// Returns what is gathered of best-effort room, by node.
    pub(crate) fn best_effort_asks(&self) -> impl Iterator<Item = (NodeId, &Asks)> {
        let of_pool = self.by_id.values().filter(|entry| entry.hold.pool == Pool::BestEffort);
        of_pool.map(|entry| (entry.hold.node, &entry.charge.asks))
    }

    /// Nothing is settled until [`FreeRoom::settle_lifted`].
    pub(crate) fn lift(&mut self) {
        self.is_lifted = true;
    }

    fn on(&self, idx: usize) -> impl Iterator<Item = &GatheringHold> {
        self.at.get(&idx).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    /// A hold has this from now on. Returns what it had before.
    fn replace(&mut self, id: HoldId, charge: Charge, lacks: bool) -> Option<Charge> {
        let entry = self.by_id.get_mut(&id)?;
        let before = std::mem::replace(&mut entry.charge, charge);
        let (unit, lacked) = (entry.hold.unit, std::mem::replace(&mut entry.lacks, lacks));
        self.count(unit, lacked, lacks);
        Some(before)
    }

    fn count(&mut self, unit: UnitId, lacked: bool, lacks: bool) {
        let n = self.n_lacking.entry(unit).or_default();
        *n = n.saturating_add(usize::from(lacks)).saturating_sub(usize::from(lacked));
        if *n == 0 {
            self.is_met = true;
            self.n_lacking.remove(&unit);
        }
    }

    fn insert(&mut self, hold: Arc<Hold>, shape: ShapeId) {
        let (id, unit, idx) = (hold.id, hold.unit, hold.node.idx());
        let at = self.at.entry(idx).or_default();
        at.push(id);
        at.sort_unstable();
        self.by_id.insert(id, GatheringHold { hold, shape, charge: Charge::default(), lacks: true });
        self.count(unit, false, true);
    }

    fn remove(&mut self, id: HoldId) -> Option<GatheringHold> {
        let entry = self.by_id.remove(&id)?;
        let (idx, unit) = (entry.hold.node.idx(), entry.hold.unit);
        if let Some(ids) = self.at.get_mut(&idx) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.at.remove(&idx);
            }
        }
        if let Some(n) = self.n_lacking.get_mut(&unit).filter(|_| entry.lacks) {
            *n -= 1;
            if *n == 0 {
                self.n_lacking.remove(&unit);
            }
        }
        Some(entry)
    }
}

/// What gathers takes room as others do.
impl FreeRoom {
    /// A hold begins to gather.
    pub(crate) fn begin_gathering(&mut self, catalogue: &Catalogue, hold: Arc<Hold>, shape: ShapeId) {
        let idx = hold.node.idx();
        self.gathering.insert(hold, shape);
        self.touch(catalogue, idx);
    }

    /// A hold gathers no longer; what it had is free.
    pub(crate) fn end_gathering(&mut self, catalogue: &Catalogue, id: HoldId) {
        let Some(entry) = self.gathering.remove(id) else { return };
        let idx = entry.hold.node.idx();
        self.shift_gathered(idx, entry.hold.pool, &entry.charge, -1);
        self.note_gain(catalogue, idx);
    }

    /// Takes no account of what a unit may enter, on one node or on all, until [`Self::settle_lifted`]. False, and without
    /// effect, if there is nothing of the kind.
    pub(crate) fn lift_admitting(
        &mut self,
        catalogue: &Catalogue,
        borrower: &Borrower,
        only: Option<NodeId>,
    ) -> bool {
        let GatheringHolds { by_id, at, .. } = &self.gathering;
        let mut ids: Vec<HoldId> = match only {
            Some(node) => at.get(&node.idx()).into_iter().flatten().copied().collect(),
            None => at.values().flatten().copied().collect(),
        };
        ids.retain(|id| by_id.get(id).is_some_and(|entry| entry.hold.admits(borrower)));
        self.gathering.is_lifted |= !ids.is_empty();
        for id in &ids {
            self.lift_gathering(catalogue, *id);
        }
        !ids.is_empty()
    }

    /// What a hold that gathers has is free until it is settled again.
    pub(crate) fn lift_gathering(&mut self, catalogue: &Catalogue, id: HoldId) {
        let Some(entry) = self.gathering.by_id.get_mut(&id) else { return };
        let (idx, pool, charge) = (entry.hold.node.idx(), entry.hold.pool, std::mem::take(&mut entry.charge));
        self.shift_gathered(idx, pool, &charge, -1);
        self.touch(catalogue, idx);
    }

    /// Holds that were lifted take again what is free.
    pub(crate) fn settle_lifted(&mut self, catalogue: &Catalogue) {
        self.gathering.is_lifted = false;
        let mut nodes: Vec<usize> = self.gathering.at.keys().copied().collect();
        nodes.sort_unstable();
        for idx in nodes {
            self.touch(catalogue, idx);
        }
    }

    /// What is free on a node has changed: those that gather there take what they may.
    #[cold]
    pub(crate) fn settle_gathered(&mut self, catalogue: &Catalogue, idx: usize) {
        if self.gathering.is_lifted {
            return;
        }
        let Some(ids) = self.gathering.at.get(&idx).cloned() else { return };
        for id in ids {
            let Some(entry) = self.gathering.by_id.get(&id) else { continue };
            let (charge, lacks) = self.gathers(catalogue, idx, entry);
            if charge == entry.charge && lacks == entry.lacks {
                continue;
            }
            let pool = entry.hold.pool;
            self.shift_gathered(idx, pool, &charge, 1);
            if let Some(before) = self.gathering.replace(id, charge, lacks) {
                self.shift_gathered(idx, pool, &before, -1);
            }
        }
    }

    /// What a hold takes of what is free without it, and whether it lacks something then.
    fn gathers(&self, catalogue: &Catalogue, idx: usize, entry: &GatheringHold) -> (Charge, bool) {
        let shape = catalogue.shape(entry.shape);
        let free = self.room_of(shape).free(idx);
        let (mut charge, mut lacks) = (Charge::default(), shape.unknown.is_some());
        for (id, amount) in &shape.asks {
            let need = amount.saturating_mul(entry.n());
            let own = entry.charge.amount(*id);
            let has = free[usize::from(*id)].saturating_add(own).clamp(0, need.max(0));
            lacks |= has < need;
            if has > 0 {
                charge.asks.push((*id, has));
            }
        }
        if shape.is_placed {
            let mut node = self.hardware[idx].clone();
            node.shift_charge(&entry.charge, -1);
            let whole = Charge::whole(shape, &entry.hold, &node.devices);
            lacks |= charge.take_free(&whole, &node);
        } else if !shape.devices.is_empty() {
            let mut node = self.hardware[idx].clone();
            node.shift_charge(&entry.charge, -1);
            lacks |= charge.choose_devices(&mut node.devices, &shape.devices, entry.n());
        }
        (charge, lacks)
    }

    /// Whether a node has the devices of a hold if those that gather there choose theirs again, and none gets less than it
    /// has.
    pub(crate) fn has_devices_beside_gathered(
        &self,
        catalogue: &Catalogue,
        idx: usize,
        devices: &[(u8, i32)],
    ) -> bool {
        if !self.gathering.at.contains_key(&idx) {
            return false;
        }
        let mut left = self.hardware[idx].clone();
        self.gathering.on(idx).for_each(|entry| left.shift_charge(&entry.charge, -1));
        for &(device, milli) in devices {
            if usize::from(device) >= left.devices.len() || left.devices.free(usize::from(device)) < milli {
                return false;
            }
            left.devices.shift_one(usize::from(device), milli, 1);
        }
        self.gathering.on(idx).all(|entry| {
            let mut charge = Charge::default();
            let shape = catalogue.shape(entry.shape);
            if shape.is_placed {
                // It has chosen for good.
                charge.take_free(&entry.charge, &left);
                left.shift_charge(&charge, 1);
            } else {
                charge.choose_devices(&mut left.devices, &shape.devices, entry.n());
            }
            let has_all = |ask: &DeviceAsk| {
                charge.milli_for(shape, ask, &left.devices)
                    >= entry.charge.milli_for(shape, ask, &left.devices)
            };
            shape.devices.iter().all(has_all)
        })
    }

    fn shift_gathered(&mut self, idx: usize, pool: Pool, charge: &Charge, sign: i8) {
        self.pools.shift_gathered(idx, pool, &charge.asks, i64::from(sign));
        self.hardware[idx].shift_charge(charge, i32::from(sign));
        if !charge.devices.is_empty() {
            self.settle_devices(idx);
        }
    }
}
