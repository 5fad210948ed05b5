//! Version 2: one directory for each group.

use std::path::{Path, PathBuf};

use super::{
    Cgroup, Error, GroupRecord, GroupUsage, PERIOD_US, PROCS, SHARES, kill_all, list, make_dir, make_own,
    quota_us, read_pids, remove, remove_own, shares, sweep, value_of, write,
};
use crate::detect::{limits::Hierarchy, tree::Tree};

/// Largest weight; the smallest is 1.
const WEIGHT_MAX: i64 = 10_000;
/// The controllers that are asked for; the first two are needed.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "cpuset"];

/// The directory in which groups are made.
#[derive(Debug)]
pub(super) struct Parent {
    dir: PathBuf,
}

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
}

/// Whether the controllers that are needed are of this version here.
pub(crate) fn has_controllers(tree: &Tree, hierarchy: &Hierarchy) -> bool {
    let known = hierarchy.dirs().iter().find_map(|dir| tree.text(&format!("{dir}/cgroup.controllers")));
    let known = known.unwrap_or_default();
    ["cpu", "memory"].iter().all(|name| known.split_whitespace().any(|controller| controller == *name))
}

/// How many groups below the root a group is.
pub(super) fn depth(dir: &Path) -> usize {
    let groups = dir.ancestors().take_while(|dir| dir.join("cgroup.controllers").exists());
    groups.count().saturating_sub(1)
}

