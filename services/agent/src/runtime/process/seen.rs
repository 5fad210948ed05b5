//! What really runs on the node, found among the processes of its machine and the containers of its engine.
//!
//! Nothing that the agent remembers counts here: a running unit is what its keeper has started and has not ended. A process belongs to a
//! run if it descends from a keeper that lives. One that does not is an orphan if it is in the control group of a run, or carries
//! the environment that this installation gives to a run. [`look`] reads, [`found`] decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use godel_core_agent::RunKey;

use super::{
    Home,
    strays::{self, NodeMark},
};
use crate::{
    docker::{self, Labelled},
    keeper::files::{self, KEEPER, RUN},
    measure::run_of,
    procfs::{self, Process, Stat},
};

/// Running units in one answer.
const N_RUNNING_MAX: usize = 4_096;
/// Orphans in one answer.
const N_ORPHANS_MAX: usize = 256;
/// The engine says in this time which containers run, or that is not known.
const ENGINE_PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of a uid, and of the name of a container: a process may have any environment.
const N_BYTES_MAX: usize = 253;
/// Parents between a process and its keeper; more are none that a unit has.
const N_PARENTS_MAX: usize = 10_000;

/// Whose a run is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// A replica of the unit with this id.
    Unit(RunKey),
    /// A replica of the unit with this uid.
    Uid(String, u32),
}

/// A process that no running unit owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// `None`: it is a container.
    pub(crate) process: Option<Process>,
    pub(crate) name: String,
    pub(crate) whose: Whose,
    pub(crate) incarnation: u32,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Processes of each incarnation that has some.
    pub(crate) running: BTreeMap<(RunKey, u32), u32>,
    pub(crate) orphans: Vec<Orphan>,
    /// Why something may be missing.
    pub(crate) failure: Option<String>,
}

/// The directory of a run.
#[derive(Clone, Debug)]
struct Known {
    key: RunKey,
    incarnation: u32,
    mark: String,
    /// Of this boot of the machine.
    keeper: Option<Process>,
    container: Option<String>,
}

/// A process with the environment of a run.
#[derive(Clone, Debug)]
struct Marked {
    pid: u32,
    mark: String,
    unit_uid: String,
    ordinal: u32,
    incarnation: u32,
}

/// What was read at one look.
#[derive(Debug, Default)]
struct Machine {
    known: Vec<Known>,
    /// Processes in the group of each incarnation.
    groups: Vec<((RunKey, u32), Vec<u32>)>,
    all: BTreeMap<u32, Stat>,
    containers: Vec<Labelled>,
}

/// Looks at the machine of a node.
pub(crate) async fn look(home: Arc<Home>) -> Seen {
    let (containers, failure) = match home.images() {
        None => (Vec::new(), None),
        Some(images) => {
            let node = home.node_mark();
            match tokio::time::timeout(ENGINE_PATIENCE, docker::of_node(&images.socket, &node)).await {
                Ok(Ok(mut containers)) => {
                    containers.retain(|one| one.is_running);
                    (containers, None)
                }
                Ok(Err(error)) => (Vec::new(), Some(error.to_string())),
                Err(_) => (Vec::new(), Some("the Docker engine does not answer".to_owned())),
            }
        }
    };
    let looked = tokio::task::spawn_blocking(move || {
        let groups = home.group_pids().into_iter().filter_map(|(name, pids)| Some((run_of(&name)?, pids)));
        let groups: Vec<_> = groups.collect();
        let (known, all) = (known(&home.runs()), procfs::all());
        let machine = Machine { known, groups, all, containers };
        // Reading environments takes the longest: those of processes that somebody owns are not needed.
        let owners = owners(&machine);
        let rest = machine.all.keys().filter(|pid| !owners.contains_key(pid));
        let node = home.node_mark();
        let marked: Vec<Marked> = rest.filter_map(|pid| marked(*pid, &node)).collect();
        found(&machine, &owners, &marked, procfs::name)
    });
    let mut seen = looked.await.unwrap_or_else(|error| Seen {
        failure: Some(format!("the processes of the machine cannot be read: {error}")),
        ..Seen::default()
    });
    seen.failure = seen.failure.or(failure);
    seen
}

