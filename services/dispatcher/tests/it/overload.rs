//! More comes than the control plane places: calls are refused, streams are not read, nothing is lost.

use std::collections::BTreeSet;

use godel_dispatcher::Config;
use godel_kit::status;
use godel_proto::v1::{self, attach_request::Message};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::world::{Binder, LONG, Process, Scheduler, World, eventually, record_of, unit};

async fn submit(to: &Process, name: &str) -> Result<v1::SubmitUnitResponse, Status> {
    // Each lacks something else when it is parked: what lacks the same waits with it.
    let deadline = name.bytes().fold(600_000, |sum, byte| sum + u64::from(byte));
    let unit = v1::UnitSpec { active_deadline_ms: Some(deadline), ..unit(name, 1) };
    let request = v1::SubmitUnitRequest { unit: Some(unit) };
    to.units().submit_unit(request).await.map(tonic::Response::into_inner)
}

/// Refused for now, with a hint when to come back.
async fn refused(to: &Process, name: &str) {
    let refused = submit(to, name).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(status::has_reason(&refused, status::reason::OVERLOADED));
    assert!(status::retry_after(&refused).is_some_and(|hint| !hint.is_zero()), "{refused:?}");
}

async fn admitted(to: &Process, name: &str) {
    eventually(&format!("{name} is admitted"), || async { submit(to, name).await.ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_refused_while_as_many_as_may_be_are_in_hand() {
    let world = World::new().await;
    let config = Config { calls_in_hand_max: 4, calls_in_hand_overloaded: 4, ..world.config() };
    let dispatcher = world.dispatcher_with(config).await;
    dispatcher.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    for name in ["a", "b", "c", "d"] {
        submit(&dispatcher, name).await.unwrap();
    }
    let units = scheduler.units(4).await;
    refused(&dispatcher, "e").await;
    refused(&dispatcher, "f").await;
    assert_eq!(dispatcher.status().await.units, 4, "what was refused is not there");
    // One without room is the cluster's business.
    scheduler.report(&units[0], v1::UnitReportState::Parked, "insufficient cpu").await;
    admitted(&dispatcher, "e").await;
    refused(&dispatcher, "f").await;
    binder.bind(record_of(&units[1]).unit_id, &[0], node, 1).await;
    admitted(&dispatcher, "f").await;
    refused(&dispatcher, "g").await;
    // One that nobody wants any more.
    let cancel = v1::CancelUnitRequest { name: "c".into(), ..v1::CancelUnitRequest::default() };
    dispatcher.units().cancel_unit(cancel).await.unwrap();
    admitted(&dispatcher, "g").await;
    assert_eq!(dispatcher.status().await.units, 7);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_scheduler_units_are_queued_and_nobody_is_refused() {
    let world = World::new().await;
    let config = Config { calls_in_hand_max: 4, streams_backlog_max: 1, ..world.config() };
    let dispatcher = world.dispatcher_with(config).await;
    dispatcher.leads().await;
    for number in 0..20 {
        submit(&dispatcher, &format!("u{number}")).await.unwrap();
    }
    let status = dispatcher.status().await;
    assert_eq!((status.units, status.queued_units), (20, 20));
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_pause_while_schedulers_are_behind_and_drop_nothing() {
    const N_UNITS: u64 = 1_500;
    /// The backlog at which streams pause, and what may be on its way there then.
    const BACKLOG_MAX: u64 = 16 + 64;
    let world = World::new().await;
    let config = Config { streams_backlog_max: 16, admission_queue_kib: 64, ..world.config() };
    let dispatcher = world.dispatcher_with(config).await;
    dispatcher.leads().await;
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 1).await;
    let (sender, receiver) = mpsc::channel(64);
    let sending = tokio::spawn(async move {
        for index in 0..N_UNITS {
            let unit = Some(unit(&format!("u{index:04}"), 1));
            sender.send(v1::SubmitUnitsRequest { index, unit }).await.unwrap();
        }
    });
    let mut answers =
        dispatcher.units().submit_units(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let mut handed = BTreeSet::new();
    while (handed.len() as u64) < N_UNITS {
        let status = dispatcher.status().await;
        assert!(status.queued_units <= BACKLOG_MAX, "{status:?}");
        for unit in scheduler.units_of_next().await {
            handed.insert(record_of(&unit).unit_id);
        }
        scheduler.say(Message::Credits(40)).await;
    }
    let mut below = 0;
    while let Some(answer) = timeout(LONG, answers.message()).await.unwrap().unwrap() {
        assert!(answer.errors.is_empty());
        below = answer.durable_below;
    }
    sending.await.unwrap();
    assert_eq!((below, dispatcher.status().await.units), (N_UNITS, N_UNITS));
    world.end([dispatcher]).await;
}
