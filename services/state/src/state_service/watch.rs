//! Watches: each committed change of the kinds asked for, in order, exactly once.
//!
//! Operations are passed on as they were logged; kinds are told by what the store parsed once, so nothing is
//! decoded here. A watcher that does not keep up is cut off by the store and told where to go on.

use std::{sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_identity::caller::Caller;
use godel_kit::{
    message::field_len,
    room::{MessageSender, Messages, Share, Taken},
    status::{self, reason, with_info},
    task,
};
use godel_proto::{kinds::KINDS, raw, v1};
use godel_store::{Published, WatchEnd, Watcher};
use godel_wire::ops::kind_bit;
use prost::Message as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{is_shown, kinds};
use crate::sessions::NodeSessions;

/// A message takes no further commit beyond this; one larger commit goes alone, and fits as a transaction leaves
/// room for its framing.
const MESSAGE_BYTES: usize = 256 << 10;
/// Messages that may wait for a slow client; then the watcher falls behind the store.
const N_WAITING_MAX: usize = 4;
/// About what a part of the log takes while it is passed on.
const LOG_BYTES: usize = 1 << 20;
/// About what a message without commits takes.
const BOOKMARK_BYTES: usize = 64;
/// A watcher that finds no room for so long, because its client does not read, is cut off.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// One watch.
pub(super) struct StoreWatch {
    pub(super) hub: Arc<NodeSessions>,
    /// [`kind_bit`]s.
    pub(super) kinds: u64,
    /// Commits of which nothing is shown are delivered too, empty: whoever asks for everything sees that none is missing.
    pub(super) is_of_all: bool,
    pub(super) bookmark_interval: Duration,
    /// The client's room for messages that it has not read.
    pub(super) share: Share,
}

type Sender = MessageSender<v1::WatchResponse, Status>;

/// Bits of the kinds asked for, or of all when none is named, without what `caller` is not shown.
pub(super) fn mask(numbers: &[i32], caller: &Caller) -> Result<u64, Status> {
    let wanted = kinds(numbers)?;
    let all = KINDS.iter().map(|entry| entry.kind);
    let shown = all.filter(|kind| (numbers.is_empty() || wanted.contains(kind)) && is_shown(*kind, caller));
    Ok(shown.fold(0, |mask, kind| mask | kind_bit(kind)))
}

/// A commit with the operations of the kinds asked for only; `None` when it has none, unless the watch is of all kinds.
fn filtered(published: &Published, kinds: u64, is_of_all: bool) -> Option<raw::Commit> {
    if published.kinds & kinds == 0 && !is_of_all {
        return None;
    }
    if published.kinds & !kinds == 0 {
        return Some(published.commit.clone());
    }
    let raw::Commit { revision, commit_time_ms, writer, ops, store_id } = &published.commit;
    let wanted = ops.iter().zip(&published.changes).filter(|(_, change)| change.kinds() & kinds != 0);
    Some(raw::Commit {
        revision: *revision,
        commit_time_ms: *commit_time_ms,
        writer: writer.clone(),
        ops: wanted.map(|(op, _)| op.clone()).collect(),
        store_id: *store_id,
    })
}

impl StoreWatch {
    pub(super) fn start(
        self,
        watcher: Watcher,
        stop: CancellationToken,
    ) -> Messages<v1::WatchResponse, Status> {
        let (messages, receiver) = Messages::channel(N_WAITING_MAX);
        task::spawn("watch", async move {
            self.hub.metrics.watchers.inc();
            let end = tokio::select! {
                end = self.run(watcher, &messages) => end,
                () = stop.cancelled() => Some(status::stopping()),
                () = messages.closed() => None,
            };
            self.hub.metrics.watchers.dec();
            if let Some(status) = end {
                // The client may have left.
                let _ = messages.send(Err(status)).await;
            }
        });
        receiver
    }

    /// Sends until the watcher ends or the client has left.
    async fn run(&self, mut watcher: Watcher, messages: &Sender) -> Option<Status> {
        let mut revision = watcher.position().0.saturating_sub(1);
        let mut bookmark_at = Instant::now();
        loop {
            // What is read from the log is held for this client alone: not before there is room for it.
            let mut log = None;
            if watcher.reads_log() {
                match self.room(LOG_BYTES).await {
                    Some(taken) => log = Some(taken),
                    None => return Some(self.cut_off(watcher.position())),
                }
            }
            let group = match tokio::time::timeout_at(bookmark_at, watcher.next()).await {
                Ok(Ok(group)) => group,
                Ok(Err(WatchEnd::Lagged { resume_from })) => {
                    return Some(self.cut_off(resume_from));
                }
                Ok(Err(WatchEnd::Compacted(compacted))) => {
                    self.hub.metrics.refused(reason::COMPACTED);
                    return Some(status::compacted(compacted.floor.0));
                }
                Ok(Err(WatchEnd::Closed)) => return Some(status::stopping()),
                // Idle: say how far it is.
                Err(_) => Vec::new(),
            };
            let (mut commits, mut bytes) = (Vec::new(), 0);
            for published in &group {
                if let Some(commit) = filtered(published, self.kinds, self.is_of_all) {
                    let len = field_len(commit.encoded_len());
                    if bytes + len > MESSAGE_BYTES && !commits.is_empty() {
                        let message = v1::WatchResponse { commits: std::mem::take(&mut commits), revision };
                        if let Err(end) = self.send(messages, message, bytes, &mut log).await {
                            return end;
                        }
                        bytes = 0;
                    }
                    bytes += len;
                    commits.push(commit);
                }
                revision = published.revision().0;
            }
            if !commits.is_empty() || group.is_empty() || Instant::now() >= bookmark_at {
                let message = v1::WatchResponse { commits, revision };
                if let Err(end) = self.send(messages, message, bytes, &mut log).await {
                    return end;
                }
                bookmark_at = Instant::now() + self.bookmark_interval;
            }
        }
    }
}

impl StoreWatch {
    /// Room of the client's; `None`: it has not read for too long.
    async fn room(&self, bytes: usize) -> Option<Taken> {
        tokio::time::timeout(ROOM_TIMEOUT, self.share.take(bytes)).await.ok()
    }

    fn cut_off(&self, resume_from: Revision) -> Status {
        self.hub.metrics.slow_watchers.inc();
        slow(resume_from)
    }

    /// Sends a message, with room that was taken for the log or is taken now.
    ///
    /// # Errors
    /// The watch is over: with what to tell the client, if it is there.
    async fn send(
        &self,
        messages: &Sender,
        message: v1::WatchResponse,
        bytes: usize,
        log: &mut Option<Taken>,
    ) -> Result<(), Option<Status>> {
        let first = message.commits.first().map_or(message.revision, |commit| commit.revision);
        let taken = match log {
            _ if bytes == 0 => self.share.take_anyway(BOOKMARK_BYTES),
            Some(log) => log.split(bytes),
            None => self.room(bytes).await.ok_or_else(|| Some(self.cut_off(Revision(first))))?,
        };
        messages.send(Ok((message, taken))).await.map_err(|_| None)
    }
}

fn slow(resume_from: Revision) -> Status {
    let message = format!("the watcher is too slow: resume from revision {resume_from}");
    with_info(Code::Aborted, reason::SLOW_WATCHER, message, [("resume_from", resume_from.to_string())])
}
