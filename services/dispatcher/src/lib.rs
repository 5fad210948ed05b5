//! The dispatcher service: the entry point of work.
//!
//! One leader at a time. It validates and admits units, makes them durable in batches, queues them, hands them
//! to schedulers within their credits, keeps the records of queues and priority classes, follows up on what was cancelled or scaled in, and keeps the split of
//! nodes. A standby answers NOT_LEADER. All decisions are `godel_core_dispatcher`'s; one task owns that state
//! and everything else sends it messages. Nothing is kept here that a new leader cannot read from state.
//!
//! # Modules
//!
//! - `calls`: what RPC handlers ask of the task that owns the dispatcher.
//! - `config`: configuration of the dispatcher.
//! - `convert`: messages of the API that only the dispatcher shows.
//! - `door`: the limit on submissions that are under way.
//! - `front`: what RPC handlers know of the leader.
//! - `metrics`: counters of the dispatcher.
//! - `rpc`: the RPCs of the dispatcher.
//! - `term`: one term of leadership: reads, decides, writes, answers.

mod calls;
mod config;
mod convert;
mod door;
mod front;
mod metrics;
mod rpc;
mod term;

use std::io;

use front::Front;
use godel_kit::{
    CancellationToken,
    client::{BadAddress, Directory},
    crash::{CrashPoints, CrashPointsError},
    follow::{UNREAD_COUNTER, UnreadCount},
    lease::{Election, LeaseSpec, leading},
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    server::{self, Server, ServerError},
};
use godel_proto::v1::{
    budget_service_server::BudgetServiceServer, dispatch_service_server::DispatchServiceServer,
    queue_service_server::QueueServiceServer, reservation_service_server::ReservationServiceServer,
    unit_service_server::UnitServiceServer,
};
use metrics::DispatcherMetrics;
use tokio::sync::watch;

pub use config::{Config, DispatchPolicy, ShuffleConfig, Split};
pub use godel_kit::Deps;

/// Name of the leader's lease.
const LEASE: &str = "dispatcher";

/// Why the service ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot serve.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The address of state is malformed.
    #[error("the address of the state service")]
    State(#[source] BadAddress),
    /// The configured crash points make no sense.
    #[error(transparent)]
    CrashPoints(#[from] CrashPointsError),
    /// An address cannot be used.
    #[error("cannot use the address")]
    Io(#[from] io::Error),
    /// The loop ended though the service led.
    #[error("the dispatcher's loop ended; see the log")]
    Loop,
}

/// Runs a dispatcher until `stop`: serves, stands for election, and dispatches while it leads.
///
/// # Errors
/// It cannot serve, or one of its tasks is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    let crash = match config.crash_points.as_str() {
        "" => deps.crash,
        armed => CrashPoints::parse(armed)?,
    };
    let listener = match deps.listener {
        Some(listener) => listener,
        None => server::bind(config.server.listen).await?,
    };
    let address = server::advertised(&config.server, listener.local_addr()?)?;
    let registry = Metrics::new("dispatcher");
    let metrics = DispatcherMetrics::new(&registry);
    // However this ends, its tasks end with it.
    let stop = stop.child_token();
    let _guard = stop.clone().drop_guard();
    if config.server.metrics {
        registry.serve(config.server.metrics_listen, stop.clone()).await?;
    }
    let directory = Directory::new(&config.client).map_err(Error::State)?;
    let counted = metrics.clone();
    let unread = UnreadCount::register(&registry);
    let unread_counted = unread.clone();
    let spec = LeaseSpec::new(LEASE, address, config.lease.clone())
        .with_counters(move || {
            let gauge = |value: i64| u64::try_from(value).unwrap_or(0);
            vec![
                ("queued", gauge(counted.queued.get())),
                ("units", gauge(counted.units.get())),
                (UNREAD_COUNTER, unread_counted.get()),
            ]
        })
        .with_crash(crash.clone(), "dispatcher.lease-renew");
    let election = Election::spawn(spec, directory.state(), stop.clone());
    let (term_sender, term) = watch::channel(None);
    let front = Front::new(election.watch(), term);

    let reign = {
        let context = term::Context {
            config: config.clone(),
            directory: directory.clone(),
            metrics: metrics.clone(),
            clock: deps.clock,
            crash,
            unread,
        };
        let (mut leadership, stop) = (election.watch(), stop.clone());
        godel_kit::task::spawn_service("dispatcher", &stop.clone(), async move {
            loop {
                let grant = tokio::select! {
                    () = stop.cancelled() => return true,
                    grant = leading(&mut leadership) => grant,
                };
                let Some((epoch, since, fence)) = grant else { return true };
                tracing::info!(epoch = epoch.0, "leading");
                context.metrics.leader.set(1);
                let ended =
                    term::run(&context, (epoch, since, fence.clone()), &term_sender, stop.clone()).await;
                term_sender.send_replace(None);
                context.metrics.leader.set(0);
                tracing::info!(epoch = epoch.0, "leading no more");
                if ended.is_err() && fence.is_valid() && !stop.is_cancelled() {
                    // A second term under the same grant could not tell its transactions from the first one's.
                    stop.cancel();
                    return false;
                }
            }
        })
    };
    let units = rpc::units::Units::new(front.clone(), directory.clone(), metrics);
    let queues = rpc::queues::Queues::new(front.clone());
    let budgets = rpc::budgets::Budgets::new(front.clone());
    let reservations = rpc::reservations::Reservations::new(front.clone());
    let dispatch = rpc::dispatch::Dispatch::new(front, directory, &config, stop.clone());
    let served = Server::new(&config.server, &registry)
        .add(UnitServiceServer::new(units).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(QueueServiceServer::new(queues).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(BudgetServiceServer::new(budgets).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(ReservationServiceServer::new(reservations).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .add(DispatchServiceServer::new(dispatch).max_decoding_message_size(RECEIVED_BYTES_MAX))
        .serve(listener, stop.clone())
        .await;
    stop.cancel();
    let sound = reign.await.unwrap_or(false);
    election.released().await;
    served?;
    if sound { Ok(()) } else { Err(Error::Loop) }
}
