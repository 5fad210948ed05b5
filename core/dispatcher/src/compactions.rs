//! Units of which ended replicas are compacted, and when.
//!
//! Rows do not say when they changed, but at which revision. So the revision that was read is noted from time to time: what has
//! ended by then and has not changed since is as old as the note. Nothing survives a restart: a new leader waits once more.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_rules::compaction::{self, is_compacted};

use super::{Action, gates::AssignmentGates, unit_entry::UnitEntry, units::Units};

/// Notes within the time after which replicas are compacted: they go a quarter of it late at most.
const N_NOTES: u64 = 4;
/// Until a unit is looked at again of which more is to be compacted, milliseconds.
const PACE_MS: u64 = 1_000;
/// Units looked at in one step.
const LOOKS_MAX: usize = 16;

/// Units with replicas that have ended and are compacted later.
#[derive(Debug)]
pub(super) struct Compactions {
    after_ms: u64,
    units: BTreeMap<UnitId, CompactedLater>,
    due: BTreeSet<(Millis, UnitId)>,
}

/// What is known of one unit.
#[derive(Debug)]
struct CompactedLater {
    /// When it is looked at next.
    due: Millis,
    /// Revisions that had been read, and when, the oldest first.
    read: VecDeque<(Millis, Revision)>,
    /// What changed last at this revision or before is old enough.
    until: Revision,
}

impl Compactions {
    /// Replicas are compacted so long after their end.
    pub(super) fn new(after_ms: u64) -> Self {
        Self { after_ms: after_ms.max(1), units: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// A unit's record or rows have changed.
    pub(super) fn watch(&mut self, entry: &UnitEntry, now: Millis) {
        let unit = entry.record.id;
        if !is_compacted(&entry.record) || self.units.contains_key(&unit) || !has_ended_rows(entry) {
            return;
        }
        let due = now;
        self.units.insert(unit, CompactedLater { due, read: VecDeque::new(), until: Revision(0) });
        self.due.insert((due, unit));
    }

    /// A unit's record is gone.
    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        if let Some(known) = self.units.remove(&unit) {
            self.due.remove(&(known.due, unit));
        }
    }

    /// Compacts what ended long enough ago. `read`: everything up to there is known.
    pub(super) fn compact(
        &mut self,
        units: &Units,
        gates: &AssignmentGates,
        read: Revision,
        wall_ms: i64,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        let (after_ms, interval_ms) = (self.after_ms, self.interval_ms());
        let due = self.due.iter().take_while(|(at, _)| *at <= now).take(LOOKS_MAX);
        let due: Vec<UnitId> = due.map(|(_, unit)| *unit).collect();
        for unit in due {
            let entry = units.get(unit).filter(|entry| !entry.phase.is_terminal() && has_ended_rows(entry));
            let (Some(entry), Some(known)) = (entry, self.units.get_mut(&unit)) else {
                self.remove_unit(unit);
                continue;
            };
            let mut wait_ms = interval_ms;
            if gates.frozen.unit(unit).is_none() && read >= entry.revision {
                known.note(read, now, after_ms, interval_ms);
                let compacted = compaction::compact(&entry.record, &entry.rows, known.until, wall_ms);
                if let Some(compacted) = compacted {
                    let compaction::CompactedUnit { record, compaction, .. } = compacted;
                    actions.push(Action::Compact(Arc::new(record), entry.revision, compaction));
                    // Whether it was written, and whether there is more, is seen then.
                    wait_ms = PACE_MS.min(interval_ms);
                }
            }
            self.due.remove(&(known.due, unit));
            known.due = now.plus(wait_ms);
            self.due.insert((known.due, unit));
        }
    }

    /// When a unit is to be looked at next.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at)
    }

    fn interval_ms(&self) -> u64 {
        (self.after_ms / N_NOTES).max(1)
    }
}

impl CompactedLater {
    /// Everything up to a revision has been read now.
    fn note(&mut self, read: Revision, now: Millis, after_ms: u64, interval_ms: u64) {
        while let Some((at, old)) = self.read.front().copied()
            && at.plus(after_ms) <= now
        {
            self.until = self.until.max(old);
            self.read.pop_front();
        }
        if self.read.back().is_none_or(|(at, _)| at.plus(interval_ms) <= now) {
            self.read.push_back((now, read));
        }
    }
}

fn has_ended_rows(entry: &UnitEntry) -> bool {
    let counts = &entry.counts;
    // Of what is released the counts say nothing.
    counts.succeeded + counts.failed > 0 || entry.rows.rows.values().any(|row| row.phase.is_ended())
}
