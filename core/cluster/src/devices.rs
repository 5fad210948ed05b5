//! Devices of a node: what is left of each, which ones serve a request, which ones to take where it does not matter how they lie.

use godel_base::{quantity, quantity::MILLI_WHOLE};
use godel_domain::{
    allocation::DeviceSet,
    demand::{DeviceRequest, DeviceTerms, N_DEVICES_MAX},
    node::{Device, DeviceDetails},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{room::DeviceRoom, shapes::Shape, shrunk::frozen_words, unfit::Unfit};

/// Thousandths of a whole device.
pub const WHOLE: i32 = 1000;
const _: () = assert!(MILLI_WHOLE == 1000, "WHOLE and MILLI_WHOLE are one number");

/// Kinds and models, with what else tells devices apart wherever they lie, as small integers.
#[derive(Clone, Debug, Default)]
pub struct DeviceClasses {
    classes: Vec<Device>,
    ids: FxHashMap<Device, u16>,
}

impl DeviceClasses {
    /// The integer of a device's class, given now if it is new; true when it is.
    pub(crate) fn id(&mut self, device: &Device) -> (u16, bool) {
        let known = DeviceDetails { link_group: 0, ..device.known().clone() };
        let details = (known != DeviceDetails::default()).then(|| Box::new(known));
        let key = Device { numa_zone: 0, details, ..device.clone() };
        if let Some(id) = self.ids.get(&key) {
            return (*id, false);
        }
        // More than 65,535 models do not exist; the last integer is then shared and accepted by none.
        let id = u16::try_from(self.classes.len()).unwrap_or(u16::MAX);
        self.classes.push(key.clone());
        self.ids.insert(key, id);
        (id, true)
    }

    pub(crate) fn is_kind(&self, id: u16, kind: &str) -> bool {
        self.classes.get(usize::from(id)).is_some_and(|class| class.kind == kind)
    }
}

/// A device request with its models resolved.
#[derive(Clone, Debug, Default)]
pub struct DeviceAsk {
    /// Devices asked for.
    pub count: u32,
    /// Thousandths of each device.
    pub milli: i32,
    /// Parts that a wholly free device serves.
    pub per_device: i64,
    /// The position of the request beside whose devices these lie.
    pub(crate) beside: Option<usize>,
    /// Its own position.
    at: usize,
    /// Bit per class.
    accepted: Vec<u64>,
}

/// The requests of a demand, in its order; most demands have one or none.
pub type DeviceAsks = SmallVec<[DeviceAsk; 1]>;

/// Returns the thousandths that a running unit takes of one of its devices, by the class of that device, as
/// [`Demand::device_milli`](godel_domain::demand::Demand::device_milli); 0 if it asks for none.
#[inline]
pub fn milli_of(asks: &[DeviceAsk], class: Option<u16>) -> i32 {
    match asks {
        [] => 0,
        [ask] => ask.milli,
        asks => {
            let accepting = class.and_then(|class| asks.iter().find(|ask| ask.accepts(class)));
            accepting.map_or_else(|| asks.iter().map(|ask| ask.milli).max().unwrap_or(0), |ask| ask.milli)
        }
    }
}

/// The least that a node needs for all of some requests, whatever its models.
pub(crate) fn least_of(asks: &[DeviceAsk]) -> DeviceRoom {
    asks.iter().map(DeviceAsk::least).fold(DeviceRoom::default(), |sum, ask| DeviceRoom {
        whole: sum.whole.saturating_add(ask.whole),
        share: sum.share.max(ask.share),
    })
}

impl DeviceAsk {
    /// Resolves the request at a position against the models that the cluster knows.
    pub fn new(requests: &[DeviceRequest], at: usize, classes: &DeviceClasses) -> Self {
        let request = &requests[at];
        let other = request.terms.as_ref().map_or("", |terms| &terms.same_zone_as);
        let beside = requests.iter().position(|request| request.kind == other).filter(|other| *other != at);
        let milli = i32::try_from(request.milli).unwrap_or(i32::MAX);
        let per_device = i64::from(WHOLE / milli.max(1));
        let mut ask = Self { count: request.count, milli, per_device, beside, at, accepted: Vec::new() };
        ask.resolve(request, classes);
        ask
    }

    /// Looks at all classes anew.
    pub fn resolve(&mut self, request: &DeviceRequest, classes: &DeviceClasses) {
        self.accepted.clear();
        self.accepted.resize(classes.classes.len().div_ceil(64), 0);
        for (idx, class) in classes.classes.iter().enumerate() {
            if request.accepts(class) {
                self.accepted[idx / 64] |= 1 << (idx % 64);
            }
        }
    }

    /// Returns the request as it was written, in the demand of its shape.
    pub(crate) fn request_of<'a>(&self, shape: &'a Shape) -> Option<&'a DeviceRequest> {
        shape.demand.devices.get(self.at)
    }

    /// Returns what else its devices have to be.
    pub(crate) fn terms_of<'a>(&self, shape: &'a Shape) -> Option<&'a DeviceTerms> {
        self.request_of(shape)?.terms.as_deref()
    }

    /// Whether its devices lie beside others, or others beside them.
    pub(crate) fn is_beside_any(&self, all: &[Self]) -> bool {
        self.beside.is_some() || all.iter().any(|other| other.beside == Some(self.at))
    }

    /// Whether a device of this class serves the request.
    #[inline]
    pub fn accepts(&self, class: u16) -> bool {
        self.accepted.get(usize::from(class / 64)).is_some_and(|bits| bits >> (class % 64) & 1 == 1)
    }

    /// Whole devices, not a share of one.
    pub fn is_whole(&self) -> bool {
        self.milli >= WHOLE
    }

    /// The least that a node needs, whatever its models.
    pub fn least(&self) -> DeviceRoom {
        if self.is_whole() {
            DeviceRoom { whole: u8::try_from(self.count).unwrap_or(u8::MAX), share: self.milli }
        } else {
            DeviceRoom { whole: 0, share: self.milli }
        }
    }
}

