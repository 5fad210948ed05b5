//! NUMA nodes of a machine: their CPUs, memory, huge pages and distances.

use super::tree::{Tree, kib_line, numbers};

const NODES: &str = "/sys/devices/system/node";
/// Sizes of huge pages that are resources of their own, with Kubernetes' names for them.
const HUGE_PAGES: [(&str, &str, i64); 2] =
    [("hugepages-2048kB", "hugepages-2Mi", 2 << 20), ("hugepages-1048576kB", "hugepages-1Gi", 1 << 30)];

/// What is known of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NumaNode {
    /// The kernel's number.
    pub(super) number: u32,
    /// Its CPUs, whether they may be used or not.
    pub(super) cpus: Vec<u32>,
    /// Bytes, those of huge pages included.
    pub(super) memory: i64,
    /// Bytes of huge pages by the name of their resource.
    pub(super) huge_pages: Vec<(&'static str, i64)>,
    /// To the nodes in order of their numbers, 10 to itself; empty: not known.
    pub(super) distances: Vec<u32>,
}

/// Why the NUMA nodes of a machine are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The kernel says nothing of them, as in small virtual machines: the machine is one whole.
    Nothing,
    /// What the kernel says makes no sense, and what is wrong with it.
    Broken(String),
}

/// Finds the NUMA nodes that are online. Each CPU in `cpus` is in one of them, and in one only.
pub(super) fn nodes(tree: &Tree, cpus: &[u32]) -> Result<Vec<NumaNode>, Unknown> {
    let broken = |what: String| Err(Unknown::Broken(what));
    let numbers = match tree.text(&format!("{NODES}/online")) {
        Some(text) => match numbers(&text) {
            Some(numbers) => numbers,
            None => return broken(format!("{NODES}/online says `{}`", excerpt(&text))),
        },
        None => tree.numbered(NODES, "node"),
    };
    if numbers.is_empty() {
        return Err(Unknown::Nothing);
    }
    let mut nodes: Vec<NumaNode> = Vec::new();
    for number in numbers {
        let path = format!("{NODES}/node{number}");
        let Some(cpus) = tree.list(&format!("{path}/cpulist")) else {
            return broken(format!("{path}/cpulist is missing or no list of CPUs"));
        };
        let memory = tree.text(&format!("{path}/meminfo")).and_then(|text| kib_line(&text, "MemTotal"));
        let Some(memory) = memory else {
            return broken(format!("{path}/meminfo is missing or has no MemTotal"));
        };
        let distances = tree.text(&format!("{path}/distance")).unwrap_or_default();
        let distances: Option<Vec<u32>> =
            distances.split_whitespace().map(|text| text.parse().ok()).collect();
        let huge_pages = huge_pages(tree, &format!("{path}/hugepages"));
        nodes.push(NumaNode { number, cpus, memory, huge_pages, distances: distances.unwrap_or_default() });
    }
    let n_nodes = nodes.len();
    if nodes.iter().any(|node| node.distances.len() != n_nodes) {
        nodes.iter_mut().for_each(|node| node.distances.clear());
    }
    for cpu in cpus {
        let n = nodes.iter().filter(|node| node.cpus.contains(cpu)).count();
        if n != 1 {
            return broken(format!("CPU {cpu} is in {n} NUMA nodes"));
        }
    }
    Ok(nodes)
}

/// Returns the bytes of huge pages in a directory with a folder for each size.
pub(super) fn huge_pages(tree: &Tree, path: &str) -> Vec<(&'static str, i64)> {
    let of = |(folder, name, size): (&str, &'static str, i64)| {
        let n: i64 = tree.number(&format!("{path}/{folder}/nr_hugepages"))?;
        n.checked_mul(size).filter(|bytes| *bytes > 0).map(|bytes| (name, bytes))
    };
    HUGE_PAGES.into_iter().filter_map(of).collect()
}

/// Returns the beginning of a text that may be garbage, for a warning.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}
