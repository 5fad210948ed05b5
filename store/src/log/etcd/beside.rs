//! Work beside the commits: pieces of a snapshot, deletions, compaction, and requests for sizes.
//!
//! One call is in progress at a time, and no commit waits for it. A call with an unknown outcome is sent again until the outcome is known: each
//! transaction compares the fence and its prerequisites, so that a transaction that arrives late or twice changes nothing.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_etcd::{
    Answer, CallError, Compare, Entry, Etcd, Header, Op, Page, RangeRequest, Reply, Request, Sizes, TxnReply,
    TxnRequest,
};
use parking_lot::{Condvar, Mutex};

use super::{
    generation::EtcdGeneration,
    keys::{KeyRange, next_key},
    records::HeldFence,
};
use crate::log::{BesideWork, LogError, Waker};

/// Maximum number of keys in one deletion, so that it does not delay the commits behind it.
const N_DELETED_MAX: u32 = 128;
/// First pause before a call with an unknown outcome is made again; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Value of the key that marks a generation as being deleted.
const DROPPING: Bytes = Bytes::from_static(b"dropping");

/// A task beside the commits.
#[derive(Debug)]
pub(super) enum Job {
    /// Asks for the sizes of the database.
    Sizes,
    /// Compacts etcd up to this revision.
    Compact(u64),
    /// Writes a piece of a snapshot.
    Piece(TxnRequest),
    /// Marks a generation as being deleted, once it has no readers, and then deletes it.
    Drop(Arc<EtcdGeneration>),
    /// Deletes keys.
    Sweep(Sweep),
}

/// A range of keys that is being deleted, in order.
#[derive(Debug)]
pub(super) struct Sweep {
    range: KeyRange,
    /// Key that is deleted last: while it exists, the deletion is incomplete.
    marker: Option<Bytes>,
    step: SweepStep,
}

#[derive(Debug)]
enum SweepStep {
    /// Lists the next keys.
    List,
    /// Deletes the keys that were listed.
    Delete(KeyBatch),
    /// Deletes the marker.
    Forget(Bytes),
}

/// Consecutive keys.
#[derive(Debug)]
pub(super) struct KeyBatch {
    first: Entry,
    last: Bytes,
}

impl KeyBatch {
    pub(super) fn of(page: &Page) -> Option<Self> {
        let (first, last) = (page.entries.first()?.clone(), page.entries.last()?.key.clone());
        Some(Self { first, last })
    }

    /// Returns the transaction that deletes the keys. All of them are deleted at once, so if the first key is gone or was written again, they were deleted before.
    pub(super) fn deletion(&self, fence: &HeldFence) -> TxnRequest {
        let Entry { key, create_revision, .. } = &self.first;
        TxnRequest {
            compares: vec![fence.compare(), Compare::CreatedAt(key.clone(), *create_revision)],
            ops: vec![Op::DeleteRange(key.clone(), next_key(&self.last))],
            reads: vec![fence.key.clone()],
        }
    }
}

impl Sweep {
    pub(super) fn new(range: KeyRange, marker: Option<Bytes>) -> Self {
        Self { range, marker, step: SweepStep::List }
    }
}

/// The result of a task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// The sizes; `None` if etcd did not return them.
    Sizes(Option<Sizes>),
    /// Etcd was compacted, or the compaction failed and a later one includes it.
    Compacted,
    Piece {
        took: Duration,
    },
    /// Any other task has ended.
    Other,
}

/// What follows a call of a job.
enum Step {
    Done(Finished),
    Next(Job),
    /// Make the same call again.
    Again(Job, CallError),
}

/// The queue of jobs, and the call in progress.
#[derive(Debug)]
pub(super) struct Beside {
    etcd: Arc<dyn Etcd>,
    queue: VecDeque<Job>,
    running: Option<Running>,
    /// Pause before the next piece.
    piece_pause: Duration,
    /// Pause before a call is made again.
    pause: Duration,
    /// Calls that were done.
    n_done: u64,
    /// Why the last call was not done, until it is.
    failure: Option<CallError>,
}

