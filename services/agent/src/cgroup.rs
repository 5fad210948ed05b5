//! Control groups of running units, of version 1 or 2 behind one trait.
//!
//! [`Groups`] finds out at the start of an agent where groups can be made, and of which version; [`Cgroup`] is one group. Both
//! only read and write files below a root directory, so that tests can write the tree of any machine. What a kernel has no
//! controller for is left out, once with a warning; a group that cannot be made at all is an error.

pub(crate) mod enter;
mod v1;
mod v2;

pub(crate) use v2::has_controllers;

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::detect::{
    limits::{Hierarchy, hierarchies, hierarchies_of},
    tree::Tree,
};

/// Smallest CPU limit, thousandths of a CPU: below, a process hardly starts, let alone ends in time.
pub(crate) const CPU_MILLI_MIN: i64 = 100;
/// Smallest memory limit: a shell and what it starts do not fit into less.
pub(crate) const MEMORY_MIN: i64 = 16 << 20;
/// The period over which the kernel keeps a CPU limit, microseconds.
const PERIOD_US: i64 = 100_000;
/// The lowest weight, and what the kernel gives one CPU, as version 1 counts them (`cpu.shares`).
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
const SHARES_OF_CPU: i64 = 1_024;
/// The list of the processes of a group, in both versions.
const PROCS: &str = "cgroup.procs";
/// Names of the groups of agents begin with it; the number of the process follows for agents without a state directory.
const PREFIX: &str = "godel-";
/// The namespace of control groups that a machine starts with: a number of the kernel's interface.
pub(crate) const FIRST_NAMESPACE: &str = "cgroup:[4026531835]";
/// Groups of one run that are tried: those that are there have something in them that an earlier agent started.
const N_TRIES: u32 = 1_000;

/// What a running unit may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Thousandths of a CPU; `None`: no limit.
    pub cpu_milli: Option<i64>,
    /// Its part when CPUs are short, in thousandths of a CPU; 0: the lowest.
    pub cpu_weight_milli: i64,
    /// Bytes; `None`: no limit.
    pub memory: Option<i64>,
    /// Bytes above which its memory is taken first; `None`: none.
    pub memory_soft: Option<i64>,
    /// CPUs by number; empty: all.
    pub cpus: Vec<u32>,
    /// NUMA nodes from which its memory comes; empty: all.
    pub memory_nodes: Vec<u32>,
}

/// What a group has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// CPU time, microseconds.
    pub cpu_us: u64,
    /// Bytes, now, without files that the kernel could drop.
    pub memory: u64,
    /// Processes that the kernel has ended for want of memory.
    pub n_oom_kills: u64,
}

/// What the group of a run has used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// Of the run, or of one of its starts.
    pub name: String,
    /// Where it is.
    pub group: GroupRecord,
    /// What it has used.
    pub usage: GroupUsage,
}

/// Why something cannot be done with a group.
#[derive(Debug, thiserror::Error)]
#[error("control group {}: {what}", path.display())]
pub struct Error {
    path: PathBuf,
    what: &'static str,
    #[source]
    source: io::Error,
}

/// One control group, in all hierarchies that it needs.
pub trait Cgroup: Send + Sync + fmt::Debug {
    /// Limits CPU time to so many thousandths of a CPU.
    ///
    /// # Errors
    /// It cannot be written; as in all methods that set something.
    fn set_cpu_limit(&self, milli: Option<i64>) -> Result<(), Error>;

    /// Sets its part when CPUs are short, in thousandths of a CPU.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn set_cpu_weight(&self, milli: i64) -> Result<(), Error>;

    /// Limits memory: a group that needs more loses processes.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn set_memory_limit(&self, bytes: Option<i64>) -> Result<(), Error>;

    /// Sets the amount of memory above which the group gives way first.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn set_memory_soft_limit(&self, bytes: Option<i64>) -> Result<(), Error>;

    /// Sets the CPUs that its processes run on, and the NUMA nodes that their memory is from. Empty: those of the group around.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn set_cpus(&self, cpus: &[u32], memory_nodes: &[u32]) -> Result<(), Error>;

    /// Returns the files to which processes are written that are moved into it.
    fn lists(&self) -> Vec<PathBuf>;

    /// Returns the processes in it, ascending.
    ///
    /// # Errors
    /// They cannot be read.
    fn pids(&self) -> Result<Vec<u32>, Error>;

    /// Stops all of its processes where they are, or lets them go on.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn set_frozen(&self, frozen: bool) -> Result<(), Error>;

    /// Ends all of its processes. They are gone a moment later.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn kill(&self) -> Result<(), Error>;

