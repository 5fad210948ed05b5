//! The keeper of one running unit: a small process of its own that starts the command, keeps its output, and waits for its end.
//!
//! An agent starts a keeper for every command (`godel agent keep DIR`, which is not for people) and is not needed from then on: it may
//! be killed, stopped or replaced by a newer binary, and the next one finds the keeper by what is in the directory of the
//! run. There is no runtime in a keeper, one thread (and for a moment a second one, which prepares a YARN container as its user), and no socket.
//!
//! ```text
//! STATE_DIR/runs/UNIT-ORDINAL-INCARNATION.N/      one start of a command
//!   run.json       what to run, by the agent
//!   lock           locked by the keeper as long as it lives, and by who cleans up behind it
//!   keeper.json    who the keeper is, and since when its command runs
//!   control        a pipe: `stop GRACE_MS REASON` in a line makes the keeper end everything
//!   end.json       how it ended: written once, synced, renamed into place
//!   *.room         room for these two, taken before the command starts: an end is never lost to a full disk
//! ```
//!
//! What belongs to a run is what is in its control group, and what descends from the keeper, which is the parent of everything
//! that loses its own (`PR_SET_CHILD_SUBREAPER`). When the command ends, or is stopped, nothing of it is left before `end.json`
//! is there.
//!
//! Signals to a keeper are not the way to stop a run: a keeper that is killed, by whatever signal, leaves its agent to end what is left,
//! and the run counts as lost.
//!
//! The keeper of a unit that has an image asks the Docker engine to run it instead (`container`), and is the same otherwise: it copies
//! the output, stops the container when it is told to, and removes it once its end is written down.
//!
//! A keeper ends its run by itself in two cases: if the run must not go on without contact (ADR 0035) and the file
//! `contact` of the state directory has not been renewed for so long, and if it ends with its agent, which it notices by the end of its standard input.

mod administrators;
mod command;
mod contact;
mod container;
mod ending;
pub(crate) mod files;
mod launch;
mod local_user;
mod stopping;
mod watch;

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Child, ExitCode},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use godel_domain::run_end::RunEndReason;
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, WaitOptions, WaitStatus},
};

#[cfg(test)]
pub(crate) use contact::contact_age_ms;
pub(crate) use contact::renew;
pub(crate) use ending::{FoundRun, end_for_keeper, end_left_over, signal_for_keeper};
use files::{CONTROL, END, Ended, KEEPER, Keeper, LOCK, RUN, Run, Started};

use godel_membership::agent_admission::AssignmentRefusal;

use crate::{
    cgroup::{self, Cgroup},
    logs, procfs,
};

/// What a keeper says on its standard output once its command runs, or has failed to: a single byte.
pub(crate) const READY: &[u8] = b"\n";
/// Added to the number of the signal that ended a command, as shells do.
const SIGNALLED: i32 = 128;
/// Exit code of a command that was told to stop, 128 + SIGTERM, where it has none of its own.
const STOPPED: i32 = 143;

/// Between attempts to write down an end.
const END_PAUSE: Duration = Duration::from_millis(500);

/// Why a keeper cannot do its work. Nobody reads it but the log of the agent.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the run has a keeper already, or its keeper was given up")]
    Taken,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// Keeps the run whose directory is `dir`, until it has ended. This is the whole life of the process.
pub fn keep(dir: &Path) -> ExitCode {
    match try_keep(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
            // Who started it listens until it is ready.
            let _unread = writeln!(io::stdout(), "{error}{cause}");
            ExitCode::FAILURE
        }
    }
}

fn try_keep(dir: &Path) -> Result<(), Error> {
    // It leads a session already if it was started from a terminal.
    let _leads_already = rustix::process::setsid();
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))
        .map_err(|error| failed("it cannot adopt processes")(error.into()))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    std::env::set_current_dir("/").map_err(failed("it cannot leave its directory"))?;

    let _lock = lock(&dir.join(LOCK)).map_err(failed("the run cannot be locked"))?.ok_or(Error::Taken)?;
    if dir.join(END).exists() {
        return Err(Error::Taken);
    }
    let run: Run = files::read(&dir.join(RUN)).map_err(failed("what to run cannot be read"))?;
    let process = procfs::Process::of(std::process::id()).ok_or(io::ErrorKind::NotFound.into());
    let process = process.map_err(failed("/proc is not mounted"))?;
    let keeper = Keeper { pid: process.pid, began: process.began, boot_id: procfs::boot_id(), started: None };
    write(dir, KEEPER, &keeper)?;
    for name in [KEEPER, END] {
        files::reserve(dir, name).map_err(failed("there is no room for its end"))?;
    }
    let control = control(dir).map_err(failed("its control pipe cannot be made"))?;
    let mut log = logs::LogWriter::open(&run.log_dir, run.log_max_bytes, run.log_files)
        .map_err(failed("its log cannot be opened"))?;
    let run = match local_user::choose(run) {
        Ok(run) => run,
        Err(cannot) => {
            write_end(dir, &not_started(cannot, &mut log, wall_ms()))?;
            ready();
            return Ok(());
        }
    };
    if let Some(container) = &run.container {
        // Its image may be fetched first, which takes its time: that it runs is seen in its file.
        ready();
        return container::keep(&run, container, dir, &keeper, control, &mut log);
    }
    let group = run.group.as_ref().map(cgroup::reopen);

    let now = wall_ms();
    let (child, output) = match command::start(&run, group.as_deref(), &control) {
        Ok(started) => started,
        Err(cannot) => {
            let ended = not_started(cannot, &mut log, now);
            group.iter().for_each(|group| drop(group.remove()));
            write_end(dir, &ended)?;
            ready();
            return Ok(());
        }
    };
    let in_group = group.as_ref().is_none_or(|group| is_in(&**group, child.id()));
    let started = Started { pid: child.id(), at_ms: now, in_group };
    write(dir, KEEPER, &Keeper { started: Some(started), ..keeper })?;
    ready();

    let mut watch = watch::Watch::new(&run, &child, output, control, group.as_deref())
        .map_err(failed("its command cannot be watched"))?;
    let told = watch.until_end(&mut log);
    let status = watch.status();
    let out_of_memory = group.as_ref().is_some_and(|group| group.usage().n_oom_kills > 0);
    ending::end_all(process.pid, group.as_deref(), || watch.drain(&mut log));
    watch.drain(&mut log);
    log.sync();
    let ended = how(status, told, out_of_memory, now, wall_ms());
    write_end(dir, &ended)
}

