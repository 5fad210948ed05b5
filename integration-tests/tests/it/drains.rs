//! Drained nodes: running units leave as their units can spare them, and all of them after the deadline.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use prost::Message as _;

fn small() -> Layout {
    Layout { n_nodes: 1, n_dispatchers: 2, n_schedulers: 1, n_binders: 1, ..Layout::default() }
}

fn of_class(name: &str, replicas: u32, class: v1::WorkloadClass) -> v1::UnitSpec {
    let spec = unit(name, "", replicas, resources(1_000, 16), None, 0);
    v1::UnitSpec { workload_class: class.into(), ..spec }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

/// Waits until every replica runs, on nodes whose names begin so; answers the highest incarnation.
async fn wait_running(cluster: &Cluster, name: &str, n_running: usize, on: &[&str]) -> u32 {
    wait_for(&format!("{name} to run on {on:?}"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so = |run: &v1::RunningUnit| {
            run.phase() == v1::RunPhase::Running && on.iter().any(|prefix| run.node.starts_with(prefix))
        };
        ensure!(running.len() == n_running && running.iter().all(is_so), "{running:?}");
        Ok(running.iter().map(|run| run.incarnation).max().unwrap_or(0))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_drained_by_label_and_a_service_never_misses_more_than_one_replica() {
    let mut cluster = Cluster::start(small()).await;
    cluster.announce(&["lease"]);
    cluster.add_agent("agent-2", "2x cpu=8,memory=16Gi,name=old,label.rack=r1", 2).await;
    run(&cluster, &["node", "cordon", "openb"]);
    cluster.api.submit(of_class("web", 6, v1::WorkloadClass::Service)).await.unwrap();
    cluster.api.submit(of_class("ring", 3, v1::WorkloadClass::Gang)).await.unwrap();
    wait_running(&cluster, "web", 6, &["old"]).await;
    wait_running(&cluster, "ring", 3, &["old"]).await;
    run(&cluster, &["node", "uncordon", "openb"]);
    let from_revision = cluster.api.store_status().await.unwrap().revision;

    let said = run(&cluster, &["node", "drain", "--selector", "rack=r1", "--wait", "--timeout", "50s"]);
    assert!(said.contains("2 nodes changed, 0 unchanged, 0 failed"), "{said}");
    assert!(said.contains("2 nodes are empty, 9 running units have left"), "{said}");
    assert_eq!(wait_running(&cluster, "web", 6, &["openb"]).await, 1);
    wait_running(&cluster, "ring", 3, &["openb"]).await;
    let said = run(&cluster, &["node", "drain", "-l", "rack=r1"]);
    assert!(said.contains("0 nodes changed, 2 unchanged"), "idempotent: {said}");
    let said = run(&cluster, &["node", "list"]);
    assert_eq!(said.matches("Ready,Drained").count(), 2, "{said}");
    wait_for("the end of the drains", LIMIT, async || {
        let status = cluster.api.dispatcher_status().await?;
        ensure!((status.nodes_draining, status.repairs) == (0, 0), "{status:?}");
        Ok(())
    })
    .await;

    // Never two replicas of the service told to leave before the first one's successor was bound.
    let web = cluster.api.get_unit("web").await.unwrap().unit.unwrap().spec.unwrap().unit_id;
    let (mut n_gone, mut n_back) = (0, 0);
    let seen = cluster.api.watch_until(from_revision + 1, &[v1::Kind::Rows], |commit| {
        for op in &commit.ops {
            match v1::Op::decode(op.clone()).unwrap().op {
                Some(v1::op::Op::Evict(evict)) if evict.unit_id == web => n_gone += evict.ordinals.len(),
                Some(v1::op::Op::Bind(bind)) if bind.unit_id == web => n_back += bind.ordinals.len(),
                _ => {}
            }
            assert!(n_gone <= n_back + 1, "{n_gone} gone, {n_back} back at revision {}", commit.revision);
        }
        n_back == 6
    });
    seen.await.unwrap();
    run(&cluster, &["node", "undrain", "-l", "rack=r1"]);
    let said = run(&cluster, &["node", "list"]);
    assert!(!said.contains("Drain"), "{said}");
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_what_cannot_be_spared_until_its_deadline_whoever_leads() {
    let mut cluster = Cluster::start(small()).await;
    cluster.announce(&["lease"]);
    cluster.add_agent("agent-2", "1x cpu=4,memory=8Gi,name=old", 1).await;
    run(&cluster, &["node", "cordon", "openb"]);
    // Nowhere else to go: the second replica waits for the first.
    cluster.api.submit(of_class("web", 2, v1::WorkloadClass::Service)).await.unwrap();
    wait_running(&cluster, "web", 2, &["old"]).await;
    let output = cluster.godel(&["node", "drain", "old", "--wait", "--timeout", "3s"]);
    assert_eq!(output.status.code(), Some(6), "{}", shown(&output));
    assert!(shown(&output).contains("default/web: 1 of 2 replicas are available"), "{}", shown(&output));
    let said = run(&cluster, &["node", "describe", "old"]);
    assert!(said.contains("1 of 2 running units have left"), "{said}");
    assert!(said.contains("waits for default/web: 1 of 2 replicas"), "{said}");
    let output = cluster.godel(&["node", "uncordon", "old"]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    assert!(shown(&output).contains("undrain"), "{}", shown(&output));

    // The drain is a record: another leader goes on with it.
    let leader = cluster.leader("dispatcher").await;
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    cluster.kill(&leader);
    cluster.wait_other_leader("dispatcher", epoch).await;
    let said = run(&cluster, &["node", "drain", "old", "--deadline", "2s", "--wait", "--timeout", "50s"]);
    assert!(said.contains("1 nodes are empty"), "{said}");
    run(&cluster, &["node", "uncordon", "openb"]);
    wait_running(&cluster, "web", 2, &["openb"]).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_gangs_come_back_as_a_whole_or_end_and_what_may_not_be_evicted_fails() {
    let mut cluster = Cluster::start(small()).await;
    cluster.add_agent("agent-2", "2x cpu=2,memory=8Gi,name=pair", 2).await;
    cluster.add_agent("agent-3", "1x cpu=2,memory=8Gi,name=other", 1).await;
    run(&cluster, &["node", "cordon", "openb", "other"]);
    let ring = v1::UnitSpec {
        on_below_min: v1::OnBelowMin::Restart.into(),
        ..of_class("ring", 4, v1::WorkloadClass::Gang)
    };
    cluster.api.submit(ring).await.unwrap();
    assert_eq!(wait_running(&cluster, "ring", 4, &["pair"]).await, 0);
    run(&cluster, &["node", "uncordon", "other"]);
    let brittle = v1::UnitSpec {
        on_below_min: v1::OnBelowMin::Stop.into(),
        task_groups: unit("", "", 2, resources(500, 16), None, 0).task_groups,
        ..of_class("brittle", 2, v1::WorkloadClass::Gang)
    };
    let single = v1::UnitSpec {
        on_eviction: v1::OnEviction::Fail.into(),
        ..of_class("single", 1, v1::WorkloadClass::Batch)
    };
    cluster.api.submit(brittle).await.unwrap();
    cluster.api.submit(single).await.unwrap();
    wait_running(&cluster, "brittle", 2, &["other"]).await;
    wait_running(&cluster, "single", 1, &["other"]).await;

    run(&cluster, &["node", "drain", "other", "--wait", "--force", "--timeout", "50s"]);
    for (name, ended) in [("brittle", v1::UnitEnd::BelowMin), ("single", v1::UnitEnd::Unspecified)] {
        wait_for(&format!("{name} to fail"), LIMIT, async || {
            let shown = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
            let spec = shown.spec.clone().unwrap_or_default();
            ensure!(shown.phase() == v1::UnitPhase::Failed && spec.ended() == ended, "{shown:?}");
            Ok(())
        })
        .await;
    }
    run(&cluster, &["node", "uncordon", "openb"]);
    let on = cluster.api.get_unit("ring").await.unwrap().running_units[0].node.clone();
    run(&cluster, &["node", "drain", &on, "--wait", "--timeout", "50s"]);
    wait_for("the whole ring to run again", LIMIT, async || {
        let running = cluster.api.get_unit("ring").await?.running_units;
        let is_so = |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.incarnation == 1;
        ensure!(running.len() == 4 && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!(status.repairs, 0);
    cluster.audit(&[]);
    cluster.assert_quiet();
}
