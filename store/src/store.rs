//! The store as services use it.

mod errors;
mod following;

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc, task, time::Duration};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_proto::{raw, v1};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::{
    feed::{Feed, Limits, WatchRefused, Watcher},
    floor::FloorReader,
    follower::Standing,
    history::HistoryMin,
    identity,
    log::{Claimed, Log, LogError, LogReader, Waker, etcd::EtcdConfig, memory::MemoryDisk},
    loss::Loss,
    migration, nearby,
    recovery::{self, Recovered},
    role::Role,
    snapshot::PIECE_BYTES,
    state::{Committed, State, TxnRefusal, txn_bytes},
    store_reader::{StoreReadError, StoreReader},
    writer::{Gauges, Request, Settings, Shared, Stop, Writer},
};

use self::following::Follows;

pub use self::errors::OpenError;

/// Wall clock in Unix milliseconds.
pub type WallClock = Arc<dyn Fn() -> i64 + Send + Sync>;
/// Gets the answer to a transaction, on the writer's thread.
pub type Answer = Box<dyn FnOnce(Result<Committed, TxnRefusal>) + Send>;
/// Told why the store cannot go on; must end the process.
pub type OnFatal = Arc<dyn Fn(&str) + Send + Sync>;

/// Transactions that may wait.
const QUEUE_LEN: usize = 4096;
/// Bytes of waiting transactions, in permits of [`PERMIT_BYTES`].
const QUEUE_BYTES: usize = 64 << 20;
/// 1 KiB: fine enough for small transactions, and `QUEUE_BYTES` of them fit a semaphore.
const PERMIT_BYTES: usize = 1 << 10;

/// Where the log is kept.
#[derive(Clone, Debug)]
pub enum Engine {
    /// In files.
    Sled(SledConfig),
    /// In memory, as long as the disk is.
    Memory(MemoryDisk),
    /// In an etcd.
    Etcd(EtcdConfig),
}

/// The embedded engine.
#[derive(Clone, Debug)]
pub struct SledConfig {
    /// Directory of the store; created if absent.
    pub dir: PathBuf,
    /// Leave it as it is.
    #[doc(hidden)]
    pub sync: SyncMode,
}

impl SledConfig {
    /// A store in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), sync: SyncMode::Full }
    }
}

/// Whether a commit reaches the disk before it is answered.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Yes.
    #[default]
    Full,
    /// No: for the test that proves that the power-loss test can fail.
    Unsafe,
}

/// Settings of a store.
#[derive(Clone)]
pub struct StoreConfig {
    /// Where the log is kept.
    pub engine: Engine,
    /// A generation ends at this many log bytes, or at twice its snapshot if that is more.
    pub generation_bytes_min: u64,
    /// Writes are refused while less than this is free on the disk.
    pub reserve_bytes: u64,
    /// A snapshot is written in pieces of this size, one between two groups of commits.
    pub snapshot_piece_bytes: usize,
    /// Watch history that stays: this many bytes of log, or as much as reaches back `history_age_min` if that is
    /// less; never less than the log since the generation before the last began.
    pub history_bytes_min: u64,
    /// See `history_bytes_min`.
    pub history_age_min: Duration,
    /// Memory for the newest watch history.
    pub ring_bytes: u64,
    /// A watcher that is further behind than this is cut off.
    pub backlog_bytes: u64,
    /// A watcher that is more transactions behind than this is cut off.
    pub backlog_items: u64,
    /// What to do when a write or a sync failed; by default the process aborts.
    pub on_fatal: OnFatal,
}

impl StoreConfig {
    /// The default settings: generations of 32 MiB, a reserve of 64 MiB, history of 256 MiB or 10 minutes, 64 MiB
    /// of it in memory.
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            generation_bytes_min: 32 << 20,
            reserve_bytes: 64 << 20,
            snapshot_piece_bytes: PIECE_BYTES,
            history_bytes_min: 256 << 20,
            history_age_min: Duration::from_mins(10),
            ring_bytes: 64 << 20,
            backlog_bytes: 48 << 20,
            backlog_items: 65_536,
            on_fatal: Arc::new(|reason| {
                tracing::error!(reason, "the store cannot continue");
                std::process::abort();
            }),
        }
    }
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// An unfinished group at the end was dropped; nothing of it was ever acknowledged.
    pub torn: Option<String>,
    /// There was no watermark that could be read: nothing proves that the log did not go further.
    pub unproven: Option<String>,
}

