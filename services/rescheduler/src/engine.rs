//! The one task that owns the rescheduler's state: it follows the store, leads when the lease is granted, has plans made, and drives movements.
//!
//! Everything that takes long happens elsewhere and comes back as an [`Outcome`]: plans on a thread of their own, calls of the binder, looks at
//! files and at what running units use. Records of movements are written here, one after the other, before anything that follows from
//! them is done.

mod drive;
mod lead;
mod outside;
mod plans;
mod reports;
mod rooms;
mod show;

pub(crate) use self::show::fitting;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use godel_base::ids::{Revision, UnitId};
use godel_core_rescheduler::{MovementDriver, MovementRecord, PolicyManager, RoomRequests, RunCause};
use godel_kit::{
    CancellationToken,
    client::{Channel, Directory},
    clock::SharedClock,
    informer::{FollowEvent, Informer},
    lease::{Fence, Leadership},
    service::Error,
    txn::TxnPipeline,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep,
};
use tonic::Status;

use self::{
    outside::Outcome,
    plans::{Job, Planning},
};
use godel_crash::CrashPoints;

use crate::{Reload, config::Config, metrics::RescheduleMetrics, picture::Picture, traffic::Traffic};

/// Longest time between looks at the clock.
const TICK_MS: u64 = 500;
/// Events of the store taken in one go.
const N_DRAIN: usize = 256;

/// A question of somebody who calls: run on the engine, between two of its steps.
pub(crate) type Call = Box<dyn FnOnce(&mut Engine) + Send>;

/// An answer that waits; a status says that it waited in vain.
type AfterRecord = Box<dyn FnOnce(Option<Status>) + Send>;

/// What an engine is made of.
pub(crate) struct EngineParts {
    pub(crate) config: Config,
    pub(crate) reload: Option<Reload>,
    pub(crate) directory: Directory,
    pub(crate) follower: Informer,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) calls: mpsc::Receiver<Call>,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: RescheduleMetrics,
}

/// See the module.
pub(crate) struct Engine {
    parts: EngineParts,
    state: Channel,
    picture: Picture,
    manager: PolicyManager,
    seed: u64,
    /// The grant under which it leads or is about to.
    grant: Option<Grant>,
    /// What it has while it leads.
    term: Option<Term>,
    /// Plans that wait to be made.
    jobs: VecDeque<Job>,
    planning: Option<Planning>,
    n_plans: u64,
    outcomes: (mpsc::Sender<Outcome>, mpsc::Receiver<Outcome>),
    /// From the file, and reported.
    traffic: (Traffic, Traffic),
    outside: outside::OutsideState,
    /// When gangs that wait ask for room, and the one of which the dispatcher is asked what keeps it out.
    requests: RoomRequests,
    asking_gang: Option<UnitId>,
    /// Answers that wait until the movement that was created is recorded; with a status if it never is.
    after_record: Vec<AfterRecord>,
    faults: Vec<String>,
    config_read_ms: i64,
    observed_ms: i64,
    maintained_ms: i64,
}

/// The lease, as granted.
struct Grant {
    fence: Fence,
    since: Revision,
    /// One for each grant: the store tells transactions apart by their numbers under it.
    pipeline: TxnPipeline,
}

/// What a leader has.
#[derive(Default)]
struct Term {
    /// Every movement by its number, as recorded; the one that is driven as it is.
    movements: BTreeMap<u64, MovementRecord>,
    driven: Option<Driven>,
    /// Units whose move rates are to be written.
    rates: BTreeSet<UnitId>,
    /// No record is written before this, Unix milliseconds: the store has refused one.
    write_again_ms: i64,
    aborts: Vec<Abort>,
    counts: Counts,
}

/// Moves since the leader began.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moved: u64,
    mismatched: u64,
    failed: u64,
}

/// The movement that is being made.
struct Driven {
    driver: MovementDriver,
    /// As its record is.
    recorded: Option<MovementRecord>,
    /// A plan of its rest is being made.
    is_replanned: bool,
    next_ms: Option<i64>,
}

/// Somebody wants a movement to end.
struct Abort {
    name: String,
    reason: String,
    reply: oneshot::Sender<Result<MovementRecord, Status>>,
}

/// What woke the loop.
enum Event {
    Stop,
    Leadership(bool),
    Lost,
    Outcome(Outcome),
    Call(Call),
    Follow(Option<FollowEvent>),
    Timer,
}

