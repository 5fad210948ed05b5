//! Stops that are announced: what is evicted for the sake of others goes on for a while.

use godel_domain::running_units::Phase;

use super::{Action, Key, NodeLife};

/// What becomes of a running unit that is to be stopped later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It goes on; call [`NodeLife::stop_noticed`] when the time is over.
    Given,
    /// It was given before, and that one counts.
    GivenBefore,
    /// Nothing runs that could go on: it is to be stopped at once.
    Useless,
}

impl NodeLife {
    /// A running unit is to be stopped after a notice.
    pub fn notice(&mut self, key: Key, incarnation: u32) -> Notice {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        let Some(run) = run.filter(|run| run.phase == Phase::Running && !run.stopping) else {
            return Notice::Useless;
        };
        if std::mem::replace(&mut run.is_noticed, true) { Notice::GivenBefore } else { Notice::Given }
    }

    /// The notice of a running unit is over: it is stopped, if it is still the one that got the notice.
    pub fn stop_noticed(&mut self, key: Key, incarnation: u32, grace_ms: u32, out: &mut Vec<Action>) {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation);
        if run.is_some_and(|run| run.is_noticed) {
            self.stop(key, incarnation, grace_ms, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use godel_base::time::Millis;
    use godel_domain::run_end::RunEndReason;

    use super::*;
    use crate::life::{Backoff, Orders};

    const KEY: Key = Key { unit: 1, ordinal: 2 };

    #[test]
    fn what_runs_is_stopped_once_its_notice_is_over() {
        let mut life = NodeLife::new(Backoff::default());
        let mut out = Vec::new();
        assert_eq!(life.notice(KEY, 0), Notice::Useless, "it is not here");
        life.assign(KEY, 0, Orders::default(), &mut out);
        assert_eq!(life.notice(KEY, 0), Notice::Useless, "nothing runs yet");
        life.started(KEY, 0, 1, Millis(1));
        out.clear();
        assert_eq!(life.notice(KEY, 1), Notice::Useless, "that is another one");
        life.stop_noticed(KEY, 0, 7, &mut out);
        assert_eq!(out, [], "no notice was given");
        assert_eq!((life.notice(KEY, 0), life.notice(KEY, 0)), (Notice::Given, Notice::GivenBefore));
        assert_eq!(out, []);
        life.stop_noticed(KEY, 1, 7, &mut out);
        assert_eq!(out, [], "that is another one");
        life.stop_noticed(KEY, 0, 7, &mut out);
        let stop = Action::Stop { key: KEY, incarnation: 0, grace_ms: 7, reason: RunEndReason::Told };
        assert_eq!(out, [stop]);
        assert_eq!(life.notice(KEY, 0), Notice::Useless, "it leaves already");
    }

    #[test]
    fn a_stop_without_notice_does_not_wait_for_one() {
        let mut life = NodeLife::new(Backoff::default());
        let mut out = Vec::new();
        life.assign(KEY, 0, Orders::default(), &mut out);
        life.started(KEY, 0, 1, Millis(1));
        assert_eq!(life.notice(KEY, 0), Notice::Given);
        out.clear();
        life.stop(KEY, 0, 3, &mut out);
        assert_eq!(out.len(), 1);
        life.stop_noticed(KEY, 0, 7, &mut out);
        assert_eq!(out.len(), 1, "it leaves already");
    }
}
