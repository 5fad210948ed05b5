//! What one more running unit is given of a node: devices and zones that go together.

use godel_domain::{
    allocation::{Allocation, DeviceSet, ZoneSet},
    demand::{DeviceRequest, DeviceTerms},
    node::DeviceProfile,
    zone::{CpuMode, ZonePolicy, ZoneRequest},
};
use smallvec::SmallVec;

use super::{NodeTopology, Shape};
use crate::{
    charge::Charge,
    devices::{DeviceAsk, DeviceClasses, WHOLE},
    hardware::NodeHardware,
    unfit::Unfit,
};

impl NodeHardware {
    /// Returns what one more of a shape is given, resources of the whole node aside; `None` if it is not free.
    #[inline]
    pub fn pick(&self, shape: &Shape) -> Option<Allocation> {
        if shape.is_placed {
            self.pick_placed(shape)
        } else {
            self.devices.pick_all(&shape.devices).map(Allocation::from)
        }
    }

    fn pick_placed(&self, shape: &Shape) -> Option<Allocation> {
        let Some(request) = shape.zones else {
            return self.pick_near(shape, None).map(Allocation::from);
        };
        if let Some(topology) = self.topology.as_deref().filter(|topology| topology.has_zones()) {
            let n_idle_near = |zones| {
                let is_idle = |idx: &usize| self.devices.free(*idx) >= WHOLE && topology.is_near(*idx, zones);
                u32::try_from((0..self.devices.len()).filter(is_idle).count()).unwrap_or(u32::MAX)
            };
            for zones in topology.choices(shape, request, n_idle_near) {
                if let Some(devices) = self.pick_near(shape, Some(zones.zones)) {
                    return Some(Allocation { devices, zones });
                }
            }
        }
        if is_whole_enough(request) { self.pick_near(shape, None).map(Allocation::from) } else { None }
    }

    /// Returns free devices for all requests of a shape: near some zones, or anywhere.
    fn pick_near(&self, shape: &Shape, zones: Option<ZoneSet>) -> Option<DeviceSet> {
        if shape.devices.is_empty() {
            return Some(DeviceSet::NONE);
        }
        let among = self.near(zones);
        let topology = self.topology.as_deref();
        if let Some(topology) = topology.filter(|_| shape.devices.iter().any(|ask| ask.beside.is_some())) {
            // All of those that go together in one zone, if there is one.
            let in_one =
                zones.unwrap_or_else(|| topology.zones.iter().map(|zone| usize::from(zone.idx)).collect());
            let picked = in_one.iter().find_map(|zone| {
                let here = self.near(Some([zone].into_iter().collect()));
                self.pick_each(shape, |ask| if shape.is_with_others(ask) { here & among } else { among })
            });
            return picked.or_else(|| self.pick_beside(shape, topology, among));
        }
        self.pick_each(shape, |_| among)
    }

    /// Returns free devices, those that lie beside others in zones in which some of these lie.
    fn pick_beside(&self, shape: &Shape, topology: &NodeTopology, among: u64) -> Option<DeviceSet> {
        let mut of_ask: SmallVec<[DeviceSet; 4]> = SmallVec::new();
        for ask in &shape.devices {
            let allowed = match ask.beside {
                None => among,
                Some(other) => {
                    let beside = of_ask.get(other).copied().or_else(|| self.pick_of(shape, other, among))?;
                    among & self.near(Some(topology.zones_of(beside)))
                }
            };
            of_ask.push(self.pick_within(shape, ask, allowed)?);
        }
        Some(of_ask.into_iter().fold(DeviceSet::NONE, DeviceSet::union))
    }

    fn pick_of(&self, shape: &Shape, at: usize, among: u64) -> Option<DeviceSet> {
        self.pick_within(shape, shape.devices.get(at)?, among)
    }

    fn pick_each(&self, shape: &Shape, among: impl Fn(&DeviceAsk) -> u64) -> Option<DeviceSet> {
        let mut picked = DeviceSet::NONE;
        for ask in &shape.devices {
            picked = picked.union(self.pick_within(shape, ask, among(ask))?);
        }
        Some(picked)
    }

    /// Returns free devices for one request, out of some.
    fn pick_within(&self, shape: &Shape, ask: &DeviceAsk, among: u64) -> Option<DeviceSet> {
        let Some(terms) = ask.terms_of(shape) else { return self.devices.pick_out_of(ask, among) };
        let Some(topology) = self.topology.as_deref().filter(|_| terms.is_of_groups()) else {
            return if terms.is_of_groups() { None } else { self.devices.pick_out_of(ask, among) };
        };
        let groups = topology.groups(among).into_iter().filter_map(|group| {
            let free = (0..self.devices.len()).filter(|idx| {
                group.contains(*idx)
                    && self.devices.free(*idx) >= ask.milli
                    && ask.accepts(self.devices.classes[*idx])
            });
            let free: DeviceSet = free.collect();
            let picked = if terms.profile.is_empty() {
                self.devices.pick_out_of(ask, group.0 & among)
            } else {
                self.pick_slices(topology, ask.request_of(shape)?, terms, group, free)
            };
            Some((free.len(), picked?))
        });
        groups.min_by_key(|(n_free, picked)| (*n_free, *picked)).map(|(_, picked)| picked)
    }

