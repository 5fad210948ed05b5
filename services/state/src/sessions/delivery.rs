//! How far the feed has delivered the changes of the store to sessions.

use std::sync::atomic::{AtomicI64, Ordering};

use godel_base::ids::Revision;
use tokio::sync::watch;

/// The feed has delivered everything up to here.
pub(crate) struct Delivery {
    revision: watch::Sender<u64>,
    /// Commit time of it.
    time_ms: AtomicI64,
}

impl Default for Delivery {
    fn default() -> Self {
        Self { revision: watch::Sender::new(0), time_ms: AtomicI64::new(0) }
    }
}

impl Delivery {
    /// The feed has delivered everything up to `revision`, committed at `time_ms`.
    pub(crate) fn advance(&self, revision: Revision, time_ms: i64) {
        self.time_ms.store(time_ms, Ordering::Release);
        self.revision.send_replace(revision.0);
    }

    /// Waits until the feed has delivered everything up to `revision`.
    pub(crate) async fn until(&self, revision: Revision) {
        // The sender lives as long as `self`.
        let _ = self.revision.subscribe().wait_for(|delivered| *delivered >= revision.0).await;
    }

    /// Commit time up to which the feed has delivered.
    pub(crate) fn time_ms(&self) -> i64 {
        self.time_ms.load(Ordering::Acquire)
    }
}