#[derive(Debug)]
struct Running {
    job: Job,
    slot: Arc<Slot>,
    /// Time at which the call is made.
    starts: Instant,
}

/// Receives the outcome of a call.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    is_filled: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<(Result<Reply, CallError>, Instant)>,
    waker: Option<Waker>,
}

impl std::fmt::Debug for SlotState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotState").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl Slot {
    fn fill(&self, outcome: Result<Reply, CallError>) {
        let waker = {
            let mut state = self.state.lock();
            if state.outcome.is_none() {
                state.outcome = Some((outcome, Instant::now()));
            }
            state.waker.take()
        };
        self.is_filled.notify_all();
        if let Some(waker) = waker {
            waker();
        }
    }

    /// Takes the outcome. If there is none yet, `waker` is called once there is one.
    fn take(&self, waker: &Waker) -> Option<(Result<Reply, CallError>, Instant)> {
        let mut state = self.state.lock();
        let outcome = state.outcome.take();
        state.waker = if outcome.is_none() { Some(Arc::clone(waker)) } else { None };
        outcome
    }

    fn wait(&self, patience: Duration) {
        let mut state = self.state.lock();
        if state.outcome.is_none() {
            self.is_filled.wait_for(&mut state, patience);
        }
    }
}

/// Fills a slot even if the client ends without an answer.
struct SlotFiller(Arc<Slot>);

impl Drop for SlotFiller {
    fn drop(&mut self) {
        self.0.fill(Err(CallError::Unknown("the client of etcd has ended".to_owned())));
    }
}

impl Beside {
    pub(super) fn new(etcd: Arc<dyn Etcd>) -> Self {
        Self {
            etcd,
            queue: VecDeque::new(),
            running: None,
            piece_pause: Duration::ZERO,
            pause: PAUSE_MIN,
            n_done: 0,
            failure: None,
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        match job {
            // Work that measures or frees space does not wait for pieces.
            Job::Sizes | Job::Compact(_) => self.queue.push_front(job),
            Job::Piece(_) | Job::Drop(_) | Job::Sweep(_) => self.queue.push_back(job),
        }
    }

    pub(super) fn set_piece_pause(&mut self, pause: Duration) {
        self.piece_pause = pause;
    }

    /// Calls that were done: while this grows, the work goes on.
    pub(super) fn n_done(&self) -> u64 {
        self.n_done
    }

    /// Why the last call was not done, if it was not.
    pub(super) fn failure(&self) -> Option<&CallError> {
        self.failure.as_ref()
    }

    /// Whether a piece is waiting or in progress.
    pub(super) fn has_piece(&self) -> bool {
        let of_queue = self.queue.iter().any(|job| matches!(job, Job::Piece(_)));
        of_queue || self.running.as_ref().is_some_and(|running| matches!(running.job, Job::Piece(_)))
    }

    /// Whether etcd is writing a piece now, as far as is known.
    pub(super) fn is_putting_piece(&self, now: Instant) -> bool {
        self.running.as_ref().is_some_and(|running| {
            matches!(running.job, Job::Piece(_))
                && running.starts <= now
                && running.slot.state.lock().outcome.is_none()
        })
    }

    /// Waits for the call in progress, at most for `patience`.
    pub(super) fn wait(&self, patience: Duration) {
        if let Some(running) = &self.running {
            running.slot.wait(patience);
        }
    }

    /// Advances the work as far as possible without waiting. `waker` is called once more is possible.
    ///
    /// # Errors
    /// Another process holds the fence, or a prerequisite of a piece is gone.
    pub(super) fn tend(
        &mut self,
        fence: &HeldFence,
        waker: &Waker,
        finished: &mut Vec<Finished>,
    ) -> Result<BesideWork, LogError> {
        loop {
            if let Some(running) = self.running.take() {
                let Some((outcome, ended)) = running.slot.take(waker) else {
                    self.running = Some(running);
                    return Ok(BesideWork::UnderWay);
                };
                let took = ended.saturating_duration_since(running.starts);
                match running.job.advance(outcome, fence, took)? {
                    Step::Done(done) => {
                        self.note_done();
                        finished.push(done);
                    }
                    Step::Next(job) => {
                        self.note_done();
                        self.start(job, fence, Duration::ZERO);
                    }
                    Step::Again(job, error) => {
                        tracing::debug!(%error, "work beside the commits is tried again");
                        self.failure = Some(error);
                        let pause = self.pause.mul_f64(rand::random_range(0.5..1.0));
                        self.pause = (2 * self.pause).min(PAUSE_MAX);
                        self.start(job, fence, pause);
                    }
                }
                continue;
            }
            let Some(at) = self.queue.iter().position(Job::can_start) else { return Ok(BesideWork::None) };
            let Some(job) = self.queue.remove(at) else { return Ok(BesideWork::None) };
            let pause = if matches!(job, Job::Piece(_)) { self.piece_pause } else { Duration::ZERO };
            self.start(job, fence, pause);
        }
    }

    fn note_done(&mut self) {
        (self.pause, self.failure) = (PAUSE_MIN, None);
        self.n_done += 1;
    }

    fn start(&mut self, job: Job, fence: &HeldFence, pause: Duration) {
        let starts = Instant::now() + pause;
        let slot = self.submit(job.request(fence), pause);
        self.running = Some(Running { job, slot, starts });
    }

    fn submit(&self, request: Request, pause: Duration) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        let filler = SlotFiller(Arc::clone(&slot));
        let answer: Answer = Box::new(move |outcome| filler.0.fill(outcome));
        self.etcd.submit(request, pause, answer);
        slot
    }
}

