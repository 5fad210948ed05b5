//! Cancel, scale, watch, retention.

use godel_base::ids::UnitId;
use godel_domain::running_units::{Phase, RunChange, Statuses};
use godel_kit::status::{has_reason, reason};
use godel_proto::v1::{self, node_service_client::NodeServiceClient, session_request};
use godel_wire::to_proto;
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
        let (meta, report) = (Some(meta), Some(report));
        let request = v1::RegisterNodeRequest { meta, report, ..v1::RegisterNodeRequest::default() };
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
    let is_web = |gone: &v1::DeletedUnit| {
        (gone.unit_id, gone.name.as_str(), &gone.uid) == (web.unit_id, "web", &web.uid)
            && gone.namespace == "default"
            && gone.revision > bound.revision.0
    };
    assert!(matches!(&message.deleted[..], [gone] if is_web(gone)), "{message:?}");
    // Who watched all units since before is told as well.
    let mut deleted = Vec::new();
    while deleted.is_empty() {
        deleted = timeout(LONG, all.message()).await.unwrap().unwrap().unwrap().deleted;
    }
    assert!(matches!(&deleted[..], [gone] if is_web(gone)), "{deleted:?}");
    // And who begins with the present state knows nothing of it.
    let mut anew = dispatcher.units().watch_units(watch("", 0)).await.unwrap().into_inner();
    let message = timeout(LONG, anew.message()).await.unwrap().unwrap().unwrap();
    assert!(message.deleted.is_empty() && message.units.len() == 1);
    let gone =
        dispatcher.units().get_unit(v1::GetUnitRequest { name: "web".into(), ..Default::default() }).await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_begins_only_at_a_known_revision_of_this_store() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let submitted = dispatcher.submit(unit("web", 1)).await;
    let watch = async |from_revision, store_id| {
        let request = v1::WatchUnitsRequest { from_revision, store_id, ..Default::default() };
        match dispatcher.units().watch_units(request).await {
            Err(status) => Err(status),
            Ok(stream) => timeout(LONG, stream.into_inner().message()).await.unwrap(),
        }
    };
    let first = watch(0, 0).await.unwrap().unwrap();
    let page = dispatcher.units().list_units(v1::ListUnitsRequest::default()).await.unwrap().into_inner();
    assert!(first.store_id != 0 && page.store_id == first.store_id);
    let next = page.revision + 1;
    assert!(watch(next, first.store_id).await.is_ok());
    assert!(watch(submitted.revision + 1, first.store_id).await.is_ok());
    for (from, store_id, expected) in [
        (next, first.store_id + 1, reason::STORE_CHANGED),
        (0, first.store_id + 1, reason::STORE_CHANGED),
        (next + 1_000, first.store_id, reason::FUTURE_REVISION),
        (next + 1_000, 0, reason::FUTURE_REVISION),
        // Deletions from before the dispatcher has read the records.
        (1, first.store_id, reason::COMPACTED),
    ] {
        let refused = watch(from, store_id).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{from} {store_id}: {refused}");
        assert!(has_reason(&refused, expected), "{from} {store_id}: {refused}");
    }
    let token = format!("{}:{}:1:default:web", first.store_id + 1, page.revision);
    let request = v1::ListUnitsRequest { page_token: token, ..Default::default() };
    let refused = dispatcher.units().list_units(request).await.unwrap_err();
    assert!(has_reason(&refused, reason::STORE_CHANGED), "{refused}");
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_running_units_of_a_large_unit_are_shown_page_by_page() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    dispatcher.submit(unit("large", 2_345)).await;
    dispatcher.submit(unit("other", 1)).await;
    let page = async |name: &str, page_size, page_token: &str| {
        let (name, page_token) = (name.to_owned(), page_token.to_owned());
        let request = v1::GetUnitRequest { name, page_size, page_token, ..Default::default() };
        dispatcher.units().get_unit(request).await.map(tonic::Response::into_inner)
    };
    for (page_size, expected) in
        [(0, vec![1_000, 1_000, 345]), (1_000, vec![1_000, 1_000, 345]), (469, vec![469; 5])]
    {
        let (mut sizes, mut ordinals, mut token) = (Vec::new(), Vec::new(), String::new());
        loop {
            let answer = page("large", page_size, &token).await.unwrap();
            assert_eq!(answer.unit.unwrap().counts.unwrap().replicas, 2_345);
            sizes.push(answer.running_units.len());
            ordinals.extend(answer.running_units.iter().map(|run| run.ordinal));
            token = answer.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(sizes, expected, "{page_size}");
        assert!(ordinals.into_iter().eq(0..2_345));
    }
    let token = page("large", 1, "").await.unwrap().next_page_token;
    for (name, page_size, token) in
        [("large", 1_001, ""), ("large", 1, "x"), ("large", 1, "1"), ("other", 1, token.as_str())]
    {
        let refused = page(name, page_size, token).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name} {page_size} {token}: {refused}");
    }
    world.end([dispatcher]).await;
}

