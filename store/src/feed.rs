//! Committed transactions for watchers: the newest in memory, older ones from the log.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_proto::raw;
use godel_wire::ops::{self, OpError, ParsedOp};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::watch;

use crate::{
    floor::FloorReader,
    log::{LogError, LogReader},
    recovery::{self, HistoryError},
};

/// Most transactions in one answer of a watcher.
const BATCH_ITEMS_MAX: usize = 1024;
/// An answer of a watcher ends once it is over this.
pub(crate) const BATCH_BYTES_MAX: u64 = 1 << 20;
/// A record value keeps its commit in memory, unless it is less than one in so many of its bytes.
const COPIED_BELOW: usize = 2;

/// A committed transaction, decoded once and shared by all who look at it.
#[derive(Debug, PartialEq)]
pub struct Published {
    /// With operations as slices of `encoded`.
    pub commit: raw::Commit,
    /// The encoded `godel.v1.Commit`, as logged.
    pub encoded: Bytes,
    /// What each operation changes, by its position in the commit.
    pub changes: Vec<ParsedOp>,
    /// [`ops::kind_bit`]s of all changes.
    pub kinds: u64,
}

/// An encoded commit that does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub(crate) struct PublishedError {
    /// The operation at fault.
    pub(crate) index: Option<usize>,
    error: OpError,
}

impl PublishedError {
    /// It says which field is at fault.
    pub(crate) fn is_of_field(&self) -> bool {
        matches!(self.error, OpError::Field { .. })
    }
}

impl Published {
    /// Decodes a commit. A record value is a slice of `encoded`, or a copy where that is much larger: a record may
    /// live on for long, alone of all in its commit.
    pub(crate) fn decode(encoded: Bytes) -> Result<Self, PublishedError> {
        let malformed = |_| PublishedError { index: None, error: OpError::Malformed { message: "Commit" } };
        let commit = raw::Commit::decode(encoded.clone()).map_err(malformed)?;
        let mut changes = Vec::with_capacity(commit.ops.len());
        for (index, op) in commit.ops.iter().enumerate() {
            let mut change = ops::parse(op).map_err(|error| PublishedError { index: Some(index), error })?;
            if let ParsedOp::Put { value, .. } = &mut change
                && value.len() < encoded.len() / COPIED_BELOW
            {
                *value = Bytes::copy_from_slice(value);
            }
            changes.push(change);
        }
        let kinds = changes.iter().fold(0, |kinds, change| kinds | change.kinds());
        Ok(Self { commit, encoded, changes, kinds })
    }

    /// Its revision.
    pub fn revision(&self) -> Revision {
        Revision(self.commit.revision)
    }

    /// Bytes that it takes in memory, about: decoded columns are a few times their encoding.
    fn weight(&self) -> u64 {
        3 * self.encoded.len() as u64 + 256
    }
}

/// History does not go back so far: list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("history begins at revision {floor}")]
pub struct Compacted {
    /// First revision that can be watched.
    pub floor: Revision,
}

/// Why nothing can be watched from a revision: list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchRefused {
    /// History does not go back so far.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// It is beyond the next revision: what was read is not this store.
    #[error("the last revision is {last}")]
    Future {
        /// Of the store.
        last: Revision,
    },
}

/// Why a watcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// Too slow: it was cut off. Watch again from where it stopped.
    #[error("too slow; resume from revision {resume_from}")]
    Lagged {
        /// First revision not delivered.
        resume_from: Revision,
    },
    /// The history that it was reading is gone: list again.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// The store has closed.
    #[error("the store has closed")]
    Closed,
}

/// The newest transactions, and what wakes watchers.
#[derive(Debug)]
pub(crate) struct Feed {
    ring: Mutex<Ring>,
    /// Last published revision. Closed with the store.
    published: watch::Sender<u64>,
    limits: Limits,
    reader: Arc<dyn LogReader>,
    /// History before this revision turned out to be damaged: it is not offered any more.
    whole_from: AtomicU64,
}

/// How much the feed keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ring_bytes: u64,
    pub(crate) backlog_items: u64,
    pub(crate) backlog_bytes: u64,
}

#[derive(Debug)]
struct Ring {
    /// Revision of the first item; of the next one to come when there is none.
    first: u64,
    items: VecDeque<Item>,
    /// Weight of everything ever published.
    end: u64,
    closed: bool,
    n_watchers: u64,
}

