//! Holds that gather: of a gang's room on a node they take what is free, and what becomes free, until they have all of it.
//!
//! Such a hold promises nothing but that nobody else gets this room first. What it takes follows from what is free on its
//! node without it, so it is settled anew with every change of the node, and gives way where a node shrinks. A cluster in
//! which nobody gathers pays one look at an empty map per change.

use godel_domain::{
    demand::Pool,
    hold::{Borrower, Hold},
    ids::{HoldId, IdMap, NodeId, UnitId},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    Cluster,
    devices::{DeviceAsk, NodeDevices, bits},
    holds::{Charge, HoldEntry},
    shapes::ShapeId,
    unfit::Unfit,
};

/// What is known of holds that gather.
#[derive(Clone, Debug, Default)]
pub(super) struct GatheringHolds {
    /// By node index; ascending.
    at: FxHashMap<usize, SmallVec<[HoldId; 1]>>,
    /// By unit: holds that lack something.
    n_lacking: IdMap<UnitId, usize>,
    /// Nothing is settled while some are lifted.
    is_lifted: bool,
    /// All of some unit's have what they need, since this was asked last.
    is_met: bool,
}

impl GatheringHolds {
    /// Nothing is settled until [`Cluster::settle_lifted`].
    pub(super) fn lift(&mut self) {
        self.is_lifted = true;
    }

    fn lacks(&mut self, unit: UnitId, lacked: bool, lacks: bool) {
        let n = self.n_lacking.entry(unit).or_default();
        *n = n.saturating_add(usize::from(lacks)).saturating_sub(usize::from(lacked));
        self.is_met |= *n == 0;
    }
}

impl Cluster {
    /// Whether somebody gathers room.
    pub fn is_gathering(&self) -> bool {
        !self.holds.gathering.at.is_empty()
    }

    /// All of a unit's gathering holds have what they need, for some unit, since this was asked last.
    pub fn is_gathered(&self) -> bool {
        self.holds.gathering.is_met
    }

    /// The same, asked and answered.
    pub fn take_gathered(&mut self) -> bool {
        std::mem::take(&mut self.holds.gathering.is_met)
    }

    /// Whether a hold that gathers has all of its room.
    pub fn has_gathered(&self, id: HoldId) -> bool {
        self.holds.kept(id).is_some_and(|kept| !kept.lacks)
    }

    /// Running units for which a hold that gathers has room.
    pub fn n_gathered(&self, id: HoldId) -> usize {
        let Some(kept) = self.holds.kept(id) else { return 0 };
        if !kept.lacks {
            return kept.hold.ordinals.len();
        }
        let shape = self.shapes.get(kept.shape);
        let of = |id: &u8| kept.charge.asks.iter().find(|(known, _)| known == id).map_or(0, |(_, has)| *has);
        let resources =
            shape.asks.iter().filter(|(_, amount)| *amount > 0).map(|(id, amount)| of(id) / amount);
        let devices = shape.devices.as_ref().map(|ask| {
            let has: i64 = kept.charge.devices.iter().map(|(_, milli)| i64::from(*milli)).sum();
            has / (i64::from(ask.count) * i64::from(ask.milli)).max(1)
        });
        let n = resources.chain(devices).min().unwrap_or(0);
        usize::try_from(n).unwrap_or(0).min(kept.hold.ordinals.len())
    }

    /// Whether a node has enough for so many of a shape, free or not.
    ///
    /// # Errors
    /// What it has too little of.
    pub fn could_hold(&self, shape: ShapeId, hold: &Hold) -> Result<(), Unfit> {
        let idx = self.known(hold.node).ok_or(Unfit::Gone)?;
        let shape = self.shapes.get(shape);
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        if let Some(name) = &shape.unknown {
            return Err(Unfit::Resource { name: name.clone() });
        }
        let allocatable = self.room_of(shape).allocatable(idx);
        let is_short = |(id, amount): &&(u8, i64)| amount.saturating_mul(n) > allocatable[usize::from(*id)];
        if let Some((id, _)) = shape.asks.iter().find(is_short) {
            return Err(Unfit::Resource { name: self.resource_name(*id).to_owned() });
        }
        let Some(ask) = &shape.devices else { return Ok(()) };
        let (accepted, _) = self.nodes[idx].devices.count(ask);
        if i64::from(accepted).saturating_mul(ask.per_device) < n.saturating_mul(i64::from(ask.count)) {
            return Err(Unfit::Device { reason: "the node has too few".to_owned() });
        }
        Ok(())
    }

