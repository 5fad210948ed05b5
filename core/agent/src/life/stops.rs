//! What leaves a node: told by state, at once or after a notice; without contact, with its agent, or for want of memory; and what another
//! store or another agent has taken over.

use godel_domain::{run_end::RunEndReason, running_units::Phase};

use super::NodeLife;
use crate::{AgentAction, AgentOutbox, RunKey};

/// Best-effort running units had nothing but what was left over: they go at once, or nearly.
const SQUEEZE_GRACE_MS_MAX: u32 = 500;

/// What becomes of a running unit that is to be stopped later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopNotice {
    /// It goes on; call [`NodeLife::stop_noticed`] when the time is over.
    Given,
    /// It was given before, and that one counts.
    GivenBefore,
    /// Nothing runs that could go on: it is to be stopped at once.
    Useless,
}

impl<P> NodeLife<P> {
    /// State wants it to leave.
    pub fn stop(&mut self, key: RunKey, incarnation: u32, grace_ms: u32, out: &mut AgentOutbox) {
        match self.runs.get(&key) {
            Some(run) if run.incarnation > incarnation => return,
            Some(run) if run.incarnation == incarnation => {
                self.stop_live(key, grace_ms, RunEndReason::Told, out);
                return;
            }
            Some(_) => self.supersede(key, out),
            None => {
                if let Some(ended) = self.remembered.of(key).filter(|ended| ended.incarnation >= incarnation)
                {
                    self.reports.say(ended);
                    return;
                }
            }
        }
        // Never started here. It is over, and a late assignment must not start it.
        self.never_started(key, incarnation, None, out);
    }

    /// A running unit is to be stopped after a notice.
    pub(crate) fn notice(&mut self, key: RunKey, incarnation: u32) -> StopNotice {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        let Some(run) = run.filter(|run| run.phase == Phase::Running && !run.stopping) else {
            return StopNotice::Useless;
        };
        if std::mem::replace(&mut run.is_noticed, true) { StopNotice::GivenBefore } else { StopNotice::Given }
    }