#[derive(Debug)]
struct Item {
    published: Arc<Published>,
    /// Weight of everything before it.
    start: u64,
}

/// What the ring has for a watcher.
enum NextCommits {
    Items(Vec<Arc<Published>>),
    /// Nothing new.
    Wait,
    /// Older than the ring: only the log has it.
    Older,
    End(WatchEnd),
}

impl Feed {
    pub(crate) fn new(revision: Revision, limits: Limits, reader: Arc<dyn LogReader>) -> Self {
        let ring =
            Ring { first: revision.0 + 1, items: VecDeque::new(), end: 0, closed: false, n_watchers: 0 };
        let (ring, published) = (Mutex::new(ring), watch::Sender::new(revision.0));
        Self { ring, published, limits, reader, whole_from: AtomicU64::new(0) }
    }

    /// Shows a group to watchers. They are woken by [`Feed::wake`].
    pub(crate) fn publish(&self, group: &[Arc<Published>]) {
        let mut ring = self.ring.lock();
        for published in group {
            let start = ring.end;
            ring.end += published.weight();
            ring.items.push_back(Item { published: Arc::clone(published), start });
        }
        while ring.items.front().is_some_and(|item| ring.end - item.start > self.limits.ring_bytes) {
            ring.items.pop_front();
            ring.first += 1;
        }
    }

    pub(crate) fn wake(&self, revision: Revision) {
        self.published.send_replace(revision.0);
    }

    /// The last published revision, as it changes.
    pub(crate) fn published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.ring.lock().closed
    }

    pub(crate) fn close(&self) {
        self.ring.lock().closed = true;
        self.published.send_modify(|_| {});
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.reader.disk_bytes()
    }

    pub(crate) fn n_watchers(&self) -> u64 {
        self.ring.lock().n_watchers
    }

    /// First revision that can be watched.
    pub(crate) fn floor(&self) -> Revision {
        let whole_from = Revision(self.whole_from.load(Ordering::Relaxed));
        self.reader.floor().max(whole_from).min(Revision(self.ring.lock().first))
    }

    /// Stops offering the history of the generation with `base`, which is damaged, and all before it.
    fn lose_history(&self, base: Revision, what: &str) {
        let generations = self.reader.generations();
        let next = generations.iter().find(|generation| generation.base > base);
        let whole_from = next.map_or(self.ring.lock().first, |next| next.base.0 + 1);
        if self.whole_from.fetch_max(whole_from, Ordering::Relaxed) < whole_from {
            let (from, to) = (base.0 + 1, whole_from - 1);
            tracing::warn!(
                from,
                to,
                problem = what,
                "history is damaged: revisions in this range cannot be watched; `godel state check` names them"
            );
        }
    }

    /// What the engine keeps.
    pub(crate) fn log_reader(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.reader)
    }

    /// The records on which the log rests.
    pub(crate) fn rests_on(&self) -> Result<FloorReader, LogError> {
        FloorReader::open(&*self.reader)
    }

    pub(crate) fn watch(self: &Arc<Self>, from: Revision) -> Result<Watcher, Compacted> {
        let floor = self.floor();
        let from = if from == Revision(0) { floor } else { from };
        if from < floor {
            return Err(Compacted { floor });
        }
        let published = self.published.subscribe();
        self.ring.lock().n_watchers += 1;
        Ok(Watcher { feed: Arc::clone(self), next: from.0, published, live: false })
    }

    fn next(&self, next: u64, live: bool) -> NextCommits {
        let ring = self.ring.lock();
        let end = ring.first + ring.items.len() as u64;
        if next >= end {
            return if ring.closed { NextCommits::End(WatchEnd::Closed) } else { NextCommits::Wait };
        }
        let lagged = NextCommits::End(WatchEnd::Lagged { resume_from: Revision(next) });
        if next < ring.first {
            return if live { lagged } else { NextCommits::Older };
        }
        let skip = usize::try_from(next - ring.first).unwrap_or(usize::MAX);
        let backlog = ring.items.get(skip).map_or(0, |item| ring.end - item.start);
        if live && (backlog > self.limits.backlog_bytes || end - next > self.limits.backlog_items) {
            return lagged;
        }
        let mut items = Vec::new();
        let mut bytes = 0;
        for item in ring.items.range(skip..).take(BATCH_ITEMS_MAX) {
            bytes += item.published.encoded.len() as u64;
            items.push(Arc::clone(&item.published));
            if bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        NextCommits::Items(items)
    }

    /// Whether a watcher at `next` is near enough to the end to be held to the backlog limits.
    fn is_near(&self, next: u64) -> bool {
        let ring = self.ring.lock();
        next + BATCH_ITEMS_MAX as u64 >= ring.first + ring.items.len() as u64
    }
}

