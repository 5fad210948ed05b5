//! Whose use counts as that of the node: the machine's, or that of the control group that bounds the agent (ADR 0089).
//!
//! A node that offers a part of a machine uses a part of it: what others do beside it is not its use, and would be counted by
//! each of several nodes of one machine. CPU and memory are decided apart, since each may have a limit of its own.

use crate::{
    cgroup::{FIRST_NAMESPACE, GroupRecord, has_controllers},
    detect::{
        limits::{Hierarchy, hierarchies, memory_limit, quota},
        tree::{Tree, kib_line},
    },
};

/// The namespace of processes that a machine starts with: a number of the kernel's interface.
const FIRST_PROCESSES: &str = "pid:[4026531836]";
const MILLI_CPU: i64 = 1_000;

/// Whose use counts. `None`: that of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The group whose CPU time counts.
    pub(crate) cpu: Option<GroupRecord>,
    /// The group whose memory counts.
    pub(crate) memory: Option<GroupRecord>,
    /// The group with the lowest memory limit, bytes.
    pub(crate) memory_limit: Option<(GroupRecord, i64)>,
}

/// What sets the agent apart from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContainerScope {
    /// It has a namespace of control groups of its own, of which the outermost group is the container.
    has_own_groups: bool,
    /// It has a namespace of processes of its own.
    has_own_processes: bool,
}

/// What controllers count, and the file of each version that says it.
struct Counter {
    /// Of version 1.
    controller: &'static str,
    v1: &'static str,
    v2: &'static str,
}

const CPU_TIME: Counter = Counter { controller: "cpuacct", v1: "cpuacct.usage", v2: "cpu.stat" };
const MEMORY: Counter = Counter { controller: "memory", v1: "memory.usage_in_bytes", v2: "memory.current" };

/// One of the control groups around the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    /// What it may use, if that is less than what the machine has.
    limit: Option<i64>,
    /// Whether it has all processes of the machine.
    is_machine: bool,
}

impl Scope {
    /// Returns the groups that count instead of the machine, with the word for what is counted.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&'static str, &GroupRecord)> {
        let cpu = self.cpu.iter().map(|group| ("CPU time", group));
        cpu.chain(self.memory.iter().map(|group| ("memory", group)))
    }
}

/// Finds out whose use counts.
pub(crate) fn find(tree: &Tree) -> Scope {
    let is_other = |link: &str, first: &str| tree.link_name(link).is_some_and(|name| name != first);
    let container = ContainerScope {
        has_own_groups: is_other("/proc/self/ns/cgroup", FIRST_NAMESPACE),
        has_own_processes: is_other("/proc/self/ns/pid", FIRST_PROCESSES),
    };
    let mut seen = hierarchies(tree);
    seen.retain(|hierarchy| hierarchy.mounted.is_some());
    let unified = seen.iter().find(|hierarchy| hierarchy.is_v2 && has_controllers(tree, hierarchy));
    let of = |controller: &str| match unified {
        Some(hierarchy) => Some(hierarchy),
        None => seen.iter().find(|hierarchy| !hierarchy.is_v2 && hierarchy.has(controller)),
    };
    let mut scope = Scope::default();
    if let (Some(limiting), Some(counting)) = (of("cpu"), of(CPU_TIME.controller)) {
        let n_cpus = tree.list("/sys/devices/system/cpu/online").map(|cpus| cpus.len());
        let most = n_cpus.and_then(|n| i64::try_from(n).ok()).map(|n| n * MILLI_CPU);
        // Controllers may have groups of their own: what is no group of both has no quota of which the use is known.
        let limited = groups_of(limiting);
        let quota_of = |group: &str| {
            let has_one = limited.contains(&group);
            has_one.then(|| quota(tree, &dir_of(limiting, group), limiting.is_v2)).flatten()
        };
        let levels = groups_of(counting).into_iter().map(|group| Level {
            limit: below(most, quota_of(group)),
            is_machine: is_machine(counting, group, container),
        });
        let bound = bound(&levels.collect::<Vec<_>>(), container);
        scope.cpu = bound.and_then(|at| record(tree, counting, at, &CPU_TIME));
    }
    if let Some(hierarchy) = of(MEMORY.controller) {
        let most = kib_line(&tree.text("/proc/meminfo").unwrap_or_default(), "MemTotal");
        let levels = groups_of(hierarchy).into_iter().map(|group| Level {
            limit: below(most, memory_limit(tree, &dir_of(hierarchy, group), hierarchy.is_v2)),
            is_machine: is_machine(hierarchy, group, container),
        });
        let levels: Vec<Level> = levels.collect();
        let record = |at: usize| record(tree, hierarchy, at, &MEMORY);
        scope.memory = bound(&levels, container).and_then(record);
        scope.memory_limit = lowest(&levels).and_then(|(limit, at)| Some((record(at)?, limit)));
    }
    scope
}

/// Which of the groups around the agent, from the inside, bounds it: the one with the lowest limit, or the container if that is
/// further inside. `None`: the node is the machine.
fn bound(levels: &[Level], container: ContainerScope) -> Option<usize> {
    let contained = match container {
        ContainerScope { has_own_groups: true, .. } => levels.len().checked_sub(1),
        ContainerScope { has_own_processes: true, .. } => Some(0),
        ContainerScope { has_own_groups: false, has_own_processes: false } => None,
    };
    let limited = lowest(levels).map(|(_, at)| at);
    let bound = contained.into_iter().chain(limited).min()?;
    levels.get(bound).is_some_and(|level| !level.is_machine).then_some(bound)
}

/// The lowest limit, and the innermost group that has it.
fn lowest(levels: &[Level]) -> Option<(i64, usize)> {
    levels.iter().enumerate().filter_map(|(at, level)| Some((level.limit?, at))).min()
}

/// A limit that is less than what the machine has.
fn below(most: Option<i64>, limit: Option<i64>) -> Option<i64> {
    limit.filter(|limit| most.is_none_or(|most| *limit < most))
}

/// The group of this process and those around it, below the mount and from the inside.
fn groups_of(hierarchy: &Hierarchy) -> Vec<&str> {
    let mut groups = vec![hierarchy.group.as_str()];
    while let Some((outer, _)) = groups.last().and_then(|group| group.rsplit_once('/')) {
        groups.push(outer);
    }
    groups
}

fn dir_of(hierarchy: &Hierarchy, group: &str) -> String {
    format!("{}{group}", hierarchy.mount)
}

fn is_machine(hierarchy: &Hierarchy, group: &str, container: ContainerScope) -> bool {
    group.is_empty() && hierarchy.mounted.as_deref() == Some("/") && !container.has_own_groups
}

/// Where a group is; `None`: it does not count what is used.
fn record(tree: &Tree, hierarchy: &Hierarchy, level: usize, counter: &Counter) -> Option<GroupRecord> {
    let dir = dir_of(hierarchy, groups_of(hierarchy).get(level)?);
    let (controller, file) =
        if hierarchy.is_v2 { ("", counter.v2) } else { (counter.controller, counter.v1) };
    tree.has(&format!("{dir}/{file}")).then(|| GroupRecord::of_controller(controller, tree.path(&dir)))
}

#[cfg(test)]
mod tests;
