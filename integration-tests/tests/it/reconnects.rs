//! Every stream is cut at random byte positions while work flows: watches, transactions, agent sessions,
//! the streams between dispatcher, schedulers and binder.

use std::time::Duration;

use godel_integration_tests::{
    cluster::{Cluster, Layout},
    wait::keep_up,
};

use crate::kills::AWAY;

/// Bytes after which a connection is cut at the latest: less than the first list of a follower.
const CUT_BYTES_MAX: usize = 6_000;

/// How long a round of cuts lasts, and the pause between two: leases survive it.
const ROUND: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn streams_cut_at_random_positions_lose_and_repeat_nothing() {
    let mut cluster = Cluster::start(Layout { is_proxied: true, ..Layout::default() }).await;
    cluster.announce(AWAY);
    let submission = cluster.submit_tasks(300, 20, 0);
    for round in 1..=5 {
        cluster.wait_acknowledged(&submission, 40 * round).await;
        cluster.proxies().for_each(|proxy| proxy.cut_randomly(CUT_BYTES_MAX));
        keep_up(ROUND).await;
        cluster.proxies().for_each(|proxy| proxy.heal());
    }
    for name in ["scheduler-1", "scheduler-2", "scheduler-3", "agent"] {
        assert!(cluster.proxy_to_state(name).n_cuts() > 0, "{name} was never cut off from state");
    }
    let n_cuts: u64 = cluster.proxies().map(|proxy| proxy.n_cuts()).sum();
    cluster.note(&format!("{n_cuts} connections were cut"));
    cluster.wait_submitted(&submission).await;
    cluster.wait_ready().await;
    cluster.wait_complete(&[&submission]).await;
    cluster.wait_all_running(300).await;
    cluster.assert_quiet();
}
