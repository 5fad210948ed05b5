//! Who is passed: units that wait for room while others are bound whose turn comes after theirs.

use std::collections::BTreeMap;

use godel_domain::{demand::Pool, queue_spec::Band};
use godel_queueing::{QueueIdx, Queues, Waiting};

/// Of what is bound between two looks who comes last in the order of queues.
#[derive(Debug, Default)]
pub(super) struct LastBound {
    /// Of each pool.
    of_pool: BTreeMap<Pool, Waiting>,
    /// Of each queue and band.
    of_queue: BTreeMap<(QueueIdx, Band), Waiting>,
}

impl LastBound {
    pub(super) fn is_empty(&self) -> bool {
        self.of_pool.is_empty()
    }

    pub(super) fn add(&mut self, pool: Pool, bound: Waiting, queues: &Queues) {
        let comes_last =
            |known: Option<&Waiting>| known.is_none_or(|known| queues.order(known, &bound).is_lt());
        if comes_last(self.of_pool.get(&pool)) {
            self.of_pool.insert(pool, bound);
        }
        let of = (bound.queue, bound.band);
        if comes_last(self.of_queue.get(&of)) {
            self.of_queue.insert(of, bound);
        }
    }

    /// Whether somebody was bound who comes after a unit; `None`: nobody was bound.
    pub(super) fn passed(&self, pool: Pool, unit: &Waiting, queues: &Queues) -> Option<bool> {
        let last = self.of_pool.get(&pool)?;
        Some(queues.order(unit, last).is_lt() || self.passed_in_queue(unit, queues))
    }

    /// Whether the queue of a unit would come before the one that was served last of all even with this unit. Where no other queue was served in its band:
    /// whether the unit is passed in its queue. True while nobody is bound.
    pub(super) fn is_due(&self, pool: Pool, unit: &Waiting, queues: &Queues) -> bool {
        let Some(last) = self.of_pool.get(&pool) else { return true };
        let mut of_band = self.of_queue.keys().filter(|(_, band)| *band == unit.band);
        let is_alone = of_band.all(|(queue, _)| *queue == unit.queue);
        if is_alone { self.passed_in_queue(unit, queues) } else { queues.is_before_even_with(unit, last) }
    }

    /// Whether the first unit of a room without a place is passed: in its queue, or by another queue. Where the room gave out places (`gave`) the
    /// latter is so between any two turns of two queues, and counts if its queue comes first even with this unit.
    pub(super) fn starves(&self, pool: Pool, first: &Waiting, gave: bool, queues: &Queues) -> bool {
        if queues.is_at_maximum(first) {
            return false;
        }
        let is_due = |other: &Waiting| match gave {
            true => queues.is_before_even_with(first, other),
            false => queues.order(first, other).is_lt(),
        };
        self.passed_in_queue(first, queues) || self.of_pool.get(&pool).is_some_and(is_due)
    }

    fn passed_in_queue(&self, unit: &Waiting, queues: &Queues) -> bool {
        let last = self.of_queue.get(&(unit.queue, unit.band));
        last.is_some_and(|last| queues.order(unit, last).is_lt())
    }
}
