//! Processes of this node that no run of its state directory owns: left behind when the directory was removed, or when a copy of it is used.
//!
//! What an agent starts says in its environment which node it is of, by the uid of the node, and by its name with its state directory or the
//! store of its cluster. What descends from such a keeper is of the node as well, whatever its own environment is. Containers say the
//! same in theirs ([`crate::docker::of_node`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::procfs::{self, Process, Stat};

/// Variables by which processes of a node are known; in the environment of commands and of keepers.
pub(crate) const NODE: &str = "GODEL_NODE";
pub(crate) const NODE_UID: &str = "GODEL_NODE_UID";
pub(crate) const NODE_DIR: &str = "GODEL_NODE_DIR";
pub(crate) const STORE: &str = "GODEL_STORE";
/// The mark of a run, of a command and of its keeper.
const RUN: &str = "GODEL_RUN";
pub(crate) const KEEPS: &str = "GODEL_KEEPS";

/// Between looks at what is being ended.
const PAUSE: Duration = Duration::from_millis(20);
/// Between the polite and the forced end: their units are not known.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// What does not end in this time waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(20);

/// By what the processes of a node are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeMark {
    pub(crate) uid: String,
    pub(crate) name: String,
    /// Its state directory; `None`: a temporary one, whose runs end with the agent.
    pub(crate) dir: Option<String>,
    /// The store of its cluster; 0: it is not known.
    pub(crate) store: u64,
}

impl NodeMark {
    /// The variables that say it.
    pub(crate) fn variables(&self) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::from([(NODE, self.name.clone()), (NODE_UID, self.uid.clone())]);
        variables.extend(self.dir.clone().map(|dir| (NODE_DIR, dir)));
        variables.extend((self.store != 0).then(|| (STORE, self.store.to_string())));
        variables
    }

    /// The node of a run with this environment.
    pub(crate) fn of(environment: &BTreeMap<String, String>) -> Self {
        let value = |name: &str| environment.get(name).cloned();
        Self {
            uid: value(NODE_UID).unwrap_or_default(),
            name: value(NODE).unwrap_or_default(),
            dir: value(NODE_DIR),
            store: value(STORE).and_then(|store| store.parse().ok()).unwrap_or(0),
        }
    }

    /// Whether a process with this environment is of the node: of its uid, also under another directory, or of its name and directory or
    /// its name and cluster, also with the uid that it had before the directory was removed.
    pub(crate) fn is_of(&self, environment: &[String]) -> bool {
        let (Some(dir), Some(of)) = (&self.dir, value(environment, NODE_DIR)) else { return false };
        let is_named = value(environment, NODE) == Some(&self.name);
        self.is_uid(environment) || is_named && (dir == of || self.is_cluster(environment))
    }

    /// Whether a process with this environment is of an agent that spoke for the node before, with another uid: state lets one speak for it.
    pub(crate) fn is_of_predecessor(&self, environment: &[String]) -> bool {
        self.is_of(environment) && !self.is_uid(environment)
    }

    fn is_uid(&self, environment: &[String]) -> bool {
        !self.uid.is_empty() && value(environment, NODE_UID) == Some(&self.uid)
    }

    fn is_cluster(&self, environment: &[String]) -> bool {
        self.store != 0 && value(environment, STORE).and_then(|store| store.parse().ok()) == Some(self.store)
    }
}

/// The value of a variable.
pub(crate) fn value<'a>(environment: &'a [String], name: &str) -> Option<&'a str> {
    environment.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// A process that some agent has started on this machine, as its environment says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartedHere {
    /// Process number, and when it began, in ticks since the machine was started.
    pub process: (u32, u64),
    /// The start of a command that it is of: no two have the same.
    pub mark: String,
    /// Name and uid of its node.
    pub node: (String, String),
    /// Uid of its unit.
    pub unit_uid: String,
    /// Which replica.
    pub ordinal: u32,
    /// Which life of it.
    pub incarnation: u32,
}

/// Finds all processes of this machine that agents have started, of whichever node and cluster: nothing that agents, keepers or their files
/// say counts. Those whose environment may not be read are left out.
pub fn started_here() -> Vec<StartedHere> {
    let of = |(pid, stat): (u32, Stat)| of_environment(pid, stat.began, &procfs::environment(pid));
    procfs::all().into_iter().filter_map(of).collect()
}

fn of_environment(pid: u32, began: u64, environment: &[String]) -> Option<StartedHere> {
    let of = |name| value(environment, name).map(str::to_owned);
    Some(StartedHere {
        process: (pid, began),
        mark: of(RUN)?,
        node: (of(NODE)?, of(NODE_UID)?),
        unit_uid: of("GODEL_UID")?,
        ordinal: of("GODEL_ORDINAL")?.parse().ok()?,
        incarnation: of("GODEL_INCARNATION")?.parse().ok()?,
    })
}

/// A process of the node with a mark, as its environment says it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MarkedProcess {
    process: Process,
    mark: String,
    is_keeper: bool,
}

