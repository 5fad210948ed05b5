//! What this process may use of its machine: the limits of its control groups, and the CPUs that it is allowed.

use super::tree::{Tree, numbers};

/// Version 1 says this much or more where memory is not limited.
const NO_LIMIT: i64 = 1 << 60;
const MILLI_CPU: i64 = 1_000;

/// One hierarchy of control groups, and where this process is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// Version 2, the unified hierarchy.
    pub(crate) is_v2: bool,
    /// Version 1: its controllers, as `cpu` and `cpuacct`.
    pub(crate) controllers: Vec<String>,
    /// Where it is mounted.
    pub(crate) mount: String,
    /// The group of this process, below the mount: empty, or `/a/b`.
    pub(crate) group: String,
    /// The group that is mounted. `None`: that of this process is not in it, and `group` says only where groups can be made.
    pub(crate) mounted: Option<String>,
}

impl Hierarchy {
    /// Returns the directories of the group of this process and of the groups around it, from the inside.
    pub(crate) fn dirs(&self) -> Vec<String> {
        let mut group = self.group.as_str();
        let mut dirs = vec![format!("{}{group}", self.mount)];
        while let Some((outer, _)) = group.rsplit_once('/') {
            dirs.push(format!("{}{outer}", self.mount));
            group = outer;
        }
        dirs
    }

    pub(crate) fn has(&self, controller: &str) -> bool {
        self.is_v2 || self.controllers.iter().any(|known| known == controller)
    }
}

/// Finds the hierarchies that this process is in and that are mounted where it can see its group.
pub(crate) fn hierarchies(tree: &Tree) -> Vec<Hierarchy> {
    hierarchies_of(tree, "self")
}

/// The same with the groups of another process, by its number.
pub(crate) fn hierarchies_of(tree: &Tree, process: &str) -> Vec<Hierarchy> {
    let mounts = tree.text("/proc/self/mountinfo").unwrap_or_default();
    let groups = tree.text(&format!("/proc/{process}/cgroup")).unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v2 = id == "0" && controllers.is_empty();
        let controllers: Vec<String> =
            controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let (root, mount) = mounts.lines().find_map(|line| mounted(line, is_v2, &controllers))?;
        // A group outside of what is mounted, or of the own namespace, cannot be seen.
        let seen = if root == "/" { Some(path) } else { path.strip_prefix(&root) };
        let group = seen.unwrap_or("/").trim_end_matches('/').to_owned();
        let mounted = seen.map(|_| root);
        (!group.split('/').any(|part| part == "..")).then_some(Hierarchy {
            is_v2,
            controllers,
            mount,
            group,
            mounted,
        })
    };
    groups.lines().filter_map(of_line).collect()
}

/// The root and the place of a mount, if a line of `mountinfo` is of the hierarchy.
fn mounted(line: &str, is_v2: bool, controllers: &[String]) -> Option<(String, String)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    let mut fields = after.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let is_it = match (is_v2, kind) {
        (true, "cgroup2") => true,
        (false, "cgroup") => controllers.iter().all(|name| options.split(',').any(|option| option == name)),
        _ => false,
    };
    let unescape = |text: &str| text.replace("\\040", " ");
    is_it.then(|| (unescape(root), unescape(mount).trim_end_matches('/').to_owned()))
}

/// Limits; `None`: there is none, or none is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Thousandths of a CPU.
    pub(super) cpu_milli: Option<i64>,
    /// Bytes.
    pub(super) memory: Option<i64>,
    /// CPUs by number, ascending.
    pub(super) cpus: Option<Vec<u32>>,
    /// NUMA nodes from which memory may come, ascending.
    pub(super) numa_nodes: Option<Vec<u32>>,
}

/// Finds the limits of this process: of its groups and of those around them the lowest.
pub(super) fn limits(tree: &Tree) -> Limits {
    let status = tree.text("/proc/self/status").unwrap_or_default();
    let allowed = |name: &str| {
        let list = status.lines().find_map(|line| line.strip_prefix(name))?.strip_prefix(':')?;
        numbers(list.trim()).filter(|list| !list.is_empty())
    };
    let mut limits = Limits {
        cpus: allowed("Cpus_allowed_list"),
        numa_nodes: allowed("Mems_allowed_list"),
        ..Limits::default()
    };
    for hierarchy in hierarchies(tree) {
        let dirs = hierarchy.dirs();
        if hierarchy.has("cpu") {
            let quotas = dirs.iter().filter_map(|dir| quota(tree, dir, hierarchy.is_v2));
            limits.cpu_milli = quotas.chain(limits.cpu_milli).min();
        }
        if hierarchy.has("memory") {
            let bounds = dirs.iter().filter_map(|dir| memory_limit(tree, dir, hierarchy.is_v2));
            limits.memory = bounds.chain(limits.memory).min();
        }
        if hierarchy.has("cpuset") {
            both(&mut limits.cpus, set(tree, &dirs, "cpus", hierarchy.is_v2));
            both(&mut limits.numa_nodes, set(tree, &dirs, "mems", hierarchy.is_v2));
        }
    }
    limits
}

/// Bytes that a group may use; `None`: it has no limit.
pub(crate) fn memory_limit(tree: &Tree, dir: &str, is_v2: bool) -> Option<i64> {
    let name = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
    let bytes = tree.number::<i64>(&format!("{dir}/{name}"));
    bytes.filter(|bytes| (1..NO_LIMIT).contains(bytes))
}

/// Thousandths of a CPU that a group may use; `None`: it has no limit.
pub(crate) fn quota(tree: &Tree, dir: &str, is_v2: bool) -> Option<i64> {
    let (quota, period) = if is_v2 {
        let text = tree.text(&format!("{dir}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        (quota.parse().ok()?, period.parse().ok()?)
    } else {
        let file = |name: &str| tree.number::<i64>(&format!("{dir}/cpu.{name}"));
        (file("cfs_quota_us")?, file("cfs_period_us")?)
    };
    (quota > 0 && period > 0).then(|| quota.saturating_mul(MILLI_CPU) / period)
}

/// The CPUs or memory nodes of the innermost group that says some.
fn set(tree: &Tree, dirs: &[String], what: &str, is_v2: bool) -> Option<Vec<u32>> {
    let effective =
        if is_v2 { format!("cpuset.{what}.effective") } else { format!("cpuset.effective_{what}") };
    let of = |dir: &String| {
        let names = [effective.clone(), format!("cpuset.{what}")];
        let lists = names.into_iter().filter_map(|name| tree.list(&format!("{dir}/{name}")));
        lists.into_iter().find(|list| !list.is_empty())
    };
    dirs.iter().find_map(of)
}

/// Keeps what both lists have, if both say something.
fn both(known: &mut Option<Vec<u32>>, more: Option<Vec<u32>>) {
    match (known.as_mut(), more) {
        (Some(list), Some(more)) => list.retain(|number| more.binary_search(number).is_ok()),
        (None, Some(more)) => *known = Some(more),
        (_, None) => {}
    }
}