/// Writes down how the run ended. There is room for it; where the disk does not work all the same, it is tried again for as long as
/// there is the directory: as long as this process lives, its agent waits for it.
fn write_end(dir: &Path, ended: &Ended) -> Result<(), Error> {
    loop {
        match files::write(dir, END, ended) {
            Err(error) if files::may_pass(&error) && dir.exists() => std::thread::sleep(END_PAUSE),
            written => return written.map_err(failed("the end of the run cannot be written")),
        }
    }
}

/// What to say of the end of a command.
fn how(
    status: Option<WaitStatus>,
    told: Option<RunEndReason>,
    out_of_memory: bool,
    started_ms: i64,
    ended_ms: i64,
) -> Ended {
    let code = status.and_then(WaitStatus::exit_status);
    let signal = status.and_then(WaitStatus::terminating_signal);
    let exit_code = code.or(signal.map(|signal| SIGNALLED + signal)).unwrap_or(STOPPED);
    let reason = why(told, out_of_memory && exit_code != 0, signal.is_some());
    Ended { exit_code, reason: reason.name().to_owned(), started_ms, ended_ms, ..Ended::default() }
}

/// Of several reasons for an end the one to say.
fn why(told: Option<RunEndReason>, out_of_memory: bool, is_signalled: bool) -> RunEndReason {
    match (told, out_of_memory) {
        (Some(told), _) => told,
        (None, true) => RunEndReason::OutOfMemory,
        (None, false) if is_signalled => RunEndReason::Signalled,
        (None, false) => RunEndReason::Exited,
    }
}

/// Says in the log why nothing was started, and what that is for an end.
fn not_started(cannot: command::CannotStart, log: &mut logs::LogWriter, ended_ms: i64) -> Ended {
    let command::CannotStart { reason, exit_code, mut why, refused } = cannot;
    log.write(format!("[godel: {why}]\n").as_bytes());
    log.sync();
    why.truncate(why.floor_char_boundary(files::WHY_BYTES_MAX));
    let refused = refused.map(AssignmentRefusal::name).unwrap_or_default().to_owned();
    Ended { exit_code, reason: reason.name().to_owned(), why, refused, started_ms: 0, ended_ms }
}

/// What an agent has written into the control pipe: graces in milliseconds, and reasons. Who writes to it writes whole lines, and less
/// than a pipe takes at once.
fn stops(bytes: &[u8]) -> Vec<(u64, RunEndReason)> {
    let text = String::from_utf8_lossy(bytes);
    let stop = |line: &str| {
        let mut words = line.strip_prefix("stop ")?.split(' ');
        let grace_ms = words.next()?.parse().ok()?;
        Some((grace_ms, words.next().and_then(RunEndReason::of_name).unwrap_or(RunEndReason::Told)))
    };
    text.lines().filter_map(stop).collect()
}

/// Locks a file; `None`: somebody else has it. The lock goes with the file, or with the process.
pub(crate) fn lock(path: &Path) -> io::Result<Option<File>> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn write<T: serde::Serialize>(dir: &Path, name: &str, value: &T) -> Result<(), Error> {
    files::write(dir, name, value).map_err(failed("a file of the run cannot be written"))
}

/// The pipe by which the keeper is told to stop. It is open for both directions here, so that it never ends.
fn control(dir: &Path) -> io::Result<File> {
    let path = dir.join(CONTROL);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600))?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Nobody may listen any more.
fn ready() {
    let _unread = io::stdout().write_all(READY).and_then(|()| io::stdout().flush());
}

/// Whether a process that has just been started is in a group, or has ended already.
fn is_in(group: &dyn Cgroup, pid: u32) -> bool {
    let is_in = group.pids().is_ok_and(|pids| pids.binary_search(&pid).is_ok());
    is_in || procfs::stat(pid).is_none_or(|stat| stat.has_ended())
}

pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Waits for whatever has ended; `None`: nothing has.
fn reap() -> Option<(Pid, WaitStatus)> {
    rustix::process::wait(WaitOptions::NOHANG).ok().flatten()
}

fn pidfd_of(child: &Child) -> io::Result<rustix::fd::OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests;
