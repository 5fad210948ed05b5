//! Zones of a node: what each has, what is left of it, and who has a part.

use std::collections::BTreeMap;

use godel_base::quantity;
use godel_domain::{
    allocation::{CoreSet, GivenZones, ZoneSet},
    zone::{self, Zone},
};
use godel_proto::v1;
use godel_wire::from_proto;
use serde::Serialize;

use super::node::LoadView;

/// A zone of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZoneView {
    /// Position.
    pub index: usize,
    /// `numa`.
    pub kind: String,
    /// The zone that it lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Zones around it.
    #[serde(skip)]
    pub depth: usize,
    /// By resource; empty if running units are not given it.
    pub capacity: BTreeMap<String, i64>,
    /// What running units with zones leave of it.
    pub free: BTreeMap<String, i64>,
    /// In the notation of Linux.
    pub cpus: String,
    /// Cores.
    pub cores: usize,
    /// Those that nobody has alone.
    pub free_cores: usize,
    /// Devices near it, by position.
    pub devices: Vec<usize>,
    /// Who has a part of it.
    pub running_units: Vec<ZonePartView>,
    /// Measured use over the last minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadView>,
}

impl ZoneView {
    /// The 95th percentile of its use, if that is known.
    pub fn load_text(&self) -> Option<String> {
        let load = self.load.as_ref()?;
        let used = load.p95.iter().map(|(name, used)| {
            let used = quantity::show_about(name, *used);
            match self.capacity.get(name) {
                Some(all) => format!("{name} {used}/{}", quantity::show_about(name, *all)),
                None => format!("{name} {used}"),
            }
        });
        Some(format!("95th percentile {}", used.collect::<Vec<_>>().join(", ")))
    }
}

/// A running unit's part of a zone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZonePartView {
    /// `namespace/name/ordinal`.
    pub running_unit: String,
    /// By resource.
    pub amounts: BTreeMap<String, i64>,
    /// The CPUs that are its own, in the notation of Linux.
    pub dedicated_cpus: String,
}

/// Returns the zones of a node in order of a tree, with those who have parts of them; none of a node that is one whole, or whose
/// report cannot be read. `loads`: what is measured of them.
pub fn zones(
    report: &v1::NodeReport,
    running: &[v1::BoundRunningUnit],
    loads: &[v1::ZoneLoad],
) -> Vec<ZoneView> {
    let Ok(report) = from_proto::node_report(report.clone()) else { return Vec::new() };
    let near = |at: usize| {
        let devices = report.devices.iter().enumerate();
        devices.filter(|(_, device)| device.numa_zone as usize == at).map(|(idx, _)| idx).collect()
    };
    let mut views: Vec<ZoneView> = Vec::new();
    let mut left: Vec<(usize, usize)> = children(&report.zones, None).map(|at| (at, 0)).collect();
    left.reverse();
    while let Some((at, depth)) = left.pop() {
        let inner: Vec<usize> = children(&report.zones, Some(at)).collect();
        left.extend(inner.into_iter().rev().map(|at| (at, depth + 1)));
        let load = loads.iter().find(|load| load.zone as usize == at).and_then(|load| load.load.as_ref());
        let view = view(&report.zones, at, depth, near(at), running);
        views.push(ZoneView { load: load.map(LoadView::from), ..view });
    }
    views
}

fn children(zones: &[Zone], of: Option<usize>) -> impl Iterator<Item = usize> {
    let inner = zones.iter().enumerate().filter(move |(_, zone)| zone.parent.map(usize::from) == of);
    inner.map(|(at, _)| at)
}

