//! The one task around the leading rescheduler: it follows the store, leads when the lease is granted, and carries what the leader says.
//!
//! What is decided is decided by [`ReschedulerLeader`]. Everything that takes a while happens elsewhere and comes back as an [`OutsideOutcome`]: plans on
//! a thread of their own, records, calls of the binder and the dispatcher, looks at files and at what running units use.

mod lead;
mod outbox;
mod outside;
mod reports;
mod show;

pub(crate) use self::{
    outbox::{Caller, Question, QuestionReply},
    show::fitting,
};

use std::time::Duration;

use godel_core_rescheduler::RunCause;
use godel_core_rescheduler_leader::ReschedulerLeader;
use godel_crash::CrashPoints;
use godel_kit::{
    CancellationToken,
    client::{Channel, Directory},
    clock::SharedClock,
    informer::{FollowEvent, Informer},
    leader::{LeaderTerms, TermChange},
    service::Error,
};
use tokio::{sync::mpsc, time::sleep};

use self::{
    outbox::ReschedulerOutbox,
    outside::{OutsideOutcome, OutsideState},
};
use crate::{Reload, config::Config, metrics::RescheduleMetrics};

/// Longest time between looks at the clock.
const TICK_MS: u64 = 500;
/// Events of the store taken in one go.
const N_DRAIN: usize = 256;

/// A question of somebody who calls: run on the engine, between two of its steps.
pub(crate) type Call = Box<dyn FnOnce(&mut Engine) + Send>;

/// What an engine is made of.
pub(crate) struct EngineParts {
    pub(crate) config: Config,
    pub(crate) reload: Option<Reload>,
    pub(crate) directory: Directory,
    pub(crate) follower: Informer,
    pub(crate) terms: LeaderTerms,
    pub(crate) calls: mpsc::Receiver<Call>,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: RescheduleMetrics,
}

/// See the module.
pub(crate) struct Engine {
    config: Config,
    reload: Option<Reload>,
    state: Channel,
    follower: Informer,
    calls: mpsc::Receiver<Call>,
    outcomes: mpsc::Receiver<OutsideOutcome>,
    leader: ReschedulerLeader<Caller>,
    out: ReschedulerOutbox,
    outside: OutsideState,
    faults: Vec<String>,
    config_read_ms: i64,
}

/// What woke the loop.
enum ReschedulerEvent {
    Stop,
    Term(Option<TermChange>),
    Outcome(OutsideOutcome),
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
        let EngineParts { config, reload, directory, follower, terms, calls, clock, crash, metrics } = parts;
        let (sender, outcomes) = mpsc::channel(outside::N_OUTCOMES);
        let state = directory.state();
        let out = ReschedulerOutbox { terms, directory, outcomes: sender, clock, crash, metrics };
        let mut engine = Self {
            leader: ReschedulerLeader::new(config.leader(), seed),
            config: config.clone(),
            reload,
            state,
            follower,
            calls,
            outcomes,
            out,
            outside: OutsideState::default(),
            faults: Vec::new(),
            config_read_ms: 0,
        };
        engine.configure(config);
        engine
    }

    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        loop {
            match self.next_event(&stop).await {
                ReschedulerEvent::Stop => break,
                ReschedulerEvent::Term(Some(_)) => self.leader.step_down(&mut self.out),
                ReschedulerEvent::Term(None) | ReschedulerEvent::Follow(None) if stop.is_cancelled() => break,
                ReschedulerEvent::Term(None) => return Err(Error::Lease),
                ReschedulerEvent::Outcome(outcome) => self.on_outcome(outcome),
                ReschedulerEvent::Call(call) => call(&mut self),
                ReschedulerEvent::Follow(Some(event)) => {
                    self.on_follow(event);
                    for _ in 0..N_DRAIN {
                        let Some(event) = self.follower.try_next() else { break };
                        self.on_follow(event);
                    }
                }
                ReschedulerEvent::Follow(None) => return Err(Error::Informer),
                ReschedulerEvent::Timer => {}
            }
            if self.may_begin() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.begin() => {}
                }
            }
            self.look_outside();
            if self.out.terms.valid_grant().is_some() {
                let now = self.now_ms();
                self.leader.step(now, &mut self.out);
            }
        }
        self.leader.step_down(&mut self.out);
        Ok(())
    }

    async fn next_event(&mut self, stop: &CancellationToken) -> ReschedulerEvent {
        let now = self.now_ms();
        let until = self
            .leader
            .next_ms()
            .map_or(TICK_MS, |next| u64::try_from(next.saturating_sub(now)).unwrap_or(0));
        let timer = sleep(Duration::from_millis(until.clamp(1, TICK_MS)));
        tokio::select! {
            biased;
            () = stop.cancelled() => ReschedulerEvent::Stop,
            change = self.out.terms.changed() => ReschedulerEvent::Term(change),
            Some(outcome) = self.outcomes.recv() => ReschedulerEvent::Outcome(outcome),
            Some(call) = self.calls.recv() => ReschedulerEvent::Call(call),
            event = self.follower.next() => ReschedulerEvent::Follow(event),
            () = timer => ReschedulerEvent::Timer,
        }
    }

    fn now_ms(&self) -> i64 {
        self.out.clock.wall_ms()
    }

    /// The signal SIGUSR1 came.
    pub(crate) fn on_signal(&mut self) {
        self.leader.manager_mut().on_signal();
    }

    /// Somebody asks by HTTP for a run of a policy.
    ///
    /// # Errors
    /// Why it does not run, in words, with whether it could never.
    pub(crate) fn ask_by_http(&mut self, policy: &str) -> Result<(), (bool, String)> {
        if !self.leader.leads() {
            return Err((false, "this rescheduler does not lead".to_owned()));
        }
        self.leader.manager_mut().ask(policy, RunCause::Http).map_err(|wrong| (true, wrong.to_string()))
    }

    /// Takes a configuration over; the keys of servers, clients and the lease stay as they were at the start.
    fn configure(&mut self, config: Config) {
        let now = self.now_ms();
        match config.rescheduling() {
            Err(wrong) => self.refuse_config(wrong.0),
            Ok(rescheduling) => match self.leader.configure(config.leader(), rescheduling, now) {
                Err(faults) => self.refuse_config(faults.iter().map(ToString::to_string).collect()),
                Ok(()) => {
                    self.faults.clear();
                    self.config_read_ms = now;
                    self.config = config;
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
}
