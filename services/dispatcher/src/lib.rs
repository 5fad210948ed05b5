//! The dispatcher service: the entry point of work.
//!
//! One leader at a time. It validates and admits units, makes them durable in batches, queues them, hands them
//! to schedulers within their credits, keeps the records of queues and priority classes, follows up on what was cancelled or scaled in, and keeps the split of
//! nodes. A standby answers NOT_LEADER, and follows the store so that it can lead at once. All decisions are `godel_core_dispatcher`'s; one task owns that state
//! and everything else sends it messages. Nothing is kept here that a new leader cannot read from state.
//!
//! # Modules
//!
//! - `admission_room`: room for submissions that wait to become durable, shared between principals.
//! - `call_limiter`: the limit on submissions that are under way.
//! - `config`: configuration of the dispatcher.
//! - `convert`: messages of the API that only the dispatcher shows.
//! - `engine`: one leadership: carries what the leading dispatcher reads, writes and answers.
//! - `leader_client`: what RPC handlers know of the leader.
//! - `metrics`: counters of the dispatcher.
//! - `pages`: units and records as lists and single calls show them.
//! - `requests`: what RPC handlers ask of the task that owns the dispatcher.
//! - `rpc`: the RPCs of the dispatcher.
//! - `standby`: follows the store until the dispatcher leads.

mod admission_room;
mod call_limiter;
mod config;
mod convert;
mod engine;
mod leader_client;
mod metrics;
mod pages;
mod requests;
mod rpc;
mod standby;

use std::sync::Arc;

use godel_kit::{
    CancellationToken,
    client::Directory,
    leader::{LeaderTerms, TermChange},
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    security::Role,
    service::{Lease, Service, ServiceStart},
};
use godel_proto::v1::{
    budget_service_server::BudgetServiceServer, dispatch_service_server::DispatchServiceServer,
    queue_service_server::QueueServiceServer, reservation_service_server::ReservationServiceServer,
    unit_service_server::UnitServiceServer,
};
use leader_client::Front;
use metrics::DispatcherMetrics;
use standby::Standby;
use tokio::sync::watch;

pub use config::{Config, DispatchPolicy, ShuffleConfig, Split};
pub use godel_kit::{Deps, service::Error};

/// Name of the leader's lease.
const LEASE: &str = "dispatcher";

/// Runs a dispatcher until `stop`: serves, stands for election, and dispatches while it leads.
///
/// # Errors
/// The dispatcher cannot start, or something that it cannot live without is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let metrics = Metrics::new("dispatcher");
    let begin = ServiceStart {
        name: "dispatcher",
        role: Role::Dispatcher,
        own_name: None,
        server: &config.server,
        client: &config.client,
        identity: &config.identity,
        crash_points: &config.crash_points,
    };
    let Some(service) = Service::start(begin, metrics, deps, &stop).await? else { return Ok(()) };
    let stop = service.stop.clone();
    let metrics = DispatcherMetrics::new(&service.metrics);
    let directory = Directory::new(&service.client)?;
    let counted = metrics.clone();
    let lease = service.lease(LEASE, config.lease.clone(), "dispatcher.lease-renew", move || {
        let gauge = |value: i64| u64::try_from(value).unwrap_or(0);
        vec![("queued", gauge(counted.queued.get())), ("units", gauge(counted.units.get()))]
    });
    let election = service.elect(lease, directory.state());
    let (term_sender, term) = watch::channel(None);
    let front = Front::new(election.watch(), term);
    let context = Arc::new(engine::TermContext {
        config: config.clone(),
        directory: directory.clone(),
        metrics: metrics.clone(),
        clock: service.clock.clone(),
        crash: service.crash.clone(),
        unread: service.unread.clone(),
    });
    let terms = LeaderTerms::new(election.watch(), directory.state(), config.txn.clone());
    let engine = lead_again(context, terms, term_sender, stop.clone());
    let callers = service.security().callers().map(|(records, _)| records);
    let units = rpc::units::UnitRpc::new(front.clone(), directory.clone(), metrics, callers);
    let queues = rpc::queues::QueueRpc::new(front.clone());
    let budgets = rpc::budgets::BudgetRpc::new(front.clone());
    let reservations = rpc::reservations::ReservationRpc::new(front.clone());
    let dispatch = rpc::dispatch::Dispatch::new(front, directory, &config, stop.clone());
    service
        .run(engine, Lease::Leader(election), |server| {
            server
                .add(UnitServiceServer::new(units).max_decoding_message_size(RECEIVED_BYTES_MAX))
                .add(QueueServiceServer::new(queues).max_decoding_message_size(RECEIVED_BYTES_MAX))
                .add(BudgetServiceServer::new(budgets).max_decoding_message_size(RECEIVED_BYTES_MAX))
                .add(
                    ReservationServiceServer::new(reservations).max_decoding_message_size(RECEIVED_BYTES_MAX),
                )
                .add(DispatchServiceServer::new(dispatch).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
}

/// Leads whenever the lease is granted, one term after the other, and follows the store between them.
async fn lead_again(
    context: Arc<engine::TermContext>,
    mut terms: LeaderTerms,
    publish: watch::Sender<Option<leader_client::LeaderHandle>>,
    stop: CancellationToken,
) -> Result<(), Error> {
    loop {
        let standby = Standby::begin(Arc::clone(&context), stop.clone());
        let Some(mut standby) = stop.run_until_cancelled(standby).await else { return Ok(()) };
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                change = terms.changed() => match change {
                    Some(TermChange::Elected) => break,
                    Some(TermChange::Ended { .. }) => {}
                    None if stop.is_cancelled() => return Ok(()),
                    None => return Err(Error::Lease),
                },
                event = standby.follower.next() => match event {
                    Some(event) => standby.on_follow(event),
                    None if stop.is_cancelled() => return Ok(()),
                    None => return Err(Error::Informer),
                },
            }
        }
        let Some(grant) = terms.grant() else { continue };
        context.metrics.leader.set(1);
        let ended = engine::run(&context, grant, standby, &publish, stop.clone()).await;
        publish.send_replace(None);
        context.metrics.leader.set(0);
        if ended.is_err() && grant.fence.is_valid() && !stop.is_cancelled() {
            // A second term under the same grant could not tell its transactions from the first one's.
            return Err(Error::Informer);
        }
    }
}
