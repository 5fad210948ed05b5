//! Reservations through command line and API: who gets held room, and what becomes of it.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

fn fails(cluster: &Cluster, args: &[&str], code: i32, part: &str) {
    let output = cluster.godel(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", shown(&output));
    assert!(shown(&output).contains(part), "{args:?}: {}", shown(&output));
}

/// A unit of whole nodes of 4 cores.
fn whole(name: &str, replicas: u32, app: &str) -> v1::UnitSpec {
    let spec = unit(name, "", replicas, resources(4_000, 16), None, 0);
    let meta = spec.meta.map(|meta| v1::ObjectMeta { labels: [("app".into(), app.into())].into(), ..meta });
    v1::UnitSpec { meta, ..spec }
}

async fn wait_running(cluster: &Cluster, name: &str, n: u32) {
    wait_for(&format!("{n} running units of {name}"), LIMIT, async || {
        let unit = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
        let running = unit.counts.unwrap_or_default().running;
        ensure!(running == n, "{running} run");
        Ok(())
    })
    .await;
}

fn described(cluster: &Cluster) -> Result<serde_json::Value> {
    let output = cluster.godel(&["reservation", "describe", "kept", "-o", "json"]);
    ensure!(output.status.success(), "{}", shown(&output));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Held, used, waiting.
async fn wait_counts(cluster: &Cluster, expected: [u64; 3]) {
    wait_for(&format!("the slots to be {expected:?}"), LIMIT, async || {
        let view = described(cluster)?;
        let found = ["held", "used", "waiting"].map(|field| view[field].as_u64().unwrap_or(99));
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_kept_for_owners_and_held_again() {
    let layout = Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 2, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent("agent-2", &["4x cpu=4,memory=8Gi,name=small".to_owned()], &[], 4).await;
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    let file = cluster.path("reservation.yaml");
    let text =
        "{kind: reservation, name: kept, selector: {app: web}, slots: 2, requests: {cpu: 4, memory: 1Gi}}\n";
    std::fs::write(&file, text).unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap()];
    assert!(run(&cluster, &apply).contains("reservation kept created"));
    assert!(run(&cluster, &apply).contains("reservation kept unchanged"));
    wait_counts(&cluster, [2, 0, 0]).await;

    // Of four nodes others get two.
    cluster.api.submit(whole("other", 4, "batch")).await.unwrap();
    wait_running(&cluster, "other", 2).await;
    cluster.api.submit(whole("web", 2, "web")).await.unwrap();
    wait_running(&cluster, "web", 2).await;
    wait_counts(&cluster, [0, 2, 0]).await;
    let said = run(&cluster, &["reservation", "describe", "kept"]);
    assert!(said.contains("default/web 0") && said.contains("default/web 1"), "{said}");
    fails(&cluster, &["reservation", "delete", "kept"], 1, "default/web");

    // The binder is killed; whoever leaves leaves its slot to the reservation.
    let binder = cluster.leader("binder").await;
    cluster.kill(&binder);
    run(&cluster, &["unit", "cancel", "web"]);
    cluster.restart(&binder);
    wait_counts(&cluster, [2, 0, 0]).await;
    wait_running(&cluster, "other", 2).await;

    // A node of a slot is closed: the slot waits, seen by all.
    let view = described(&cluster).unwrap();
    let node = view["places"][0]["node"].as_str().unwrap().to_owned();
    run(&cluster, &["node", "cordon", &node]);
    wait_counts(&cluster, [1, 0, 1]).await;
    run(&cluster, &["node", "uncordon", &node]);
    wait_counts(&cluster, [2, 0, 0]).await;

    fails(
        &cluster,
        &["reservation", "create", "kept", "-l", "app=web", "--requests", "cpu=1"],
        5,
        "reservation set",
    );
    fails(&cluster, &["reservation", "create", "none"], 2, "selector: no labels of units");
    fails(&cluster, &["reservation", "describe", "nobody"], 4, "`godel reservation list` shows");
    run(&cluster, &["reservation", "set", "kept", "--slots", "1"]);
    wait_counts(&cluster, [1, 0, 0]).await;
    wait_running(&cluster, "other", 3).await;
    let listed = run(&cluster, &["reservation", "list"]);
    assert!(listed.contains("kept") && listed.contains("never"), "{listed}");
    cluster.audit(&[]);
    run(&cluster, &["reservation", "delete", "kept"]);
    wait_running(&cluster, "other", 4).await;
    cluster.audit(&[]);
}
