//! Epochs of sessions: each is higher than any before, also over restarts.

use std::sync::atomic::{AtomicU64, Ordering};

/// The next epoch. Durable is only how often state was started.
pub(crate) struct SessionEpochs {
    base: AtomicU64,
    next: AtomicU64,
}

impl Default for SessionEpochs {
    fn default() -> Self {
        Self { base: AtomicU64::new(0), next: AtomicU64::new(1) }
    }
}

impl SessionEpochs {
    /// Sets where epochs begin: `start` rises with each start of state.
    pub(crate) fn begin(&self, start: u64) {
        // 2^32 registrations per start, 2^31 starts.
        self.base.store(start << 32, Ordering::Release);
    }

    /// Gives a new one.
    pub(crate) fn give(&self) -> u64 {
        self.base.load(Ordering::Acquire) + self.next.fetch_add(1, Ordering::AcqRel)
    }

    /// Whether an epoch was given since this start.
    pub(crate) fn has_given(&self, epoch: u64) -> bool {
        epoch > self.base.load(Ordering::Acquire)
    }
}
