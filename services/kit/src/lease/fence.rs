//! The right to act under a lease, checked without a lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_base::ids::{Epoch, StoreId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The right to act under one grant of a lease. Clones share it; once lost it never comes back.
#[derive(Clone, Debug)]
pub struct Fence {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    lease: String,
    epoch: Epoch,
    store: StoreId,
    start: Instant,
    /// Nanoseconds after `start` until which it is valid.
    valid_ns: AtomicU64,
    lost: CancellationToken,
}

impl Fence {
    /// A fence that is valid until it is revoked: for tests and for writers whose lease never ends.
    pub fn unlimited(lease: impl Into<String>, epoch: Epoch) -> Self {
        Self::of_store(lease, epoch, StoreId(0))
    }

    /// The same, granted in `store`.
    pub fn of_store(lease: impl Into<String>, epoch: Epoch, store: StoreId) -> Self {
        let fence = Self::expired(lease, epoch, store);
        fence.inner.valid_ns.store(u64::MAX, Ordering::SeqCst);
        fence
    }

    /// A fence whose validity is still to be set.
    pub(super) fn expired(lease: impl Into<String>, epoch: Epoch, store: StoreId) -> Self {
        Self {
            inner: Arc::new(Inner {
                lease: lease.into(),
                epoch,
                store,
                start: Instant::now(),
                valid_ns: AtomicU64::new(0),
                lost: CancellationToken::new(),
            }),
        }
    }

    /// Name of the lease.
    pub fn lease(&self) -> &str {
        &self.inner.lease
    }

    /// Epoch of the grant.
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// The store in which it was granted; 0 if that is not known. What was read in another one is not to be acted on.
    pub fn store(&self) -> StoreId {
        self.inner.store
    }

    /// Whether both are of one grant.
    pub fn is_grant(&self, other: &Self) -> bool {
        (self.epoch(), self.store()) == (other.epoch(), other.store())
    }

    /// Whether the holder may act at this moment. Also right after the process was stopped for a while,
    /// before any timer has fired.
    pub fn is_valid(&self) -> bool {
        let now = nanos(self.inner.start.elapsed());
        now < self.inner.valid_ns.load(Ordering::SeqCst) && !self.inner.lost.is_cancelled()
    }

    /// Ends the right to act for all clones: the store said that the epoch is over.
    pub fn revoke(&self) {
        self.inner.lost.cancel();
    }

    /// Waits until the right to act has ended. The holder's task notices an expiry within milliseconds.
    pub async fn lost(&self) {
        self.inner.lost.cancelled().await;
    }

    /// A token that is cancelled when the right to act has ended.
    pub fn token(&self) -> CancellationToken {
        self.inner.lost.clone()
    }

    /// Extends the validity up to `until`.
    pub(super) fn extend(&self, until: Instant) {
        let until = nanos(until.saturating_duration_since(self.inner.start));
        self.inner.valid_ns.fetch_max(until, Ordering::SeqCst);
    }

    /// When the validity ends unless it is extended.
    pub(super) fn deadline(&self) -> Instant {
        self.inner.start + Duration::from_nanos(self.inner.valid_ns.load(Ordering::SeqCst))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
