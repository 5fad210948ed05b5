//! CPUs of a machine: which there are, which share a core, a socket and a cache.

use std::collections::BTreeMap;

use super::tree::{Tree, numbers};

const CPUS: &str = "/sys/devices/system/cpu";

/// What is known of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpu {
    /// The kernel's number of its socket; `None`: not known.
    pub(super) socket: Option<u32>,
    /// The CPUs of its core that may be used, itself one of them, ascending.
    pub(super) core: Vec<u32>,
    /// The usable CPUs with the same L3 cache, ascending; empty: not known.
    pub(super) l3: Vec<u32>,
}

/// The CPUs that may be used, by the kernel's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpus {
    pub(super) by_number: BTreeMap<u32, Cpu>,
    /// Nothing is known but their number: there is no sysfs.
    pub(super) is_blind: bool,
}

/// Finds the CPUs that are online and in `allowed`, if that says anything.
pub(super) fn cpus(tree: &Tree, allowed: Option<&[u32]>, warnings: &mut Vec<String>) -> Cpus {
    let (online, is_blind) = online(tree, warnings);
    let mut usable = online.clone();
    if let Some(allowed) = allowed {
        usable.retain(|cpu| allowed.binary_search(cpu).is_ok());
        if usable.is_empty() {
            warnings.push(
                "none of the CPUs that this process may use is online: all CPUs are counted".to_owned(),
            );
            usable = online;
        }
    }
    let only_usable = |list: Option<Vec<u32>>| {
        let mut list = list.unwrap_or_default();
        list.retain(|cpu| usable.binary_search(cpu).is_ok());
        list
    };
    let mut by_number = BTreeMap::new();
    for number in &usable {
        let topology = format!("{CPUS}/cpu{number}/topology");
        let siblings = ["core_cpus_list", "thread_siblings_list"];
        let siblings = siblings.into_iter().find_map(|name| tree.list(&format!("{topology}/{name}")));
        let socket = tree.number(&format!("{topology}/physical_package_id"));
        let l3 = only_usable(l3_of(tree, *number));
        by_number.insert(*number, Cpu { socket, core: only_usable(siblings), l3 });
    }
    check_cores(&mut by_number, is_blind, warnings);
    Cpus { by_number, is_blind }
}

/// The numbers of the CPUs that are online, and whether sysfs says nothing of them.
fn online(tree: &Tree, warnings: &mut Vec<String>) -> (Vec<u32>, bool) {
    let known = |list: &Vec<u32>| !list.is_empty();
    if let Some(list) = tree.list(&format!("{CPUS}/online")).filter(known) {
        return (list, false);
    }
    let found = tree.numbered(CPUS, "cpu");
    if known(&found) {
        warnings.push(format!("{CPUS}/online cannot be read: every CPU below {CPUS} is counted"));
        return (found, false);
    }
    let text = tree.text("/proc/cpuinfo").unwrap_or_default();
    let number = |line: &str| numbers(line.strip_prefix("processor")?.trim().strip_prefix(':')?);
    let mut found: Vec<u32> = text.lines().filter_map(number).flatten().collect();
    found.sort_unstable();
    found.dedup();
    let from = if known(&found) {
        "the CPUs of /proc/cpuinfo are counted"
    } else {
        found = vec![0];
        "one CPU is counted"
    };
    warnings.push(format!("{CPUS} cannot be read: {from}, and nothing is known of sockets and cores"));
    (found, true)
}

/// The CPUs that share the third level of the cache with one.
fn l3_of(tree: &Tree, number: u32) -> Option<Vec<u32>> {
    let cache = format!("{CPUS}/cpu{number}/cache");
    let is_third = |idx: &u32| tree.number::<u32>(&format!("{cache}/index{idx}/level")) == Some(3);
    let idx = tree.numbered(&cache, "index").into_iter().find(is_third)?;
    tree.list(&format!("{cache}/index{idx}/shared_cpu_list"))
}

/// Makes every CPU a core of its own where the lists of siblings are missing or contradict one another.
fn check_cores(by_number: &mut BTreeMap<u32, Cpu>, is_blind: bool, warnings: &mut Vec<String>) {
    let agrees = |(number, cpu): (&u32, &Cpu)| {
        let same = |sibling: &u32| by_number.get(sibling).is_some_and(|other| other.core == cpu.core);
        cpu.core.contains(number) && cpu.core.iter().all(same)
    };
    if by_number.iter().all(agrees) {
        return;
    }
    if !is_blind {
        warnings.push(
            "the lists of CPUs that share a core are missing or contradict one another: each CPU counts as a core"
                .to_owned(),
        );
    }
    by_number.iter_mut().for_each(|(number, cpu)| cpu.core = vec![*number]);
}
