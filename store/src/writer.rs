//! The one thread that writes: merges what waits into a group, makes it durable, shows it, answers.
//!
//! Where the log can write without this thread, the next group is validated meanwhile. It is neither written nor seen before the group that
//! is under way is durable.

mod group;
mod room;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_crash::CrashPoints;
use godel_proto::raw;
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use self::{
    group::{Group, StartedGroup},
    room::{PLENTY_BYTES, Room},
};
use crate::{
    feed::{Feed, Published},
    follower::Standing,
    history::{self, Extent, HistoryMin},
    log::{BesideWork, End, Fence, Log, LogError, Manifest, SnapshotPart, Waker},
    recovery::Recovered,
    role::Role,
    snapshot::SnapshotWriter,
    state::{RefusalReason, State, TxnOutcome, TxnRefusal, txn_bytes},
    store::{Answer, OnFatal, WallClock},
};

/// Most transactions of one group.
const GROUP_TXNS_MAX: usize = 256;
/// A group takes no more transactions once they have so many bytes.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// What reaches the writer.
pub(crate) enum Request {
    Txn {
        txn: raw::TxnRequest,
        role: Role,
        answer: Answer,
        _permit: OwnedSemaphorePermit,
    },
    /// Ends the writer behind everything that was submitted before.
    Close,
    /// Work of the log beside the commits can go on.
    Tend,
}

/// Asks the writer to end.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

impl Stop {
    /// A writer that waits for its log gives up; any other one ends as it would.
    pub(crate) fn ask(&self) {
        *self.is_asked.lock() = true;
        self.asked.notify_all();
    }

    /// Waits so long at most; whether the writer is to end.
    fn wait(&self, patience: Duration) -> bool {
        let mut is_asked = self.is_asked.lock();
        if !*is_asked {
            self.asked.wait_for(&mut is_asked, patience);
        }
        *is_asked
    }
}

/// First pause before the log is asked again, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What the writer tells everybody.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) commits: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) stale_epoch_refusals: AtomicU64,
    pub(crate) full: AtomicBool,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) snapshot_bytes: AtomicU64,
    pub(crate) history_bytes: AtomicU64,
    /// Of the oldest commit in the log; [`i64::MAX`] if there is none.
    pub(crate) first_commit_ms: AtomicI64,
    /// Why commits wait for the log, while they do.
    pub(crate) waiting_for: Mutex<Option<String>>,
}

impl Gauges {
    /// Shows the sizes of all generations, oldest first, and of the last complete snapshot.
    pub(crate) fn show_sizes(&self, generations: &[Extent], snapshot_bytes: u64) {
        let log_bytes = generations.last().map_or(0, |newest| newest.bytes);
        self.log_bytes.store(log_bytes, Ordering::Relaxed);
        self.snapshot_bytes.store(snapshot_bytes, Ordering::Relaxed);
        self.history_bytes.store(history::bytes(generations), Ordering::Relaxed);
        let first_commit_ms = history::first_commit_ms(generations).unwrap_or(i64::MAX);
        self.first_commit_ms.store(first_commit_ms, Ordering::Relaxed);
    }
}

/// What the writer shares with readers.
pub(crate) struct Shared {
    pub(crate) visible: RwLock<State>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) gauges: Gauges,
}

impl Shared {
    /// Shows durable commits to readers and watchers.
    pub(crate) fn show(&self, group: &[Arc<Published>]) {
        let Some(last) = group.last() else { return };
        let mut visible = self.visible.write();
        for published in group {
            visible.replay(published);
        }
        drop(visible);
        self.feed.publish(group);
        self.feed.wake(last.revision());
    }
}

/// What the writer is told once.
pub(crate) struct Settings {
    pub(crate) wall_clock: WallClock,
    pub(crate) crash: CrashPoints,
    pub(crate) on_fatal: OnFatal,
    /// Told that another process has taken the store over, if this process can follow it then; otherwise that is fatal.
    pub(crate) standing: Option<watch::Sender<Standing>>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) waker: Waker,
    /// A generation ends at this many log bytes, or at twice its snapshot if that is more.
    pub(crate) generation_bytes_min: u64,
    /// Writes are refused when less is free.
    pub(crate) reserve_bytes: u64,
    pub(crate) snapshot_piece_bytes: usize,
    pub(crate) history: HistoryMin,
}

