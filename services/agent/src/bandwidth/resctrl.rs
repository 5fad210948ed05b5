//! Memory bandwidth of running units, by the kernel's `resctrl`: groups of processes that CPUs slow down and count.
//!
//! A run that asks for memory bandwidth has a group of its own with a share of each L3 cache's way to the memory; the ways of a
//! machine are one for each L3 cache, and a run has those near its CPUs. Best-effort work has one group together with what nobody
//! asks for. Other runs are in no group, and are counted where the CPUs count. Only files below a root directory are read and
//! written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use super::{Care, Member, lives};
use crate::{
    cgroup::GroupRecord,
    detect::tree::{Tree, numbers},
};

const RESCTRL: &str = "/sys/fs/resctrl";
const CPUS: &str = "/sys/devices/system/cpu";
/// Names of the groups of agents begin with it.
const PREFIX: &str = "godel-";
const BEST_EFFORT: &str = "best-effort";
/// Groups in a group that are counted by themselves.
const MONITORS: &str = "mon_groups";
const TASKS: &str = "tasks";
const SCHEMATA: &str = "schemata";
const COUNTER: &str = "mbm_total_bytes";
const MIB: i64 = 1 << 20;
const ALL_PERCENT: i64 = 100;

/// How the ways to the memory are divided.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sharing {
    /// Least that a group has, and the step of what it may have.
    least: i64,
    step: i64,
    /// What one way has: per cent, or MiB per second (`mba_MBps`).
    whole: i64,
    /// What one way has, bytes per second.
    bytes: i64,
    /// CPUs by way.
    ways: BTreeMap<u32, Vec<u32>>,
}

impl Sharing {
    /// What a run has of each way that it uses; of the others it needs none.
    fn shares(&self, asked: i64, cpus: &[u32]) -> BTreeMap<u32, i64> {
        let is_near = |own: &Vec<u32>| cpus.is_empty() || cpus.iter().any(|cpu| own.contains(cpu));
        let mut used: Vec<u32> =
            self.ways.iter().filter(|(_, own)| is_near(own)).map(|(way, _)| *way).collect();
        if used.is_empty() {
            used = self.ways.keys().copied().collect();
        }
        let n = i64::try_from(used.len()).unwrap_or(1).max(1);
        let part = i128::from(asked.max(0)) * i128::from(self.whole);
        let whole = i128::from(self.bytes.max(1)) * i128::from(n);
        let share = i64::try_from((part + whole - 1) / whole).unwrap_or(i64::MAX);
        let share = self.rounded_up(share);
        used.into_iter().map(|way| (way, share)).collect()
    }

    fn rounded_up(&self, share: i64) -> i64 {
        let step = self.step.max(1);
        let up = share.saturating_add(step - 1) / step * step;
        up.clamp(self.least.min(self.whole), self.whole)
    }

    /// What is left of each way for best-effort work, when others have asked for theirs.
    fn rest(&self, asked: impl Iterator<Item = BTreeMap<u32, i64>>) -> BTreeMap<u32, i64> {
        let mut rest: BTreeMap<u32, i64> = self.ways.keys().map(|way| (*way, self.whole)).collect();
        for (way, share) in asked.flatten() {
            if let Some(left) = rest.get_mut(&way) {
                *left = left.saturating_sub(share);
            }
        }
        let step = self.step.max(1);
        rest.into_iter().map(|(way, left)| (way, (left / step * step).max(self.least))).collect()
    }
}

/// A line of `schemata`.
fn schemata(shares: &BTreeMap<u32, i64>) -> String {
    let parts: Vec<String> = shares.iter().map(|(way, share)| format!("{way}={share}")).collect();
    format!("MB:{}\n", parts.join(";"))
}

/// Where a run belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// With the processes of the run.
    dir: PathBuf,
    /// The control group of the run.
    group: GroupRecord,
    /// What it has to itself.
    shares: Option<BTreeMap<u32, i64>>,
    is_best_effort: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Resctrl {
    tree: Tree,
    dir: PathBuf,
    prefix: String,
    /// Or why nothing is kept.
    sharing: Result<Sharing, String>,
    counts: bool,
    placed: BTreeMap<String, Place>,
    /// Runs that got no group, as there are only so many.
    refused: BTreeSet<String>,
    /// As written last.
    rest: BTreeMap<u32, i64>,
}

impl Resctrl {
    /// Finds out what the machine below a root can do. `offered`: bytes per second that running units may ask for.
    pub(super) fn open(tree: &Tree, name: &str, offered: i64) -> Result<Self, String> {
        if !tree.has(&format!("{RESCTRL}/{SCHEMATA}")) {
            return Err("`resctrl` is not mounted, or the kernel or the CPUs have none (`mount -t resctrl resctrl /sys/fs/resctrl`)".to_owned());
        }
        let features = tree.text(&format!("{RESCTRL}/info/L3_MON/mon_features")).unwrap_or_default();
        let counts = features.lines().any(|feature| feature == COUNTER);
        let sharing = sharing(tree, offered);
        if let (Err(why), false) = (&sharing, counts) {
            return Err(format!("{why}, and the CPUs do not count it"));
        }
        let prefix = format!("{PREFIX}{name}-");
        let opened = Self {
            tree: tree.clone(),
            dir: tree.path(RESCTRL),
            prefix,
            sharing,
            counts,
            placed: BTreeMap::new(),
            refused: BTreeSet::new(),
            rest: BTreeMap::new(),
        };
        opened.sweep();
        Ok(opened)
    }