    /// Returns what it has used; 0 of what no controller counts.
    fn usage(&self) -> GroupUsage;

    /// Removes it. One that is not there is removed.
    ///
    /// # Errors
    /// A process is still in it.
    fn remove(&self) -> Result<(), Error>;

    /// Returns where it is, for another process.
    fn record(&self) -> GroupRecord;
}

/// Where a group is: for the keeper of what runs in it, and for an agent that starts later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Of version 1: its directory by controller. Of version 2: one directory, of no controller.
    dirs: Vec<(String, PathBuf)>,
}

/// By what the kernel knows the packets of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Version 1: the class that stands in this file.
    ClassFile(PathBuf),
    /// Version 2: the group itself, so many groups below the root.
    Directory { dir: PathBuf, depth: usize },
}

impl GroupRecord {
    /// The group of one controller of version 1, or of version 2 with an empty controller.
    pub(crate) fn of_controller(controller: &str, dir: PathBuf) -> Self {
        Self { dirs: vec![(controller.to_owned(), dir)] }
    }

    /// The same group in the hierarchies of both.
    #[cfg(test)]
    pub(crate) fn joined(mut self, mut more: Self) -> Self {
        self.dirs.append(&mut more.dirs);
        self
    }

    /// Whether it is `outer` or lies in it, where `outer` is a group of one controller.
    pub(crate) fn is_within(&self, outer: &Self) -> bool {
        outer.dirs.iter().all(|(controller, outer)| {
            self.dirs.iter().any(|(known, dir)| known == controller && dir.starts_with(outer))
        })
    }

    /// Returns one of its directories, for people.
    pub(crate) fn dir(&self) -> &Path {
        self.dirs.first().map_or(Path::new(""), |(_, dir)| dir)
    }

    /// Returns by what its packets are known; `None`: by nothing.
    pub(crate) fn traffic(&self) -> Option<Traffic> {
        if let [(controller, dir)] = &self.dirs[..]
            && controller.is_empty()
        {
            return Some(Traffic::Directory { dir: dir.clone(), depth: v2::depth(dir) });
        }
        let of_class = self.dirs.iter().find(|(controller, _)| controller == v1::NET_CLS);
        of_class.map(|(_, dir)| Traffic::ClassFile(dir.join("net_cls.classid")))
    }
}

/// Opens a group that another process has made.
pub fn reopen(record: &GroupRecord) -> Box<dyn Cgroup> {
    match &record.dirs[..] {
        [(controller, dir)] if controller.is_empty() => Box::new(v2::Group::reopen(dir)),
        dirs => Box::new(v1::GroupV1::reopen(dirs)),
    }
}

/// The group that somebody else has made for a process and what it starts; `None`: it is in that of this process, or cannot be seen.
pub(crate) fn of_process(tree: &Tree, pid: u32) -> Option<GroupRecord> {
    let own = hierarchies(tree);
    let theirs = hierarchies_of(tree, &pid.to_string());
    let is_its_own = |known: &&Hierarchy| {
        let same = own.iter().find(|own| (own.is_v2, &own.controllers) == (known.is_v2, &known.controllers));
        !known.group.is_empty() && same.is_none_or(|own| own.group != known.group)
    };
    let seen: Vec<&Hierarchy> = theirs.iter().filter(is_its_own).collect();
    let dir = |known: &Hierarchy| Some(tree.path(known.dirs().first()?));
    let unified = seen.iter().find(|known| known.is_v2 && v2::has_controllers(tree, known));
    let dirs: Vec<(String, PathBuf)> = match unified {
        Some(known) => vec![(String::new(), dir(known)?)],
        None => v1::CONTROLLERS
            .iter()
            .filter_map(|(controller, _)| {
                let has = |known: &&&Hierarchy| known.controllers.iter().any(|name| name == controller);
                Some(((*controller).to_owned(), dir(seen.iter().find(has)?)?))
            })
            .collect(),
    };
    (!dirs.is_empty()).then_some(GroupRecord { dirs })
}

impl dyn Cgroup + '_ {
    /// Sets all limits; what the kernel does not take is left out and returned.
    pub fn limit(&self, limits: &GroupLimits) -> Vec<Error> {
        let GroupLimits { cpu_milli, cpu_weight_milli, memory, memory_soft, cpus, memory_nodes } = limits;
        let set = [
            self.set_cpu_limit(cpu_milli.map(|milli| milli.max(CPU_MILLI_MIN))),
            self.set_cpu_weight(*cpu_weight_milli),
            self.set_memory_limit(memory.map(|bytes| bytes.max(MEMORY_MIN))),
            self.set_memory_soft_limit(*memory_soft),
            self.set_cpus(cpus, memory_nodes),
        ];
        set.into_iter().filter_map(Result::err).collect()
    }

    /// Opens the lists of processes of the group, for a process that moves itself into it.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn open_lists(&self) -> Result<Vec<File>, Error> {
        let open = |path: PathBuf| {
            let opened = File::options().write(true).open(&path);
            opened.map_err(|source| Error { path, what: "no process can be moved into it", source })
        };
        self.lists().into_iter().map(open).collect()
    }
}

