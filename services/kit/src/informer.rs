//! A follower of the store: lists some kinds of records, then watches them, for ever.
//!
//! Every change arrives once and in order. When the watched history is gone, or the store has become another one by a
//! restore or a truncation, the follower says [`FollowEvent::Reset`] and lists again.
//!
//! Task groups that were added to a unit arrive as part of their unit: it comes whole with each of them. Whoever follows units
//! follows them too, and a list asks for them before units, so that it shows a unit once, with its groups.
//!
//! A record or an operation that this version cannot read, as one that a newer version wrote, ends nothing: it is
//! delivered as [`Change::Unreadable`](godel_domain::change::Change::Unreadable), logged once, and counted in
//! [`UnreadCount`]. The follower freezes what the record is about: see `docs/adr/0013-unreadable-records.md`.

mod list;
mod task;
mod unread;
mod written;

#[cfg(test)]
mod tests;

use std::time::Duration;

use godel_base::ids::{Revision, StoreId};
use godel_domain::{change::Commit, records::RecordKind};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::Channel;

pub use godel_wire::from_proto::LoadedRecord;
pub use list::{ListPage, page as list_page};
pub use task::read_page;
pub use unread::{UNREAD_COUNTER, UnreadCount};
pub use written::OwnWrites;

/// What a follower sees, in this order: `Reset`, `Loaded`…, `Synced`, then `Committed` and `Synced` for ever, or
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
    /// One commit; it has at least one change.
    ///
    /// Whole records that the list had newer already are left out; row changes may repeat what listed rows
    /// show, which `RunningUnits::apply` ignores.
    Committed(Commit),
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

/// What a follower shares with its owner.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Of who writes units too: these are not decoded again.
    pub written: OwnWrites,
    /// Where it counts what it cannot read.
    pub unread: UnreadCount,
}

/// Follows the store until it is dropped, or `stop`.
#[derive(Debug)]
pub struct Informer {
    events: mpsc::Receiver<FollowEvent>,
}

impl Informer {
    /// Starts to follow `kinds`, listed in this order.
    pub fn spawn(
        state: Channel,
        kinds: &[RecordKind],
        config: FollowConfig,
        stop: CancellationToken,
    ) -> Self {
        Self::spawn_with(state, kinds, config, Shared::default(), stop)
    }

    /// The same with what its owner shares with it.
    pub fn spawn_with(
        state: Channel,
        kinds: &[RecordKind],
        config: FollowConfig,
        shared: Shared,
        stop: CancellationToken,
    ) -> Self {
        let (sender, events) = mpsc::channel(config.queue.max(1));
        let task = task::run(state, list::numbers(kinds), config, shared, sender, stop.clone());
        crate::task::spawn_service("follower", &stop, task);
        Self { events }
    }

    /// The next event; `None` after a stop. Cancel-safe.
    pub async fn next(&mut self) -> Option<FollowEvent> {
        self.events.recv().await
    }

    /// The next event if one waits already.
    pub fn try_next(&mut self) -> Option<FollowEvent> {
        self.events.try_recv().ok()
    }
}
