//! GPUs: from NVIDIA's management library, and from procfs and sysfs.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::node::{Device, DeviceDetails};

use super::{
    Located,
    nvml::{self, Failed, NvidiaGpu},
    tree::Tree,
};
use crate::config::Config;

const NVIDIA: &str = "/proc/driver/nvidia/gpus";
const KFD: &str = "/sys/class/kfd/kfd/topology/nodes";
/// AMD's number of vendor, and the kind of link that its driver gives to XGMI.
const AMD: &str = "0x1002";
const XGMI: &str = "11";

const XGMI_LINK: &str = "xgmi";
/// By these the libraries of NVIDIA and AMD are told which GPUs a program may see.
pub(crate) const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const ROCR: &str = "ROCR_VISIBLE_DEVICES";

/// A GPU and what it is linked to.
#[derive(Clone, Debug, Default)]
struct Gpu {
    /// As sysfs names it: `0000:17:00.0`.
    bus: String,
    model: String,
    memory: i64,
    link: &'static str,
    /// Bus ids of GPUs, or of switches.
    ends: BTreeSet<String>,
}

/// Finds the GPUs, in order of their bus ids.
pub(super) fn gpus(tree: &Tree, config: &Config, warnings: &mut Vec<String>) -> Vec<Located> {
    let mut gpus = nvidia(tree, config, warnings);
    gpus.append(&mut amd(tree));
    gpus.sort_by(|a, b| a.bus.cmp(&b.bus));
    gpus.dedup_by(|a, b| a.bus == b.bus);
    let groups = link_groups(&gpus);
    let device = |(gpu, group): (&Gpu, u32)| {
        let link = if group == 0 { "" } else { gpu.link };
        let details = DeviceDetails { memory: gpu.memory, link: link.to_owned(), link_group: group, gbps: 0 };
        let visible_by = Some(if gpu.link == XGMI_LINK { ROCR } else { CUDA });
        Located { visible_by, ..Located::new("gpu", &gpu.model, details, pci_numa(tree, &gpu.bus)) }
    };
    gpus.iter().zip(groups).map(device).collect()
}

/// By which variable programs are told of a GPU of which only this is known: NVIDIA's, unless its links are AMD's.
pub(super) fn visible_by(device: &Device) -> &'static str {
    let is_amd = device.details.as_ref().is_some_and(|details| details.link == XGMI_LINK);
    if is_amd { ROCR } else { CUDA }
}

/// The kernel's number of the NUMA node of a PCI device.
pub(super) fn pci_numa(tree: &Tree, bus: &str) -> Option<u32> {
    tree.number::<i64>(&format!("/sys/bus/pci/devices/{bus}/numa_node")).and_then(|n| u32::try_from(n).ok())
}

fn nvidia(tree: &Tree, config: &Config, warnings: &mut Vec<String>) -> Vec<Gpu> {
    let library = &config.nvml_library;
    let of_driver: BTreeMap<String, String> = tree
        .names(NVIDIA)
        .into_iter()
        .map(|bus| {
            let text = tree.text(&format!("{NVIDIA}/{bus}/information")).unwrap_or_default();
            let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
            (sysfs_bus(&bus), model.map(|model| model_name(model.trim())).unwrap_or_default())
        })
        .collect();
    let why = match nvml::gpus(library, *config.nvml_timeout, warnings) {
        Ok(known) => {
            let found: Vec<Gpu> = known.into_iter().map(of_library).collect();
            let is_missing = |bus: &&String| found.iter().all(|gpu| gpu.bus != **bus);
            for bus in of_driver.keys().filter(is_missing) {
                warnings.push(format!(
                    "GPU {bus} is left out: NVIDIA's driver lists it, but the management library does not"
                ));
            }
            return found;
        }
        Err(Failed::Absent) if of_driver.is_empty() => return Vec::new(),
        Err(Failed::Absent) => format!("there is no {library}"),
        Err(Failed::Broken(why)) => format!("{library} does not work: {why}"),
    };
    let known = if of_driver.is_empty() {
        "NVIDIA's GPUs are not known".to_owned()
    } else {
        "memory and links of NVIDIA's GPUs are not known".to_owned()
    };
    warnings.push(format!("{why}: {known}"));
    of_driver.into_iter().map(|(bus, model)| Gpu { bus, model, ..Gpu::default() }).collect()
}

fn of_library(gpu: NvidiaGpu) -> Gpu {
    let NvidiaGpu { bus, name, memory, links } = gpu;
    let ends = links.iter().map(|end| sysfs_bus(end)).collect();
    Gpu { bus: sysfs_bus(&bus), model: model_name(&name), memory, link: "nvlink", ends }
}

