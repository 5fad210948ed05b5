//! The adapter at work: what faces call, what is followed, what is recorded, and what is done about it.
//!
//! The adapter of `core/yarn` stands behind one lock that is held for a moment: faces call it, the follower tells it what has happened, and what
//! it wants done goes to the writer of records and to one worker for each application. A call waits for a record only where its caller has to
//! know that it is written.

mod access;
mod act;
mod calls;
mod follow;
mod grow;
mod queues;
mod shared;
mod show;
mod waits;
mod write;

use std::sync::Arc;

use godel_domain::records::RecordKind;
use godel_kit::{
    CancellationToken,
    client::{Channel, Directory},
    clock::SharedClock,
    informer::Informer,
    lease::Leadership,
    service::Error,
};
use tokio::sync::watch;

use self::{
    follow::Engine,
    shared::{Context, Shared},
};
use godel_crash::CrashPoints;

use crate::{config::Config, keys::KeySource, launcher::Launcher, metrics::YarnMetrics, rules::AdapterRules};

/// Records that the adapter follows, rows last: those of its picture of the cluster, and keys.
pub(crate) const FOLLOWS: &[RecordKind] = &[
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::Queue,
    RecordKind::YarnKeys,
    RecordKind::Unit,
    RecordKind::Rows,
];

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
}

impl Manager {
    /// One that stands by until its engine runs.
    pub(crate) fn new(parts: ManagerParts) -> Self {
        let ManagerParts { config, directory, crash, metrics, launcher, clock, rules } = parts;
        let context = Context { config, directory, crash, metrics, launcher, rules };
        Self { shared: Shared::new(context, clock) }
    }

    /// Follows, leads and acts until `stop`.
    pub(crate) fn engine(
        &self,
        follower: Informer,
        leadership: watch::Receiver<Leadership>,
        state: Channel,
        keys: KeySource,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let engine = Engine {
            shared: Arc::clone(&self.shared),
            follower,
            leadership,
            state,
            keys,
            grant: None,
            writer: None,
            n_ticks: 0,
        };
        engine.run(stop)
    }
}
