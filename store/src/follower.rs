//! The thread that follows a log which another process writes, until this process takes the store over and it becomes the writer.
//!
//! It does with each group what the writer does with one that is durable: applies it to its own copy of the state, shows it to readers and watchers.
//! So a process that takes over has the whole state in memory, and reads only what it has not read yet. Watchers stay.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use godel_base::ids::Revision;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    chunk::Group,
    history::Extent,
    identity,
    log::{
        Log as _, LogError,
        etcd::{EtcdLog, FenceHold, FenceHolder, Tailed},
    },
    recovery::{self, Recovered},
    snapshot,
    state::State,
    writer::{Request, Settings, Shared, Writer},
};

/// How often the log is read on while nobody asks for it.
const READ_PERIOD: Duration = Duration::from_millis(30);
/// How often it is read who holds the store.
const HOLDER_PERIOD: Duration = Duration::from_millis(100);
/// How often it is read which generations there are.
const REFRESH_PERIOD: Duration = Duration::from_secs(10);
/// First pause after etcd has not answered, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a store is to this process.
#[derive(Clone, Debug)]
pub enum Standing {
    /// This process writes it. The hold says for how long it may answer as the one that does; `None` where no other process is to write.
    Leads(Option<Arc<FenceHold>>),
    /// Another process writes it, or none does, and this one follows. `None`: nobody has ever written it.
    Follows(Option<FenceHolder>),
    /// This process neither writes it nor follows it any more, for this reason. What it shows stays as it is.
    Ended(String),
}

/// Why a store was not taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTakenOver {
    /// Another process was quicker.
    #[error("another process has taken the store over")]
    Late,
    /// The log lacks what another process has read.
    #[error("the log in etcd ends at revision {last}, although another state has read up to revision {seen}")]
    Behind {
        /// Last revision of the log.
        last: Revision,
        /// Revision that another process has.
        seen: Revision,
    },
    /// etcd does not answer.
    #[error("{0}")]
    NoAnswer(String),
    /// This process does not follow the store.
    #[error("this process does not follow the store")]
    DoesNotFollow,
}

/// Takes the store over from the process with a number.
pub(crate) struct TakeOver {
    /// Number of the fence of the process that held the store.
    pub(crate) from: u64,
    /// The log must have this revision.
    pub(crate) at_least: Revision,
    pub(crate) reply: oneshot::Sender<Result<(), NotTakenOver>>,
}

/// Wakes the follower before its time.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    is_rung: Mutex<bool>,
    rung: Condvar,
    /// The process ends: nothing is waited for any more.
    ends: AtomicBool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.is_rung.lock() = true;
        self.rung.notify_all();
    }

    /// Has the follower end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Waits until it is rung, at most so long.
    fn wait(&self, patience: Duration) {
        let mut is_rung = self.is_rung.lock();
        if !*is_rung {
            self.rung.wait_for(&mut is_rung, patience);
        }
        *is_rung = false;
    }
}

/// When the end of the log was read last, for those who read what is here.
#[derive(Debug)]
pub(crate) struct ReadTimes {
    start: Instant,
    /// Nanoseconds after `start`; of the moment before it was read.
    end_read_ns: AtomicU64,
    /// The same of the last answer of etcd.
    heard_ns: AtomicU64,
}

impl ReadTimes {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), end_read_ns: AtomicU64::new(0), heard_ns: AtomicU64::new(0) }
    }

    fn note(&self, at: &AtomicU64, when: Instant) {
        let nanos = when.saturating_duration_since(self.start).as_nanos();
        at.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn since(&self, at: &AtomicU64) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_nanos(at.load(Ordering::Acquire)))
    }

    /// How old what is shown may be.
    pub(crate) fn age(&self) -> Duration {
        self.since(&self.end_read_ns)
    }

    /// How long ago etcd answered last.
    pub(crate) fn silence(&self) -> Duration {
        self.since(&self.heard_ns)
    }
}

/// What a follower is made of.
pub(crate) struct Follower {
    pub(crate) log: Box<EtcdLog>,
    pub(crate) recovered: Recovered,
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: Settings,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) times: Arc<ReadTimes>,
    pub(crate) take_overs: mpsc::Receiver<TakeOver>,
}

/// Why the follower ends.
enum End {
    /// It was asked to.
    Closed,
    /// It cannot follow any more.
    Failed(LogError),
    /// It has become the writer.
    Leads,
}