fn view(
    zones: &[Zone],
    at: usize,
    depth: usize,
    devices: Vec<usize>,
    running: &[v1::BoundRunningUnit],
) -> ZoneView {
    let zone = &zones[at];
    let mut free: BTreeMap<String, i64> =
        zone.capacity.iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
    let capacity = free.clone();
    let mut taken = CoreSet::NONE;
    let mut parts = Vec::new();
    for run in running {
        let given = GivenZones { zones: ZoneSet(run.zone_mask), cores: CoreSet(run.core_mask) };
        if !given.zones.contains(at) {
            continue;
        }
        let demand =
            run.demand.clone().and_then(|demand| from_proto::demand(demand).ok()).unwrap_or_default();
        let n_zones = i64::from(given.zones.len());
        let asked = demand.requests.iter().filter(|(name, _)| capacity.contains_key(*name));
        let amounts: BTreeMap<String, i64> =
            asked.map(|(name, amount)| (name.to_owned(), zone::part_of(amount, n_zones))).collect();
        for (name, amount) in &amounts {
            if let Some(left) = free.get_mut(name) {
                *left = left.saturating_sub(*amount);
            }
        }
        let is_dedicated = demand.zones.is_some_and(|zones| zones.cpu_mode == zone::CpuMode::Dedicated);
        let own = GivenZones { zones: [at].into_iter().collect(), cores: given.cores };
        let dedicated = if is_dedicated { zone::cpus_of(zones, own) } else { Vec::new() };
        if is_dedicated {
            let all = || (0..zone.cores().len()).collect();
            taken = taken.union(if given.cores.is_empty() { all() } else { given.cores });
        }
        parts.push(ZonePartView {
            running_unit: format!("{}/{}", run.unit_name, run.ordinal),
            amounts,
            dedicated_cpus: zone::show_cpus(&dedicated),
        });
    }
    let cores = zone.cores().len();
    let mut cpus = zone.cpus.clone();
    cpus.sort_unstable();
    ZoneView {
        index: at,
        kind: zone.kind.clone(),
        parent: zone.parent.map(usize::from),
        depth,
        capacity,
        free,
        cpus: zone::show_cpus(&cpus),
        cores,
        free_cores: cores.saturating_sub(taken.len() as usize),
        devices,
        running_units: parts,
        load: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(kind: &str, parent: Option<u32>, cpu: i64, cpus: &[u32]) -> v1::Zone {
        let amounts = [("cpu".to_owned(), cpu)].into();
        let capacity = (cpu > 0).then_some(v1::Resources { amounts });
        v1::Zone { kind: kind.to_owned(), parent, capacity, cpus: cpus.to_vec(), threads_per_core: 1 }
    }

    #[test]
    fn zones_stand_as_a_tree_with_what_is_left_of_them() {
        let zones_of_node = vec![
            zone("socket", None, 0, &[]),
            zone("socket", None, 0, &[]),
            zone("numa", Some(0), 4_000, &[0, 1, 2, 3]),
            zone("numa", Some(1), 4_000, &[4, 5, 6, 7]),
        ];
        let gpu = v1::Device { kind: "gpu".to_owned(), numa_zone: 3, ..v1::Device::default() };
        let report = v1::NodeReport { zones: zones_of_node, devices: vec![gpu], ..v1::NodeReport::default() };
        let run = |zone_mask, core_mask, cpu, cpu_mode: v1::CpuMode| {
            let requests = Some(v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() });
            let policy = v1::ZonePolicy::Restricted.into();
            let zones = Some(v1::ZoneRequest { policy, cpu_mode: cpu_mode.into() });
            let demand = Some(v1::Demand { requests, zones, ..v1::Demand::default() });
            let unit_name = "a/b".to_owned();
            v1::BoundRunningUnit { zone_mask, core_mask, demand, unit_name, ..Default::default() }
        };
        let running =
            [run(0b100, 0b11, 2_000, v1::CpuMode::Dedicated), run(0b1100, 0, 3_000, v1::CpuMode::Shared)];
        let p95 = Some(v1::LoadAmounts { cpu: 1_500, memory: 1 << 30, network: 0 });
        let loads = [v1::ZoneLoad { zone: 3, load: Some(v1::NodeLoad { p50: None, p95 }) }];
        let texts = zones(&report, &running, &loads);
        let texts: Vec<_> = texts.iter().filter_map(|zone| Some((zone.index, zone.load_text()?))).collect();
        assert_eq!(texts, [(3, "95th percentile cpu 1.5/4, memory 1Gi".to_owned())]);
        let shown: Vec<_> = zones(&report, &running, &loads)
            .into_iter()
            .map(|zone| {
                (zone.index, zone.depth, zone.free.get("cpu").copied(), zone.free_cores, zone.devices)
            })
            .collect();
        let expected = [
            (0, 0, None, 0, vec![]),
            (2, 1, Some(500), 2, vec![]),
            (1, 0, None, 0, vec![]),
            (3, 1, Some(2_500), 4, vec![0]),
        ];
        assert_eq!(shown, expected);
        let parts = &zones(&report, &running, &loads)[1].running_units;
        assert_eq!((parts[0].running_unit.as_str(), parts[0].dedicated_cpus.as_str()), ("a/b/0", "0-1"));
        assert_eq!((parts[1].amounts["cpu"], parts[1].dedicated_cpus.as_str()), (1_500, ""));
    }
}
