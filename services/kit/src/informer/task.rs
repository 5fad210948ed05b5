//! The task that lists and watches.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use godel_base::ids::{Revision, StoreId};
use godel_domain::{
    change::{Change, Commit},
    records::{RecordKey, RecordKind},
    task_group_record::UnitJoin,
};
use godel_proto::{
    raw,
    v1::{self, state_service_client::StateServiceClient},
};
use godel_wire::from_proto::{self, LoadedRecord};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{FollowConfig, FollowEvent, OwnWrites, Shared, list, unread::UnreadRecords};
use crate::{
    client::{Backoff, Channel},
    message::RECEIVED_BYTES_MAX,
    status::{self, reason},
};

/// Lists made because of operations of which nobody can tell what they are about: a list shows what became of them. With more
/// of them than that, what they may be about is frozen until the history is gone or the process is replaced.
const N_RELISTS_MAX: u32 = 3;
/// First pause after a failure.
const RECONNECT_BASE: Duration = Duration::from_millis(20);

/// Why reading stopped.
enum Stop {
    /// The history is gone, the store is another one, or a page token was not understood.
    ListAgain,
    /// Try again from the last revision.
    Reconnect(Status),
    /// Nobody listens.
    Over,
}

struct InformerTask {
    state: Channel,
    client: StateServiceClient<Channel>,
    kinds: Vec<i32>,
    page_size: u32,
    written: OwnWrites,
    unread: UnreadRecords,
    events: mpsc::Sender<FollowEvent>,
    backoff: Backoff,
    /// The store that was listed.
    store: StoreId,
    /// Lists that may still be made because of operations of which nobody can tell what they are about.
    n_relists: u32,
    /// Everything up to here has been delivered.
    revision: Revision,
    /// Whole records that the list had newer than its own revision.
    newer: HashMap<RecordKey, Revision>,
    /// Units with the task groups that were added to them.
    join: UnitJoin,
}

pub(super) async fn run(
    state: Channel,
    kinds: Vec<i32>,
    config: FollowConfig,
    shared: Shared,
    events: mpsc::Sender<FollowEvent>,
    stop: CancellationToken,
) {
    let mut task = InformerTask {
        state: state.clone(),
        client: StateServiceClient::new(state.clone()).max_decoding_message_size(RECEIVED_BYTES_MAX),
        kinds,
        page_size: config.page_size,
        written: shared.written,
        unread: UnreadRecords::new(shared.unread),
        events,
        n_relists: N_RELISTS_MAX,
        backoff: Backoff::new(RECONNECT_BASE, config.reconnect_max.max(RECONNECT_BASE)),
        store: StoreId(0),
        revision: Revision(0),
        newer: HashMap::new(),
        join: UnitJoin::default(),
    };
    let closed = task.events.clone();
    tokio::select! {
        () = task.follow() => {}
        () = stop.cancelled() => {}
        () = closed.closed() => {}
    }
}

impl InformerTask {
    async fn follow(&mut self) {
        loop {
            match self.list().await {
                Ok(()) => {}
                Err(Stop::Over) => return,
                Err(Stop::ListAgain | Stop::Reconnect(_)) => {
                    self.pause().await;
                    continue;
                }
            }
            loop {
                match self.watch().await {
                    Stop::Over => return,
                    Stop::ListAgain => {
                        let (revision, store) = (self.revision.0, self.store.0);
                        tracing::info!(revision, store, "watch lost its position, listing again");
                        break;
                    }
                    Stop::Reconnect(failure) => {
                        tracing::debug!(
                            code = ?failure.code(),
                            why = failure.message(),
                            revision = self.revision.0,
                            "watch ended"
                        );
                        self.pause().await;
                    }
                }
            }
        }
    }

    async fn pause(&mut self) {
        sleep(self.backoff.pause()).await;
    }

    async fn emit(&self, event: FollowEvent) -> Result<(), Stop> {
        self.events.send(event).await.map_err(|_| Stop::Over)
    }