impl Engine {
    pub(crate) fn new(parts: EngineParts) -> Self {
        let seed = match parts.config.seed {
            0 => rand::random(),
            seed => seed,
        };
        let state = parts.directory.state();
        let picture = Picture::new(&parts.config.sub_cluster_key);
        let outcomes = mpsc::channel(outside::N_OUTCOMES);
        let mut engine = Self {
            state,
            picture,
            manager: PolicyManager::new(seed),
            seed,
            grant: None,
            term: None,
            jobs: VecDeque::new(),
            planning: None,
            n_plans: 0,
            outcomes,
            traffic: (Traffic::default(), Traffic::default()),
            outside: outside::OutsideState::default(),
            requests: RoomRequests::default(),
            asking_gang: None,
            after_record: Vec::new(),
            faults: Vec::new(),
            config_read_ms: 0,
            observed_ms: 0,
            maintained_ms: 0,
            parts,
        };
        let config = engine.parts.config.clone();
        engine.configure(config);
        engine
    }

    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        self.on_leadership();
        loop {
            match self.next_event(&stop).await {
                Event::Stop => break,
                Event::Leadership(true) => self.on_leadership(),
                Event::Leadership(false) | Event::Follow(None) if stop.is_cancelled() => break,
                Event::Leadership(false) => return Err(Error::Lease),
                Event::Lost => self.step_down(),
                Event::Outcome(outcome) => self.on_outcome(outcome),
                Event::Call(call) => call(&mut self),
                Event::Follow(Some(event)) => {
                    self.on_follow(event);
                    for _ in 0..N_DRAIN {
                        let Some(event) = self.parts.follower.try_next() else { break };
                        self.on_follow(event);
                    }
                }
                Event::Follow(None) => return Err(Error::Informer),
                Event::Timer => {}
            }
            if self.may_begin() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.begin() => {}
                }
            }
            self.look_outside();
            if self.term.is_some() {
                self.work().await;
            }
        }
        self.step_down();
        Ok(())
    }

    async fn next_event(&mut self, stop: &CancellationToken) -> Event {
        let fence = self.grant.as_ref().map(|grant| grant.fence.clone());
        let lost = async move {
            match fence {
                Some(fence) => fence.lost().await,
                None => std::future::pending().await,
            }
        };
        let now = self.now_ms();
        let next = self.term.as_ref().and_then(|term| term.driven.as_ref()?.next_ms);
        let until = next.map_or(TICK_MS, |next| u64::try_from(next.saturating_sub(now)).unwrap_or(0));
        let timer = sleep(Duration::from_millis(until.clamp(1, TICK_MS)));
        tokio::select! {
            biased;
            () = stop.cancelled() => Event::Stop,
            changed = self.parts.leadership.changed() => Event::Leadership(changed.is_ok()),
            () = lost => Event::Lost,
            Some(outcome) = self.outcomes.1.recv() => Event::Outcome(outcome),
            Some(call) = self.parts.calls.recv() => Event::Call(call),
            event = self.parts.follower.next() => Event::Follow(event),
            () = timer => Event::Timer,
        }
    }

    fn now_ms(&self) -> i64 {
        self.parts.clock.wall_ms()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.now_ms()).unwrap_or(0)
    }

    fn is_valid(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.fence.is_valid())
    }

    /// The signal SIGUSR1 came.
    pub(crate) fn on_signal(&mut self) {
        self.manager.on_signal();
    }

    /// Somebody asks by HTTP for a run of a policy.
    ///
    /// # Errors
    /// Why it does not run, in words, with whether it could never.
    pub(crate) fn ask_by_http(&mut self, policy: &str) -> Result<(), (bool, String)> {
        if self.term.is_none() {
            return Err((false, "this rescheduler does not lead".to_owned()));
        }
        self.manager.ask(policy, RunCause::Http).map_err(|wrong| (true, wrong.to_string()))
    }

    /// Takes a configuration over; the keys of servers, clients and the lease stay as they were at the start.
    fn configure(&mut self, config: Config) {
        let now = self.now();
        match config.rescheduling() {
            Err(wrong) => self.refuse_config(wrong.0),
            Ok(rescheduling) => match self.manager.configure(rescheduling, now) {
                Err(faults) => self.refuse_config(faults.iter().map(ToString::to_string).collect()),
                Ok(()) => {
                    self.faults.clear();
                    self.config_read_ms = self.now_ms();
                    self.parts.config = config;
                }
            },
        }
    }

    fn refuse_config(&mut self, faults: Vec<String>) {
        if self.faults != faults {
            tracing::warn!(
                faults = faults.join("; "),
                "the configuration is refused, the one before stays in force"
            );
        }
        self.faults = faults;
    }

    /// What plans are made of, as of now.
    fn known_traffic(&self) -> Arc<Traffic> {
        Arc::new(self.traffic.0.merged(&self.traffic.1))
    }
}