    /// Whether a unit may take some of what is gathered.
    pub fn admits(&self, borrower: &Borrower) -> bool {
        let mut ids = self.holds.gathering.at.values().flatten();
        ids.any(|id| self.holds.kept(*id).is_some_and(|kept| kept.hold.admits(borrower)))
    }

    /// Takes no account of what a unit may enter, on one node or on all, until [`Self::settle_lifted`]. False, and without
    /// effect, if there is nothing of the kind.
    pub fn lift_gathered(&mut self, borrower: &Borrower, only: Option<NodeId>) -> bool {
        let at = &self.holds.gathering.at;
        let mut ids: Vec<HoldId> = match only {
            Some(node) => at.get(&node.idx()).into_iter().flatten().copied().collect(),
            None => at.values().flatten().copied().collect(),
        };
        ids.retain(|id| self.holds.kept(*id).is_some_and(|kept| kept.hold.admits(borrower)));
        self.holds.gathering.is_lifted |= !ids.is_empty();
        for id in &ids {
            let Some(kept) = self.holds.kept_mut(*id) else { continue };
            let (idx, pool, charge) =
                (kept.hold.node.idx(), kept.hold.pool, std::mem::take(&mut kept.charge));
            self.shift_gathered(idx, pool, &charge, -1);
            self.touch(idx);
        }
        !ids.is_empty()
    }

    /// Holds that were lifted take again what is free.
    pub fn settle_lifted(&mut self) {
        self.holds.gathering.is_lifted = false;
        let mut nodes: Vec<usize> = self.holds.gathering.at.keys().copied().collect();
        nodes.sort_unstable();
        for idx in nodes {
            self.touch(idx);
        }
    }

    /// A hold begins to gather.
    pub(super) fn begin_gathering(&mut self, idx: usize, id: HoldId, unit: UnitId) {
        let at = self.holds.gathering.at.entry(idx).or_default();
        at.push(id);
        at.sort_unstable();
        self.holds.gathering.lacks(unit, false, true);
        self.touch(idx);
    }

