//! StateService and MemberService.

use godel_integration_tests::cluster::Cluster;
use godel_proto::{
    raw::{TxnRequest, encode_op},
    v1,
};
use tonic::Code::{
    FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted,
};

use super::{Cases, UID, first, meta};

pub(super) async fn check(cluster: &Cluster, cases: &mut Cases) {
    txn(cluster, cases).await;
    transact(cluster, cases).await;
    reads(cluster, cases).await;
    leases(cluster, cases).await;
}

fn writer(lease: &str, epoch: u64) -> Option<v1::Writer> {
    // A sequence that no writer ever reaches.
    Some(v1::Writer { lease: lease.into(), epoch, sequence: u64::MAX })
}

fn unit_op(unit_id: u64, filler_bytes: usize) -> bytes::Bytes {
    let run = v1::RunSpec { command: vec!["x".repeat(filler_bytes)], ..Default::default() };
    let template = v1::Template { run: Some(run), ..Default::default() };
    let group = v1::TaskGroup { name: "main".to_owned(), template: Some(template), ..Default::default() };
    let spec = v1::UnitSpec {
        meta: Some(v1::ObjectMeta { namespace: "default".to_owned(), ..meta("intruder", UID) }),
        task_groups: vec![group],
        workload_class: v1::WorkloadClass::Batch.into(),
        restart_policy: v1::RestartPolicy::Never.into(),
        profile: "most-allocated".to_owned(),
        ..Default::default()
    };
    let status = v1::UnitStatus { ordinals: vec![v1::OrdinalRanges::default()], ..Default::default() };
    encode_op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id, spec: Some(spec), status: Some(status) }))
}

fn queue_op(policy: i32) -> bytes::Bytes {
    let meta = Some(v1::ObjectMeta { name: "evil".to_owned(), ..Default::default() });
    encode_op(v1::op::Op::PutQueue(v1::Queue { meta, policy, ..Default::default() }))
}

fn node_op() -> bytes::Bytes {
    encode_op(v1::op::Op::PutNodeSpec(v1::NodeSpec {
        node_id: 1,
        meta: Some(meta("intruder", UID)),
        ..Default::default()
    }))
}

async fn txn(cluster: &Cluster, cases: &mut Cases) {
    let mut state = cluster.api.state();
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    let request = |writer, ops| TxnRequest { writer, ops, ..TxnRequest::default() };
    let leader = || writer("dispatcher", epoch);
    let garbage = bytes::Bytes::from_static(&[0x0a, 0xff, 0xff, 0x01]);
    for (case, request, codes) in [
        ("nothing", request(None, vec![]), &[InvalidArgument][..]),
        ("no operation", request(leader(), vec![]), &[InvalidArgument]),
        ("an empty operation", request(leader(), vec![bytes::Bytes::new()]), &[InvalidArgument]),
        ("garbage as operation", request(leader(), vec![garbage]), &[InvalidArgument]),
        ("a queue with a policy that nobody knows", request(leader(), vec![queue_op(7)]), &[InvalidArgument]),
        ("a record of another role", request(leader(), vec![node_op()]), &[PermissionDenied]),
        (
            "a unit id used before",
            request(leader(), vec![unit_op(1_000_000, 0), unit_op(0, 0)]),
            &[InvalidArgument],
        ),
        (
            "more than 1 MiB",
            request(leader(), vec![unit_op(1_000_000, 2 << 20)]),
            &[InvalidArgument, OutOfRange, ResourceExhausted],
        ),
        (
            "a role that is not known",
            request(writer("king", 1), vec![node_op()]),
            &[PermissionDenied, InvalidArgument, FailedPrecondition],
        ),
    ] {
        cases.refused_by(&format!("Txn: {case}"), state.txn(request).await, codes, "");
    }
    for (case, epoch) in [("an old epoch", epoch - 1), ("an epoch to come", epoch + 1)] {
        let result = state.txn(request(writer("dispatcher", epoch), vec![unit_op(1_000_000, 0)])).await;
        cases.refused_for(&format!("Txn: {case}"), result, FailedPrecondition, "STALE_EPOCH");
    }
}

