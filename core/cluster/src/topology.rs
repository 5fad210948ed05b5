//! What lies where on one node: its zones, what is taken of each, and which devices are near which zone or joined by links.
//!
//! Who takes something of a zone takes it by the zone's index, whatever the node says of its zones then or later: what is
//! taken outlives reports. A node without zones, of which nobody has taken any, has nothing of this.

use godel_domain::{
    allocation::{CoreSet, GivenZones, ZoneSet},
    node::{DeviceProfile, NodeReport},
    node_load::{LoadAmounts, ZoneLoad},
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest, part_of},
};
use smallvec::SmallVec;

use super::{
    loads::{LoadChange, LoadShares, NodeShares, share},
    room::Asks,
    shapes::{COUNT, Shape},
};

mod choices;
mod pick;

/// What everyone with a part of a zone takes one of, and who has it alone all: the integer of no resource.
const PARTS: u8 = u8::MAX;
/// Parts of one zone: more than running units fit on a node.
const N_PARTS: i64 = 1 << 20;
/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;
/// Small integers of `cpu` and `memory`.
const CPU: u8 = 0;
const MEMORY: u8 = 1;

/// What a node says of what lies where, and what is taken of its zones.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTopology {
    /// Those that are assigned, in order of index.
    zones: SmallVec<[ZoneRoom; 4]>,
    /// In order of index; zones of which something was taken.
    taken: SmallVec<[TakenOfZone; 2]>,
    /// By device: the assigned zones that it is near; empty: nobody knows.
    near: SmallVec<[ZoneSet; 8]>,
    /// By device: the number of those that it is joined with; 0: of none.
    joined: SmallVec<[u32; 8]>,
    profiles: Vec<DeviceProfile>,
    /// What is used of the node: zones of which nothing is known are judged by it.
    node_load: Option<LoadShares>,
}

/// A zone that is assigned.
#[derive(Clone, Debug)]
struct ZoneRoom {
    idx: u8,
    /// The outermost zone around it; itself if there is none.
    outermost: u8,
    /// By resource.
    capacity: Asks,
    n_cores: u8,
    threads_per_core: u8,
    /// Cores that lie together.
    groups: SmallVec<[CoreSet; 1]>,
    /// What is used of it; `None`: it is not known.
    load: Option<NodeShares>,
}

#[derive(Clone, Debug, Default)]
struct TakenOfZone {
    zone: u8,
    amounts: SmallVec<[(u8, i64); 4]>,
    /// By core: how many have it; one at most but for a moment.
    cores: SmallVec<[i16; 0]>,
}

/// Measured use of the zones that a replica would be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneShares {
    /// Of each resource that of the zone of which the most is used.
    pub used: NodeShares,
    /// What the replica asks for, as shares of the smallest of these zones: of cpu and memory.
    pub asked: [i64; 2],
}

/// What somebody takes of zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneTake {
    /// By zone and resource.
    amounts: SmallVec<[(u8, u8, i64); 4]>,
    /// By zone.
    cores: SmallVec<[(u8, CoreSet); 1]>,
}

impl ZoneTake {
    /// Returns what a running unit of a shape takes of the zones that it is given: of each resource the same of every zone.
    pub(crate) fn of(shape: &Shape, given: GivenZones) -> Self {
        let mut take = Self::default();
        let n_zones = i64::from(given.zones.len());
        let is_alone = shape.zones.is_some_and(|request| has_alone(request, given.zones.len()));
        for zone in given.zones.iter() {
            let Ok(zone) = u8::try_from(zone) else { continue };
            for (id, amount) in shape.asks.iter().filter(|(id, _)| *id != COUNT) {
                take.amounts.push((zone, *id, part_of(*amount, n_zones)));
            }
            take.amounts.push((zone, PARTS, if is_alone { N_PARTS } else { 1 }));
            if !given.cores.is_empty() {
                take.cores.push((zone, given.cores));
            }
        }
        take
    }

    /// Whether it is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.amounts.is_empty() && self.cores.is_empty()
    }

    /// Takes more.
    pub(crate) fn add(&mut self, more: &Self) {
        for (zone, id, amount) in &more.amounts {
            match self.amounts.iter_mut().find(|(of, known, _)| (of, known) == (zone, id)) {
                Some((.., sum)) => *sum = sum.saturating_add(*amount),
                None => self.amounts.push((*zone, *id, *amount)),
            }
        }
        for (zone, cores) in &more.cores {
            match self.cores.iter_mut().find(|(of, _)| of == zone) {
                Some((_, known)) => *known = known.union(*cores),
                None => self.cores.push((*zone, *cores)),
            }
        }
    }

    /// Somebody else takes this much of it.
    pub(crate) fn cover(&mut self, covered: &Self) {
        for (zone, id, amount) in &covered.amounts {
            if let Some((.., left)) = self.amounts.iter_mut().find(|(of, known, _)| (of, known) == (zone, id))
            {
                *left = left.saturating_sub(*amount).max(0);
            }
        }
        for (zone, cores) in &covered.cores {
            if let Some((_, left)) = self.cores.iter_mut().find(|(of, _)| of == zone) {
                *left = left.minus(*cores);
            }
        }
    }

    /// Forgets what is nothing.
    pub(crate) fn tidy(&mut self) {
        self.amounts.retain(|(.., amount)| *amount > 0);
        self.cores.retain(|(_, cores)| !cores.is_empty());
    }
}

