//! One queue of timers for everything that a connection's task has to do later.

use std::{cmp::Reverse, collections::BinaryHeap};

use godel_base::time::Millis;

/// Timers in order of their time; of equal ones the first set comes first. Timers are not cancelled: whoever
/// takes one checks whether it still means something.
#[derive(Debug)]
pub struct Timers<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    n_set: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Millis,
    order: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), n_set: 0 }
    }
}

impl<T> Timers<T> {
    /// Sets one.
    pub fn set(&mut self, at: Millis, what: T) {
        self.n_set += 1;
        self.heap.push(Reverse(Entry { at, order: self.n_set, what }));
    }

    /// Time of the next one.
    pub fn next_at(&self) -> Option<Millis> {
        self.heap.peek().map(|entry| entry.0.at)
    }

    /// Takes the next one that is due.
    pub fn pop_due(&mut self, now: Millis) -> Option<T> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.0.what)
    }

    /// Timers set and not taken.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// None are set.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_of_time_then_of_setting() {
        let mut timers = Timers::default();
        for (at, what) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
            timers.set(Millis(at), what);
        }
        assert_eq!((timers.len(), timers.next_at()), (4, Some(Millis(10))));
        assert_eq!(timers.pop_due(Millis(9)), None);
        let due: Vec<char> = std::iter::from_fn(|| timers.pop_due(Millis(30))).collect();
        assert_eq!(due, ['a', 'b', 'c', 'd']);
        assert!(timers.is_empty());
    }
}
