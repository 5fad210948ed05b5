//! DispatchService, BindService and SchedulerService; and standbys.

use godel_integration_tests::{
    api::channel,
    cluster::Cluster,
    trace::{resources, unit},
};
use godel_proto::v1;
use tonic::Code::{self, FailedPrecondition, InvalidArgument, NotFound, Unavailable};
use v1::{
    attach_request::Message as Attach, bind_service_client::BindServiceClient,
    decide_request::Message as Decide, unit_service_client::UnitServiceClient,
};

use super::{Cases, UID, first};

/// `web` is the unit that must be afterwards as it was before.
pub(super) async fn check(cluster: &mut Cluster, cases: &mut Cases, web: u64) {
    dispatch(cluster, cases).await;
    decide_stream(cluster, cases).await;
    decisions(cluster, cases).await;
    evict(cluster, cases, web).await;
    moves(cluster, cases, web).await;
    plan(cluster, cases).await;
    standbys(cluster, cases).await;
}

async fn dispatch(cluster: &Cluster, cases: &mut Cases) {
    let mut dispatch = cluster.api.dispatch().await.unwrap();
    let open =
        |name: &str, epoch| Attach::Open(v1::AttachOpen { name: name.into(), epoch, ..Default::default() });
    for (case, message, codes) in [
        ("an empty first message", None, &[InvalidArgument][..]),
        ("credits first", Some(Attach::Credits(7)), &[InvalidArgument]),
        ("reports first", Some(Attach::Reports(v1::UnitReports::default())), &[InvalidArgument]),
        ("no name", Some(open("", 1)), &[InvalidArgument]),
        ("a scheduler without a lease", Some(open("nobody", 1)), &[FailedPrecondition, NotFound]),
        ("another epoch", Some(open("scheduler-1", 1_000_000)), &[FailedPrecondition]),
    ] {
        let result = first(dispatch.attach(tokio_stream::once(v1::AttachRequest { message })).await).await;
        cases.refused_by(&format!("Attach: {case}"), result, codes, "");
    }
    for (case, mode, codes) in
        [("no mode", 0, &[InvalidArgument][..]), ("an unknown mode", 99, &[InvalidArgument])]
    {
        let result =
            dispatch.set_partition_mode(v1::SetPartitionModeRequest { mode, automatic: false }).await;
        cases.refused_by(&format!("SetPartitionMode: {case}"), result, codes, "");
    }
}

async fn decide_stream(cluster: &Cluster, cases: &mut Cases) {
    let mut binder = cluster.api.binder().await.unwrap();
    let open = |scheduler: &str, epoch| {
        Decide::Open(v1::DecideOpen { scheduler: scheduler.into(), epoch, store_id: 0 })
    };
    for (case, message, codes) in [
        ("an empty first message", None, &[InvalidArgument][..]),
        ("decisions first", Some(Decide::Decisions(v1::Decisions::default())), &[InvalidArgument]),
        ("no name", Some(open("", 1)), &[InvalidArgument]),
        ("no epoch", Some(open("scheduler-1", 0)), &[InvalidArgument]),
        ("nobody is called that", Some(open("nobody", 1)), &[FailedPrecondition]),
        ("an epoch that was never granted", Some(open("scheduler-1", 99)), &[FailedPrecondition]),
    ] {
        let result = first(binder.decide(tokio_stream::once(v1::DecideRequest { message })).await).await;
        cases.refused_by(&format!("Decide: {case}"), result, codes, "");
    }
}

/// A scheduler that decides nonsense gets an outcome for each decision, with the reason.
async fn decisions(cluster: &Cluster, cases: &mut Cases) {
    let mut binder = cluster.api.binder().await.unwrap();
    let request = v1::AcquireLeaseRequest {
        lease: "scheduler/raw".into(),
        holder: UID.into(),
        address: "http://127.0.0.1:1".into(),
        ttl_ms: 60_000,
    };
    let lease = cluster.api.members().acquire_lease(request).await.unwrap().into_inner();
    let unit = cluster.api.get_unit("web").await.unwrap().unit.unwrap();
    let spec_revision =
        unit.spec.as_ref().and_then(|unit| unit.meta.as_ref()).map_or(0, |meta| meta.revision);
    let unit_id = unit.unit_id;
    let one = v1::GroupPlacement { ordinals: vec![0], node_ids: vec![1], ..Default::default() };
    let decision = |decision_id, unit_id, group| v1::Decision {
        decision_id,
        unit_id,
        spec_revision,
        nodes_as_of: 0,
        groups: vec![group],
        claim: None,
    };
    let decisions = vec![
        decision(
            1,
            unit_id,
            v1::GroupPlacement { ordinals: vec![0, 1], node_ids: vec![1], ..Default::default() },
        ),
        decision(2, unit_id, one.clone()),
        decision(3, 999_999, one.clone()),
        decision(4, unit_id, v1::GroupPlacement { task_group: 7, ..one.clone() }),
        v1::Decision { groups: Vec::new(), ..decision(5, unit_id, one) },
    ];
    let messages = [
        Decide::Open(v1::DecideOpen { scheduler: "raw".into(), epoch: lease.epoch, store_id: 0 }),
        Decide::Decisions(v1::Decisions { decisions }),
    ];
    // The stream stays open while outcomes come.
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    for message in messages {
        sender.send(v1::DecideRequest { message: Some(message) }).await.unwrap();
    }
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut answers = binder.decide(stream).await.unwrap().into_inner();
    let mut outcomes = Vec::new();
    while outcomes.len() < 5 {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(10), answers.message()).await;
        let Ok(Ok(Some(answer))) = answer else {
            cases.holds("Decide: an outcome for each decision", false, &(outcomes, answer));
            return;
        };
        if let Some(v1::decide_response::Message::Outcomes(batch)) = answer.message {
            outcomes.extend(batch.outcomes);
        }
    }
    let are_refused = outcomes.iter().all(|outcome| outcome.revision == 0 && !outcome.rejections.is_empty());
    cases.holds("Decide: nonsense is rejected with a reason", are_refused, &outcomes);
    let bound_before = outcomes.iter().find(|outcome| outcome.decision_id == 2);
    let reason = bound_before.and_then(|outcome| outcome.rejections.first()).map(v1::Rejection::reason);
    cases.holds("Decide: bound before", reason == Some(v1::RejectionReason::AlreadyBound), &bound_before);
    let release = v1::ReleaseLeaseRequest { lease: "scheduler/raw".into(), epoch: lease.epoch, store_id: 0 };
    cluster.api.members().release_lease(release).await.unwrap();
}