pub(crate) struct Writer {
    /// With everything that was validated, durable or not.
    head: State,
    log: Box<dyn Log>,
    fence: Fence,
    /// Checksum of the last chunk that was cut.
    crc: u32,
    snapshot_bytes: u64,
    /// Of the newest generation, while it is not complete.
    snapshot: Option<SnapshotWriter>,
    /// Generations before the newest, oldest first.
    older: Vec<Extent>,
    newest: Extent,
    shared: Arc<Shared>,
    settings: Settings,
    /// What was received and is in no group yet.
    next: Option<Request>,
}

/// How the writer came to its end.
enum Ended {
    /// In order.
    Closed,
    /// Nobody was left to close it.
    Dropped,
}

/// The writer must end.
enum Fatal {
    /// Something failed that no process may survive; what.
    Failed(String),
    /// Another process has taken the store over.
    Deposed(String),
    /// It was asked to while the log did not answer. What became of the last group is not known.
    GaveUp,
}

impl From<LogError> for Fatal {
    fn from(error: LogError) -> Self {
        if matches!(error, LogError::Fenced { .. }) {
            return Self::Deposed(error.to_string());
        }
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Failed(text)
    }
}

impl Writer {
    pub(crate) fn new(
        log: Box<dyn Log>,
        recovered: Recovered,
        shared: Arc<Shared>,
        settings: Settings,
    ) -> Self {
        let Recovered { state: head, crc, generations: mut older, snapshot_bytes, incomplete, .. } =
            recovered;
        let newest = older.pop().unwrap_or_else(|| Extent::empty(head.revision()));
        let piece_bytes = settings.snapshot_piece_bytes.min(log.piece_bytes_max());
        let settings = Settings {
            reserve_bytes: log.reserve_bytes(settings.reserve_bytes),
            snapshot_piece_bytes: piece_bytes,
            ..settings
        };
        let snapshot = incomplete.map(|(base, attempt)| SnapshotWriter::new(base, attempt, piece_bytes));
        let fence = log.fence();
        let writer = Self {
            head,
            log,
            fence,
            crc,
            snapshot_bytes,
            snapshot,
            older,
            newest,
            shared,
            settings,
            next: None,
        };
        writer.show_sizes();
        writer
    }

