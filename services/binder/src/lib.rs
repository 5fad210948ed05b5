//! The binder: the one place where the decisions of the schedulers become placements, and the only writer of
//! placements.
//!
//! One of several binders leads (lease `binder`). All follow the records, so that the next leader is warm; a
//! standby answers NOT_LEADER with the leader's address. The leader checks each decision against the records
//! and everything under way ([`godel_core_binder`]), puts many into one transaction, keeps a few
//! transactions under way and answers once they are durable. Nothing is kept across a restart: what was
//! under way and not answered is sent again by its scheduler.
//!
//! # Modules
//!
//! - `config`: configuration of the binder.
//! - `desk`: the leading binder: checks decisions, writes transactions, answers.
//! - `engine`: the task that owns the leading binder.
//! - `metrics`: counters of the binder.
//! - `rpc`: the RPCs of the binder.

mod config;
mod desk;
mod engine;
mod metrics;
mod rpc;

use std::sync::{Arc, atomic::AtomicU64};

use godel_kit::{
    client::{BadAddress, Directory, channel},
    crash::{CrashPoints, CrashPointsError},
    follow::{FollowConfig, Follower, Shared, UNREAD_COUNTER, UnreadCount},
    lease::{Election, LeaseSpec},
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    server::{Server, ServerError, advertised, bind},
};
use godel_proto::v1::{Kind, bind_service_server::BindServiceServer};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{desk::Desk, engine::Engine, metrics::BinderMetrics, rpc::Role};

pub use crate::config::Config;
pub use godel_kit::Deps;

/// Name of the lease that the leader holds.
pub const LEASE: &str = "binder";

/// Messages of streams that wait for the engine.
const N_INPUTS: usize = 64;

/// Why a binder ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the state service is malformed.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// The configured crash points make no sense.
    #[error(transparent)]
    CrashPoints(#[from] CrashPointsError),
    /// It cannot serve.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The task that follows the store is gone.
    #[error("the store cannot be followed any more")]
    Follower,
    /// The task that stands for election is gone.
    #[error("the election is over")]
    Election,
    /// The engine's task panicked.
    #[error("the engine is gone")]
    Engine,
}

/// Runs a binder until `stop`.
///
/// # Errors
/// It cannot start, or something that it cannot live without is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    // What fails here must not stop others that share the caller's token: they get the error.
    let stop = stop.child_token();
    let crash = match config.crash_points.as_str() {
        "" => deps.crash,
        armed => CrashPoints::parse(armed)?,
    };
    let listener = match deps.listener {
        Some(listener) => listener,
        None => bind(config.server.listen).await?,
    };
    let local = listener
        .local_addr()
        .map_err(|source| ServerError::Bind { address: config.server.listen, source })?;
    let address = advertised(&config.server, local)?;
    let metrics = Metrics::new("binder");
    if config.server.metrics {
        metrics.serve(config.server.metrics_listen, stop.clone()).await?;
    }
    let binder_metrics = BinderMetrics::new(&metrics);
    let state = channel(&config.client.state, &config.client)?;

    // The engine steps down before the lease is given back.
    let lease_stop = CancellationToken::new();
    let unread = UnreadCount::register(&metrics);
    let counted = unread.clone();
    let spec = LeaseSpec::new(LEASE, address, config.lease.clone())
        .with_counters(move || vec![(UNREAD_COUNTER, counted.get())])
        .with_crash(crash.clone(), "binder.lease-renew");
    let election = Election::spawn(spec, state.clone(), lease_stop.clone());
    let kinds = vec![
        Kind::NodeSpec,
        Kind::NodeReport,
        Kind::NodeGrant,
        Kind::NodeUsage,
        Kind::UnitSpec,
        Kind::Queue,
        Kind::PriorityClass,
        Kind::DisruptionBudget,
        Kind::Reservation,
        Kind::Hold,
        Kind::Rows,
    ];
    let shared = Shared { unread, ..Shared::default() };
    let follower = Follower::spawn_with(state.clone(), kinds, FollowConfig::default(), shared, stop.clone());

    let (inputs, inputs_rx) = mpsc::channel(N_INPUTS);
    let (evictions, evictions_rx) = mpsc::channel(N_INPUTS);
    let (role, role_rx) = watch::channel(Role::Standby { leader: None });
    let (gathering, gathering_rx) = watch::channel(Vec::new());
    let rpc = rpc::Rpc {
        role: role_rx,
        gathering: gathering_rx,
        inputs,
        evictions,
        metrics: binder_metrics.clone(),
        outcomes_queued_max: config.outcomes_queued_max,
        last_stream: Arc::new(AtomicU64::new(0)),
        directory: Directory::new(&config.client)?,
        stop: stop.clone(),
    };
    let engine = Engine {
        desk: Desk::new(config.clone(), binder_metrics.clone()),
        follower,
        inputs: inputs_rx,
        evictions: evictions_rx,
        leadership: election.watch(),
        role,
        gathering,
        state,
        txn: config.txn.clone(),
        txns_in_flight_max: config.txns_in_flight_max.min(config.txn.max_in_flight),
        clock: deps.clock,
        crash,
        metrics: binder_metrics,
    };
    let engine_stop = stop.clone();
    let engine = godel_kit::task::spawn_service("binder", &stop, async move {
        let ended = engine.run(engine_stop.clone()).await;
        // Without its engine the binder is worth nothing.
        engine_stop.cancel();
        ended
    });
    let served = Server::new(&config.server, &metrics)
        .add(BindServiceServer::new(rpc).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .serve(listener, stop.clone())
        .await;
    stop.cancel();
    let ended = engine.await.map_err(|_| Error::Engine);
    lease_stop.cancel();
    election.released().await;
    served?;
    ended?
}