async fn evict(cluster: &Cluster, cases: &mut Cases, unit_id: u64) {
    let mut binder = cluster.api.binder().await.unwrap();
    let eviction = v1::Eviction {
        unit_id,
        ordinals: vec![0],
        reason: v1::EvictionReason::Drained.into(),
        by: "test".into(),
        ..Default::default()
    };
    for (case, eviction, codes) in [
        ("no reason", v1::Eviction { reason: 0, ..eviction.clone() }, &[InvalidArgument][..]),
        ("an unknown reason", v1::Eviction { reason: 99, ..eviction.clone() }, &[InvalidArgument]),
        (
            "columns of unequal length",
            v1::Eviction { incarnations: vec![0, 0], ..eviction.clone() },
            &[InvalidArgument],
        ),
        ("no unit", v1::Eviction { unit_id: 0, ..eviction }, &[InvalidArgument, NotFound]),
    ] {
        let request = v1::EvictRunningUnitsRequest { evictions: vec![eviction], ..Default::default() };
        let result = binder.evict_running_units(request).await;
        cases.refused_by(&format!("EvictRunningUnits: {case}"), result, codes, "");
    }
}

async fn moves(cluster: &Cluster, cases: &mut Cases, unit_id: u64) {
    let mut binder = cluster.api.binder().await.unwrap();
    let one = v1::RequestedMove { unit_id, to_node_id: 1, ..Default::default() };
    let good = v1::MoveRunningUnitsRequest {
        movement: "m".into(),
        moves: vec![one],
        expires_ms: i64::MAX,
        ..Default::default()
    };
    for (case, request, field) in [
        ("nothing", v1::MoveRunningUnitsRequest::default(), "movement"),
        ("no time", v1::MoveRunningUnitsRequest { expires_ms: 0, ..good.clone() }, "expires_ms"),
        ("for ever", good.clone(), "expires_ms"),
        ("no unit", v1::MoveRunningUnitsRequest { moves: vec![Default::default()], ..good }, "moves[0]"),
    ] {
        let result = binder.move_running_units(request).await;
        cases.refused(&format!("MoveRunningUnits: {case}"), result, InvalidArgument, field);
    }
}

async fn plan(cluster: &Cluster, cases: &mut Cases) {
    let mut scheduler = cluster.api.scheduler("scheduler-1").await.unwrap();
    let result = scheduler.plan(v1::PlanRequest { unit: None }).await;
    cases.refused("Plan: nothing", result, InvalidArgument, "unit");
    let bad = unit("Not A Name", "", 0, resources(-1, 1), None, 0);
    let result = scheduler.plan(v1::PlanRequest { unit: Some(bad) }).await;
    cases.refused("Plan: a bad unit", result, InvalidArgument, "");
}

/// Standbys refuse and say who leads.
async fn standbys(cluster: &Cluster, cases: &mut Cases) {
    let code: Code = Unavailable;
    let leader = cluster.leader("dispatcher").await;
    let standby = if leader == "dispatcher-1" { "dispatcher-2" } else { "dispatcher-1" };
    let standby = channel(&cluster.address(standby).to_string()).unwrap();
    let result = UnitServiceClient::new(standby).list_units(v1::ListUnitsRequest::default()).await;
    let names_leader = names(&result, &cluster.api.holder("dispatcher").await.unwrap().address);
    cases.refused_for("ListUnits at a standby", result, code, "NOT_LEADER");
    cases.holds("ListUnits at a standby: names the leader", names_leader, &leader);

    let leader = cluster.leader("binder").await;
    let standby = if leader == "binder-1" { "binder-2" } else { "binder-1" };
    let standby = channel(&cluster.address(standby).to_string()).unwrap();
    let result =
        BindServiceClient::new(standby).evict_running_units(v1::EvictRunningUnitsRequest::default()).await;
    let names_leader = names(&result, &cluster.api.holder("binder").await.unwrap().address);
    cases.refused_for("EvictRunningUnits at a standby", result, code, "NOT_LEADER");
    cases.holds("EvictRunningUnits at a standby: names the leader", names_leader, &leader);
}

fn names<T>(result: &Result<T, tonic::Status>, address: &str) -> bool {
    use tonic_types::StatusExt as _;
    let info = result.as_ref().err().and_then(|status| status.get_details_error_info());
    info.is_some_and(|info| info.metadata.get("address").is_some_and(|named| named == address))
}