impl Job {
    /// Whether the job can start: a generation is not deleted while it has readers.
    fn can_start(&self) -> bool {
        match self {
            Self::Drop(generation) => Arc::strong_count(generation) == 1,
            Self::Sizes | Self::Compact(_) | Self::Piece(_) | Self::Sweep(_) => true,
        }
    }

    fn request(&self, fence: &HeldFence) -> Request {
        match self {
            Self::Sizes => Request::Sizes,
            Self::Compact(revision) => Request::Compact(*revision),
            Self::Piece(txn) => Request::Txn(txn.clone()),
            Self::Drop(generation) => {
                let (begin, dropping) = (generation.keys.begin(), generation.keys.dropping());
                Request::Txn(TxnRequest {
                    compares: vec![fence.compare(), Compare::Present(begin.clone())],
                    ops: vec![Op::Delete(begin), Op::Put(dropping, DROPPING)],
                    reads: vec![fence.key.clone()],
                })
            }
            Self::Sweep(sweep) => match &sweep.step {
                SweepStep::List => {
                    let KeyRange { from, to } = sweep.range.clone();
                    Request::Range(RangeRequest { from, to, limit: N_DELETED_MAX, keys_only: true })
                }
                SweepStep::Delete(batch) => Request::Txn(batch.deletion(fence)),
                SweepStep::Forget(marker) => Request::Txn(TxnRequest {
                    compares: vec![fence.compare()],
                    ops: vec![Op::Delete(marker.clone())],
                    reads: vec![fence.key.clone()],
                }),
            },
        }
    }

