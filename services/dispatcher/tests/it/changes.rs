//! Cancel, scale, watch, retention.

use godel_core::{
    ids::UnitId,
    rows::{Phase, RowChange, Statuses},
};
use godel_kit::to_proto;
use godel_proto::v1::{self, node_service_client::NodeServiceClient, session_request};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::world::{Binder, LONG, Scheduler, World, eventually, unit};

fn cancel(name: &str, expected_revision: u64) -> v1::CancelUnitRequest {
    v1::CancelUnitRequest { namespace: String::new(), name: name.into(), expected_revision }
}

fn scale(name: &str, replicas: u32) -> v1::ScaleUnitRequest {
    v1::ScaleUnitRequest { name: name.into(), replicas, ..v1::ScaleUnitRequest::default() }
}

/// The agent of a node: registered again under its uid, it reports what it is told to.
struct Agent {
    up: mpsc::Sender<v1::SessionRequest>,
    sequence: u64,
}

impl Agent {
    async fn new(world: &World, name: &str) -> (Self, u32) {
        let uid = uuid::Uuid::now_v7().to_string();
        let meta = v1::ObjectMeta { name: name.into(), uid: uid.clone(), ..v1::ObjectMeta::default() };
        let capacity = v1::Resources { amounts: [("cpu".to_owned(), 32_000)].into() };
        let report = v1::NodeReport { capacity: Some(capacity), ready: true, ..v1::NodeReport::default() };
        let request = v1::RegisterNodeRequest { meta: Some(meta), report: Some(report), taints: Vec::new() };
        let mut client = NodeServiceClient::new(world.state.clone());
        let registered = client.register_node(request).await.unwrap().into_inner();
        let (up, messages) = mpsc::channel(16);
        let open = v1::SessionOpen {
            node_id: registered.node_id,
            uid,
            epoch: registered.epoch,
            ..v1::SessionOpen::default()
        };
        up.send(v1::SessionRequest { message: Some(session_request::Message::Open(open)) }).await.unwrap();
        let mut down = client.session(ReceiverStream::new(messages)).await.unwrap().into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = down.message().await {} });
        (Self { up, sequence: 0 }, registered.node_id)
    }

    async fn report(&mut self, unit_id: u64, ordinals: &[u32], phase: v1::RunPhase) {
        self.sequence += 1;
        let status = |ordinal: &u32| v1::RunStatus {
            unit_id,
            ordinal: *ordinal,
            phase: phase.into(),
            ..v1::RunStatus::default()
        };
        let report =
            v1::RunStatusReport { sequence: self.sequence, statuses: ordinals.iter().map(status).collect() };
        self.up
            .send(v1::SessionRequest { message: Some(session_request::Message::Status(report)) })
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_takes_the_pending_away_and_makes_the_bound_leave() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (mut agent, node) = Agent::new(&world, "n1").await;
    let binder = Binder::new(&world).await;
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    let submitted = dispatcher.submit(unit("web", 3)).await;
    scheduler.units(1).await;
    binder.bind(submitted.unit_id, &[0, 1], node, 0).await;
    dispatcher.phase("web", v1::UnitPhase::Scheduled).await;

    let stale = dispatcher.units().cancel_unit(cancel("web", submitted.revision + 1_000)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    let done = dispatcher.units().cancel_unit(cancel("web", submitted.revision)).await.unwrap().into_inner();
    assert!(done.revision > submitted.revision);
    let again = dispatcher.units().cancel_unit(cancel("web", 0)).await.unwrap().into_inner();
    assert_eq!(again.revision, done.revision);
    assert_eq!(scheduler.revoked().await, [submitted.unit_id]);
    let evicting = eventually("both leave", || async {
        let counts = dispatcher.get("web").await.unit?.counts?;
        (counts.evicting == 2).then_some(counts)
    })
    .await;
    assert_eq!((evicting.pending, evicting.bound), (0, 2));
    agent.report(submitted.unit_id, &[0, 1], v1::RunPhase::Stopped).await;
    eventually("both are gone", || async {
        let unit = dispatcher.get("web").await.unit?;
        (unit.counts?.bound == 0 && unit.phase() == v1::UnitPhase::Cancelled).then_some(())
    })
    .await;
    let over = dispatcher.units().scale_unit(scale("web", 1)).await.unwrap_err();
    assert_eq!(over.code(), Code::FailedPrecondition);
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_moves_ordinals_at_the_top_only() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    let submitted = dispatcher.submit(unit("web", 2)).await;
    scheduler.units(1).await;
    dispatcher.units().scale_unit(scale("web", 4)).await.unwrap();
    assert_eq!(scheduler.units(1).await[0].ordinals, [0, 1, 2, 3]);
    binder.bind(submitted.unit_id, &[0, 1, 2, 3], node, 0).await;
    dispatcher.phase("web", v1::UnitPhase::Scheduled).await;
    dispatcher.units().scale_unit(scale("web", 1)).await.unwrap();
    eventually("three leave", || async {
        let shown = dispatcher.get("web").await;
        let leaving: Vec<u32> =
            shown.running_units.iter().filter(|one| one.evicting).map(|one| one.ordinal).collect();
        (leaving == [1, 2, 3]).then_some(())
    })
    .await;
    dispatcher.units().scale_unit(scale("web", 2)).await.unwrap();
    let more = scheduler.units(1).await;
    assert_eq!((more[0].ordinals.as_slice(), more[0].bound), (&[4][..], 1));
    let bad = dispatcher.units().scale_unit(scale("web", 0)).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_shows_the_present_then_each_change() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (mut agent, node) = Agent::new(&world, "n1").await;
    let binder = Binder::new(&world).await;
    let mut ends_soon = unit("web", 1);
    ends_soon.ttl_after_finished_ms = Some(1);
    let web = dispatcher.submit(ends_soon).await;
    dispatcher.submit(unit("etl", 1)).await;
    let watch = |name: &str, from_revision: u64| v1::WatchUnitsRequest {
        name: name.into(),
        from_revision,
        ..Default::default()
    };
    let mut all = dispatcher.units().watch_units(watch("", 0)).await.unwrap().into_inner();
    let mut one = dispatcher.units().watch_units(watch("we", 0)).await.unwrap().into_inner();
    let missing =
        dispatcher.units().watch_units(watch("nope", 0)).await.unwrap().into_inner().message().await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);

    let first = timeout(LONG, all.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.units.len(), 2);
    let bound = binder.bind(web.unit_id, &[0], node, 0).await;
    let mut revision = 0;
    let mut phases = Vec::new();
    let mut ended = false;
    let last = loop {
        let message = match timeout(LONG, one.message()).await.unwrap() {
            Ok(message) => message.unwrap(),
            Err(status) => break status,
        };
        assert!(message.revision >= revision);
        revision = message.revision;
        phases.extend(message.units.iter().map(v1::Unit::phase));
        phases.dedup();
        if phases.last() == Some(&v1::UnitPhase::Scheduled) && !ended {
            ended = true;
            agent.report(web.unit_id, &[0], v1::RunPhase::Succeeded).await;
        }
    };
    // Its record went a millisecond after its end.
    assert_eq!(last.code(), Code::NotFound);
    assert!(revision >= bound.revision.0);
    let expect = [v1::UnitPhase::Queued, v1::UnitPhase::Scheduled, v1::UnitPhase::Completed];
    assert!(phases.starts_with(&expect[..2]) && expect.contains(phases.last().unwrap()), "{phases:?}");
    // From a revision on: only what is newer, then a bookmark.
    let mut later =
        dispatcher.units().watch_units(watch("", bound.revision.0 + 1)).await.unwrap().into_inner();
    let message = timeout(LONG, later.message()).await.unwrap().unwrap().unwrap();
    assert!(message.units.is_empty() && message.revision >= bound.revision.0);
    let gone = dispatcher
        .units()
        .get_unit(v1::GetUnitRequest { namespace: String::new(), name: "web".into() })
        .await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    world.end([dispatcher]).await;
}

/// The dispatcher may not write rows, whatever it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_come_from_agents_only() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let statuses = Statuses { ordinals: vec![0], phases: vec![Phase::Running], ..Statuses::default() };
    let op = to_proto::row_op(UnitId(1), &RowChange::Statuses(statuses));
    let request = godel_proto::raw::TxnRequest {
        writer: Some(v1::Writer {
            lease: "dispatcher".into(),
            epoch: dispatcher.status().await.epoch,
            sequence: 1 << 40,
        }),
        ops: vec![op],
        ..godel_proto::raw::TxnRequest::default()
    };
    let mut state = v1::state_service_client::StateServiceClient::new(world.state.clone());
    assert_eq!(state.txn(request).await.unwrap_err().code(), Code::PermissionDenied);
    world.end([dispatcher]).await;
}
