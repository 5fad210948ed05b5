//! Schedulers come and go while work flows.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout},
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