/// The directories of runs.
fn known(runs: &Path) -> Vec<Known> {
    let boot_id = procfs::boot_id();
    let dirs = fs::read_dir(runs).into_iter().flatten().flatten();
    let of_dir = |dir: fs::DirEntry| {
        let run: files::Run = files::read(&dir.path().join(RUN)).ok()?;
        let keeper: Option<files::Keeper> = files::read(&dir.path().join(KEEPER)).ok();
        let keeper = keeper.filter(|keeper| keeper.boot_id == boot_id).map(|keeper| keeper.process());
        Some(Known {
            key: RunKey { unit: run.unit, ordinal: run.ordinal },
            incarnation: run.incarnation,
            mark: run.mark,
            keeper,
            container: run.container.map(|container| container.name),
        })
    };
    dirs.filter_map(of_dir).collect()
}

/// What the environment of a process says, if it is of this node: also of the state directory that it had before.
fn marked(pid: u32, node: &NodeMark) -> Option<Marked> {
    let environment = procfs::environment(pid);
    let value = |name: &str| strays::value(&environment, name).map(str::to_owned);
    // One without a state directory has the identity of the machine.
    let is_own = || node.dir.is_none() && value(strays::NODE_UID).as_ref() == Some(&node.uid);
    if !node.is_of(&environment) && !is_own() {
        return None;
    }
    Some(Marked {
        pid,
        mark: value("GODEL_RUN")?,
        unit_uid: value("GODEL_UID").filter(|uid| uid.len() <= N_BYTES_MAX)?,
        ordinal: value("GODEL_ORDINAL")?.parse().ok()?,
        incarnation: value("GODEL_INCARNATION")?.parse().ok()?,
    })
}

/// The keepers that live, by process number, with the position of their run.
fn keepers(machine: &Machine) -> BTreeMap<u32, usize> {
    let lives =
        |keeper: &Process| machine.all.get(&keeper.pid).is_some_and(|stat| stat.began == keeper.began);
    let known = machine.known.iter().enumerate();
    known.filter_map(|(at, known)| Some((known.keeper.filter(lives)?.pid, at))).collect()
}

/// The run of each process that descends from a keeper, by position.
fn owners(machine: &Machine) -> BTreeMap<u32, usize> {
    let keepers = keepers(machine);
    let owner = |pid: u32| {
        let mut parent = machine.all.get(&pid)?.parent;
        for _ in 0..N_PARENTS_MAX {
            if let Some(at) = keepers.get(&parent) {
                return Some(*at);
            }
            parent = machine.all.get(&parent)?.parent;
        }
        None
    };
    machine.all.keys().filter_map(|pid| Some((*pid, owner(*pid)?))).collect()
}

