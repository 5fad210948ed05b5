//! Schedulers come and go while work flows, and what was submitted stays what it is, whoever dies: on one cluster.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, Submission},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use crate::{
    duplicates,
    kills::{AWAY, DURATION_MS, finish},
    task_groups,
};

const N_NODES: u32 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_and_nothing_is_lost_or_doubled() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let submissions =
        [replace_a_scheduler(&mut cluster).await, follow_schedulers_with_partitions(&mut cluster).await];
    duplicates::repeat_a_submission(&mut cluster).await;
    task_groups::grow_a_unit(&mut cluster).await;
    finish(&cluster, &submissions).await;
}

/// A scheduler dies and another joins while work flows; then the first one comes back.
async fn replace_a_scheduler(cluster: &mut Cluster) -> Submission {
    let submission = cluster.submit_tasks(300, 20, DURATION_MS);
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
    cluster.restart("scheduler-2");
    cluster.wait_ready().await;
    submission
}

/// Partitions are preferred when told, and follow the schedulers.
async fn follow_schedulers_with_partitions(cluster: &mut Cluster) -> Submission {
    set_partition_mode(cluster, v1::PartitionMode::Preferred).await;
    let submission = cluster.submit_tasks(200, 5, DURATION_MS);
    cluster.wait_acknowledged(&submission, 40).await;
    wait_for_partitions(cluster, 4).await;
    cluster.kill("scheduler-3");
    wait_for_partitions(cluster, 3).await;
    cluster.restart("scheduler-3");
    wait_for_partitions(cluster, 4).await;
    cluster.wait_submitted(&submission).await;
    cluster.wait_complete(&[&submission]).await;
    set_partition_mode(cluster, v1::PartitionMode::Global).await;
    submission
}

async fn set_partition_mode(cluster: &Cluster, mode: v1::PartitionMode) {
    let request = v1::SetPartitionModeRequest { mode: mode.into(), ..Default::default() };
    cluster.api.dispatch().await.unwrap().set_partition_mode(request).await.unwrap();
}

/// Waits until so many schedulers are there and share the nodes.
async fn wait_for_partitions(cluster: &Cluster, n_schedulers: usize) {
    wait_for(&format!("partitions for {n_schedulers}"), LIMIT, async || {
        let schedulers = cluster.api.list_schedulers().await?;
        let attached = schedulers.iter().filter(|scheduler| scheduler.attached);
        let nodes: Vec<u32> = attached.map(|scheduler| scheduler.nodes).collect();
        let is_shared = nodes.iter().sum::<u32>() == N_NODES && nodes.iter().all(|n| *n >= N_NODES / 5);
        ensure!(nodes.len() == n_schedulers && is_shared, "{schedulers:?}");
        Ok(())
    })
    .await;
}
