//! Client verbs while who they speak to goes away.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    process::Process,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_and_a_wait_outlive_the_leader_they_began_with() {
    let layout = Layout {
        n_nodes: 2,
        n_dispatchers: 2,
        n_schedulers: 1,
        n_binders: 1,
        settings: vec![("dispatcher.lease.ttl".to_owned(), "1500ms".to_owned())],
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&["lease"]);
    cluster.api.submit(unit("web", "", 1, resources(100, 16), None, 0)).await.unwrap();
    let watch = cluster.start_godel("watch", &["unit", "watch", "web", "-o", "json"]);
    let mut wait =
        cluster.start_godel("wait", &["unit", "wait", "web", "--for", "deleted", "--timeout", "60s"]);
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
        let scaled = cluster.godel(&["unit", "scale", "web", "--replicas", &replicas.to_string()]);
        assert!(scaled.status.success(), "{}", shown(&scaled));
        sees(&watch, replicas.into()).await;
    }
    // Nothing was printed twice: it went on from where it was.
    let revisions: Vec<u64> = printed(&watch).iter().map(|unit| unit["revision"].as_u64().unwrap()).collect();
    assert!(revisions.is_sorted(), "{revisions:?}");
    let deleted = cluster.godel(&["unit", "delete", "--cancel", "web"]);
    assert!(deleted.status.success(), "{}", shown(&deleted));
    wait_for("the end of the wait", LIMIT, async || {
        let ended = wait.ended();
        ensure!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", wait.tail(5));
        Ok(())
    })
    .await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_service_that_does_not_answer() {
    let layout = Layout { n_nodes: 0, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&["lease", "dispatcher"]);
    let address = cluster.address("dispatcher-1");
    let members = cluster.api.list_members("dispatcher").await.unwrap();
    assert!(members.iter().any(|member: &v1::Member| member.address.ends_with(&address.to_string())));
    cluster.kill("dispatcher-1");
    let output = cluster.godel(&["unit", "list"]);
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let named = said.contains(&format!("dispatcher at http://{address} does not answer"))
        || said.contains("no dispatcher leads");
    assert!(named && !said.contains("state at http://127.0.0.1:7700 does not"), "{said}");
    let output = cluster.godel(&["node", "list"]);
    assert!(output.status.success(), "state answers: {}", shown(&output));
}
