//! The rescheduler: finds running units that should be elsewhere, and moves them.
//!
//! One of several reschedulers leads (lease `rescheduler`). Which policy runs when, where running units should be, in which order they move and how a
//! movement goes on is decided by [`godel_core_rescheduler`]; this crate follows the store, writes movements down, and asks the
//! binder for each move. What is in the records survives a restart: movements, and when units were moved. When policies ran, and traffic and
//! checkpoints that were reported, are known to the leader alone.
//!
//! # Modules
//!
//! - `checkpoints`: when running units saved their work last.
//! - `config`: configuration of the rescheduler.
//! - `engine`: the one task that owns the rescheduler's state.
//! - `http`: runs of policies by HTTP, and by the signal SIGUSR1.
//! - `metrics`: counters of the rescheduler.
//! - `picture`: the cluster as the rescheduler follows it.
//! - `record`: movements and moves of units as records.
//! - `rpc`: RescheduleService.
//! - `snapshot`: what plans are made of, with the scheduler's filters.
//! - `traffic`: which units talk to one another.

mod checkpoints;
mod config;
mod engine;
mod http;
mod metrics;
mod picture;
mod record;
mod rpc;
mod snapshot;
mod traffic;

use std::sync::Arc;

use godel_kit::{
    CancellationToken,
    client::Directory,
    metrics::Metrics,
    service::{self, Lease, Service},
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
    let service = Service::start(LEASE, metrics, &config.server, &config.crash_points, deps, &stop).await?;
    let directory = Directory::new(&config.client).map_err(service::Error::State)?;
    let state = directory.state();
    let lease = service.lease(LEASE, config.lease.clone(), "rescheduler.lease-renew", Vec::new);
    let election = service.elect(lease, state.clone());
    let (calls, calls_rx) = mpsc::channel(N_CALLS);
    http::answer(&service.metrics, &config.server, &calls);
    http::follow_signal(&calls, service.stop.clone());
    let engine = Engine::new(EngineParts {
        directory,
        reload,
        follower: service.follow(state, picture::FOLLOWS),
        leadership: election.watch(),
        calls: calls_rx,
        clock: service.clock.clone(),
        crash: service.crash.clone(),
        metrics: metrics::RescheduleMetrics::new(&service.metrics),
        config,
    });
    let engine = engine.run(service.stop.clone());
    Ok(service.run(engine, Lease::Leader(election), |server| server.add(rpc::service(calls))).await?)
}
