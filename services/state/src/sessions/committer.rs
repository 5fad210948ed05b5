//! The one committer of what all agents report.

use std::{sync::Arc, task::Waker, time::Duration};

use godel_base::ids::{NodeId, Revision};
use godel_proto::{raw, v1};
use godel_store::{RefusalReason, Role};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    NodeSessions,
    cell::{CellReport, Close},
    statuses, wake,
};

/// Reports that may wait for the committer over all sessions: 24 MiB.
const N_QUEUED_MAX: usize = 1 << 20;
/// Pause before a transaction that the full disk refused is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(200);
/// From the beginning of one batch to that of the next. A report that comes alone is committed at once; under load fewer
/// and larger transactions leave the writer, and everybody who follows it, to what somebody waits for.
const PACE: Duration = Duration::from_millis(5);
/// Messages in one batch up to which each is acknowledged at once. In larger ones, under load, an
/// acknowledgement waits for the session's next message, at most [`ACK_INTERVAL`]: one message less and one
/// wake-up less for most reports.
const N_ACKED_AT_ONCE: usize = 64;
/// Longest wait of an acknowledgement. An agent meanwhile has room for 64 unacknowledged reports.
const ACK_INTERVAL: Duration = Duration::from_millis(100);

/// Reports of one message of one session.
#[derive(Debug)]
pub(crate) struct ReportedRows {
    pub(crate) node: NodeId,
    pub(crate) session: u64,
    pub(crate) sequence: u64,
    pub(crate) reports: Vec<CellReport>,
}

/// What waits for the committer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<WaitingCommits>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct WaitingCommits {
    reported: Vec<ReportedRows>,
    n_reports: usize,
    stalled: Vec<Waker>,
}

impl Queue {
    /// Adds reports. Sessions look at [`Queue::is_full`] before they read.
    pub(crate) fn push(&self, reported: ReportedRows) {
        let mut waiting = self.waiting.lock();
        waiting.n_reports += reported.reports.len();
        waiting.reported.push(reported);
        let first = waiting.reported.len() == 1;
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
    }

    /// Whether a session has to wait; `waker` is woken when there is room.
    pub(crate) fn is_full(&self, waker: &Waker) -> bool {
        let mut waiting = self.waiting.lock();
        let full = waiting.n_reports >= N_QUEUED_MAX;
        if full {
            waiting.stalled.push(waker.clone());
        }
        full
    }

    async fn take(&self) -> Vec<ReportedRows> {
        loop {
            let (reported, stalled) = {
                let mut waiting = self.waiting.lock();
                waiting.n_reports = 0;
                (std::mem::take(&mut waiting.reported), std::mem::take(&mut waiting.stalled))
            };
            stalled.iter().for_each(Waker::wake_by_ref);
            if !reported.is_empty() {
                return reported;
            }
            self.filled.notified().await;
        }
    }
}

/// Commits until `stop`. What has not been acknowledged then is reported again by the agents.
pub(crate) async fn run(hub: Arc<NodeSessions>, stop: CancellationToken) {
    let mut unsaid: Vec<(NodeId, u64)> = Vec::new();
    let mut flush_at = Instant::now();
    let mut next_at = flush_at;
    loop {
        let paced = async {
            tokio::time::sleep_until(next_at).await;
            hub.queue.take().await
        };
        let reported = tokio::select! {
            reported = paced => {
                next_at = Instant::now() + PACE;
                reported
            }
            () = tokio::time::sleep_until(flush_at), if !unsaid.is_empty() => Vec::new(),
            () = stop.cancelled() => return,
        };
        let durable = tokio::select! {
            durable = commit(&hub, &reported) => durable,
            () = stop.cancelled() => return,
        };
        if let Some(revision) = durable {
            // Who delivers stops as well, and may have done so before this one.
            tokio::select! {
                () = hub.delivery.until(revision) => {}
                () = stop.cancelled() => return,
            }
        }
        if unsaid.is_empty() {
            flush_at = Instant::now() + ACK_INTERVAL;
        }
        for one in &reported {
            let Some(slot) = hub.slot(one.node) else { continue };
            let mut cell = slot.cell.lock();
            if durable.is_some() {
                cell.ack(one.session, one.sequence, one.reports.len());
                unsaid.push((one.node, one.session));
            } else {
                // The agents come back and report again.
                let waker = cell.close(Close::Stopping);
                drop(cell);
                wake(waker);
            }
        }
        if reported.len() <= N_ACKED_AT_ONCE || Instant::now() >= flush_at {
            for (node, session) in unsaid.drain(..) {
                let waker = hub.slot(node).and_then(|slot| slot.cell.lock().flush_ack(session));
                wake(waker);
            }
        }
    }
}

/// Makes reports durable and returns up to where; `None` when the store refused them.
async fn commit(hub: &NodeSessions, reported: &[ReportedRows]) -> Option<Revision> {
    if reported.is_empty() {
        return Some(Revision(0));
    }
    hub.crash.hit("state.session-status");
    let (fresh, mut durable) = hub.store.read(|state| {
        let mut fresh = Vec::new();
        for one in reported {
            for report in &one.reports {
                let rows = state.rows().get(report.key.unit);
                if rows.is_some_and(|rows| {
                    statuses::changes(&rows.row(report.key.replica.ordinal), one.node.0, report)
                }) {
                    fresh.push(*report);
                }
            }
        }
        (fresh, state.revision())
    });
    hub.metrics.statuses.inc_by(fresh.len() as u64);
    for txn in statuses::group(fresh) {
        durable = durable.max(commit_txn(hub, txn).await?);
    }
    Some(durable)
}

async fn commit_txn(hub: &NodeSessions, txn: Vec<v1::RunStatuses>) -> Option<Revision> {
    let mut ops: Vec<_> = txn.into_iter().map(|op| raw::encode_op(v1::op::Op::RunStatus(op))).collect();
    while !ops.is_empty() {
        let request = raw::TxnRequest { ops: ops.clone(), ..raw::TxnRequest::default() };
        match hub.store.submit(request, Role::Agent).await {
            Ok(committed) => return Some(committed.revision),
            Err(refusal) => match refusal.reason {
                RefusalReason::StoreFull => {
                    hub.metrics.refused("STORE_FULL");
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                // A unit was deleted since the look at the rows: nothing of it is left to record.
                RefusalReason::RowConflict if (refusal.index as usize) < ops.len() => {
                    ops.remove(refusal.index as usize);
                }
                RefusalReason::Closed => return None,
                RefusalReason::RowConflict
                | RefusalReason::Precondition
                | RefusalReason::NodeChanged
                | RefusalReason::StaleEpoch
                | RefusalReason::StoreChanged
                | RefusalReason::FutureRevision
                | RefusalReason::Forbidden
                | RefusalReason::Invalid => {
                    tracing::error!(%refusal, "run status was refused");
                    return None;
                }
            },
        }
    }
    Some(Revision(0))
}
