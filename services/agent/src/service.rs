//! Starts the tasks of an agent process: one per connection.

use std::{collections::BTreeMap, sync::Arc};

use godel_kit::{
    CancellationToken,
    client::{BadAddress, channel},
    clock::SharedClock,
};
use rand::SeedableRng as _;
use tokio::sync::watch;

use crate::{Config, NodeDef, journal, journal::Journal, session::Client, shard::Shard};

/// What runs on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: running units last as long as their units say.
    Simulated,
    /// Child processes of this process. A unit without a command is simulated.
    Processes,
}

/// What an agent process gets from outside.
pub struct Deps {
    /// Nodes that it speaks for; names are unique.
    pub nodes: Vec<NodeDef>,
    /// What runs on them.
    pub mode: Mode,
    /// The time.
    pub clock: SharedClock,
    /// Where it says how it is doing.
    pub stats: watch::Sender<Stats>,
}

/// How an agent process is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions that state has welcomed.
    pub connected: usize,
    /// Sessions lost since the start.
    pub lost: u64,
}

/// Why an agent process ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration makes no sense.
    #[error("wrong configuration: {}", .0.join("; "))]
    Config(Vec<String>),
    /// Two nodes have the same name.
    #[error("two nodes are called {0}")]
    SameName(String),
    /// The address of state is malformed.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// Terminal statuses cannot be kept.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// A task of the agent panicked.
    #[error("a task of the agent panicked")]
    Panicked,
}

/// Speaks for `deps.nodes` until `stop`. Reconnects for ever; ends early only when it cannot keep its promises.
///
/// # Errors
/// See [`Error`].
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let violations = config.violations();
    if !violations.is_empty() {
        return Err(Error::Config(violations));
    }
    let mut names = std::collections::BTreeSet::new();
    for node in &deps.nodes {
        if !names.insert(node.name.as_str()) {
            return Err(Error::SameName(node.name.clone()));
        }
    }
    let (journal, mut kept, stores) = match &config.state_dir {
        Some(dir) => {
            let (journal, kept, stores) = Journal::open(dir)?;
            (Some(journal), kept, stores)
        }
        None => (None, BTreeMap::new(), BTreeMap::new()),
    };
    tracing::info!(n_nodes = deps.nodes.len(), state = config.client.state, "agents start");
    let config = Arc::new(config);
    let n_shards = config.connections.min(deps.nodes.len()).max(1);
    let mut shares: Vec<Vec<NodeDef>> = vec![Vec::new(); n_shards];
    for (idx, node) in deps.nodes.into_iter().enumerate() {
        shares[idx % n_shards].push(node);
    }
    let seed = config.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let stop = stop.child_token();
    let mut tasks = Vec::new();
    for (idx, nodes) in (0u64..).zip(shares) {
        let client = Client::new(channel(&config.client.state, &config.client)?);
        let rng = rand::rngs::StdRng::seed_from_u64(seed.wrapping_add(idx));
        let mut shard = Shard::new(Arc::clone(&config), client, deps.mode, (deps.clock.clone(), rng));
        shard.report_to(deps.stats.clone(), config.registrations_in_flight.div_ceil(n_shards));
        for def in nodes {
            let ended = kept.remove(def.name.as_str()).unwrap_or_default();
            let store = stores.get(def.name.as_str()).copied().unwrap_or_default();
            shard.add(def, ended, store);
        }
        let journal = journal.clone();
        tasks.push(godel_kit::task::spawn_service("agent.shard", &stop, shard.run(journal, stop.clone())));
    }
    let mut outcome = Ok(());
    for task in tasks {
        let ended = task.await.map_err(|_| Error::Panicked).and_then(|ended| ended.map_err(Error::Journal));
        if ended.is_err() {
            stop.cancel();
        }
        outcome = outcome.and(ended);
    }
    outcome
}