/// Devices of one node by index.
#[derive(Clone, Debug, Default)]
pub struct NodeDevices {
    /// Known from the report.
    pub classes: SmallVec<[u16; 8]>,
    /// May be longer than `classes` while the report is missing.
    taken: SmallVec<[i32; 8]>,
    foreign: SmallVec<[i32; 8]>,
    /// Nothing of these is free, whatever is left of them. `shrunk` says which.
    frozen: DeviceSet,
}

impl NodeDevices {
    /// Returns the number of devices.
    #[inline]
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether the node has no device.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Thousandths that may be given away; may be negative.
    #[inline]
    pub fn free(&self, idx: usize) -> i32 {
        let taken = self.taken.get(idx).copied().unwrap_or(0);
        let foreign = self.foreign.get(idx).copied().unwrap_or(0);
        let left = WHOLE.saturating_sub(taken).saturating_sub(foreign);
        if self.frozen.contains(idx) { left.min(0) } else { left }
    }

    /// Replaces what `super::shrunk::Holders::frozen` says.
    pub fn freeze(&mut self, frozen: DeviceSet) {
        self.frozen = frozen;
    }

    /// Returns the class of a device, once the node has reported it.
    #[inline]
    fn class(&self, idx: usize) -> Option<u16> {
        self.classes.get(idx).copied()
    }

    /// Returns the thousandths that a running unit with these requests takes of a device.
    #[inline]
    pub fn milli_of(&self, asks: &[DeviceAsk], idx: usize) -> i32 {
        milli_of(asks, self.class(idx))
    }

    /// Returns those of some devices that serve a request.
    pub fn accepted(&self, ask: &DeviceAsk, of: DeviceSet) -> DeviceSet {
        of.iter().filter(|idx| self.class(*idx).is_some_and(|class| ask.accepts(class))).collect()
    }

    /// Returns the request of those that has devices of an accepted model frozen.
    #[inline]
    pub fn first_frozen(&self, asks: &[DeviceAsk]) -> Option<usize> {
        if self.frozen.is_empty() { None } else { asks.iter().position(|ask| self.is_frozen(ask)) }
    }

    /// Whether devices of a model that is accepted are frozen.
    #[inline]
    pub fn is_frozen(&self, ask: &DeviceAsk) -> bool {
        !self.frozen.is_empty()
            && self.frozen.iter().any(|idx| self.classes.get(idx).is_some_and(|class| ask.accepts(*class)))
    }

    /// Thousandths left by what was seen, foreign notes aside.
    pub(crate) fn free_seen(&self, idx: usize) -> u32 {
        let free = WHOLE.saturating_sub(self.taken.get(idx).copied().unwrap_or(0));
        u32::try_from(free).unwrap_or(0)
    }

    /// Thousandths left of all of them.
    #[inline]
    pub fn idle(&self) -> i64 {
        (0..self.len()).map(|idx| i64::from(self.free(idx).max(0))).sum()
    }