/// Sizes and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Which store it is.
    pub store_id: u64,
    /// Last visible revision.
    pub revision: Revision,
    /// First revision that can be watched.
    pub floor: Revision,
    /// `sled`, `etcd` or `memory`.
    pub engine: &'static str,
    /// In storage.
    pub disk_bytes: u64,
    /// Of the log since the last generation began.
    pub log_bytes: u64,
    /// Of the last complete snapshot.
    pub snapshot_bytes: u64,
    /// Of the log of all generations: the watch history.
    pub history_bytes: u64,
    /// Since the oldest commit in that log.
    pub history_age_ms: u64,
    /// Of records and rows in memory.
    pub live_bytes: u64,
    /// UnitSpecs.
    pub units: u64,
    /// NodeSpecs.
    pub nodes: u64,
    /// Rows of all units.
    pub rows: u64,
    /// Transactions committed since the start.
    pub commits: u64,
    /// Groups committed since the start: each took one sync.
    pub groups: u64,
    /// Transactions refused for a stale epoch since the start.
    pub stale_epoch_refusals: u64,
    /// Writes are refused until room is made.
    pub full: bool,
    /// Why commits wait, while what keeps the log does not answer: they go on once it does.
    pub waiting_for: Option<String>,
    /// Watchers now.
    pub watchers: u64,
    /// Highest unit id ever used.
    pub last_unit_id: u64,
    /// Transactions that wait to be written.
    pub queued: u64,
}

/// The store. Clones share it; it stops with the last one, in order with [`Store::close`].
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    requests: Mutex<Option<mpsc::Sender<Request>>>,
    /// What the store is to this process.
    standing: watch::Receiver<Standing>,
    /// Of a store that is followed, or was.
    follows: Option<Follows>,
    bytes: Arc<Semaphore>,
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    stop: Arc<Stop>,
    wall_clock: WallClock,
    engine: &'static str,
    opened: Opened,
}

/// A submitted transaction; resolves once it is durable or refused.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<Committed, TxnRefusal>>);

impl Future for Pending {
    type Output = Result<Committed, TxnRefusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        let answer = Pin::new(&mut self.get_mut().0).poll(cx);
        answer.map(|answer| answer.unwrap_or_else(|_| Err(TxnRefusal::closed())))
    }
}

