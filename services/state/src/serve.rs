//! Puts the parts together and takes them apart in order.

use std::{sync::Arc, time::Duration};

use godel_core::{leases::Ask, quarantine, usage::Smoothing};
use godel_kit::{
    CancellationToken,
    clock::{SharedClock, SystemClock},
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    server::{self, Server},
    task,
};
use godel_proto::v1::member_service_server::MemberServiceServer;
use godel_store::{CrashPoints, Engine, SledConfig, Store, StoreConfig};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

use crate::{
    config::{Config, EngineKind},
    error::Error,
    feed,
    members::Members,
    metrics::StateMetrics,
    nodes,
    routes::{NodeServer, StateServer},
    sessions::{Hub, Timing, cell::Close, committer, measure::Measuring},
    state_service::StateRpc,
};

/// How often the store's sizes go into the metrics.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

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

/// Serves until `stop`: opens the store, registers state, runs the services, and closes the store at the end.
///
/// # Errors
/// The configuration is impossible, the store does not open, or the server fails.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    config.validate().map_err(Error::Config)?;
    let crash = CrashPoints::parse(&config.crash_points)?;
    let Deps { listener, engine, clock, metrics } = deps;
    let store = open(&config, engine, &clock, crash.clone()).await?;
    let served = run(&config, listener, &store, clock, metrics, crash, stop).await;
    store.close().await;
    served
}

async fn open(
    config: &Config,
    engine: Option<Engine>,
    clock: &SharedClock,
    crash: CrashPoints,
) -> Result<Store, Error> {
    let engine = engine.unwrap_or_else(|| match config.engine {
        EngineKind::Sled => Engine::Sled(SledConfig::new(&config.data_dir)),
        EngineKind::Memory => Engine::Memory(godel_store::log::memory::MemoryDisk::default()),
    });
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
    let clock = Arc::clone(clock);
    let open = move || Store::open(store, Arc::new(move || clock.wall_ms()), crash);
    // Opening reads the whole log.
    let opened = tokio::task::spawn_blocking(open).await.map_err(|_| Error::Panicked)?;
    opened.map_err(|source| Error::Open { dir: config.data_dir.display().to_string(), source })
}

async fn run(
    config: &Config,
    listener: Option<TcpListener>,
    store: &Store,
    clock: SharedClock,
    metrics: Metrics,
    crash: CrashPoints,
    stop: CancellationToken,
) -> Result<(), Error> {
    let listener = match listener {
        Some(listener) => listener,
        None => server::bind(config.server.listen).await?,
    };
    let local = listener.local_addr().unwrap_or(config.server.listen);
    if config.server.metrics {
        metrics.serve(config.server.metrics_listen, stop.clone()).await.map_err(Error::Metrics)?;
    }
    let counted = StateMetrics::new(&metrics);
    let hub = Arc::new(Hub::new(
        store.clone(),
        Arc::clone(&clock),
        (timing(config), measuring(config), quarantine(config)),
        counted.clone(),
        crash.clone(),
    ));
    let loading = Arc::clone(&hub);
    let load = tokio::task::spawn_blocking(move || feed::load(&loading));
    let watcher = load.await.map_err(|_| Error::Panicked)?;

    let own = Ask {
        name: format!("member/state/{}", config.name),
        holder: uuid::Uuid::now_v7().to_string(),
        address: config.server.advertised(local),
        ttl_ms: millis(*config.lease.ttl),
    };
    let (members, lease_writer) = Members::new(store.clone(), clock, crash, counted, own);
    let epoch = lease_writer.register().await.map_err(Error::Register)?;
    hub.set_epoch_base(epoch.0);
    let (jobs, job_queue) = mpsc::channel(nodes::writer::N_JOBS_MAX);
    tracing::info!(address = %local, store = hub.store_id().0, revision = store.status().revision.0, nodes = store.status().nodes, "state is up");

    // What the RPCs rest on outlives them.
    let inner = CancellationToken::new();
    let scan = *config.node_scan_interval;
    let tasks = vec![
        task::spawn_service("feed", &stop, feed::run(Arc::clone(&hub), watcher, inner.clone())),
        task::spawn_service("run-status", &stop, committer::run(Arc::clone(&hub), inner.clone())),
        task::spawn_service(
            "nodes",
            &stop,
            nodes::writer::run(Arc::clone(&hub), job_queue, scan, inner.clone()),
        ),
        task::spawn_service("leases", &stop, lease_writer.run(inner.clone())),
        task::spawn_service("gauges", &stop, gauges(Arc::clone(&hub), inner.clone())),
        task::spawn_service("farewell", &stop, farewell(Arc::clone(&hub), stop.clone(), inner.clone())),
    ];
    let rpc = StateRpc::new(Arc::clone(&hub), *config.watch_bookmark_interval, stop.clone());
    let served = Server::new(&config.server, &metrics)
        .add(StateServer::new(Arc::new(rpc)))
        .add(MemberServiceServer::new(members).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(NodeServer::new(Arc::new(nodes::service::Nodes::new(hub, jobs))))
        .serve(listener, stop)
        .await;
    inner.cancel();
    let ended = join(tasks).await;
    served?;
    ended
}

async fn join(tasks: Vec<JoinHandle<()>>) -> Result<(), Error> {
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await.map_err(|_| Error::Panicked));
    }
    ended
}

async fn gauges(hub: Arc<Hub>, stop: CancellationToken) {
    loop {
        hub.metrics.store(&hub.store.status());
        tokio::select! {
            () = tokio::time::sleep(GAUGE_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Ends the sessions at a stop, so that the server need not cut them.
async fn farewell(hub: Arc<Hub>, stop: CancellationToken, inner: CancellationToken) {
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
    }
}

fn quarantine(config: &Config) -> quarantine::Config {
    quarantine::Config {
        n_refusals: config.quarantine_refusals,
        window_ms: u64::from(millis(*config.quarantine_window)),
        lasts_ms: u64::from(millis(*config.quarantine_for)),
    }
}

fn timing(config: &Config) -> Timing {
    Timing {
        heartbeat_interval_ms: millis(*config.heartbeat_interval),
        lease_ttl_ms: millis(*config.node_lease_ttl),
        stop_after_disconnect_ms: millis(config.stop_after_disconnect()),
        open_timeout_ms: millis(*config.session_open_timeout),
        node_grace_ms: millis(*config.node_grace),
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
