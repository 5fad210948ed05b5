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
//! - `link`: streams to leaders, reopened after a failure.
//! - `messages`: splits outgoing data into messages of bounded size.
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
    address::host_name,
    client::Directory,
    message::RECEIVED_BYTES_MAX,
    metrics::Metrics,
    security::Role,
    service::{self, Lease, Service, ServiceStart},
};
use godel_proto::v1::scheduler_service_server::SchedulerServiceServer;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{engine::Engine, metrics::SchedulerMetrics, rpc::Shown, specs::Specs};

pub use crate::config::{BadProfile, CheckedProfile, ClassName, Config, ProfileOfConfig};
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
    /// It cannot start, or something that it cannot live without is gone.
    #[error(transparent)]
    Service(#[from] service::Error),
}

/// Runs a scheduler until `stop`.
///
/// # Errors
/// The scheduler cannot start, or something that it cannot live without is gone.
pub async fn serve(mut config: Config, deps: Deps, stop: CancellationToken) -> Result<(), Error> {
    if config.name.is_empty() {
        config.name = host_name().map_err(service::Error::State)?;
    }
    check_name(&config.name)?;
    let decides = config.core()?;
    let metrics = Metrics::with_labels("scheduler", [("scheduler", config.name.as_str())]);
    let begin = ServiceStart {
        name: "scheduler",
        role: Role::Scheduler,
        own_name: Some(&config.name),
        server: &config.server,
        client: &config.client,
        identity: &config.identity,
        crash_points: &config.crash_points,
    };
    let Some(service) = Service::start(begin, metrics, deps, &stop).await? else { return Ok(()) };
    let directory = Directory::new(&service.client).map_err(service::Error::State)?;
    let (shown, shown_rx) = watch::channel(Shown::default());
    let (plans, plans_rx) = mpsc::channel(N_PLANS);
    let counted = shown_rx.clone();
    let lease = service.lease(
        format!("scheduler/{}", config.name),
        config.lease.clone(),
        "scheduler.lease-renew",
        move || counters(&counted.borrow()),
    );
    let membership = service.register(lease, directory.state());
    let engine = Engine {
        core: Scheduler::new(decides.clone(), config.effective_seed()),
        decides,
        seed: config.effective_seed(),
        name: config.name.clone(),
        held_max: config.held_max,
        step_budget: config.step_budget.clamp(1, N_PLACEMENTS_MAX),
        reconnect_max: *config.reconnect_max,
        specs: Specs::new(directory.clone()),
        follower: service.follow(directory.state(), godel_core_scheduler::FOLLOWS),
        directory,
        membership: membership.watch(),
        plans: plans_rx,
        shown,
        clock: service.clock.clone(),
        crash: service.crash.clone(),
        metrics: SchedulerMetrics::new(&service.metrics),
    };
    let rpc = rpc::SchedulerRpc { name: config.name.clone(), shown: shown_rx, plans };
    let engine = engine.run(service.stop.clone());
    let served = service.run(engine, Lease::Member(membership), |server| {
        server.add(SchedulerServiceServer::new(rpc).max_decoding_message_size(RECEIVED_BYTES_MAX))
    });
    Ok(served.await?)
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
