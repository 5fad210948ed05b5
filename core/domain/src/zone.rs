//! The zones of a node, as sockets and NUMA nodes, and what a running unit asks of them.

use crate::allocation::GivenZones;
use godel_base::resources::Resources;

/// Most cores of one zone: a set of them ([`CoreSet`](crate::allocation::CoreSet)) has a bit for each.
pub const N_CORES_MAX: usize = 64;

/// A part of a node whose CPUs, memory and devices are near one another.
///
/// Zones nest. Those with a capacity are assigned to running units, and none of them lies in another one. The others say how
/// these lie: zones around them (sockets) which of them are near one another, zones in them (groups of cores with one cache)
/// which of their cores are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// `socket`, `numa`, `l3`, or whatever else the agent knows.
    pub kind: String,
    /// The zone that it lies in, by index.
    pub parent: Option<u8>,
    /// What it has, if it is assigned.
    pub capacity: Resources,
    /// The numbers of its CPUs, those of one core one after another.
    pub cpus: Vec<u32>,
    /// CPUs of each core; 1 at least.
    pub threads_per_core: u8,
}

impl Zone {
    /// Whether running units are given the zone, or a part of it.
    pub fn is_assigned(&self) -> bool {
        !self.capacity.is_empty()
    }

    /// Returns the CPUs of each core, in order.
    pub fn cores(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.cpus.chunks(usize::from(self.threads_per_core.max(1)))
    }
}

/// How the resources of one running unit may lie in zones. A node without zones serves only those that ask for none,
/// and [`Self::BestEffort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZonePolicy {
    /// In as few zones as possible, on the node as a whole if need be.
    BestEffort,
    /// In as few zones as an empty node of the kind needs.
    Restricted,
    /// In one zone.
    SingleZone,
    /// In as few zones as an empty node of the kind needs, which no other running unit with zones has a part of.
    Exclusive,
}

impl ZonePolicy {
    /// Every policy, from the most lenient.
    pub const ALL: [Self; 4] = [Self::BestEffort, Self::Restricted, Self::SingleZone, Self::Exclusive];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleZone => "single-zone",
            Self::Exclusive => "exclusive",
        }
    }
}

/// Whose the CPUs of a running unit are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuMode {
    /// It shares CPUs with others.
    #[default]
    Shared,
    /// Whole cores are its own: some of one zone, or all of several.
    Dedicated,
}

/// What one running unit asks of the zones of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneRequest {
    /// How its resources lie in zones.
    pub policy: ZonePolicy,
    /// Whose its CPUs are.
    pub cpu_mode: CpuMode,
}

/// Of an amount what each of some zones gives: the same of each, rounded up.
pub fn part_of(amount: i64, n_zones: i64) -> i64 {
    let n_zones = n_zones.max(1);
    amount / n_zones + i64::from(amount % n_zones > 0)
}

/// Returns the CPUs that a running unit may use of the zones that it is given, ascending: its own cores, or all of the zones.
pub fn cpus_of(zones: &[Zone], given: GivenZones) -> Vec<u32> {
    let of_zone = |idx: usize| {
        let cores = zones.get(idx).into_iter().flat_map(Zone::cores).enumerate();
        cores
            .filter(|(core, _)| given.cores.is_empty() || given.cores.contains(*core))
            .flat_map(|(_, cpus)| cpus)
    };
    let mut cpus: Vec<u32> = given.zones.iter().flat_map(of_zone).copied().collect();
    cpus.sort_unstable();
    cpus
}

/// Returns ascending numbers of CPUs in the notation of Linux: `0-3,48`.
pub fn show_cpus(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let shown = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{CoreSet, ZoneSet};

    #[test]
    fn cores_are_the_cpus_that_lie_together() {
        let zone = Zone { cpus: vec![0, 48, 1, 49], threads_per_core: 2, ..Zone::default() };
        assert_eq!(zone.cores().collect::<Vec<_>>(), [[0, 48], [1, 49]]);
        assert!(!zone.is_assigned());
        let zones = [Zone::default(), zone];
        let of = |zones: u64, cores: u64| GivenZones { zones: ZoneSet(zones), cores: CoreSet(cores) };
        let shown = |given| show_cpus(&cpus_of(&zones, given));
        assert_eq!(shown(of(0b10, 0)), "0-1,48-49");
        assert_eq!(shown(of(0b10, 0b10)), "1,49");
        assert_eq!((shown(of(0b1, 0)), shown(of(0b1000, 0))), (String::new(), String::new()));
        let capacity = Resources::new([("cpu", 4_000)]).unwrap();
        let single = Zone { cpus: vec![3, 4], capacity, ..Zone::default() };
        assert_eq!((single.cores().len(), single.is_assigned()), (2, true));
    }
}
