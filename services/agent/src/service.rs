//! Starts the tasks of an agent process: one per connection.

use std::{collections::BTreeMap, ffi::OsString, io, net::SocketAddr, path::PathBuf, sync::Arc};

use godel_domain::names::BadName;
use godel_kit::{
    CancellationToken,
    address::reachable,
    client::{BadAddress, channel},
    clock::SharedClock,
    member::{JoinError, MemberIdentity, NewMember, take_identity},
    metrics::{
        Metrics,
        prometheus_client::metrics::{counter::Counter, gauge::Gauge},
    },
    server::{ServerError, may_listen},
};
use rand::SeedableRng as _;
use tokio::sync::watch;

use crate::{
    Config, NodeDef,
    claim::{self, DirClaim, DirLoss},
    inventory, journal,
    journal::Journal,
    session::Client,
    shard::{KeptOfNode, Shard, ShardEnd, ShardSetup, containers::ContainerDesk},
    yarn,
};

/// What runs on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: running units last as long as their units say.
    Simulated,
    /// Processes of this machine, and containers if it has an engine, each with a keeper. A unit without a command and an image is
    /// simulated.
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
    /// Says goodbye at the end: its nodes are not ready from then on, instead of once their leases are over. Not where
    /// state ends along with it.
    pub says_goodbye: bool,
    /// Program and arguments of a keeper; the directory of its run is added. Not needed where nothing but simulated units runs.
    pub keeper: Vec<OsString>,
}

/// What the agent of a binary that is `godel` starts as keepers: this very binary, also if another one is in its place by now.
pub fn own_keeper() -> Vec<OsString> {
    ["/proc/self/exe", "agent", "keep"].map(OsString::from).to_vec()
}

/// How an agent process is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions that state has welcomed.
    pub connected: usize,
    /// Sessions lost since the start.
    pub lost: u64,
    /// Nodes that state will never let in: they are given up.
    pub refused: usize,
}

/// Why an agent process ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration makes no sense.
    #[error("invalid configuration: {}", .0.join("; "))]
    Config(Vec<String>),
    /// Two nodes have the same name.
    #[error("duplicate node name {0}")]
    SameName(String),
    /// Commands run on one node only: that of this machine.
    #[error("commands run on one node, that of this machine, and not on {0}")]
    OneNode(usize),
    /// Another agent uses the state directory, or speaks for the node.
    #[error(transparent)]
    Claim(#[from] claim::Error),
    /// The state directory is not this agent's any more.
    #[error(
        "the state directory {} {}: this agent can keep nothing there, and has given up its node",
        dir.display(),
        loss.words()
    )]
    DirLost {
        /// The directory.
        dir: PathBuf,
        /// What has become of it.
        loss: DirLoss,
    },
    /// The directories of runs cannot be made or read.
    #[error("the running units of this node cannot be managed")]
    Runs(#[source] io::Error),
    /// The engine that has to run images does not answer.
    #[error("`agent.docker` is `on`, and no Docker engine can be used at {}: {why}", socket.display())]
    Docker {
        /// Its socket.
        socket: PathBuf,
        /// In words.
        why: String,
    },
    /// A node cannot be called so.
    #[error("`{0}` cannot be a node's name: {1}")]
    WrongName(String, BadName),
    /// The address of state is malformed.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// It has no certificate.
    #[error(transparent)]
    Identity(#[from] JoinError),
    /// Terminal statuses cannot be kept.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// State will never let any of the nodes in.
    #[error("state refuses node {node} for good: {message}")]
    Refused {
        /// The first one.
        node: String,
        /// In state's words.
        message: String,
    },
    /// Application masters cannot call.
    #[error(
        "`agent.yarn.listen` is {address}, which cannot be used: choose another address, or end the program that uses it"
    )]
    Yarn {
        /// Where they would call.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Its metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] ServerError),
    /// A task of the agent panicked.
    #[error("a task of the agent panicked")]
    Panicked,
}