    /// The notice of a running unit is over: it is stopped, if it is still the one that got the notice.
    pub fn stop_noticed(&mut self, key: RunKey, incarnation: u32, grace_ms: u32, out: &mut AgentOutbox) {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation);
        if run.is_some_and(|run| run.is_noticed) {
            self.stop(key, incarnation, grace_ms, out);
        }
    }

    /// Another store does not know it here, perhaps not even its unit: it ends, and nobody wants to hear of it.
    pub fn abandon(&mut self, key: RunKey, incarnation: u32, grace_ms: u32, out: &mut AgentOutbox) {
        let Some(run) = self.runs.remove(&key) else { return };
        if run.incarnation != incarnation {
            self.runs.insert(key, run);
            return;
        }
        if !run.phase.is_live() {
            out.push(AgentAction::Forget(run.status(key)));
            return;
        }
        if run.waiting {
            self.live.take(run.orders.weight, run.orders.pool);
            return;
        }
        if !run.stopping {
            out.push(run.stop(key, grace_ms.max(run.orders.stop_grace_ms), RunEndReason::Told));
        }
        self.left_over.insert((key, incarnation), run);
    }

    /// Another agent speaks for the node: whatever runs here ends, and nobody wants to hear of it. What is assigned here again is not
    /// started before the last of it has ended.
    pub fn disown(&mut self, out: &mut AgentOutbox) {
        let mut all: Vec<(RunKey, u32, u32)> =
            self.runs.iter().map(|(key, run)| (*key, run.incarnation, run.orders.stop_grace_ms)).collect();
        all.sort_unstable();
        for (key, incarnation, grace_ms) in all {
            self.abandon(key, incarnation, grace_ms, out);
        }
        self.change_store();
    }

    /// Without contact for `alone_ms`: stops what has to stop by then, before state may give it away. Returns
    /// after how long the next has to.
    pub fn stop_without_contact(&mut self, alone_ms: u64, out: &mut AgentOutbox) -> Option<u32> {
        let mut overdue = Vec::new();
        let mut next = None;
        for (key, run) in &self.runs {
            let stop_after_ms = run.orders.stop_after_ms;
            if stop_after_ms == 0 || !run.stays() {
                continue;
            }
            if alone_ms >= u64::from(stop_after_ms) {
                overdue.push(*key);
            } else {
                next = Some(next.map_or(stop_after_ms, |least: u32| least.min(stop_after_ms)));
            }
        }
        overdue.sort_unstable();
        for key in overdue {
            self.stop_live(key, 0, RunEndReason::NoContact, out);
        }
        next
    }

    /// The agent is being stopped and ends what it runs, each with its own grace. Returns the longest of these, milliseconds.
    pub fn stop_with_agent(&mut self, out: &mut AgentOutbox) -> u32 {
        let live = self.runs.iter().filter(|(_, run)| run.phase.is_live());
        let mut live: Vec<(RunKey, u32)> = live.map(|(key, run)| (*key, run.orders.stop_grace_ms)).collect();
        live.sort_unstable();
        for (key, grace_ms) in &live {
            self.stop_live(*key, *grace_ms, RunEndReason::AgentStopped, out);
        }
        live.into_iter().map(|(_, grace_ms)| grace_ms).max().unwrap_or(0)
    }

    /// A best-effort running unit ends; it returns elsewhere as its next incarnation.
    pub fn squeeze(&mut self, key: RunKey, incarnation: u32, out: &mut AgentOutbox) {
        let Some(run) = self.runs.get(&key).filter(|run| run.incarnation == incarnation) else { return };
        let grace_ms = run.orders.stop_grace_ms.min(SQUEEZE_GRACE_MS_MAX);
        self.stop_live(key, grace_ms, RunEndReason::Squeezed, out);
    }

    /// Makes a live one leave; one that waits to be started again is gone at once.
    fn stop_live(&mut self, key: RunKey, grace_ms: u32, reason: RunEndReason, out: &mut AgentOutbox) {
        let Some(run) = self.runs.get_mut(&key).filter(|run| run.phase.is_live()) else { return };
        if run.waiting {
            self.finish(key, Phase::Stopped, None, out);
        } else if !run.stopping {
            run.stopping = true;
            if run.is_adopted {
                self.leaving.insert((key, run.incarnation));
            }
            out.push(run.stop(key, grace_ms, reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use godel_base::time::Millis;
    use godel_domain::run_end::RunEndReason;

    use super::*;
    use crate::{RestartBackoff, RunOrders};

    const KEY: RunKey = RunKey { unit: 1, ordinal: 2 };

    #[test]
    fn what_runs_is_stopped_once_its_notice_is_over() {
        let mut life = NodeLife::<()>::new(RestartBackoff::default());
        let mut out = Vec::new();
        assert_eq!(life.notice(KEY, 0), StopNotice::Useless, "it is not here");
        life.assign(KEY, 0, RunOrders::default(), &mut out);
        assert_eq!(life.notice(KEY, 0), StopNotice::Useless, "nothing runs yet");
        life.started(KEY, 0, 1, Millis(1));
        out.clear();
        assert_eq!(life.notice(KEY, 1), StopNotice::Useless, "that is another one");
        life.stop_noticed(KEY, 0, 7, &mut out);
        assert_eq!(out, [], "no notice was given");
        assert_eq!((life.notice(KEY, 0), life.notice(KEY, 0)), (StopNotice::Given, StopNotice::GivenBefore));
        assert_eq!(out, []);
        life.stop_noticed(KEY, 1, 7, &mut out);
        assert_eq!(out, [], "that is another one");
        life.stop_noticed(KEY, 0, 7, &mut out);
        let stop = AgentAction::Stop { key: KEY, incarnation: 0, grace_ms: 7, reason: RunEndReason::Told };
        assert_eq!(out, [stop]);
        assert_eq!(life.notice(KEY, 0), StopNotice::Useless, "it leaves already");
    }

    #[test]
    fn a_stop_without_notice_does_not_wait_for_one() {
        let mut life = NodeLife::<()>::new(RestartBackoff::default());
        let mut out = Vec::new();
        life.assign(KEY, 0, RunOrders::default(), &mut out);
        life.started(KEY, 0, 1, Millis(1));
        assert_eq!(life.notice(KEY, 0), StopNotice::Given);
        out.clear();
        life.stop(KEY, 0, 3, &mut out);
        assert_eq!(out.len(), 1);
        life.stop_noticed(KEY, 0, 7, &mut out);
        assert_eq!(out.len(), 1, "it leaves already");
    }
}
