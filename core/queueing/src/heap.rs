//! A priority queue whose members can be moved and taken out.

use std::cmp::Ordering;

/// Binary heap of small integers by key, the smallest first; `tie` decides between equal keys and must be the same in
/// every call. Every operation is `O(log n)`, looking at the first one `O(1)`.
///
/// A tree would also say who comes second. Nobody asks: who cannot be served leaves.
#[derive(Clone, Debug)]
pub(super) struct Heap<K> {
    items: Vec<(K, u32)>,
    /// Where in `items` a member is, by member.
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Self { items: Vec::new(), places: Vec::new() }
    }
}

impl<K: Copy + Ord> Heap<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.items.first().map(|(_, id)| *id)
    }

    /// The member of a heap that has no other.
    pub(super) fn only(&self) -> Option<u32> {
        match self.items.as_slice() {
            [(_, id)] => Some(*id),
            _ => None,
        }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.place(id).is_some()
    }

    /// Adds a member, or gives it another key.
    pub(super) fn set(&mut self, id: u32, key: K, tie: &impl Fn(u32, u32) -> Ordering) {
        let at = match self.place(id) {
            Some(at) => {
                if self.items[at].0 == key {
                    return;
                }
                self.items[at].0 = key;
                at
            }
            None => {
                let idx = id as usize;
                if self.places.len() <= idx {
                    self.places.resize(idx + 1, ABSENT);
                }
                self.items.push((key, id));
                self.note(self.items.len() - 1);
                self.items.len() - 1
            }
        };
        self.sift(at, tie);
    }

    /// Takes a member out, if it is one.
    pub(super) fn remove(&mut self, id: u32, tie: &impl Fn(u32, u32) -> Ordering) {
        let Some(at) = self.place(id) else { return };
        self.places[id as usize] = ABSENT;
        self.items.swap_remove(at);
        if at < self.items.len() {
            self.note(at);
            self.sift(at, tie);
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.places.get(id as usize).filter(|at| **at != ABSENT).map(|at| *at as usize)
    }

    fn note(&mut self, at: usize) {
        let id = self.items[at].1;
        self.places[id as usize] = u32::try_from(at).expect("members are numbered in 32 bits");
    }

    fn is_before(&self, a: usize, b: usize, tie: &impl Fn(u32, u32) -> Ordering) -> bool {
        let ((a, a_id), (b, b_id)) = (self.items[a], self.items[b]);
        a.cmp(&b).then_with(|| tie(a_id, b_id)) == Ordering::Less
    }

    fn sift(&mut self, mut at: usize, tie: &impl Fn(u32, u32) -> Ordering) {
        while at > 0 && self.is_before(at, (at - 1) / 2, tie) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            if left >= self.items.len() {
                return;
            }
            let least =
                if right < self.items.len() && self.is_before(right, left, tie) { right } else { left };
            if !self.is_before(least, at, tie) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
        self.note(a);
        self.note(b);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_the_smallest(ops in vec((0u32..40, prop::option::weighted(0.7, 0u8..12)), 0..300)) {
            // Ties go to the larger number, to see that they are asked for.
            let tie = |a: u32, b: u32| b.cmp(&a);
            let (mut heap, mut naive) = (Heap::default(), BTreeSet::new());
            for (id, key) in ops {
                naive.retain(|(_, std::cmp::Reverse(other))| *other != id);
                match key {
                    Some(key) => {
                        heap.set(id, key, &tie);
                        naive.insert((key, std::cmp::Reverse(id)));
                    }
                    None => heap.remove(id, &tie),
                }
                prop_assert_eq!(heap.first(), naive.first().map(|(_, id)| id.0));
                prop_assert_eq!(heap.is_empty(), naive.is_empty());
                prop_assert_eq!(heap.contains(id), key.is_some());
            }
        }
    }
}
