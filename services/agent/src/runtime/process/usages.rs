//! What the runs of an agent use: CPU, memory and bandwidths, by their control groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::PoisonError,
};

use godel_base::{
    resources::{MEMORY_BANDWIDTH, NETWORK},
    time::Millis,
};

use super::Home;
use crate::{
    Config,
    bandwidth::{BandwidthAsk, Bandwidths, Care, Member, Rates, Setting},
    cgroup::{GroupRecord, GroupUse, Groups},
    detect::tree::Tree,
    inventory::NodeDef,
    keeper::files::{self, KEEPER, RUN},
};

/// What runs use, by the names of their groups and directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunsUse {
    pub(crate) groups: Vec<GroupUse>,
    pub(crate) rates: BTreeMap<String, Rates>,
    /// What is done about the network and about memory bandwidth.
    pub(crate) care: Option<(Care, Care)>,
}

/// A run whose directory was read.
#[derive(Clone, Debug)]
pub(super) struct KnownRun {
    is_container: bool,
    /// Its group; of a container that of the engine. `None`: it has none.
    group: Option<GroupRecord>,
    ask: BandwidthAsk,
}

impl Home {
    /// Finds out what the machine can do about bandwidths, and says once what it cannot.
    pub(crate) fn with_bandwidths(self, config: &Config, def: &NodeDef) -> Self {
        let opened = if config.bandwidth {
            let interfaces: Vec<String> = config.network_interfaces().map(str::to_owned).collect();
            let setting = Setting { dir: &self.dir, name: &self.group, interfaces: &interfaces, node: def };
            let tree = Tree::new(Path::new("/"));
            let groups =
                self.groups.as_ref().ok_or_else(|| "running units have no control groups".to_owned());
            let groups = groups.and_then(|groups| groups.know_traffic(&tree));
            Bandwidths::open(&tree, groups, &setting)
        } else {
            Bandwidths::off("`agent.bandwidth` is false")
        };
        let (network, memory) = opened.care();
        say("network", def.capacity.get(NETWORK), &network);
        say("memory bandwidth", def.capacity.get(MEMORY_BANDWIDTH), &memory);
        *self.bandwidths.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        self
    }

    /// The run of a directory is about to begin in a group. Returns the files to which its first process writes itself.
    pub(super) fn join(&self, dir: &Path, group: Option<&GroupRecord>, ask: &BandwidthAsk) -> Vec<PathBuf> {
        let (Some(group), Some(name)) = (group, dir.file_name().and_then(|name| name.to_str())) else {
            return Vec::new();
        };
        let member = Member { name: name.to_owned(), group: group.clone(), ask: ask.clone() };
        self.bandwidths.lock().unwrap_or_else(PoisonError::into_inner).join(&member)
    }

    /// What runs use now. Takes care of their bandwidths as well, of those that an earlier agent has started too.
    pub(crate) fn usages(&self, now: Millis) -> RunsUse {
        let mut groups = self.groups.as_ref().map(Groups::usages).unwrap_or_default();
        let runs = fs::read_dir(self.runs()).into_iter().flatten().flatten();
        let names: BTreeSet<String> =
            runs.filter_map(|run| Some(run.file_name().to_str()?.to_owned())).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, _| names.contains(name));
        for name in names {
            if !known.contains_key(&name)
                // One that is being started is found the next time.
                && let Some(found) = known_run(&self.runs().join(&name))
            {
                known.insert(name, found);
            }
        }
        let mut members = Vec::new();
        for (name, KnownRun { is_container, group, ask }) in known.iter() {
            let Some(group) = group else { continue };
            if *is_container {
                let usage = crate::cgroup::reopen(group).usage();
                groups.push(GroupUse { name: name.clone(), group: group.clone(), usage });
            }
            members.push(Member { name: name.clone(), group: group.clone(), ask: ask.clone() });
        }
        drop(known);
        let mut bandwidths = self.bandwidths.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = bandwidths.look(&members, now).clone();
        RunsUse { groups, rates, care: Some(bandwidths.care()) }
    }
}

/// One warning where units may ask for what is not kept.
fn say(what: &str, offered: i64, care: &Care) {
    let reason = care.reason();
    match care {
        Care::Kept(_) if reason.is_empty() => {
            tracing::info!("running units are kept to the {what} that they ask for")
        }
        Care::Kept(_) => {
            tracing::warn!(reason, "running units are kept to the {what} that they ask for, but for a part")
        }
        Care::Measured(_) if offered > 0 => {
            tracing::warn!(
                reason,
                "the {what} of running units is measured, and they are not kept to what they ask for"
            );
        }
        Care::Accounted(_) if offered > 0 => {
            tracing::warn!(
                reason,
                "the {what} of running units is neither measured nor kept to what they ask for"
            );
        }
        Care::Measured(_) => tracing::info!(reason, "the {what} of running units is measured, and not kept"),
        Care::Accounted(_) => {
            tracing::info!(reason, "the {what} of running units is neither measured nor kept")
        }
    }
}

/// What is in the directory of a run; `None`: it does not run yet.
fn known_run(dir: &Path) -> Option<KnownRun> {
    let run: files::Run = files::read(&dir.join(RUN)).ok()?;
    let is_container = run.container.is_some();
    let group = if is_container {
        let keeper: files::Keeper = files::read(&dir.join(KEEPER)).ok()?;
        crate::cgroup::of_process(&Tree::new(Path::new("/")), keeper.started?.pid)
    } else {
        run.group
    };
    Some(KnownRun { is_container, group, ask: run.bandwidth })
}
