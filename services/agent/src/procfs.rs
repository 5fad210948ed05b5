//! Processes of this machine, as `/proc` shows them: whose child each is, when it began, and what is left of a session.
//!
//! A process number is used again once its process has been waited for. A process is therefore known by its number *and* the
//! moment it began, which no two processes of one number share within one boot of the machine.

use std::{collections::BTreeMap, fs};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `Z` and `X`: it has ended and waits for its parent.
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    /// When it began, in ticks since the machine was started.
    pub(crate) began: u64,
}

impl Stat {
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// A process that is the same as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) began: u64,
}

/// Reads the state of a process; `None`: there is none.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of a process may have any character, but ends with the last bracket.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let _group = fields.next()?;
    let session = fields.next()?.parse().ok()?;
    // The start is field 22 of the line, the session was field 6.
    let began = fields.nth(15)?.parse().ok()?;
    Some(Stat { state, parent, session, began })
}

/// Names this boot of the machine; empty where the kernel does not say.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// All processes that have not ended.
pub(crate) fn all() -> BTreeMap<u32, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let known = pids.filter_map(|pid| Some((pid, stat(pid)?)));
    known.filter(|(_, stat)| !stat.has_ended()).collect()
}

/// The descendants of a process that have not ended, in any order.
pub(crate) fn descendants(of: u32) -> Vec<Process> {
    descendants_in(&all(), of)
}

pub(crate) fn descendants_in(all: &BTreeMap<u32, Stat>, of: u32) -> Vec<Process> {
    let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    for (&pid, stat) in all {
        children.entry(stat.parent).or_default().push(Process { pid, began: stat.began });
    }
    let mut found = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            found.push(child);
        }
    }
    found
}

/// What is left of a run whose keeper has ended: processes of its session, and those that carry its mark in their environment.
///
/// The number of a session is not given to another process while one of its processes lives. If a process has that number
/// and is not the keeper, nothing is left of the session.
pub(crate) fn left_of(keeper: Process, mark: &str) -> Vec<Process> {
    let all = all();
    let is_taken = all.get(&keeper.pid).is_some_and(|stat| stat.began != keeper.began);
    let is_left = |(pid, stat): &(&u32, &Stat)| {
        let in_session = stat.session == keeper.pid && !is_taken && stat.began >= keeper.began;
        **pid != keeper.pid && (in_session || has_mark(**pid, mark))
    };
    all.iter().filter(is_left).map(|(&pid, stat)| Process { pid, began: stat.began }).collect()
}

/// Whether a process has this variable in its environment, as `NAME=value`.
pub(crate) fn has_mark(pid: u32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    !mark.is_empty() && environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
}

/// The environment with which a process was started, as `NAME=value`; empty of one that may not be looked at.
pub(crate) fn environment(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The name of the program of a process, which may be cut; empty: it has ended.
pub(crate) fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, began: stat.began })
    }

    /// Opens the process; `None`: it has ended, or another one has its number.
    pub(crate) fn open(self) -> Option<rustix::fd::OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let opened = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Looked at after it was opened: from here on the number is this process's.
        let stat = stat(self.pid)?;
        (stat.began == self.began && !stat.has_ended()).then_some(opened)
    }

    /// Sends a signal to this process and to no other one.
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(opened) = self.open() {
            // It has ended in this moment otherwise.
            let _ended = pidfd_send_signal(&opened, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name_is() {
        let line = "42 (a) b (c) S 7 42 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000 10";
        assert_eq!(parse(line), Some(Stat { state: 'S', parent: 7, session: 9, began: 12_345 }));
        assert_eq!((parse(""), parse("42 (a) S 7"), parse("42 a S 7 1 1")), (None, None, None));
    }

    #[test]
    fn descendants_are_found_through_those_between() {
        let stat = |parent, began| Stat { state: 'S', parent, session: 1, began };
        let all = BTreeMap::from([
            (10, stat(1, 1)),
            (11, stat(10, 2)),
            (12, stat(11, 3)),
            (13, stat(1, 4)),
            (14, stat(12, 5)),
        ]);
        let mut found: Vec<u32> = descendants_in(&all, 10).into_iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [11, 12, 14]);
        assert!(descendants_in(&all, 14).is_empty());
    }

    #[test]
    fn a_process_is_not_taken_for_another_of_its_number() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.open().is_some());
        assert!(Process { began: own.began + 1, ..own }.open().is_none());
        assert!(!boot_id().is_empty());
    }
}
