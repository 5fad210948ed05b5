//! The reconciler: compares what the dispatcher believes with what follows from the records, and repairs.
//!
//! In a healthy run it repairs nothing. Each pass looks at a bounded slice of the units and of the holds, where the next
//! one goes on, and at what schedulers hold, which credits bound.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

use godel_domain::{
    hold::Hold,
    ids::{HoldId, NodeId, UnitId},
    sub_cluster,
    time::Millis,
};

use super::{Action, Dispatcher, UnitEntry, Whereabouts};

/// Units looked at in one pass.
const UNITS_PER_PASS: usize = 5_000;
/// Rows counted anew in one pass.
const ROWS_PER_PASS: usize = 100_000;
/// Holds looked at in one pass.
const HOLDS_PER_PASS: usize = 10_000;

/// Where the next pass goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
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

impl Dispatcher {
    pub(super) fn reconcile(&mut self, now: Millis) {
        self.reconcile_units(now);
        self.reconcile_holds(now);
        self.reconcile_schedulers(now);
        self.recount_rooms();
    }

    fn reconcile_units(&mut self, now: Millis) {
        let (mut faults, mut n_rows) = (Vec::new(), 0);
        let mut adrift = BTreeSet::new();
        let mut next = UnitId(0);
        for (seen, &unit) in self.unit_ids.range(self.cursor.unit..).enumerate() {
            if seen >= UNITS_PER_PASS || n_rows >= ROWS_PER_PASS {
                next = unit;
                break;
            }
            let Some(entry) = self.units.get(&unit) else { continue };
            n_rows += entry.rows.rows.len();
            if self.listed.is_none() {
                let nodes = entry.rows.live().map(|(_, row)| row.node);
                adrift.extend(nodes.filter(|node| !self.capacities.contains(*node)));
            }
            if let Some(fault) = self.fault(unit, entry, now) {
                faults.push((unit, fault));
            }
        }
        self.cursor.unit = next;
        for (unit, fault) in faults {
            self.counters.repairs += 1;
            let Some(entry) = self.units.get_mut(&unit) else { continue };
            match (fault, &mut entry.place) {
                (Fault::NotDone, Whereabouts::Dispatched(held)) => {
                    held.resend = true;
                    held.done_at = Some(now);
                    self.resend.insert(unit);
                    continue;
                }
                (Fault::NotDone | Fault::Whereabouts, _) => {}
                (Fault::Counts, _) => entry.recount(),
                (Fault::Dispatched, _) => entry.holds.retain(|hold| self.holds.contains_key(&hold.id)),
            }
            self.displace(unit, now);
        }
        self.give_up(adrift, now);
    }

    /// What runs on nodes that nobody knows is lost with them. (While a list is under way few are known.)
    fn give_up(&mut self, adrift: BTreeSet<NodeId>, now: Millis) {
        for node in adrift.into_iter().filter(|node| !self.losses.contains(*node)).collect::<Vec<_>>() {
            self.counters.repairs += 1;
            self.losses.put(node, false, now);
        }
    }

    /// Units know of the room that is held for them.
    fn reconcile_holds(&mut self, now: Millis) {
        let after = (Excluded(self.cursor.hold), Unbounded);
        let slice = self.holds.range(after).take(HOLDS_PER_PASS);
        let (mut last, mut n_seen, mut unknown) = (HoldId::default(), 0, Vec::<Arc<Hold>>::new());
        for (id, hold) in slice {
            (last, n_seen) = (*id, n_seen + 1);
            let entry = self.units.get(&hold.unit);
            if entry.is_some_and(|entry| !entry.holds.iter().any(|known| known.id == *id)) {
                unknown.push(Arc::clone(hold));
            }
        }
        self.cursor.hold = if n_seen < HOLDS_PER_PASS { HoldId::default() } else { last };
        for hold in unknown {
            self.counters.repairs += 1;
            self.on_hold(hold, now);
        }
    }

    /// What schedulers hold, and how much that is.
    fn reconcile_schedulers(&mut self, now: Millis) {
        let mut strays = Vec::new();
        for (idx, scheduler) in self.schedulers.all.iter_mut().enumerate() {
            let (mut outstanding, mut parked) = (0, 0);
            for unit in &scheduler.held {
                match self.units.get(unit).map(|entry| &entry.place) {
                    Some(Whereabouts::Dispatched(held)) if held.scheduler == idx => {
                        outstanding += u64::from(held.load);
                        parked += u32::from(held.parked.is_some());
                    }
                    _ => strays.push((idx, *unit)),
                }
            }
            if (outstanding, parked) != (scheduler.outstanding, scheduler.parked) {
                self.counters.repairs += 1;
                (scheduler.outstanding, scheduler.parked) = (outstanding, parked);
            }
        }
        for (idx, unit) in strays {
            self.counters.repairs += 1;
            self.schedulers.all[idx].held.remove(&unit);
            if let Some(session) = self.schedulers.all[idx].session {
                self.outbox.push(Action::Revoke(session, unit));
            }
            self.refresh(unit, now);
        }
    }

    fn fault(&self, unit: UnitId, entry: &UnitEntry, now: Millis) -> Option<Fault> {
        if !entry.is_sound() {
            return Some(Fault::Counts);
        }
        if entry.holds.iter().any(|hold| !self.holds.contains_key(&hold.id)) {
            return Some(Fault::Dispatched);
        }
        let wants = entry.to_place() > 0;
        let sound = match &entry.place {
            Whereabouts::Idle => !wants,
            Whereabouts::Paused => {
                let spec = &entry.spec;
                let is_paused =
                    || self.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key)).is_some();
                wants && (self.frozen_for(unit).is_some() || is_paused())
            }
            Whereabouts::Unsettled => wants && self.unsettled.contains(&unit),
            Whereabouts::Queued(waiting) => wants && self.queues.contains(waiting),
            Whereabouts::Dispatched(held) => {
                let scheduler = &self.schedulers.all[held.scheduler];
                let late = |at: Millis| now.since(at) >= self.config.done_grace_ms;
                // An older scheduler is done with what is held, and hears of it again once that ends.
                if wants && held.done_at.is_some_and(late) && entry.holds().is_empty() {
                    return Some(Fault::NotDone);
                }
                let is_waiting = held.parked.is_none_or(|waiting| self.queues.contains(&waiting));
                wants && scheduler.live && scheduler.held.contains(&unit) && is_waiting
            }
        };
        (!sound).then_some(Fault::Whereabouts)
    }
}