    /// Returns slices of one device that make up the profile that is asked for.
    fn pick_slices(
        &self,
        topology: &NodeTopology,
        request: &DeviceRequest,
        terms: &DeviceTerms,
        device: DeviceSet,
        free: DeviceSet,
    ) -> Option<DeviceSet> {
        let slices: SmallVec<[usize; 8]> = device.iter().collect();
        let shapes = topology.profiles_of(request, terms).flat_map(|profile| &profile.shapes);
        let sets = shapes.filter_map(|shape| slices_of(&slices, *shape));
        sets.filter(|set| set.minus(free).is_empty()).min_by_key(|set| (set.len(), set.0))
    }

    /// Returns the devices near some zones, or all of them, as bits; one of which nobody knows where it is is near every zone.
    fn near(&self, zones: Option<ZoneSet>) -> u64 {
        let (Some(zones), Some(topology)) = (zones, self.topology.as_deref()) else { return u64::MAX };
        (0..self.devices.len())
            .filter(|idx| topology.is_near(*idx, zones))
            .fold(0, |bits, idx| bits | 1 << idx)
    }

    /// Returns what a shape is given now: `wanted` if that suits it and is free, or something else.
    pub(crate) fn grant_placed(
        &self,
        shape: &Shape,
        wanted: Allocation,
        classes: &DeviceClasses,
    ) -> Result<Allocation, Unfit> {
        if self.suits(shape, wanted) && self.is_free(shape, wanted) {
            return Ok(wanted);
        }
        self.pick(shape).ok_or_else(|| self.placed_shortage(shape, classes))
    }

    /// Whether what was chosen is what a shape asks for, free or not.
    pub(crate) fn suits(&self, shape: &Shape, chosen: Allocation) -> bool {
        if !shape.is_placed {
            return chosen.zones.is_empty() && self.devices.suits_requests(&shape.devices, chosen.devices);
        }
        let topology = self.topology.as_deref();
        let zones = match (shape.zones, topology) {
            (None, _) => chosen.zones.is_empty(),
            (Some(request), None) => chosen.zones.is_empty() && is_whole_enough(request),
            (Some(request), Some(topology)) => topology.suits(shape, request, chosen.zones),
        };
        let near = if chosen.zones.is_empty() { u64::MAX } else { self.near(Some(chosen.zones.zones)) };
        let all_asked = shape
            .devices
            .iter()
            .fold(DeviceSet::NONE, |all, ask| all.union(self.devices.accepted(ask, chosen.devices)));
        zones
            && chosen.devices.0 & !near == 0
            && all_asked == chosen.devices
            && shape.devices.iter().all(|ask| self.suits_ask(shape, ask, chosen.devices))
    }

    fn suits_ask(&self, shape: &Shape, ask: &DeviceAsk, chosen: DeviceSet) -> bool {
        let own = self.devices.accepted(ask, chosen);
        let topology = self.topology.as_deref();
        let is_beside = ask.beside.is_none_or(|other| {
            let (Some(other), Some(topology)) = (shape.devices.get(other), topology) else { return true };
            own.0 & !self.near(Some(topology.zones_of(self.devices.accepted(other, chosen)))) == 0
        });
        let Some(terms) = ask.terms_of(shape).filter(|terms| terms.is_of_groups()) else {
            return is_beside && own.len() == ask.count;
        };
        let Some(topology) = topology else { return false };
        let group = topology.groups(u64::MAX).into_iter().find(|group| own.minus(*group).is_empty());
        is_beside
            && group.is_some_and(|group| match (terms.profile.is_empty(), ask.request_of(shape)) {
                (true, _) => own.len() == ask.count,
                (false, Some(request)) => self.pick_slices(topology, request, terms, group, own) == Some(own),
                (false, None) => false,
            })
    }

    fn is_free(&self, shape: &Shape, chosen: Allocation) -> bool {
        let zones = shape.zones.is_none_or(|request| {
            let topology = self.topology.as_deref();
            topology
                .map_or(chosen.zones.is_empty(), |topology| topology.are_free(shape, request, chosen.zones))
        });
        zones
            && shape.devices.iter().all(|ask| {
                self.devices
                    .accepted(ask, chosen.devices)
                    .iter()
                    .all(|idx| self.devices.free(idx) >= ask.milli.min(WHOLE))
            })
    }

