//! `godel admin pause`: nothing new of a scope is handed out, what runs goes on, and it outlives restarts.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn one_node() -> Layout {
    Layout { n_nodes: 1, n_dispatchers: 2, n_schedulers: 1, n_binders: 1, ..Layout::default() }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

async fn view(cluster: &Cluster, name: &str) -> Result<v1::Unit> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default())
}

async fn wait_running(cluster: &Cluster, name: &str) {
    wait_for(&format!("{name} to run"), LIMIT, async || {
        let unit = view(cluster, name).await?;
        ensure!(unit.phase() == v1::UnitPhase::Running, "{:?} {:?}", unit.phase(), unit.refusals);
        Ok(())
    })
    .await;
}

/// Waits until a unit waits because of a pause.
async fn wait_paused(cluster: &Cluster, name: &str, words: &str) {
    wait_for(&format!("{name} to be kept"), LIMIT, async || {
        let unit = view(cluster, name).await?;
        let reasons = unit.refusals.clone().unwrap_or_default().reasons;
        ensure!(reasons.iter().any(|one| one.plugin == "pause" && one.reason.contains(words)), "{unit:?}");
        ensure!(unit.phase() == v1::UnitPhase::Queued, "{:?}", unit.phase());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_waits_whoever_leads_until_it_is_resumed() {
    let mut cluster = Cluster::start(one_node()).await;
    cluster.announce(&["lease", "paused"]);
    let of = |name: &str, queue: &str| v1::UnitSpec {
        queue: queue.to_owned(),
        ..unit(name, "", 2, resources(100, 16), None, 0)
    };
    run(&cluster, &["queue", "create", "team"]);
    cluster.api.submit(of("before", "")).await.unwrap();
    wait_running(&cluster, "before").await;

    for (scope, words, code) in
        [("sub-cluster/a", "there are no sub-clusters", 2), ("queue/nobody", "no queue `nobody`", 4)]
    {
        let output = cluster.godel(&["admin", "pause", scope]);
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
        assert!(shown(&output).contains(words), "{}", shown(&output));
    }
    let said = run(&cluster, &["admin", "pause", "all", "--reason", "new switch"]);
    assert!(said.contains("all paused at revision"), "{said}");
    assert!(run(&cluster, &["admin", "pause", "all", "--reason", "new switch"]).contains("already"));
    cluster.api.submit(of("kept", "")).await.unwrap();
    wait_paused(&cluster, "kept", "new switch").await;

    let leader = cluster.leader("dispatcher").await;
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    cluster.kill(&leader);
    cluster.wait_other_leader("dispatcher", epoch).await;
    wait_paused(&cluster, "kept", "everything is paused").await;
    let said = run(&cluster, &["status"]);
    assert!(
        said.contains("PAUSED") && said.contains("all since 20") && said.contains(": new switch"),
        "{said}"
    );
    wait_running(&cluster, "before").await;
    cluster.audit(&[]);

    run(&cluster, &["admin", "pause", "queue/team"]);
    run(&cluster, &["admin", "resume", "all"]);
    wait_running(&cluster, "kept").await;
    cluster.api.submit(of("member", "team")).await.unwrap();
    wait_paused(&cluster, "member", "queue team is paused").await;
    cluster.api.submit(of("other", "")).await.unwrap();
    wait_running(&cluster, "other").await;
    let said = run(&cluster, &["admin", "resume", "queue/team", "all"]);
    assert!(said.contains("queue/team goes on") && said.contains("all was not paused"), "{said}");
    wait_running(&cluster, "member").await;
    assert!(!run(&cluster, &["status"]).contains("PAUSED"));
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_leaves_for_others_while_preemption_is_paused() {
    let mut cluster = Cluster::start(one_node()).await;
    cluster.announce(&["paused"]);
    let nodes =
        cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    let all = nodes[0].allocatable.as_ref().unwrap().amounts["cpu"];
    let of = |name: &str, priority, cpu_milli| v1::UnitSpec {
        priority,
        ..unit(name, "", 1, resources(cpu_milli, 1), None, 0)
    };
    cluster.api.submit(of("low", 1, all)).await.unwrap();
    wait_running(&cluster, "low").await;
    run(&cluster, &["admin", "pause", "preemption"]);
    cluster.api.submit(of("high", 9, all)).await.unwrap();
    wait_for("a failed try", LIMIT, async || {
        let unit = view(&cluster, "high").await?;
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        Ok(())
    })
    .await;
    assert_eq!(view(&cluster, "low").await.unwrap().phase(), v1::UnitPhase::Running);
    run(&cluster, &["admin", "resume", "preemption"]);
    wait_running(&cluster, "high").await;
    assert_eq!(view(&cluster, "low").await.unwrap().preempted_by, ["default/high"]);
    cluster.audit(&[]);
    cluster.assert_quiet();
}
