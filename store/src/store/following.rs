//! The store of a process that follows it: another process writes it, until this one takes it over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{
    Engine, Inner, OpenError, Opened, PERMIT_BYTES, QUEUE_BYTES, Store, StoreConfig, StoreParts, WallClock,
};
use crate::{
    follower::{self, Bell, Follower, NotTakenOver, ReadTimes, Standing, TakeOver},
    log::{
        Log as _, LogError,
        etcd::{EtcdLog, Unconfirmed},
    },
    migration, nearby,
    writer::Request,
};

/// The way to the thread that follows.
pub(super) struct Follows {
    bell: Arc<Bell>,
    times: Arc<ReadTimes>,
    take_overs: mpsc::Sender<TakeOver>,
}

impl Follows {
    /// Has the thread end, unless it has become the writer.
    pub(super) fn end(&self) {
        self.bell.end();
    }
}

impl Store {
    /// Opens a store that other processes may write, to follow it: [`Store::standing`] says who does. It takes no transactions
    /// before [`Store::take_over`]. There may be no store yet; whoever takes over first makes it. Reads everything before it returns.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn follow(config: StoreConfig, wall_clock: WallClock, crash: CrashPoints) -> Result<Self, OpenError> {
        nearby::refuse(&config.engine)?;
        let Engine::Etcd(etcd) = &config.engine else { return Self::open(config, wall_clock, crash) };
        migration::judge_serving(&config.engine)?;
        let mut log = Box::new(EtcdLog::open_to_follow(etcd, crash.clone())?);
        migration::judge_serving(&config.engine)?;
        let unopened = log.unopened();
        if !unopened.is_empty() {
            return Err(LogError::Corrupt(unopened.join("; ")).into());
        }
        let recovered = follower::begin(&mut log)?;
        let holder = log.holder()?;
        let parts = StoreParts::new(config, &recovered, log.reader(), wall_clock, crash);
        let (standing, follows_as) = watch::channel(Standing::Follows(holder));
        let (take_overs, orders) = mpsc::channel(1);
        let (bell, times) = (Arc::new(Bell::default()), Arc::new(ReadTimes::new()));
        let follower = Follower {
            log,
            recovered,
            shared: Arc::clone(&parts.shared),
            settings: parts.settings,
            standing,
            bell: Arc::clone(&bell),
            times: Arc::clone(&times),
            take_overs: orders,
        };
        let (requests, receiver) = (parts.requests, parts.receiver);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || follower.run(receiver))
            .map_err(LogError::io("starting the thread that follows the store"))?;
        Ok(Self(Arc::new(Inner {
            requests: Mutex::new(Some(requests)),
            standing: follows_as,
            follows: Some(Follows { bell, times, take_overs }),
            bytes: Arc::new(Semaphore::new(QUEUE_BYTES / PERMIT_BYTES)),
            shared: parts.shared,
            thread: Mutex::new(Some(thread)),
            stop: parts.stop,
            wall_clock: parts.wall_clock,
            engine: parts.engine,
            opened: Opened::default(),
        })))
    }

    /// What the store is to this process, as that changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.0.standing.clone()
    }

    /// Waits until this process neither writes the store nor follows it any more. Returns why.
    pub async fn ended(&self) -> String {
        let mut standing = self.standing();
        let ended = standing.wait_for(|standing| matches!(standing, Standing::Ended(_))).await;
        match ended.as_deref() {
            Ok(Standing::Ended(why)) => why.clone(),
            // The thread has ended without a word.
            Ok(Standing::Leads(_) | Standing::Follows(_)) | Err(_) => "the store was closed".to_owned(),
        }
    }

    /// Makes this process, which follows the store, the one that writes it, in place of the one whose fence has the number `from` (0: nobody
    /// ever wrote it). The log must have revision `at_least`, which another process has read. Returns once the store takes transactions.
    ///
    /// # Errors
    /// See [`NotTakenOver`]. The process follows on.
    pub async fn take_over(&self, from: u64, at_least: Revision) -> Result<(), NotTakenOver> {
        let follows = self.0.follows.as_ref().ok_or(NotTakenOver::DoesNotFollow)?;
        let (reply, taken) = oneshot::channel();
        let order = TakeOver { from, at_least, reply };
        follows.take_overs.send(order).await.map_err(|_| NotTakenOver::DoesNotFollow)?;
        follows.bell.ring();
        taken.await.map_err(|_| NotTakenOver::DoesNotFollow)??;
        // The thread says so right after its answer.
        let mut standing = self.standing();
        let leads = standing.wait_for(|standing| !matches!(standing, Standing::Follows(_))).await;
        match leads.as_deref() {
            Ok(Standing::Leads(_)) => Ok(()),
            Ok(Standing::Follows(_) | Standing::Ended(_)) | Err(_) => Err(NotTakenOver::DoesNotFollow),
        }
    }

    /// Commits what was submitted before, and gives the store back, so that another process may take it over at once. Returns once that is done, or will not be.
    pub async fn give_back(&self) {
        self.give_up_waiting();
        let requests = self.0.requests.lock().take();
        if let Some(requests) = requests {
            // The writer may have ended already.
            let _ = requests.send(Request::Close).await;
        }
        let mut standing = self.standing();
        let _ended = standing.wait_for(|standing| !matches!(standing, Standing::Leads(_))).await;
    }

    /// Waits until revision `revision` is visible here; whether it is, within this time. A follower reads on at once.
    pub async fn wait_for(&self, revision: Revision, patience: Duration) -> bool {
        let mut published = self.0.shared.feed.published();
        let is_there = || self.read(crate::State::revision) >= revision;
        let deadline = Instant::now() + patience;
        loop {
            published.mark_unchanged();
            if is_there() {
                return true;
            }
            if let Some(follows) = &self.0.follows {
                follows.bell.ring();
            }
            match tokio::time::timeout_at(deadline.into(), published.changed()).await {
                Ok(Ok(())) if !self.0.shared.feed.is_closed() => {}
                Ok(_) | Err(_) => return is_there(),
            }
        }
    }

    /// How old what is visible here may be, as far as this process can tell by itself: the time since it last read the log to its end. Zero for the
    /// process that writes.
    pub fn age(&self) -> Duration {
        match (&self.0.follows, &*self.0.standing.borrow()) {
            (_, Standing::Leads(_)) | (None, _) => Duration::ZERO,
            (Some(follows), Standing::Follows(_) | Standing::Ended(_)) => follows.times.age(),
        }
    }

    /// How long ago what keeps the log answered last, as far as this process follows it. Zero for the process that writes.
    pub fn silence(&self) -> Duration {
        match (&self.0.follows, &*self.0.standing.borrow()) {
            (_, Standing::Leads(_)) | (None, _) => Duration::ZERO,
            (Some(follows), Standing::Follows(_) | Standing::Ended(_)) => follows.times.silence(),
        }
    }

    /// Returns once it is certain that no other process had taken the store over when this was called: what is visible here then has all that was
    /// answered before. One question is made for all who wait.
    ///
    /// # Errors
    /// Another process has taken over, or what keeps the log does not answer, or this process does not write.
    pub async fn confirm(&self) -> Result<(), Unconfirmed> {
        let hold = match &*self.0.standing.borrow() {
            Standing::Leads(None) => return Ok(()),
            Standing::Leads(Some(hold)) => Arc::clone(hold),
            Standing::Follows(_) | Standing::Ended(_) => return Err(Unconfirmed::Lost { by: String::new() }),
        };
        let (reply, answer) = oneshot::channel();
        hold.ask(Box::new(move |confirmed| {
            // Who asked may have left.
            drop(reply.send(confirmed));
        }));
        answer.await.unwrap_or_else(|_| Err(Unconfirmed::Unknown("the client of etcd has ended".to_owned())))
    }
}