/// Whether a running unit has its zones alone, if it has so many.
fn has_alone(request: ZoneRequest, n_zones: u32) -> bool {
    request.policy == ZonePolicy::Exclusive || (request.cpu_mode == CpuMode::Dedicated && n_zones > 1)
}

impl NodeTopology {
    /// Takes what a report says of zones, devices and links; `amounts` are the capacities of the zones. What is taken stays.
    pub(crate) fn set_report(&mut self, report: &NodeReport, amounts: Vec<Asks>) {
        let assigned = report.zones.iter().enumerate().zip(amounts);
        let assigned = assigned.filter(|((_, zone), _)| zone.is_assigned());
        self.zones =
            assigned.map(|((at, zone), capacity)| room_of(&report.zones, at, zone, capacity)).collect();
        self.near =
            report.devices.iter().map(|device| near(&report.zones, device.numa_zone as usize)).collect();
        self.joined = report.devices.iter().map(|device| device.known().link_group).collect();
        self.profiles.clone_from(&report.profiles);
    }

    /// Whether nothing is known and nothing taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.zones.is_empty()
            && self.taken.is_empty()
            && self.profiles.is_empty()
            && self.joined.iter().all(|group| *group == 0)
    }

    /// Whether the node has zones that are assigned.
    pub(crate) fn has_zones(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Somebody takes (`sign` 1) or gives back (-1).
    pub(crate) fn shift(&mut self, take: &ZoneTake, sign: i64) {
        for (zone, id, amount) in &take.amounts {
            let taken = self.taken_mut(*zone);
            let more = amount.saturating_mul(sign);
            match taken.amounts.iter_mut().find(|(known, _)| known == id) {
                Some((_, sum)) => *sum = sum.saturating_add(more),
                None => taken.amounts.push((*id, more)),
            }
        }
        for (zone, cores) in &take.cores {
            let taken = self.taken_mut(*zone);
            for core in cores.iter() {
                if taken.cores.len() <= core {
                    taken.cores.resize(core + 1, 0);
                }
                taken.cores[core] = taken.cores[core].saturating_add(if sign > 0 { 1 } else { -1 });
            }
        }
    }

    fn taken_mut(&mut self, zone: u8) -> &mut TakenOfZone {
        let at = self.taken.iter().position(|taken| taken.zone >= zone).unwrap_or(self.taken.len());
        if self.taken.get(at).is_none_or(|taken| taken.zone != zone) {
            self.taken.insert(at, TakenOfZone { zone, ..TakenOfZone::default() });
        }
        &mut self.taken[at]
    }

    fn taken(&self, zone: u8) -> Option<&TakenOfZone> {
        self.taken.iter().find(|taken| taken.zone == zone)
    }

    /// Leaves nothing free that was not free before.
    pub(crate) fn cap(&mut self, before: &Self) {
        for at in 0..self.zones.len() {
            let zone = self.zones[at].clone();
            let resources = zone.capacity.iter().map(|(id, _)| *id).chain([PARTS]);
            for id in resources {
                let excess = self.free(&zone, id).saturating_sub(before.free(&zone, id).max(0));
                if excess > 0 {
                    let amounts = [(zone.idx, id, excess)].into_iter().collect();
                    self.shift(&ZoneTake { amounts, cores: SmallVec::new() }, 1);
                }
            }
            let freed = self.free_cores(&zone).minus(before.free_cores(&zone));
            if !freed.is_empty() {
                let cores = [(zone.idx, freed)].into_iter().collect();
                self.shift(&ZoneTake { amounts: SmallVec::new(), cores }, 1);
            }
        }
    }

    /// Takes all that is free, but for the cores of zones that somebody has alone, who takes no cores.
    pub(crate) fn take_all(&mut self, of: &ZoneTake) {
        let is_alone = |zone: u8| {
            of.amounts.iter().any(|(known, id, amount)| (*known, *id, *amount) == (zone, PARTS, N_PARTS))
        };
        for at in 0..self.zones.len() {
            let zone = self.zones[at].clone();
            let resources = zone.capacity.iter().map(|(id, _)| *id).chain([PARTS]);
            let free =
                resources.map(|id| (zone.idx, id, self.free(&zone, id))).filter(|(.., free)| *free > 0);
            let amounts = free.collect();
            let cores = if is_alone(zone.idx) { CoreSet::NONE } else { self.free_cores(&zone) };
            let cores = [(zone.idx, cores)].into_iter().collect();
            self.shift(&ZoneTake { amounts, cores }, 1);
        }
    }

    /// Takes what is measured of zones, and of the node.
    pub(crate) fn set_loads(&mut self, loads: &[ZoneLoad], node: Option<&NodeShares>) -> LoadChange {
        self.node_load = node.map(|node| node.p95);
        let mut change = LoadChange::None;
        for zone in &mut self.zones {
            let load = loads.iter().find(|load| load.zone == zone.idx);
            // Of what the zone does not say that it has, the use of the node counts.
            let of = |used: &LoadAmounts, node: Option<&LoadShares>| LoadShares {
                cpu: share(used.cpu, zone.capacity_of(CPU)),
                memory: match zone.capacity_of(MEMORY) {
                    0 => node.map_or(0, |node| node.memory),
                    has => share(used.memory, has),
                },
                network: None,
            };
            let now = load.map(|load| NodeShares {
                p50: of(&load.load.p50, node.map(|node| &node.p50)),
                p95: of(&load.load.p95, node.map(|node| &node.p95)),
            });
            let was = std::mem::replace(&mut zone.load, now);
            change = change.and(LoadChange::between(was.as_ref(), now.as_ref()));
        }
        change
    }

    /// Whether no more of a zone is used than a shape accepts.
    #[inline]
    fn is_calm(&self, zone: &ZoneRoom, shape: &Shape) -> bool {
        shape.zone_limits.is_none_or(|limits| {
            let used = zone.load.as_ref().map(|load| &load.p95).or(self.node_load.as_ref());
            used.is_none_or(|used| limits.allow(used))
        })
    }

    /// Whether there are as many calm zones as a shape needs, free or not.
    pub(crate) fn has_calm(&self, shape: &Shape) -> bool {
        let Some(request) = shape.zones.filter(|_| shape.zone_limits.is_some()) else { return true };
        let n_needed = self.sizes(shape, request).start;
        self.zones.iter().filter(|zone| self.is_calm(zone, shape)).count() >= n_needed
    }

    /// Returns the use of some zones together.
    pub(crate) fn loads_of(&self, shape: &Shape, zones: ZoneSet) -> Option<ZoneShares> {
        let n = i64::from(zones.len());
        let mut all: Option<ZoneShares> = None;
        for zone in self.rooms(zones)? {
            let load = zone.load?;
            let sum = all.get_or_insert_default();
            for (sum, load) in [(&mut sum.used.p50, load.p50), (&mut sum.used.p95, load.p95)] {
                *sum = LoadShares {
                    cpu: sum.cpu.max(load.cpu),
                    memory: sum.memory.max(load.memory),
                    network: None,
                };
            }
            for (at, id) in [CPU, MEMORY].into_iter().enumerate() {
                let has = zone.capacity_of(id);
                let asked = if has > 0 { share(part_of(shape.first[at].max(0), n), has) } else { 0 };
                sum.asked[at] = sum.asked[at].max(asked);
            }
        }
        all
    }

    /// Whether no more is taken of any zone than it has, and no core twice.
    pub(crate) fn is_sound(&self) -> bool {
        self.zones.iter().all(|zone| {
            let mut resources = zone.capacity.iter().map(|(id, _)| *id).chain([PARTS]);
            let cores = self.taken(zone.idx).map_or(&[][..], |taken| &taken.cores);
            resources.all(|id| self.free(zone, id) >= 0) && cores.iter().all(|n| *n <= 1)
        })
    }

    /// Whether zones have what a hold takes of them.
    pub(crate) fn has(&self, take: &ZoneTake) -> bool {
        let room = |idx: u8| self.zones.iter().find(|zone| zone.idx == idx);
        take.amounts.iter().all(|(zone, id, amount)| {
            room(*zone).is_some_and(|zone| !zone.has(*id) || self.free(zone, *id) >= *amount)
        }) && take.cores.iter().all(|(zone, cores)| {
            room(*zone).is_some_and(|zone| cores.minus(self.free_cores(zone)).is_empty())
        })
    }

    /// Returns what is free of what somebody would take of zones, and whether something is missing. Of a zone other cores are as good.
    pub(crate) fn free_of(&self, wanted: &ZoneTake) -> (ZoneTake, bool) {
        let (mut take, mut is_short) = (ZoneTake::default(), false);
        let room = |idx: u8| self.zones.iter().find(|zone| zone.idx == idx);
        for (zone, id, amount) in &wanted.amounts {
            let Some(known) = room(*zone) else {
                is_short = true;
                continue;
            };
            if known.has(*id) {
                let free = self.free(known, *id).clamp(0, (*amount).max(0));
                is_short |= free < *amount;
                take.amounts.push((*zone, *id, free));
            }
        }
        for (zone, cores) in &wanted.cores {
            let free = room(*zone).map(|zone| self.free_cores(zone)).unwrap_or_default();
            let chosen: CoreSet = cores.iter().filter(|core| free.contains(*core)).collect();
            let others = free.minus(chosen);
            let n_missing = cores.len() - chosen.len();
            let chosen = chosen.union(others.iter().take(n_missing as usize).collect());
            is_short |= chosen.len() < cores.len();
            take.cores.push((*zone, chosen));
        }
        take.tidy();
        (take, is_short)
    }

    /// Returns what is left of a zone; may be negative.
    fn free(&self, zone: &ZoneRoom, id: u8) -> i64 {
        let taken =
            self.taken(zone.idx).and_then(|taken| taken.amounts.iter().find(|(known, _)| *known == id));
        zone.capacity_of(id).saturating_sub(taken.map_or(0, |(_, amount)| *amount))
    }

    /// Returns the cores of a zone that nobody has alone.
    fn free_cores(&self, zone: &ZoneRoom) -> CoreSet {
        let taken = self.taken(zone.idx).map_or(&[][..], |taken| &taken.cores);
        let is_free = |core: &usize| taken.get(*core).is_none_or(|n| *n <= 0);
        (0..usize::from(zone.n_cores)).filter(is_free).collect()
    }
}

