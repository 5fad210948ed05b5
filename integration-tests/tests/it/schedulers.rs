//! Schedulers come and go while work flows.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use crate::kills::AWAY;

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_dies_and_another_joins_while_work_flows() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let submission = cluster.submit_tasks(300, 20, 0);
    cluster.wait_acknowledged(&submission, 60).await;
    cluster.kill("scheduler-2");
    cluster.add_service("scheduler", "scheduler-4").await;
    wait_for("work of the new scheduler", LIMIT, async || {
        let schedulers = cluster.api.list_schedulers().await?;
        let new = schedulers.iter().find(|scheduler| scheduler.name == "scheduler-4");
        ensure!(new.is_some_and(|scheduler| scheduler.placed > 0), "{schedulers:?}");
        Ok(())
    })
    .await;
    cluster.wait_submitted(&submission).await;
    cluster.wait_complete(&[&submission]).await;
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_preferred_when_told_and_follow_the_schedulers() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let mut dispatch = cluster.api.dispatch().await.unwrap();
    let request =
        v1::SetPartitionModeRequest { mode: v1::PartitionMode::Preferred.into(), ..Default::default() };
    dispatch.set_partition_mode(request).await.unwrap();
    let submission = cluster.submit_tasks(200, 5, 0);
    cluster.wait_acknowledged(&submission, 40).await;
    wait_for("a partition for each scheduler", LIMIT, async || {
        let schedulers = cluster.api.list_schedulers().await?;
        let n_nodes: u32 = schedulers.iter().filter(|scheduler| scheduler.attached).map(|it| it.nodes).sum();
        ensure!(n_nodes == 100 && schedulers.iter().all(|it| it.nodes >= 20), "{schedulers:?}");
        Ok(())
    })
    .await;
    cluster.kill("scheduler-3");
    wait_for("partitions for two", LIMIT, async || {
        let schedulers = cluster.api.list_schedulers().await?;
        let attached = schedulers.iter().filter(|scheduler| scheduler.attached);
        let nodes: Vec<u32> = attached.map(|scheduler| scheduler.nodes).collect();
        ensure!(nodes.len() == 2 && nodes.iter().sum::<u32>() == 100, "{schedulers:?}");
        Ok(())
    })
    .await;
    cluster.wait_submitted(&submission).await;
    cluster.wait_complete(&[&submission]).await;
    cluster.assert_quiet();
}

/// Sets how nodes are split, through the command line.
fn set_partition(cluster: &Cluster, mode: &str) {
    let set = cluster.godel(&["partition", "set", mode]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
}

/// CPU that each node has to give.
async fn cpus(cluster: &Cluster) -> Vec<i64> {
    let listed = cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap();
    let nodes = listed.into_inner().nodes;
    nodes.iter().map(|node| node.allocatable.as_ref().unwrap().amounts["cpu"]).collect()
}

async fn bound(cluster: &Cluster, name: &str) -> anyhow::Result<(v1::UnitPhase, u32)> {
    let unit = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
    Ok((unit.phase(), unit.counts.unwrap_or_default().bound))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_fits_only_across_three_strict_partitions_is_placed() {
    let layout = Layout { n_nodes: 9, n_dispatchers: 1, n_binders: 1, ..Layout::default() };
    let cluster = Cluster::start(layout).await;
    set_partition(&cluster, "strict");
    wait_for("three partitions", LIMIT, async || {
        // As the schedulers themselves see it: they learn of the split on their own.
        let mut nodes = Vec::new();
        for number in 1..=3 {
            let mut scheduler = cluster.api.scheduler(&format!("scheduler-{number}")).await?;
            let status = scheduler.get_scheduler_status(v1::GetSchedulerStatusRequest {}).await?;
            nodes.push(status.into_inner().nodes);
        }
        ensure!(nodes == [3, 3, 3], "{nodes:?}");
        Ok(())
    })
    .await;
    // Whole nodes, all of them together.
    let cpus = cpus(&cluster).await;
    let each = *cpus.iter().min().unwrap();
    let replicas = u32::try_from(cpus.iter().map(|cpu| cpu / each).sum::<i64>()).unwrap();
    let spec = |name: &str, replicas: u32| v1::UnitSpec {
        min_member: replicas,
        ..unit(name, "", replicas, resources(each, 1), None, 0)
    };
    cluster.api.submit(spec("gang", replicas)).await.unwrap();
    wait_for("the gang runs", LIMIT, async || {
        let (phase, n_bound) = bound(&cluster, "gang").await?;
        ensure!(n_bound == replicas, "{phase:?} {n_bound} of {replicas}");
        Ok(())
    })
    .await;
    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!(status.redispatched, 3, "each scheduler gave it back once");
    // Nothing is left: one more goes round once, and waits with its reasons until there is room anywhere.
    cluster.api.submit(spec("more", 1)).await.unwrap();
    wait_for("it is parked", LIMIT, async || {
        let unit = cluster.api.get_unit("more").await?.unit.unwrap_or_default();
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        let refusals = unit.refusals.unwrap_or_default();
        ensure!(refusals.nodes == 9, "it was tried on all nodes: {refusals:?}");
        Ok(())
    })
    .await;
    assert_eq!(cluster.api.dispatcher_status().await.unwrap().redispatched, 6);
    let request = v1::CancelUnitRequest { name: "gang".into(), ..Default::default() };
    cluster.api.units().await.unwrap().cancel_unit(request).await.unwrap();
    wait_for("room wakes it", LIMIT, async || {
        let (phase, n_bound) = bound(&cluster, "more").await?;
        ensure!(n_bound == 1, "{phase:?}");
        Ok(())
    })
    .await;
    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!((status.redispatched, status.repairs), (6, 0));
    cluster.audit(&[]);
    cluster.assert_quiet();
}