    pub(super) fn care(&self) -> Care {
        match &self.sharing {
            Ok(_) if self.counts => Care::Kept(String::new()),
            Ok(_) => Care::Kept("the CPUs do not count what is used".to_owned()),
            Err(why) => Care::Measured(why.clone()),
        }
    }

    /// Removes groups that an earlier agent of the same name has left, and those of agents without a state directory that have ended.
    fn sweep(&self) {
        let is_left = |name: &str| {
            name.starts_with(&self.prefix)
                || name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).is_some_and(|(pid, _)| {
                    pid.parse::<u32>().is_ok() && !self.tree.has(&format!("/proc/{pid}"))
                })
        };
        for parent in [self.dir.clone(), self.dir.join(MONITORS)] {
            let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| is_left(&entry.file_name().to_string_lossy())) {
                // Its processes belong to the rest from then on, until they are found.
                let _stays = fs::remove_dir(entry.path());
            }
        }
    }

    /// Where a run belongs; `None`: it is neither kept nor counted.
    fn place(&self, Member { name, ask, group }: &Member) -> Option<Place> {
        let group = group.clone();
        let own = format!("{}{name}", self.prefix);
        let all = self.dir.join(format!("{}{BEST_EFFORT}", self.prefix));
        match (&self.sharing, ask.memory) {
            (Ok(_), _) if ask.is_best_effort => {
                let dir = if self.counts { all.join(MONITORS).join(own) } else { all };
                Some(Place { dir, group, shares: None, is_best_effort: true })
            }
            (Ok(sharing), Some(asked)) => {
                let shares = Some(sharing.shares(asked, &ask.cpus));
                Some(Place { dir: self.dir.join(own), group, shares, is_best_effort: false })
            }
            (Ok(_), None) | (Err(_), _) => self.counts.then(|| Place {
                dir: self.dir.join(MONITORS).join(own),
                group,
                shares: None,
                is_best_effort: false,
            }),
        }
    }

    /// One more run is about to begin. Returns the file to which its first process writes itself.
    pub(super) fn join(&mut self, member: &Member) -> Option<PathBuf> {
        if let Some(place) = self.placed.get(&member.name) {
            return Some(place.dir.join(TASKS));
        }
        if self.refused.contains(&member.name) {
            return None;
        }
        let place = self.place(member)?;
        match self.make(&place) {
            Ok(()) => {
                let tasks = place.dir.join(TASKS);
                self.placed.insert(member.name.clone(), place);
                self.leave_the_rest();
                Some(tasks)
            }
            Err(error) => {
                self.refused.insert(member.name.clone());
                let is_kept = place.shares.is_some() || place.is_best_effort;
                if is_kept {
                    tracing::warn!(run = member.name, %error, "the memory bandwidth of a running unit is not kept");
                } else {
                    tracing::debug!(run = member.name, %error, "the memory bandwidth of a running unit is not measured");
                }
                None
            }
        }
    }

    fn make(&self, place: &Place) -> std::io::Result<()> {
        if place.is_best_effort {
            make_dir(&self.dir.join(format!("{}{BEST_EFFORT}", self.prefix)))?;
        }
        make_dir(&place.dir)?;
        match &place.shares {
            Some(shares) => fs::write(place.dir.join(SCHEMATA), schemata(shares)),
            None => Ok(()),
        }
    }

    /// Gives best-effort work what nobody asks for.
    fn leave_the_rest(&mut self) {
        let Ok(sharing) = &self.sharing else { return };
        if !self.placed.values().any(|place| place.is_best_effort) {
            return;
        }
        let rest = sharing.rest(self.placed.values().filter_map(|place| place.shares.clone()));
        if rest == self.rest {
            return;
        }
        let path = self.dir.join(format!("{}{BEST_EFFORT}", self.prefix)).join(SCHEMATA);
        match fs::write(path, schemata(&rest)) {
            Ok(()) => self.rest = rest,
            Err(error) => {
                tracing::warn!(%error, "the memory bandwidth of best-effort running units is not kept")
            }
        }
    }

    /// Takes care of exactly these runs, and moves what has escaped: containers, which others start.
    pub(super) fn keep_to(&mut self, members: &[Member]) {
        let is_there = |name: &str| members.iter().any(|member| member.name == name);
        let gone: Vec<String> = self.placed.keys().filter(|name| !is_there(name)).cloned().collect();
        self.refused.retain(|name| gone.is_empty() && is_there(name));
        for place in gone.iter().filter_map(|name| self.placed.remove(name)).collect::<Vec<_>>() {
            self.remove(&place);
        }
        if !gone.is_empty() {
            self.leave_the_rest();
        }
        for member in members {
            if let Some(tasks) = self.join(member) {
                self.gather(member, &tasks);
            }
        }
    }

    fn remove(&mut self, place: &Place) {
        let all = self.dir.join(format!("{}{BEST_EFFORT}", self.prefix));
        if place.dir != all {
            // One that stays is swept by the next agent.
            let _stays = fs::remove_dir(&place.dir);
        }
        if place.is_best_effort && !self.placed.values().any(|place| place.is_best_effort) {
            let _stays = fs::remove_dir(all);
            self.rest.clear();
        }
    }

    /// Moves all threads of a run whose processes are not in its group yet.
    fn gather(&self, member: &Member, tasks: &Path) {
        let pids = crate::cgroup::reopen(&member.group).pids().unwrap_or_default();
        let listed = fs::read_to_string(tasks).unwrap_or_default();
        let inside: BTreeSet<u32> = listed.lines().filter_map(|line| line.trim().parse().ok()).collect();
        for pid in pids.into_iter().filter(|pid| !inside.contains(pid)) {
            for thread in self.tree.numbered(&format!("/proc/{pid}/task"), "") {
                // The kernel takes one at a time. One that has just ended is none.
                let file = OpenOptions::new().append(true).create(true).open(tasks);
                let _ended = file.and_then(|mut file| file.write_all(format!("{thread}\n").as_bytes()));
            }
        }
    }

    /// Bytes between CPUs and memory, by run.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        if !self.counts {
            return BTreeMap::new();
        }
        let of = |(name, place): (&String, &Place)| {
            let data = place.dir.join("mon_data");
            let ways = fs::read_dir(data).ok()?.flatten();
            // `Unavailable` for a moment after the group was made.
            let bytes = ways.filter_map(|way| {
                fs::read_to_string(way.path().join(COUNTER)).ok()?.trim().parse::<u64>().ok()
            });
            Some((name.clone(), bytes.fold(0, u64::saturating_add)))
        };
        self.placed.iter().filter_map(of).collect()
    }
}