impl ZoneRoom {
    fn capacity_of(&self, id: u8) -> i64 {
        if id == PARTS {
            return N_PARTS;
        }
        self.capacity.iter().find(|(known, _)| *known == id).map_or(0, |(_, amount)| *amount)
    }

    /// Whether a resource is one of zones.
    fn has(&self, id: u8) -> bool {
        id == PARTS || self.capacity.iter().any(|(known, _)| *known == id)
    }

    /// Returns how many whole cores so many thousandths of a CPU are; `None`: they are no whole cores.
    fn n_cores_for(&self, milli: i64) -> Option<u32> {
        let core = MILLI_CPU * i64::from(self.threads_per_core.max(1));
        (milli > 0 && milli % core == 0).then(|| u32::try_from(milli / core).ok())?
    }
}

fn room_of(zones: &[Zone], at: usize, zone: &Zone, capacity: Asks) -> ZoneRoom {
    let cores: Vec<&[u32]> = zone.cores().collect();
    let inner = zones.iter().enumerate().filter(|(idx, _)| *idx != at && is_within(zones, *idx, at));
    let groups = inner.map(|(_, inner)| {
        let is_in = |core: &&[u32]| core.first().is_some_and(|cpu| inner.cpus.contains(cpu));
        cores.iter().enumerate().filter(|(_, core)| is_in(core)).map(|(core, _)| core).collect()
    });
    ZoneRoom {
        idx: u8::try_from(at).unwrap_or(u8::MAX),
        outermost: u8::try_from(outermost(zones, at)).unwrap_or(u8::MAX),
        capacity,
        n_cores: u8::try_from(cores.len()).unwrap_or(u8::MAX),
        threads_per_core: zone.threads_per_core.max(1),
        groups: groups.filter(|group: &CoreSet| !group.is_empty()).collect(),
        load: None,
    }
}

/// Returns the zones around one, itself first.
fn around(zones: &[Zone], at: usize) -> impl Iterator<Item = usize> {
    let parent = |at: &usize| zones.get(*at)?.parent.map(usize::from).filter(|parent| parent < at);
    std::iter::successors(Some(at), parent)
}

fn outermost(zones: &[Zone], at: usize) -> usize {
    around(zones, at).last().unwrap_or(at)
}

fn is_within(zones: &[Zone], inner: usize, outer: usize) -> bool {
    around(zones, inner).any(|at| at == outer)
}

/// Returns the assigned zones that something at a zone is near: this zone, the one around it, or those in it.
fn near(zones: &[Zone], at: usize) -> ZoneSet {
    let assigned = zones.iter().enumerate().filter(|(_, zone)| zone.is_assigned());
    assigned
        .map(|(idx, _)| idx)
        .filter(|idx| is_within(zones, *idx, at) || is_within(zones, at, *idx))
        .collect()
}
