//! Waiting for the end of a command: its output, what its agent says, and the deadlines meanwhile.

use std::{
    fs::File,
    io::{self, PipeReader, Read as _},
    process::Child,
    time::{Duration, Instant},
};

use godel_domain::run_end::RunEndReason;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Signal, WaitStatus},
};

use super::{contact::alone_for_ms, ending::signal_all, files::Run, pidfd_of, reap, stops};
use crate::{cgroup::Cgroup, logs};

/// What has lost its parent and ended is waited for this often.
const TICK: Duration = Duration::from_secs(5);
/// Bytes of output that are read at a time.
const N_BYTES: usize = 64 << 10;
/// Reads of the output before anything else is looked at again.
const N_READS_MAX: usize = 32;

/// A command that runs.
pub(super) struct Watch<'a> {
    run: &'a Run,
    pid: u32,
    keeper: u32,
    ended: OwnedFd,
    output: Option<PipeReader>,
    control: File,
    group: Option<&'a dyn Cgroup>,
    buffer: Vec<u8>,
    /// Told to stop, why, and when it is ended by force.
    stopping: Option<(RunEndReason, Option<Instant>)>,
    status: Option<WaitStatus>,
    begun: Instant,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        run: &'a Run,
        child: &Child,
        output: PipeReader,
        control: File,
        group: Option<&'a dyn Cgroup>,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&output, true)?;
        Ok(Self {
            run,
            pid: child.id(),
            keeper: std::process::id(),
            ended: pidfd_of(child)?,
            output: Some(output),
            control,
            group,
            buffer: vec![0; N_BYTES],
            stopping: None,
            status: None,
            begun: Instant::now(),
        })
    }

    /// Waits until the command has ended; returns why it was told to, if it was.
    pub(super) fn until_end(&mut self, log: &mut logs::LogWriter) -> Option<RunEndReason> {
        loop {
            let ready = self.wait();
            if ready.output {
                self.read_output(log, N_READS_MAX);
            }
            if ready.control {
                self.read_control();
            }
            if ready.agent_is_gone {
                self.stop(self.run.grace_ms.into(), RunEndReason::AgentStopped);
            }
            self.keep_deadlines();
            self.reap();
            if self.status.is_some() {
                return self.stopping.map(|(reason, _)| reason);
            }
        }
    }

    /// How the command ended.
    pub(super) fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    /// Reads what is there of the output: at most some times what a pipe holds.
    pub(super) fn drain(&mut self, log: &mut logs::LogWriter) {
        self.read_output(log, 2 * N_READS_MAX);
    }

    fn wait(&self) -> Ready {
        let input = rustix::stdio::stdin();
        let mut fds =
            vec![PollFd::new(&self.ended, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        let output = self.output.as_ref().map(|output| {
            fds.push(PollFd::new(output, PollFlags::IN));
            fds.len() - 1
        });
        let agent = (self.run.ends_with_agent && self.stopping.is_none()).then(|| {
            fds.push(PollFd::new(&input, PollFlags::IN));
            fds.len() - 1
        });
        let pause = self.pause();
        let timeout = Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        };
        // A signal ends it early: then nothing is ready.
        let _interrupted = poll(&mut fds, Some(&timeout));
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        Ready { output: is_ready(output), control: is_ready(Some(1)), agent_is_gone: is_ready(agent) }
    }

    /// Until something has to be done even if nothing happens.
    fn pause(&self) -> Duration {
        let kill_at = self.stopping.and_then(|(_, kill_at)| kill_at);
        let until_kill = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        let until_alone = self.alone_for_ms().map(|ms| Duration::from_millis(ms.max(1)));
        [Some(TICK), until_kill, until_alone].into_iter().flatten().min().unwrap_or(TICK)
    }

    /// After how many milliseconds it has been without contact for too long; `None`: never.
    fn alone_for_ms(&self) -> Option<u64> {
        alone_for_ms(self.run, self.begun).filter(|_| self.stopping.is_none())
    }

    fn keep_deadlines(&mut self) {
        if self.alone_for_ms() == Some(0) {
            self.stop(0, RunEndReason::NoContact);
        }
        if let Some((reason, Some(kill_at))) = self.stopping
            && kill_at <= Instant::now()
        {
            signal_all(self.keeper, self.group, Signal::KILL);
            self.stopping = Some((reason, None));
        }
    }

    /// Stops it politely, and by force after the grace. A later stop may only be sooner.
    fn stop(&mut self, grace_ms: u64, reason: RunEndReason) {
        let at = Instant::now().checked_add(Duration::from_millis(grace_ms));
        match self.stopping {
            None => {
                signal_all(self.keeper, self.group, Signal::TERM);
                self.stopping = Some((reason, at.or(Some(Instant::now()))));
            }
            Some((reason, Some(known))) => self.stopping = Some((reason, at.map(|at| at.min(known)))),
            Some((_, None)) => {}
        }
    }

    fn read_control(&mut self) {
        let mut bytes = [0; 512];
        // Who writes to it writes whole lines, and less than a pipe takes at once.
        let Ok(n) = self.control.read(&mut bytes) else { return };
        for (grace_ms, reason) in stops(&bytes[..n]) {
            self.stop(grace_ms, reason);
        }
    }

    fn read_output(&mut self, log: &mut logs::LogWriter, n_reads_max: usize) {
        for _ in 0..n_reads_max {
            let Some(output) = &mut self.output else { return };
            match output.read(&mut self.buffer) {
                // Whoever could write has closed it.
                Ok(0) => self.output = None,
                Ok(n) => log.write(&self.buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.output = None,
            }
        }
    }

    fn reap(&mut self) {
        while let Some((pid, status)) = reap() {
            if u32::try_from(pid.as_raw_nonzero().get()).ok() == Some(self.pid) {
                self.status = Some(status);
            }
        }
    }
}

/// What there is to do.
struct Ready {
    output: bool,
    control: bool,
    agent_is_gone: bool,
}
