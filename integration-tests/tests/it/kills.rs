//! kill -9 in the middle of a replay, and a restart.

use godel_integration_tests::cluster::{Cluster, Layout};

/// What may be said at WARN when processes are killed: leases are lost, and a group of commits that was being
/// written is dropped at the next start.
pub(crate) const AWAY: &[&str] =
    &["lease lost", "registration lost", "an unfinished group at the end of the log was dropped"];

#[tokio::test(flavor = "multi_thread")]
async fn each_service_killed_in_turn_loses_nothing() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let submission = cluster.submit_tasks(300, 15, 0);
    for (turn, part) in ["state", "dispatcher", "binder", "scheduler-1", "agent"].into_iter().enumerate() {
        cluster.wait_acknowledged(&submission, 50 * (turn + 1)).await;
        let name = match part {
            "dispatcher" | "binder" => cluster.leader(part).await,
            other => other.to_owned(),
        };
        cluster.kill(&name);
        cluster.restart(&name);
    }
    cluster.wait_submitted(&submission).await;
    cluster.wait_ready().await;
    cluster.wait_complete(&[&submission]).await;
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_killed_at_once_lose_nothing() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let submission = cluster.submit_tasks(200, 10, 0);
    cluster.wait_acknowledged(&submission, 100).await;
    for name in cluster.names() {
        cluster.kill(&name);
    }
    for name in cluster.names() {
        cluster.restart(&name);
    }
    cluster.wait_submitted(&submission).await;
    cluster.wait_ready().await;
    cluster.wait_complete(&[&submission]).await;
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_stop_of_each_service_ends_well() {
    let mut cluster = Cluster::start(Layout::default()).await;
    cluster.announce(AWAY);
    let submission = cluster.submit_tasks(150, 10, 0);
    cluster.wait_acknowledged(&submission, 50).await;
    for part in ["binder", "dispatcher", "scheduler/scheduler-2"] {
        let name = cluster.leader(part).await;
        cluster.stop(&name).await;
        cluster.restart(&name);
    }
    cluster.stop("state").await;
    cluster.restart("state");
    cluster.wait_submitted(&submission).await;
    cluster.wait_ready().await;
    cluster.wait_complete(&[&submission]).await;
    cluster.assert_quiet();
}