/// Where the groups of running units are made.
#[derive(Debug)]
pub struct Groups {
    version: Version,
    /// Distinguishes groups of one run that was started again.
    n_made: AtomicU64,
}

#[derive(Debug)]
enum Version {
    V1(v1::Hierarchies),
    V2(v2::Parent),
}

impl Groups {
    /// Finds out where groups can be made, and makes the group of this agent there, or finds the one that an earlier agent of the same
    /// `name` has left. `below`: the group in which, as `/godel`; `None`: that of this process. What the kernel has no
    /// controllers for is a warning.
    ///
    /// # Errors
    /// No groups can be made: why, and what may be done about it.
    pub fn open(
        root: &Path,
        below: Option<&str>,
        name: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        let name = format!("{PREFIX}{name}");
        let tree = Tree::new(root);
        let mut known = hierarchies(&tree);
        if let Some(below) = below {
            let below = below.trim_matches('/');
            let group = if below.is_empty() { String::new() } else { format!("/{below}") };
            known.iter_mut().for_each(|hierarchy| hierarchy.group.clone_from(&group));
        }
        let (v2, v1): (Vec<Hierarchy>, Vec<Hierarchy>) = known.into_iter().partition(|known| known.is_v2);
        let unified = v2.first().filter(|hierarchy| v2::has_controllers(&tree, hierarchy));
        let version = match unified {
            Some(hierarchy) => v2::Parent::open(&tree, hierarchy, &name).map(Version::V2),
            None => v1::Hierarchies::open(&tree, &v1, &name, warnings).map(Version::V1),
        };
        let advice = "give the agent a group of its own (systemd: `Delegate=yes` and `DelegateSubgroup=agent`), or \
                      name one that it may write with `agent.cgroup_root`";
        let version = version.map_err(|why| format!("{why}; {advice}"))?;
        Ok(Self { version, n_made: AtomicU64::new(0) })
    }

    /// Returns 1 or 2.
    pub fn version(&self) -> u32 {
        match self.version {
            Version::V1(_) => 1,
            Version::V2(_) => 2,
        }
    }

    /// Whether the packets of groups are known by their groups.
    ///
    /// # Errors
    /// They are not: why.
    pub(crate) fn know_traffic(&self, tree: &Tree) -> Result<(), String> {
        match &self.version {
            Version::V1(hierarchies) if hierarchies.has(v1::NET_CLS) => Ok(()),
            Version::V1(_) => Err(
                "the controller `net_cls` of control groups is not mounted: mount it, or boot with version 2"
                    .to_owned(),
            ),
            Version::V2(_) => match tree.link_name("/proc/self/ns/cgroup") {
                Some(namespace) if namespace != FIRST_NAMESPACE => Err(
                    "the agent has a namespace of control groups of its own: run it outside of a container"
                        .to_owned(),
                ),
                _ => Ok(()),
            },
        }
    }

