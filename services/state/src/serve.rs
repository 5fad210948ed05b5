//! Puts the parts together and takes them apart in order.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use godel_crash::CrashPoints;
use godel_identity::change_log::ChangeLimits;
use godel_kit::{
    CancellationToken,
    address::{advertised, server_hosts},
    clock::{SharedClock, SystemClock},
    config::ServerConfig,
    message::RECEIVED_BYTES_MAX,
    metrics::{Metrics, ServedPages},
    security::ServerSecurity,
    server::{self, Listeners, Server, ServerError, UnixDoor},
};
use godel_membership::{
    leases::{LeaseRequest, STATES},
    node_failures::FailureConfig,
    node_usage::Smoothing,
    quarantine,
};
use godel_proto::v1::{
    change_service_server::ChangeServiceServer, identity_service_server::IdentityServiceServer,
    log_service_server::LogServiceServer,
};
use godel_store::{Engine, OpenError, SledConfig, Store, StoreConfig, WallClock, log::etcd::EtcdConfig};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    changes::{ChangeLog, ChangeRpc},
    config::{Config, EngineKind, TlsMode},
    error::Error,
    feed,
    identities::{Identities, IdentityRpc, ServiceTasks, judge_plain_text},
    leader_watch::{LeaderView, LeaderWatch, show_leader},
    logs::Logs,
    members::Members,
    metrics::StateMetrics,
    nodes,
    routes::{MemberServer, NodeServer, StateServer},
    sessions::{NodeSessions, Timing, cell::Close, committer, measure::Measuring},
    standby::{LeaderFront, ServedMeanwhile},
    state_service::{OwnSecurity, StateRpc},
    turns,
};

/// How often the store's sizes go into the metrics.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// How often a start tries again that found the disk full, or no etcd.
const OPEN_RETRY: Duration = Duration::from_secs(1);

/// What a service gets from outside.
pub struct Deps {
    /// Where to serve; `None` binds `server.listen`.
    pub listener: Option<TcpListener>,
    /// Where the log is kept; `None` does as the configuration says.
    pub engine: Option<Engine>,
    /// The clocks.
    pub clock: SharedClock,
    /// The metrics of this service.
    pub metrics: Metrics,
}

impl Default for Deps {
    fn default() -> Self {
        Self { listener: None, engine: None, clock: SystemClock::shared(), metrics: Metrics::new("state") }
    }
}

impl Config {
    /// Returns where the log is kept.
    ///
    /// # Errors
    /// There is no client of the etcd.
    pub(crate) fn store_engine(&self) -> Result<Engine, Error> {
        Ok(match self.engine {
            EngineKind::Sled => Engine::Sled(SledConfig::new(&self.data_dir)),
            EngineKind::Memory => Engine::Memory(godel_store::log::memory::MemoryDisk::default()),
            EngineKind::Etcd => Engine::Etcd(self.etcd.store(&self.data_dir)?),
        })
    }
}

/// What a state has from its start to its end, whichever part it plays.
#[derive(Clone)]
pub(crate) struct StateParts {
    pub(crate) config: Config,
    pub(crate) mode: TlsMode,
    pub(crate) place: StatePlace,
    pub(crate) clock: SharedClock,
    pub(crate) metrics: Metrics,
    pub(crate) counted: StateMetrics,
    pub(crate) crash: CrashPoints,
}

/// Where a state is reached.
#[derive(Clone)]
pub(crate) struct StatePlace {
    /// The address that it tells others.
    pub(crate) address: String,
    /// Where it listens.
    pub(crate) local: SocketAddr,
}

impl StatePlace {
    fn of(config: &Config, mode: TlsMode, listener: &TcpListener) -> Result<Self, Error> {
        let local = listener.local_addr().unwrap_or(config.server.listen);
        let address = advertised(&config.server, mode.speech(), local).map_err(ServerError::from)?;
        Ok(Self { address, local })
    }

    /// The DNS names and addresses that the certificate of this state carries.
    pub(crate) fn hosts(&self, config: &Config) -> Vec<String> {
        server_hosts(&config.server.advertise, self.local, &config.san)
    }
}

