//! Units come into a state, leave it, and go.

use std::{cmp::Reverse, sync::Arc};

use godel_domain::unit_report::{ReportState, UnitReport};
use godel_domain::{ids::UnitId, refusals::Refusals, seed::mix};

use super::{
    Config, Scheduler,
    held::{Held, State},
    park::Need,
};

/// Rejections in a row after which a unit in backoff holds no credits: by then it waits a tenth of a second and more.
const N_FAILURES_CREDITED: u32 = 6;

impl Scheduler {
    /// Puts a unit into a state, or lets it go when nothing is left to do.
    pub(super) fn attach(&mut self, mut held: Box<Held>, state: State) {
        let unit = held.unit();
        if held.is_done() {
            self.report(&held, ReportState::Done, None);
            self.let_go(held);
            return;
        }
        held.state = if held.has_work() { state } else { State::Waiting };
        match &held.state {
            State::Ready => {
                held.full = None;
                self.n_called += usize::from(held.is_called);
                self.ready.insert(held.flow, held.turn);
            }
            State::Backoff(end) => {
                held.rests = held.failures > N_FAILURES_CREDITED;
                self.backoff.insert((*end, unit));
            }
            // The group has it already.
            State::Parked(_) | State::Waiting => {}
        }
        if !matches!(held.state, State::Ready) {
            self.finish_wake(&mut held);
        }
        self.working += held.weight();
        self.units.insert(unit, held);
    }

    /// Units of a class stand where it says now, and those that are parked try again with that.
    pub(super) fn follow_class(&mut self, class: &str) {
        let priority = Reverse(self.classes.value(class));
        let moves = |held: &Held| held.class.as_deref() == Some(class) && held.turn.0 != priority;
        let of_class = self.units.values().filter(|held| moves(held));
        let mut moved: Vec<UnitId> = of_class.map(|held| held.unit()).collect();
        moved.sort_unstable();
        for unit in moved {
            let Some(mut held) = self.detach(unit) else { continue };
            held.turn.0 = priority;
            let mut state = std::mem::replace(&mut held.state, State::Waiting);
            if matches!(state, State::Parked(_)) {
                self.report(&held, ReportState::Woken, None);
                state = State::Ready;
            }
            self.attach(held, state);
        }
    }

    /// Takes a unit out of whatever state it is in, to be attached again or let go.
    pub(super) fn detach(&mut self, unit: UnitId) -> Option<Box<Held>> {
        let held = self.units.remove(&unit)?;
        self.working -= held.weight();
        match &held.state {
            State::Ready => {
                self.n_called -= usize::from(held.is_called);
                self.ready.remove(held.flow, &held.turn);
            }
            State::Backoff(end) => {
                self.backoff.remove(&(*end, unit));
            }
            State::Parked(need) => self.parked.remove(need, &held.turn),
            State::Waiting => {}
        }
        Some(held)
    }

    /// The end of a detached unit here.
    pub(super) fn let_go(&mut self, mut held: Box<Held>) {
        self.finish_wake(&mut held);
        for group in &held.groups {
            self.placer.templates.release(group.template);
        }
        if !held.decisions.is_empty() {
            self.orphans.insert(held.unit(), held.decisions);
        }
    }

    pub(super) fn report(&mut self, held: &Held, state: ReportState, refusals: Option<Arc<Refusals>>) {
        self.report_parked(held, state, refusals, 0);
    }

    /// The same of a unit that lacks something.
    pub(super) fn report_parked(
        &mut self,
        held: &Held,
        state: ReportState,
        refusals: Option<Arc<Refusals>>,
        need: u64,
    ) {
        let (unit, spec_revision) = (held.unit(), held.revision);
        self.reports.push(UnitReport { unit, spec_revision, state, refusals, need });
    }

    /// The unit woken from a group came to an end: the next one's turn.
    pub(super) fn finish_wake(&mut self, held: &mut Held) {
        if let Some(need) = held.woken_from.take()
            && self.parked.finish(&need, held.unit())
        {
            self.wake(&need);
        }
    }

    /// Tries the first unit of a group of parked ones.
    pub(super) fn wake(&mut self, need: &Need) {
        let Some(turn) = self.parked.wake(need) else { return };
        let Some(mut held) = self.units.remove(&turn.2) else { return };
        self.report(&held, ReportState::Woken, None);
        held.woken_from = Some(need.clone());
        self.attach(held, State::Ready);
    }

    /// `min` doubled with each rejection in a row up to `max`, less up to half of it by seeded jitter.
    pub(super) fn delay_ms(&self, unit: UnitId, failures: u32) -> u64 {
        let Config { backoff_ms_min, backoff_ms_max, .. } = self.config;
        let doubled = backoff_ms_min.saturating_mul(1 << failures.saturating_sub(2).min(20));
        let delay = doubled.min(backoff_ms_max);
        let jitter = mix(self.seed ^ unit.0.rotate_left(16) ^ u64::from(failures)) % (delay / 2 + 1);
        (delay - jitter).max(1)
    }
}