/// The dispatcher may not write rows, whatever it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_come_from_agents_only() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let statuses = Statuses { ordinals: vec![0], phases: vec![Phase::Running], ..Statuses::default() };
    let op = to_proto::row_op(UnitId(1), &RunChange::Statuses(statuses));
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

/// What changes a unit by its name, one call after the other.
async fn every_change(dispatcher: &crate::world::Process, name: &str) -> Vec<(&'static str, tonic::Status)> {
    let (namespace, name) = (String::new(), name.to_owned());
    let mut units = dispatcher.units();
    let mut refused = Vec::new();
    let mut note = |what, answer: Option<tonic::Status>| refused.extend(answer.map(|status| (what, status)));
    note("cancel", units.cancel_unit(cancel(&name, 0)).await.err());
    let request =
        v1::SuspendUnitRequest { namespace: namespace.clone(), name: name.clone(), expected_revision: 0 };
    note("suspend", units.suspend_unit(request).await.err());
    let request =
        v1::ResumeUnitRequest { namespace: namespace.clone(), name: name.clone(), expected_revision: 0 };
    note("resume", units.resume_unit(request).await.err());
    note("scale", units.scale_unit(scale(&name, 1)).await.err());
    let request = v1::StopRunningUnitsRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        ordinals: vec![0],
        expected_revision: 0,
    };
    note("stop", units.stop_running_units(request).await.err());
    note(
        "delete",
        units.delete_unit(v1::DeleteUnitRequest { namespace, name, expected_revision: 0 }).await.err(),
    );
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_takes_less_than_a_whole_name_or_uid() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let submitted = dispatcher.submit(unit("web-prod", 3)).await;
    let before = dispatcher.get("web-prod").await.unit.unwrap();
    for name in ["web", "w", &submitted.uid[..35]] {
        // Whoever reads may say so.
        assert_eq!(dispatcher.get(name).await.unit.unwrap().unit_id, submitted.unit_id);
        let refused = every_change(&dispatcher, name).await;
        let calls: Vec<&str> = refused.iter().map(|(what, _)| *what).collect();
        assert_eq!(calls, ["cancel", "suspend", "resume", "scale", "stop", "delete"], "{name}");
        for (what, status) in refused {
            assert_eq!(status.code(), Code::NotFound, "{what} {name}");
            let said = status.message();
            assert!(
                said.contains("no unit `") && said.contains("did you mean `web-prod`?"),
                "{what}: {said}"
            );
        }
    }
    assert_eq!(dispatcher.get("web-prod").await.unit.unwrap().revision, before.revision, "nothing changed");
    // A whole uid is enough, in whatever namespace.
    let by_uid = v1::CancelUnitRequest {
        namespace: "elsewhere".into(),
        name: submitted.uid.to_uppercase(),
        expected_revision: 0,
    };
    dispatcher.units().cancel_unit(by_uid).await.unwrap();
    dispatcher.phase("web-prod", v1::UnitPhase::Cancelled).await;
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_ended_unit_is_taken_until_deletion() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let delete = |name: &str, expected_revision| v1::DeleteUnitRequest {
        namespace: String::new(),
        name: name.into(),
        expected_revision,
    };
    let first = dispatcher.submit(unit("job", 1)).await;
    let early = dispatcher.units().delete_unit(delete("job", 0)).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition);
    assert!(early.message().contains(": cancel it first"), "{}", early.message());
    let again = v1::SubmitUnitRequest { unit: Some(unit("job", 1)) };
    let taken = dispatcher.units().submit_unit(again.clone()).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists);
    assert!(taken.message().contains("exists with another uid ("), "{}", taken.message());
    assert!(taken.message().contains("): cancel it"), "{}", taken.message());

    dispatcher.units().cancel_unit(cancel("job", 0)).await.unwrap();
    let ended = dispatcher.phase("job", v1::UnitPhase::Cancelled).await;
    let taken = dispatcher.units().submit_unit(again.clone()).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists);
    let said = taken.message();
    assert!(
        said.starts_with("unit job ended ") && said.contains("(cancelled); its name is free again in "),
        "{said}"
    );
    assert!(said.ends_with("or now: godel unit delete job"), "{said}");
    let stale = dispatcher.units().delete_unit(delete("job", ended.revision + 1_000)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    let deleted = dispatcher.units().delete_unit(delete("job", 0)).await.unwrap().into_inner();
    assert!(deleted.revision > ended.revision);
    let gone = dispatcher.units().delete_unit(delete("job", 0)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let second = dispatcher.submit(unit("job", 1)).await;
    assert!(second.unit_id > first.unit_id && !second.duplicate);
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}