    /// Makes a group whose name begins with `name`, with limits. What of these the kernel does not take is returned beside it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(&self, name: &str, limits: &GroupLimits) -> Result<(Box<dyn Cgroup>, Vec<Error>), Error> {
        let mut n_tries = 0;
        let group: Box<dyn Cgroup> = loop {
            let name = format!("{name}.{}", self.n_made.fetch_add(1, Ordering::Relaxed));
            let made = match &self.version {
                Version::V1(hierarchies) => {
                    hierarchies.make(&name).map(|group| Box::new(group) as Box<dyn Cgroup>)
                }
                Version::V2(parent) => parent.make(&name).map(|group| Box::new(group) as Box<dyn Cgroup>),
            };
            n_tries += 1;
            match made {
                Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists && n_tries < N_TRIES => {}
                made => break made?,
            }
        };
        let failed = group.limit(limits);
        Ok((group, failed))
    }

    /// The groups of runs, by their names.
    fn runs(&self) -> impl Iterator<Item = (String, Box<dyn Cgroup>)> {
        let dir = match &self.version {
            Version::V1(hierarchies) => hierarchies.dirs().into_iter().next(),
            Version::V2(parent) => Some(parent.dir()),
        };
        let names =
            dir.into_iter().flat_map(inner).filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()));
        names.map(|name| {
            let group: Box<dyn Cgroup> = match &self.version {
                Version::V1(hierarchies) => Box::new(hierarchies.known(&name)),
                Version::V2(parent) => Box::new(parent.known(&name)),
            };
            (name, group)
        })
    }

    /// What each group of a run uses, by its name.
    pub fn usages(&self) -> Vec<GroupUse> {
        self.runs()
            .map(|(name, group)| GroupUse { name, group: group.record(), usage: group.usage() })
            .collect()
    }

    /// The processes in each group of a run, by its name. A group that is being removed has none.
    pub fn pids(&self) -> Vec<(String, Vec<u32>)> {
        self.runs().map(|(name, group)| (name, group.pids().unwrap_or_default())).collect()
    }

    /// Removes the groups of runs in which no process is, but for those of `kept`.
    pub fn sweep(&self, kept: &[GroupRecord]) {
        let parents = match &self.version {
            Version::V1(hierarchies) => hierarchies.dirs(),
            Version::V2(parent) => vec![parent.dir()],
        };
        let is_kept = |dir: &Path| kept.iter().any(|group| group.dirs.iter().any(|(_, kept)| kept == dir));
        for parent in parents {
            for inner in inner(parent).filter(|inner| !is_kept(inner)) {
                // Something is in it: it stays.
                let _stays = std::fs::remove_dir(inner);
            }
        }
    }
}

impl Drop for Groups {
    /// Removes the group of the agent, unless something is in it: what goes on without the agent stays in its group, which the next
    /// agent finds.
    fn drop(&mut self) {
        let _is_removed = match &self.version {
            Version::V1(hierarchies) => hierarchies.remove(),
            Version::V2(parent) => parent.remove(),
        };
    }
}

fn write(path: &Path, value: &str, what: &'static str) -> Result<(), Error> {
    std::fs::write(path, value).map_err(|source| Error { path: path.to_owned(), what, source })
}

fn remove(dir: &Path) -> Result<(), Error> {
    match std::fs::remove_dir(dir) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error { path: dir.to_owned(), what: "cannot be removed", source })
        }
        _ => Ok(()),
    }
}

/// Makes a directory that was not there.
fn make_dir(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir(dir).map_err(|source| Error { path: dir.to_owned(), what: "cannot be made", source })
}

/// Makes the directory of this agent, or finds it.
fn make_own(parent: &Path, name: &str) -> Result<PathBuf, Error> {
    let dir = parent.join(name);
    match make_dir(&dir) {
        Err(error) if error.source.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(dir),
    }
}

/// The groups in a group.
fn inner(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|inner| inner.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|inner| inner.path())
}

/// Removes the group of an agent if no process is in it, nor in the groups in it. False: something is left.
fn remove_own(dir: &Path) -> bool {
    // Most agents leave something: then the groups in which nothing is are left as well, for the next agent to sweep.
    let has_some = |inner: PathBuf| read_pids(&inner.join(PROCS)).is_ok_and(|pids| !pids.is_empty());
    if inner(dir).any(has_some) {
        return false;
    }
    for inner in inner(dir) {
        // Something has just begun in it: it stays.
        let _stays = std::fs::remove_dir(inner);
    }
    remove(dir).is_ok()
}

/// Removes what agents without a state directory have left that have ended: groups in which no process is.
fn sweep(tree: &Tree, parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX) else { continue };
        if pid.parse::<u32>().is_err() || tree.has(&format!("/proc/{pid}")) {
            continue;
        }
        let _something_is_left = remove_own(&entry.path());
    }
}

fn read_pids(path: &Path) -> Result<Vec<u32>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error {
        path: path.to_owned(),
        what: "its processes cannot be read",
        source,
    })?;
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Sends SIGKILL to each process.
fn kill_all(pids: &[u32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        // It has ended in this moment otherwise.
        let _ended = kill_process(pid, Signal::KILL);
    }
}

/// The value of a line `NAME VALUE`.
fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A weight as version 1 counts it.
pub(crate) fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_OF_CPU) / 1_000).clamp(*SHARES.start(), *SHARES.end())
}

/// Microseconds of CPU time in each period.
fn quota_us(milli: i64) -> i64 {
    milli.saturating_mul(PERIOD_US) / 1_000
}

/// Numbers as the kernel lists them.
pub(crate) fn list(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    godel_domain::zone::show_cpus(&numbers)
}

#[cfg(test)]
mod tests;
