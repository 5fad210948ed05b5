//! The reconciler: compares what the dispatcher believes with what follows from the records, and repairs.
//!
//! In a healthy run it repairs nothing. Each pass looks at a bounded slice of the units; the next one goes on
//! behind it.

use super::{Dispatcher, Entry, Place};
use crate::{ids::UnitId, time::Millis};

/// Units looked at in one pass.
const UNITS_PER_PASS: usize = 5_000;
/// Rows counted anew in one pass.
const ROWS_PER_PASS: usize = 100_000;

/// What is wrong with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The counts do not follow from the rows, or what its queue was told from both.
    Counts,
    /// It is not where its pending running units say.
    Place,
    /// Its scheduler said long ago that all is bound, and it is not.
    NotDone,
}

impl Dispatcher {
    pub(super) fn reconcile(&mut self, now: Millis) {
        let (mut faults, mut n_rows) = (Vec::new(), 0);
        let mut next = UnitId(0);
        for (seen, &unit) in self.unit_ids.range(self.reconcile_next..).enumerate() {
            if seen >= UNITS_PER_PASS || n_rows >= ROWS_PER_PASS {
                next = unit;
                break;
            }
            let Some(entry) = self.units.get(&unit) else { continue };
            n_rows += entry.rows.rows.len();
            if let Some(fault) = self.fault(unit, entry, now) {
                faults.push((unit, fault));
            }
        }
        self.reconcile_next = next;
        for (unit, fault) in faults {
            self.counters.repairs += 1;
            let Some(entry) = self.units.get_mut(&unit) else { continue };
            match (fault, &mut entry.place) {
                (Fault::NotDone, Place::Held(held)) => {
                    held.resend = true;
                    held.done_at = Some(now);
                    self.resend.insert(unit);
                    continue;
                }
                (Fault::NotDone | Fault::Place, _) => {}
                (Fault::Counts, _) => entry.recount(),
            }
            self.displace(unit, now);
        }
    }

    fn fault(&self, unit: UnitId, entry: &Entry, now: Millis) -> Option<Fault> {
        if !entry.is_sound() {
            return Some(Fault::Counts);
        }
        let wants = entry.to_place() > 0;
        let sound = match &entry.place {
            Place::Idle => !wants,
            Place::Paused => wants && self.pauses.keeping(&entry.spec.queue).is_some(),
            Place::Unsettled => wants && self.unsettled.contains(&unit),
            Place::Queued(waiting) => wants && self.queues.contains(waiting),
            Place::Held(held) => {
                let scheduler = &self.schedulers.all[held.scheduler];
                let late = |at: Millis| now.since(at) >= self.config.done_grace_ms;
                if wants && held.done_at.is_some_and(late) {
                    return Some(Fault::NotDone);
                }
                wants && scheduler.live && scheduler.held.contains(&unit)
            }
        };
        (!sound).then_some(Fault::Place)
    }
}