/// A bus id in the spelling of sysfs, which writes four digits of the domain, in lower case.
fn sysfs_bus(bus: &str) -> String {
    let bus = bus.to_ascii_lowercase();
    match bus.split_once(':') {
        Some((domain, rest)) => {
            let domain = domain.trim_start_matches('0');
            format!("{domain:0>4}:{rest}")
        }
        None => bus,
    }
}

/// A model without its vendor and without blanks: `A100-SXM4-80GB`.
fn model_name(name: &str) -> String {
    let name = name.strip_prefix("NVIDIA ").unwrap_or(name);
    name.split_whitespace().collect::<Vec<_>>().join("-")
}

/// The GPUs of AMD that are cards of their own, as its compute driver lists them.
fn amd(tree: &Tree) -> Vec<Gpu> {
    let mut found: BTreeMap<u32, Gpu> = BTreeMap::new();
    let mut peers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for number in tree.numbered(KFD, "") {
        let properties = properties(tree, &format!("{KFD}/{number}/properties"));
        let value = |name: &str| properties.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        // A processor with graphics in it has both CPU cores and shader units.
        if value("simd_count") == 0 || value("cpu_cores_count") > 0 {
            continue;
        }
        let (domain, id) = (value("domain"), value("location_id"));
        let bus = format!("{domain:04x}:{:02x}:{:02x}.{}", id >> 8 & 0xff, id >> 3 & 0x1f, id & 0x7);
        let device = format!("/sys/bus/pci/devices/{bus}");
        if tree.text(&format!("{device}/vendor")).as_deref() != Some(AMD) {
            continue;
        }
        let name = tree.text(&format!("{device}/product_name")).filter(|name| !name.is_empty());
        let name = name.or_else(|| tree.text(&format!("{device}/device"))).unwrap_or_default();
        let memory = tree.number(&format!("{device}/mem_info_vram_total")).unwrap_or(0);
        let links = format!("{KFD}/{number}/io_links");
        for link in tree.numbered(&links, "") {
            let link = self::properties(tree, &format!("{links}/{link}/properties"));
            let end = link.get("node_to").and_then(|text| text.parse().ok());
            if let Some(end) = end.filter(|_| link.get("type").is_some_and(|kind| kind == XGMI)) {
                peers.entry(number).or_default().push(end);
            }
        }
        let model = model_name(&name);
        found.insert(number, Gpu { bus, model, memory, link: XGMI_LINK, ends: BTreeSet::new() });
    }
    let buses: BTreeMap<u32, String> = found.iter().map(|(number, gpu)| (*number, gpu.bus.clone())).collect();
    for (number, ends) in peers {
        if let Some(gpu) = found.get_mut(&number) {
            gpu.ends = ends.iter().filter_map(|end| buses.get(end).cloned()).collect();
        }
    }
    found.into_values().collect()
}

/// Lines of a name and a value.
fn properties(tree: &Tree, path: &str) -> BTreeMap<String, String> {
    let text = tree.text(path).unwrap_or_default();
    let pair =
        |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Returns the number of each GPU's group, from 1, in which each is linked with each, directly or by switches; 0: it has none.
fn link_groups(gpus: &[Gpu]) -> Vec<u32> {
    let is_gpu = |bus: &String| gpus.iter().any(|gpu| gpu.bus == *bus);
    let switches: Vec<BTreeSet<&String>> =
        gpus.iter().map(|gpu| gpu.ends.iter().filter(|end| !is_gpu(end)).collect()).collect();
    let are_linked = |a: usize, b: usize| {
        let direct = gpus[a].ends.contains(&gpus[b].bus) && gpus[b].ends.contains(&gpus[a].bus);
        gpus[a].link == gpus[b].link && (direct || !switches[a].is_disjoint(&switches[b]))
    };
    let mut groups = vec![0; gpus.len()];
    let mut last = 0;
    for first in 0..gpus.len() {
        if groups[first] != 0 {
            continue;
        }
        let mut members = vec![first];
        let free = groups.iter().enumerate().skip(first + 1).filter(|(_, group)| **group == 0);
        for (next, _) in free {
            if members.iter().all(|member| are_linked(*member, next)) {
                members.push(next);
            }
        }
        if members.len() > 1 {
            last += 1;
            members.iter().for_each(|member| groups[*member] = last);
        }
    }
    groups
}

/// The model that all devices of a kind have; `None`: they have several, or there is none.
pub(super) fn common_model<'a>(devices: &'a [Device], kind: &str) -> Option<&'a str> {
    let mut models = devices.iter().filter(|device| device.kind == kind).map(|device| device.model.as_str());
    let first = models.next().filter(|model| !model.is_empty())?;
    models.all(|model| model == first).then_some(first)
}
