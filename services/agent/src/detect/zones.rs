//! The zones that running units are given, from CPUs and NUMA nodes.
//!
//! A machine may have more cores in one NUMA node than a set of cores has bits, more zones than a node may report, or cores of
//! different kinds. Then zones become more, fewer or flatter, with a warning: a node is always admitted.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::resources::{CPU, MEMORY, Resources};
use godel_domain::{
    allocation::N_ZONES_MAX,
    zone::{N_CORES_MAX, Zone},
};

use super::{
    MILLI_CPU,
    cpus::{Cpu, Cpus},
    numa::NumaNode,
};

/// Zones that a machine may have: one more may follow for devices of which nobody knows where they are.
const N_LAID_MAX: usize = N_ZONES_MAX - 1;

/// Zones of a machine, and where its NUMA nodes are among them.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) zones: Vec<Zone>,
    /// Zones by the kernel's numbers of NUMA nodes.
    pub(super) of_numa: BTreeMap<u32, usize>,
}

/// CPUs of one zone as cores.
struct Cores {
    cores: Vec<Vec<u32>>,
    n_threads: usize,
}

/// Lays out sockets, NUMA nodes, and groups of cores with one L3 cache.
pub(super) fn layout(cpus: &Cpus, nodes: &[NumaNode], warnings: &mut Vec<String>) -> Layout {
    let mut layout = Layout::default();
    let mut sockets: BTreeMap<u32, u8> = BTreeMap::new();
    for socket in nodes.iter().filter_map(|node| socket_of(cpus, node)).collect::<BTreeSet<_>>() {
        sockets.insert(socket, push(&mut layout.zones, zone("socket", None)));
    }
    let mut has_uneven = false;
    for node in nodes {
        let cores = cores_of(cpus, node, &mut has_uneven);
        if cores.cores.is_empty() && node.memory == 0 {
            continue;
        }
        let parent = socket_of(cpus, node).and_then(|socket| sockets.get(&socket).copied());
        layout.of_numa.insert(node.number, layout.zones.len());
        push_numa(&mut layout.zones, node, parent, cpus, &cores, warnings);
    }
    if has_uneven {
        warnings.push(
            "cores of one NUMA node have different numbers of usable hyper-threads: each CPU counts as a core there"
                .to_owned(),
        );
    }
    let without_caches = layout.zones.len();
    push_caches(&mut layout.zones, cpus);
    if layout.zones.len() > N_LAID_MAX {
        layout.zones.truncate(without_caches);
        if layout.zones.len() > N_LAID_MAX {
            warnings.push(format!(
                "{} sockets and NUMA nodes, at most {N_LAID_MAX}: the node is one whole",
                layout.zones.len()
            ));
            return Layout::default();
        }
        warnings
            .push(format!("more than {N_LAID_MAX} zones: groups of cores with one L3 cache are left out"));
    }
    layout
}

/// Fits zones to their node: a zone has at most the CPUs of the node, and all together have its memory, in proportion to what the
/// kernel says of each.
pub(super) fn cap(zones: &mut [Zone], capacity: &Resources) {
    let total: i128 = zones.iter().map(|zone| i128::from(zone.capacity.get(MEMORY))).sum();
    let memory = i128::from(capacity.get(MEMORY));
    for zone in zones.iter_mut().filter(|zone| !zone.capacity.is_empty()) {
        let amount = |(name, amount): (&str, i64)| {
            let amount = if name == MEMORY {
                i64::try_from(i128::from(amount) * memory / total.max(1)).unwrap_or(0)
            } else {
                amount.min(capacity.get(name))
            };
            (name.to_owned(), amount)
        };
        zone.capacity = Resources::new(zone.capacity.iter().map(amount)).unwrap_or_default();
    }
}

fn zone(kind: &str, parent: Option<u8>) -> Zone {
    Zone { kind: kind.to_owned(), parent, threads_per_core: 1, ..Zone::default() }
}

/// Adds a zone and returns its index.
fn push(zones: &mut Vec<Zone>, zone: Zone) -> u8 {
    let at = u8::try_from(zones.len()).unwrap_or(u8::MAX);
    zones.push(zone);
    at
}

fn usable<'a>(cpus: &'a Cpus, node: &'a NumaNode) -> impl Iterator<Item = (u32, &'a Cpu)> {
    node.cpus.iter().filter_map(|number| Some((*number, cpus.by_number.get(number)?)))
}

/// The socket that all CPUs of a NUMA node are in; `None` if they are in several, or nothing is known.
fn socket_of(cpus: &Cpus, node: &NumaNode) -> Option<u32> {
    let mut sockets = usable(cpus, node).map(|(_, cpu)| cpu.socket);
    let first = sockets.next()??;
    sockets.all(|socket| socket == Some(first)).then_some(first)
}

fn cores_of(cpus: &Cpus, node: &NumaNode, has_uneven: &mut bool) -> Cores {
    let within: BTreeSet<u32> = usable(cpus, node).map(|(number, _)| number).collect();
    let cores: BTreeSet<&Vec<u32>> = usable(cpus, node).map(|(_, cpu)| &cpu.core).collect();
    let n_threads = cores.first().map_or(1, |core| core.len());
    let is_even = |core: &&Vec<u32>| core.len() == n_threads && core.iter().all(|cpu| within.contains(cpu));
    if cores.iter().all(is_even) && u8::try_from(n_threads).is_ok() {
        return Cores { cores: cores.into_iter().cloned().collect(), n_threads };
    }
    *has_uneven = true;
    Cores { cores: within.into_iter().map(|cpu| vec![cpu]).collect(), n_threads: 1 }
}

