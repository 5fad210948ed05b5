//! When commands ran and why they are over, beside what else is kept of their running units: what is simulated says nothing of that.

use std::collections::BTreeMap;

use crate::run_end::RunEnd;

/// What agents said of runs, by ordinal or another key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnds<K>(
    #[expect(
        clippy::box_collection,
        reason = "there are millions of units, and most of them say nothing of their runs"
    )]
    Option<Box<BTreeMap<K, RunEnd>>>,
);

impl<K> Default for RunEnds<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Copy + Ord> RunEnds<K> {
    /// Returns what is known of a run.
    #[inline]
    pub fn of(&self, key: K) -> RunEnd {
        self.0.as_ref().and_then(|known| known.get(&key)).copied().unwrap_or_default()
    }

    /// Notes what is known of a run. What says nothing takes no room.
    #[inline]
    pub fn set(&mut self, key: K, end: RunEnd) {
        if end != RunEnd::default() {
            self.0.get_or_insert_default().insert(key, end);
        } else if let Some(known) = &mut self.0 {
            known.remove(&key);
            self.drop_empty();
        }
    }

    /// Forgets the runs of other keys.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K) -> bool) {
        if let Some(known) = &mut self.0 {
            known.retain(|key, _| is_kept(key));
            self.drop_empty();
        }
    }

    fn drop_empty(&mut self) {
        if self.0.as_ref().is_some_and(|known| known.is_empty()) {
            self.0 = None;
        }
    }

    /// Whether nothing is known of any run.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns what is known, in order of keys.
    pub fn values(&self) -> impl Iterator<Item = &RunEnd> {
        self.0.iter().flat_map(|known| known.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_takes_no_room() {
        let mut ends = RunEnds::default();
        ends.set(3, RunEnd::default());
        assert!(ends.is_empty());
        let end = RunEnd { ended_ms: 7, ..RunEnd::default() };
        ends.set(3, end);
        ends.set(4, end);
        assert_eq!((ends.of(3), ends.of(2), ends.values().count()), (end, RunEnd::default(), 2));
        ends.set(3, RunEnd::default());
        assert_eq!((ends.of(3), ends.of(4)), (RunEnd::default(), end));
        ends.retain(|key| *key != 4);
        assert_eq!(ends, RunEnds::default());
    }
}