    /// Lists every page; on success everything up to `self.revision` has been delivered.
    async fn list(&mut self) -> Result<(), Stop> {
        self.newer.clear();
        self.unread.reset();
        self.written.clear();
        self.join.reset();
        let mut first_revision = None;
        let mut page_token = String::new();
        let mut open_rows = None;
        loop {
            let page = self.page(&page_token).await?;
            if first_revision.is_none() {
                self.store = StoreId(page.store_id);
                self.emit(FollowEvent::Reset { store: self.store }).await?;
            }
            let revision = *first_revision.get_or_insert(Revision(page.revision));
            let is_last = page.next_page_token.is_empty();
            let mut records = Vec::with_capacity(page.records.len());
            for LoadedRecord { revision: at, create_revision, create_time_ms, change } in
                read_page(&mut open_rows, &page.records, is_last)
            {
                if at > revision
                    && let Some(key) = replaced_by(&change)
                {
                    self.newer.insert(key, at);
                }
                for change in self.join.join(vec![change]) {
                    self.unread.note(&change, at);
                    records.push(LoadedRecord { revision: at, create_revision, create_time_ms, change });
                }
            }
            if !records.is_empty() {
                self.emit(FollowEvent::Loaded(records)).await?;
            }
            if is_last {
                self.revision = revision;
                self.unread.listed();
                return self.emit(FollowEvent::Synced { revision }).await;
            }
            page_token = page.next_page_token;
        }
    }

    /// One page, tried until the store answers: page tokens outlive connections.
    async fn page(&mut self, page_token: &str) -> Result<list::ListPage, Stop> {
        loop {
            let request = v1::ListRecordsRequest {
                kinds: self.kinds.clone(),
                page_size: self.page_size,
                page_token: page_token.to_owned(),
            };
            match list::page(self.state.clone(), request).await {
                Ok(page) => {
                    self.backoff.reset();
                    return Ok(page);
                }
                Err(failure)
                    if matches!(failure.code(), Code::InvalidArgument | Code::OutOfRange)
                        && !page_token.is_empty() =>
                {
                    return Err(Stop::ListAgain);
                }
                Err(failure) => {
                    tracing::debug!(code = ?failure.code(), why = failure.message(), "retrying list");
                    self.pause().await;
                }
            }
        }
    }

    /// Watches from the revision after the last one delivered until the stream ends.
    async fn watch(&mut self) -> Stop {
        let request = v1::WatchRequest {
            from_revision: self.revision.0 + 1,
            kinds: self.kinds.clone(),
            store_id: self.store.0,
        };
        let mut stream = match self.client.watch(request).await {
            Ok(stream) => stream.into_inner(),
            Err(failure) => return stop_of(failure),
        };
        loop {
            let message = match stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Stop::Reconnect(Status::unavailable("the store ended the watch")),
                Err(failure) => return stop_of(failure),
            };
            self.backoff.reset();
            if let Err(stop) = self.deliver(message).await {
                return stop;
            }
        }
    }

    async fn deliver(&mut self, message: v1::WatchResponse) -> Result<(), Stop> {
        for commit in message.commits {
            let revision = Revision(commit.revision);
            // A reconnect may bring commits again.
            if revision <= self.revision {
                continue;
            }
            let raw::Commit { commit_time_ms: time_ms, ops, .. } = commit;
            let changes = self.changes(revision, &ops)?;
            self.revision = revision;
            if !changes.is_empty() {
                self.emit(FollowEvent::Committed(Commit { revision, time_ms, changes })).await?;
            }
        }
        let revision = Revision(message.revision);
        if revision > self.revision {
            self.revision = revision;
            self.emit(FollowEvent::Synced { revision }).await?;
        }
        Ok(())
    }

    /// The operations of a commit, without those that the list had newer already.
    ///
    /// # Errors
    /// Nobody can tell what one of them is about: the list shows what became of it.
    fn changes(&mut self, revision: Revision, ops: &[Bytes]) -> Result<Vec<Change>, Stop> {
        let mut changes = Vec::with_capacity(ops.len());
        for op in ops {
            let change = self.written.take(op).unwrap_or_else(|| from_proto::read_op(op));
            if let Change::Unreadable(unreadable) = &change
                && unreadable.key == RecordKey::Unknown
                && let Some(left) = self.n_relists.checked_sub(1)
            {
                self.n_relists = left;
                tracing::warn!(%unreadable, revision = revision.0, "listing again to find its key");
                return Err(Stop::ListAgain);
            }
            if !self.newer.is_empty() && self.is_old(&change, revision) {
                continue;
            }
            changes.push(change);
        }
        let changes = self.join.join(changes);
        changes.iter().for_each(|change| self.unread.note(change, revision));
        if self.newer.values().all(|newest| *newest <= revision) {
            self.newer.clear();
        }
        Ok(changes)
    }

    fn is_old(&self, change: &Change, revision: Revision) -> bool {
        replaced_by(change).and_then(|key| self.newer.get(&key)).is_some_and(|newest| revision <= *newest)
    }
}