    /// Returns what is free in total: the largest share of one device, and the number of wholly free devices.
    pub fn room(&self) -> DeviceRoom {
        let mut room = DeviceRoom::default();
        for idx in 0..self.len() {
            let free = self.free(idx);
            room.share = room.share.max(free);
            room.whole += u8::from(free >= WHOLE);
        }
        room
    }

    /// A running unit with these requests takes its devices (`sign` 1) or gives them back (-1).
    pub fn shift(&mut self, devices: DeviceSet, asks: &[DeviceAsk], sign: i32) {
        for idx in devices.iter() {
            self.shift_one(idx, self.milli_of(asks, idx), sign);
        }
    }

    /// Takes (`sign` 1) or gives back (-1) some of one device.
    pub fn shift_one(&mut self, idx: usize, milli: i32, sign: i32) {
        if self.taken.len() <= idx {
            self.taken.resize(idx + 1, 0);
        }
        self.taken[idx] = self.taken[idx].saturating_add(milli.saturating_mul(sign));
    }

    pub(crate) fn set_foreign(&mut self, free_milli: &[u32]) {
        self.foreign.clear();
        for (idx, free) in free_milli.iter().take(N_DEVICES_MAX).enumerate() {
            let allocated = WHOLE.saturating_sub(i32::try_from(*free).unwrap_or(WHOLE));
            self.foreign.push(allocated.saturating_sub(self.taken.get(idx).copied().unwrap_or(0)).max(0));
        }
        self.drop_empty_foreign();
    }

    pub(crate) fn consume_foreign(&mut self, devices: DeviceSet, asks: &[DeviceAsk]) {
        for idx in devices.iter() {
            let milli = self.milli_of(asks, idx);
            if let Some(foreign) = self.foreign.get_mut(idx) {
                *foreign = foreign.saturating_sub(milli).max(0);
            }
        }
        self.drop_empty_foreign();
    }

    pub(crate) fn has_foreign(&self) -> bool {
        !self.foreign.is_empty()
    }

    fn drop_empty_foreign(&mut self) {
        if self.foreign.iter().all(|foreign| *foreign == 0) {
            self.foreign.clear();
        }
    }

    /// Returns free devices for all of some requests, for each as [`Self::pick_one`]: as they are of different kinds, none gets
    /// another's.
    #[inline]
    pub(crate) fn pick_all(&self, asks: &[DeviceAsk]) -> Option<DeviceSet> {
        let mut picked = DeviceSet::NONE;
        for ask in asks {
            picked = picked.union(self.pick_one(ask)?);
        }
        Some(picked)
    }

    /// Returns free devices for a request: for whole ones those of lowest index, for a share the fitting device with the
    /// least left, lowest index on ties.
    #[inline]
    pub fn pick_one(&self, ask: &DeviceAsk) -> Option<DeviceSet> {
        self.pick_out_of(ask, u64::MAX)
    }

    /// Returns the same, out of the devices whose bits are set.
    #[inline]
    pub(crate) fn pick_out_of(&self, ask: &DeviceAsk, among: u64) -> Option<DeviceSet> {
        let serves = |idx: usize| {
            self.free(idx) >= ask.milli.min(WHOLE) && among >> idx & 1 == 1 && ask.accepts(self.classes[idx])
        };
        if ask.is_whole() {
            let mut picked = DeviceSet::NONE;
            let mut missing = ask.count;
            for idx in 0..self.len() {
                if missing > 0 && serves(idx) {
                    picked.insert(idx);
                    missing -= 1;
                }
            }
            return (missing == 0).then_some(picked);
        }
        (0..self.len())
            .filter(|idx| serves(*idx))
            .min_by_key(|idx| self.free(*idx))
            .map(|idx| DeviceSet(1 << idx))
    }

    /// Returns how often a request fits.
    pub fn n_fit(&self, ask: &DeviceAsk) -> u32 {
        let accepted = (0..self.len()).filter(|idx| ask.accepts(self.classes[*idx]));
        let free = accepted.map(|idx| self.free(idx));
        if ask.is_whole() {
            let n_whole = free.filter(|free| *free >= WHOLE).count();
            return u32::try_from(n_whole).unwrap_or(u32::MAX) / ask.count.max(1);
        }
        let parts: i32 = free.map(|free| free.max(0) / ask.milli.max(1)).sum();
        u32::try_from(parts).unwrap_or(0)
    }