impl From<LogError> for End {
    fn from(error: LogError) -> Self {
        Self::Failed(error)
    }
}

impl Follower {
    /// Follows until the store is closed, or taken over; then writes.
    pub(crate) fn run(mut self, requests: mpsc::Receiver<Request>) {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.follow()));
        let why = match ended {
            Ok(End::Leads) => return self.lead(requests),
            Ok(End::Closed) => "the store was closed".to_owned(),
            Ok(End::Failed(error)) => {
                tracing::error!(error = error.to_string(), "the log in etcd cannot be followed any more");
                error.to_string()
            }
            Err(_) => "the follower panicked".to_owned(),
        };
        self.standing.send_replace(Standing::Ended(why));
        self.shared.feed.close();
        if let Err(error) = self.log.close() {
            tracing::warn!(%error, "the watermark of the store was not written");
        }
    }

    fn follow(&mut self) -> End {
        let (mut holder_due, mut refresh_due) = (Instant::now(), Instant::now() + REFRESH_PERIOD);
        let mut pause = PAUSE_MIN;
        loop {
            if self.bell.is_ending() {
                return End::Closed;
            }
            if let Ok(order) = self.take_overs.try_recv() {
                let taken = self.take_over(order.from, order.at_least);
                let leads = matches!(taken, Ok(Ok(())));
                let failed = match taken {
                    Ok(taken) => {
                        // Who asked may have left.
                        drop(order.reply.send(taken));
                        None
                    }
                    Err(error) => {
                        drop(order.reply.send(Err(NotTakenOver::NoAnswer(error.to_string()))));
                        Some(error)
                    }
                };
                match failed {
                    None if leads => return End::Leads,
                    None | Some(LogError::Unknown(_)) => {}
                    Some(error) => return End::Failed(error),
                }
            }
            let now = Instant::now();
            let step = self.step(now >= holder_due, now >= refresh_due);
            match step {
                Ok(has_more) => {
                    pause = PAUSE_MIN;
                    if now >= holder_due {
                        holder_due = now + HOLDER_PERIOD;
                    }
                    if now >= refresh_due {
                        refresh_due = now + REFRESH_PERIOD;
                    }
                    if !has_more {
                        self.bell.wait(READ_PERIOD);
                    }
                }
                Err(LogError::Unknown(why)) => {
                    tracing::debug!(why, "etcd does not answer; the log is read on later");
                    self.bell.wait(pause.mul_f64(rand::random_range(0.5..1.0)));
                    pause = (2 * pause).min(PAUSE_MAX);
                }
                Err(error) => return End::Failed(error),
            }
        }
    }

    /// Reads on. Returns whether something was read, so that more may follow.
    fn step(&mut self, asks_holder: bool, refreshes: bool) -> Result<bool, LogError> {
        let began = Instant::now();
        if asks_holder {
            let holder = self.log.holder()?;
            self.times.note(&self.times.heard_ns, began);
            self.standing.send_if_modified(|standing| {
                let is_other = !matches!(standing, Standing::Follows(known) if *known == holder);
                if is_other {
                    *standing = Standing::Follows(holder.clone());
                }
                is_other
            });
        }
        if refreshes {
            self.log.refresh()?;
        }
        let has_more = self.read_on()?;
        self.times.note(&self.times.heard_ns, began);
        if !has_more {
            self.times.note(&self.times.end_read_ns, began);
        }
        Ok(has_more)
    }

    /// Reads what follows, and shows it. Returns whether there was anything.
    fn read_on(&mut self) -> Result<bool, LogError> {
        let last = self.recovered.state.revision();
        let tailed = self.log.read_on(last, self.recovered.crc)?;
        let has_any = !tailed.is_empty();
        for tailed in tailed {
            match tailed {
                Tailed::Group(group) => self.show(&group)?,
                Tailed::Generation(base) => self.recovered.generations.push(Extent::empty(base)),
            }
        }
        if has_any {
            self.log.note_read(self.recovered.state.revision(), self.recovered.crc)?;
            self.show_sizes();
        }
        Ok(has_any)
    }

    /// Applies a group, and shows it to readers and watchers.
    fn show(&mut self, group: &Group) -> Result<(), LogError> {
        let commits = recovery::commits(group).map_err(|what| {
            LogError::Corrupt(format!("this version cannot read what another state has written: {what}"))
        })?;
        let published: Vec<_> = commits.into_iter().map(Arc::new).collect();
        for commit in &published {
            self.recovered.state.replay(commit);
        }
        self.recovered.crc = group.crc;
        if let Some(newest) = self.recovered.generations.last_mut() {
            newest.bytes += group.bytes;
            newest.first_commit_ms =
                newest.first_commit_ms.or_else(|| Some(published.first()?.commit.commit_time_ms));
        }
        self.shared.show(&published);
        Ok(())
    }

    fn show_sizes(&self) {
        let Recovered { generations, snapshot_bytes, .. } = &self.recovered;
        self.shared.gauges.show_sizes(generations, *snapshot_bytes);
    }

    /// Takes the store over from the process with the number `from`, if the log has what others have read.
    fn take_over(&mut self, from: u64, at_least: Revision) -> Result<Result<(), NotTakenOver>, LogError> {
        while self.read_on()? {}
        let last = self.recovered.state.revision();
        if last < at_least {
            return Ok(Err(NotTakenOver::Behind { last, seen: at_least }));
        }
        if !self.log.take_fence_from(from)? {
            return Ok(Err(NotTakenOver::Late));
        }
        // From here on nobody else writes, and this process goes on until it does.
        self.until_known(|follower| {
            while follower.read_on()? {}
            follower.log.begin_to_write(follower.recovered.state.revision())
        })?;
        self.until_known(Self::begin_to_write)?;
        Ok(Ok(()))
    }

    fn begin_to_write(&mut self) -> Result<(), LogError> {
        let reader = self.log.reader();
        let generations = reader.generations();
        let at = self.recovered.state.revision();
        if self.recovered.generations.is_empty() {
            self.recovered.generations.push(Extent::empty(at));
        }
        // The log before the oldest generation that is left is gone.
        let oldest = generations.first().map_or(at, |oldest| oldest.base);
        self.recovered.generations.retain(|extent| extent.base >= oldest);
        let complete = generations.iter().rev().find_map(|generation| generation.manifest);
        self.recovered.snapshot_bytes = complete.map_or(0, |manifest| manifest.bytes);
        let newest = generations.last().filter(|newest| newest.manifest.is_none());
        self.recovered.incomplete = match newest {
            Some(newest) => Some((newest.base, snapshot::unused_attempt(&*reader, newest.base, at)?)),
            None => None,
        };
        self.log.opened(&self.recovered.generations, at, self.recovered.crc)?;
        if self.recovered.state.store_id().0 == 0 {
            let id = identity::new_id();
            self.recovered.state.give_id(id);
            self.shared.visible.write().give_id(id);
        }
        Ok(())
    }

    /// Does something that etcd may leave open, until it is done.
    fn until_known(
        &mut self,
        mut act: impl FnMut(&mut Self) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let mut pause = PAUSE_MIN;
        loop {
            match act(self) {
                Err(LogError::Unknown(why)) if !self.bell.is_ending() => {
                    tracing::debug!(why, "etcd does not answer while the store is taken over");
                    self.bell.wait(pause.mul_f64(rand::random_range(0.5..1.0)));
                    pause = (2 * pause).min(PAUSE_MAX);
                }
                done => return done,
            }
        }
    }

    /// Writes from now on.
    fn lead(self, requests: mpsc::Receiver<Request>) {
        let Self { log, recovered, shared, settings, standing, .. } = self;
        let hold = log.hold();
        let (number, revision) = (log.fence().0, recovered.state.revision().0);
        let settings = Settings { standing: Some(standing.clone()), ..settings };
        let writer = Writer::new(log, recovered, shared, settings);
        tracing::info!(number, revision, "this process writes the store from now on");
        standing.send_replace(Standing::Leads(hold));
        writer.run(requests);
    }
}

/// What a follower begins with: the state as the log has it now, which another process may go on writing.
pub(crate) fn begin(log: &mut EtcdLog) -> Result<Recovered, LogError> {
    let (reader, claimed) = (log.reader(), log.claimed());
    if reader.generations().is_empty() {
        return Ok(Recovered {
            state: State::default(),
            crc: 0,
            generations: Vec::new(),
            snapshot_bytes: 0,
            incomplete: None,
            torn: None,
        });
    }
    let recovered = recovery::recover(&*reader, &claimed)?;
    log.begin_following(recovered.state.revision())?;
    log.note_read(recovered.state.revision(), recovered.crc)?;
    Ok(recovered)
}
