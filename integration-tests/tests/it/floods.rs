//! One client that means harm, beside a thousand agents, leaders and submitters that must not notice.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    flood::{Flood, Kind},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};

const N_NODES: usize = 1_000;
/// Deadline of every call of another client, as services have it.
const DEADLINE: Duration = Duration::from_secs(5);
/// Memory that a flood may cost.
const MEMORY_MAX_KIB: u64 = 100 * 1024;

/// A cluster with a thousand simulated nodes.
async fn cluster() -> Cluster {
    // All come from one address here; what is looked at is what happens when descriptors run short.
    let settings = ["state", "dispatcher"]
        .map(|part| (format!("{part}.server.idle_connections_per_address_max"), "100000".to_owned()));
    let layout = Layout {
        n_nodes: N_NODES,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        settings: settings.into(),
        is_plain: true,
        ..Layout::default()
    };
    let cluster = Cluster::start(layout).await;
    cluster.wait_ready().await;
    wait_for("a session of every node", LIMIT, async || {
        let n = cluster.metric("state", "godel_sessions").await?;
        ensure!(n == N_NODES as u64, "{n} sessions");
        Ok(())
    })
    .await;
    cluster
}

/// What may not change: who holds which lease in which epoch, and how many sessions were ever opened.
async fn standing(cluster: &Cluster) -> Result<(Vec<(String, String, u64)>, u64, u64)> {
    let members = cluster.api.list_members("").await?;
    let mut leases: Vec<_> =
        members.into_iter().map(|member| (member.lease, member.holder, member.epoch)).collect();
    leases.sort();
    let sessions = cluster.metric("state", "godel_sessions").await?;
    Ok((leases, sessions, cluster.metric("state", "godel_registrations_total").await?))
}

/// Calls of other clients, one after the other, while `on`: the slowest of a hundred, and how many there were. Each is
/// answered.
async fn others(cluster: &Cluster, prefix: &str, mut on: impl FnMut() -> bool) -> (Duration, usize) {
    let mut times = Vec::new();
    let mut number = 0;
    while on() {
        let began = Instant::now();
        answered("GetStoreStatus", async || cluster.api.store_status().await).await;
        answered("ListMembers", async || cluster.api.list_members("").await).await;
        answered("GetDispatcherStatus", async || cluster.api.dispatcher_status().await).await;
        let uid = uuid::Uuid::now_v7().to_string();
        let unit = unit(&format!("{prefix}-{number:05}"), &uid, 1, resources(100, 16), None, 0);
        answered("SubmitUnit", async || cluster.api.submit(unit.clone()).await).await;
        number += 1;
        times.push(began.elapsed());
    }
    times.sort();
    let p99 = times.get(times.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default();
    (p99, number)
}

/// As every client calls: a refusal for now is tried again, within the deadline.
async fn answered<T>(what: &str, call: impl AsyncFnMut() -> Result<T>) -> T {
    wait_for(what, DEADLINE, call).await
}

/// A field of `/proc/PID/status`, in KiB.
fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Floods state and the dispatcher, and checks that nobody else notices.
async fn nobody_notices(cluster: &mut Cluster, kind: Kind, seconds: u64, at_once: usize) {
    let before = standing(cluster).await.unwrap();
    let n_units_before = cluster.api.records().await.unwrap().units.len();
    let (calm, n_calm) = {
        let mut n = 0;
        let turns = || {
            n += 1;
            n <= 50
        };
        others(cluster, &format!("calm-{}", kind.name()), turns).await
    };
    let targets = ["state", "dispatcher-1"];
    let memory: Vec<u64> = targets.iter().map(|name| memory_kib(cluster.pid(name), "VmRSS")).collect();
    for name in targets {
        // The peak is counted from here on.
        fs::write(format!("/proc/{}/clear_refs", cluster.pid(name)), "5").unwrap();
        let address = cluster.address(name);
        cluster.start_flood(&format!("flood-{name}"), &Flood { kind, address, seconds, at_once });
    }
    let submission = cluster.submit_tasks(50, 40, 0);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (stormy, n_stormy) =
        others(cluster, &format!("storm-{}", kind.name()), || Instant::now() < until).await;
    cluster.wait_submitted(&submission).await;
    for name in targets {
        let flood = format!("flood-{name}");
        cluster.wait_ended(&flood).await;
        let n = cluster.log(&flood);
        cluster.note(&format!("{kind:?} against {name}: {} calls or connections", n.trim()));
    }
    cluster.note(&format!("p99 of four calls: {calm:?} before ({n_calm}), {stormy:?} during ({n_stormy})"));
    let after = standing(cluster).await.unwrap();
    assert_eq!(before, after, "leases and sessions");
    for (name, before) in targets.iter().zip(memory) {
        let peak = memory_kib(cluster.pid(name), "VmHWM");
        cluster.note(&format!("memory of {name}: {before} KiB before, {peak} KiB at most"));
        assert!(peak < before + MEMORY_MAX_KIB, "{name}: {peak} KiB, {before} KiB before");
    }
    cluster.wait_all_bound(n_units_before + n_calm + n_stormy + 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_are_noticed_by_nobody_else() {
    let mut cluster = cluster().await;
    calls_without_a_message_shut_nobody_out(&mut cluster).await;
    streams_that_are_reset_at_once_unseat_nobody(&mut cluster).await;
    idle_connections_take_nobodys_place(&mut cluster).await;
    cluster.assert_quiet();
}

async fn calls_without_a_message_shut_nobody_out(cluster: &mut Cluster) {
    nobody_notices(cluster, Kind::Headers, 12, 10_000).await;
    cluster.assert_quiet();
}

async fn streams_that_are_reset_at_once_unseat_nobody(cluster: &mut Cluster) {
    cluster.announce(&["ended a connection that reset its calls"]);
    let n_before = cluster.metric("state", "godel_connections_ended_total").await.unwrap();
    nobody_notices(cluster, Kind::Reset, 3, 1).await;
    let n_ended = cluster.metric("state", "godel_connections_ended_total").await.unwrap();
    assert!(n_ended > n_before, "the flood did not get through: {n_ended}, {n_before} before");
    cluster.assert_quiet();
}

/// The last one: state and the dispatcher have few descriptors from here on.
async fn idle_connections_take_nobodys_place(cluster: &mut Cluster) {
    cluster.announce(&["file descriptors run short", "cannot accept connections"]);
    for name in ["state", "dispatcher-1"] {
        cluster.limit_descriptors(name, 1_024);
    }
    let n_before = cluster.metric("state", "godel_connections_closed_short_total").await.unwrap();
    nobody_notices(cluster, Kind::Idle, 10, 2_000).await;
    let n_closed = cluster.metric("state", "godel_connections_closed_short_total").await.unwrap();
    assert!(n_closed > n_before, "some had to go: {n_closed}, {n_before} before");
}