    /// Returns why [`Self::pick`] finds nothing for a shape that has to do with zones or links.
    pub(crate) fn placed_shortage(&self, shape: &Shape, classes: &DeviceClasses) -> Unfit {
        for (ask, request) in shape.devices.iter().zip(&shape.demand.devices) {
            if self.pick_within(shape, ask, u64::MAX).is_none() {
                return self.request_shortage(ask, request, classes);
            }
        }
        let reason = match (shape.zones, self.topology.as_deref().filter(|topology| topology.has_zones())) {
            (None, _) => "the devices are free, but not in one zone as asked".to_owned(),
            (Some(_), None) => "the node has no zones".to_owned(),
            (Some(request), Some(topology)) => {
                if topology.choices(shape, request, |_| 0).is_empty() {
                    topology.shortage(shape, request)
                } else {
                    "no zone with enough free has the devices".to_owned()
                }
            }
        };
        Unfit::Zone { reason }
    }

    pub(crate) fn request_shortage(
        &self,
        ask: &DeviceAsk,
        request: &DeviceRequest,
        classes: &DeviceClasses,
    ) -> Unfit {
        let kind = &request.kind;
        let (_, free) = self.devices.count(ask);
        let reason = match request.terms.as_deref() {
            Some(terms) if !terms.profile.is_empty() && free > 0 => {
                format!("{kind}: no device has the free slices of profile {}", terms.profile)
            }
            Some(terms) if !terms.link.is_empty() && free >= request.count => {
                format!("{kind}: no {} free ones are joined by {}", request.count, terms.link)
            }
            Some(_) | None => return self.devices.shortage(ask, request, classes),
        };
        Unfit::Device { reason }
    }

    /// Returns how many of a shape the zones hold at most; anything where it asks for none.
    pub(crate) fn n_fit_zones(&self, shape: &Shape, is_empty: bool) -> u32 {
        match (shape.zones, self.topology.as_deref().filter(|topology| topology.has_zones())) {
            (None, _) => u32::MAX,
            (Some(request), Some(topology)) => topology.n_fit(shape, request, is_empty),
            (Some(request), None) => {
                if is_whole_enough(request) {
                    u32::MAX
                } else {
                    0
                }
            }
        }
    }

    /// Whether the zones have what a hold takes of them.
    pub(crate) fn has_zones_for(&self, charge: &Charge) -> bool {
        charge.zones.is_empty() || self.topology.as_ref().is_some_and(|topology| topology.has(&charge.zones))
    }

    /// Whether one request is served by free devices, wherever they are.
    pub(crate) fn has_for(&self, shape: &Shape, ask: &DeviceAsk) -> bool {
        self.pick_within(shape, ask, u64::MAX).is_some()
    }
}

impl NodeTopology {
    fn is_near(&self, device: usize, zones: ZoneSet) -> bool {
        let near = self.near.get(device).copied().unwrap_or_default();
        near.is_empty() || near.0 & zones.0 != 0
    }

    /// Returns the zones in which some devices lie; all of them where nobody knows.
    fn zones_of(&self, devices: DeviceSet) -> ZoneSet {
        let near = devices.iter().map(|device| self.near.get(device).copied().unwrap_or_default());
        near.fold(ZoneSet::NONE, |all, near| {
            all.union(if near.is_empty() { ZoneSet(u64::MAX) } else { near })
        })
    }

    /// Returns the groups of joined devices that have some of these, whole.
    fn groups(&self, among: u64) -> SmallVec<[DeviceSet; 8]> {
        let mut groups: SmallVec<[(u32, DeviceSet); 8]> = SmallVec::new();
        for (device, number) in self.joined.iter().enumerate().filter(|(_, number)| **number > 0) {
            match groups.iter_mut().find(|(known, _)| known == number) {
                Some((_, group)) => group.insert(device),
                None => groups.push((*number, [device].into_iter().collect())),
            }
        }
        groups.into_iter().map(|(_, group)| group).filter(|group| group.0 & among != 0).collect()
    }

    fn profiles_of<'a>(
        &'a self,
        request: &'a DeviceRequest,
        terms: &'a DeviceTerms,
    ) -> impl Iterator<Item = &'a DeviceProfile> {
        self.profiles.iter().filter(|profile| {
            profile.name == terms.profile
                && profile.kind == request.kind
                && (request.models.is_empty() || request.models.contains(&profile.model))
        })
    }
}

/// Whether a request is content with the node as a whole.
fn is_whole_enough(request: ZoneRequest) -> bool {
    request.policy == ZonePolicy::BestEffort && request.cpu_mode == CpuMode::Shared
}

/// Returns the slices of a device, in order of index, whose bits are set; `None`: it has not so many.
fn slices_of(slices: &[usize], shape: u64) -> Option<DeviceSet> {
    let of_shape = DeviceSet(shape).iter().map(|slice| slices.get(slice).copied());
    of_shape.collect()
}
