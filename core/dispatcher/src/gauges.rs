//! What metrics say of units: how long they waited, and how many of each queue are in which phase.

use godel_domain::{lifecycle::UnitPhase, unit::WorkloadClass};
use godel_queueing::{QueueIdx, QueueTree};
use rustc_hash::FxHashMap;

/// Waits kept until somebody takes them.
const N_WAITS_MAX: usize = 4_096;

/// How long units waited, since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// From the record to the first scheduler, in ms, by class.
    pub to_scheduler: Vec<(WorkloadClass, u64)>,
    /// From the record to the first binding.
    pub to_binding: Vec<(WorkloadClass, u64)>,
}

impl Waits {
    pub(super) fn handed_out(&mut self, class: WorkloadClass, from_ms: i64, to_ms: i64) {
        note(&mut self.to_scheduler, class, from_ms, to_ms);
    }

    pub(super) fn bound(&mut self, class: WorkloadClass, from_ms: i64, to_ms: i64) {
        note(&mut self.to_binding, class, from_ms, to_ms);
    }
}

fn note(waits: &mut Vec<(WorkloadClass, u64)>, class: WorkloadClass, from_ms: i64, to_ms: i64) {
    if waits.len() < N_WAITS_MAX {
        // Two machines' clocks may differ.
        waits.push((class, u64::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(0)));
    }
}

/// Units by phase, in order of [`UnitPhase::ALL`].
pub type ByPhase = [u64; UnitPhase::ALL.len()];

/// Units of each queue by phase.
#[derive(Clone, Debug, Default)]
pub struct UnitTally {
    all: ByPhase,
    by_queue: FxHashMap<QueueIdx, ByPhase>,
}

impl UnitTally {
    pub(super) fn all(&self) -> &ByPhase {
        &self.all
    }

    pub(super) fn enter(&mut self, queue: QueueIdx, phase: UnitPhase) {
        self.all[phase.idx()] += 1;
        self.by_queue.entry(queue).or_default()[phase.idx()] += 1;
    }

    pub(super) fn uncount(&mut self, queue: QueueIdx, phase: UnitPhase) {
        self.all[phase.idx()] -= 1;
        if let Some(of) = self.by_queue.get_mut(&queue) {
            of[phase.idx()] -= 1;
        }
    }

    /// Units by phase of the `n_max` queues with most units, by path, and of all others together.
    pub fn by_queue<'a>(&self, n_max: usize, tree: &'a QueueTree) -> (Vec<(&'a str, ByPhase)>, ByPhase) {
        let n_units = |of: &ByPhase| of.iter().sum::<u64>();
        let mut queues: Vec<(QueueIdx, &ByPhase)> =
            self.by_queue.iter().map(|(queue, of)| (*queue, of)).collect();
        queues.retain(|(_, of)| n_units(of) > 0);
        queues.sort_unstable_by_key(|(queue, of)| (std::cmp::Reverse(n_units(of)), *queue));
        let mut others = ByPhase::default();
        for (_, of) in queues.iter().skip(n_max) {
            for (sum, n) in others.iter_mut().zip(*of) {
                *sum += n;
            }
        }
        queues.truncate(n_max);
        let named = queues.into_iter().map(|(queue, of)| (tree.path(queue), *of));
        (named.collect(), others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_never_negative_and_not_kept_for_ever() {
        let mut waits = Waits::default();
        waits.bound(WorkloadClass::Gang, 1_000, 1_250);
        waits.bound(WorkloadClass::Service, 1_000, 900);
        assert_eq!(waits.to_binding, [(WorkloadClass::Gang, 250), (WorkloadClass::Service, 0)]);
        for _ in 0..2 * N_WAITS_MAX {
            waits.handed_out(WorkloadClass::Batch, 0, 1);
        }
        assert_eq!(waits.to_scheduler.len(), N_WAITS_MAX);
    }

    #[test]
    fn units_are_counted_where_they_are() {
        let mut tally = UnitTally::default();
        let (first, second) = (QueueIdx::DEFAULT, QueueIdx::ROOT);
        tally.enter(first, UnitPhase::Queued);
        tally.enter(second, UnitPhase::Queued);
        tally.uncount(first, UnitPhase::Queued);
        tally.enter(first, UnitPhase::Scheduled);
        let n = |of: &ByPhase, phase: UnitPhase| of[phase.idx()];
        assert_eq!((n(tally.all(), UnitPhase::Queued), n(tally.all(), UnitPhase::Scheduled)), (1, 1));
        assert_eq!(n(&tally.by_queue[&first], UnitPhase::Queued), 0);
        assert_eq!(n(&tally.by_queue[&second], UnitPhase::Queued), 1);
    }
}
