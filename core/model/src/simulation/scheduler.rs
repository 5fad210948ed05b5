//! A scheduler without its streams: as its service drives it.

use godel_audit::Commit;
use godel_base::time::Millis;
use godel_core_scheduler::{Config, Scheduler};
use godel_domain::unit_report::ReportState;

use super::{BINDER, DISPATCHER, PartMessage, PartTurn, TimedPart};

/// Running units decided in one step, as configured by default.
const STEP_BUDGET: usize = 4_096;
/// Pause after a step that came to nothing, milliseconds, as in the service.
const IDLE_MS: u64 = 20;

pub(super) struct TimedScheduler {
    idx: usize,
    core: Scheduler,
    held_max: u32,
    granted: u32,
    idle_until: Millis,
}

impl TimedScheduler {
    pub(super) fn new(idx: usize, config: Config, seed: u64, records: &[Commit]) -> Self {
        let held_max = config.held_max;
        let mut core = Scheduler::new(config, seed);
        for commit in records {
            core.apply(commit, Millis(0));
        }
        Self { idx, core, held_max, granted: held_max, idle_until: Millis(0) }
    }

    fn take(&mut self, message: PartMessage, turn: &mut PartTurn<'_>) {
        let now = turn.now_ms();
        match message {
            PartMessage::Assign(assignments) => {
                for one in assignments {
                    let n_pending = u32::try_from(one.ordinals.len()).unwrap_or(u32::MAX);
                    self.granted = self.granted.saturating_sub(n_pending);
                    self.core.on_assign(&one, now);
                }
            }
            PartMessage::Revoke(unit) => self.core.on_revoke(unit),
            PartMessage::Outcomes(outcomes) => {
                for outcome in &outcomes {
                    self.core.on_outcome(outcome, now);
                }
            }
            PartMessage::Commits(range) => {
                turn.follow(&range, false);
                for commit in &turn.ledger.commits[range] {
                    self.core.apply(commit, now);
                }
            }
            other => unreachable!("not for schedulers: {other:?}"),
        }
    }

    fn step(&mut self, turn: &mut PartTurn<'_>) {
        let now = turn.now_ms();
        if self.idle_until > now || self.core.next_wake().is_none_or(|wake| wake > now) {
            return;
        }
        let step = self.core.step(now, STEP_BUDGET);
        if step.decisions.is_empty() && step.reports.is_empty() && step.rooms.is_empty() {
            self.idle_until = now.plus(IDLE_MS);
            return;
        }
        let n_parked = step.reports.iter().filter(|report| report.state == ReportState::Parked).count();
        let n_placed = step.decisions.iter().map(godel_domain::decision::Decision::len).sum();
        turn.work(turn.delays.scheduler.of(step.decisions.len() + n_parked, n_placed));
        if !step.decisions.is_empty() {
            turn.call(BINDER, PartMessage::Decisions(self.idx, step.decisions));
        }
        if !step.reports.is_empty() || !step.rooms.is_empty() {
            turn.call(DISPATCHER, PartMessage::Reports(self.idx, step.reports, step.rooms));
        }
    }

    fn tell_credits(&mut self, turn: &mut PartTurn<'_>) {
        let credits = self.core.credits();
        let notable = (self.held_max / 8).max(1);
        if credits.abs_diff(self.granted) >= notable || (self.granted == 0 && credits > 0) {
            self.granted = credits;
            turn.call(DISPATCHER, PartMessage::Credits(self.idx, credits));
        }
    }
}

impl TimedPart for TimedScheduler {
    fn turn(&mut self, turn: &mut PartTurn<'_>) {
        while let Some(message) = turn.next() {
            self.idle_until = Millis(0);
            self.take(message, turn);
        }
        self.step(turn);
        self.tell_credits(turn);
        turn.wake_at(self.core.next_wake().map(|wake| wake.max(self.idle_until)));
    }
}
