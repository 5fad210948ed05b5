//! The adapter at work: what faces call, what is followed, and how what the leader wants done is carried out.
//!
//! The leader of `core/yarn-leader` stands behind one lock that is held for a moment: faces call it, the follower tells it what has happened, and
//! its orders are carried out by tasks of their own, whose answers it hears.

mod calls;
mod carry;
mod follow;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use godel_core_yarn::adapter::AdapterTime;
use godel_core_yarn_leader::{
    AdapterRules, GroupQuestions, ManagerRefusal, RegisterAnswer, YarnLeader, YarnOrder,
};
use godel_crash::CrashPoints;
use godel_kit::{
    CancellationToken, client::Directory, clock::SharedClock, informer::Informer, leader::LeaderTerms,
    quiet::Quiet, service::Error, txn::TxnPipeline,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};

use self::follow::Engine;
use crate::{
    callers::YarnCallers, config::Config, keys::KeySource, launcher::Launcher, metrics::YarnMetrics,
};

/// Who waits for an answer.
type Waiter<T> = oneshot::Sender<Result<T, ManagerRefusal>>;
type Leader = YarnLeader<Waiter<()>, Waiter<RegisterAnswer>>;
type Orders = Vec<YarnOrder<Waiter<()>, Waiter<RegisterAnswer>>>;

/// The adapter, as its faces have it. Clones share it.
#[derive(Clone, Debug)]
pub struct Manager {
    shared: Arc<Shared>,
}

/// What a manager is made of.
pub(crate) struct ManagerParts {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: YarnMetrics,
    pub(crate) launcher: Arc<dyn Launcher>,
    pub(crate) clock: SharedClock,
    pub(crate) rules: AdapterRules,
    pub(crate) callers: YarnCallers,
}

/// What does not change while the adapter runs.
#[derive(Debug)]
struct Context {
    config: Config,
    directory: Directory,
    crash: CrashPoints,
    metrics: YarnMetrics,
    launcher: Arc<dyn Launcher>,
    /// What depends on the groups of users.
    group_questions: GroupQuestions,
    /// What users may do.
    callers: YarnCallers,
}

/// A time in which this adapter leads.
#[derive(Clone, Debug)]
struct Term {
    /// One for each grant: the store tells transactions apart by their numbers under it.
    pipeline: TxnPipeline,
    /// Cancelled at its end.
    stop: CancellationToken,
}

/// What the lock guards.
struct Led {
    leader: Leader,
    term: Option<Term>,
}

/// What faces, the follower and the tasks share.
struct Shared {
    led: Mutex<Led>,
    context: Context,
    clock: SharedClock,
    /// Calls of the dispatcher in progress.
    calls: Semaphore,
    /// Records were written or refused: it may lead now.
    written: Notify,
    /// What is said of refused records, now and then.
    quiet: Quiet,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Shared {
    fn at(&self) -> AdapterTime {
        AdapterTime { now: self.clock.now(), wall_ms: self.clock.wall_ms() }
    }

    /// Has the leader decide something, and what comes of it carried out.
    fn run<T>(self: &Arc<Self>, what: impl FnOnce(&mut Leader, AdapterTime, &mut Orders) -> T) -> T {
        self.run_led(|led, at, out| what(&mut led.leader, at, out))
    }

    fn run_led<T>(self: &Arc<Self>, what: impl FnOnce(&mut Led, AdapterTime, &mut Orders) -> T) -> T {
        let at = self.at();
        let mut out = Vec::new();
        let mut led = self.led.lock();
        let answer = what(&mut led, at, &mut out);
        if !led.leader.leads()
            && let Some(term) = led.term.take()
        {
            term.stop.cancel();
        }
        if !out.is_empty() {
            let term = led.term.clone();
            drop(led);
            self.carry(out, term.as_ref());
        }
        answer
    }
}

impl Manager {
    /// One that stands by until its engine runs.
    pub(crate) fn new(parts: ManagerParts) -> Self {
        let ManagerParts { config, directory, crash, metrics, launcher, clock, rules, callers } = parts;
        let calls = Semaphore::new(config.calls_max.clamp(1, Semaphore::MAX_PERMITS));
        let group_questions = rules.group_questions();
        let leader = Leader::new(config.leader(), rules, clock.wall_ms());
        let context = Context { config, directory, crash, metrics, launcher, group_questions, callers };
        let led = Mutex::new(Led { leader, term: None });
        Self {
            shared: Arc::new(Shared {
                led,
                context,
                clock,
                calls,
                written: Notify::new(),
                quiet: Quiet::default(),
            }),
        }
    }

    /// Follows, leads and acts until `stop`.
    pub(crate) fn engine(
        &self,
        follower: Informer,
        terms: LeaderTerms,
        keys: KeySource,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        Engine { shared, follower, terms, keys }.run(stop)
    }
}