    /// Decides what follows the outcome of a call.
    fn advance(
        self,
        outcome: Result<Reply, CallError>,
        fence: &HeldFence,
        took: Duration,
    ) -> Result<Step, LogError> {
        let reply = match (outcome, &self) {
            (Ok(reply), _) => reply,
            (Err(error), Self::Sizes) => {
                tracing::debug!(%error, "etcd does not return its sizes");
                return Ok(Step::Done(Finished::Sizes(None)));
            }
            (Err(error), Self::Compact(revision)) => {
                tracing::debug!(%error, revision, "etcd was not compacted");
                return Ok(Step::Done(Finished::Compacted));
            }
            (Err(error), _) => return Ok(Step::Again(self, error)),
        };
        match (self, reply) {
            (Self::Sizes, Reply::Sizes(sizes)) => Ok(Step::Done(Finished::Sizes(Some(sizes)))),
            (Self::Compact(_), _) => Ok(Step::Done(Finished::Compacted)),
            (Self::Piece(txn), Reply::Txn(reply)) => {
                judge(&txn, &reply, fence)?;
                Ok(Step::Done(Finished::Piece { took }))
            }
            (Self::Drop(generation), Reply::Txn(reply)) => {
                // If the begin is gone, the generation was marked before.
                check_fence(&reply, fence)?;
                let keys = &generation.keys;
                Ok(Step::Next(Self::Sweep(Sweep::new(keys.body(), Some(keys.dropping())))))
            }
            (Self::Sweep(sweep), reply) => sweep.advance(&reply, fence),
            (_, other) => Err(LogError::Engine(format!("etcd sent an unexpected answer: {other:?}"))),
        }
    }
}

impl Sweep {
    fn advance(self, reply: &Reply, fence: &HeldFence) -> Result<Step, LogError> {
        let Self { range, marker, step } = self;
        match reply {
            Reply::Page(page) => Ok(match (KeyBatch::of(page), marker) {
                (Some(batch), marker) => {
                    Step::Next(Job::Sweep(Self { range, marker, step: SweepStep::Delete(batch) }))
                }
                (None, Some(marker)) => {
                    Step::Next(Job::Sweep(Self { range, marker: None, step: SweepStep::Forget(marker) }))
                }
                (None, None) => Step::Done(Finished::Other),
            }),
            Reply::Txn(reply) => {
                check_fence(reply, fence)?;
                Ok(match step {
                    SweepStep::List | SweepStep::Delete(_) => {
                        Step::Next(Job::Sweep(Self { range, marker, step: SweepStep::List }))
                    }
                    SweepStep::Forget(_) => Step::Done(Finished::Other),
                })
            }
            other => Err(LogError::Engine(format!("etcd sent an unexpected answer: {other:?}"))),
        }
    }
}

/// Checks that this process held the fence when a transaction was made, whose first read is the fence.
pub(super) fn check_fence(reply: &TxnReply, fence: &HeldFence) -> Result<(), LogError> {
    let entry = reply.reads.first().and_then(Option::as_ref);
    if !reply.succeeded && fence.is_lost(entry) { Err(fence.lost_to(entry)) } else { Ok(()) }
}

/// Judges the reply to a transaction that writes keys, and that on failure reads the fence and then those keys.
///
/// # Errors
/// Another process holds the fence, or a prerequisite of the transaction does not exist.
pub(super) fn judge(txn: &TxnRequest, reply: &TxnReply, fence: &HeldFence) -> Result<Header, LogError> {
    check_fence(reply, fence)?;
    let puts = txn.ops.iter().filter_map(|op| match op {
        Op::Put(key, value) => Some((key, value)),
        Op::Delete(_) | Op::DeleteRange(..) => None,
    });
    let mut reads = reply.reads.iter().skip(1);
    // An earlier attempt was applied, and its answer was lost.
    let is_done = reply.succeeded
        || puts.clone().all(|(_, value)| {
            reads.next().and_then(Option::as_ref).is_some_and(|entry| entry.value == *value)
        });
    if is_done {
        return Ok(reply.header);
    }
    let key = puts.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).next().unwrap_or_default();
    Err(LogError::Engine(format!(
        "etcd refuses the key {key}: its predecessor is gone, or the key already has another value; another client \
         changes keys of this store"
    )))
}