async fn transact(cluster: &Cluster, cases: &mut Cases) {
    let mut state = cluster.api.state();
    let request =
        TxnRequest { writer: writer("binder", 1_000_000), ops: vec![node_op()], ..TxnRequest::default() };
    let answer = first(state.transact(tokio_stream::once(request)).await).await;
    let refusal = answer.as_ref().ok().and_then(Option::as_ref).and_then(|answer| answer.refusal.as_ref());
    let reason = refusal.map(v1::TxnRefusal::reason);
    cases.holds(
        "Transact: a refusal comes in the answer",
        reason == Some(v1::TxnRefusalReason::StaleEpoch) || reason == Some(v1::TxnRefusalReason::Forbidden),
        &answer,
    );
}

async fn reads(cluster: &Cluster, cases: &mut Cases) {
    let mut state = cluster.api.state();
    let units: i32 = v1::Kind::Unit.into();
    for (case, kinds, page_size, token, field) in [
        ("no kind", vec![], 10, "", "kinds"),
        ("an unspecified kind", vec![0], 10, "", "kinds"),
        ("an unknown kind", vec![99], 10, "", "kinds"),
        ("a large page", vec![units], 10_001, "", "page_size"),
        ("a bad token", vec![units], 10, "not-a-token", "page_token"),
    ] {
        let request = v1::ListRecordsRequest { kinds, page_size, page_token: token.into() };
        let result = state.list_records(request).await;
        cases.refused(&format!("ListRecords: {case}"), result, InvalidArgument, field);
    }
    let watch = v1::WatchRequest { from_revision: 0, kinds: vec![99], ..v1::WatchRequest::default() };
    let result = first(state.watch(watch).await).await;
    cases.refused("Watch: an unknown kind", result, InvalidArgument, "kinds");
}

async fn leases(cluster: &Cluster, cases: &mut Cases) {
    let mut members = cluster.api.members();
    let acquire = |lease: &str, holder: &str, ttl_ms| v1::AcquireLeaseRequest {
        lease: lease.into(),
        holder: holder.into(),
        address: "http://127.0.0.1:1".into(),
        ttl_ms,
    };
    let bad_address =
        v1::AcquireLeaseRequest { address: "not an address".into(), ..acquire("scheduler/x", UID, 0) };
    for (case, request, field) in [
        ("no lease", acquire("", UID, 0), "lease"),
        ("an unknown lease", acquire("king", UID, 0), "lease"),
        ("a scheduler without a name", acquire("scheduler/", UID, 0), "lease"),
        ("a bad name", acquire("scheduler/Not A Name", UID, 0), "lease"),
        ("no holder", acquire("scheduler/x", "", 0), "holder"),
        ("a short ttl", acquire("scheduler/x", UID, 499), "ttl_ms"),
        ("a long ttl", acquire("scheduler/x", UID, 60_001), "ttl_ms"),
        ("a bad address", bad_address, "address"),
    ] {
        let result = members.acquire_lease(request).await;
        cases.refused(&format!("AcquireLease: {case}"), result, InvalidArgument, field);
    }
    let result = members.acquire_lease(acquire("binder", UID, 0)).await;
    cases.refused_for("AcquireLease: held by another", result, FailedPrecondition, "LEASE_HELD");
    let renew =
        |lease: &str, epoch| v1::RenewLeaseRequest { lease: lease.into(), epoch, ..Default::default() };
    let result = members.renew_lease(renew("binder", 1_000_000)).await;
    cases.refused_for("RenewLease: another epoch", result, FailedPrecondition, "STALE_EPOCH");
    let result = members.renew_lease(renew("scheduler/nobody", 1)).await;
    cases.refused_by("RenewLease: a lease never granted", result, &[FailedPrecondition, NotFound], "");
    let result = members.renew_lease(renew("", 1)).await;
    cases.refused_by("RenewLease: no lease", result, &[InvalidArgument, FailedPrecondition], "");
    let held = cluster.api.holder("binder").await.unwrap();
    let release = v1::ReleaseLeaseRequest { lease: "binder".into(), epoch: held.epoch + 1, store_id: 0 };
    let result = members.release_lease(release).await;
    let still = cluster.api.holder("binder").await.map(|member| member.epoch).ok();
    cases.holds("ReleaseLease: another epoch releases nothing", still == Some(held.epoch), &(result, still));
}
