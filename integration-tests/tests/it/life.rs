//! The life of units through the real API: gangs, scaling, cancelling, cordoned and tainted nodes.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn small() -> Layout {
    Layout { n_nodes: 10, ..Layout::default() }
}

async fn counts(cluster: &Cluster, name: &str) -> Result<v1::UnitCounts> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default().counts.unwrap_or_default())
}

/// Waits until `n_running` replicas of the unit run and none is on its way in or out.
async fn wait_running(cluster: &Cluster, name: &str, n_running: u32) {
    wait_for(&format!("{n_running} running units of {name}"), LIMIT, async || {
        let counts = counts(cluster, name).await?;
        let is_there = counts.running == n_running && counts.pending == 0 && counts.evicting == 0;
        ensure!(is_there, "{counts:?}");
        Ok(())
    })
    .await;
}

async fn scale(cluster: &Cluster, name: &str, replicas: u32) {
    let request = v1::ScaleUnitRequest { name: name.into(), replicas, ..Default::default() };
    cluster.api.units().await.unwrap().scale_unit(request).await.unwrap();
}

async fn cancel(cluster: &Cluster, name: &str) {
    let request = v1::CancelUnitRequest { name: name.into(), ..Default::default() };
    cluster.api.units().await.unwrap().cancel_unit(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_scaled_out_and_in_and_cancelled() {
    let cluster = Cluster::start(small()).await;
    cluster.api.submit(unit("web", "", 20, resources(100, 16), None, 0)).await.unwrap();
    wait_running(&cluster, "web", 20).await;
    scale(&cluster, "web", 50).await;
    wait_running(&cluster, "web", 50).await;
    scale(&cluster, "web", 5).await;
    wait_running(&cluster, "web", 5).await;
    let remaining = cluster.api.get_unit("web").await.unwrap().running_units;
    let running = v1::RunPhase::Running;
    let ordinals: Vec<u32> =
        remaining.iter().filter(|unit| unit.phase() == running).map(|unit| unit.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2, 3, 4], "the highest ordinals go first");
    scale(&cluster, "web", 8).await;
    wait_running(&cluster, "web", 8).await;
    let ordinals: Vec<u32> = cluster
        .api
        .get_unit("web")
        .await
        .unwrap()
        .running_units
        .iter()
        .filter(|unit| unit.phase() == running)
        .map(|unit| unit.ordinal)
        .collect();
    assert_eq!(ordinals, [0, 1, 2, 3, 4, 50, 51, 52], "ordinals are never used again");
    cancel(&cluster, "web").await;
    wait_for("the end of all", LIMIT, async || {
        let unit = cluster.api.get_unit("web").await?.unit.unwrap_or_default();
        let counts = unit.counts.unwrap_or_default();
        let phase = v1::UnitPhase::try_from(unit.phase)?;
        ensure!(
            phase == v1::UnitPhase::Cancelled && counts.bound == 0 && counts.pending == 0,
            "{phase:?} {counts:?}"
        );
        Ok(())
    })
    .await;
    cancel(&cluster, "web").await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn single_replicas_are_stopped_for_good() {
    let cluster = Cluster::start(small()).await;
    let gang = v1::UnitSpec {
        workload_class: v1::WorkloadClass::Gang.into(),
        ..unit("ring", "", 6, resources(100, 16), None, 0)
    };
    cluster.api.submit(gang).await.unwrap();
    wait_running(&cluster, "ring", 6).await;
    let stop = |words: &[&str]| {
        let args: Vec<&str> = ["unit", "stop", "ring"].into_iter().chain(words.iter().copied()).collect();
        cluster.godel(&args)
    };
    let output = stop(&["6"]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    assert!(shown(&output).contains("ordinals[0]: the unit never had 6"), "{}", shown(&output));
    let output = stop(&["0-5"]);
    assert!(shown(&output).contains("cancel the unit instead"), "{}", shown(&output));
    let output = stop(&["1", "--revision", "1"]);
    assert_eq!(output.status.code(), Some(5), "{}", shown(&output));
    for _ in 0..2 {
        let output = stop(&["0", "3-4"]);
        assert!(output.status.success(), "{}", shown(&output));
        wait_running(&cluster, "ring", 3).await;
    }
    let spec = cluster.api.get_unit("ring").await.unwrap().unit.unwrap().spec.unwrap();
    assert_eq!((spec.task_groups[0].replicas, spec.min_member), (3, 3));
    scale(&cluster, "ring", 5).await;
    wait_running(&cluster, "ring", 5).await;
    let running = v1::RunPhase::Running;
    let runs = cluster.api.get_unit("ring").await.unwrap().running_units;
    let ordinals: Vec<(u32, u32)> =
        runs.iter().filter(|run| run.phase() == running).map(|run| (run.ordinal, run.incarnation)).collect();
    assert_eq!(ordinals, [(1, 0), (2, 0), (5, 0), (6, 0), (7, 0)]);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn units_cancelled_on_their_way_leave_nothing_behind() {
    let cluster = Cluster::start(small()).await;
    for number in 0..40 {
        let name = format!("gone-{number}");
        cluster.api.submit(unit(&name, "", 5, resources(100, 16), None, 0)).await.unwrap();
        cancel(&cluster, &name).await;
    }
    wait_for("an empty cluster", LIMIT, async || {
        let nodes = cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await?.into_inner().nodes;
        let n_running: u32 = nodes.iter().map(|node| node.running_units).sum();
        ensure!(n_running == 0, "{n_running} still there");
        let status = cluster.api.dispatcher_status().await?;
        ensure!(status.queued_units == 0 && status.dispatched_units == 0, "{status:?}");
        Ok(())
    })
    .await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_are_placed_whole_or_not_at_all() {
    let cluster = Cluster::start(small()).await;
    let nodes =
        cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    let cpu_milli: i64 = nodes.iter().map(|node| node.allocatable.as_ref().unwrap().amounts["cpu"]).sum();
    // 60 % of the cluster each, in pieces of 1 CPU.
    let n_members = u32::try_from(cpu_milli * 6 / 10 / 1000).unwrap();
    let gang = |name: &str| v1::UnitSpec {
        workload_class: v1::WorkloadClass::Gang.into(),
        ..unit(name, "", n_members, resources(1000, 1), None, 0)
    };
    cluster.api.submit(gang("first")).await.unwrap();
    wait_running(&cluster, "first", n_members).await;
    cluster.api.submit(gang("second")).await.unwrap();
    wait_for("a failed try of the second", LIMIT, async || {
        let unit = cluster.api.get_unit("second").await?.unit.unwrap_or_default();
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        let bound = unit.counts.unwrap_or_default().bound;
        ensure!(bound == 0, "{bound} of a gang are bound");
        Ok(())
    })
    .await;
    cancel(&cluster, "first").await;
    wait_running(&cluster, "second", n_members).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn cordoned_and_tainted_nodes_take_nothing_new() {
    let cluster = Cluster::start(small()).await;
    let mut nodes = cluster.api.nodes();
    let names: Vec<String> = nodes
        .list_nodes(v1::ListNodesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .nodes
        .into_iter()
        .map(|node| node.spec.unwrap().meta.unwrap().name)
        .collect();
    let taint =
        v1::Taint { key: "only".into(), value: "few".into(), effect: v1::TaintEffect::NoSchedule.into() };
    for (idx, name) in names.iter().enumerate() {
        let mut request = v1::UpdateNodeRequest { name: name.clone(), ..Default::default() };
        match idx {
            0 => continue,
            1..5 => request.cordoned = Some(true),
            _ => request.set_taints = vec![taint.clone()],
        }
        nodes.update_node(request).await.unwrap();
    }
    cluster.api.submit(unit("plain", "", 10, resources(10, 1), None, 0)).await.unwrap();
    wait_running(&cluster, "plain", 10).await;
    let placed = cluster.api.get_unit("plain").await.unwrap().running_units;
    assert!(placed.iter().all(|unit| unit.node == names[0]), "{placed:?}");

    let mut tolerant = unit("tolerant", "", 60, resources(10, 1), None, 0);
    let toleration = v1::Toleration { key: "only".into(), any_value: true, ..Default::default() };
    tolerant.task_groups[0].template.as_mut().unwrap().tolerations = vec![toleration];
    cluster.api.submit(tolerant).await.unwrap();
    wait_running(&cluster, "tolerant", 60).await;
    let placed = cluster.api.get_unit("tolerant").await.unwrap().running_units;
    assert!(placed.iter().all(|unit| !names[1..5].contains(&unit.node)), "{placed:?}");

    // A parked unit wakes when its node is opened again.
    let mut picky = unit("picky", "", 1, resources(10, 1), None, 0);
    let selector = [("rack".to_owned(), "r1".to_owned())].into();
    picky.task_groups[0].template.as_mut().unwrap().node_selector = selector;
    cluster.api.submit(picky).await.unwrap();
    wait_for("a failed try", LIMIT, async || {
        let unit = cluster.api.get_unit("picky").await?.unit.unwrap_or_default();
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        Ok(())
    })
    .await;
    let request = v1::UpdateNodeRequest {
        name: names[2].clone(),
        cordoned: Some(false),
        set_labels: [("rack".to_owned(), "r1".to_owned())].into(),
        ..Default::default()
    };
    nodes.update_node(request).await.unwrap();
    wait_running(&cluster, "picky", 1).await;
    assert_eq!(cluster.api.get_unit("picky").await.unwrap().running_units[0].node, names[2]);
    cluster.audit(&[]);
    cluster.assert_quiet();
}