impl Store {
    /// Opens a store, or makes a new one; reads everything before it returns.
    ///
    /// # Errors
    /// See [`OpenError`]. A damaged store is left as it is.
    pub fn open(config: StoreConfig, wall_clock: WallClock, crash: CrashPoints) -> Result<Self, OpenError> {
        nearby::refuse(&config.engine)?;
        let log = migration::open_unmarked(&config.engine, crash.clone())?;
        let (log, mut recovered, opened) = recover(log)?;
        if recovered.state.store_id().0 == 0 {
            recovered.state.give_id(identity::new_id());
        }
        let parts = StoreParts::new(config, &recovered, log.reader(), wall_clock, crash);
        let standing = watch::Sender::new(Standing::Leads(None)).subscribe();
        let (shared, settings) = (Arc::clone(&parts.shared), parts.settings);
        let writer = Writer::new(log, recovered, shared, settings);
        let (requests, receiver) = (parts.requests, parts.receiver);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(receiver))
            .map_err(LogError::io("starting the writer thread"))?;
        Ok(Self(Arc::new(Inner {
            requests: Mutex::new(Some(requests)),
            standing,
            follows: None,
            bytes: Arc::new(Semaphore::new(QUEUE_BYTES / PERMIT_BYTES)),
            shared: parts.shared,
            thread: Mutex::new(Some(thread)),
            stop: parts.stop,
            wall_clock: parts.wall_clock,
            engine: parts.engine,
            opened,
        })))
    }

    /// Submits a transaction and waits until it is durable. Once it waits in the queue, dropping the future
    /// does not take it back.
    ///
    /// # Errors
    /// Why it was refused; nothing of it was done then, except after [`crate::RefusalReason::Closed`].
    pub async fn submit(&self, txn: raw::TxnRequest, role: Role) -> Result<Committed, TxnRefusal> {
        self.enqueue(txn, role).await?.await
    }

    /// Puts a transaction into the queue, waiting for room in it; transactions are committed in the order in
    /// which this returned. For pipelines.
    ///
    /// # Errors
    /// The store is closing.
    pub async fn enqueue(&self, txn: raw::TxnRequest, role: Role) -> Result<Pending, TxnRefusal> {
        let (sender, receiver) = oneshot::channel();
        let answer: Answer = Box::new(move |result| {
            // Nobody may be waiting any more.
            let _ = sender.send(result);
        });
        self.enqueue_with(txn, role, answer).await?;
        Ok(Pending(receiver))
    }

    /// As [`Store::enqueue`]; `answer` is called on the writer's thread and must be quick.
    ///
    /// # Errors
    /// The store is closing; `answer` is not called then.
    pub async fn enqueue_with(
        &self,
        txn: raw::TxnRequest,
        role: Role,
        answer: Answer,
    ) -> Result<(), TxnRefusal> {
        let requests = self.requests()?;
        let permits = Arc::clone(&self.0.bytes);
        let permit = permits.acquire_many_owned(permits_for(&txn)).await.map_err(|_| TxnRefusal::closed())?;
        let request = Request::Txn { txn, role, answer, _permit: permit };
        requests.send(request).await.map_err(|_| TxnRefusal::closed())
    }

    /// Reads the visible state. Everything in it is durable. Keep `read` short: the writer waits for it.
    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.0.shared.visible.read())
    }

    /// Every transaction from revision `from` on; from the floor of the history if `from` is 0.
    ///
    /// # Errors
    /// History does not go back so far, or `from` is beyond the next revision.
    pub fn watch(&self, from: Revision) -> Result<Watcher, WatchRefused> {
        // Lists show what is visible, a moment before watchers hear of it.
        let last = self.read(State::revision);
        if from.0 > last.0 + 1 {
            return Err(WatchRefused::Future { last });
        }
        Ok(self.0.shared.feed.watch(from)?)
    }

    /// The records on which the kept history rests. Reads from disk.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn floor(&self) -> Result<FloorReader, LogError> {
        self.0.shared.feed.rests_on()
    }

    /// What the engine keeps up to the last visible revision: the log from revision `from` on, or the newest snapshot and
    /// the log behind it if `from` is 0. Reads from disk.
    ///
    /// # Errors
    /// See [`StoreReadError`].
    pub fn read_kept(&self, from: Revision) -> Result<StoreReader, StoreReadError> {
        let feed = &self.0.shared.feed;
        StoreReader::open(feed.log_reader(), from, self.read(State::revision), feed.floor())
    }

    /// Sizes and counters now.
    pub fn status(&self) -> Status {
        use std::sync::atomic::Ordering::Relaxed;
        let shared = &*self.0.shared;
        let gauges = &shared.gauges;
        let queued =
            self.0.requests.lock().as_ref().map_or(0, |queue| queue.max_capacity() - queue.capacity());
        let first_commit_ms = gauges.first_commit_ms.load(Relaxed);
        let history_age_ms = (self.0.wall_clock)().saturating_sub(first_commit_ms);
        let status = Status {
            floor: shared.feed.floor(),
            engine: self.0.engine,
            disk_bytes: shared.feed.disk_bytes(),
            log_bytes: gauges.log_bytes.load(Relaxed),
            snapshot_bytes: gauges.snapshot_bytes.load(Relaxed),
            history_bytes: gauges.history_bytes.load(Relaxed),
            history_age_ms: u64::try_from(history_age_ms).unwrap_or(0),
            commits: gauges.commits.load(Relaxed),
            groups: gauges.groups.load(Relaxed),
            stale_epoch_refusals: gauges.stale_epoch_refusals.load(Relaxed),
            full: gauges.full.load(Relaxed),
            waiting_for: gauges.waiting_for.lock().clone(),
            watchers: shared.feed.n_watchers(),
            queued: queued as u64,
            ..Status::default()
        };
        self.read(|state| Status {
            store_id: state.store_id().0,
            revision: state.revision(),
            live_bytes: state.live_bytes(),
            units: state.count(v1::Kind::Unit) as u64,
            nodes: state.count(v1::Kind::NodeSpec) as u64,
            rows: state.rows().n_rows(),
            last_unit_id: state.last_unit_id().0,
            ..status
        })
    }

    /// `sled` or `memory`.
    pub fn engine(&self) -> &'static str {
        self.0.engine
    }

    /// What opening found.
    pub fn opened(&self) -> &Opened {
        &self.0.opened
    }

    /// From now on nothing waits for what keeps the log: if that does not answer, the store closes, and what became of the last
    /// transactions is not known. While it answers, this changes nothing. For whatever must end before [`Store::close`].
    pub fn give_up_waiting(&self) {
        self.0.stop.ask();
    }

    /// Commits what was submitted before, then ends in order. Watchers end with `Closed`. If what keeps the log does not
    /// answer, what became of the last transactions is not known, and the next start takes the stop for unclean.
    pub async fn close(self) {
        self.give_up_waiting();
        if let Some(follows) = &self.0.follows {
            follows.end();
        }
        let requests = self.0.requests.lock().take();
        if let Some(requests) = requests {
            // The writer may have ended already.
            let _ = requests.send(Request::Close).await;
        }
        let thread = self.0.thread.lock().take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the store's writer did not stop cleanly");
            }
        }
    }

    fn requests(&self) -> Result<mpsc::Sender<Request>, TxnRefusal> {
        if !matches!(*self.0.standing.borrow(), Standing::Leads(_)) {
            return Err(TxnRefusal::closed());
        }
        self.0.requests.lock().clone().ok_or_else(TxnRefusal::closed)
    }
}