    /// A hold does so no longer; what it had is free.
    pub(super) fn end_gathering(&mut self, idx: usize, id: HoldId, kept: &HoldEntry) {
        let GatheringHolds { at, n_lacking, .. } = &mut self.holds.gathering;
        if let Some(ids) = at.get_mut(&idx) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                at.remove(&idx);
            }
        }
        if let Some(n) = n_lacking.get_mut(&kept.hold.unit) {
            *n = n.saturating_sub(usize::from(kept.lacks));
        }
        if !self.holds.of_unit.contains_key(&kept.hold.unit) {
            self.holds.gathering.n_lacking.remove(&kept.hold.unit);
        }
        self.shift_gathered(idx, kept.hold.pool, &kept.charge, -1);
        self.note_gain(idx);
    }

    /// What is free on a node has changed: those that gather there take what they may.
    #[cold]
    pub(super) fn settle_gathered(&mut self, idx: usize) {
        if self.holds.gathering.is_lifted {
            return;
        }
        let Some(ids) = self.holds.gathering.at.get(&idx).cloned() else { return };
        for id in ids {
            let Some(kept) = self.holds.kept(id) else { continue };
            let (charge, lacks) = self.gathers(idx, kept);
            if charge == kept.charge && lacks == kept.lacks {
                continue;
            }
            let (unit, pool, lacked) = (kept.hold.unit, kept.hold.pool, kept.lacks);
            self.shift_gathered(idx, pool, &charge, 1);
            if let Some(kept) = self.holds.kept_mut(id) {
                kept.lacks = lacks;
                let before = std::mem::replace(&mut kept.charge, charge);
                self.shift_gathered(idx, pool, &before, -1);
            }
            self.holds.gathering.lacks(unit, lacked, lacks);
        }
    }

    /// What a hold takes of what is free without it, and whether it lacks something then.
    fn gathers(&self, idx: usize, kept: &HoldEntry) -> (Charge, bool) {
        let shape = self.shapes.get(kept.shape);
        let free = self.room_of(shape).free(idx);
        let n = i64::try_from(kept.hold.ordinals.len()).unwrap_or(i64::MAX);
        let (mut charge, mut lacks) = (Charge::default(), shape.unknown.is_some());
        for (id, amount) in &shape.asks {
            let own = kept.charge.asks.iter().find(|(known, _)| known == id).map_or(0, |(_, has)| *has);
            let need = amount.saturating_mul(n);
            let has = free[usize::from(*id)].saturating_add(own).clamp(0, need.max(0));
            lacks |= has < need;
            if has > 0 {
                charge.asks.push((*id, has));
            }
        }
        if let Some(ask) = &shape.devices {
            let mut devices = self.nodes[idx].devices.clone();
            for &(device, milli) in &kept.charge.devices {
                devices.shift(1 << device, milli, -1);
            }
            lacks |= charge.choose_devices(&mut devices, ask, n);
        }
        (charge, lacks)
    }

    /// Whether a node has the devices of a hold if those that gather there choose theirs again, and none gets less than it has.
    pub(super) fn has_devices_beside_gathered(&self, idx: usize, devices: &[(u8, i32)]) -> bool {
        let Some(ids) = self.holds.gathering.at.get(&idx) else { return false };
        let mut left = self.nodes[idx].devices.clone();
        let gathering = || ids.iter().filter_map(|id| self.holds.kept(*id));
        for &(device, milli) in gathering().flat_map(|kept| &kept.charge.devices) {
            left.shift(1 << device, milli, -1);
        }
        for &(device, milli) in devices {
            if usize::from(device) >= left.len() || left.free(usize::from(device)) < milli {
                return false;
            }
            left.shift(1 << device, milli, 1);
        }
        let all_of = |charge: &Charge| charge.devices.iter().map(|(_, milli)| i64::from(*milli)).sum::<i64>();
        gathering().all(|kept| {
            let Some(ask) = &self.shapes.get(kept.shape).devices else { return true };
            let n = i64::try_from(kept.hold.ordinals.len()).unwrap_or(i64::MAX);
            let mut charge = Charge::default();
            charge.choose_devices(&mut left, ask, n);
            all_of(&charge) >= all_of(&kept.charge)
        })
    }

    /// Best-effort room is not kept from others for what a guaranteed gang gathers: who takes it leaves when that is bound.
    pub(super) fn shift_gathered(&mut self, idx: usize, pool: Pool, charge: &Charge, sign: i8) {
        if let Some(room) = self.room_mut(pool) {
            room.shift(idx, &charge.asks, i64::from(sign));
        }
        for &(device, milli) in &charge.devices {
            self.nodes[idx].devices.shift(1 << device, milli, i32::from(sign));
        }
        if !charge.devices.is_empty() {
            self.settle_devices(idx);
        }
    }
}

impl Charge {
    /// Takes devices for `n` of what is asked, as many as are free. Returns whether some are missing.
    fn choose_devices(&mut self, devices: &mut NodeDevices, ask: &DeviceAsk, n: i64) -> bool {
        for _ in 0..n {
            let mask = devices.pick(ask);
            let Some(taken) = mask.or_else(|| part_of(devices, ask)) else { return true };
            devices.shift(taken, ask.milli, 1);
            self.add_devices(taken, ask.milli);
            if mask.is_none() {
                return true;
            }
        }
        false
    }

    pub(super) fn add_devices(&mut self, mask: u64, more: i32) {
        for device in bits(mask) {
            let Ok(device) = u8::try_from(device) else { continue };
            match self.devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, milli)) => *milli = milli.saturating_add(more),
                None => self.devices.push((device, more)),
            }
        }
    }
}

/// As many whole devices as are free, of too few for one running unit.
fn part_of(devices: &NodeDevices, ask: &DeviceAsk) -> Option<u64> {
    let mut part = ask.clone();
    (1..ask.count).rev().find_map(|count| {
        part.count = count;
        devices.pick(&part)
    })
}
