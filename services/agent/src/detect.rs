//! What this machine is: CPUs, memory, zones, GPUs, network cards and disks, from procfs, sysfs and NVIDIA's library.
//!
//! Everything is read below a root directory, so that tests can write the tree of any machine. What cannot be read, or
//! contradicts itself, makes the node flatter and leaves a warning; it never keeps the agent from starting. What this process
//! may not use is not offered: its control groups limit CPUs and memory, and the configuration keeps a reserve. An
//! inventory file ([`fixed`]) says what cannot be found.

mod cards;
mod cpus;
pub mod fixed;
mod gpus;
pub(crate) mod limits;
mod numa;
pub(crate) mod nvml;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
mod zones;

pub(crate) use gpus::CUDA;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use godel_base::{
    quantity,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    demand::N_DEVICES_MAX,
    names::{self, BadName, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
    node::{Device, DeviceDetails},
    zone::Zone,
};
use godel_wire::from_proto;

use self::{
    fixed::Fixed,
    limits::Limits,
    numa::{NumaNode, Unknown},
    tree::{Tree, kib_line},
    zones::Layout,
};
use crate::{
    config::Config,
    inventory::{GPU_MODEL, NodeDef},
};

/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;
/// Most attributes of a node that state takes.
const N_ATTRIBUTES_MAX: usize = 64;
/// Kind of the zone without a capacity that devices are in of which nobody knows where they are.
const ELSEWHERE: &str = "elsewhere";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
const MEMINFO: &str = "/proc/meminfo";

/// Why this machine could not be described.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host name cannot be read, and no other one was given.
    #[error("/proc/sys/kernel/hostname cannot be read; give the node a name with --name")]
    NoHostName,
    /// The node cannot be called so.
    #[error("`{name}` cannot be a node's name: {wrong}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong.
        wrong: BadName,
    },
    /// The node cannot be called as its host is.
    #[error("the host name `{host}` cannot be a node's name: {wrong}; give the node another one with --name")]
    HostName {
        /// As the kernel says.
        host: String,
        /// What is wrong.
        wrong: BadName,
    },
    /// Nothing says how much memory there is.
    #[error(
        "/proc/meminfo has no MemTotal; say `memory` under `[capacity]` in an inventory file (`agent.inventory`)"
    )]
    NoMemory,
    /// Nothing is left beside the reserve.
    #[error("agent.reserve_{name} is {reserve}, but the machine has only {has}")]
    Reserve {
        /// `cpu` or `memory`.
        name: &'static str,
        /// The reserve.
        reserve: String,
        /// Without the reserve.
        has: String,
    },
    /// The reserve is no quantity.
    #[error("agent.{0}")]
    Config(String),
    /// The inventory file is wrong.
    #[error(transparent)]
    Inventory(#[from] fixed::Error),
}

/// A machine as a node, and what could not be found out of it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The node.
    pub node: NodeDef,
    /// In sentences.
    pub warnings: Vec<String>,
}

/// A device and the kernel's number of the NUMA node that it is near, if that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Located {
    device: Device,
    numa: Option<u32>,
    /// By which programs are told that they may see it, if there is one.
    visible_by: Option<&'static str>,
}

impl Located {
    fn new(kind: &str, model: &str, details: DeviceDetails, numa: Option<u32>) -> Self {
        let details = DeviceDetails { link: clean(&details.link, NAMESPACE_LEN_MAX), ..details };
        let details = (details != DeviceDetails::default()).then(|| Box::new(details));
        let model = clean(model, NAMESPACE_LEN_MAX);
        let device = Device { kind: kind.to_owned(), model, numa_zone: 0, details };
        let visible_by = (kind == "gpu").then_some(gpus::visible_by(&device));
        Self { device, numa, visible_by }
    }
}

/// Returns this machine as a node, and logs what could not be found out. `name` replaces the host name, which is taken in lower
/// case.
///
/// # Errors
/// The node cannot be called so, has no memory or nothing beside its reserve, or the inventory file is wrong.
pub fn this_machine(name: Option<&str>, config: &Config) -> Result<NodeDef, Error> {
    let Found { node, warnings } = machine(Path::new("/"), name, config)?;
    for warning in warnings {
        tracing::warn!(node = %node.name, warning, "the topology of this machine is not fully known");
    }
    Ok(node)
}

