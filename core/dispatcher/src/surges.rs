//! Units of which a replica starts before the one stops that it replaces: what the binder held room for is added to their records,
//! and taken out of them again.
//!
//! The rules are those of [`godel_rules::surge`]. Nothing survives a restart: holds and records are listed again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{HoldId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    change::Change,
    hold::Hold,
    records::{Record, RecordKey},
    running_units::RunChange,
};
use godel_rules::surge;

use super::{Action, assignments::Assignments, gates::AssignmentGates, unit_entry::UnitEntry, units::Units};

/// Units looked at in one step.
const LOOKS_MAX: usize = 64;
/// Of a unit of which something has to change first.
const NEVER: Millis = Millis(u64::MAX);

/// Units with replicas that start first, or that room is held for.
#[derive(Debug)]
pub(super) struct Surges {
    /// Room for replicas that are to start first; there are few.
    holds: BTreeMap<HoldId, Arc<Hold>>,
    /// When units are looked at next.
    due: BTreeMap<UnitId, Millis>,
    retry_ms: u64,
}

impl Surges {
    /// What could not be written is written after `retry_ms`.
    pub(super) fn new(retry_ms: u64) -> Self {
        Self { holds: BTreeMap::new(), due: BTreeMap::new(), retry_ms: retry_ms.max(1) }
    }

    /// Follows a change, as it was committed at a revision or listed, before anybody else does.
    pub(super) fn note(
        &mut self,
        change: &Change,
        revision: Revision,
        Assignments { units, counters, moved, .. }: &mut Assignments,
        now: Millis,
    ) {
        if let Change::Put(Record::Unit(record)) = change
            && let Some(known) = units.get(record.id).filter(|known| known.revision < revision)
        {
            let counted = surge::count(&known.record, record);
            counters.surges_started += counted.started;
            counters.surges_given_up += counted.given_up;
        }
        if let Change::Put(Record::Hold(hold)) = change
            && hold.movement.is_some()
            && let Some(entry) = units.get_mut(hold.unit)
        {
            // Whoever places the replica has to know where it moves to.
            entry.moves_revision = entry.moves_revision.max(revision);
            moved.insert(hold.unit);
        }
        if let Change::Rows(unit, RunChange::Requeue(_)) = change
            && units.get(*unit).is_some_and(|entry| entry.moves_revision > Revision(0))
        {
            moved.insert(*unit);
        }
        match change {
            Change::Put(Record::Hold(hold)) if hold.surge_ordinal().is_some() => {
                self.holds.insert(hold.id, Arc::clone(hold));
                self.due.insert(hold.unit, now);
            }
            Change::Gone(RecordKey::Hold(id)) => {
                if let Some(gone) = self.holds.remove(id) {
                    self.due.insert(gone.unit, now);
                }
            }
            Change::Put(Record::Unit(record)) if !record.status.surges.is_empty() => {
                moved.insert(record.id);
                self.due.insert(record.id, now);
            }
            Change::Gone(RecordKey::Unit(unit)) => {
                self.due.remove(unit);
            }
            _ => {
                if let Some(unit) = change.unit() {
                    self.look_again(unit, now);
                }
            }
        }
    }

    /// Something of a unit changed.
    fn look_again(&mut self, unit: UnitId, now: Millis) {
        if let Some(at) = self.due.get_mut(&unit) {
            *at = now;
        }
    }

    /// Writes what follows from holds and running units. `read`: everything up to there is known.
    pub(super) fn follow(
        &mut self,
        units: &Units,
        gates: &AssignmentGates,
        read: Revision,
        wall_ms: i64,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        let due = self.due.iter().filter(|(_, at)| **at <= now).take(LOOKS_MAX);
        let due: Vec<UnitId> = due.map(|(unit, _)| *unit).collect();
        for unit in due {
            let Some(entry) = units.get(unit) else {
                self.due.remove(&unit);
                continue;
            };
            // What cannot be read, or has yet to be, may be what it rests on.
            let is_known = gates.frozen.unit(unit).is_none() && read >= entry.revision;
            let next = if is_known { self.next_record(entry, wall_ms) } else { None };
            let at = if is_known && next.is_none() {
                self.next_look(entry, wall_ms, now)
            } else {
                Some(now.plus(self.retry_ms))
            };
            match at {
                Some(at) => self.due.insert(unit, at),
                None => self.due.remove(&unit),
            };
            actions.extend(next);
        }
    }

    /// What is to be written of a unit. What ends goes first, so that the next one has its place.
    fn next_record(&self, entry: &UnitEntry, wall_ms: i64) -> Option<Action> {
        let (record, rows) = (&entry.record, &entry.rows);
        let held: BTreeSet<u32> = self.of_unit(record.id).filter_map(Hold::surge_ordinal).collect();
        if let Some(next) = surge::follow(record, rows, |ordinal| held.contains(&ordinal), wall_ms) {
            // The new one must still run when the old one is told to leave.
            return Some(Action::Surge(Arc::new(next), entry.revision, Some(entry.rows_revision)));
        }
        let next = self.of_unit(record.id).find_map(|hold| surge::begin(record, rows, hold))?;
        Some(Action::Surge(Arc::new(next), entry.revision, None))
    }

    /// When a unit is looked at without a change of it; `None`: never.
    fn next_look(&self, entry: &UnitEntry, wall_ms: i64, now: Millis) -> Option<Millis> {
        let first_ms = entry.record.status.surges.iter().map(|surge| surge.expires_ms).min();
        let wait = |at_ms: i64| now.plus(u64::try_from(at_ms.saturating_sub(wall_ms)).unwrap_or(0).max(1));
        let is_held = self.of_unit(entry.record.id).next().is_some();
        first_ms.map(wait).or(is_held.then_some(NEVER))
    }

    fn of_unit(&self, unit: UnitId) -> impl Iterator<Item = &Hold> {
        self.holds.values().map(|hold| &**hold).filter(move |hold| hold.unit == unit)
    }

    /// When a unit is to be looked at next.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.due.values().copied().min().filter(|at| *at < NEVER)
    }
}
