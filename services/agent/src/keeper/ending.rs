//! Ending everything that belongs to a run, until nothing is left of it.

use std::{
    fs::File,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use godel_domain::run_end::RunEndReason;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    files::{self, END, Ended, KEEPER, Keeper, LOCK, RUN, Run},
    lock, reap, wall_ms,
};
use crate::{
    cgroup::{self, Cgroup, GroupRecord},
    docker,
    procfs::{self, Process},
};

/// Between attempts to end what is left.
const PAUSE: Duration = Duration::from_millis(5);
/// A process that cannot be ended for so long waits for the kernel, a broken disk for example: it is left behind.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at what is left before the keeper itself is ended, which does not wait for what has ended if it is stopped.
const N_KILLS: u32 = 200;
/// Exit code of a run of which nobody saw the end: 128 + SIGKILL.
const KILLED: i32 = 137;

/// Sends a signal to everything that belongs to a run: what is in its group, and what descends from its keeper.
pub(super) fn signal_all(keeper: u32, group: Option<&dyn Cgroup>, signal: Signal) {
    let of_keeper = procfs::descendants(keeper);
    let in_group = group.and_then(|group| group.pids().ok()).unwrap_or_default();
    for process in &of_keeper {
        process.signal(signal);
    }
    for pid in in_group.into_iter().filter(|pid| of_keeper.iter().all(|process| process.pid != *pid)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It has ended in this moment otherwise.
            let _ended = kill_process(pid, signal);
        }
    }
}

/// Ends everything of a run by force, and its group. `meanwhile` is called again and again.
pub(super) fn end_all(keeper: u32, group: Option<&dyn Cgroup>, mut meanwhile: impl FnMut()) {
    let mut reap_and_more = || {
        while reap().is_some() {}
        meanwhile();
    };
    end_until(group, || procfs::descendants(keeper), &mut reap_and_more);
}

fn end_until(
    group: Option<&dyn Cgroup>,
    mut left: impl FnMut() -> Vec<Process>,
    meanwhile: &mut dyn FnMut(),
) -> bool {
    let begun = Instant::now();
    loop {
        meanwhile();
        let (left, in_group) = (left(), n_in(group));
        if left.is_empty() && in_group == 0 && group.is_none_or(|group| group.remove().is_ok()) {
            return true;
        }
        if begun.elapsed() > PATIENCE {
            return false;
        }
        // What is stopped starts nothing while the others are being ended.
        left.iter().for_each(|process| process.signal(Signal::STOP));
        left.iter().for_each(|process| process.signal(Signal::KILL));
        if let Some(group) = group.filter(|_| in_group > 0) {
            // Those that cannot be reached are tried again.
            let _tried_again = group.kill();
        }
        sleep(PAUSE);
    }
}

/// Processes in a group; one that is gone has none.
fn n_in(group: Option<&dyn Cgroup>) -> usize {
    group.and_then(|group| group.pids().ok()).map_or(0, |pids| pids.len())
}

/// Sends a signal to everything of a run whose keeper does not hear its agent.
pub(crate) fn signal_for_keeper(keeper: Process, group: Option<&GroupRecord>, signal: Signal) {
    if keeper.open().is_some() {
        signal_all(keeper.pid, group.map(cgroup::reopen).as_deref(), signal);
    }
}

/// Ends everything of a run by force whose keeper lives and does not do so, and then the keeper: what is left after that, and the end of
/// the run, is for [`end_left_over`].
pub(crate) fn end_for_keeper(keeper: Process, group: Option<&GroupRecord>) {
    let group = group.map(cgroup::reopen);
    for _ in 0..N_KILLS {
        if keeper.open().is_none() {
            return;
        }
        let left = procfs::descendants(keeper.pid);
        let in_group = n_in(group.as_deref());
        if left.is_empty() && in_group == 0 {
            break;
        }
        left.iter().for_each(|process| process.signal(Signal::KILL));
        if let Some(group) = group.as_deref().filter(|_| in_group > 0) {
            let _tried_again = group.kill();
        }
        sleep(PAUSE);
    }
    keeper.signal(Signal::KILL);
}

/// What an agent finds of a run whose keeper does not live.
pub(crate) enum FoundRun {
    /// The keeper lives after all.
    Kept,
    /// It had ended, or has now been ended; this is how.
    Over(Ended),
    /// Nothing ever ran here.
    Nothing,
}

/// Cleans up behind a keeper that does not live, and writes down the end of its run if it has not: from here on no keeper, late as
/// it may be, starts anything in `dir`.
///
/// # Errors
/// The directory cannot be read or written, or processes or the container of the run cannot be ended.
pub(crate) fn end_left_over(dir: &Path) -> std::io::Result<FoundRun> {
    let Some(_lock): Option<File> = lock(&dir.join(LOCK))? else { return Ok(FoundRun::Kept) };
    let Ok(run) = files::read::<Run>(&dir.join(RUN)) else { return Ok(FoundRun::Nothing) };
    let group = run.group.as_ref().map(cgroup::reopen);
    let Ok(keeper) = files::read::<Keeper>(&dir.join(KEEPER)) else {
        // Its keeper is yet to begin, or never will: it finds nothing to run.
        std::fs::remove_file(dir.join(RUN))?;
        group.iter().for_each(|group| drop(group.remove()));
        return Ok(FoundRun::Nothing);
    };
    let is_of_now = keeper.boot_id == procfs::boot_id();
    let mark = format!("GODEL_RUN={}", run.mark);
    let left = || if is_of_now { procfs::left_of(keeper.process(), &mark) } else { Vec::new() };
    // Before its processes, which would make an end of their own.
    let removed = run.container.as_ref().map_or(Ok(()), docker::remove_left);
    if !end_until(group.as_deref(), left, &mut || {}) {
        return Err(std::io::Error::other("processes of a run cannot be ended"));
    }
    removed?;
    if let Ok(ended) = files::read::<Ended>(&dir.join(END)) {
        return Ok(FoundRun::Over(ended));
    }
    let started_ms = keeper.started.map_or(0, |started| started.at_ms);
    let reason = if is_of_now { RunEndReason::Lost } else { RunEndReason::Rebooted };
    let reason = reason.name().to_owned();
    let ended = Ended { exit_code: KILLED, reason, started_ms, ended_ms: wall_ms(), ..Ended::default() };
    files::write(dir, END, &ended)?;
    Ok(FoundRun::Over(ended))
}
