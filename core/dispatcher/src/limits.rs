//! Time limits of units: how long they may wait before it is said that they find no place, how long they may be active.
//!
//! Almost every unit waits, and almost none for long, so waits with the same limit stand in a row in order of time, and
//! one that is over before is left there until its time comes. Nothing survives a restart: a new leader counts a wait from
//! the submission of a unit that never had a node, and from now otherwise. Deadlines follow from the records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::lifecycle;

use super::{unit_entry::UnitEntry, units::Units};

/// Limits end at multiples of this, milliseconds: many of them with one look.
const GRAIN_MS: u64 = 250;
/// Of a unit that does not wait.
pub(super) const NEVER: Millis = Millis(0);
/// Limits looked at in one step.
const LOOKS_MAX: usize = 10_000;

/// Limits that run.
#[derive(Debug, Default)]
pub(super) struct TimeLimits {
    /// By length of the wait.
    waits: BTreeMap<u64, VecDeque<(Millis, UnitId)>>,
    deadlines: BTreeSet<(Millis, UnitId)>,
    /// Of units in `deadlines`.
    deadline_of: BTreeMap<UnitId, Millis>,
    /// The time of day is known, and what was there at the start.
    is_started: bool,
}

impl TimeLimits {
    /// A unit begins to wait; when it will have waited for `limit_ms`, of which `past_ms` are over.
    fn wait(&mut self, unit: UnitId, limit_ms: u64, past_ms: u64, now: Millis) -> Millis {
        let at = now.plus(limit_ms.saturating_sub(past_ms));
        let due = Millis(at.0.div_ceil(GRAIN_MS).max(1).saturating_mul(GRAIN_MS));
        self.waits.entry(limit_ms).or_default().push_back((due, unit));
        due
    }

    /// Units whose waits or deadlines end now, at most [`LOOKS_MAX`].
    pub(super) fn take_due(&mut self, now: Millis) -> Vec<(Millis, UnitId)> {
        let mut due = Vec::new();
        for waits in self.waits.values_mut() {
            while due.len() < LOOKS_MAX
                && let Some(wait) = waits.pop_front_if(|(at, _)| *at <= now)
            {
                due.push(wait);
            }
        }
        self.waits.retain(|_, waits| !waits.is_empty());
        while due.len() < LOOKS_MAX
            && let Some(&deadline) = self.deadlines.first().filter(|(at, _)| *at <= now)
        {
            self.remove(deadline.1);
            due.push(deadline);
        }
        due
    }

    /// When the next look is due.
    pub(super) fn next_at(&self) -> Option<Millis> {
        let waits = self.waits.values().filter_map(|waits| waits.front());
        waits.chain(self.deadlines.first()).map(|(at, _)| *at).min()
    }

    /// A unit has no deadline (any more).
    pub(super) fn remove(&mut self, unit: UnitId) {
        if let Some(at) = self.deadline_of.remove(&unit) {
            self.deadlines.remove(&(at, unit));
        }
    }

    /// Follows a unit's phase and rows.
    pub(super) fn update(&mut self, entry: &mut UnitEntry, now: Millis, wall_ms: i64) {
        if !self.is_started {
            return;
        }
        let unit = entry.record.id;
        match (entry.waits(), entry.wait_due == NEVER) {
            (true, true) => {
                entry.wait_due = self.wait(unit, entry.record.spec.scheduling_timeout_ms(), 0, now)
            }
            (false, false) => (entry.wait_due, entry.is_overdue) = (NEVER, false),
            (true, false) | (false, true) => {}
        }
        if entry.record.spec.active_deadline_ms > 0
            && !self.deadline_of.contains_key(&unit)
            && let Some(at_ms) = lifecycle::deadline_ms(&entry.record, &entry.counts, &entry.rows)
        {
            let left_ms = u64::try_from(at_ms.saturating_sub(wall_ms)).unwrap_or(0);
            let at = now.plus(left_ms.max(1));
            self.deadlines.insert((at, unit));
            self.deadline_of.insert(unit, at);
        }
    }

    /// Begins with everything that was there at the start. Does nothing after the first time.
    pub(super) fn start(&mut self, units: &mut Units, wall_ms: i64, now: Millis) {
        if std::mem::replace(&mut self.is_started, true) {
            return;
        }
        for unit in units.all() {
            let Some(entry) = units.get_mut(unit) else { continue };
            if entry.waits() && !entry.was_placed() {
                let past_ms = u64::try_from(wall_ms.saturating_sub(entry.create_time_ms)).unwrap_or(0);
                let limit_ms = entry.record.spec.scheduling_timeout_ms();
                entry.wait_due = self.wait(unit, limit_ms, past_ms, now);
            }
            self.update(entry, now, wall_ms);
        }
        for waits in self.waits.values_mut() {
            waits.make_contiguous().sort_unstable();
        }
    }
}
