//! Units come into a state, leave it, and go.

use std::{cmp::Reverse, sync::Arc};

use godel_domain::unit_report::{ReportState, UnitReport};
use godel_domain::{ids::UnitId, refusals::Refusals, seed::mix};

use super::{
    Config, Scheduler,
    assigned_unit::{AssignedUnit, State},
    park::WaitKey,
};

/// Rejections in a row after which a unit in backoff holds no credits: by then it waits a tenth of a second and more.
const N_FAILURES_CREDITED: u32 = 6;

impl Scheduler {
    /// Puts a unit into a state, or lets it go when nothing is left to do. The dispatcher hears when it is parked no longer:
    /// it would call it for room otherwise, in the midst of whatever else becomes of it.
    pub(super) fn attach(&mut self, mut assigned: Box<AssignedUnit>, state: State) {
        let unit = assigned.unit();
        if assigned.is_done() {
            self.report(&assigned, ReportState::Done, None);
            self.let_go(assigned);
            return;
        }
        let was_parked = matches!(assigned.state, State::Parked(_));
        assigned.state = if assigned.has_work() { state } else { State::Waiting };
        if was_parked && !matches!(assigned.state, State::Parked(_)) {
            self.report(&assigned, ReportState::Woken, None);
        }
        match &assigned.state {
            State::Ready => {
                assigned.full = None;
                self.n_called += usize::from(assigned.is_called);
                self.ready.insert(assigned.flow, assigned.turn);
            }
            State::Backoff(end) => {
                assigned.rests = assigned.failures > N_FAILURES_CREDITED;
                self.backoff.insert((*end, unit));
            }
            // The group has it already.
            State::Parked(_) | State::Waiting => {}
        }
        if !matches!(assigned.state, State::Ready) {
            self.finish_wake(&mut assigned);
        }
        self.working += assigned.weight();
        self.units.insert(unit, assigned);
    }

    /// Units of a class stand where it says now, and those that are parked try again with that.
    pub(super) fn follow_class(&mut self, class: &str) {
        let priority = Reverse(self.classes.value(class));
        let moves =
            |assigned: &AssignedUnit| assigned.class.as_deref() == Some(class) && assigned.turn.0 != priority;
        let of_class = self.units.values().filter(|assigned| moves(assigned));
        let mut moved: Vec<UnitId> = of_class.map(|assigned| assigned.unit()).collect();
        moved.sort_unstable();
        for unit in moved {
            let Some(mut assigned) = self.detach(unit) else { continue };
            assigned.turn.0 = priority;
            let state = match &assigned.state {
                State::Parked(_) => State::Ready,
                other => other.clone(),
            };
            self.attach(assigned, state);
        }
    }

    /// Takes a unit out of whatever state it is in, to be attached again or let go.
    pub(super) fn detach(&mut self, unit: UnitId) -> Option<Box<AssignedUnit>> {
        let assigned = self.units.remove(&unit)?;
        self.working -= assigned.weight();
        match &assigned.state {
            State::Ready => {
                self.n_called -= usize::from(assigned.is_called);
                self.ready.remove(assigned.flow, &assigned.turn);
            }
            State::Backoff(end) => {
                self.backoff.remove(&(*end, unit));
            }
            State::Parked(need) => self.parked.remove(need, &assigned.turn),
            State::Waiting => {}
        }
        Some(assigned)
    }

    /// The end of a detached unit here.
    pub(super) fn let_go(&mut self, mut assigned: Box<AssignedUnit>) {
        self.finish_wake(&mut assigned);
        for group in &assigned.groups {
            self.placer.templates.release(group.template);
        }
        if !assigned.decisions.is_empty() {
            self.orphans.insert(assigned.unit(), assigned.decisions);
        }
    }

    pub(super) fn report(
        &mut self,
        assigned: &AssignedUnit,
        state: ReportState,
        refusals: Option<Arc<Refusals>>,
    ) {
        self.report_parked(assigned, state, refusals, 0);
    }

    /// The same of a unit that lacks something.
    pub(super) fn report_parked(
        &mut self,
        assigned: &AssignedUnit,
        state: ReportState,
        refusals: Option<Arc<Refusals>>,
        need: u64,
    ) {
        let (unit, spec_revision) = (assigned.unit(), assigned.revision);
        let unplaced = u32::try_from(assigned.pending()).unwrap_or(u32::MAX);
        let unplaced = (state == ReportState::Parked).then_some(unplaced);
        self.reports.push(UnitReport { unit, spec_revision, state, refusals, need, unplaced });
    }

    /// The unit woken from a group came to an end: the next one's turn.
    pub(super) fn finish_wake(&mut self, assigned: &mut AssignedUnit) {
        if let Some(need) = assigned.woken_from.take()
            && self.parked.finish(&need, assigned.unit())
        {
            self.wake(&need);
        }
    }

    /// Tries the first unit of a group of parked ones.
    pub(super) fn wake(&mut self, need: &WaitKey) {
        let Some(turn) = self.parked.wake(need) else { return };
        let Some(mut assigned) = self.units.remove(&turn.2) else { return };
        assigned.woken_from = Some(need.clone());
        self.attach(assigned, State::Ready);
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
