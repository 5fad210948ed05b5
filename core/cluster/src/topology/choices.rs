//! Which zones of a node one more running unit may be given, the best first.

use std::cmp::Reverse;

use godel_domain::{
    allocation::{CoreSet, GivenZones, ZoneSet},
    zone::{CpuMode, ZonePolicy, ZoneRequest, part_of},
};
use smallvec::SmallVec;

use super::{COUNT, CPU, NodeTopology, PARTS, Shape, ZoneRoom, has_alone};

/// Up to so many zones every set of them is tried; of more only those whose indices follow one another.
const N_ZONES_ALL: usize = 8;

/// Zones that may be given, the best first.
pub(super) type Choices = SmallVec<[GivenZones; 4]>;

impl NodeTopology {
    /// Returns the zones that one more of a shape may be given, resources and cores being free. Few zones are better than many,
    /// those in one socket better than others, those with few idle devices are better for who wants none, then those of which
    /// the least is left.
    pub(super) fn choices(
        &self,
        shape: &Shape,
        request: ZoneRequest,
        n_idle_near: impl Fn(ZoneSet) -> u32,
    ) -> Choices {
        let mut choices: SmallVec<[_; 8]> = SmallVec::new();
        for n in self.sizes(shape, request) {
            for_each_set(&self.zones, n, |zones| {
                let set: ZoneSet = zones.iter().map(|zone| usize::from(zone.idx)).collect();
                let Some(cores) = self.cores_for(shape, request, zones) else { return };
                let sockets: ZoneSet = zones.iter().map(|zone| usize::from(zone.outermost)).collect();
                let left: i64 = zones.iter().map(|zone| self.free(zone, CPU)).sum();
                let n_idle = if shape.devices.is_empty() { n_idle_near(set) } else { 0 };
                choices.push(((n, sockets.len(), n_idle, left), GivenZones { zones: set, cores }));
            });
        }
        choices.sort_unstable();
        choices.into_iter().map(|(_, given)| given).collect()
    }

    /// Returns the numbers of zones that a policy allows.
    pub(super) fn sizes(&self, shape: &Shape, request: ZoneRequest) -> std::ops::Range<usize> {
        let none = 0..0;
        let Some(least) = (1..=self.zones.len()).find(|n| self.could_hold(shape, request, *n)) else {
            return none;
        };
        match request.policy {
            ZonePolicy::SingleZone if least > 1 => none,
            ZonePolicy::SingleZone | ZonePolicy::Restricted | ZonePolicy::Exclusive => least..least + 1,
            ZonePolicy::BestEffort => least..self.zones.len() + 1,
        }
    }

    /// Whether an empty node has so many zones that hold a shape.
    fn could_hold(&self, shape: &Shape, request: ZoneRequest, n: usize) -> bool {
        let parts = i64::try_from(n).unwrap_or(1);
        let holds = |zone: &&ZoneRoom| {
            shape
                .asks
                .iter()
                .filter(|(id, _)| *id != COUNT && zone.has(*id))
                .all(|(id, amount)| part_of(*amount, parts) <= zone.capacity_of(*id))
                && has_whole_cores(zone, shape, request)
        };
        self.zones.iter().filter(holds).count() >= n
    }

    /// Returns the cores that some zones give a shape to have alone, if they have room for it.
    pub(super) fn cores_for(
        &self,
        shape: &Shape,
        request: ZoneRequest,
        zones: &[&ZoneRoom],
    ) -> Option<CoreSet> {
        let parts = i64::try_from(zones.len()).ok()?;
        let is_alone = has_alone(request, u32::try_from(zones.len()).ok()?);
        let has_room = zones.iter().all(|zone| {
            let asks = shape.asks.iter().filter(|(id, _)| *id != COUNT && zone.has(*id));
            let n_parts = if is_alone { super::N_PARTS } else { 1 };
            self.free(zone, PARTS) >= n_parts
                && self.is_calm(zone, shape)
                && has_whole_cores(zone, shape, request)
                && asks.into_iter().all(|(id, amount)| part_of(*amount, parts) <= self.free(zone, *id))
        });
        if !has_room {
            return None;
        }
        match (request.cpu_mode, zones) {
            (CpuMode::Dedicated, [zone]) => self.dedicated(zone, zone.n_cores_for(milli_cpu(shape))?),
            (CpuMode::Dedicated | CpuMode::Shared, _) => Some(CoreSet::NONE),
        }
    }

    /// Returns so many free cores of a zone: of the group that has the least of them and enough, else of as few groups as
    /// possible, of lowest index.
    fn dedicated(&self, zone: &ZoneRoom, n: u32) -> Option<CoreSet> {
        let free = self.free_cores(zone);
        if free.len() < n {
            return None;
        }
        let within = |group: &CoreSet| CoreSet(group.0 & free.0);
        let mut groups: SmallVec<[CoreSet; 4]> = zone.groups.iter().map(within).collect();
        if let Some(group) = groups.iter().filter(|group| group.len() >= n).min_by_key(|group| group.len()) {
            return Some(group.iter().take(n as usize).collect());
        }
        groups.sort_by_key(|group| Reverse(group.len()));
        let mut cores = CoreSet::NONE;
        for core in groups.iter().flat_map(|group| group.iter()).chain(free.iter()) {
            if cores.len() < n {
                cores.insert(core);
            }
        }
        Some(cores)
    }

