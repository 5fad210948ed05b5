//! Maxima of queues on real processes: what the audit says if a binder does not keep them.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::Cluster,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::{raw, v1};

fn queue(path: &str, cpu: Option<i64>, max_running_units: u32) -> v1::Queue {
    v1::Queue {
        meta: Some(v1::ObjectMeta { name: path.to_owned(), ..v1::ObjectMeta::default() }),
        max: cpu.map(|cpu| v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() }),
        max_running_units: (max_running_units > 0).then_some(max_running_units),
        ..v1::Queue::default()
    }
}

/// Until a leading dispatcher has it.
async fn apply(cluster: &Cluster, queues: Vec<v1::Queue>) {
    wait_for("queues to be applied", LIMIT, async || {
        let request = v1::ApplyQueuesRequest { queues: queues.clone(), ..v1::ApplyQueuesRequest::default() };
        anyhow::Ok(cluster.api.queues().await?.apply_queues(request).await?.into_inner())
    })
    .await;
}

/// The last check of a cluster: nothing puts it right again.
pub(crate) async fn the_audit_finds_a_binding_above_a_maximum(cluster: &mut Cluster) {
    apply(cluster, vec![queue("full", Some(1_000), 0), queue("full.below", None, 0)]).await;
    let requests = resources(500, 16);
    let spec = unit("array", "", 5, requests.clone(), None, 0);
    cluster.api.submit(v1::UnitSpec { queue: "full.below".to_owned(), ..spec }).await.unwrap();
    let unit = wait_for("the maximum to be used up", LIMIT, async || {
        let unit = cluster.api.get_unit("array").await?;
        let n_running = unit.unit.clone().unwrap_or_default().counts.unwrap_or_default().running;
        ensure!(n_running == 2, "{n_running} run");
        Ok(unit)
    })
    .await;
    cluster.audit(&[]);

    // A binder that does not look at queues.
    for name in ["binder-1", "binder-2", "binder-3"] {
        cluster.stop(name).await;
    }
    let lease = v1::AcquireLeaseRequest {
        lease: "binder".to_owned(),
        holder: "rogue".to_owned(),
        address: "http://127.0.0.1:1".to_owned(),
        ttl_ms: 30_000,
    };
    let epoch = cluster.api.members().acquire_lease(lease).await.unwrap().into_inner().epoch;
    let taken: Vec<u32> =
        unit.running_units.iter().filter(|one| !one.node.is_empty()).map(|one| one.ordinal).collect();
    let ordinal = (0..5).find(|ordinal| !taken.contains(ordinal)).unwrap();
    let bind = v1::Binding {
        unit_id: unit.unit.unwrap_or_default().unit_id,
        demand: Some(v1::Demand {
            requests: Some(requests),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        }),
        pool: v1::Pool::Guaranteed.into(),
        ordinals: vec![ordinal],
        node_ids: vec![1],
        ..v1::Binding::default()
    };
    let request = raw::TxnRequest {
        writer: Some(v1::Writer { lease: "binder".to_owned(), epoch, sequence: 1 }),
        ops: vec![raw::encode_op(v1::op::Op::Bind(bind))],
        ..raw::TxnRequest::default()
    };
    let revision = cluster.api.state().txn(request).await.unwrap().into_inner().revision;
    let audit = cluster.godel(&["audit"]);
    let text = String::from_utf8_lossy(&audit.stdout).into_owned();
    assert_eq!(audit.status.code(), Some(1), "{text}");
    assert!(text.contains("I5 FAILED  1 violations"), "{text}");
    assert!(text.contains(&format!("queue full: cpu 1500 of 1000 (revision {revision})")), "{text}");
}
