//! A leader that is frozen and comes back must not move the state back.
//!
//! To make the proof independent of timing, the leader's bytes to state are held in a proxy first: when it
//! is thawed, transactions that it sent while it led arrive at a state that has another leader.

use std::time::{Duration, Instant};

use anyhow::ensure;
use godel_integration_tests::{
    api::{binds, writer_epoch},
    cluster::{Cluster, LEASE_TTL, Layout},
    wait::{LIMIT, wait_for},
};
use godel_proto::{raw, v1};

use crate::kills::AWAY;

/// What the contract allows on top of the lease.
const TAKEOVER_MAX: Duration = Duration::from_secs(1);

/// Stands in every transaction of these tests (a demand names its resources) and in no renewal of a lease.
const IN_TRANSACTIONS: &[u8] = b"memory";

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_is_replaced_and_then_refused() {
    // For the tasks of both rounds.
    let layout = Layout {
        n_nodes: 200,
        is_proxied: true,
        is_plain: true,
        env: patient_connections(),
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(AWAY);
    cluster.announce(&["stale", "STALE"]);
    let takeover = freeze_leader(&mut cluster, "binder", binds).await;
    assert!(takeover <= LEASE_TTL + TAKEOVER_MAX, "another binder bound after {takeover:?}");
    let takeover = freeze_leader(&mut cluster, "dispatcher", |_| true).await;
    assert!(takeover <= LEASE_TTL + TAKEOVER_MAX, "another dispatcher wrote after {takeover:?}");
    cluster.assert_quiet();
}

/// Answers the time from the freeze to the first commit of another leader that `works` accepts.
async fn freeze_leader(cluster: &mut Cluster, lease: &str, works: fn(&raw::Commit) -> bool) -> Duration {
    let n_refused = cluster.api.store_status().await.unwrap().stale_epoch_refusals;
    let submission = cluster.submit_tasks(300, 20, 0);
    cluster.wait_acknowledged(&submission, 40).await;

    let frozen = cluster.leader(lease).await;
    let old = cluster.api.holder(lease).await.unwrap();
    let revision = cluster.api.store_status().await.unwrap().revision;
    cluster.note("holding");
    cluster.proxy_to_state(&frozen).hold();
    wait_for("a transaction under way", LIMIT, async || {
        let proxy = cluster.proxy_to_state(&frozen);
        ensure!(proxy.holds(IN_TRANSACTIONS), "{} bytes held, no transaction", proxy.held_bytes());
        Ok(())
    })
    .await;
    cluster.note("freezing");
    cluster.freeze(&frozen);
    let frozen_at = Instant::now();
    let still = cluster.api.holder(lease).await.unwrap();
    assert_eq!(still.epoch, old.epoch, "it led when it was frozen");
    let is_others = |commit: &raw::Commit| {
        writer_epoch(commit, lease).is_some_and(|epoch| epoch > old.epoch) && works(commit)
    };
    let watch = cluster.api.watch_until(revision + 1, &[v1::Kind::Unit, v1::Kind::Rows], is_others);
    let first = tokio::time::timeout(LIMIT, watch).await.expect("another leader works").unwrap();
    let takeover = frozen_at.elapsed();
    cluster.note(&format!(
        "epoch {} works {takeover:?} after the freeze",
        first.writer.clone().unwrap_or_default().epoch
    ));

    cluster.thaw(&frozen);
    cluster.proxy_to_state(&frozen).heal();
    wait_for("a refusal of the old leader", LIMIT, async || {
        let refusals = cluster.api.store_status().await?.stale_epoch_refusals;
        ensure!(refusals > n_refused, "none yet");
        Ok(())
    })
    .await;
    cluster.note("refused");
    cluster.wait_submitted(&submission).await;
    cluster.wait_complete(&[&submission]).await;
    cluster.note("finished");
    assert_never_again(cluster, lease, old.epoch, first.revision).await;
    takeover
}

/// No commit of `epoch` or an older one of `lease` at or after `revision`.
async fn assert_never_again(cluster: &Cluster, lease: &str, epoch: u64, revision: u64) {
    let last = cluster.api.store_status().await.unwrap().revision;
    let mut stale = Vec::new();
    let mut look = |commit: &raw::Commit| {
        if writer_epoch(commit, lease).is_some_and(|writer| writer <= epoch) {
            stale.push(commit.revision);
        }
        commit.revision >= last
    };
    let watch = cluster.api.watch_until(revision, &[], &mut look);
    tokio::time::timeout(LIMIT, watch).await.expect("the history up to now").unwrap();
    assert_eq!(stale, Vec::<u64>::new(), "commits of the frozen leader");
}

/// Connections to state bear the freeze: without this they might be closed before the held bytes go on.
fn patient_connections() -> Vec<(&'static str, &'static str, String)> {
    let mut env = vec![("state", "GODEL_STATE__SERVER__KEEPALIVE_TIMEOUT", "60s".to_owned())];
    for name in ["binder-1", "binder-2", "binder-3"] {
        env.push((name, "GODEL_BINDER__CLIENT__KEEPALIVE_TIMEOUT", "60s".to_owned()));
    }
    for name in ["dispatcher-1", "dispatcher-2"] {
        env.push((name, "GODEL_DISPATCHER__CLIENT__KEEPALIVE_TIMEOUT", "60s".to_owned()));
    }
    env
}
