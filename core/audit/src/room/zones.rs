//! What is taken of the zones of a node, and what is wrong with the zones of a placement, each by plain counting.

use std::collections::BTreeMap;

use godel_base::resources::CPU;
use godel_domain::{
    allocation::{CoreSet, GivenZones, ZoneSet},
    demand::Demand,
    zone::{CpuMode, Zone, ZonePolicy},
};

use super::{Excess, Of, WorldNode};

/// Sums of the zones of one node. What is nothing is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneSums {
    /// By zone and resource.
    amounts: BTreeMap<(usize, String), i64>,
    /// By zone and core: how many have it.
    cores: BTreeMap<(usize, usize), i64>,
    /// By zone: how many have a part of it, and how many want it alone.
    parts: BTreeMap<usize, (i64, i64)>,
}

impl ZoneSums {
    /// So many running units take what they are given.
    pub(crate) fn add(&mut self, demand: &Demand, given: GivenZones, times: i64) {
        let n_zones = i64::from(given.zones.len());
        let is_alone = demand.zones.is_some_and(|zones| {
            zones.policy == ZonePolicy::Exclusive || (zones.cpu_mode == CpuMode::Dedicated && n_zones > 1)
        });
        for zone in given.zones.iter() {
            for (name, amount) in demand.requests.iter() {
                let part = (amount + n_zones - 1).div_euclid(n_zones);
                let sum = self.amounts.entry((zone, name.to_owned())).or_default();
                *sum += part * times;
            }
            given.cores.iter().for_each(|core| *self.cores.entry((zone, core)).or_default() += times);
            let (n, n_alone) = self.parts.entry(zone).or_default();
            *n += times;
            *n_alone += if is_alone { times } else { 0 };
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        self.amounts.retain(|_, amount| *amount != 0);
        self.cores.retain(|_, n| *n != 0);
        self.parts.retain(|_, parts| *parts != (0, 0));
    }

    /// Takes what others take away, never below nothing.
    pub(super) fn subtract(&mut self, other: &Self) {
        let less = |left: &mut i64, taken: Option<&i64>| *left = (*left - taken.copied().unwrap_or(0)).max(0);
        self.amounts.iter_mut().for_each(|(key, left)| less(left, other.amounts.get(key)));
        self.cores.iter_mut().for_each(|(key, left)| less(left, other.cores.get(key)));
        for (zone, (n, n_alone)) in &mut self.parts {
            let taken = other.parts.get(zone);
            less(n, taken.map(|(n, _)| n));
            less(n_alone, taken.map(|(_, n)| n));
        }
        self.tidy();
    }

    /// Returns what a hold takes beside those that still take it for the hold, `covered`: of the hold's replicas and those none
    /// are there together, so that one of either that has a zone alone is no wrong to the other.
    pub(super) fn beyond(mut self, covered: &Self) -> Self {
        let mut either = Self { parts: self.parts.clone(), ..Self::default() };
        either.keep_most(&Self { parts: covered.parts.clone(), ..Self::default() });
        for (zone, (n, n_alone)) in &covered.parts {
            let parts = either.parts.entry(*zone).or_default();
            *parts = (parts.0 - n, parts.1 - n_alone);
        }
        self.subtract(covered);
        self.parts = either.parts;
        self.tidy();
        self
    }

    /// Takes all that others take as well.
    pub(super) fn join(&mut self, other: &Self) {
        other.amounts.iter().for_each(|(key, more)| *self.amounts.entry(key.clone()).or_default() += more);
        other.cores.iter().for_each(|(key, more)| *self.cores.entry(*key).or_default() += more);
        for (zone, (n, n_alone)) in &other.parts {
            let parts = self.parts.entry(*zone).or_default();
            *parts = (parts.0 + n, parts.1 + n_alone);
        }
        self.tidy();
    }

    /// Takes of each as much as either does, of those who have a zone alone or share it what bears less beside it.
    pub(crate) fn keep_most(&mut self, other: &Self) {
        let most = |left: &mut i64, other: i64| *left = (*left).max(other);
        other.amounts.iter().for_each(|(key, n)| most(self.amounts.entry(key.clone()).or_default(), *n));
        other.cores.iter().for_each(|(key, n)| most(self.cores.entry(*key).or_default(), *n));
        for (zone, (n, n_alone)) in &other.parts {
            let parts = self.parts.entry(*zone).or_default();
            // They are never there together: one who has the zone alone bears nobody else, however few they are.
            if (*n_alone, *n) > (parts.1, parts.0) {
                *parts = (*n, *n_alone);
            }
        }
    }

    /// What is wrong with these sums on a node.
    pub(super) fn excess(&self, node: &WorldNode) -> Vec<Excess> {
        let zones = zones_of(node);
        let mut wrong = Vec::new();
        let mut add = |zone: usize, words: String| wrong.push(Excess { of: Of::Zone(zone), words });
        for ((at, name), taken) in &self.amounts {
            let capacity = zones.get(*at).map(|zone| &zone.capacity);
            // What zones do not have is taken of the node as a whole.
            let has = capacity.is_none_or(|has| has.iter().any(|(known, _)| known == name));
            let has_of = capacity.map_or(0, |has| has.get(name));
            if has && *taken > has_of {
                add(*at, format!("{name} {taken} of {has_of} in zone {at}"));
            }
        }
        for ((at, core), n) in &self.cores {
            let n_cores = zones.get(*at).map_or(0, |zone| zone.cores().len());
            if *n > 1 || *core >= n_cores {
                add(*at, format!("core {core} of {n_cores} in zone {at} is that of {n} running units"));
            }
        }
        for (at, (n, n_alone)) in &self.parts {
            if *n_alone > 0 && *n > 1 {
                add(*at, format!("zone {at} is that of {n} running units, {n_alone} of which have it alone"));
            }
        }
        wrong
    }

    /// Returns what is left of a resource in a zone, if nobody has the zone alone.
    pub(crate) fn left(&self, node: &WorldNode, at: usize, name: &str) -> Option<i64> {
        let zone = zones_of(node).get(at).filter(|zone| zone.is_assigned())?;
        let is_alone = self.parts.get(&at).is_some_and(|(_, n_alone)| *n_alone > 0);
        let taken = self.amounts.get(&(at, name.to_owned())).copied().unwrap_or(0);
        let has = zone.capacity.iter().any(|(known, _)| known == name);
        (!is_alone).then(|| if has { zone.capacity.get(name) - taken } else { i64::MAX })
    }
}

/// The zones that a node has reported.
pub(crate) fn zones_of(node: &WorldNode) -> &[Zone] {
    node.report.as_ref().map_or(&[], |report| &report.value.zones)
}

/// What is wrong with the zones of one placement, in words.
pub(crate) fn wrong_zones(node: &WorldNode, demand: &Demand, given: GivenZones) -> Option<String> {
    let Some(request) = demand.zones else {
        return (given != GivenZones::NONE).then(|| format!("zones {:#b} without a request", given.zones.0));
    };
    let zones = zones_of(node);
    let all_there = given.zones.iter().all(|at| zones.get(at).is_some_and(Zone::is_assigned));
    if !all_there {
        return Some(format!("zones {:#b} that the node does not have", given.zones.0));
    }
    let n = given.zones.len();
    let may_be = match request.policy {
        ZonePolicy::SingleZone => n == 1,
        ZonePolicy::Restricted | ZonePolicy::Exclusive => n > 0,
        ZonePolicy::BestEffort => n > 0 || request.cpu_mode == CpuMode::Shared,
    };
    if !may_be {
        return Some(format!("{n} zones for the policy {}", request.policy.name()));
    }
    let zone = given.zones.iter().next().and_then(|at| zones.get(at))?;
    let wanted = if request.cpu_mode == CpuMode::Dedicated && n == 1 {
        demand.requests.get(CPU) / 1_000 / i64::from(zone.threads_per_core.max(1))
    } else {
        0
    };
    let CoreSet(cores) = given.cores;
    (i64::from(given.cores.len()) != wanted).then(|| format!("cores {cores:#b} instead of {wanted}"))
}

/// Zones of a node by index.
pub(crate) fn assigned(node: &WorldNode) -> ZoneSet {
    let zones = zones_of(node).iter().enumerate();
    zones.filter(|(_, zone)| zone.is_assigned()).map(|(at, _)| at).collect()
}
