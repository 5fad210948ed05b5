//! Version 1: a directory for each group in each hierarchy of controllers.

use std::path::{Path, PathBuf};

use super::{
    Cgroup, Error, GroupRecord, GroupUsage, PERIOD_US, PROCS, kill_all, list, make_dir, make_own, quota_us,
    read_pids, remove, remove_own, shares, sweep, value_of, write,
};
use crate::detect::{limits::Hierarchy, tree::Tree};

/// The controllers that are used, and what is not kept without each.
pub(super) const CONTROLLERS: [(&str, &str); 6] = [
    ("freezer", "processes may escape while their group is being ended"),
    ("cpu", "CPU limits and weights are not kept"),
    ("cpuacct", "CPU time is not counted"),
    ("memory", "memory limits are not kept"),
    ("cpuset", "zones are not kept"),
    // What that costs is said where bandwidths are.
    (NET_CLS, ""),
];
/// The controller by whose classes the packets of a group are known.
pub(super) const NET_CLS: &str = "net_cls";
/// How often the processes of a group without a freezer are ended before what they started meanwhile counts as gone.
const N_ROUNDS: u32 = 10;
/// No limit.
const NONE: &str = "-1";

/// Directories by controller.
type Dirs = [(&'static str, PathBuf)];

/// The directories in which groups are made, by controller. Controllers of one hierarchy have the same.
#[derive(Debug)]
pub(super) struct Hierarchies {
    dirs: Vec<(&'static str, PathBuf)>,
}

/// One group.
#[derive(Debug)]
pub(super) struct GroupV1 {
    dirs: Vec<(&'static str, PathBuf)>,
}

impl Hierarchies {
    /// Makes the group of this agent in every hierarchy that it can be made in.
    pub(super) fn open(
        tree: &Tree,
        known: &[Hierarchy],
        name: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        let mut parents: Vec<(&'static str, PathBuf)> = Vec::new();
        for (controller, _) in CONTROLLERS {
            let hierarchy =
                known.iter().find(|known| known.controllers.iter().any(|name| name == controller));
            let dir = hierarchy.and_then(|hierarchy| hierarchy.dirs().into_iter().next());
            parents.extend(dir.map(|dir| (controller, tree.path(&dir))));
        }
        if parents.is_empty() {
            return Err("no control groups are mounted".to_owned());
        }
        let mut dirs = Vec::new();
        let mut failed = Vec::new();
        for dir in distinct(&parents) {
            sweep(tree, dir);
            match make_own(dir, name) {
                Ok(own) => {
                    let here = parents.iter().filter(|(_, parent)| parent == dir);
                    dirs.extend(here.map(|(controller, _)| (*controller, own.clone())));
                }
                Err(error) => failed.push(format!("{error}: {}", error.source)),
            }
        }
        let opened = Self { dirs };
        if !opened.dirs.iter().any(|(controller, _)| matches!(*controller, "cpu" | "memory")) {
            opened.remove();
            let why = failed.into_iter().next();
            return Err(
                why.unwrap_or_else(|| "neither the controller `cpu` nor `memory` is mounted".to_owned())
            );
        }
        for (controller, cost) in CONTROLLERS {
            if !cost.is_empty() && !opened.has(controller) {
                warnings
                    .push(format!("the controller `{controller}` of control groups cannot be used: {cost}"));
            }
        }
        if let Some(dir) = dir_of(&opened.dirs, "cpuset") {
            inherit(dir).map_err(|error| format!("{error}: {}", error.source))?;
        }
        Ok(opened)
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        dir_of(&self.dirs, controller).is_some()
    }

    pub(super) fn make(&self, name: &str) -> Result<GroupV1, Error> {
        let group = self.known(name);
        let made = distinct(&group.dirs).into_iter().try_for_each(|dir| make_dir(dir));
        let cpuset = dir_of(&group.dirs, "cpuset");
        if let Err(error) = made.and_then(|()| cpuset.map_or(Ok(()), inherit)) {
            let _not_made = group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// A group that was made before.
    pub(super) fn known(&self, name: &str) -> GroupV1 {
        GroupV1 { dirs: self.dirs.iter().map(|(controller, dir)| (*controller, dir.join(name))).collect() }
    }

    pub(super) fn dirs(&self) -> Vec<&Path> {
        distinct(&self.dirs).into_iter().map(PathBuf::as_path).collect()
    }

    /// Removes the group of this agent. False: something is left in it.
    pub(super) fn remove(&self) -> bool {
        let left = distinct(&self.dirs).into_iter().filter(|dir| !remove_own(dir));
        left.count() == 0
    }
}

fn dir_of<'a>(dirs: &'a Dirs, controller: &str) -> Option<&'a Path> {
    dirs.iter().find(|(known, _)| *known == controller).map(|(_, dir)| dir.as_path())
}

fn distinct(dirs: &Dirs) -> Vec<&PathBuf> {
    let mut found: Vec<&PathBuf> = Vec::new();
    for (_, dir) in dirs {
        if !found.contains(&dir) {
            found.push(dir);
        }
    }
    found
}

/// Gives a group that has none the CPUs and memory nodes of the one around it: without any, no process can be moved into it.
fn inherit(dir: &Path) -> Result<(), Error> {
    let around = dir.parent().unwrap_or(dir);
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let text = |dir: &Path| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let of_around = text(around);
        if text(dir).trim().is_empty() && !of_around.trim().is_empty() {
            write(&dir.join(file), of_around.trim(), "its CPUs and memory nodes cannot be set")?;
        }
    }
    Ok(())
}

impl GroupV1 {
    pub(super) fn reopen(dirs: &[(String, PathBuf)]) -> Self {
        let known = |(name, dir): &(String, PathBuf)| {
            let controller = CONTROLLERS.iter().find(|(controller, _)| controller == name);
            controller.map(|(controller, _)| (*controller, dir.clone()))
        };
        Self { dirs: dirs.iter().filter_map(known).collect() }
    }

    /// Writes a file of a controller; without that controller nothing.
    fn set(&self, controller: &str, file: &str, value: &str, what: &'static str) -> Result<(), Error> {
        match dir_of(&self.dirs, controller) {
            Some(dir) => write(&dir.join(file), value, what),
            None => Ok(()),
        }
    }

    fn text(&self, controller: &str, file: &str) -> String {
        let dir = dir_of(&self.dirs, controller);
        dir.and_then(|dir| std::fs::read_to_string(dir.join(file)).ok()).unwrap_or_default()
    }
}

impl Cgroup for GroupV1 {
    fn set_cpu_limit(&self, milli: Option<i64>) -> Result<(), Error> {
        let what = "its CPU limit cannot be set";
        self.set("cpu", "cpu.cfs_period_us", &PERIOD_US.to_string(), what)?;
        let quota = milli.map_or_else(|| NONE.to_owned(), |milli| quota_us(milli).to_string());
        self.set("cpu", "cpu.cfs_quota_us", &quota, what)
    }

    fn set_cpu_weight(&self, milli: i64) -> Result<(), Error> {
        self.set("cpu", "cpu.shares", &shares(milli).to_string(), "its CPU weight cannot be set")
    }

    fn set_memory_limit(&self, bytes: Option<i64>) -> Result<(), Error> {
        let limit = bytes.map_or_else(|| NONE.to_owned(), |bytes| bytes.to_string());
        self.set("memory", "memory.limit_in_bytes", &limit, "its memory limit cannot be set")?;
        // A limit that is evaded by swapping is none; a kernel without swap has no such file.
        let _no_swap = self.set("memory", "memory.memsw.limit_in_bytes", &limit, "it may swap");
        Ok(())
    }

    fn set_memory_soft_limit(&self, bytes: Option<i64>) -> Result<(), Error> {
        let limit = bytes.map_or_else(|| NONE.to_owned(), |bytes| bytes.to_string());
        self.set("memory", "memory.soft_limit_in_bytes", &limit, "its soft memory limit cannot be set")
    }

    fn set_cpus(&self, cpus: &[u32], memory_nodes: &[u32]) -> Result<(), Error> {
        for (file, numbers) in [("cpuset.cpus", cpus), ("cpuset.mems", memory_nodes)] {
            if !numbers.is_empty() {
                self.set("cpuset", file, &list(numbers), "its CPUs and memory nodes cannot be set")?;
            }
        }
        Ok(())
    }

    fn lists(&self) -> Vec<PathBuf> {
        distinct(&self.dirs).into_iter().map(|dir| dir.join(PROCS)).collect()
    }

    /// As any of the hierarchies knows them: a process is in the same group of each.
    fn pids(&self) -> Result<Vec<u32>, Error> {
        self.dirs.first().map_or(Ok(Vec::new()), |(_, dir)| read_pids(&dir.join(PROCS)))
    }

    fn set_frozen(&self, frozen: bool) -> Result<(), Error> {
        let state = if frozen { "FROZEN" } else { "THAWED" };
        self.set("freezer", "freezer.state", state, "it cannot be frozen or thawed")
    }

    fn kill(&self) -> Result<(), Error> {
        // What is frozen starts nothing while the others are being ended.
        let frozen = self.set_frozen(true);
        let n_rounds = if dir_of(&self.dirs, "freezer").is_some() { 1 } else { N_ROUNDS };
        let mut killed = Ok(());
        for _ in 0..n_rounds {
            let pids = self.pids();
            kill_all(pids.as_deref().unwrap_or_default());
            killed = pids.map(|_| ());
        }
        let thawed = self.set_frozen(false);
        frozen.and(killed).and(thawed)
    }

    fn usage(&self) -> GroupUsage {
        let number =
            |controller: &str, file: &str| self.text(controller, file).trim().parse::<u64>().unwrap_or(0);
        GroupUsage {
            cpu_us: number("cpuacct", "cpuacct.usage") / 1_000,
            memory: number("memory", "memory.usage_in_bytes").saturating_sub(
                value_of(&self.text("memory", "memory.stat"), "total_inactive_file").unwrap_or(0),
            ),
            n_oom_kills: value_of(&self.text("memory", "memory.oom_control"), "oom_kill").unwrap_or(0),
        }
    }

    fn remove(&self) -> Result<(), Error> {
        distinct(&self.dirs).into_iter().try_for_each(|dir| remove(dir))
    }

    fn record(&self) -> GroupRecord {
        let dirs = self.dirs.iter().map(|(controller, dir)| ((*controller).to_owned(), dir.clone()));
        GroupRecord { dirs: dirs.collect() }
    }
}