/// Delivers every transaction from a revision on, in order, each exactly once.
///
/// It holds a position, not a queue. While it catches up with history it may be as far behind as history
/// goes; once it has caught up, falling behind by more than its backlog allows cuts it off.
#[derive(Debug)]
pub struct Watcher {
    feed: Arc<Feed>,
    next: u64,
    published: watch::Receiver<u64>,
    live: bool,
}

impl Watcher {
    /// The next transactions, at least one; waits until there are some. Cancel-safe.
    ///
    /// # Errors
    /// It was cut off, or the store has closed.
    pub async fn next(&mut self) -> Result<Vec<Arc<Published>>, WatchEnd> {
        loop {
            self.published.mark_unchanged();
            match self.feed.next(self.next, self.live) {
                NextCommits::Items(items) => {
                    self.next += items.len() as u64;
                    self.live = self.live || self.feed.is_near(self.next);
                    return Ok(items);
                }
                NextCommits::Wait => {
                    self.live = true;
                    self.published.changed().await.map_err(|_| WatchEnd::Closed)?;
                }
                NextCommits::Older => {
                    let items = self.older().await?;
                    self.next += items.len() as u64;
                    return Ok(items);
                }
                NextCommits::End(end) => return Err(end),
            }
        }
    }

    /// Whether what comes next is read from the log: it is in memory for this watcher alone.
    pub fn reads_log(&self) -> bool {
        self.next < self.feed.ring.lock().first
    }

    /// First revision not delivered yet.
    pub fn position(&self) -> Revision {
        Revision(self.next)
    }

    async fn older(&self) -> Result<Vec<Arc<Published>>, WatchEnd> {
        let (reader, from) = (Arc::clone(&self.feed.reader), Revision(self.next));
        let to = Revision(*self.published.borrow());
        let read =
            tokio::task::spawn_blocking(move || recovery::history(&*reader, from, to, BATCH_BYTES_MAX));
        match read.await {
            Ok(Ok(items)) if !items.is_empty() => Ok(items),
            Ok(Ok(_)) => Err(WatchEnd::Compacted(Compacted { floor: self.feed.floor() })),
            Ok(Err(HistoryError::Damaged { base, what })) => {
                self.feed.lose_history(base, &what);
                Err(WatchEnd::Compacted(Compacted { floor: self.feed.floor() }))
            }
            Ok(Err(HistoryError::Log(error))) => {
                tracing::warn!(%error, from = from.0, "watch history could not be read");
                Err(WatchEnd::Compacted(Compacted { floor: Revision(self.feed.ring.lock().first) }))
            }
            Err(_) => Err(WatchEnd::Closed),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.feed.ring.lock().n_watchers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;

    use super::*;

    #[test]
    fn a_record_does_not_keep_a_commit_much_larger_than_itself() {
        let commit = |n_units: u64| {
            let unit = |unit_id| {
                let spec = Some(v1::UnitSpec { queue: "q".repeat(100), ..v1::UnitSpec::default() });
                v1::UnitRecord { unit_id, spec, ..v1::UnitRecord::default() }
            };
            let ops = (1..=n_units).map(|id| raw::encode_op(v1::op::Op::PutUnit(unit(id)))).collect();
            let encoded = raw::Commit { revision: 7, ops, ..raw::Commit::default() }.encode_to_vec();
            Published::decode(encoded.into()).unwrap()
        };
        let n_kept = |published: &Published| {
            let kept = published.encoded.as_ptr_range();
            let values = published.changes.iter().filter_map(|change| match change {
                ParsedOp::Put { value, .. } => Some(value),
                ParsedOp::Delete { .. } | ParsedOp::Rows { .. } => None,
            });
            values.filter(|value| kept.contains(&value.as_ptr())).count()
        };
        assert_eq!(n_kept(&commit(1)), 1);
        assert_eq!(n_kept(&commit(50)), 0);
        let ParsedOp::Put { value, .. } = &commit(50).changes[49] else { panic!("no record") };
        assert_eq!(v1::UnitRecord::decode(value.clone()).unwrap().unit_id, 50);
    }
}