impl Drop for Resctrl {
    /// What goes on without the agent stays counted and kept.
    fn drop(&mut self) {
        let over: Vec<String> = self
            .placed
            .iter()
            .filter(|(_, place)| !lives(&place.group))
            .map(|(name, _)| name.clone())
            .collect();
        for place in over.iter().filter_map(|name| self.placed.remove(name)).collect::<Vec<_>>() {
            self.remove(&place);
        }
    }
}

fn make_dir(dir: &Path) -> std::io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn sharing(tree: &Tree, offered: i64) -> Result<Sharing, String> {
    if !tree.has(&format!("{RESCTRL}/info/MB")) {
        return Err("the CPUs cannot keep memory bandwidth".to_owned());
    }
    if offered <= 0 {
        return Err("the node offers no `memory-bandwidth` that units could ask for".to_owned());
    }
    let text = tree.text(&format!("{RESCTRL}/{SCHEMATA}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("MB:")).unwrap_or_default();
    let way = |part: &str| part.split_once('=')?.0.trim().parse::<u32>().ok();
    let mut ways: BTreeMap<u32, Vec<u32>> =
        line.split(';').filter_map(way).map(|way| (way, Vec::new())).collect();
    if ways.is_empty() {
        return Err("`resctrl` names no way to the memory".to_owned());
    }
    for cpu in tree.numbered(CPUS, "cpu") {
        if let Some((way, cpus)) = l3_of(tree, cpu)
            && let Some(own) = ways.get_mut(&way)
            && own.is_empty()
        {
            *own = cpus;
        }
    }
    let bytes = offered / i64::try_from(ways.len()).unwrap_or(1).max(1);
    let mounts = tree.text("/proc/self/mountinfo").unwrap_or_default();
    let in_mib = mounts.lines().any(|line| line.contains(" - resctrl ") && line.contains("mba_MBps"));
    let number = |name: &str, or: i64| tree.number(&format!("{RESCTRL}/info/MB/{name}")).unwrap_or(or);
    let whole = if in_mib { (bytes / MIB).max(1) } else { ALL_PERCENT };
    let (least, step) =
        if in_mib { (1, 1) } else { (number("min_bandwidth", 10), number("bandwidth_gran", 10)) };
    Ok(Sharing { least, step, whole, bytes, ways })
}

/// The number of the L3 cache of a CPU, and the CPUs that share it.
fn l3_of(tree: &Tree, cpu: u32) -> Option<(u32, Vec<u32>)> {
    let caches = format!("{CPUS}/cpu{cpu}/cache");
    let cache = tree.numbered(&caches, "index").into_iter().map(|index| format!("{caches}/index{index}"));
    let l3 = cache.into_iter().find(|cache| tree.number::<u32>(&format!("{cache}/level")) == Some(3))?;
    let cpus = numbers(&tree.text(&format!("{l3}/shared_cpu_list"))?)?;
    Some((tree.number(&format!("{l3}/id"))?, cpus))
}

#[cfg(test)]
mod tests;