/// Serves until `stop`. A store has one state, unless it is shared: it opens the store, registers state, runs the services, and closes the store at the end. Of
/// several states with one store in an etcd, one does; the others follow until one of them takes its place.
///
/// # Errors
/// The configuration is impossible, the store does not open, or the server fails.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    config.validate().map_err(Error::Config)?;
    let crash = CrashPoints::parse(&config.crash_points)?;
    let Deps { listener, engine, clock, metrics } = deps;
    let mode = config.prepare_tls()?;
    let counted = StateMetrics::new(&metrics);
    let engine = match engine {
        Some(engine) => engine,
        None => config.store_engine()?,
    };
    let bind = async || match listener {
        Some(listener) => Ok(listener),
        None => server::listen_as(&config.server, mode.speech()).await,
    };
    if config.etcd.shared
        && let Engine::Etcd(etcd) = engine
    {
        let listener = bind().await?;
        let place = StatePlace::of(&config, mode, &listener)?;
        let engine = Engine::Etcd(EtcdConfig { address: place.address.clone(), ..etcd });
        let parts = StateParts { config, mode, place, clock, metrics, counted, crash };
        return turns::serve(parts, listener, engine, stop).await;
    }
    let opened = open(&config, engine, Store::open, &clock, crash.clone(), &stop).await?;
    let Some(store) = opened else {
        tracing::info!("stopped before the store was open");
        return Ok(());
    };
    let served = async {
        let listener = bind().await?;
        let place = StatePlace::of(&config, mode, &listener)?;
        let parts = StateParts { config: config.clone(), mode, place, clock, metrics, counted, crash };
        lead(&parts, listener, &store, Turn::default(), stop).await
    };
    let served = served.await;
    close(store).await;
    served
}

/// Closes a store.
pub(crate) async fn close(store: Store) {
    tracing::info!("closing the store");
    store.close().await;
    tracing::info!("the store is closed");
}

/// Opens a store with `opener`, once it can be opened; `None`: it was stopped first.
///
/// # Errors
/// The store does not open.
pub(crate) async fn open(
    config: &Config,
    engine: Engine,
    opener: fn(StoreConfig, WallClock, CrashPoints) -> Result<Store, OpenError>,
    clock: &SharedClock,
    crash: CrashPoints,
    stop: &CancellationToken,
) -> Result<Option<Store>, Error> {
    let store = StoreConfig {
        generation_bytes_min: config.generation_bytes_min,
        history_bytes_min: config.history_bytes_min,
        history_age_min: *config.history_age_min,
        reserve_bytes: config.disk_reserve_bytes,
        ring_bytes: config.watch_history_bytes,
        backlog_bytes: config.watch_backlog_bytes,
        backlog_items: config.watch_backlog_items,
        ..StoreConfig::new(engine)
    };
    let open = || {
        let (store, clock, crash) = (store.clone(), Arc::clone(clock), crash.clone());
        // Opening reads the whole log.
        tokio::task::spawn_blocking(move || opener(store, Arc::new(move || clock.wall_ms()), crash))
    };
    open_when_possible(open, &config.data_dir, OPEN_RETRY, stop).await
}