/// What `/metrics` says of an agent process.
struct Shown {
    connected: Gauge,
    lost: Counter,
}

impl Shown {
    fn new(metrics: &Metrics, n_nodes: usize) -> Self {
        let nodes = metrics.gauge("agent_nodes", "Nodes hosted by this process");
        nodes.set(as_gauge(n_nodes));
        Self {
            connected: metrics.gauge("agent_sessions", "Open sessions"),
            lost: metrics.counter("agent_sessions_lost", "Sessions lost since the start"),
        }
    }

    async fn follow(self, mut stats: watch::Receiver<Stats>, stop: CancellationToken) {
        loop {
            let Stats { connected, lost, refused: _ } = *stats.borrow_and_update();
            self.connected.set(as_gauge(connected));
            self.lost.inc_by(lost.saturating_sub(self.lost.get()));
            tokio::select! {
                changed = stats.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
        }
    }
}

fn as_gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Checks that the nodes have names of their own, and that commands run on one alone.
fn check_nodes(deps: &Deps) -> Result<(), Error> {
    let mut names = std::collections::BTreeSet::new();
    for node in &deps.nodes {
        if !names.insert(node.name.as_str()) {
            return Err(Error::SameName(node.name.clone()));
        }
    }
    if let Some((name, wrong)) = inventory::wrong_name(&deps.nodes) {
        return Err(Error::WrongName(name, wrong));
    }
    if deps.mode == Mode::Processes && deps.nodes.len() != 1 {
        return Err(Error::OneNode(deps.nodes.len()));
    }
    Ok(())
}

/// The certificate of this process, for all of its nodes.
async fn take_own_identity(
    config: &Config,
    deps: &Deps,
    stop: &CancellationToken,
) -> Result<Option<MemberIdentity>, JoinError> {
    let mut agent = NewMember::agent_of(deps.nodes.iter().map(|node| node.name.as_str()));
    if !config.identity.name.is_empty() {
        agent.name.clone_from(&config.identity.name);
    }
    take_identity(&config.identity, agent, &config.client, deps.clock.clone(), stop).await
}

/// Checks that application masters may call where they are to, and warns of an address that other machines can reach.
fn may_face_masters(config: &Config) -> Result<(), ServerError> {
    for address in reachable(&[config.yarn.listen]) {
        if !config.yarn.simple_auth && !config.insecure {
            return Err(BadAddress::Masters(address).into());
        }
        tracing::warn!(%address, "other machines can reach this address; masters show the tokens of their containers there, and nothing is encrypted");
    }
    Ok(())
}

/// Serves application masters where that is wanted, and returns what the task of the only node answers with.
async fn open_yarn(
    config: &Config,
    deps: &mut Deps,
    stop: &CancellationToken,
) -> Result<Option<ContainerDesk>, Error> {
    let Some(node) = deps.nodes.first_mut().filter(|_| config.yarn.enabled && deps.mode == Mode::Processes)
    else {
        return Ok(None);
    };
    let address = config.yarn.listen;
    may_face_masters(config)?;
    let opened = yarn::server::open(config, node, deps.clock.clone()).await;
    let (server, listener, desk) = opened.map_err(|source| Error::Yarn { address, source })?;
    godel_kit::task::spawn("agent.yarn", server.serve(listener, stop.clone()));
    Ok(Some(desk))
}

/// Speaks for `deps.nodes` until `stop`. Reconnects for ever; ends early only when it cannot keep its promises, or when
/// state will never let any of its nodes in.
///
/// # Errors
/// See [`Error`].
pub async fn serve(config: Config, mut deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let violations = config.violations();
    if !violations.is_empty() {
        return Err(Error::Config(violations));
    }
    check_nodes(&deps)?;
    if let Some(address) = config.metrics_listen {
        may_listen(config.insecure, &[address])?;
    }
    let claim = config.state_dir.as_deref().map(DirClaim::take).transpose()?.map(Arc::new);
    // Without a directory its identity is that of the machine, and what it runs ends with it.
    let _node = match deps.nodes.first().filter(|_| deps.mode == Mode::Processes && claim.is_some()) {
        Some(node) => claim::claim_node(&node.name, &node.uid)?,
        None => None,
    };
    let (journal, mut kept, stores) = match &config.state_dir {
        Some(dir) => {
            let (journal, kept, stores) = Journal::open(dir)?;
            (Some(journal), kept, stores)
        }
        None => (None, BTreeMap::new(), BTreeMap::new()),
    };
    tracing::info!(n_nodes = deps.nodes.len(), state = config.client.state, "agents start");
    let mut config = config;
    match take_own_identity(&config, &deps, &stop).await {
        Ok(Some(own)) => config.client.security = own.client,
        Ok(None) => {}
        Err(JoinError::Stopped) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let config = Arc::new(config);
    let mut containers = open_yarn(&config, &mut deps, &stop).await?;
    let n_nodes = deps.nodes.len();
    let n_shards = config.connections.min(n_nodes).max(1);
    let mut shares: Vec<Vec<NodeDef>> = vec![Vec::new(); n_shards];
    for (idx, mut node) in deps.nodes.into_iter().enumerate() {
        node.max_running_units.get_or_insert(config.max_running_units);
        shares[idx % n_shards].push(node);
    }
    // Never 0, and never from a seed: two agents with one configuration are two.
    let instance = uuid::Uuid::new_v4().as_u64_pair().1;
    let seed = config.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let stop = stop.child_token();
    let _guard = stop.clone().drop_guard();
    if let Some(address) = config.metrics_listen {
        let metrics = Metrics::new("agent");
        let shown = Shown::new(&metrics, n_nodes);
        let connected = deps.stats.subscribe();
        metrics.judge_health(move || match connected.borrow().connected {
            0 => Err("no node is connected to state".to_owned()),
            _ => Ok(()),
        });
        let local = metrics.serve(address, stop.clone()).await?;
        tracing::info!(address = %local, "metrics");
        godel_kit::task::spawn("agent.metrics", shown.follow(deps.stats.subscribe(), stop.clone()));
    }
    let mut tasks = Vec::new();
    for (idx, nodes) in (0u64..).zip(shares) {
        let mut shard = Shard::new(ShardSetup {
            config: Arc::clone(&config),
            client: Client::new(channel(&config.client.state, &config.client)?),
            mode: deps.mode,
            instance,
            clock: deps.clock.clone(),
            rng: rand::rngs::StdRng::seed_from_u64(seed.wrapping_add(idx)),
            stats: deps.stats.clone(),
            n_connecting_max: config.registrations_in_flight.div_ceil(n_shards),
            says_goodbye: deps.says_goodbye,
            keeper: deps.keeper.clone(),
            claim: claim.clone(),
            containers: containers.take(),
        });
        for def in nodes {
            let ended = kept.remove(def.name.as_str()).unwrap_or_default();
            let store = stores.get(def.name.as_str()).copied().unwrap_or_default();
            shard.add(def, KeptOfNode { ended, store });
        }
        let journal = journal.clone();
        tasks.push(godel_kit::task::spawn_service("agent.shard", &stop, shard.run(journal, stop.clone())));
    }
    let (mut outcome, mut refused, mut is_stopped) = (Ok(()), None, false);
    for task in tasks {
        match task.await {
            Ok(Ok(ShardEnd::Stopped | ShardEnd::Left)) => is_stopped = true,
            Ok(Ok(ShardEnd::Refused(node, message))) => refused = refused.or(Some((node, message))),
            ended => {
                stop.cancel();
                let ended = ended.map_err(|_| Error::Panicked).and_then(|ended| ended);
                outcome = outcome.and(ended.map(|_| ()));
            }
        }
    }
    // As long as some node is let in, those that are not are the log's business.
    match refused.filter(|_| !is_stopped) {
        Some((node, message)) => outcome.and(Err(Error::Refused { node, message })),
        None => outcome,
    }
}
