//! kill -9 on a full cluster: whoever arrives has others leave, gangs among them, in queues with a guarantee and a maximum.
//! So there are claims, holds and evictions under way whenever a process dies.

use std::time::Duration;

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, Submission},
    settings,
    trace::{resources, unit},
    wait::{LIMIT, keep_up, wait_for},
};
use godel_proto::{raw, v1};
use prost::Message as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::kills::{AWAY, victims};

const N_TASKS: usize = 20;
const N_MEMBERS: u32 = 4;
/// What each of those takes that fill the cluster, thousandths.
const FILLER_CPU: i64 = 4_000;

/// Random kill moments: a share in `make test`, all in `make test-long`.
const N_MOMENTS: usize = 6;
const N_MOMENTS_LONG: usize = 60;

/// Where the binder aborts, on its n-th transaction: claims, then bindings of what was held.
const POINTS: &[&str] = &["binder.before-commit:2", "binder.after-commit:2", "binder.before-commit:4"];

/// Every node full of units of low priority that never end: half of them in gangs. Returns how many units.
async fn fill(cluster: &Cluster) -> usize {
    let nodes = cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner();
    let cpu = |node: &v1::Node| node.allocatable.as_ref().map_or(0, |all| all.amounts["cpu"]);
    let total: i64 = nodes.nodes.iter().map(cpu).sum();
    let n_fit: i64 = nodes.nodes.iter().map(|node| cpu(node) / FILLER_CPU).sum();
    let n_fit = u32::try_from(n_fit).unwrap();
    let created = cluster.godel(&["queue", "create", "own", "--min", &format!("cpu={}m", total / 4)]);
    assert!(created.status.success(), "{created:?}");
    let created = cluster.godel(&["queue", "create", "lab", "--max", &format!("cpu={total}m")]);
    assert!(created.status.success(), "{created:?}");
    let filler = |name: &str, class: v1::WorkloadClass, replicas: u32| v1::UnitSpec {
        workload_class: class.into(),
        priority: Some(1),
        queue: "lab".to_owned(),
        ..unit(name, "", replicas, resources(FILLER_CPU, 16), None, 0)
    };
    let n_gangs = n_fit / 2 / N_MEMBERS;
    for number in 0..n_gangs {
        let gang = filler(&format!("gang-{number}"), v1::WorkloadClass::Gang, N_MEMBERS);
        cluster.api.submit(gang).await.unwrap();
    }
    let rest = filler("rest", v1::WorkloadClass::Service, n_fit - n_gangs * N_MEMBERS);
    cluster.api.submit(rest).await.unwrap();
    let n_units = usize::try_from(n_gangs).unwrap() + 1;
    cluster.wait_all_bound(n_units).await;
    n_units
}

fn arrive(cluster: &mut Cluster) -> Submission {
    cluster.submit_ranked(N_TASKS, (5, 200), 9, "own")
}

/// All is placed again, whoever had to leave too; nothing is held any more.
async fn finish(cluster: &Cluster, submissions: &[Submission], n_fillers: usize) {
    cluster.wait_ready().await;
    cluster.wait_all_bound(n_fillers + submissions.len() * N_TASKS).await;
    wait_for("the end of all holds", LIMIT, async || {
        let request = v1::ListRecordsRequest { kinds: vec![v1::Kind::Hold.into()], ..Default::default() };
        let n_holds = cluster.api.state().list_records(request).await?.into_inner().records.len();
        ensure!(n_holds == 0, "{n_holds} are left");
        Ok(())
    })
    .await;
    let rest = cluster.api.get_unit("rest").await.unwrap().unit.unwrap_or_default();
    assert!(!rest.preempted_by.is_empty(), "nobody had to leave");
    let ledgers: Vec<&Submission> = submissions.iter().collect();
    cluster.wait_complete(&ledgers).await;
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_while_others_leave_and_aborts_of_a_binder_lose_nothing() {
    let layout = Layout { n_nodes: 20, n_schedulers: 2, n_binders: 2, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(AWAY);
    cluster.announce(&["crash point"]);
    let n_fillers = fill(&cluster).await;
    let mut submissions = Vec::new();
    kill_while_others_leave(&mut cluster, &mut submissions, n_fillers).await;
    abort_between_claim_and_binding(&mut cluster, &mut submissions, n_fillers).await;
    finish(&cluster, &submissions, n_fillers).await;
}

async fn kill_while_others_leave(cluster: &mut Cluster, submissions: &mut Vec<Submission>, n_fillers: usize) {
    let n_moments = if settings::is_long() { N_MOMENTS_LONG } else { N_MOMENTS };
    for moment in 0..n_moments {
        let seed = settings::seed() + u64::try_from(moment).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let submission = arrive(cluster);
        let victims = victims(cluster, moment, &mut rng).await;
        cluster.note(&format!("moment {moment}, seed {seed}: {victims:?}"));
        cluster.wait_acknowledged(&submission, rng.random_range(0..N_TASKS)).await;
        keep_up(Duration::from_micros(rng.random_range(0..40_000))).await;
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
        cluster.wait_all_bound(n_fillers + submissions.len() * N_TASKS).await;
    }
}

/// The only binder aborts between a claim and the bindings of what was held.
async fn abort_between_claim_and_binding(
    cluster: &mut Cluster,
    submissions: &mut Vec<Submission>,
    n_fillers: usize,
) {
    let begun = cluster.api.store_status().await.unwrap().revision;
    cluster.stop("binder-2").await;
    for point in POINTS {
        cluster.note(point);
        cluster.stop("binder-1").await;
        cluster.restart_with("binder-1", &[("GODEL_BINDER__CRASH_POINTS".to_owned(), (*point).to_owned())]);
        let submission = arrive(cluster);
        cluster.wait_ended("binder-1").await;
        cluster.restart("binder-1");
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
    }
    cluster.restart("binder-2");
    cluster.wait_all_bound(n_fillers + submissions.len() * N_TASKS).await;
    assert!(n_preempted(cluster, begun).await > 0, "nobody had to leave");
}

/// Running units that were preempted after a revision and up to now.
async fn n_preempted(cluster: &Cluster, after: u64) -> usize {
    let last = cluster.api.store_status().await.unwrap().revision;
    let mut n = 0;
    let accept = |commit: &raw::Commit| {
        for op in &commit.ops {
            if let Some(v1::op::Op::Evict(evict)) = v1::Op::decode(op.clone()).unwrap().op
                && evict.reason() == v1::EvictionReason::Preempted
            {
                n += evict.ordinals.len();
            }
        }
        commit.revision >= last
    };
    cluster.api.watch_until(after + 1, &[], accept).await.unwrap();
    n
}
