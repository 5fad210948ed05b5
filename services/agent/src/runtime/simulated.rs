//! Running units that do nothing but last: what simulated nodes do, units without a command on a real one, and those whose
//! command comes later, which stay in phase Starting and fail without one.

use std::{sync::Arc, time::Duration};

use godel_base::time::Millis;
use godel_core_agent::{HowEnded, RunWork};
use godel_domain::run_end::RunEndReason;
use rustc_hash::FxHashSet;

use super::{Event, HostedRun, NOT_STARTED, Runtime, process::Program};
use crate::{config::Config, timers::Timers};

/// Runs that end after a while, or when they are told to.
pub(crate) struct Simulated {
    config: Arc<Config>,
    /// Runs with their exit codes, and when they began; `None`: they wait for their command.
    ends: Timers<(HostedRun, i32, Option<Millis>)>,
    /// Runs whose command came before the time to wait was over.
    came: FxHashSet<HostedRun>,
}

impl Simulated {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        Self { config, ends: Timers::default(), came: FxHashSet::default() }
    }
}

impl Runtime for Simulated {
    fn takes(&self, work: &RunWork<Program>) -> bool {
        matches!(work, RunWork::Simulated { .. } | RunWork::Awaited { .. })
    }

    fn start(
        &mut self,
        run: HostedRun,
        work: &RunWork<Program>,
        _restarts: u32,
        _in_row: u32,
        now: Millis,
    ) -> Option<Event> {
        let (duration_ms, exit_code, since) = match *work {
            RunWork::Simulated { duration_ms, exit_code } => (duration_ms, exit_code, Some(now)),
            RunWork::Awaited { within_ms, .. } => (Some(within_ms), NOT_STARTED, None),
            RunWork::Program(_) => return None,
        };
        if let Some(duration_ms) = duration_ms {
            self.ends.set(now.plus(self.config.scaled_ms(duration_ms)), (run, exit_code, since));
        }
        since.map(|_| Event::Started(run, 0))
    }

    /// There is nothing to wait for: it ends at once.
    fn stop(&mut self, _run: HostedRun, _grace: Duration, _reason: RunEndReason) -> bool {
        false
    }

    fn command_came(&mut self, run: HostedRun) {
        self.came.insert(run);
    }

    fn next_at(&self) -> Option<Millis> {
        self.ends.next_at()
    }

    fn take_due(&mut self, now: Millis) -> Option<Event> {
        let (run, exit_code, since) = loop {
            let due = self.ends.pop_due(now)?;
            if due.2.is_some() || !self.came.remove(&due.0) {
                break due;
            }
        };
        Some(Event::Ended { run, ended: HowEnded { exit_code, ..HowEnded::default() }, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godel_core_agent::RunKey;

    fn how(exit_code: i32) -> HowEnded {
        HowEnded { exit_code, ..HowEnded::default() }
    }

    #[test]
    fn a_run_lasts_as_long_as_it_says_and_names_when_it_began() {
        let mut simulated = Simulated::new(Arc::new(Config::default()));
        let run = HostedRun { node: 3, key: RunKey { unit: 1, ordinal: 0 }, incarnation: 2 };
        let work = RunWork::Simulated { duration_ms: Some(50), exit_code: 4 };
        assert!(simulated.takes(&work));
        assert_eq!(simulated.start(run, &work, 0, 0, Millis(100)), Some(Event::Started(run, 0)));
        let at = simulated.next_at().unwrap();
        assert_eq!((at > Millis(100), simulated.take_due(Millis(100))), (true, None));
        let ended = Event::Ended { run, ended: how(4), since: Some(Millis(100)) };
        assert_eq!((simulated.take_due(at), simulated.take_due(at)), (Some(ended), None));
        let forever = RunWork::Simulated { duration_ms: None, exit_code: 0 };
        assert_eq!(simulated.start(run, &forever, 0, 0, Millis(200)), Some(Event::Started(run, 0)));
        assert_eq!(simulated.next_at(), None);
        assert!(!simulated.stop(run, Duration::ZERO, RunEndReason::Told), "its end comes with the stop");
    }

    #[test]
    fn a_run_without_its_command_starts_nothing_and_fails_in_time() {
        let mut simulated = Simulated::new(Arc::new(Config::default()));
        let run = HostedRun { node: 0, key: RunKey { unit: 1, ordinal: 0 }, incarnation: 0 };
        let work = RunWork::Awaited { within_ms: 600_000, program: None };
        assert!(simulated.takes(&work));
        assert_eq!(simulated.start(run, &work, 0, 0, Millis(5)), None, "nothing runs");
        let at = Millis(600_005);
        let ended = Event::Ended { run, ended: how(NOT_STARTED), since: None };
        assert_eq!((simulated.take_due(Millis(600_004)), simulated.take_due(at)), (None, Some(ended)));
        assert_eq!(simulated.start(run, &work, 0, 0, Millis(5)), None);
        simulated.command_came(run);
        assert_eq!(simulated.take_due(at), None, "its command came");
    }
}
