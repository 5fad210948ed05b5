//! Client verbs while who they speak to goes away.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, shown},
    process::Process,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};

/// Changes that a watch has printed, as JSON.
fn printed(watch: &Process) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(watch.log()).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

async fn sees(watch: &Process, replicas: u64) {
    wait_for(&format!("{replicas} replicas in the watch"), LIMIT, async || -> Result<()> {
        let last = printed(watch).last().map(|unit| unit["replicas"].clone());
        ensure!(last == Some(replicas.into()), "{last:?}");
        Ok(())
    })
    .await;
}

pub(crate) async fn a_watch_and_a_wait_outlive_the_leader_they_began_with(cluster: &mut Cluster) {
    cluster.api.submit(unit("watched", "", 1, resources(100, 16), None, 0)).await.unwrap();
    let watch = cluster.start_godel("watch", &["unit", "watch", "watched", "-o", "json"]);
    let mut wait =
        cluster.start_godel("wait", &["unit", "wait", "watched", "--for", "deleted", "--timeout", "60s"]);
    sees(&watch, 1).await;
    // A wait that nobody has answered yet gives up with its server.
    let leader = cluster.leader("dispatcher").await;
    wait_for("the watch of each", LIMIT, async || {
        let n_watches = cluster.metric(&leader, "godel_dispatcher_watches").await?;
        ensure!(n_watches == 2, "{n_watches} watches");
        Ok(())
    })
    .await;
    for replicas in [2u32, 3] {
        let leader = cluster.leader("dispatcher").await;
        let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
        cluster.kill(&leader);
        cluster.wait_other_leader("dispatcher", epoch).await;
        cluster.restart(&leader);
        let scaled = cluster.godel(&["unit", "scale", "watched", "--replicas", &replicas.to_string()]);
        assert!(scaled.status.success(), "{}", shown(&scaled));
        sees(&watch, replicas.into()).await;
    }
    // Nothing was printed twice: it went on from where it was.
    let revisions: Vec<u64> = printed(&watch).iter().map(|unit| unit["revision"].as_u64().unwrap()).collect();
    assert!(revisions.is_sorted(), "{revisions:?}");
    let deleted = cluster.godel(&["unit", "delete", "--cancel", "watched"]);
    assert!(deleted.status.success(), "{}", shown(&deleted));
    wait_for("the end of the wait", LIMIT, async || {
        let ended = wait.ended();
        ensure!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", wait.tail(5));
        Ok(())
    })
    .await;
}
