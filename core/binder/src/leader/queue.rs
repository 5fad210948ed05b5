//! Decisions that wait: for their turn, for a revision, for another transaction.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::Arc,
};

use godel_base::{
    ids::{Epoch, IdMap, Revision},
    time::Millis,
};
use godel_domain::decision::Decision;

use crate::{Ticket, Wait};

/// A decision and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) scheduler: Arc<str>,
    /// Of the scheduler's lease.
    pub(super) epoch: Epoch,
    pub(super) decision: Decision,
    /// Of the unit, when it came.
    pub(super) priority: i32,
    /// Order of arrival.
    pub(super) sequence: u64,
    /// Transactions it was in that were refused because of it.
    pub(super) attempts: u32,
    pub(super) arrived: Millis,
}

/// Decisions of one scheduler that may be checked, in the order in which it made them: each rests on those before it, so
/// that one which overtook them would take their room.
#[derive(Debug, Default)]
struct SchedulerLine {
    decisions: VecDeque<Box<Queued>>,
    /// How many there are of each priority.
    priorities: BTreeMap<i32, usize>,
}

impl SchedulerLine {
    fn push(&mut self, queued: Box<Queued>) {
        *self.priorities.entry(queued.priority).or_default() += 1;
        if self.decisions.back().is_none_or(|last| last.sequence < queued.sequence) {
            self.decisions.push_back(queued);
        } else {
            let at = self.decisions.partition_point(|other| other.sequence < queued.sequence);
            self.decisions.insert(at, queued);
        }
    }

    fn pop(&mut self) -> Option<Box<Queued>> {
        let queued = self.decisions.pop_front()?;
        if let Entry::Occupied(mut n) = self.priorities.entry(queued.priority) {
            *n.get_mut() -= 1;
            if *n.get() == 0 {
                n.remove();
            }
        }
        Some(queued)
    }

    /// Order of service: the highest priority in the line, so that it waits for no lower one of another scheduler; then
    /// arrival.
    fn rank(&self) -> Option<(i32, Reverse<u64>)> {
        let (priority, _) = self.priorities.last_key_value()?;
        Some((*priority, Reverse(self.decisions.front()?.sequence)))
    }
}

/// All decisions that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By scheduler; none is empty.
    ready: BTreeMap<Arc<str>, SchedulerLine>,
    n_ready: usize,
    for_revision: BTreeMap<(Revision, u64), Box<Queued>>,
    #[expect(clippy::vec_box, reason = "each goes on to another queue in its box")]
    for_ticket: IdMap<Ticket, Vec<Box<Queued>>>,
    n_for_ticket: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.n_ready + self.for_revision.len() + self.n_for_ticket
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn push(&mut self, queued: Box<Queued>) {
        self.n_ready += 1;
        self.ready.entry(Arc::clone(&queued.scheduler)).or_default().push(queued);
    }

    pub(super) fn pop(&mut self) -> Option<Box<Queued>> {
        let (_, line) = self.ready.iter_mut().max_by_key(|(_, line)| line.rank())?;
        let queued = line.pop()?;
        self.n_ready -= 1;
        if line.decisions.is_empty() {
            self.ready.remove(&queued.scheduler);
        }
        Some(queued)
    }

    pub(super) fn park(&mut self, queued: Box<Queued>, wait: Wait) {
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
    pub(super) fn on_revision(&mut self, revision: Revision) -> usize {
        if self.for_revision.first_key_value().is_none_or(|(key, _)| key.0 > revision) {
            return 0;
        }
        let later = self.for_revision.split_off(&(Revision(revision.0 + 1), 0));
        let woken = std::mem::replace(&mut self.for_revision, later);
        let n_woken = woken.len();
        woken.into_values().for_each(|queued| self.push(queued));
        n_woken
    }

    /// The transaction's fate is known; the number of decisions that may be checked again.
    pub(super) fn on_ticket(&mut self, ticket: Ticket) -> usize {
        let woken = self.for_ticket.remove(&ticket).unwrap_or_default();
        self.n_for_ticket -= woken.len();
        let n_woken = woken.len();
        woken.into_iter().for_each(|queued| self.push(queued));
        n_woken
    }

    /// Takes out the decisions that came before `since` and still wait for a revision.
    #[expect(clippy::vec_box, reason = "each goes on to another queue in its box")]
    pub(super) fn expire(&mut self, since: Millis) -> Vec<Box<Queued>> {
        let old: Vec<(Revision, u64)> = self
            .for_revision
            .iter()
            .filter(|(_, queued)| queued.arrived < since)
            .map(|(key, _)| *key)
            .collect();
        old.into_iter().filter_map(|key| self.for_revision.remove(&key)).collect()
    }

    /// Some decisions wait for a revision.
    pub(super) fn has_waits(&self) -> bool {
        !self.for_revision.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(scheduler: &str, priority: i32, sequence: u64) -> Box<Queued> {
        Box::new(Queued {
            scheduler: scheduler.into(),
            epoch: Epoch(1),
            decision: Decision::default(),
            priority,
            sequence,
            attempts: 0,
            arrived: Millis(sequence),
        })
    }

    fn popped(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).map(|queued| queued.sequence).collect()
    }

    #[test]
    fn decisions_go_by_priority_then_by_arrival() {
        let mut queue = Queue::default();
        for (scheduler, priority, sequence) in [("a", 0, 1), ("b", 5, 2), ("c", 5, 3), ("a", 0, 4)] {
            queue.push(queued(scheduler, priority, sequence));
        }
        assert_eq!(popped(&mut queue), [2, 3, 1, 4]);
        assert_eq!((queue.len(), queue.has_ready()), (0, false));
    }

    #[test]
    fn decisions_of_one_scheduler_keep_their_order() {
        let mut queue = Queue::default();
        for (scheduler, priority, sequence) in [("a", 0, 1), ("a", 9, 2), ("a", 0, 3), ("b", 5, 4)] {
            queue.push(queued(scheduler, priority, sequence));
        }
        let first = queue.pop().unwrap();
        assert_eq!(first.sequence, 1, "nothing overtakes what it may rest on");
        // It was in a transaction that is tried again.
        queue.push(first);
        assert_eq!(popped(&mut queue), [1, 2, 4, 3]);
    }

    #[test]
    fn those_that_wait_come_back() {
        let mut queue = Queue::default();
        for (sequence, revision) in [(1, 10), (2, 11), (3, 10)] {
            queue.park(queued("s1", 0, sequence), Wait::Revision(Revision(revision)));
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
