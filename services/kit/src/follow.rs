//! A follower of the store: lists some kinds of records, then watches them, for ever.
//!
//! Every change arrives once and in order. When the watched history is gone, or the store has become another one by a
//! restore or a truncation, the follower says [`FollowEvent::Reset`] and lists again.

mod task;
mod written;

#[cfg(test)]
mod tests;

use std::time::Duration;

use godel_core::{
    change::Change,
    ids::{Revision, StoreId},
};
use godel_proto::v1;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::Channel;
pub use crate::convert::from_proto::LoadedRecord;
pub use written::Written;

/// What a follower sees, in this order: `Reset`, `Loaded`…, `Synced`, then `Changes` and `Synced` for ever, or
/// `Reset` again.
#[derive(Clone, Debug, PartialEq)]
pub enum FollowEvent {
    /// Forget everything: a list follows. Also the first event of all.
    Reset {
        /// The store that the list is of. If it is another one than before, nothing of what was read, decided or sent
        /// before means anything there, see `docs/adr/0014-store-identity.md`. 0: it does not say.
        store: StoreId,
    },
    /// A page of the list. A record may be newer than the list's revision. The rows of a unit come whole, though
    /// perhaps of several revisions: each row says its own.
    Loaded(Vec<LoadedRecord>),
    /// Everything up to `revision` has been delivered. The first one after a `Reset` ends the list; later
    /// ones come when commits had nothing for this follower.
    Synced {
        /// Read up to here.
        revision: Revision,
    },
    /// One commit.
    ///
    /// Whole records that the list had newer already are left out; row changes may repeat what listed rows
    /// show, which `UnitRows::apply` ignores.
    Changes {
        /// Its revision.
        revision: Revision,
        /// Its commit time, Unix milliseconds.
        time_ms: i64,
        /// In order; never empty.
        changes: Vec<Change>,
    },
}

/// How a follower reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowConfig {
    /// Events that wait for the owner at most; then the watch itself waits.
    pub queue: usize,
    /// Records per page of the list.
    pub page_size: u32,
    /// Longest pause before the next try after a failure.
    pub reconnect_max: Duration,
}

impl Default for FollowConfig {
    fn default() -> Self {
        Self { queue: 256, page_size: 1_000, reconnect_max: Duration::from_millis(500) }
    }
}

/// Follows the store until it is dropped, or `stop`.
#[derive(Debug)]
pub struct Follower {
    events: mpsc::Receiver<FollowEvent>,
}

impl Follower {
    /// Starts to follow `kinds`, listed in this order.
    pub fn spawn(
        state: Channel,
        kinds: Vec<v1::Kind>,
        config: FollowConfig,
        stop: CancellationToken,
    ) -> Self {
        Self::spawn_writer(state, kinds, config, Written::default(), stop)
    }

    /// The same for who writes units too: what is in `written` is not decoded again.
    pub fn spawn_writer(
        state: Channel,
        kinds: Vec<v1::Kind>,
        config: FollowConfig,
        written: Written,
        stop: CancellationToken,
    ) -> Self {
        let (sender, events) = mpsc::channel(config.queue.max(1));
        let task = task::run(state, kinds, config, written, sender, stop.clone());
        crate::task::spawn_service("follower", &stop, task);
        Self { events }
    }

    /// The next event; `None` after a stop, or when the store sent what cannot be understood (logged).
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<FollowEvent> {
        self.events.recv().await
    }

    /// The next event if one waits already.
    pub fn try_next(&mut self) -> Option<FollowEvent> {
        self.events.try_recv().ok()
    }

    /// The bare queue of events.
    pub fn into_receiver(self) -> mpsc::Receiver<FollowEvent> {
        self.events
    }
}
