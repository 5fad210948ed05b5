//! Control groups of running units, of version 1 or 2 behind one trait.
//!
//! [`Groups`] finds out at the start of an agent where groups can be made, and of which version; [`Cgroup`] is one group. Both
//! only read and write files below a root directory, so that tests can write the tree of any machine. What a kernel has no
//! controller for is left out, once with a warning; a group that cannot be made at all is an error.

mod enter;
mod v1;
mod v2;

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::detect::{
    limits::{Hierarchy, hierarchies},
    tree::Tree,
};

/// Smallest CPU limit, thousandths of a CPU: below, a process hardly starts, let alone ends in time.
const CPU_MILLI_MIN: i64 = 100;
/// Smallest memory limit: a shell and what it starts do not fit into less.
const MEMORY_MIN: i64 = 16 << 20;
/// The period over which the kernel keeps a CPU limit, microseconds.
const PERIOD_US: i64 = 100_000;
/// The lowest weight, and what the kernel gives one CPU, as version 1 counts them (`cpu.shares`).
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
const SHARES_OF_CPU: i64 = 1_024;
/// The list of the processes of a group, in both versions.
const PROCS: &str = "cgroup.procs";
/// Names of the groups of agents, before the number of the process.
const PREFIX: &str = "godel-";
/// How often, and how long, an agent that ends waits for what it has ended.
const N_PAUSES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// Groups of one name that are tried: earlier ones are left by agents that had the number of this process.
const N_TRIES: u32 = 100;

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
    /// Bytes, now.
    pub memory: u64,
    /// Processes that the kernel has ended for want of memory.
    pub n_oom_kills: u64,
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

    /// Moves a process into it. What the process starts from then on is in it as well.
    ///
    /// # Errors
    /// See [`Self::set_cpu_limit`].
    fn add(&self, pid: u32) -> Result<(), Error>;

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

    /// Removes it.
    ///
    /// # Errors
    /// A process is still in it.
    fn remove(&self) -> Result<(), Error>;
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

    /// Has a command begin in the group, so that nothing that it starts is outside.
    ///
    /// # Errors
    /// The lists of processes of the group cannot be written.
    pub fn begin_in(&self, command: &mut Command) -> Result<(), Error> {
        let open = |path: PathBuf| {
            let opened = File::options().write(true).open(&path);
            opened.map_err(|source| Error { path, what: "no process can be moved into it", source })
        };
        let files = self.lists().into_iter().map(open).collect::<Result<Vec<File>, Error>>()?;
        enter::begin_in(command, files);
        Ok(())
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
    /// Finds out where groups can be made, and makes a group for this agent. `below`: the group in which, as `/godel`; `None`: that
    /// of this process. What the kernel has no controllers for is a warning.
    ///
    /// # Errors
    /// No groups can be made: why, and what may be done about it.
    pub fn open(root: &Path, below: Option<&str>, warnings: &mut Vec<String>) -> Result<Self, String> {
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
            Some(hierarchy) => v2::Parent::open(&tree, hierarchy).map(Version::V2),
            None => v1::Hierarchies::open(&tree, &v1, warnings).map(Version::V1),
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

    /// Makes a group whose name begins with `name`, with limits. What of these the kernel does not take is returned beside it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(&self, name: &str, limits: &GroupLimits) -> Result<(Box<dyn Cgroup>, Vec<Error>), Error> {
        let name = format!("{name}.{}", self.n_made.fetch_add(1, Ordering::Relaxed));
        let group: Box<dyn Cgroup> = match &self.version {
            Version::V1(hierarchies) => Box::new(hierarchies.make(&name)?),
            Version::V2(parent) => Box::new(parent.make(&name)?),
        };
        let failed = group.limit(limits);
        Ok((group, failed))
    }
}

impl Drop for Groups {
    /// Removes the group of the agent. What has just been ended in it may take a moment to be gone; if it takes longer, the next
    /// agent removes the group.
    fn drop(&mut self) {
        let is_removed = || match &self.version {
            Version::V1(hierarchies) => hierarchies.remove(),
            Version::V2(parent) => parent.remove(),
        };
        for _ in 0..N_PAUSES {
            if is_removed() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
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

/// Makes the directory of this agent in others, with a name that is free in all of them.
fn make_own(parents: &[&Path]) -> Result<String, Error> {
    let pid = std::process::id();
    let mut last = None;
    for attempt in 0..N_TRIES {
        let name = if attempt == 0 { format!("{PREFIX}{pid}") } else { format!("{PREFIX}{pid}-{attempt}") };
        let made = parents.iter().try_for_each(|parent| make_dir(&parent.join(&name)));
        match made {
            Ok(()) => return Ok(name),
            Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => {
                parents.iter().for_each(|parent| drop(remove(&parent.join(&name))));
                return Err(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| Error {
        path: PathBuf::new(),
        what: "cannot be made",
        source: io::ErrorKind::AlreadyExists.into(),
    }))
}

/// Removes the group of an agent, with the groups in it in which no process is. False: something is left.
fn remove_own(dir: &Path) -> bool {
    for inner in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
            // Something is in it: it stays.
            let _stays = std::fs::remove_dir(inner.path());
        }
    }
    remove(dir).is_ok()
}

/// Removes what agents have left that have ended: groups in which no process is.
fn sweep(tree: &Tree, parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
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
fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_OF_CPU) / 1_000).clamp(*SHARES.start(), *SHARES.end())
}

/// Microseconds of CPU time in each period.
fn quota_us(milli: i64) -> i64 {
    milli.saturating_mul(PERIOD_US) / 1_000
}

/// Numbers as the kernel lists them.
fn list(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    godel_domain::zone::show_cpus(&numbers)
}

#[cfg(test)]
mod tests;