/// Opens a store, again and again while the disk has no room for it, or the etcd that it is in does not answer: it is for others
/// to change that. `None`: it was stopped first, however long opening would have taken. What is left behind is what a kill
/// leaves.
async fn open_when_possible<T>(
    mut open: impl FnMut() -> JoinHandle<Result<T, OpenError>>,
    dir: &Path,
    retry: Duration,
    stop: &CancellationToken,
) -> Result<Option<T>, Error> {
    let mut has_said = false;
    loop {
        let Some(opened) = stop.run_until_cancelled(open()).await else { return Ok(None) };
        let source = match opened.map_err(|_| Error::Panicked)? {
            Ok(store) => return Ok(Some(store)),
            Err(source) => source,
        };
        let waits = (source.is_full() || source.is_away()) && !stop.is_cancelled();
        if waits && !std::mem::replace(&mut has_said, true) {
            let (error, dir) = (chain(&source), dir.display());
            if source.is_full() {
                tracing::error!(error, %dir, "the disk is full: state waits until there is room");
            } else {
                tracing::error!(error, "the etcd of the store cannot be used: state waits until it can");
            }
        }
        if !waits || stop.run_until_cancelled(tokio::time::sleep(retry)).await.is_none() {
            return Err(Error::Open { dir: dir.display().to_string(), source });
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// What a state that leads has of its turn.
#[derive(Default)]
pub(crate) struct Turn {
    /// What is served while it prepares; `None`: nothing.
    pub(crate) meanwhile: Option<ServedMeanwhile>,
    /// Another state may lead from now on: nothing is answered any more.
    pub(crate) over: CancellationToken,
}

/// Leads until `stop`, or until its turn is over. However that ends, all tasks have ended when this returns: none of them uses the store then.
///
/// # Errors
/// The server fails, or a record cannot be read or written.
pub(crate) async fn lead(
    parts: &StateParts,
    listener: TcpListener,
    store: &Store,
    turn: Turn,
    stop: CancellationToken,
) -> Result<(), Error> {
    // What the RPCs rest on outlives them.
    let (inner, mut running) = (CancellationToken::new(), Vec::new());
    let _ends = inner.clone().drop_guard();
    let tasks = ServiceTasks { service: &stop, end: &inner, running: &mut running };
    let served = run_parts(parts, listener, store, turn, tasks).await;
    inner.cancel();
    // Tasks that wait for an etcd that does not answer would wait for ever.
    store.give_up_waiting();
    let ended = join(running).await;
    served?;
    ended
}

async fn run_parts(
    parts: &StateParts,
    listener: TcpListener,
    store: &Store,
    turn: Turn,
    mut tasks: ServiceTasks<'_>,
) -> Result<(), Error> {
    let StateParts { config, mode, place, clock, metrics, counted, crash } = parts.clone();
    let (config, stop, inner) = (&config, tasks.service.clone(), tasks.end.clone());
    let identities = match mode {
        TlsMode::Off => {
            judge_plain_text(config, store, &place.local.to_string())?;
            None
        }
        TlsMode::On | TlsMode::Migrate => {
            let hosts = place.hosts(config);
            Some(Identities::begin(config, store, Arc::clone(&clock), &hosts, &mut tasks).await?)
        }
    };
    let security = identities.as_ref().map(|identities| identities.security(mode)).unwrap_or_default();
    let served_with = ServerConfig { security, ..config.server.clone() };
    metrics.judge_health(|| Err("state reads its store".to_owned()));
    let Turn { meanwhile, over } = turn;
    if meanwhile.is_none() {
        show_pages(parts, &served_with, &inner).await?;
    }
    let hub = new_hub(parts, store);
    let loading = Arc::clone(&hub);
    let load = tokio::task::spawn_blocking(move || feed::load(&loading));
    let Some(loaded) = stop.run_until_cancelled(load).await else { return Ok(()) };
    let watcher = loaded.map_err(|_| Error::Panicked)?;

    let (leader, leader_views) = watch::channel(LeaderView::default());
    let leader_watch = LeaderWatch::new(store.clone(), leader_views, stop.clone());
    let own = own_registration(parts);
    let (members, lease_writer) =
        Members::new(store.clone(), Arc::clone(&clock), crash, counted, own, leader_watch);
    let epoch = lease_writer.register().await.map_err(Error::Register)?;
    hub.epochs.begin(epoch.0);
    tasks.spawn("leader", show_leader(store.clone(), place.address.clone(), epoch, leader, inner.clone()));
    let (jobs, job_queue) = mpsc::channel(nodes::writer::N_JOBS_MAX);
    metrics.judge_health(|| Ok(()));
    tracing::info!(address = %place.local, store = hub.store_id().0, revision = store.status().revision.0, nodes = store.status().nodes, "state is ready");

    let scan = *config.node_scan_interval;
    tasks.spawn("feed", feed::run(Arc::clone(&hub), watcher, inner.clone()));
    tasks.spawn("run-status", committer::run(Arc::clone(&hub), inner.clone()));
    let leaves =
        nodes::expiry::AgentLeaves::new(identities.as_ref().map(|identities| identities.ledger.clone()));
    tasks.spawn("nodes", nodes::writer::run(Arc::clone(&hub), job_queue, leaves, scan, inner.clone()));
    tasks.spawn("leases", lease_writer.run(inner.clone()));
    let changes = begin_change_log(config, &hub, clock, &served_with.security, &mut tasks);
    tasks.spawn("gauges", gauges(Arc::clone(&hub), inner.clone()));
    tasks.spawn("farewell", farewell(Arc::clone(&hub), stop.clone(), inner.clone()));
    let identity_rpc = identities.as_ref().map_or_else(IdentityRpc::without_ca, Identities::rpc);
    let own_security = OwnSecurity::new(&served_with.security, &metrics, identities.as_ref());
    let bookmarks = *config.watch_bookmark_interval;
    let rpc = StateRpc::new(Arc::clone(&hub), bookmarks, own_security, stop.clone());
    let front = LeaderFront { store: store.clone(), members: members.clone() };
    let server = Server::new(&served_with, &metrics)
        .forward(Arc::new(front), config.forwarded_max)
        .add(StateServer::new(Arc::new(rpc)))
        .add(MemberServer::new(members))
        .add(
            LogServiceServer::new(Logs::new(Arc::clone(&hub), stop.clone()))
                .max_decoding_message_size(RECEIVED_BYTES_MAX),
        )
        .add(IdentityServiceServer::new(identity_rpc).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(ChangeServiceServer::new(changes).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(NodeServer::new(Arc::new(nodes::service::NodeRpc::new(hub, jobs, stop.clone()))));
    if let Some(meanwhile) = meanwhile {
        meanwhile.end().await;
        show_pages(parts, &served_with, &inner).await?;
    }
    let listeners = open_doors(config, listener, identities.is_some()).await?;
    let served = over.run_until_cancelled(server.serve(listeners, stop)).await;
    tracing::info!("no longer serving calls");
    Ok(served.unwrap_or(Ok(()))?)
}

/// Serves metrics and the page of health until `stop`, if they are configured.
///
/// # Errors
/// The address cannot be bound.
pub(crate) async fn show_pages(
    parts: &StateParts,
    served_with: &ServerConfig,
    stop: &CancellationToken,
) -> Result<Option<ServedPages>, Error> {
    if !served_with.metrics {
        return Ok(None);
    }
    let pages =
        parts.metrics.serve_secured(served_with.metrics_listen, &served_with.security, stop.clone()).await;
    Ok(Some(pages?))
}

/// Where a state answers: at `listener` and, where callers have identities, at its socket.
///
/// # Errors
/// The socket cannot be made.
pub(crate) async fn open_doors(
    config: &Config,
    listener: TcpListener,
    has_identities: bool,
) -> Result<Listeners, Error> {
    let listeners = Listeners::from(listener);
    let Some(socket) = config.socket().filter(|_| has_identities) else { return Ok(listeners) };
    Ok(listeners.and_unix(UnixDoor::bind(&socket).await.map_err(ServerError::from)?))
}

/// What sessions, the feed and the RPCs of a state share.
pub(crate) fn new_hub(parts: &StateParts, store: &Store) -> Arc<NodeSessions> {
    let StateParts { config, clock, counted, crash, .. } = parts;
    Arc::new(NodeSessions::new(
        store.clone(),
        Arc::clone(clock),
        timing(config),
        measuring(config),
        quarantine(config),
        failing(config),
        counted.clone(),
        crash.clone(),
    ))
}

/// The registration of a state among the members.
pub(crate) fn own_registration(parts: &StateParts) -> LeaseRequest {
    LeaseRequest {
        name: format!("{STATES}{}", parts.config.name),
        holder: uuid::Uuid::now_v7().to_string(),
        address: parts.place.address.clone(),
        ttl_ms: millis(*parts.config.lease.ttl),
    }
}

async fn join(tasks: Vec<JoinHandle<()>>) -> Result<(), Error> {
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await.map_err(|_| Error::Panicked));
    }
    ended
}

async fn gauges(hub: Arc<NodeSessions>, stop: CancellationToken) {
    loop {
        hub.metrics.store(&hub.store.status());
        tokio::select! {
            () = tokio::time::sleep(GAUGE_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Ends the sessions at a stop, so that the server need not cut them.
async fn farewell(hub: Arc<NodeSessions>, stop: CancellationToken, inner: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => hub.close_all(Close::Stopping),
        () = inner.cancelled() => {}
    }
}

fn measuring(config: &Config) -> Measuring {
    Measuring {
        smoothing: Smoothing {
            window_ms: u64::from(millis(*config.usage_window)),
            half_life_ms: u64::from(millis(*config.usage_half_life)),
        },
        headroom_percent: config.usage_headroom_percent,
        step_percent: config.usage_step_percent,
        load_step_percent: config.load_step_percent,
    }
}

fn quarantine(config: &Config) -> quarantine::Config {
    quarantine::Config {
        n_refusals: config.quarantine_refusals,
        window_ms: u64::from(millis(*config.quarantine_window)),
        lasts_ms: u64::from(millis(*config.quarantine_for)),
    }
}

fn failing(config: &Config) -> FailureConfig {
    FailureConfig {
        n_replicas: config.quarantine_failures,
        window_ms: u64::from(millis(*config.quarantine_window)),
        ..FailureConfig::default()
    }
}

/// Has the change log written, with what this server refuses. Returns the service that shows it.
fn begin_change_log(
    config: &Config,
    hub: &Arc<NodeSessions>,
    clock: SharedClock,
    security: &ServerSecurity,
    tasks: &mut ServiceTasks<'_>,
) -> ChangeRpc {
    let age_ms = u64::try_from(config.changes_age_max.as_millis()).unwrap_or(u64::MAX);
    let limits = ChangeLimits { age_ms, n_max: config.changes_max };
    let refused_here = security.call_log().cloned();
    let (log, writer) = ChangeLog::new(hub.store.clone(), Arc::clone(&clock), limits, refused_here);
    tasks.spawn("changes", writer.run(tasks.end.clone()));
    ChangeRpc::new(Arc::clone(hub), log, clock, tasks.service.clone())
}

fn timing(config: &Config) -> Timing {
    Timing {
        heartbeat_interval_ms: millis(*config.heartbeat_interval),
        heartbeat_jitter_percent: config.heartbeat_jitter_percent,
        report_statuses_max: config.report_statuses_max,
        lease_ttl_ms: millis(*config.node_lease_ttl),
        stop_after_disconnect_ms: millis(config.stop_after_disconnect()),
        open_timeout_ms: millis(*config.session_open_timeout),
        node_grace_ms: millis(*config.node_grace),
        node_absence_ms: config
            .node_absence
            .map_or(0, |absence| u64::try_from(absence.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> OpenError {
        OpenError::NoSpace { needed: 10, free: 1 }
    }

    const DIR: &str = "d";

    /// A start that fails late leaves no task behind that holds the store.
    #[tokio::test]
    async fn a_start_that_fails_leaves_no_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            Config { data_dir: dir.path().join("state"), tls: Some(TlsMode::Migrate), ..Config::default() };
        config.server.metrics = false;
        // Bound once there are identities.
        config.socket = Some(dir.path().join("x".repeat(200)));
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let deps = Deps { listener: Some(listener), ..Deps::default() };
            let failed = serve(config.clone(), deps, CancellationToken::new()).await;
            assert!(matches!(failed, Err(Error::Server(_))), "{failed:?}");
            assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
        }
    }

    #[tokio::test]
    async fn a_start_on_a_full_disk_waits_until_there_is_room() {
        let (stop, mut n_tries) = (CancellationToken::new(), 0);
        let open = || {
            n_tries += 1;
            let opened = if n_tries < 5 { Err(full()) } else { Ok(n_tries) };
            tokio::task::spawn_blocking(move || opened)
        };
        assert_eq!(open_when_possible(open, Path::new(DIR), Duration::ZERO, &stop).await.unwrap(), Some(5));
    }

    #[tokio::test]
    async fn a_start_can_be_stopped_while_opening_does_not_end() {
        let stop = CancellationToken::new();
        let (end, never) = std::sync::mpsc::channel::<()>();
        let never = std::sync::Mutex::new(Some(never));
        let open = || {
            let never = never.lock().unwrap().take().unwrap();
            let stop = stop.clone();
            tokio::task::spawn_blocking(move || {
                stop.cancel();
                // As sled does with some damaged files.
                never.recv().map_err(|_| full())
            })
        };
        let opened = open_when_possible(open, Path::new(DIR), Duration::ZERO, &stop).await;
        assert!(matches!(opened, Ok(None)));
        drop(end);
    }

    #[tokio::test]
    async fn a_start_that_waits_for_disk_room_can_be_stopped() {
        let (stop, mut n_tries) = (CancellationToken::new(), 0);
        let open = || {
            n_tries += 1;
            if n_tries == 3 {
                stop.cancel();
            }
            tokio::task::spawn_blocking(|| Err::<(), _>(full()))
        };
        let opened = open_when_possible(open, Path::new(DIR), Duration::ZERO, &stop).await;
        assert!(matches!(opened, Ok(None)));
        let open = || tokio::task::spawn_blocking(|| Err::<(), _>(OpenError::Locked { dir: DIR.into() }));
        let opened =
            open_when_possible(open, Path::new(DIR), Duration::ZERO, &CancellationToken::new()).await;
        assert!(matches!(opened, Err(Error::Open { source: OpenError::Locked { .. }, .. })));
    }
}
