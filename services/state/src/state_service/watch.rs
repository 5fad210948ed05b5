//! Watches: each committed change of the kinds asked for, in order, exactly once.
//!
//! Operations are passed on as they were logged; kinds are told by what the store parsed once, so nothing is
//! decoded here. A watcher that does not keep up is cut off by the store and told where to go on.

use std::{sync::Arc, time::Duration};

use godel_domain::ids::Revision;
use godel_kit::{
    message::field_len,
    status::{self, reason, with_info},
    task,
};
use godel_proto::{raw, v1};
use godel_store::{Published, WatchEnd, Watcher};
use godel_wire::ops::kind_bit;
use prost::Message as _;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::kinds;
use crate::sessions::NodeSessions;

/// A message takes no further commit beyond this; one larger commit goes alone, and fits as a transaction leaves
/// room for its framing.
const MESSAGE_BYTES: usize = 256 << 10;
/// Messages that may wait for a slow client; then the watcher falls behind the store.
const N_WAITING_MAX: usize = 4;

/// One watch.
pub(super) struct Watch {
    pub(super) hub: Arc<NodeSessions>,
    /// [`kind_bit`]s.
    pub(super) kinds: u32,
    pub(super) bookmark_interval: Duration,
}

type Messages = mpsc::Sender<Result<v1::WatchResponse, Status>>;

/// Bits of the kinds asked for; all when none is named.
pub(super) fn mask(numbers: &[i32]) -> Result<u32, Status> {
    if numbers.is_empty() {
        return Ok(u32::MAX);
    }
    Ok(kinds(numbers)?.into_iter().fold(0, |mask, kind| mask | kind_bit(kind)))
}

/// A commit with the operations of the kinds asked for only; `None` when it has none.
fn filtered(published: &Published, kinds: u32) -> Option<raw::Commit> {
    if published.kinds & kinds == 0 {
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

impl Watch {
    pub(super) fn start(
        self,
        watcher: Watcher,
        stop: CancellationToken,
    ) -> ReceiverStream<Result<v1::WatchResponse, Status>> {
        let (messages, receiver) = mpsc::channel(N_WAITING_MAX);
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
        ReceiverStream::new(receiver)
    }

    /// Sends until the watcher ends or the client has left.
    async fn run(&self, mut watcher: Watcher, messages: &Messages) -> Option<Status> {
        let mut revision = watcher.position().0.saturating_sub(1);
        let mut bookmark_at = Instant::now();
        loop {
            let group = match tokio::time::timeout_at(bookmark_at, watcher.next()).await {
                Ok(Ok(group)) => group,
                Ok(Err(WatchEnd::Lagged { resume_from })) => {
                    self.hub.metrics.slow_watchers.inc();
                    return Some(slow(resume_from));
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
                if let Some(commit) = filtered(published, self.kinds) {
                    let len = field_len(commit.encoded_len());
                    if bytes + len > MESSAGE_BYTES && !commits.is_empty() {
                        let commits = std::mem::take(&mut commits);
                        messages.send(Ok(v1::WatchResponse { commits, revision })).await.ok()?;
                        bytes = 0;
                    }
                    bytes += len;
                    commits.push(commit);
                }
                revision = published.revision().0;
            }
            if !commits.is_empty() || group.is_empty() || Instant::now() >= bookmark_at {
                messages.send(Ok(v1::WatchResponse { commits, revision })).await.ok()?;
                bookmark_at = Instant::now() + self.bookmark_interval;
            }
        }
    }
}

fn slow(resume_from: Revision) -> Status {
    let message = format!("the watcher is too slow: resume from revision {resume_from}");
    with_info(Code::Aborted, reason::SLOW_WATCHER, message, [("resume_from", resume_from.to_string())])
}
