//! The pause before a running unit is started again in place.

use std::hash::{Hash as _, Hasher as _};

use rustc_hash::FxHasher;

use crate::RunKey;

/// Pauses that double with each restart in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// Before the first restart in a row.
    pub first_ms: u64,
    /// None is longer.
    pub max_ms: u64,
    /// One that ran for so long begins a new row.
    pub reset_ms: u64,
}

/// Shortest row-ending run at any speed: clocks count in milliseconds, and durations are rounded up to one.
const RESET_MS_MIN: u64 = 100;

impl Default for RestartBackoff {
    fn default() -> Self {
        Self { first_ms: 1_000, max_ms: 300_000, reset_ms: 600_000 }
    }
}

impl RestartBackoff {
    /// The same in the time of a process that runs at another speed.
    pub fn scaled(self, scale: impl Fn(u64) -> u64) -> Self {
        Self {
            first_ms: scale(self.first_ms),
            max_ms: scale(self.max_ms),
            reset_ms: scale(self.reset_ms).max(RESET_MS_MIN),
        }
    }

    /// The pause after `in_row` restarts in a row. Up to a quarter less than the full one, by a hash of who
    /// waits, so that what failed together does not come back together.
    pub(crate) fn pause_ms(&self, key: RunKey, incarnation: u32, in_row: u32) -> u64 {
        let full = self.first_ms.saturating_mul(1 << in_row.min(32)).min(self.max_ms);
        let mut hasher = FxHasher::default();
        (key, incarnation, in_row).hash(&mut hasher);
        full - hasher.finish() % (full / 4 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_by_who_waits() {
        let backoff = RestartBackoff::default();
        let key = |ordinal| RunKey { unit: 7, ordinal };
        for (in_row, full) in
            [(0, 1_000), (1, 2_000), (3, 8_000), (8, 256_000), (9, 300_000), (u32::MAX, 300_000)]
        {
            let pauses: Vec<u64> = (0..50).map(|ordinal| backoff.pause_ms(key(ordinal), 0, in_row)).collect();
            assert!(pauses.iter().all(|pause| (full * 3 / 4..=full).contains(pause)), "{in_row} {pauses:?}");
            assert!(pauses.iter().any(|pause| pause != &pauses[0]), "{in_row}: all wait {}", pauses[0]);
            assert_eq!(pauses[3], backoff.pause_ms(key(3), 0, in_row), "the same again");
        }
        let fast = backoff.scaled(|ms| (ms / 10_000).max(1));
        assert_eq!(fast, RestartBackoff { first_ms: 1, max_ms: 30, reset_ms: 100 });
        assert_eq!(fast.pause_ms(key(0), 0, 0), 1, "never without a pause");
    }
}