    /// Returns the zones of a set; `None`: some are none of those that are assigned.
    pub(super) fn rooms(&self, set: ZoneSet) -> Option<SmallVec<[&ZoneRoom; 4]>> {
        let room = |idx| self.zones.iter().find(|zone| usize::from(zone.idx) == idx);
        set.iter().map(room).collect()
    }

    /// Whether zones and cores are what a shape asks for, free or not.
    pub(super) fn suits(&self, shape: &Shape, request: ZoneRequest, given: GivenZones) -> bool {
        let Some(zones) = self.rooms(given.zones) else { return false };
        if zones.is_empty() {
            return request.policy == ZonePolicy::BestEffort && request.cpu_mode == CpuMode::Shared;
        }
        let cores = match (request.cpu_mode, zones.as_slice()) {
            (CpuMode::Dedicated, [zone]) => zone.n_cores_for(milli_cpu(shape)),
            (CpuMode::Dedicated | CpuMode::Shared, _) => Some(0),
        };
        let in_zone =
            zones.iter().all(|zone| given.cores.iter().all(|core| core < usize::from(zone.n_cores)));
        self.sizes(shape, request).contains(&zones.len()) && cores == Some(given.cores.len()) && in_zone
    }

    /// Whether zones that suit a shape, and their cores, are free for it.
    pub(super) fn are_free(&self, shape: &Shape, request: ZoneRequest, given: GivenZones) -> bool {
        let Some(zones) = self.rooms(given.zones) else { return false };
        zones.is_empty()
            || (self.cores_for(shape, request, &zones).is_some()
                && zones.iter().all(|zone| given.cores.minus(self.free_cores(zone)).is_empty()))
    }

    /// Returns how many of a shape the zones hold at most, taken or not, devices aside.
    pub(crate) fn n_fit(&self, shape: &Shape, request: ZoneRequest, is_empty: bool) -> u32 {
        let n_in = |zone: &ZoneRoom| {
            let free = |id| if is_empty { zone.capacity_of(id) } else { self.free(zone, id) };
            let asks = shape.asks.iter().filter(|(id, amount)| *id != COUNT && *amount > 0 && zone.has(*id));
            let n = asks.map(|(id, amount)| free(*id).max(0) / amount).min().unwrap_or(super::N_PARTS);
            if request.policy == ZonePolicy::Exclusive { n.min(free(PARTS) / super::N_PARTS) } else { n }
        };
        match request.policy {
            ZonePolicy::SingleZone => {
                u32::try_from(self.zones.iter().map(n_in).sum::<i64>()).unwrap_or(u32::MAX)
            }
            ZonePolicy::BestEffort | ZonePolicy::Restricted | ZonePolicy::Exclusive => u32::MAX,
        }
    }

    /// Returns in words why no zones hold one more of a shape.
    pub(super) fn shortage(&self, shape: &Shape, request: ZoneRequest) -> String {
        let wants_cores = request.cpu_mode == CpuMode::Dedicated;
        if wants_cores && !self.zones.iter().any(|zone| has_whole_cores(zone, shape, request)) {
            let threads = self.zones.iter().map(|zone| zone.threads_per_core).max().unwrap_or(1);
            return format!("the dedicated cpu is not of whole cores, which have {threads} CPUs each");
        }
        let sizes = self.sizes(shape, request);
        if sizes.is_empty() {
            return match request.policy {
                ZonePolicy::SingleZone => "no zone of the node has as much, even when it is empty".to_owned(),
                _ => "the zones of the node have less, even when they are empty".to_owned(),
            };
        }
        let what = if wants_cores { "enough free, with dedicated cores" } else { "enough free" };
        let alone = if has_alone(request, u32::try_from(sizes.start).unwrap_or(1)) {
            " and no other running unit"
        } else {
            ""
        };
        let calm = if shape.zone_limits.is_some() { ", and is used as little as asked for" } else { "" };
        match sizes.start {
            1 => format!("no zone has {what}{alone}{calm}"),
            n => format!("no {n} zones have {what}{alone}{calm}"),
        }
    }
}

fn milli_cpu(shape: &Shape) -> i64 {
    shape.first[usize::from(CPU)].max(0)
}

/// Whether the CPUs that a shape has alone are whole cores of a zone.
fn has_whole_cores(zone: &ZoneRoom, shape: &Shape, request: ZoneRequest) -> bool {
    request.cpu_mode == CpuMode::Shared || (zone.n_cores > 0 && zone.n_cores_for(milli_cpu(shape)).is_some())
}

/// Calls for each set of `n` zones that is tried.
fn for_each_set<'a>(zones: &'a [ZoneRoom], n: usize, mut each: impl FnMut(&[&'a ZoneRoom])) {
    if n == 1 {
        zones.iter().for_each(|zone| each(&[zone]));
    } else if zones.len() > N_ZONES_ALL {
        for window in zones.windows(n) {
            each(&window.iter().collect::<SmallVec<[_; 4]>>());
        }
    } else {
        for bits in 0u32..1 << zones.len() {
            if bits.count_ones() as usize == n {
                let chosen = zones.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
                each(&chosen.map(|(_, zone)| zone).collect::<SmallVec<[_; 4]>>());
            }
        }
    }
}