impl Drop for Inner {
    /// What was submitted before is committed, but the next start takes the stop for unclean.
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(follows) = &self.follows {
            follows.end();
        }
        self.requests.get_mut().take();
        if let Some(thread) = self.thread.get_mut().take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

/// What every store has, whoever writes it.
struct StoreParts {
    requests: mpsc::Sender<Request>,
    receiver: mpsc::Receiver<Request>,
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    settings: Settings,
    wall_clock: WallClock,
    engine: &'static str,
}

impl StoreParts {
    fn new(
        config: StoreConfig,
        recovered: &Recovered,
        reader: Arc<dyn LogReader>,
        wall_clock: WallClock,
        crash: CrashPoints,
    ) -> Self {
        let StoreConfig {
            engine,
            generation_bytes_min,
            reserve_bytes,
            snapshot_piece_bytes,
            history_bytes_min,
            history_age_min,
            ring_bytes,
            backlog_bytes,
            backlog_items,
            on_fatal,
        } = config;
        let limits = Limits { ring_bytes, backlog_items, backlog_bytes };
        let feed = Arc::new(Feed::new(recovered.state.revision(), limits, reader));
        let visible = RwLock::new(recovered.state.clone());
        let shared = Arc::new(Shared { visible, feed, gauges: Gauges::default() });
        let (requests, receiver) = mpsc::channel(QUEUE_LEN);
        let stop = Arc::new(Stop::default());
        let settings = Settings {
            wall_clock: Arc::clone(&wall_clock),
            crash,
            on_fatal,
            standing: None,
            stop: Arc::clone(&stop),
            waker: waker(&requests),
            generation_bytes_min,
            reserve_bytes,
            snapshot_piece_bytes: snapshot_piece_bytes.max(1),
            history: HistoryMin { bytes: history_bytes_min, age: history_age_min },
        };
        Self { requests, receiver, shared, stop, settings, wall_clock, engine: engine.name() }
    }
}

/// The state of an opened log. A log that is damaged is put back as it was.
pub(crate) fn recover(mut log: Box<dyn Log>) -> Result<(Box<dyn Log>, Recovered, Opened), OpenError> {
    let (reader, claimed) = (log.reader(), log.claimed());
    let unopened = log.unopened();
    let recovered = if unopened.is_empty() {
        recovery::recover(&*reader, &claimed)
    } else {
        Err(LogError::Corrupt(unopened.join("; ")))
    };
    let recovered = match recovered {
        Ok(recovered) => recovered,
        Err(error) => {
            let error = match (error, recovery::salvage(&*reader)) {
                (LogError::Corrupt(what), Ok(state)) => {
                    OpenError::Damaged { what, loss: Loss::after(state.revision(), &claimed) }
                }
                (LogError::Corrupt(_), Err(error)) | (error, _) => OpenError::Log(error),
            };
            drop(reader);
            if let Err(error) = log.abandon() {
                tracing::error!(%error, "the store could not be restored to its previous state; the next start retries");
            }
            return Err(error);
        }
    };
    let unproven = match claimed {
        Claimed::Never if recovered.state.revision().0 > 0 => Some(
            "there is no watermark of this store here: an older version wrote it, or another machine"
                .to_owned(),
        ),
        Claimed::AtLeast(_) | Claimed::Never => None,
        Claimed::Lost(why) => Some(why),
    };
    if let Some(problem) = &unproven {
        tracing::warn!(
            problem,
            revision = recovered.state.revision().0,
            "it is not known whether the log went further than this revision; a new watermark is written"
        );
    }
    if let Some(torn) = &recovered.torn {
        tracing::warn!(
            torn,
            "an unfinished group at the end of the log was dropped; it was never acknowledged"
        );
        log.drop_after(recovered.state.revision())?;
    }
    log.opened(&recovered.generations, recovered.state.revision(), recovered.crc)?;
    if let Some(oldest) = recovered.generations.first() {
        let floor = reader.floor();
        if floor.0 <= oldest.base.0 {
            tracing::warn!(
                from = floor.0,
                to = oldest.base.0,
                "history before a gap cannot be watched and is dropped"
            );
        }
        log.drop_before(oldest.base)?;
    }
    let opened = Opened { torn: recovered.torn.clone(), unproven };
    Ok((log, recovered, opened))
}

/// Has the writer tend the log, unless it has enough to do or has ended.
fn waker(requests: &mpsc::Sender<Request>) -> Waker {
    let requests = requests.downgrade();
    Arc::new(move || {
        if let Some(requests) = requests.upgrade() {
            // A full queue wakes it as well.
            let _ = requests.try_send(Request::Tend);
        }
    })
}

fn permits_for(txn: &raw::TxnRequest) -> u32 {
    let permits = (txn_bytes(txn) / PERMIT_BYTES + 1).min(QUEUE_BYTES / PERMIT_BYTES);
    u32::try_from(permits).unwrap_or(u32::MAX)
}
