//! What the watch shows of a replay: which of its units are bound, since when, and which have ended.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use godel_domain::{change::Change, records::Record, running_units::RunChange};
use godel_proto::v1;
use godel_wire::from_proto;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    client::Client,
    exit::{Code, Failure},
};

/// Watches opened without progress before it is given up.
const N_WATCHES_MAX: u32 = 600;
/// Pause before the next.
const PAUSE: Duration = Duration::from_millis(100);

/// A unit of the replay.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Its binding was seen so long after the start.
    bound: Option<Duration>,
    live: bool,
}

/// Everything seen, shared by the watch, the submission and who waits.
pub(super) struct ReplayBoard {
    inner: Mutex<Inner>,
    n_bound: watch::Sender<usize>,
    /// Microseconds from the start to the moment a unit was first handed to the stream.
    sent: Vec<AtomicU64>,
}

struct Inner {
    started: Instant,
    by_uid: HashMap<String, usize>,
    by_id: HashMap<u64, usize>,
    seen: Vec<Seen>,
    n_acknowledged: usize,
    n_live: usize,
    last_bound: Duration,
    read_up_to: u64,
    failure: Option<Failure>,
}

impl ReplayBoard {
    /// Starts to watch from a revision.
    pub(super) fn start(
        client: &Client,
        from: u64,
        names: &[(String, String)],
        stop: CancellationToken,
    ) -> Arc<Self> {
        let by_uid = names.iter().enumerate().map(|(idx, (uid, _))| (uid.clone(), idx)).collect();
        let inner = Inner {
            started: Instant::now(),
            by_uid,
            by_id: HashMap::new(),
            seen: vec![Seen::default(); names.len()],
            n_acknowledged: 0,
            n_live: 0,
            last_bound: Duration::ZERO,
            read_up_to: from.saturating_sub(1),
            failure: None,
        };
        let sent = names.iter().map(|_| AtomicU64::new(0)).collect();
        let board = Arc::new(Self { inner: Mutex::new(inner), n_bound: watch::channel(0).0, sent });
        let (watching, client) = (Arc::clone(&board), client.clone());
        godel_kit::task::spawn("replay.watch", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = watching.follow(&client) => {}
            }
        });
        board
    }

    /// The first submission leaves now.
    pub(super) fn begin(&self, started: Instant) {
        self.lock().started = started;
    }

    /// A unit is handed to the stream, perhaps again.
    pub(super) fn sent(&self, idx: usize, started: Instant) {
        let at = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        // Whoever was first stays.
        let _sent_before = self.sent[idx].compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn started(&self) -> Instant {
        self.lock().started
    }

    /// From the moment a unit was handed to the stream to the moment its binding was seen.
    pub(super) fn latencies(&self) -> Vec<Duration> {
        let seen = self.lock().seen.clone();
        let sent = self.sent.iter().map(|at| Duration::from_micros(at.load(Ordering::Relaxed)));
        seen.iter().zip(sent).filter_map(|(seen, sent)| Some(seen.bound?.saturating_sub(sent))).collect()
    }

    /// So many more units are durable.
    pub(super) fn acknowledged(&self, n: usize) {
        self.lock().n_acknowledged += n;
    }

    pub(super) fn n_bound(&self) -> usize {
        *self.n_bound.borrow()
    }

    pub(super) fn n_acknowledged(&self) -> usize {
        self.lock().n_acknowledged
    }

    /// Bound and not ended.
    pub(super) fn n_live(&self) -> usize {
        self.lock().n_live
    }

    pub(super) fn read_up_to(&self) -> u64 {
        self.lock().read_up_to
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// When the last binding was seen, after the start.
    pub(super) fn last_bound(&self) -> Duration {
        self.lock().last_bound
    }

    pub(super) async fn all_bound(&self, n: usize) {
        // The sender lives as long as this board.
        let mut n_bound = self.n_bound.subscribe();
        let _gone = n_bound.wait_for(|bound| *bound >= n).await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds the lock can leave the board half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self, client: &Client) {
        let mut n_idle = 0;
        loop {
            let before = self.read_up_to();
            let status = self.follow_once(client).await;
            n_idle = if self.read_up_to() > before { 0 } else { n_idle + 1 };
            let retryable = godel_kit::status::is_retryable_idempotent(&status)
                || godel_kit::status::has_reason(&status, godel_kit::status::reason::SLOW_WATCHER);
            if !retryable || n_idle > N_WATCHES_MAX {
                self.lock().failure = Some(client.explain(status).during("the watch"));
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow_once(&self, client: &Client) -> Status {
        let request = v1::WatchRequest {
            from_revision: self.read_up_to() + 1,
            kinds: vec![v1::Kind::Unit.into(), v1::Kind::Rows.into()],
            ..v1::WatchRequest::default()
        };
        let mut stream = match client.state().watch(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return status,
        };
        while let Some(answer) = stream.next().await {
            match answer {
                Ok(answer) => {
                    if let Err(failure) = self.take(&answer) {
                        self.lock().failure = Some(failure);
                    }
                }
                Err(status) => return status,
            }
        }
        Status::unavailable("the watch ended")
    }

    fn take(&self, answer: &v1::WatchResponse) -> Result<(), Failure> {
        let mut n_fresh = 0;
        let mut inner = self.lock();
        let at = inner.started.elapsed();
        for op in answer.commits.iter().flat_map(|commit| &commit.ops) {
            let change = from_proto::op(op).map_err(|bad| {
                Failure::new(
                    Code::Failed,
                    format!("a change cannot be read: {}: {}", bad.path, bad.description),
                )
            })?;
            match change {
                Change::Put(Record::Unit(record)) => {
                    if let Some(idx) = inner.by_uid.get(&record.spec.uid).copied() {
                        inner.by_id.insert(record.id.0, idx);
                    }
                }
                Change::Rows(unit, rows) => {
                    if let Some(idx) = inner.by_id.get(&unit.0).copied() {
                        n_fresh += inner.on_rows(idx, &rows, at);
                    }
                }
                _ => {}
            }
        }
        inner.read_up_to = inner.read_up_to.max(answer.revision);
        drop(inner);
        if n_fresh > 0 {
            self.n_bound.send_modify(|bound| *bound += n_fresh);
        }
        Ok(())
    }
}

impl Inner {
    /// Units bound for the first time by this change. A unit of a trace has one running unit.
    fn on_rows(&mut self, idx: usize, rows: &RunChange, at: Duration) -> usize {
        let seen = &mut self.seen[idx];
        match rows {
            RunChange::Bind(_) => {
                if !std::mem::replace(&mut seen.live, true) {
                    self.n_live += 1;
                }
                if seen.bound.is_none() {
                    seen.bound = Some(at);
                    self.last_bound = at;
                    return 1;
                }
            }
            RunChange::Statuses(statuses) if statuses.phases.iter().any(|phase| phase.is_ended()) => {
                if std::mem::take(&mut seen.live) {
                    self.n_live -= 1;
                }
            }
            RunChange::Statuses(_)
            | RunChange::Evict(_)
            | RunChange::Requeue(_)
            | RunChange::Terms(_)
            | RunChange::Compact(_) => {}
        }
        0
    }
}
