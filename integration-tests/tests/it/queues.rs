//! Maxima of queues on real processes: kept by every commit, whoever decides, changes or dies meanwhile.

use anyhow::{Context as _, Result, ensure};
use godel_integration_tests::{
    check::Maxima,
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::{raw, v1};

use crate::kills::AWAY;

const N_UNITS: u32 = 60;
const N_REPLICAS: u32 = 3;

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

async fn usage(cluster: &Cluster, path: &str) -> Result<v1::QueueUsage> {
    let request = v1::GetQueueRequest { name: path.to_owned() };
    let answer = cluster.api.queues().await?.get_queue(request).await?.into_inner();
    answer.queue.and_then(|queue| queue.usage).context("no usage")
}

/// Holds the whole history against the maxima that were in force; how many bindings were judged.
async fn judge(cluster: &Cluster) -> usize {
    let end = cluster.api.store_status().await.unwrap().revision;
    let mut maxima = Maxima::default();
    let all = cluster.api.watch_until(1, &[], |commit| {
        maxima.apply(commit);
        commit.revision >= end
    });
    all.await.unwrap();
    assert_eq!(maxima.problems, Vec::<String>::new());
    maxima.n_held
}

#[tokio::test(flavor = "multi_thread")]
async fn maxima_hold_while_they_change_and_leaders_die() {
    let mut cluster = Cluster::start(Layout { n_nodes: 20, ..Layout::default() }).await;
    cluster.announce(AWAY);
    apply(&cluster, vec![queue("team", Some(8_000), 0), queue("team.a", None, 5), queue("team.b", None, 0)])
        .await;
    for idx in 0..N_UNITS {
        let name = format!("u-{idx}");
        let path = if idx % 2 == 0 { "team.a" } else { "team.b" };
        let spec = v1::UnitSpec {
            queue: path.to_owned(),
            min_member: Some(if idx % 5 == 0 { N_REPLICAS } else { 1 }),
            ..unit(&name, "", N_REPLICAS, resources(500, 16), None, 300)
        };
        cluster.api.submit(spec).await.unwrap();
    }
    // Up and down, below what is used too, while three schedulers decide; leaders go in between.
    for (turn, cpu) in [3_000, 12_000, 1_500, 0, 6_000, 20_000, 2_000, 9_000].into_iter().enumerate() {
        apply(&cluster, vec![queue("team", Some(cpu), 0), queue("team.b", Some(cpu / 2), 9)]).await;
        let part = match turn {
            2 => Some("binder"),
            4 => Some("dispatcher"),
            _ => None,
        };
        if let Some(part) = part {
            let name = cluster.leader(part).await;
            cluster.kill(&name);
            cluster.restart(&name);
        }
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    }
    wait_for("every unit to complete", 2 * LIMIT, async || {
        let phases = cluster.api.dispatcher_status().await?.phases;
        ensure!(phases.get("Completed").copied() == Some(u64::from(N_UNITS)), "{phases:?}");
        Ok(())
    })
    .await;
    let usage = usage(&cluster, "team").await.unwrap();
    assert_eq!((usage.running_units, usage.pending_units), (0, 0), "{usage:?}");
    assert!(judge(&cluster).await > 0);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_a_binding_above_a_maximum() {
    let mut cluster = Cluster::start(Layout { n_nodes: 10, n_binders: 1, ..Layout::default() }).await;
    cluster.announce(AWAY);
    apply(&cluster, vec![queue("full", Some(1_000), 0), queue("full.below", None, 0)]).await;
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
    cluster.stop("binder-1").await;
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
