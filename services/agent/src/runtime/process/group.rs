//! The control group of one child process: it keeps the child to its limits, and nothing that the child starts escapes it.

use std::{io, sync::Arc, time::Duration};

use rustix::process::Pid;
use tokio::process::{Child, Command};

use super::{Program, Run};
use crate::{
    cgroup::{Cgroup, Groups},
    life::Key,
};

/// Between attempts to end what is in a group.
const PAUSE: Duration = Duration::from_millis(10);
/// Attempts until a group that is not empty is left behind, and logged.
const N_ATTEMPTS: u32 = 500;

/// A group; what is in it ends with it.
#[derive(Debug)]
pub(super) struct Group {
    group: Box<dyn Cgroup>,
    is_over: bool,
    /// Behind all of its groups the one of the agent is removed.
    _groups: Arc<Groups>,
}

impl Group {
    /// Makes a group with the limits of a program. Without one the program runs unlimited, which is logged.
    pub(super) fn make(groups: &Arc<Groups>, program: &Program, run: Run) -> Option<Self> {
        let Key { unit, ordinal } = run.key;
        let name = format!("{unit}-{ordinal}-{}", run.incarnation);
        match groups.make(&name, &program.limits) {
            Ok((group, failed)) => {
                for error in failed {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(unit_id = unit, ordinal, error, "a limit of a running unit is not kept");
                }
                Some(Self { group, is_over: false, _groups: Arc::clone(groups) })
            }
            Err(error) => {
                not_in_group(run, &error);
                None
            }
        }
    }

    /// Has a command begin in the group. False, which is logged: it cannot.
    pub(super) fn begin(&self, command: &mut Command, run: Run) -> bool {
        let begins = self.group.begin_in(command.as_std_mut());
        if let Err(error) = &begins {
            not_in_group(run, error);
        }
        begins.is_ok()
    }

    /// Whether a child that has just been started is in the group, or has ended already. False, which is logged: it is outside.
    pub(super) fn has(&self, child: &Child, run: Run) -> bool {
        let Some(pid) = child.id() else { return true };
        let is_in = self.group.pids().is_ok_and(|pids| pids.binary_search(&pid).is_ok());
        // Its state is behind its name, which may have any character but ends with the last bracket.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let has_ended = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
        if !is_in && !has_ended {
            not_in_group(run, &io::Error::other("its process is outside"));
        }
        is_in || has_ended
    }

    /// Returns the processes in it.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let pids = self.group.pids().unwrap_or_default();
        pids.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).collect()
    }

    /// Ends what the child has left behind, and removes the group.
    pub(super) async fn end(mut self, run: Run) {
        let Key { unit, ordinal } = run.key;
        let usage = self.group.usage();
        if usage.n_oom_kills > 0 {
            let n = usage.n_oom_kills;
            tracing::warn!(
                unit_id = unit,
                ordinal,
                n,
                "processes of a running unit were ended for want of memory"
            );
        }
        tracing::debug!(unit_id = unit, ordinal, cpu_us = usage.cpu_us, "a running unit has ended");
        for _ in 0..N_ATTEMPTS {
            if self.try_end() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let n_left = self.group.pids().map_or(0, |pids| pids.len());
        tracing::warn!(unit_id = unit, ordinal, n_left, "processes of a running unit cannot be ended");
    }

    fn try_end(&mut self) -> bool {
        let is_empty = self.group.pids().is_ok_and(|pids| pids.is_empty());
        if !is_empty {
            // Those that cannot be reached are tried again, and logged in the end.
            let _tried_again = self.group.kill();
            return false;
        }
        self.is_over = self.group.remove().is_ok();
        self.is_over
    }
}

