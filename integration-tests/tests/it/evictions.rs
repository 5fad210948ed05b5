//! Who had a replica leave: kept with the unit, and shown after the replica has come back elsewhere.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// Two nodes of four cores, and the node of the layout, which nobody uses.
async fn two_nodes() -> Cluster {
    let layout = Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent("agent-2", &["2x cpu=4,memory=16Gi,name=edge".to_owned()], &[], 2).await;
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    cluster
}

fn run(cluster: &Cluster, args: &[&str]) {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{}", shown(&output));
}

/// Waits until the only replica of a unit has this incarnation and phase, and returns it.
async fn replica(
    cluster: &Cluster,
    name: &str,
    (incarnation, phase): (u32, v1::RunPhase),
) -> v1::RunningUnit {
    wait_for(&format!("{name} to be {phase:?} as {incarnation}"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let found = running.into_iter().find(|run| (run.incarnation, run.phase()) == (incarnation, phase));
        found.ok_or_else(|| anyhow::anyhow!("it is not"))
    })
    .await
}

fn last(run: &v1::RunningUnit) -> (u32, v1::EvictionReason, String) {
    let last = run.last_eviction.clone().unwrap_or_default();
    (last.incarnation, last.reason(), last.by)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_says_who_had_it_leave() {
    let mut cluster = two_nodes().await;
    let running = v1::RunPhase::Running;
    let low = || unit("low", "", 1, resources(3_000, 16), None, 0);
    cluster.api.submit(low()).await.unwrap();
    let first = replica(&cluster, "low", (0, running)).await;
    assert_eq!(first.last_eviction, None);
    run(&cluster, &["node", "drain", &first.node]);
    let second = replica(&cluster, "low", (1, running)).await;
    let drained = format!("drain of node {}", first.node);
    assert_eq!(last(&second), (0, v1::EvictionReason::Drained, drained.clone()));
    // What is kept is on the disk.
    cluster.kill("state");
    cluster.restart("state");
    wait_for("the dispatcher to answer", LIMIT, async || {
        let text = shown(&cluster.godel(&["unit", "describe", "low"]));
        ensure!(text.contains("last evictions") && text.contains(&drained), "{text}");
        Ok(())
    })
    .await;
    // No other node is there: what is more important takes its place.
    let high = v1::UnitSpec { priority: Some(100), ..unit("high", "", 1, resources(3_000, 16), None, 0) };
    cluster.api.submit(high).await.unwrap();
    replica(&cluster, "high", (0, running)).await;
    let waits = replica(&cluster, "low", (2, v1::RunPhase::Unspecified)).await;
    assert_eq!(last(&waits), (1, v1::EvictionReason::Preempted, "unit default/high".to_owned()));
    run(&cluster, &["unit", "cancel", "high"]);
    let third = replica(&cluster, "low", (2, running)).await;
    assert_eq!(last(&third), last(&waits), "it is kept while it runs again");
    run(&cluster, &["unit", "cancel", "low"]);
    let ended = replica(&cluster, "low", (2, v1::RunPhase::Stopped)).await;
    assert_eq!(last(&ended), (2, v1::EvictionReason::Cancelled, "cancel of the unit".to_owned()));
    cluster.audit(&[]);
}