/// What all of it means.
fn found(
    machine: &Machine,
    owners: &BTreeMap<u32, usize>,
    marked: &[Marked],
    name_of: impl Fn(u32) -> String,
) -> Seen {
    let Machine { known, groups, all, containers } = machine;
    let mut seen = Seen::default();
    let kept: BTreeSet<usize> = keepers(machine).into_values().collect();
    // Of one incarnation one keeper is right; a second one, whatever it says, keeps a second process of the replica.
    let right: BTreeMap<(RunKey, u32), usize> =
        kept.iter().map(|at| ((known[*at].key, known[*at].incarnation), *at)).collect();
    let is_double =
        |at: usize| right.get(&(known[at].key, known[at].incarnation)).is_some_and(|one| *one != at);
    let mut lost: BTreeMap<u32, (Whose, u32)> = BTreeMap::new();
    let mut count = |at: usize| {
        let Known { key, incarnation, .. } = known[at];
        *seen.running.entry((key, incarnation)).or_insert(0) += 1;
    };
    for (pid, at) in owners {
        if is_double(*at) {
            lost.insert(*pid, (Whose::Unit(known[*at].key), known[*at].incarnation));
        } else {
            count(*at);
        }
    }
    let by_container: BTreeMap<&str, usize> = known
        .iter()
        .enumerate()
        .filter(|(at, _)| kept.contains(at))
        .filter_map(|(at, known)| Some((known.container.as_deref()?, at)))
        .collect();
    let mut orphans = Vec::new();
    for one in containers {
        if let Some(at) = by_container.get(one.name.as_str()) {
            count(*at);
        } else if let (Some((unit, ordinal)), Some(incarnation)) = (one.replica, one.incarnation) {
            let whose = Whose::Unit(RunKey { unit, ordinal });
            let mut name = one.name.clone();
            name.truncate(name.floor_char_boundary(N_BYTES_MAX));
            orphans.push(Orphan { process: None, name, whose, incarnation });
        }
    }
    for one in marked {
        let of_mark = known.iter().enumerate().find(|(_, known)| known.mark == one.mark);
        // What is in a container is not started by its keeper.
        if of_mark.is_some_and(|(at, known)| known.container.is_some() && kept.contains(&at)) {
            continue;
        }
        let whose = match of_mark {
            Some((_, known)) => Whose::Unit(known.key),
            None => Whose::Uid(one.unit_uid.clone(), one.ordinal),
        };
        lost.insert(one.pid, (whose, one.incarnation));
    }
    for ((key, incarnation), pids) in groups {
        for pid in pids.iter().filter(|pid| !owners.contains_key(pid)) {
            lost.insert(*pid, (Whose::Unit(*key), *incarnation));
        }
    }
    for (pid, (whose, incarnation)) in lost {
        // One that is not among all has ended since its group was read, or has just begun.
        let Some(stat) = all.get(&pid) else { continue };
        let process = Some(Process { pid, began: stat.began });
        orphans.push(Orphan { process, name: name_of(pid), whose, incarnation });
    }
    if seen.running.len() > N_RUNNING_MAX || orphans.len() > N_ORPHANS_MAX {
        let text = format!(
            "{} running units and {} orphans are too many to list",
            seen.running.len(),
            orphans.len()
        );
        seen.failure = Some(text);
        seen.running = std::mem::take(&mut seen.running).into_iter().take(N_RUNNING_MAX).collect();
        orphans.truncate(N_ORPHANS_MAX);
    }
    seen.orphans = orphans;
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(unit: u64) -> RunKey {
        RunKey { unit, ordinal: 0 }
    }

    fn known(unit: u64, keeper: Option<(u32, u64)>, container: Option<&str>) -> Known {
        Known {
            key: key(unit),
            incarnation: 0,
            mark: format!("mark-{unit}"),
            keeper: keeper.map(|(pid, began)| Process { pid, began }),
            container: container.map(str::to_owned),
        }
    }

    /// Processes as number, parent and start.
    fn all(processes: &[(u32, u32, u64)]) -> BTreeMap<u32, Stat> {
        let stat = |parent, began| Stat { state: 'S', parent, session: 1, began };
        processes.iter().map(|(pid, parent, began)| (*pid, stat(*parent, *began))).collect()
    }

    fn marked(pid: u32, mark: &str) -> Marked {
        Marked { pid, mark: mark.to_owned(), unit_uid: "u-9".to_owned(), ordinal: 3, incarnation: 2 }
    }

    fn found_in(machine: &Machine, marked: &[Marked]) -> Seen {
        found(machine, &owners(machine), marked, |pid| format!("p{pid}"))
    }

    fn orphans(seen: &Seen) -> Vec<(String, Whose, u32)> {
        seen.orphans.iter().map(|one| (one.name.clone(), one.whose.clone(), one.incarnation)).collect()
    }

    #[test]
    fn a_run_is_what_descends_from_its_keeper() {
        let machine = Machine {
            known: vec![known(1, Some((10, 5)), None), known(2, Some((20, 5)), None), known(3, None, None)],
            all: all(&[
                (10, 1, 5),
                (11, 10, 6),
                (12, 11, 7),
                // Another process has the number of the second keeper.
                (20, 1, 99),
                (21, 20, 100),
            ]),
            ..Machine::default()
        };
        let seen = found_in(&machine, &[]);
        assert_eq!(seen, Seen { running: BTreeMap::from([((key(1), 0), 2)]), ..Seen::default() });
    }

    #[test]
    fn what_no_keeper_has_started_is_an_orphan() {
        let machine = Machine {
            known: vec![known(1, Some((10, 5)), None), known(2, Some((20, 5)), None)],
            groups: vec![
                ((key(1), 0), vec![11, 30, 31]),
                // Its directory is gone.
                ((key(7), 4), vec![40]),
            ],
            all: all(&[(10, 1, 5), (11, 10, 6), (30, 1, 8), (40, 1, 9), (41, 1, 9), (42, 1, 9)]),
            ..Machine::default()
        };
        let seen = found_in(&machine, &[marked(40, "?"), marked(41, "?"), marked(42, "mark-2")]);
        assert_eq!(seen.running, BTreeMap::from([((key(1), 0), 1)]));
        let expected = [
            ("p30".to_owned(), Whose::Unit(key(1)), 0),
            ("p40".to_owned(), Whose::Unit(key(7)), 4),
            ("p41".to_owned(), Whose::Uid("u-9".to_owned(), 3), 2),
            ("p42".to_owned(), Whose::Unit(key(2)), 2),
        ];
        assert_eq!(orphans(&seen), expected, "31 has ended meanwhile");
        assert_eq!(seen.orphans[0].process, Some(Process { pid: 30, began: 8 }));
    }

    #[test]
    fn a_second_keeper_of_an_incarnation_keeps_what_nobody_owns() {
        let machine = Machine {
            known: vec![known(1, Some((10, 5)), None), known(1, Some((20, 5)), None)],
            all: all(&[(10, 1, 5), (11, 10, 6), (20, 1, 5), (21, 20, 6)]),
            ..Machine::default()
        };
        let seen = found_in(&machine, &[]);
        assert_eq!(seen.running, BTreeMap::from([((key(1), 0), 1)]));
        assert_eq!(orphans(&seen), [("p11".to_owned(), Whose::Unit(key(1)), 0)]);
    }

    #[test]
    fn a_container_belongs_to_the_run_that_keeps_it() {
        let container = |name: &str, unit| Labelled {
            name: name.to_owned(),
            incarnation: Some(6),
            replica: Some((unit, 0)),
            is_running: true,
            is_own: true,
        };
        let machine = Machine {
            known: vec![known(1, Some((10, 5)), Some("c1")), known(2, Some((20, 5)), Some("c2"))],
            all: all(&[(10, 1, 5), (50, 1, 9)]),
            containers: vec![container("c1", 1), container("c2", 2), container("c3", 3)],
            ..Machine::default()
        };
        let seen = found_in(&machine, &[marked(50, "mark-1")]);
        assert_eq!(seen.running, BTreeMap::from([((key(1), 0), 1)]));
        let expected = [("c2".to_owned(), Whose::Unit(key(2)), 6), ("c3".to_owned(), Whose::Unit(key(3)), 6)];
        assert_eq!(orphans(&seen), expected);
    }

    #[test]
    fn what_is_too_much_is_cut_and_said() {
        let pids: Vec<u32> = (100..1_000).collect();
        let processes: Vec<(u32, u32, u64)> = pids.iter().map(|pid| (*pid, 1, 1)).collect();
        let machine =
            Machine { groups: vec![((key(1), 0), pids)], all: all(&processes), ..Machine::default() };
        let seen = found_in(&machine, &[]);
        assert_eq!(seen.orphans.len(), N_ORPHANS_MAX);
        assert!(seen.failure.unwrap().contains("900 orphans"));
    }
}
