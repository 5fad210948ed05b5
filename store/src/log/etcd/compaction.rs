//! When etcd is compacted. Compaction affects all clients of etcd, so revisions that their watchers may still need are kept.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How many revisions are remembered within the age of compaction.
const N_HEARD: u32 = 20;
/// Minimum time between two compactions, each of which takes etcd some time.
const PERIOD_MIN: Duration = Duration::from_millis(100);

/// Decides which revision of etcd may be compacted.
#[derive(Debug)]
pub(super) struct Compaction {
    is_on: bool,
    /// A revision is compacted at this age.
    age: Duration,
    /// Revisions with the time at which they were observed, oldest first.
    heard: VecDeque<HeardRevision>,
    /// The last observed revision.
    last: Option<HeardRevision>,
    /// Whether a compaction is in progress.
    is_under_way: bool,
}

#[derive(Clone, Copy, Debug)]
struct HeardRevision {
    at: Instant,
    revision: u64,
}

impl Compaction {
    pub(super) fn new(is_on: bool, age: Duration) -> Self {
        Self { is_on, age, heard: VecDeque::new(), last: None, is_under_way: false }
    }

    /// Returns the revision up to which etcd must be compacted now, if any. `revision` is the last observed revision.
    pub(super) fn due(&mut self, now: Instant, revision: u64) -> Option<u64> {
        if !self.is_on {
            return None;
        }
        let period = (self.age / N_HEARD).max(PERIOD_MIN);
        let is_old = |heard: &HeardRevision, age| now.saturating_duration_since(heard.at) >= age;
        if self.last.is_none_or(|last| last.revision < revision && is_old(&last, period)) {
            let heard = HeardRevision { at: now, revision };
            self.heard.push_back(heard);
            self.last = Some(heard);
        }
        if self.is_under_way {
            return None;
        }
        let mut due = None;
        while let Some(oldest) = self.heard.front().filter(|oldest| is_old(oldest, self.age)) {
            due = Some(oldest.revision);
            self.heard.pop_front();
        }
        self.is_under_way = due.is_some();
        due
    }

    /// Notes that the compaction has ended.
    pub(super) fn finish(&mut self) {
        self.is_under_way = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_old_enough_is_compacted() {
        let (age, start) = (Duration::from_secs(600), Instant::now());
        let mut compaction = Compaction::new(true, age);
        let mut due = Vec::new();
        for minute in 0..30 {
            let now = start + Duration::from_secs(60 * minute);
            due.extend(compaction.due(now, 100 + minute).map(|revision| (minute, revision)));
            compaction.finish();
        }
        assert_eq!(due.first(), Some(&(10, 100)));
        assert!(due.iter().all(|(minute, revision)| revision + 10 <= 100 + minute), "{due:?}");
        assert!(due.len() >= 19 && compaction.heard.len() <= 12, "{due:?}");
        let later = start + Duration::from_secs(7_200);
        assert!(compaction.due(later, 129).is_some());
        assert_eq!(compaction.due(later + age, 129), None, "one at a time");
        compaction.finish();
        assert_eq!(compaction.due(later + 2 * age, 129), None, "nothing has changed since");
        let mut off = Compaction::new(false, Duration::ZERO);
        assert_eq!(off.due(start, 7), None);
    }
}