fn not_in_group(run: Run, error: &(dyn std::error::Error + 'static)) {
    let Key { unit, ordinal } = run.key;
    tracing::warn!(
        unit_id = unit,
        ordinal,
        error,
        "a running unit runs without a control group: its limits are not kept"
    );
}

impl Drop for Group {
    /// An agent that ends takes its children with it. An empty group that stays is removed by the next agent.
    fn drop(&mut self) {
        if !self.is_over {
            self.try_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use tokio::sync::mpsc;

    use super::super::{Event, Processes, Runtime as _};
    use super::*;
    use crate::{cgroup::GroupLimits, life::Work};

    const LONG: Duration = Duration::from_secs(20);
    const RUN: Run = Run { node: 0, key: Key { unit: 9, ordinal: 2 }, incarnation: 1 };

    /// Groups of this machine; `None`, said in the output of the test, where it has none that can be written.
    fn real() -> Option<Groups> {
        Groups::open(Path::new("/"), None, &mut Vec::new()).map_err(|why| println!("SKIPPED: {why}")).ok()
    }

    fn shell(script: &str, mark: &str, limits: GroupLimits) -> Work {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let env = BTreeMap::from([("MARK".to_owned(), mark.to_owned())]);
        Work::Program(Box::new(Program { command, env, limits }))
    }

    /// Processes of this machine with a mark in their environment, as the kernel has it.
    fn n_marked(mark: &str) -> usize {
        let mark = format!("MARK={mark}\0");
        let has_mark = |entry: &std::fs::DirEntry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mark)
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter(has_mark).count()
    }

    async fn wait_until(mut is_so: impl FnMut() -> bool) {
        let reached = async {
            while !is_so() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, reached).await.unwrap();
    }

    async fn next(events: &mut mpsc::Receiver<Event>) -> Event {
        tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn what_leaves_its_session_ends_with_the_group() {
        let Some(groups) = real() else { return };
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None, Some(groups));
        let mark = format!("leaves-{}", std::process::id());
        let script = "setsid sleep 1000 & setsid nohup sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & ";
        let ended = |exit_code| Event::Ended { run: RUN, exit_code, since: None };
        // It is stopped.
        let work = shell(&format!("{script} sleep 1000"), &mark, GroupLimits::default());
        processes.start(RUN, &work, godel_domain::time::Millis(0));
        assert_eq!(next(&mut events).await, Event::Started(RUN));
        wait_until(|| n_marked(&mark) == 5).await;
        assert!(processes.stop(RUN, LONG));
        assert_eq!(next(&mut events).await, ended(143));
        assert_eq!(n_marked(&mark), 0);
        // It ends by itself.
        let work = shell(&format!("{script} exit 4"), &mark, GroupLimits::default());
        processes.start(RUN, &work, godel_domain::time::Millis(0));
        assert_eq!(next(&mut events).await, Event::Started(RUN));
        assert_eq!(next(&mut events).await, ended(4));
        assert_eq!(n_marked(&mark), 0);
    }

    #[tokio::test]
    async fn a_child_is_kept_to_its_limits_and_its_group_goes_with_it() {
        let Some(groups) = real() else { return };
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None, Some(groups));
        let hog = "head -c 200000000 /dev/zero | tail";
        let inside = "grep -q godel- /proc/self/cgroup || exit 9";
        let limits = GroupLimits { memory: Some(24 << 20), ..GroupLimits::default() };
        processes.start(RUN, &shell(&format!("{inside}; {hog}"), "", limits), godel_domain::time::Millis(0));
        assert_eq!(next(&mut events).await, Event::Started(RUN));
        let Event::Ended { exit_code, .. } = next(&mut events).await else { unreachable!() };
        assert_eq!(exit_code, 137, "it was ended for want of memory");
        let own = format!("godel-{}", std::process::id());
        drop(processes);
        let tree = crate::detect::tree::Tree::new(Path::new("/"));
        let hierarchies = crate::detect::limits::hierarchies(&tree);
        wait_until(|| {
            let own_of = |hierarchy: &crate::detect::limits::Hierarchy| {
                hierarchy.dirs().first().map(|dir| tree.has(&format!("{dir}/{own}")))
            };
            hierarchies.iter().filter_map(own_of).all(|is_there| !is_there)
        })
        .await;
    }
}
