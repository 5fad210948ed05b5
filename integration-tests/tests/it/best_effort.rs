//! The best-effort pool through the real API: it fills what guaranteed running units do not use, and leaves when they do.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// One node that uses what `agent` says; smoothed over a second instead of ten minutes.
fn one_node(agent: &[(&'static str, &str)]) -> Layout {
    let state = [
        ("GODEL_STATE__HEARTBEAT_INTERVAL", "100ms"),
        ("GODEL_STATE__USAGE_WINDOW", "1s"),
        ("GODEL_STATE__USAGE_HALF_LIFE", "100ms"),
    ];
    let binder = [("GODEL_BINDER__SQUEEZE_AFTER", "100ms")];
    let of = |process, env: &[(&'static str, &str)]| -> Vec<(&'static str, &'static str, String)> {
        env.iter().map(|(key, value)| (process, *key, (*value).to_owned())).collect()
    };
    let env = [of("state", &state), of("binder-1", &binder), of("agent", agent)].concat();
    Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, env, ..Layout::default() }
}

async fn node(cluster: &Cluster) -> Result<v1::Node> {
    let answer = cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await?.into_inner();
    answer.nodes.into_iter().next().ok_or_else(|| anyhow::anyhow!("no node"))
}

async fn cpu(cluster: &Cluster) -> i64 {
    node(cluster).await.unwrap().allocatable.unwrap_or_default().amounts["cpu"]
}

fn spec(name: &str, pool: v1::Pool, replicas: u32, cpu_milli: i64) -> v1::UnitSpec {
    v1::UnitSpec { pool: pool.into(), ..unit(name, "", replicas, resources(cpu_milli, 1), None, 0) }
}

async fn counts(cluster: &Cluster, name: &str) -> Result<v1::UnitCounts> {
    let unit = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
    Ok(unit.counts.unwrap_or_default())
}

async fn wait_running(cluster: &Cluster, name: &str, is_enough: impl Fn(u32) -> bool) -> u32 {
    wait_for(&format!("running units of {name}"), LIMIT, async || {
        let counts = counts(cluster, name).await?;
        ensure!(is_enough(counts.running) && counts.evicting == 0, "{counts:?}");
        Ok::<u32, anyhow::Error>(counts.running)
    })
    .await
}

/// By whom the first running unit was squeezed that is from `revision` on.
async fn first_squeezed(cluster: &Cluster, revision: u64) -> String {
    let squeezed = |op: &v1::Op| match &op.op {
        Some(v1::op::Op::Evict(evict)) if evict.reason() == v1::EvictionReason::Squeezed => {
            Some(evict.by.clone())
        }
        _ => None,
    };
    let mut by = String::new();
    let watch = cluster.api.watch_until(revision, &[v1::Kind::Rows], |commit| {
        let found = commit.ops.iter().find_map(|op| squeezed(&decode(op)));
        by = found.clone().unwrap_or_default();
        found.is_some()
    });
    tokio::time::timeout(LIMIT, watch).await.unwrap().unwrap();
    by
}

fn decode(op: &[u8]) -> v1::Op {
    prost::Message::decode(op).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_squeezes_and_what_it_does_not_use_is_filled_again() {
    let cluster = Cluster::start(one_node(&[("GODEL_AGENT__USAGE_PERCENT", "20")])).await;
    let tenth = cpu(&cluster).await / 10;
    cluster.api.submit(spec("offline", v1::Pool::BestEffort, 12, tenth)).await.unwrap();
    assert_eq!(wait_running(&cluster, "offline", |n| n == 10).await, 10, "an idle node offers all");
    let before = cluster.api.submit(spec("online", v1::Pool::Guaranteed, 1, 5 * tenth)).await.unwrap();
    let online = before.unit_id;
    wait_running(&cluster, "online", |n| n == 1).await;
    assert_eq!(first_squeezed(&cluster, before.revision).await, format!("unit {online}"));
    // It uses a fifth of its half, and a tenth of that is headroom: 11 % of the node.
    wait_running(&cluster, "offline", |n| n == 8).await;
    let shown = node(&cluster).await.unwrap();
    let of = |amounts: &Option<v1::Resources>| amounts.clone().unwrap_or_default().amounts["cpu"];
    assert_eq!(of(&shown.allocated), 5 * tenth);
    assert_eq!(of(&shown.best_effort_allocated), 8 * tenth, "1.3 times the node is asked for");
    assert_eq!(of(&shown.best_effort_allocatable), cpu(&cluster).await - of(&shown.reserved));
    let wide = cluster.godel(&["node", "list", "--output", "wide"]);
    assert!(String::from_utf8_lossy(&wide.stdout).contains("BE-CPU"), "{wide:?}");
    let status = cluster.godel(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("use         cpu"), "{status:?}");
    cluster.audit(&[]);
    cluster.assert_quiet();
}

/// A day of twenty seconds, on which guaranteed running units use 20 % at the ebb and 80 % at the crest.
#[tokio::test(flavor = "multi_thread")]
async fn best_effort_is_squeezed_at_the_crest_and_comes_back_at_the_ebb() {
    let cluster = Cluster::start(one_node(&[
        ("GODEL_AGENT__USAGE_PERCENT", "50"),
        ("GODEL_AGENT__USAGE_SWING_PERCENT", "30"),
        ("GODEL_AGENT__USAGE_DAY", "20s"),
    ]))
    .await;
    let tenth = cpu(&cluster).await / 10;
    let online = cluster.api.submit(spec("online", v1::Pool::Guaranteed, 10, tenth)).await.unwrap();
    wait_running(&cluster, "online", |n| n == 10).await;
    cluster.api.submit(spec("offline", v1::Pool::BestEffort, 9, tenth)).await.unwrap();
    // Of a node that is all asked for by guaranteed ones.
    wait_running(&cluster, "offline", |n| n >= 6).await;
    wait_running(&cluster, "offline", |n| n <= 2).await;
    assert_eq!(first_squeezed(&cluster, online.revision).await, "usage");
    wait_running(&cluster, "offline", |n| n >= 6).await;
    let members = cluster.api.get_unit("offline").await.unwrap().running_units;
    assert!(members.iter().any(|member| member.incarnation > 0), "{members:?}");
    assert_eq!(counts(&cluster, "online").await.unwrap().running, 10, "nobody guaranteed had to leave");
    cluster.audit(&[]);
    cluster.assert_quiet();
}
