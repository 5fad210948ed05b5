//! The one queue that the dispatcher still serves; goes once it serves [`Queues`](super::Queues).

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use crate::ids::UnitId;

/// A unit that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The unit. Ids rise with age.
    pub unit: UnitId,
    /// Higher first.
    pub priority: i32,
    /// It was dispatched before: goes to the head of its priority.
    pub again: bool,
    /// Running units to place.
    pub running_units: u32,
}

/// Place in a queue: the order of the fields is the policy, the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    /// Smaller first.
    pub rank: Reverse<i64>,
    /// False (dispatched before) first.
    pub fresh: bool,
    /// Older first.
    pub age: UnitId,
}

/// How the units of one queue are ordered.
pub trait SortPolicy: fmt::Debug + Send {
    /// Place of a unit; must not change while it waits.
    fn key(&self, waiting: &Waiting) -> SortKey;
}

/// Priority, then dispatched before, then age.
#[derive(Clone, Copy, Debug, Default)]
pub struct PriorityThenAge;

impl SortPolicy for PriorityThenAge {
    fn key(&self, waiting: &Waiting) -> SortKey {
        SortKey { rank: Reverse(i64::from(waiting.priority)), fresh: !waiting.again, age: waiting.unit }
    }
}

/// Units in order of a policy.
#[derive(Debug)]
pub struct UnitQueue {
    policy: Box<dyn SortPolicy>,
    order: BTreeMap<SortKey, Waiting>,
    running_units: u64,
}

impl UnitQueue {
    /// Empty.
    pub fn new(policy: impl SortPolicy + 'static) -> Self {
        Self { policy: Box::new(policy), order: BTreeMap::new(), running_units: 0 }
    }

    /// Adds a unit; replaces it if it stands at the same place.
    pub fn push(&mut self, waiting: Waiting) {
        self.running_units += u64::from(waiting.running_units);
        if let Some(old) = self.order.insert(self.policy.key(&waiting), waiting) {
            self.running_units -= u64::from(old.running_units);
        }
    }

    /// Takes a unit out; `waiting` must be as it was pushed but for the number of running units.
    pub fn remove(&mut self, waiting: &Waiting) -> Option<Waiting> {
        let old = self.order.remove(&self.policy.key(waiting))?;
        self.running_units -= u64::from(old.running_units);
        Some(old)
    }

    /// Takes the first unit out.
    pub fn pop(&mut self) -> Option<Waiting> {
        let (_, first) = self.order.pop_first()?;
        self.running_units -= u64::from(first.running_units);
        Some(first)
    }

    /// Whether the unit stands at its place.
    pub fn contains(&self, waiting: &Waiting) -> bool {
        self.order.contains_key(&self.policy.key(waiting))
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.order.values()
    }

    /// Units that wait.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Running units to place over all units that wait.
    pub fn running_units(&self) -> u64 {
        self.running_units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(unit: u64, priority: i32, again: bool) -> Waiting {
        Waiting { unit: UnitId(unit), priority, again, running_units: 10 }
    }

    #[test]
    fn priority_then_dispatched_before_then_age() {
        type Case = (&'static str, &'static [(u64, i32, bool)], &'static [u64]);
        let cases: [Case; 4] = [
            ("age", &[(3, 0, false), (1, 0, false), (2, 0, false)], &[1, 2, 3]),
            ("priority", &[(1, 0, false), (2, 5, false), (3, -5, false)], &[2, 1, 3]),
            ("head", &[(1, 0, false), (9, 0, true), (8, 0, true)], &[8, 9, 1]),
            ("head of its priority only", &[(1, 7, false), (9, 0, true)], &[1, 9]),
        ];
        for (name, pushed, order) in cases {
            let mut queue = UnitQueue::new(PriorityThenAge);
            for (unit, priority, again) in pushed {
                queue.push(waiting(*unit, *priority, *again));
            }
            assert_eq!(queue.running_units(), 10 * pushed.len() as u64, "{name}");
            let popped: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|one| one.unit.0).collect();
            assert_eq!(popped, order, "{name}");
            assert_eq!((queue.len(), queue.running_units()), (0, 0), "{name}");
        }
    }

    #[test]
    fn a_unit_stands_once_and_can_leave() {
        let mut queue = UnitQueue::new(PriorityThenAge);
        queue.push(waiting(1, 0, false));
        queue.push(Waiting { running_units: 3, ..waiting(1, 0, false) });
        assert_eq!((queue.len(), queue.running_units()), (1, 3));
        assert!(queue.contains(&waiting(1, 0, false)));
        assert_eq!(queue.remove(&waiting(1, 0, true)), None);
        assert!(queue.remove(&waiting(1, 0, false)).is_some());
        assert!(queue.is_empty());
    }
}