    /// The same if nothing of them were taken.
    pub fn n_fit_empty(&self, ask: &DeviceAsk) -> u32 {
        let n_accepted = self.classes.iter().filter(|class| ask.accepts(**class)).count();
        let n_accepted = u32::try_from(n_accepted).unwrap_or(u32::MAX);
        if ask.is_whole() {
            return n_accepted / ask.count.max(1);
        }
        n_accepted.saturating_mul(u32::try_from(ask.per_device).unwrap_or(1))
    }

    /// Devices of an accepted model, and how many of them have room for one part of the request.
    pub fn count(&self, ask: &DeviceAsk) -> (u32, u32) {
        let mut counts = (0, 0);
        for (idx, class) in self.classes.iter().enumerate() {
            if ask.accepts(*class) {
                counts.0 += 1;
                counts.1 += u32::from(self.free(idx) >= ask.milli);
            }
        }
        counts
    }

    /// Why [`Self::pick_one`] found nothing.
    pub fn shortage(&self, ask: &DeviceAsk, request: &DeviceRequest, classes: &DeviceClasses) -> Unfit {
        let kind = &request.kind;
        let has_kind = self.classes.iter().any(|class| classes.is_kind(*class, kind));
        let (accepted, free) = self.count(ask);
        let reason = if !has_kind {
            format!("no {kind}")
        } else if accepted == 0 {
            format!("no {kind} of model {}", request.models.join("|"))
        } else if self.is_frozen(ask) {
            frozen_words(kind)
        } else if ask.is_whole() {
            format!("{kind}: {free} free of {} asked", ask.count)
        } else {
            format!("{kind}: none with {} free", quantity::show_devices(i64::from(ask.milli)))
        };
        Unfit::Device { reason }
    }

    /// Returns the devices that the requests get: those in `wanted`, or, for a request whose devices others took meanwhile,
    /// what [`Self::pick_one`] finds.
    pub fn grant(
        &self,
        asks: &[DeviceAsk],
        requests: &[DeviceRequest],
        wanted: DeviceSet,
    ) -> Result<DeviceSet, Unfit> {
        match (asks, requests) {
            ([ask], [request]) => self.grant_one(ask, request, wanted),
            (asks, requests) => {
                let (mut granted, mut left) = (DeviceSet::NONE, wanted);
                for (ask, request) in asks.iter().zip(requests) {
                    let own = self.accepted(ask, wanted);
                    granted = granted.union(self.grant_one(ask, request, own)?);
                    left = left.minus(own);
                }
                match left.iter().next() {
                    Some(idx) => {
                        Err(Unfit::Device { reason: format!("device {idx}: not of those asked for") })
                    }
                    None => Ok(granted),
                }
            }
        }
    }

    /// Whether devices are as many of each kind as some requests ask for, and accepted, free or not.
    pub(crate) fn suits_requests(&self, asks: &[DeviceAsk], chosen: DeviceSet) -> bool {
        chosen.len() == asks.iter().map(|ask| ask.count).sum::<u32>()
            && asks.iter().all(|ask| self.accepted(ask, chosen).len() == ask.count)
    }

    fn grant_one(
        &self,
        ask: &DeviceAsk,
        request: &DeviceRequest,
        wanted: DeviceSet,
    ) -> Result<DeviceSet, Unfit> {
        let kind = &request.kind;
        let refuse = |reason: String| Err(Unfit::Device { reason });
        if wanted.len() != ask.count {
            return refuse(format!("{kind}: {} chosen of {} asked", wanted.len(), ask.count));
        }
        if self.is_frozen(ask) {
            return refuse(frozen_words(kind));
        }
        let mut taken = None;
        for idx in wanted.iter() {
            let Some(class) = self.classes.get(idx) else {
                return refuse(format!("{kind} {idx}: no such device"));
            };
            if !ask.accepts(*class) {
                return refuse(format!("{kind} {idx}: model not accepted"));
            }
            if self.free(idx) < ask.milli.min(WHOLE) {
                taken = Some(idx);
            }
        }
        let Some(idx) = taken else { return Ok(wanted) };
        self.pick_one(ask).ok_or_else(|| {
            let (free, asked) = (self.free(idx).max(0), ask.milli);
            let show = |milli| quantity::show_devices(i64::from(milli));
            Unfit::Device { reason: format!("{kind} {idx}: {} free of {} asked", show(free), show(asked)) }
        })
    }
}
