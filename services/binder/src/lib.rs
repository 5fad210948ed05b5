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
//! - `engine`: the task that owns the leading binder.
//! - `metrics`: counters of the binder.
//! - `rpc`: the RPCs of the binder.
//! - `streams`: where the leading binder's messages go.

mod config;
mod engine;
mod metrics;
mod rpc;
mod streams;

use std::sync::{Arc, atomic::AtomicU64};

use godel_core_binder::leader::BinderLeader;
use godel_kit::{
    client::{Directory, channel},
    leader::LeaderTerms,
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    security,
    service::{Lease, Service, ServiceStart},
};
use godel_proto::v1::bind_service_server::BindServiceServer;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{engine::Engine, metrics::BinderMetrics, rpc::Role, streams::Streams};

pub use crate::config::Config;
pub use godel_kit::{Deps, service::Error};

/// Name of the lease that the leader holds.
pub const LEASE: &str = "binder";

/// Messages of streams that wait for the engine.
const N_INPUTS: usize = 64;

/// Runs a binder until `stop`.
///
/// # Errors
/// The binder cannot start, or something that it cannot live without is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let metrics = Metrics::new("binder");
    let begin = ServiceStart {
        name: "binder",
        role: security::Role::Binder,
        own_name: None,
        server: &config.server,
        client: &config.client,
        identity: &config.identity,
        crash_points: &config.crash_points,
    };
    let Some(service) = Service::start(begin, metrics, deps, &stop).await? else { return Ok(()) };
    let metrics = BinderMetrics::new(&service.metrics);
    let state = channel(&service.client.state, &service.client)?;
    let lease = service.lease(LEASE, config.lease.clone(), "binder.lease-renew", Vec::new);
    let election = service.elect(lease, state.clone());
    let (inputs, inputs_rx) = mpsc::channel(N_INPUTS);
    let (leaves, leaves_rx) = mpsc::channel(N_INPUTS);
    let (role, role_rx) = watch::channel(Role::Standby { leader: None });
    let (gathering, gathering_rx) = watch::channel(Vec::new());
    let rpc = rpc::BinderRpc {
        role: role_rx,
        gathering: gathering_rx,
        inputs,
        leaves,
        metrics: metrics.clone(),
        outcomes_queued_max: config.outcomes_queued_max,
        last_stream: Arc::new(AtomicU64::new(0)),
        directory: Directory::new(&service.client)?,
        clock: service.clock.clone(),
        stop: service.stop.clone(),
    };
    let engine = Engine {
        leader: BinderLeader::new(config.leader()),
        streams: Streams::new(metrics.clone()),
        follower: service.follow(state.clone(), godel_core_binder::FOLLOWS),
        inputs: inputs_rx,
        leaves: leaves_rx,
        terms: LeaderTerms::new(election.watch(), state, config.txn.clone()),
        role,
        gathering,
        txns_in_flight_max: config.txns_in_flight_max.min(config.txn.max_in_flight),
        clock: service.clock.clone(),
        crash: service.crash.clone(),
        metrics,
    };
    let engine = engine.run(service.stop.clone());
    service
        .run(engine, Lease::Leader(election), |server| {
            server.add(BindServiceServer::new(rpc).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
}
