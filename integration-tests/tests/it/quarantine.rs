//! A node whose agent refuses what it is assigned.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// A good node that is cordoned, and one whose agent refuses three times.
async fn bad_node(quarantine_for: &str) -> Cluster {
    let env = vec![
        ("agent-2", "GODEL_AGENT__REFUSE_FIRST", "3".to_owned()),
        ("state", "GODEL_STATE__QUARANTINE_FOR", quarantine_for.to_owned()),
    ];
    let layout =
        Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, env, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&["node quarantined"]);
    cluster.start_agent("agent-2", &["1x cpu=8,memory=16Gi,name=bad".to_owned()], &[], 1).await;
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    cluster
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

async fn quarantine(cluster: &Cluster) -> Result<Option<v1::NodeQuarantine>> {
    let request = v1::GetNodeRequest { name: "bad".into() };
    let node = cluster.api.nodes().get_node(request).await?.into_inner().node.unwrap_or_default();
    Ok(node.spec.unwrap_or_default().quarantine)
}

/// Waits until the only replica of a unit runs; its node and incarnation.
async fn running(cluster: &Cluster, name: &str) -> (String, u32) {
    wait_for(&format!("{name} to run"), LIMIT, async || {
        let runs = cluster.api.get_unit(name).await?.running_units;
        let run = runs.iter().find(|run| run.phase() == v1::RunPhase::Running);
        let run = run.map(|run| (run.node.clone(), run.incarnation));
        ensure!(run.is_some(), "{runs:?}");
        Ok(run.unwrap_or_default())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_refuses_is_quarantined_and_its_units_move() {
    let cluster = bad_node("10m").await;
    cluster.api.submit(unit("first", "", 1, resources(1_000, 16), None, 0)).await.unwrap();
    wait_for("the quarantine", LIMIT, async || {
        ensure!(quarantine(&cluster).await?.is_some(), "none");
        Ok(())
    })
    .await;
    let reason = "3 assignments refused within 60 s, the last for told";
    assert_eq!(quarantine(&cluster).await.unwrap().unwrap().reason, reason);
    assert!(run(&cluster, &["node", "list"]).contains("Ready,Quarantined"));
    let text = run(&cluster, &["node", "describe", "bad"]);
    assert!(text.contains(reason) && text.contains("godel node uncordon"), "{text}");
    run(&cluster, &["node", "uncordon", "openb-node-0000"]);
    let (node, incarnation) = running(&cluster, "first").await;
    assert!(node.starts_with("openb"), "{node}");
    assert_eq!(incarnation, 3, "one more for each refusal");

    // An administrator ends it.
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    run(&cluster, &["node", "uncordon", "bad-0000"]);
    assert_eq!(quarantine(&cluster).await.unwrap(), None);
    cluster.api.submit(unit("second", "", 1, resources(1_000, 16), None, 0)).await.unwrap();
    let (node, incarnation) = running(&cluster, "second").await;
    assert!(node.starts_with("bad"), "{node}");
    assert_eq!(incarnation, 0);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_ends_by_itself() {
    let cluster = bad_node("1s").await;
    cluster.api.submit(unit("first", "", 1, resources(1_000, 16), None, 0)).await.unwrap();
    // Refused three times, quarantined, and back in the end: nothing else has room for it.
    let (node, incarnation) = running(&cluster, "first").await;
    assert!(node.starts_with("bad"), "{node}");
    assert_eq!(incarnation, 3);
    assert_eq!(quarantine(&cluster).await.unwrap(), None);
    cluster.audit(&[]);
    cluster.assert_quiet();
}