/// Ends all of which the environment says that it is of a node, and that is not of one of the runs with these marks. Returns how many
/// processes that were, and how many do not end.
pub(crate) fn end(is_of: impl Fn(&[String]) -> bool, kept: &BTreeSet<String>) -> (usize, usize) {
    let begun = Instant::now();
    let mut ended = BTreeSet::new();
    loop {
        let left = find(&is_of, kept);
        if left.is_empty() || begun.elapsed() > PATIENCE {
            return (ended.len(), left.len());
        }
        let signal = if begun.elapsed() > GRACE { Signal::KILL } else { Signal::TERM };
        for process in left {
            let is_new = ended.insert((process.pid, process.began));
            if is_new || signal == Signal::KILL {
                process.signal(signal);
                // One that was stopped does not hear it otherwise.
                process.signal(Signal::CONT);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn find(is_of: impl Fn(&[String]) -> bool, kept: &BTreeSet<String>) -> Vec<Process> {
    let all = procfs::all();
    let marked = |(&pid, stat): (&u32, &Stat)| {
        let environment = procfs::environment(pid);
        let process = Process { pid, began: stat.began };
        let keeps = value(&environment, KEEPS);
        let mark = keeps.or_else(|| value(&environment, RUN)).filter(|_| is_of(&environment))?;
        Some(MarkedProcess { process, mark: mark.to_owned(), is_keeper: keeps.is_some() })
    };
    let marked: Vec<MarkedProcess> = all.iter().filter_map(marked).collect();
    strays(&all, &marked, kept, std::process::id())
}

/// Which processes are of no run that is kept. The agent itself, and what it descends from, never is: it may be of a running unit.
fn strays(
    all: &BTreeMap<u32, Stat>,
    marked: &[MarkedProcess],
    kept: &BTreeSet<String>,
    own: u32,
) -> Vec<Process> {
    let mut own_line = BTreeSet::new();
    let mut next = Some(own);
    while let Some(pid) = next.filter(|pid| own_line.insert(*pid)) {
        next = all.get(&pid).map(|stat| stat.parent);
    }
    let mut strays = BTreeMap::new();
    for one in marked.iter().filter(|one| !kept.contains(&one.mark)) {
        strays.insert(one.process.pid, one.process);
        if one.is_keeper {
            let below = procfs::descendants_in(all, one.process.pid);
            strays.extend(below.into_iter().map(|process| (process.pid, process)));
        }
    }
    let keepers: BTreeSet<u32> =
        marked.iter().filter(|one| one.is_keeper).map(|one| one.process.pid).collect();
    let (last, first): (Vec<Process>, Vec<Process>) = strays
        .into_values()
        .filter(|process| !own_line.contains(&process.pid))
        .partition(|process| keepers.contains(&process.pid));
    // Keepers go last: what has no mark of its own is found by them.
    if first.is_empty() { last } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeMark {
        NodeMark { uid: "u1".to_owned(), name: "n".to_owned(), dir: Some("/state".to_owned()), store: 7 }
    }

    fn environment(uid: &str, name: &str, dir: &str) -> Vec<String> {
        vec![format!("{NODE_UID}={uid}"), format!("{NODE}={name}"), format!("{NODE_DIR}={dir}")]
    }

    #[test]
    fn a_process_is_of_its_node_under_a_copied_and_after_a_removed_directory() {
        for (uid, name, dir, expected) in [
            ("u1", "n", "/state", true),
            ("u1", "n", "/copy", true),
            ("u0", "n", "/state", true),
            ("u0", "n", "/copy", false),
            ("u0", "m", "/state", false),
            ("", "n", "", false),
        ] {
            assert_eq!(node().is_of(&environment(uid, name, dir)), expected, "{uid} {name} {dir}");
        }
        for (uid, name, dir, store, expected) in [
            ("u1", "n", "/copy", "7", (true, false)),
            ("u1", "n", "/copy", "8", (true, false)),
            ("u0", "n", "/new", "7", (true, true)),
            ("u0", "n", "/state", "8", (true, true)),
            ("u0", "n", "/new", "8", (false, false)),
            ("u0", "m", "/new", "7", (false, false)),
            ("u0", "n", "/new", "x", (false, false)),
        ] {
            let mut words = environment(uid, name, dir);
            words.push(format!("{STORE}={store}"));
            let found = (node().is_of(&words), node().is_of_predecessor(&words));
            assert_eq!(found, expected, "{uid} {name} {dir} {store}");
            let unknown = NodeMark { store: 0, ..node() };
            words.pop();
            words.push(format!("{STORE}=0"));
            assert_eq!(unknown.is_of(&words), uid == "u1" || dir == "/state", "of no known cluster");
        }
        let temporary = NodeMark { dir: None, ..node() };
        assert!(
            !temporary.is_of(&environment("u1", "n", "/state")),
            "its uid may be that of another agent too"
        );
        assert!(
            !node().is_of(&environment("u1", "n", "/state")[..2]),
            "what has no directory ends with its agent"
        );
        let variables = node().variables();
        assert!(node().is_of(&variables.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()));
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(NodeMark::of(&variables), node());
    }

    #[test]
    fn strays_are_what_no_kept_run_owns_and_what_descends_from_their_keepers() {
        let stat = |parent| Stat { state: 'S', parent, session: 1, began: 5 };
        let all: BTreeMap<u32, Stat> =
            [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (21, 20), (30, 1), (40, 1), (41, 40)]
                .map(|(pid, parent)| (pid, stat(parent)))
                .into();
        let marked = |pid, mark: &str, is_keeper| MarkedProcess {
            process: Process { pid, began: 5 },
            mark: mark.to_owned(),
            is_keeper,
        };
        let marked = [
            marked(10, "kept", true),
            marked(11, "kept", false),
            marked(20, "gone", true),
            marked(30, "lost", false),
            // The agent runs in a running unit.
            marked(40, "outer", false),
        ];
        let found = strays(&all, &marked, &BTreeSet::from(["kept".to_owned()]), 41);
        assert_eq!(
            found.iter().map(|process| process.pid).collect::<Vec<_>>(),
            [21, 30],
            "the keeper is the last"
        );
        let alone: BTreeMap<u32, Stat> = [(1, stat(0)), (20, stat(1))].into();
        let found = strays(&alone, &marked[2..3], &BTreeSet::new(), 41);
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [20]);
    }
}
