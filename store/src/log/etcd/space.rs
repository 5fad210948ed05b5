//! The space that etcd has for the log.
//!
//! etcd accepts writes until its file reaches the quota. Then it refuses all writes and raises an alarm, after which each
//! member must be defragmented. The file never shrinks by itself, but etcd reuses the space of deleted and compacted keys. So the bytes
//! in use decide, as long as the file itself is not near the quota.

use std::time::{Duration, Instant};

use godel_etcd::Sizes;

/// The quota of an etcd without the flag `--quota-backend-bytes`. etcd 3.4 does not report its quota.
pub(crate) const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;
/// Space that is reserved for leases and for work that frees space, in percent of the quota.
const RESERVE_PERCENT: u64 = 20;
/// History is dropped while less than this is free, in percent of the quota.
const HISTORY_PERCENT: u64 = 40;
/// Writes are refused while the file is closer to the quota than this, in percent of the quota: etcd judges a request by the size of
/// the file, however much of it is free.
const MARGIN_PERCENT: u64 = 5;
/// Sizes are requested again after this time, or after [`ASK_PERIOD_MIN`] once a part of the quota was written.
const ASK_PERIOD: Duration = Duration::from_secs(1);
const ASK_PERIOD_MIN: Duration = Duration::from_millis(20);
/// This part of the quota, as a divisor.
const ASK_PART: u64 = 100;
/// Factor by which etcd needs more space than the values, for its tables and for partly filled pages.
const OVERHEAD: u64 = 2;

/// What is known of the space in etcd.
#[derive(Debug)]
pub(super) struct Space {
    quota_bytes: u64,
    sizes: Sizes,
    /// Bytes written since these sizes were requested.
    written_bytes: u64,
    /// Time of the last request for sizes.
    asked: Instant,
    /// Bytes that were written before the request in progress.
    asked_at_bytes: Option<u64>,
}

impl Space {
    pub(super) fn new(quota_bytes: u64, sizes: Sizes, now: Instant) -> Self {
        Self { quota_bytes, sizes, written_bytes: 0, asked: now, asked_at_bytes: None }
    }

    /// Whether sizes must be requested again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_much = self.written_bytes >= self.quota_bytes / ASK_PART;
        let period = if is_much { ASK_PERIOD_MIN } else { ASK_PERIOD };
        self.asked_at_bytes.is_none() && now.saturating_duration_since(self.asked) >= period
    }

    /// Notes that sizes were requested.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked = now;
        self.asked_at_bytes = Some(self.written_bytes);
    }

    /// Records the answer. With `None`, the previous sizes stay valid, with everything written since added to them.
    pub(super) fn learn(&mut self, sizes: Option<Sizes>) {
        let asked_at_bytes = self.asked_at_bytes.take().unwrap_or(0);
        if let Some(sizes) = sizes {
            self.sizes = sizes;
            self.written_bytes -= asked_at_bytes.min(self.written_bytes);
        }
    }

    pub(super) fn add_written(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }

    fn percent(&self, percent: u64) -> u64 {
        self.quota_bytes / 100 * percent
    }

    /// Returns the bytes that may still be written before etcd refuses all writes.
    pub(super) fn free_bytes(&self) -> u64 {
        let written = OVERHEAD * self.written_bytes;
        let file = self.sizes.db_bytes.max(self.sizes.in_use_bytes + written);
        if self.sizes.has_no_space || file + self.percent(MARGIN_PERCENT) > self.quota_bytes {
            return 0;
        }
        self.quota_bytes.saturating_sub(self.sizes.in_use_bytes + written)
    }

    pub(super) fn reserve_bytes(&self) -> u64 {
        self.percent(RESERVE_PERCENT)
    }

    pub(super) fn history_reserve_bytes(&self) -> u64 {
        self.percent(HISTORY_PERCENT)
    }

    /// Says what an operator can do when writes are refused.
    pub(super) fn advice(&self) -> String {
        let Sizes { db_bytes, in_use_bytes, has_no_space, .. } = &self.sizes;
        let quota = self.quota_bytes;
        if *has_no_space {
            return "etcd has raised its alarm NOSPACE and refuses all writes: run `etcdctl defrag` for each \
                    member, then `etcdctl alarm disarm`"
                .to_owned();
        }
        if in_use_bytes + self.reserve_bytes() < quota {
            return format!(
                "etcd's file has {db_bytes} bytes of its quota of {quota}, although only {in_use_bytes} are in use: run \
                 `etcdctl defrag` for each member"
            );
        }
        format!(
            "etcd uses {in_use_bytes} bytes of its quota of {quota}: raise its flag `--quota-backend-bytes`, and \
             `state.etcd.quota_bytes` with it"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(db_bytes: u64, in_use_bytes: u64, has_no_space: bool) -> Space {
        let sizes = Sizes { db_bytes, in_use_bytes, has_no_space, ..Sizes::default() };
        Space::new(1_000, sizes, Instant::now())
    }

    #[test]
    fn room_is_what_is_not_in_use_while_the_file_may_grow() {
        // (file, in use, alarm, free)
        for (db, in_use, alarm, free) in [
            (0, 0, false, 1_000),
            (500, 400, false, 600),
            (900, 100, false, 900),
            (950, 100, false, 900),
            (951, 100, false, 0),
            (900, 850, false, 150),
            (500, 400, true, 0),
        ] {
            assert_eq!(space(db, in_use, alarm).free_bytes(), free, "{db} {in_use} {alarm}");
        }
    }

    #[test]
    fn what_was_put_counts_before_sizes_are_known_again() {
        let now = Instant::now();
        let mut space = space(400, 400, false);
        space.add_written(100);
        assert_eq!(space.free_bytes(), 400);
        space.add_written(200);
        assert_eq!(space.free_bytes(), 0, "the file may have grown to the quota");
        let later = now + Duration::from_secs(2);
        assert!(!space.is_due(now) && space.is_due(later));
        assert!(space.is_due(now + Duration::from_millis(200)), "much was put");
        space.ask(later);
        assert!(!space.is_due(later + Duration::from_secs(9)), "one question at a time");
        space.learn(None);
        assert_eq!(space.free_bytes(), 0, "nothing new is known");
        space.ask(later);
        space.add_written(20);
        space.learn(Some(Sizes { db_bytes: 700, in_use_bytes: 650, ..Sizes::default() }));
        assert_eq!(space.free_bytes(), 310);
    }

    #[test]
    fn words_say_what_helps() {
        assert!(space(500, 400, true).advice().contains("alarm disarm"));
        assert!(space(960, 400, false).advice().contains("etcdctl defrag"));
        assert!(space(900, 850, false).advice().contains("--quota-backend-bytes"));
    }
}
