//! Decisions that wait: for their turn, for a revision, for another transaction.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use godel_core::{
    binder::{Ticket, Wait},
    decision::Decision,
    ids::{Epoch, Revision},
    time::Millis,
};
use rustc_hash::FxHashMap;

/// A decision and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) scheduler: Arc<str>,
    /// Of the scheduler's lease.
    pub(crate) epoch: Epoch,
    pub(crate) decision: Decision,
    /// Of the unit, when it came.
    pub(crate) priority: i32,
    /// Order of arrival.
    pub(crate) sequence: u64,
    /// Transactions it was in that were refused because of it.
    pub(crate) attempts: u32,
    pub(crate) arrived: Millis,
}

/// Order of service: priority, then arrival.
#[derive(Debug)]
struct Turn(Box<Queued>);

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let (this, that) = (&self.0, &other.0);
        this.priority.cmp(&that.priority).then(that.sequence.cmp(&this.sequence))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

/// All decisions that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    ready: BinaryHeap<Turn>,
    for_revision: BTreeMap<(Revision, u64), Queued>,
    for_ticket: FxHashMap<Ticket, Vec<Queued>>,
    n_for_ticket: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.for_revision.len() + self.n_for_ticket
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn push(&mut self, queued: Queued) {
        self.ready.push(Turn(Box::new(queued)));
    }

    pub(crate) fn pop(&mut self) -> Option<Queued> {
        self.ready.pop().map(|turn| *turn.0)
    }

    pub(crate) fn park(&mut self, queued: Queued, wait: Wait) {
        match wait {
            Wait::Revision(revision) => {
                self.for_revision.insert((revision, queued.sequence), queued);
            }
            Wait::Ticket(ticket) => {
                self.n_for_ticket += 1;
                self.for_ticket.entry(ticket).or_default().push(queued);
            }
        }
    }

    /// Everything up to `revision` has been read; the number of decisions that may be checked again.
    pub(crate) fn on_revision(&mut self, revision: Revision) -> usize {
        if self.for_revision.first_key_value().is_none_or(|(key, _)| key.0 > revision) {
            return 0;
        }
        let later = self.for_revision.split_off(&(Revision(revision.0 + 1), 0));
        let woken = std::mem::replace(&mut self.for_revision, later);
        let n_woken = woken.len();
        self.ready.extend(woken.into_values().map(|queued| Turn(Box::new(queued))));
        n_woken
    }

    /// The transaction's fate is known; the number of decisions that may be checked again.
    pub(crate) fn on_ticket(&mut self, ticket: Ticket) -> usize {
        let woken = self.for_ticket.remove(&ticket).unwrap_or_default();
        self.n_for_ticket -= woken.len();
        let n_woken = woken.len();
        self.ready.extend(woken.into_iter().map(|queued| Turn(Box::new(queued))));
        n_woken
    }

    /// Takes out the decisions that came before `since` and still wait for a revision.
    pub(crate) fn expire(&mut self, since: Millis) -> Vec<Queued> {
        let old: Vec<(Revision, u64)> = self
            .for_revision
            .iter()
            .filter(|(_, queued)| queued.arrived < since)
            .map(|(key, _)| *key)
            .collect();
        old.into_iter().filter_map(|key| self.for_revision.remove(&key)).collect()
    }

    /// Some decisions wait for a revision.
    pub(crate) fn has_waits(&self) -> bool {
        !self.for_revision.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(priority: i32, sequence: u64) -> Queued {
        Queued {
            scheduler: "s1".into(),
            epoch: Epoch(1),
            decision: Decision::default(),
            priority,
            sequence,
            attempts: 0,
            arrived: Millis(sequence),
        }
    }

    #[test]
    fn higher_priority_first_then_arrival() {
        let mut queue = Queue::default();
        for (priority, sequence) in [(0, 1), (5, 2), (0, 3), (5, 4)] {
            queue.push(queued(priority, sequence));
        }
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|queued| queued.sequence).collect();
        assert_eq!(order, [2, 4, 1, 3]);
    }

    #[test]
    fn those_that_wait_come_back() {
        let mut queue = Queue::default();
        for (sequence, revision) in [(1, 10), (2, 11), (3, 10)] {
            queue.park(queued(0, sequence), Wait::Revision(Revision(revision)));
        }
        assert_eq!((queue.len(), queue.has_ready()), (3, false));
        assert_eq!(queue.on_revision(Revision(9)), 0);
        assert_eq!(queue.on_revision(Revision(10)), 2);
        assert_eq!(queue.pop().map(|queued| queued.sequence), Some(1));
        assert!(queue.has_waits());
        assert!(queue.expire(Millis(2)).is_empty());
        assert_eq!(queue.expire(Millis(3)).len(), 1);
        assert_eq!(queue.len(), 1);
    }
}
