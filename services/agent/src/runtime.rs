//! What runs running units: time alone for simulated ones, processes with a keeper each on a real node.
//!
//! A runtime starts runs and stops them, and says in events what becomes of them. What is to be started, and what an end
//! means, is the business of [`godel_core_agent`].

pub mod process;
pub(crate) mod simulated;

use std::time::Duration;

use godel_base::time::Millis;
use godel_core_agent::{HowEnded, RunKey, RunWork};
use godel_domain::run_end::RunEndReason;

use self::process::Program;

/// Exit code of a command that could not be started, or never came, as shells have it.
pub(crate) const NOT_STARTED: i32 = 127;

/// A running unit on a node of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostedRun {
    /// Position of its node in this process.
    pub(crate) node: usize,
    pub(crate) key: RunKey,
    pub(crate) incarnation: u32,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It runs, since so many Unix milliseconds; 0 if it is simulated.
    Started(HostedRun, i64),
    Ended {
        run: HostedRun,
        ended: HowEnded,
        /// It is the run that began then which has ended; one of the same name that began later goes on.
        since: Option<Millis>,
    },
    /// The use of a real node was measured anew.
    Measured,
}

impl Event {
    /// The node that it is of, unless it is of the whole machine.
    pub(crate) fn node(&self) -> Option<usize> {
        match self {
            Self::Started(run, _) | Self::Ended { run, .. } => Some(run.node),
            Self::Measured => None,
        }
    }
}

/// Runs running units.
pub(crate) trait Runtime: Send {
    /// Whether it does work of this kind.
    fn takes(&self, work: &RunWork<Program>) -> bool;

    /// Starts a run, which was started again `restarts` times before, and `in_row` of these in a row. What is known of it at once is the
    /// answer; the rest comes later.
    fn start(
        &mut self,
        run: HostedRun,
        work: &RunWork<Program>,
        restarts: u32,
        in_row: u32,
        now: Millis,
    ) -> Option<Event>;

    /// Stops a run, politely first and by force after the grace. True: it is one of its own, and its end comes as an event.
    fn stop(&mut self, run: HostedRun, grace: Duration, reason: RunEndReason) -> bool;

    /// The command of a run has come, which was waited for until now.
    fn command_came(&mut self, _run: HostedRun) {}

    /// The end of a run was seen.
    fn forget(&mut self, _run: HostedRun) {}

    /// What became of all ends that were seen so far is on the disk.
    fn settle(&mut self) {}

    /// When a run ends by itself, as far as is known.
    fn next_at(&self) -> Option<Millis> {
        None
    }

    /// A run that has ended by itself by now.
    fn take_due(&mut self, _now: Millis) -> Option<Event> {
        None
    }
}
