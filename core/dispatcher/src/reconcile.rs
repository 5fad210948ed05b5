//! The reconciler: compares what the dispatcher believes with what follows from the records, and repairs.
//!
//! In a healthy run it repairs nothing. Each pass looks at a bounded slice of the units and of the holds, where the next
//! one goes on, and at what schedulers hold, which credits bound.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

use godel_base::{
    ids::{HoldId, NodeId, UnitId},
    time::Millis,
};
use godel_domain::hold::Hold;
use godel_rules::admission::feasibility::Capacities;

use super::{
    assignments::Assignments,
    unit_entry::{UnitEntry, Whereabouts},
    units::Units,
};

/// Holds by id.
type HoldsById = BTreeMap<HoldId, Arc<Hold>>;

/// Units looked at in one pass.
const UNITS_PER_PASS: usize = 5_000;
/// Rows counted anew in one pass.
const ROWS_PER_PASS: usize = 100_000;
/// Holds looked at in one pass.
const HOLDS_PER_PASS: usize = 10_000;

/// When the next pass is due, and where it goes on.
#[derive(Debug, Default)]
pub(super) struct Reconciler {
    pub(super) at: Millis,
    unit: UnitId,
    /// The last one that was looked at.
    hold: HoldId,
}

/// What is wrong with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The counts do not follow from the rows, or what its queue was told from both.
    Counts,
    /// It is not where its pending running units say.
    Whereabouts,
    /// Its scheduler said long ago that all is bound, and it is not.
    NotDone,
    /// Room is held for it that is held no more.
    Dispatched,
}

impl Reconciler {
    /// Compares a slice of the units. `capacities`: the nodes that are known, unless a list is under way and few are. Returns
    /// nodes with running units that nobody knows.
    pub(super) fn check_units(
        &mut self,
        assignments: &mut Assignments,
        holds: &HoldsById,
        capacities: Option<&Capacities>,
        done_grace_ms: u64,
        now: Millis,
    ) -> BTreeSet<NodeId> {
        let (mut faults, mut n_rows) = (Vec::new(), 0);
        let mut adrift = BTreeSet::new();
        let mut next = UnitId(0);
        for (seen, &unit) in assignments.units.ids.range(self.unit..).enumerate() {
            if seen >= UNITS_PER_PASS || n_rows >= ROWS_PER_PASS {
                next = unit;
                break;
            }
            let Some(entry) = assignments.units.get(unit) else { continue };
            n_rows += entry.rows.rows.len();
            if let Some(capacities) = capacities {
                let nodes = entry.rows.live().map(|(_, row)| row.node);
                adrift.extend(nodes.filter(|node| !capacities.contains(*node)));
            }
            if let Some(fault) = fault(entry, assignments, holds, done_grace_ms, now) {
                faults.push((unit, fault));
            }
        }
        self.unit = next;
        for (unit, fault) in faults {
            assignments.counters.repairs += 1;
            repair(unit, fault, assignments, holds, now);
        }
        adrift
    }

    /// Compares a slice of the holds. Returns those that their units do not know.
    pub(super) fn check_holds(&mut self, units: &Units, holds: &HoldsById) -> Vec<Arc<Hold>> {
        let after = (Excluded(self.hold), Unbounded);
        let slice = holds.range(after).take(HOLDS_PER_PASS);
        let (mut last, mut n_seen, mut unknown) = (HoldId::default(), 0, Vec::<Arc<Hold>>::new());
        for (id, hold) in slice {
            (last, n_seen) = (*id, n_seen + 1);
            let entry = units.get(hold.unit).filter(|_| hold.movement.is_none());
            if entry.is_some_and(|entry| !entry.holds.iter().any(|known| known.id == *id)) {
                unknown.push(Arc::clone(hold));
            }
        }
        self.hold = if n_seen < HOLDS_PER_PASS { HoldId::default() } else { last };
        unknown
    }
}

/// Compares what schedulers hold, and how much that is.
pub(super) fn check_schedulers(assignments: &mut Assignments, now: Millis) {
    let Assignments { units, schedulers, counters, .. } = &mut *assignments;
    let mut strays = Vec::new();
    for (idx, scheduler) in schedulers.all.iter_mut().enumerate() {
        let (mut outstanding, mut parked) = (0, 0);
        for unit in &scheduler.held {
            match units.place(*unit) {
                Some(Whereabouts::Dispatched(held)) if held.scheduler == idx => {
                    outstanding += u64::from(held.load);
                    parked += u32::from(held.parked.is_some());
                }
                _ => strays.push((idx, *unit)),
            }
        }
        if (outstanding, parked) != (scheduler.outstanding, scheduler.parked) {
            counters.repairs += 1;
            (scheduler.outstanding, scheduler.parked) = (outstanding, parked);
        }
    }
    for (idx, unit) in strays {
        assignments.counters.repairs += 1;
        assignments.schedulers.all[idx].held.remove(&unit);
        if let Some(session) = assignments.schedulers.all[idx].session {
            assignments.schedulers.revoke(session, unit);
        }
        assignments.refresh(unit, now);
    }
}

fn repair(unit: UnitId, fault: Fault, assignments: &mut Assignments, holds: &HoldsById, now: Millis) {
    let Assignments { units, schedulers, .. } = &mut *assignments;
    let Some(entry) = units.get_mut(unit) else { return };
    match (fault, &mut entry.place) {
        (Fault::NotDone, Whereabouts::Dispatched(held)) => {
            held.done_at = Some(now);
            return schedulers.tell_again(unit, held);
        }
        (Fault::NotDone | Fault::Whereabouts, _) => {}
        (Fault::Counts, _) => entry.recount(),
        (Fault::Dispatched, _) => entry.holds.retain(|hold| holds.contains_key(&hold.id)),
    }
    assignments.displace(unit, now);
}

fn fault(
    entry: &UnitEntry,
    assignments: &Assignments,
    holds: &HoldsById,
    done_grace_ms: u64,
    now: Millis,
) -> Option<Fault> {
    let unit = entry.record.id;
    if !entry.is_sound() {
        return Some(Fault::Counts);
    }
    if entry.holds.iter().any(|hold| !holds.contains_key(&hold.id)) {
        return Some(Fault::Dispatched);
    }
    let wants = entry.to_place() > 0;
    let sound = match &entry.place {
        Whereabouts::Idle => !wants,
        Whereabouts::Paused => {
            wants
                && (assignments.frozen_for(unit).is_some() || assignments.gates.is_paused(&entry.record.spec))
        }
        Whereabouts::Unsettled => wants && assignments.settling.unsettled.contains(&unit),
        Whereabouts::Queued(waiting) => wants && assignments.queueing.queues.contains(waiting),
        Whereabouts::Dispatched(held) => {
            let scheduler = &assignments.schedulers.all[held.scheduler];
            let late = |at: Millis| now.since(at) >= done_grace_ms;
            // An older scheduler is done with what is held, and hears of it again once that ends.
            if wants && held.done_at.is_some_and(late) && entry.holds().is_empty() {
                return Some(Fault::NotDone);
            }
            let is_waiting = held.parked.is_none_or(|waiting| assignments.queueing.queues.contains(&waiting));
            wants && scheduler.live && scheduler.held.contains(&unit) && is_waiting
        }
    };
    (!sound).then_some(Fault::Whereabouts)
}
