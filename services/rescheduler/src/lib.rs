//! The rescheduler: finds running units that should be elsewhere, and moves them.
//!
//! One of several reschedulers leads (lease `rescheduler`). Where running units should be and in which order they move is decided by
//! [`godel_core_rescheduler`], and what a leader does with that by [`godel_core_rescheduler_leader`]; this crate follows the store, carries the leader's
//! records to it and its moves to the binder, and answers calls. What is in the records survives a restart: movements, and when units were moved. When
//! policies ran, and traffic and checkpoints that were reported, are known to the leader alone.
//!
//! # Modules
//!
//! - `config`: configuration of the rescheduler.
//! - `engine`: the one task around the leading rescheduler.
//! - `http`: runs of policies by HTTP, and by the signal SIGUSR1.
//! - `metrics`: counters of the rescheduler.
//! - `record`: movements and moves of units as records.
//! - `rpc`: RescheduleService.

mod config;
mod engine;
mod http;
mod metrics;
mod record;
mod rpc;

use std::sync::Arc;

use godel_kit::{
    CancellationToken,
    client::Directory,
    leader::LeaderTerms,
    metrics::Metrics,
    security::Role,
    service::{self, Lease, Service, ServiceStart},
};
use tokio::sync::mpsc;

use crate::engine::{Engine, EngineParts};

pub use crate::config::{BadPolicies, Config, PolicySpec};
pub use godel_kit::Deps;

/// Name of the lease that the leader holds.
pub const LEASE: &str = "rescheduler";
/// Calls that wait for the engine.
const N_CALLS: usize = 64;

/// Reads the configuration again; what is wrong with it in words.
pub type Reload = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// Why a rescheduler ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its policies make no sense.
    #[error("the policies of the rescheduler")]
    Policies(#[from] BadPolicies),
    /// It cannot start, or something that it cannot live without is gone.
    #[error(transparent)]
    Service(#[from] service::Error),
}

/// Runs a rescheduler until `stop`. `reload` reads its configuration again now and then; without it policies stay as they are.
///
/// # Errors
/// The rescheduler cannot start, or something that it cannot live without is gone.
pub async fn serve(
    config: Config,
    reload: Option<Reload>,
    deps: Deps,
    stop: CancellationToken,
) -> Result<(), Error> {
    config.rescheduling()?;
    let metrics = Metrics::new(LEASE);
    let begin = ServiceStart {
        name: LEASE,
        role: Role::Rescheduler,
        own_name: None,
        server: &config.server,
        client: &config.client,
        identity: &config.identity,
        crash_points: &config.crash_points,
    };
    let Some(service) = Service::start(begin, metrics, deps, &stop).await? else { return Ok(()) };
    let directory = Directory::new(&service.client).map_err(service::Error::State)?;
    let state = directory.state();
    let lease = service.lease(LEASE, config.lease.clone(), "rescheduler.lease-renew", Vec::new);
    let election = service.elect(lease, state.clone());
    let (calls, calls_rx) = mpsc::channel(N_CALLS);
    http::answer(&service.metrics, &config.server, &calls);
    http::follow_signal(&calls, service.stop.clone());
    let engine = Engine::new(EngineParts {
        directory,
        reload,
        follower: service.follow(state.clone(), godel_core_rescheduler_leader::FOLLOWS),
        terms: LeaderTerms::new(election.watch(), state.clone(), config.txn.clone()),
        calls: calls_rx,
        clock: service.clock.clone(),
        crash: service.crash.clone(),
        metrics: metrics::RescheduleMetrics::new(&service.metrics),
        config,
    });
    let engine = engine.run(service.stop.clone());
    Ok(service.run(engine, Lease::Leader(election), |server| server.add(rpc::service(calls))).await?)
}
