//! A scheduler: gets whole units from the dispatcher, picks nodes for them, sends its decisions to the binder.
//! It never executes. Any number of schedulers work at the same time, optimistically; they may join and leave.
//!
//! The whole state machine is [`godel_core_scheduler`]; this crate reads the records, keeps the streams to
//! the two leaders open and the registration alive. Nothing survives a restart: a scheduler that comes back
//! is a new one, and its units have gone to others.
//!
//! # Modules
//!
//! - `config`: configuration of a scheduler.
//! - `convert`: assignments, reports and plans, as messages and as domain types.
//! - `engine`: the task that owns the scheduler's state.
//! - `link`: streams to leaders that are opened again after they break.
//! - `messages`: what is sent, cut into messages of bounded size.
//! - `metrics`: counters of a scheduler.
//! - `rpc`: the RPCs of a scheduler.
//! - `specs`: records of all units, read only while disruption budgets select some of them.

mod config;
mod convert;
mod engine;
mod link;
mod messages;
mod metrics;
mod rpc;
mod specs;

use godel_core_scheduler::Scheduler;
use godel_domain::decision::N_PLACEMENTS_MAX;
use godel_kit::{
    client::{BadAddress, Directory},
    crash::{CrashPoints, CrashPointsError},
    follow::{FollowConfig, Follower, Shared, UNREAD_COUNTER, UnreadCount},
    lease::{LeaseSpec, Membership},
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    server::{Server, ServerError, advertised, bind},
};
use godel_proto::v1::{Kind, scheduler_service_server::SchedulerServiceServer};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{engine::Engine, metrics::SchedulerMetrics, rpc::Shown, specs::Specs};

pub use crate::config::{BadProfile, Config};
pub use godel_kit::Deps;

/// Plans that wait for the engine.
const N_PLANS: usize = 16;
/// Longest name: it is part of a lease's name.
const NAME_LEN_MAX: usize = 63;

/// Why a scheduler ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its name cannot be part of a lease's name.
    #[error(
        "`{name}` cannot be a scheduler's name: 1 to {NAME_LEN_MAX} lower-case letters, digits, `-` and `.`"
    )]
    Name {
        /// As configured.
        name: String,
    },
    /// A configured profile makes no sense.
    #[error(transparent)]
    Profile(#[from] BadProfile),
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
    /// The task that keeps the registration is gone.
    #[error("the registration is over")]
    Membership,
    /// The engine's task panicked.
    #[error("the engine is gone")]
    Engine,
}

/// Runs a scheduler until `stop`.
///
/// # Errors
/// It cannot start, or something that it cannot live without is gone.
pub async fn serve(config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    check_name(&config.name)?;
    let decides = config.core()?;
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
    let metrics = Metrics::with_labels("scheduler", [("scheduler", config.name.as_str())]);
    if config.server.metrics {
        metrics.serve(config.server.metrics_listen, stop.clone()).await?;
    }
    let directory = Directory::new(&config.client)?;
    let (shown, shown_rx) = watch::channel(Shown::default());
    let (plans, plans_rx) = mpsc::channel(N_PLANS);

    // The engine ends before the registration is given back.
    let lease_stop = CancellationToken::new();
    let counted = shown_rx.clone();
    let unread = UnreadCount::register(&metrics);
    let unread_counted = unread.clone();
    let spec = LeaseSpec::new(format!("scheduler/{}", config.name), address, config.lease.clone())
        .with_counters(move || {
            let mut counters = counters(&counted.borrow());
            counters.push((UNREAD_COUNTER, unread_counted.get()));
            counters
        })
        .with_crash(crash.clone(), "scheduler.lease-renew");
    let membership = Membership::spawn(spec, directory.state(), lease_stop.clone());
    let kinds = vec![
        Kind::NodeSpec,
        Kind::NodeReport,
        Kind::NodeGrant,
        Kind::NodeUsage,
        Kind::Partition,
        Kind::PartitionBlock,
        Kind::Queue,
        Kind::PriorityClass,
        Kind::DisruptionBudget,
        Kind::Reservation,
        Kind::Hold,
        Kind::Pause,
        Kind::Rows,
    ];
    let shared = Shared { unread, ..Shared::default() };
    let follower =
        Follower::spawn_with(directory.state(), kinds, FollowConfig::default(), shared, stop.clone());
    let engine = Engine {
        core: Scheduler::new(decides.clone(), config.effective_seed()),
        decides,
        seed: config.effective_seed(),
        name: config.name.clone(),
        held_max: config.held_max,
        step_budget: config.step_budget.clamp(1, N_PLACEMENTS_MAX),
        reconnect_max: *config.reconnect_max,
        specs: Specs::new(directory.clone()),
        directory,
        follower,
        membership: membership.watch(),
        plans: plans_rx,
        shown,
        clock: deps.clock,
        crash,
        metrics: SchedulerMetrics::new(&metrics),
    };
    let engine_stop = stop.clone();
    let engine = godel_kit::task::spawn_service("scheduler", &stop, async move {
        let ended = engine.run(engine_stop.clone()).await;
        // Without its engine the scheduler is worth nothing.
        engine_stop.cancel();
        ended
    });
    let rpc = rpc::Rpc { name: config.name.clone(), shown: shown_rx, plans };
    let server = Server::new(&config.server, &metrics)
        .add(SchedulerServiceServer::new(rpc).max_decoding_message_size(RECEIVED_BYTES_MAX));
    let served = server.serve(listener, stop.clone()).await;
    stop.cancel();
    let ended = engine.await.map_err(|_| Error::Engine);
    lease_stop.cancel();
    membership.released().await;
    served?;
    ended?
}

/// What the directory shows of a scheduler.
fn counters(shown: &Shown) -> Vec<(&'static str, u64)> {
    let stats = &shown.stats;
    vec![
        ("placed", stats.placed),
        ("conflicts", stats.conflicts),
        ("cache_hits", stats.cache_hits),
        ("cache_misses", stats.cache_misses),
        ("queued", u64::from(stats.running_units)),
        ("nodes", u64::from(stats.nodes)),
        ("units", u64::from(stats.units)),
        ("running_units", u64::from(stats.running_units)),
        ("parked_units", u64::from(stats.parked_units)),
    ]
}

fn check_name(name: &str) -> Result<(), Error> {
    let is_fine =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    if (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_fine) {
        return Ok(());
    }
    Err(Error::Name { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_part_of_a_lease() {
        for good in ["s1", "a-b.c", "9"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "S1", "a/b", "a b", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