impl Parent {
    /// Makes the group of this agent: in the group of this process if nothing but groups may be in it, else beside it.
    pub(super) fn open(tree: &Tree, hierarchy: &Hierarchy, name: &str) -> Result<Self, String> {
        let dirs = hierarchy.dirs();
        let own = dirs.first().map(|dir| tree.path(dir)).unwrap_or_default();
        let may_be_beside = |dir: &&String| {
            let is_slice = dir.ends_with(".slice");
            !is_slice && tree.text(&format!("{dir}/cgroup.procs")).is_some_and(|pids| pids.is_empty())
        };
        let beside = dirs.get(1).filter(may_be_beside).map(|dir| tree.path(dir));
        let mut why = String::new();
        for parent in std::iter::once(own).chain(beside) {
            sweep(tree, &parent);
            match Self::open_in(&parent, name) {
                Ok(opened) => return Ok(opened),
                Err(error) if why.is_empty() => why = format!("{error}: {}", error.source),
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn open_in(parent: &Path, name: &str) -> Result<Self, Error> {
        hand_down(parent)?;
        let dir = make_own(parent, name)?;
        match hand_down(&dir) {
            Ok(()) => Ok(Self { dir }),
            Err(error) => {
                // What an earlier agent has left in it stays.
                let _stays = remove(&dir);
                Err(error)
            }
        }
    }

    pub(super) fn make(&self, name: &str) -> Result<Group, Error> {
        let group = self.known(name);
        make_dir(&group.dir)?;
        Ok(group)
    }

    /// A group that was made before.
    pub(super) fn known(&self, name: &str) -> Group {
        Group { dir: self.dir.join(name) }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes the group of this agent. False: something is left in it.
    pub(super) fn remove(&self) -> bool {
        remove_own(&self.dir)
    }
}

/// Gives the groups in a directory the controllers. Without `cpuset` they go on.
fn hand_down(dir: &Path) -> Result<(), Error> {
    for controller in CONTROLLERS {
        let what = "gives its controllers to no groups in it";
        match write(&dir.join("cgroup.subtree_control"), &format!("+{controller}"), what) {
            Err(_) if controller == "cpuset" => {}
            written => written?,
        }
    }
    Ok(())
}

impl Group {
    pub(super) fn reopen(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    fn set(&self, file: &str, value: &str, what: &'static str) -> Result<(), Error> {
        write(&self.dir.join(file), value, what)
    }
}

impl Cgroup for Group {
    fn set_cpu_limit(&self, milli: Option<i64>) -> Result<(), Error> {
        let quota = milli.map_or_else(|| "max".to_owned(), |milli| quota_us(milli).to_string());
        self.set("cpu.max", &format!("{quota} {PERIOD_US}"), "its CPU limit cannot be set")
    }

    /// As the kernel converts what version 1 calls shares.
    fn set_cpu_weight(&self, milli: i64) -> Result<(), Error> {
        let (least, most) = (SHARES.start(), SHARES.end());
        let weight = 1 + (shares(milli) - least) * (WEIGHT_MAX - 1) / (most - least);
        self.set("cpu.weight", &weight.to_string(), "its CPU weight cannot be set")
    }

    fn set_memory_limit(&self, bytes: Option<i64>) -> Result<(), Error> {
        let limit = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        self.set("memory.max", &limit, "its memory limit cannot be set")?;
        // A limit that is evaded by swapping is none; a kernel without swap has no such file.
        let _no_swap = bytes.map(|_| self.set("memory.swap.max", "0", "it may swap"));
        // What needs more ends as a whole, not one process of it.
        let _older_kernel = self.set("memory.oom.group", "1", "it ends one process at a time");
        Ok(())
    }

    fn set_memory_soft_limit(&self, bytes: Option<i64>) -> Result<(), Error> {
        let limit = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        self.set("memory.high", &limit, "its soft memory limit cannot be set")
    }

    fn set_cpus(&self, cpus: &[u32], memory_nodes: &[u32]) -> Result<(), Error> {
        for (file, numbers) in [("cpuset.cpus", cpus), ("cpuset.mems", memory_nodes)] {
            if !numbers.is_empty() {
                self.set(file, &list(numbers), "its CPUs and memory nodes cannot be set")?;
            }
        }
        Ok(())
    }

    fn lists(&self) -> Vec<PathBuf> {
        vec![self.dir.join(PROCS)]
    }

    fn pids(&self) -> Result<Vec<u32>, Error> {
        read_pids(&self.dir.join(PROCS))
    }

    fn set_frozen(&self, frozen: bool) -> Result<(), Error> {
        self.set("cgroup.freeze", if frozen { "1" } else { "0" }, "it cannot be frozen or thawed")
    }

    fn kill(&self) -> Result<(), Error> {
        // Older kernels, before 5.14, have no such file.
        if self.dir.join("cgroup.kill").exists() {
            return self.set("cgroup.kill", "1", "its processes cannot be ended");
        }
        // What is frozen starts nothing while the others are being ended.
        let frozen = self.set_frozen(true);
        let pids = self.pids();
        kill_all(pids.as_deref().unwrap_or_default());
        let thawed = self.set_frozen(false);
        frozen.and(pids.map(|_| ())).and(thawed)
    }

    fn usage(&self) -> GroupUsage {
        let text = |file: &str| std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        GroupUsage {
            cpu_us: value_of(&text("cpu.stat"), "usage_usec").unwrap_or(0),
            memory: text("memory.current")
                .trim()
                .parse::<u64>()
                .unwrap_or(0)
                .saturating_sub(value_of(&text("memory.stat"), "inactive_file").unwrap_or(0)),
            n_oom_kills: value_of(&text("memory.events"), "oom_kill").unwrap_or(0),
        }
    }

    fn remove(&self) -> Result<(), Error> {
        remove(&self.dir)
    }

    fn record(&self) -> GroupRecord {
        GroupRecord { dirs: vec![(String::new(), self.dir.clone())] }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use godel_testkit::skip;

    use super::*;
    use crate::{cgroup::enter, detect::limits::hierarchies};

    /// What needs no controller works on any machine with this version, whichever has the controllers.
    #[test]
    fn a_real_group_freezes_and_ends_what_has_left_its_session() {
        let tree = Tree::new(Path::new("/"));
        let hierarchy = hierarchies(&tree).into_iter().find(|known| known.is_v2);
        let Some(dir) = hierarchy.and_then(|known| known.dirs().into_iter().next()) else {
            return println!("NOT HERE: version 2 is not mounted");
        };
        let dir = tree.path(&dir).join(format!("godel-test-{}", std::process::id()));
        if let Err(error) = make_dir(&dir) {
            return skip(format!("{error}: {}", error.source));
        }
        let group: Box<dyn Cgroup> = Box::new(Group { dir });
        let mut command = Command::new("sh");
        let lists = group.open_lists().unwrap();
        enter::begin_as(
            command.args(["-c", "setsid sleep 1000 & sleep 1000"]),
            lists,
            Vec::new(),
            None,
            0o022,
        );
        let mut child = command.spawn().unwrap();
        while group.pids().unwrap().len() < 3 {
            std::thread::yield_now();
        }
        assert!(group.pids().unwrap().contains(&child.id()));
        group.set_frozen(true).unwrap();
        assert!(group.remove().is_err(), "something is in it");
        group.kill().unwrap();
        child.wait().unwrap();
        while group.remove().is_err() {
            std::thread::yield_now();
        }
    }
}