/// Returns the name of this machine's node: `name`, or the host name in lower case.
///
/// # Errors
/// The node cannot be called so, or there is no host name.
pub fn name_of_this_machine(name: Option<&str>) -> Result<String, Error> {
    let host = Tree::new(Path::new("/")).text(HOST_NAME);
    node_name(name, host.as_deref())
}

/// Returns the machine whose procfs and sysfs are below `root`.
///
/// # Errors
/// As [`this_machine`].
pub fn machine(root: &Path, name: Option<&str>, config: &Config) -> Result<Found, Error> {
    let tree = Tree::new(root);
    let mut warnings = Vec::new();
    let fixed = config.inventory.as_deref().map(fixed::read).transpose()?.unwrap_or_default();
    let host = tree.text(HOST_NAME);
    let name = node_name(name, host.as_deref())?;

    let limits = limits::limits(&tree);
    let cpus = cpus::cpus(&tree, limits.cpus.as_deref(), &mut warnings);
    let nodes = numa_nodes(&tree, &cpus, &limits, &mut warnings);
    let capacity = capacity(&tree, &cpus, &nodes, &limits, config, &fixed, &mut warnings)?;
    let (mut layout, is_fixed) = match &fixed.zones {
        Some(zones) => (layout_of(zones), true),
        None => (zones::layout(&cpus, &nodes, &mut warnings), false),
    };
    if !is_fixed {
        zones::cap(&mut layout.zones, &capacity);
    }
    let nics = cards::nics(&tree);
    let mut attributes = attributes(&tree, &nodes, host);
    let mut devices = gpus::gpus(&tree, config, &mut warnings);
    devices.retain(|located| !fixed::is_of(&located.device, &fixed.replaced));
    if !fixed.replaced.iter().any(|kind| kind == "nic") && !nics.is_empty() {
        let names: Vec<&str> = nics.iter().map(|(name, _)| name.as_str()).collect();
        attributes.insert("nics".to_owned(), names.join(","));
        devices.extend(nics.into_iter().map(|(_, located)| located));
    }
    devices.extend(fixed.devices.iter().cloned());
    if devices.len() > N_DEVICES_MAX {
        warnings.push(format!("{} devices, at most {N_DEVICES_MAX}: the last are left out", devices.len()));
        devices.truncate(N_DEVICES_MAX);
    }
    let visible = visible(&devices);
    let devices = place(devices, &mut layout);
    if let Some(model) = gpus::common_model(&devices, "gpu") {
        attributes.insert(GPU_MODEL.to_owned(), model.to_owned());
    }
    let mut node = NodeDef::new(name, capacity);
    node.attributes = admitted_attributes(attributes, &fixed.attributes, &mut warnings);
    node.devices = devices;
    node.visible = visible;
    node.memory_nodes = memory_nodes(&layout);
    node.zones = layout.zones;
    if let Err(wrong) = from_proto::node_report(node.report()) {
        warnings.push(format!("zones are left out, since they contradict one another: {wrong}"));
        node.zones.clear();
        node.memory_nodes.clear();
        node.devices.iter_mut().for_each(|device| device.numa_zone = 0);
    }
    Ok(Found { node, warnings })
}

/// The NUMA nodes, with the memory that may come from each; none if that is not known.
fn numa_nodes(tree: &Tree, cpus: &cpus::Cpus, limits: &Limits, warnings: &mut Vec<String>) -> Vec<NumaNode> {
    let numbers: Vec<u32> = cpus.by_number.keys().copied().collect();
    let mut nodes = match numa::nodes(tree, &numbers) {
        Ok(nodes) => nodes,
        // The kernel knows no NUMA nodes where there is only one.
        Err(Unknown::Nothing) if !cpus.is_blind => {
            let memory = mem_total(tree).unwrap_or(0);
            let huge_pages = numa::huge_pages(tree, "/sys/kernel/mm/hugepages");
            vec![NumaNode { cpus: numbers, memory, huge_pages, ..NumaNode::default() }]
        }
        Err(Unknown::Nothing) => Vec::new(),
        Err(Unknown::Broken(what)) => {
            warnings.push(format!("{what}: the node is one whole, without zones"));
            Vec::new()
        }
    };
    if let Some(allowed) = &limits.numa_nodes {
        for node in nodes.iter_mut().filter(|node| allowed.binary_search(&node.number).is_err()) {
            node.memory = 0;
            node.huge_pages.clear();
        }
    }
    nodes
}