/// Adds the zone of a NUMA node; if it has too many cores, one that is not assigned, and its parts in it.
fn push_numa(
    zones: &mut Vec<Zone>,
    node: &NumaNode,
    parent: Option<u8>,
    cpus: &Cpus,
    cores: &Cores,
    warnings: &mut Vec<String>,
) {
    let n_cores = cores.cores.len();
    if n_cores <= N_CORES_MAX {
        zones.push(assigned("numa", parent, &cores.cores, cores.n_threads, node, 1, 1));
        return;
    }
    let around = push(zones, zone("numa", parent));
    let parts = divide(cpus, &cores.cores);
    warnings.push(format!(
        "NUMA node {} has {n_cores} cores, more than {N_CORES_MAX}: it is divided into {} parts",
        node.number,
        parts.len()
    ));
    for part in &parts {
        zones.push(assigned("part", Some(around), part, cores.n_threads, node, part.len(), n_cores));
    }
}

/// A zone with cores and its share, a fraction, of the memory of a NUMA node.
fn assigned(
    kind: &str,
    parent: Option<u8>,
    cores: &[Vec<u32>],
    n_threads: usize,
    node: &NumaNode,
    part: usize,
    all: usize,
) -> Zone {
    let cpus: Vec<u32> = cores.iter().flatten().copied().collect();
    let share = |amount: i64| {
        let (part, all) = (i128::try_from(part).unwrap_or(1), i128::try_from(all).unwrap_or(1));
        i64::try_from(i128::from(amount) * part / all.max(1)).unwrap_or(0)
    };
    let huge: i64 = node.huge_pages.iter().map(|(_, bytes)| *bytes).sum();
    let cpu_milli = i64::try_from(cpus.len()).unwrap_or(0) * MILLI_CPU;
    let mut amounts = vec![(CPU, cpu_milli), (MEMORY, share(node.memory.saturating_sub(huge).max(0)))];
    amounts.extend(node.huge_pages.iter().map(|(name, bytes)| (*name, share(*bytes))));
    amounts.retain(|(_, amount)| *amount > 0);
    let capacity = Resources::new(amounts).unwrap_or_default();
    Zone { capacity, cpus, threads_per_core: u8::try_from(n_threads).unwrap_or(1), ..zone(kind, parent) }
}

/// Divides cores into the fewest parts that are small enough, of much the same size, and of whole L3 groups if these are small
/// enough themselves.
fn divide(cpus: &Cpus, cores: &[Vec<u32>]) -> Vec<Vec<Vec<u32>>> {
    let l3 = |core: &Vec<u32>| {
        core.first().and_then(|cpu| cpus.by_number.get(cpu)).map(|cpu| cpu.l3.as_slice()).unwrap_or_default()
    };
    let mut groups: BTreeMap<&[u32], Vec<Vec<u32>>> = BTreeMap::new();
    for core in cores {
        groups.entry(l3(core)).or_default().push(core.clone());
    }
    let mut groups: Vec<Vec<Vec<u32>>> = groups.into_values().collect();
    if groups.iter().any(|group| group.len() > N_CORES_MAX) {
        groups = cores.iter().map(|core| vec![core.clone()]).collect();
    }
    let n_parts = cores.len().div_ceil(N_CORES_MAX);
    let wanted = cores.len().div_ceil(n_parts);
    let mut parts: Vec<Vec<Vec<u32>>> = vec![Vec::new()];
    for mut group in groups {
        let last = parts.last().map_or(0, Vec::len);
        if last > 0 && (last >= wanted || last + group.len() > N_CORES_MAX) {
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.append(&mut group);
        }
    }
    parts
}

/// Adds the groups of cores with one L3 cache to each assigned zone that has several of them.
fn push_caches(zones: &mut Vec<Zone>, cpus: &Cpus) {
    for at in 0..zones.len() {
        let outer = &zones[at];
        if !outer.is_assigned() {
            continue;
        }
        let mut groups: BTreeMap<&[u32], Vec<u32>> = BTreeMap::new();
        for core in outer.cores() {
            let cache = core.first().and_then(|cpu| cpus.by_number.get(cpu)).map(|cpu| cpu.l3.as_slice());
            groups.entry(cache.unwrap_or_default()).or_default().extend(core);
        }
        // What is in no cache, or in one that reaches beyond the zone, says nothing of what lies near what in it.
        let is_whole = |(cache, of_zone): (&&[u32], &Vec<u32>)| cache.len() == of_zone.len();
        if groups.len() < 2 || !groups.iter().all(is_whole) {
            continue;
        }
        let (parent, threads_per_core) = (u8::try_from(at).ok(), outer.threads_per_core);
        let inner = groups.into_values().map(|cpus| Zone { cpus, threads_per_core, ..zone("l3", parent) });
        let inner: Vec<Zone> = inner.collect();
        zones.extend(inner);
    }
}
