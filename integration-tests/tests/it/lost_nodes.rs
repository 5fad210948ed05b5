//! Nodes that are lost: what ran there comes back elsewhere, and not when suspiciously many go at once.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// One node of the trace, one of each service, and a short grace.
fn short_grace() -> Layout {
    let env = [
        ("state", "GODEL_STATE__HEARTBEAT_INTERVAL", "200ms"),
        ("state", "GODEL_STATE__NODE_LEASE_TTL", "1s"),
        ("state", "GODEL_STATE__NODE_GRACE", "6500ms"),
    ];
    Layout {
        n_nodes: 1,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        env: env.iter().map(|(process, key, value)| (*process, *key, (*value).to_owned())).collect(),
        ..Layout::default()
    }
}

fn service(name: &str, replicas: u32) -> v1::UnitSpec {
    let spec = unit(name, "", replicas, resources(100, 16), None, 0);
    v1::UnitSpec { workload_class: v1::WorkloadClass::Service.into(), ..spec }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

/// Waits until every replica runs as `incarnation`, on a node whose name begins like that.
async fn wait_running(cluster: &Cluster, name: &str, n_running: usize, incarnation: u32, on: &str) {
    wait_for(&format!("{name} to run on {on} as incarnation {incarnation}"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so = |run: &v1::RunningUnit| {
            run.phase() == v1::RunPhase::Running && run.incarnation == incarnation && run.node.starts_with(on)
        };
        ensure!(running.len() == n_running && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
}

async fn wait_not_ready(cluster: &Cluster, n_nodes: u64, are_paused: bool) {
    wait_for(&format!("{n_nodes} nodes that are not ready"), LIMIT, async || {
        let status = cluster.api.dispatcher_status().await?;
        let seen = (status.nodes_not_ready, status.evictions_paused);
        ensure!(seen == (n_nodes, are_paused), "{seen:?}");
        Ok(())
    })
    .await;
}

/// What the agent of a node says that runs there.
async fn wait_agent_says(cluster: &Cluster, node: &str, n_running: usize) {
    wait_for(&format!("the agent of {node} to run {n_running}"), LIMIT, async || {
        let mut reports =
            cluster.api.state().list_agent_reports(v1::ListAgentReportsRequest {}).await?.into_inner();
        let mut n_live = 0;
        let mut is_connected = false;
        while let Some(report) = reports.message().await? {
            if report.node.starts_with(node) {
                is_connected |= report.connected;
                let is_live = |one: &&v1::RunStatus| one.phase() <= v1::RunPhase::Running;
                n_live += report.running.iter().filter(is_live).count();
            }
        }
        ensure!(is_connected && n_live == n_running, "connected: {is_connected}, {n_live} run");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_on_a_lost_node_comes_back_elsewhere_and_is_stopped_where_it_was() {
    let mut cluster = Cluster::start(short_grace()).await;
    cluster.announce(&["without contact for too long"]);
    cluster.add_agent("agent-2", "1x cpu=8,memory=16Gi,name=edge", 1).await;
    cluster.add_agent("agent-3", "1x cpu=8,memory=16Gi,name=spare", 1).await;
    // All of it goes to the node that will be lost.
    let others: Vec<String> = ["openb", "spare"].iter().map(|prefix| (*prefix).to_owned()).collect();
    for prefix in &others {
        run(&cluster, &["node", "cordon", prefix]);
    }
    let gang = v1::UnitSpec {
        workload_class: v1::WorkloadClass::Gang.into(),
        ..unit("ring", "", 3, resources(100, 16), None, 0)
    };
    cluster.api.submit(service("web", 4)).await.unwrap();
    cluster.api.submit(gang).await.unwrap();
    wait_running(&cluster, "web", 4, 0, "edge").await;
    wait_running(&cluster, "ring", 3, 0, "edge").await;
    run(&cluster, &["node", "uncordon", "spare"]);

    cluster.freeze("agent-2");
    wait_not_ready(&cluster, 1, false).await;
    wait_running(&cluster, "web", 4, 1, "spare").await;
    wait_running(&cluster, "ring", 3, 1, "spare").await;
    cluster.thaw("agent-2");
    wait_not_ready(&cluster, 0, false).await;
    wait_agent_says(&cluster, "edge", 0).await;
    wait_agent_says(&cluster, "spare", 7).await;
    wait_running(&cluster, "web", 4, 1, "spare").await;
    assert_eq!(cluster.api.dispatcher_status().await.unwrap().repairs, 0);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn when_many_nodes_are_lost_at_once_nothing_moves_until_they_are_back_or_somebody_says_so() {
    let mut cluster = Cluster::start(Layout { n_dispatchers: 2, ..short_grace() }).await;
    cluster.announce(&["so many nodes were lost at once", "lease"]);
    cluster.add_agent("agent-2", "2x cpu=8,memory=16Gi,name=edge", 2).await;
    run(&cluster, &["node", "cordon", "openb"]);
    cluster.api.submit(service("web", 4)).await.unwrap();
    wait_running(&cluster, "web", 4, 0, "edge").await;
    run(&cluster, &["node", "uncordon", "openb"]);

    cluster.freeze("agent-2");
    wait_not_ready(&cluster, 2, true).await;
    let status = run(&cluster, &["status"]);
    assert!(status.contains("ALERT") && status.contains("2 of 3 nodes are not ready"), "{status}");
    cluster.thaw("agent-2");
    wait_not_ready(&cluster, 0, false).await;
    wait_running(&cluster, "web", 4, 0, "edge").await;

    // Another leader finds the same.
    cluster.freeze("agent-2");
    wait_not_ready(&cluster, 2, true).await;
    let leader = cluster.leader("dispatcher").await;
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    cluster.kill(&leader);
    cluster.wait_other_leader("dispatcher", epoch).await;
    wait_not_ready(&cluster, 2, true).await;
    let said = run(&cluster, &["node", "resume-evictions"]);
    assert!(said.contains("evictions go on: 2 nodes"), "{said}");
    wait_running(&cluster, "web", 4, 1, "openb").await;
    wait_not_ready(&cluster, 2, false).await;
    let said = run(&cluster, &["node", "resume-evictions"]);
    assert!(said.contains("were not paused"), "{said}");
    cluster.thaw("agent-2");
    wait_agent_says(&cluster, "edge", 0).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}