fn mem_total(tree: &Tree) -> Option<i64> {
    kib_line(&tree.text(MEMINFO)?, "MemTotal").filter(|bytes| *bytes > 0)
}

/// What the node offers: what this process may use of the machine, less the reserve; what the inventory file says of it instead.
fn capacity(
    tree: &Tree,
    cpus: &cpus::Cpus,
    nodes: &[NumaNode],
    limits: &Limits,
    config: &Config,
    fixed: &Fixed,
    warnings: &mut Vec<String>,
) -> Result<Resources, Error> {
    let reserve = config.reserve().map_err(Error::Config)?;
    let n_cpus = i64::try_from(cpus.by_number.len()).unwrap_or(i64::MAX / MILLI_CPU);
    let cpu_milli = (n_cpus * MILLI_CPU).min(limits.cpu_milli.unwrap_or(i64::MAX)).max(1);
    let of_nodes = nodes.iter().map(|node| node.memory).fold(0, i64::saturating_add);
    let by_file = fixed.capacity.iter().any(|(name, _)| name == MEMORY);
    let total = mem_total(tree);
    if total.is_none() && !by_file {
        warnings.push(format!("{MEMINFO} has no MemTotal: the memory of the NUMA nodes is counted"));
    }
    let total = match total {
        // What it says of single nodes may be less, in virtual machines that are given memory as they run.
        Some(total) if limits.numa_nodes.is_none() || nodes.iter().all(|node| node.memory > 0) => total,
        Some(total) if of_nodes > 0 => total.min(of_nodes),
        Some(total) => total,
        None => of_nodes,
    };
    if total == 0 && !by_file {
        return Err(Error::NoMemory);
    }
    let mut amounts: BTreeMap<String, i64> = BTreeMap::new();
    let huge_pages = match nodes {
        [] => numa::huge_pages(tree, "/sys/kernel/mm/hugepages"),
        nodes => nodes.iter().flat_map(|node| node.huge_pages.iter().copied()).collect(),
    };
    for (name, bytes) in huge_pages {
        let sum = amounts.entry(name.to_owned()).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let of_huge_pages = amounts.values().copied().fold(0, i64::saturating_add);
    let memory = total.saturating_sub(of_huge_pages).max(0).min(limits.memory.unwrap_or(i64::MAX));
    for (name, has) in [(CPU, cpu_milli), (MEMORY, memory)] {
        let reserve = reserve.get(name);
        if reserve > 0 && reserve >= has && !fixed.capacity.iter().any(|(known, _)| known == name) {
            let (reserve, has) = (quantity::show(name, reserve), quantity::show(name, has));
            return Err(Error::Reserve { name, reserve, has });
        }
        amounts.insert(name.to_owned(), has.saturating_sub(reserve).max(0));
    }
    amounts.extend(fixed.capacity.iter().cloned());
    Ok(Resources::new(amounts).unwrap_or_default())
}

/// The zones of an inventory file.
fn layout_of(zones: &[(Zone, Option<u32>)]) -> Layout {
    let numa = zones.iter().enumerate().filter_map(|(at, (_, numa))| Some(((*numa)?, at)));
    Layout { zones: zones.iter().map(|(zone, _)| zone.clone()).collect(), of_numa: numa.collect() }
}

/// The kernel's number of the NUMA node of each zone that has memory: of one that is divided, its parts have it.
fn memory_nodes(layout: &Layout) -> BTreeMap<usize, u32> {
    let numa_of = |at: usize| layout.of_numa.iter().find(|(_, zone)| **zone == at).map(|(numa, _)| *numa);
    let number = |(at, zone): (usize, &Zone)| {
        let around = zone.parent.map(usize::from);
        let numa = numa_of(at).or_else(|| numa_of(around?))?;
        (zone.capacity.get(MEMORY) > 0).then_some((at, numa))
    };
    layout.zones.iter().enumerate().filter_map(number).collect()
}

/// Puts devices near the zones of their NUMA nodes. Of a machine with one NUMA node all are near it.
fn place(devices: Vec<Located>, layout: &mut Layout) -> Vec<Device> {
    let only = layout.of_numa.values().next().copied().filter(|_| layout.of_numa.len() == 1);
    let mut placed = Vec::new();
    for Located { mut device, numa, visible_by: _ } in devices {
        let known = numa.and_then(|numa| layout.of_numa.get(&numa).copied()).or(only);
        let at = match known {
            Some(at) => at,
            None if layout.zones.is_empty() => 0,
            None => elsewhere(&mut layout.zones),
        };
        device.numa_zone = u32::try_from(at).unwrap_or(0);
        placed.push(device);
    }
    placed
}

/// The variables by which programs are told the GPUs that they may see, and the number that each GPU has there, by its index: the GPUs
/// of a vendor are in the order of their bus ids, or as an inventory file lists them.
fn visible(devices: &[Located]) -> BTreeMap<usize, (&'static str, u32)> {
    let mut next: BTreeMap<&'static str, u32> = BTreeMap::new();
    let number = |(at, located): (usize, &Located)| {
        let variable = located.visible_by?;
        let number = next.entry(variable).or_default();
        *number += 1;
        Some((at, (variable, *number - 1)))
    };
    devices.iter().enumerate().filter_map(number).collect()
}

/// The zone of devices of which nobody knows where they are. A node with as many zones as it may have gets none.
fn elsewhere(zones: &mut Vec<Zone>) -> usize {
    if let Some(at) = zones.iter().position(|zone| zone.kind == ELSEWHERE) {
        return at;
    }
    if zones.len() < godel_domain::allocation::N_ZONES_MAX {
        zones.push(Zone { kind: ELSEWHERE.to_owned(), threads_per_core: 1, ..Zone::default() });
    }
    zones.len().saturating_sub(1)
}

/// Facts that have no column of their own.
fn attributes(tree: &Tree, nodes: &[NumaNode], host: Option<String>) -> BTreeMap<String, String> {
    let mut facts = cards::disks(tree);
    facts.insert("arch".to_owned(), std::env::consts::ARCH.to_owned());
    facts.insert("os".to_owned(), std::env::consts::OS.to_owned());
    facts.extend(host.map(|host| ("hostname".to_owned(), host)));
    let kernel = tree.text("/proc/sys/kernel/osrelease").filter(|kernel| !kernel.is_empty());
    facts.extend(kernel.map(|kernel| ("kernel".to_owned(), kernel)));
    let rows: Vec<String> = nodes
        .iter()
        .map(|node| node.distances.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
        .collect();
    let distances = rows.join(";");
    if nodes.len() > 1 && rows.iter().all(|row| !row.is_empty()) && distances.len() <= NAME_LEN_MAX {
        facts.insert("numa-distances".to_owned(), distances);
    }
    facts
}

/// The attributes that state takes: found ones that are no valid text are left out, those of the inventory file win.
fn admitted_attributes(
    found: BTreeMap<String, String>,
    fixed: &BTreeMap<String, String>,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, String> {
    let mut admitted = fixed.clone();
    let mut left_out = BTreeSet::new();
    for (key, value) in found {
        if fixed.contains_key(&key) {
            continue;
        }
        if names::text(&value, NAME_LEN_MAX).is_ok() && admitted.len() < N_ATTRIBUTES_MAX {
            admitted.insert(key, value);
        } else {
            left_out.insert(key);
        }
    }
    if !left_out.is_empty() {
        let keys = left_out.into_iter().collect::<Vec<_>>().join(", ");
        warnings.push(format!("attributes that are too long, too many or no text are left out: {keys}"));
    }
    admitted
}

/// A text for people without control characters, and not too long.
fn clean(text: &str, max: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(max).collect()
}

/// Host names do not tell upper from lower case, names of nodes have no upper case.
fn node_name(name: Option<&str>, host: Option<&str>) -> Result<String, Error> {
    let wanted = match (name, host) {
        (Some(name), _) => name.to_owned(),
        (None, Some(host)) => host.to_ascii_lowercase(),
        (None, None) => return Err(Error::NoHostName),
    };
    match (names::name(&wanted, NAME_LEN_MAX), name, host) {
        (Ok(()), ..) => Ok(wanted),
        (Err(wrong), None, Some(host)) => Err(Error::HostName { host: host.to_owned(), wrong }),
        (Err(wrong), ..) => Err(Error::Name { name: wanted, wrong }),
    }
}