    /// Runs until it is closed, or until a failure that no process may survive.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.serve(&mut requests)));
        self.shared.feed.close();
        requests.close();
        let fatal = match ended {
            Ok(Ok(Ended::Closed)) => self.log.close().err().map(Fatal::from),
            Ok(Ok(Ended::Dropped)) => None,
            Ok(Err(fatal)) => Some(fatal),
            Err(_) => Some(Fatal::Failed("the writer panicked".to_owned())),
        };
        let ended = match &fatal {
            Some(Fatal::Failed(text) | Fatal::Deposed(text)) => text.clone(),
            Some(Fatal::GaveUp) | None => "the store was closed".to_owned(),
        };
        match (fatal, &self.settings.standing) {
            (Some(Fatal::Failed(text)), _) | (Some(Fatal::Deposed(text)), None) => {
                (self.settings.on_fatal)(&text)
            }
            (Some(Fatal::Deposed(text)), Some(_)) => {
                tracing::warn!(why = text, "this process no longer writes the store")
            }
            (Some(Fatal::GaveUp), _) => tracing::warn!("the store closed while its log did not answer"),
            (None, _) => {}
        }
        if let Some(standing) = &self.settings.standing {
            standing.send_replace(Standing::Ended(ended));
        }
        while let Ok(request) = requests.try_recv() {
            if let Request::Txn { answer, .. } = request {
                answer(Err(TxnRefusal::closed()));
            }
        }
    }

    fn serve(&mut self, requests: &mut mpsc::Receiver<Request>) -> Result<Ended, Fatal> {
        let mut under_way: Option<StartedGroup> = None;
        loop {
            let beside = self.log.tend(&self.settings.waker)?;
            if under_way.is_none() {
                self.next = match self.next.take() {
                    Some(request) => Some(request),
                    // A snapshot goes on while nobody wants to write.
                    None if self.can_go_on_with_snapshot(beside) => requests.try_recv().ok(),
                    None => match requests.blocking_recv() {
                        Some(request) => Some(request),
                        None => return Ok(Ended::Dropped),
                    },
                };
                if self.next.is_some() {
                    let mut group = self.open_group()?;
                    self.fill(&mut group, requests);
                    under_way = Some(self.start(group)?);
                }
            }
            if let Some(started) = under_way.take() {
                let closes = started.group.closes;
                under_way = self.commit(started, requests)?;
                if closes {
                    return Ok(Ended::Closed);
                }
            }
            if under_way.is_none() && self.log.tend(&self.settings.waker)? == BesideWork::None {
                self.snapshot_step()?;
            }
            if self.snapshot.is_some() && requests.is_closed() && requests.is_empty() {
                return Ok(Ended::Dropped);
            }
        }
    }

    fn can_go_on_with_snapshot(&self, beside: BesideWork) -> bool {
        beside == BesideWork::None && self.snapshot.is_some() && self.room(0) >= Room::Snapshot
    }

    /// Makes a call of the log, again and again as long as its outcome is not known.
    fn until_known<T>(&mut self, mut call: impl FnMut(&mut Self) -> Result<T, LogError>) -> Result<T, Fatal> {
        let mut pause = PAUSE_MIN;
        loop {
            let why = match call(self) {
                Err(LogError::Unknown(why)) => why,
                known => {
                    if self.shared.gauges.waiting_for.lock().take().is_some() {
                        tracing::info!("the log of the store answers again");
                    }
                    return Ok(known?);
                }
            };
            if self.shared.gauges.waiting_for.lock().replace(why.clone()).is_none() {
                tracing::warn!(why, "commits wait for the log of the store; what is committed can be read");
            }
            if self.settings.stop.wait(pause.mul_f64(rand::random_range(0.5..1.0))) {
                return Err(Fatal::GaveUp);
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Begins a group that takes what there is room for.
    fn open_group(&mut self) -> Result<Group, Fatal> {
        let mut room = self.room(GROUP_BYTES_MAX as u64);
        if room < Room::Commits && self.drop_history(self.settings.history)? {
            room = self.room(GROUP_BYTES_MAX as u64);
        }
        let least = self.log.history_reserve_bytes();
        if least > 0 && self.free().is_some_and(|free| free < least) {
            self.drop_history(HistoryMin { bytes: 0, age: Duration::ZERO })?;
        }
        self.say_room(room);
        Ok(Group::new(room))
    }

    /// Validates what waits, until the group is full.
    fn fill(&mut self, group: &mut Group, requests: &mut mpsc::Receiver<Request>) {
        while group.n_txns < GROUP_TXNS_MAX && !group.closes {
            let Some(request) = self.next.take().or_else(|| requests.try_recv().ok()) else { return };
            match request {
                Request::Close => group.closes = true,
                Request::Tend => {}
                Request::Txn { ref txn, .. }
                    if group.n_txns > 0 && group.bytes + txn_bytes(txn) > GROUP_BYTES_MAX =>
                {
                    self.next = Some(request);
                    return;
                }
                Request::Txn { txn, role, answer, _permit } => self.take(txn, role, answer, group),
            }
        }
    }

    /// Validates one transaction and applies it to the head.
    fn take(&mut self, txn: raw::TxnRequest, role: Role, answer: Answer, group: &mut Group) {
        group.n_txns += 1;
        group.bytes += txn_bytes(&txn);
        // Leases are all that the judge of leases writes: who leads must be able to change on a full disk. Identities are small, and without them
        // state does not start, and nobody is revoked.
        let is_needed = matches!(role, Role::State | Role::Identities);
        let has_room = group.room >= if is_needed { Room::Leases } else { Room::Commits };
        let result = if has_room {
            self.head.transact(txn, role, (self.settings.wall_clock)())
        } else {
            Err(TxnRefusal::new(
                RefusalReason::StoreFull,
                0,
                "the disk is full; writes are refused until room is made",
            ))
        };
        let result = match result {
            Ok(TxnOutcome::Applied(published)) => Ok(group.push(published)),
            Ok(TxnOutcome::Repeated(committed)) => Ok(committed),
            Err(refusal) => {
                if refusal.reason == RefusalReason::StaleEpoch {
                    self.shared.gauges.stale_epoch_refusals.fetch_add(1, Ordering::Relaxed);
                }
                Err(refusal)
            }
        };
        group.answers.push((answer, result));
    }

    /// Starts to write a group, behind the groups that were written before.
    fn start(&mut self, group: Group) -> Result<StartedGroup, Fatal> {
        let mut started = StartedGroup::cut(group, self.crc);
        if let Some(piece) = &started.piece {
            self.crc = piece.crc;
            self.newest.first_commit_ms.get_or_insert(piece.first_commit_ms);
            self.newest.bytes += piece.chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
            self.settings.crash.hit("store.before-append");
            started.is_under_way = self.log.start_append(piece.first, &piece.chunks, self.fence)?;
        }
        Ok(started)
    }

    /// Makes a group durable and shows it. Returns the next one, if the log could start it meanwhile.
    fn commit(
        &mut self,
        started: StartedGroup,
        requests: &mut mpsc::Receiver<Request>,
    ) -> Result<Option<StartedGroup>, Fatal> {
        let mut next = None;
        if started.is_under_way && !started.group.closes && self.may_prepare() {
            let mut group = self.open_group()?;
            self.fill(&mut group, requests);
            next = Some(group);
        }
        if let Some(piece) = &started.piece {
            self.until_known(|writer| writer.log.append(piece.first, &piece.chunks, writer.fence))?;
            self.settings.crash.hit("store.after-sync");
            self.log.synced(piece.last, piece.crc)?;
        }
        let mut next_started = None;
        if let Some(mut group) = next {
            self.fill(&mut group, requests);
            if !group.is_empty() {
                next_started = Some(self.start(group)?);
            }
        }
        self.show(started.group);
        Ok(next_started)
    }

    /// Whether a group may be validated before the one ahead of it is durable. A snapshot and the begin of a generation have what is
    /// durable only.
    fn may_prepare(&self) -> bool {
        self.snapshot.is_none() && !self.is_full()
    }

    /// Shows a durable group to readers and watchers, then answers.
    fn show(&mut self, group: Group) {
        if !group.published.is_empty() {
            self.shared.show(&group.published);
            self.shared.gauges.commits.fetch_add(group.published.len() as u64, Ordering::Relaxed);
            self.shared.gauges.groups.fetch_add(1, Ordering::Relaxed);
            self.show_sizes();
            self.settings.crash.hit("store.before-answer");
        }
        for (answer, result) in group.answers {
            answer(result);
        }
    }

    /// Begins a generation when it is time; goes on with its snapshot.
    fn snapshot_step(&mut self) -> Result<(), Fatal> {
        // Completing a snapshot is what gives room back: it may use half of the reserve, but not what leases and the
        // copy of the next start need.
        if self.snapshot.is_none() {
            return self.begin_if_full();
        }
        if self.room(0) < Room::Snapshot {
            return Ok(());
        }
        let manifest = self.until_known(|writer| {
            let Some(snapshot) = &mut writer.snapshot else { return Ok(None) };
            snapshot.step(&writer.head, &mut *writer.log, &writer.settings.crash)
        })?;
        manifest.map_or(Ok(()), |manifest| self.complete_generation(manifest))
    }

    /// Whether it is time for another generation.
    fn is_full(&self) -> bool {
        self.newest.bytes >= self.settings.generation_bytes_min.max(2 * self.snapshot_bytes)
    }

    fn begin_if_full(&mut self) -> Result<(), Fatal> {
        if self.is_full() && self.room(0) == Room::Commits { self.begin_generation() } else { Ok(()) }
    }

    fn begin_generation(&mut self) -> Result<(), Fatal> {
        let base = self.head.revision();
        self.settings.crash.hit("store.generation-begin");
        let end = End::new(base, self.crc, self.newest);
        self.until_known(|writer| writer.log.put_snapshot(base, SnapshotPart::Begin(end)))?;
        tracing::info!(base = base.0, "store generation started");
        self.older.push(std::mem::replace(&mut self.newest, Extent::empty(base)));
        self.snapshot = Some(SnapshotWriter::new(base, base.0, self.settings.snapshot_piece_bytes));
        self.show_sizes();
        Ok(())
    }

    fn complete_generation(&mut self, manifest: Manifest) -> Result<(), Fatal> {
        self.snapshot = None;
        self.snapshot_bytes = manifest.bytes;
        tracing::info!(base = self.newest.base.0, bytes = manifest.bytes, "store generation complete");
        self.drop_history(self.settings.history)?;
        self.show_sizes();
        Ok(())
    }

    /// Drops generations that neither the state nor a watch history of `min` needs; whether there were any.
    fn drop_history(&mut self, min: HistoryMin) -> Result<bool, Fatal> {
        // The newest complete generation and the one before it always stay.
        let needed = if self.snapshot.is_some() { 3 } else { 2 };
        let now_ms = (self.settings.wall_clock)();
        let generations = self.generations();
        let kept = history::kept(&generations, needed, min, now_ms);
        let n_dropped = generations.len() - kept.len();
        let Some(base) = kept.first().map(|oldest| oldest.base).filter(|_| n_dropped > 0) else {
            return Ok(false);
        };
        self.settings.crash.hit("store.drop-generation");
        self.until_known(|writer| writer.log.drop_before(base))?;
        tracing::info!(generations = n_dropped, floor = base.0 + 1, "store history dropped");
        self.older.drain(..n_dropped);
        Ok(true)
    }

    /// Oldest first.
    fn generations(&self) -> Vec<Extent> {
        self.older.iter().chain([&self.newest]).copied().collect()
    }

    /// What there is room for, if so many bytes are to be written.
    fn room(&self, bytes: u64) -> Room {
        let Some(free) = self.free() else { return Room::Commits };
        let reserve = self.settings.reserve_bytes;
        let plenty = PLENTY_BYTES + 16 * (self.newest.bytes + self.snapshot_bytes);
        if free >= reserve.saturating_add(plenty) {
            return Room::Commits;
        }
        // Killed now, this process must find room for the copy that the next one makes.
        Room::of(free.saturating_sub(self.log.copy_bytes()), reserve, bytes)
    }

    /// Remembers and says whether commits are refused, when that changes.
    fn say_room(&self, room: Room) {
        let full = room < Room::Commits;
        if self.shared.gauges.full.swap(full, Ordering::Relaxed) == full {
            return;
        }
        if full {
            let (free, reserve) = (self.free().unwrap_or(0), self.settings.reserve_bytes);
            tracing::warn!(
                free,
                reserve,
                advice = self.log.advice(),
                "the disk of the store is full: all writes except leases are refused until room is made"
            );
        } else {
            tracing::info!("there is room on the disk of the store again: writes are accepted");
        }
    }

    fn free(&self) -> Option<u64> {
        match self.log.free_bytes() {
            Ok(free) => free,
            Err(error) => {
                tracing::warn!(%error, "free space of the store is unknown");
                None
            }
        }
    }

    fn show_sizes(&self) {
        self.shared.gauges.show_sizes(&self.generations(), self.snapshot_bytes);
    }
}