/// The records of a page in domain types, with the rows of each unit in one; what cannot be read is
/// [`Change::Unreadable`]. `open` is `None` for the first page, and is handed on from page to page.
pub fn read_page(open: &mut Option<v1::Record>, page: &[Bytes], is_last: bool) -> Vec<LoadedRecord> {
    let mut read = Vec::with_capacity(page.len() + 1);
    for encoded in page {
        match from_proto::read_encoded(encoded) {
            Ok(record) => {
                read.extend(open.take().map(from_proto::read_rows));
                read.push(record);
            }
            Err(rows) => {
                read.extend(join_rows(open, vec![*rows], false).into_iter().map(from_proto::read_rows));
            }
        }
    }
    if is_last {
        read.extend(open.take().map(from_proto::read_rows));
    }
    read
}

/// Joins the parts of a unit's rows to one record: a part may go on in the next one, also on the next page, so the
/// last of a page stays `open` until then. Parts that were read at different revisions make rows that never were
/// so together: each row carries its own revision, and the watch brings the older ones up.
pub(super) fn join_rows(
    open: &mut Option<v1::Record>,
    page: Vec<v1::Record>,
    is_last: bool,
) -> Vec<v1::Record> {
    let mut joined = Vec::with_capacity(page.len() + 1);
    for record in page {
        match open {
            None => *open = Some(record),
            Some(open) => {
                if let Some(record) = append(open, record) {
                    joined.push(std::mem::replace(open, record));
                }
            }
        }
    }
    if is_last {
        joined.extend(open.take());
    }
    joined
}

/// Appends more rows of the same unit; gives anything else back.
fn append(open: &mut v1::Record, next: v1::Record) -> Option<v1::Record> {
    use v1::record::Record::Rows;
    match (&mut open.record, next.record) {
        (Some(Rows(begun)), Some(Rows(part))) if begun.unit_id == part.unit_id => {
            begun.blocks.extend(part.blocks);
            begun.evictions.extend(part.evictions);
            open.revision = open.revision.max(next.revision);
            None
        }
        (_, record) => Some(v1::Record { record, ..next }),
    }
}

/// Kinds whose keys are ids that are never given twice.
const NEVER_REUSED: [RecordKind; 3] = [RecordKind::NodeSpec, RecordKind::Unit, RecordKind::Hold];

/// The whole record that a change replaces, or whose name it makes free: names come back, and a list may show a record that
/// is newer than the deletion of the one before it. `None` where ids are never reused, and of running units, which compare
/// revisions themselves.
fn replaced_by(change: &Change) -> Option<RecordKey> {
    let key = match change {
        Change::Gone(key) if key.kind().is_some_and(|kind| NEVER_REUSED.contains(&kind)) => return None,
        Change::Unreadable(unreadable) => unreadable.key.clone(),
        _ => change.settles().pop()?,
    };
    key.kind().is_some_and(|kind| kind != RecordKind::Rows).then_some(key)
}

fn stop_of(failure: Status) -> Stop {
    let ours = |reason| status::has_reason(&failure, reason);
    if ours(reason::COMPACTED) || ours(reason::STORE_CHANGED) || ours(reason::FUTURE_REVISION) {
        return Stop::ListAgain;
    }
    Stop::Reconnect(failure)
}
