//! Crashes at named points and at random moments; everything acknowledged before is there after.

use std::time::Duration;

use godel_integration_tests::{
    cluster::{Cluster, Layout, Submission},
    settings,
    wait::keep_up,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::kills::AWAY;

/// Which process aborts where; `name:n` is the n-th hit, so that work is under way.
const POINTS: &[(&str, &str)] = &[
    // The log: before and after the write, after the sync before the answer.
    ("state", "store.before-append:10"),
    ("state", "store.after-append:10"),
    ("state", "store.after-sync:10"),
    ("state", "store.before-answer:10"),
    ("state", "state.before-answer:10"),
    // Leases and reports.
    ("state", "state.lease-grant:1"),
    ("state", "state.lease-renew:4"),
    ("state", "state.session-status:3"),
    ("dispatcher-1", "dispatcher.lease-renew:2"),
    ("scheduler-1", "scheduler.lease-renew:2"),
    ("binder-1", "binder.lease-renew:2"),
    // Between a decision, its check, its commit and its answer.
    ("dispatcher-1", "dispatcher.before-commit:1"),
    ("dispatcher-1", "dispatcher.after-commit:1"),
    ("scheduler-1", "scheduler.before-decide:1"),
    ("scheduler-1", "scheduler.after-outcome:1"),
    ("binder-1", "binder.before-commit:1"),
    ("binder-1", "binder.after-commit:1"),
];

/// Points in a snapshot fold: each on a fresh cluster, where generations are short.
const FOLD_POINTS: &[&str] =
    &["store.generation-begin", "store.snapshot-chunk", "store.generation-complete", "store.drop-generation"];

/// Tasks that make the log long enough for two generations.
const N_FOLD_TASKS: usize = 500;

/// Random kill moments: a share in `make test`, all in `make test-long`.
const N_MOMENTS: usize = 6;
const N_MOMENTS_LONG: usize = 200;

/// Tasks per crash: they end soon, so that there is room for ever more.
const N_TASKS: usize = 40;
const DURATION_MS: u64 = 400;

/// One process of each part: after a restart the same one leads again.
fn one_of_each() -> Layout {
    Layout { n_dispatchers: 1, n_schedulers: 1, n_binders: 1, env: small_generations(), ..Layout::default() }
}

/// The log is folded into a snapshot again and again.
fn small_generations() -> Vec<(&'static str, &'static str, String)> {
    vec![("state", "GODEL_STATE__GENERATION_BYTES_MIN", "20000".to_owned())]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_named_point_loses_nothing() {
    let mut cluster = Cluster::start(one_of_each()).await;
    cluster.announce(AWAY);
    cluster.announce(&["crash point"]);
    let mut submissions = Vec::new();
    for (process, point) in POINTS {
        cluster.note(point);
        // Gracefully: its lease is free at once.
        cluster.stop(process).await;
        let part = process.trim_end_matches("-1").to_uppercase();
        cluster.restart_with(process, &[(format!("GODEL_{part}__CRASH_POINTS"), (*point).to_owned())]);
        let submission = cluster.submit_tasks(N_TASKS, 10, DURATION_MS);
        if point.starts_with("state.lease-grant") {
            // A new holder asks for a lease.
            cluster.kill("scheduler-1");
            cluster.restart("scheduler-1");
        }
        cluster.wait_ended(process).await;
        cluster.restart(process);
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
        cluster.wait_all_bound(submissions.len() * N_TASKS).await;
    }
    finish(&cluster, &submissions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_a_snapshot_fold_loses_nothing() {
    for point in FOLD_POINTS {
        // No history beyond the generation before: so that one is dropped at each fold.
        let no_history = ("state", "GODEL_STATE__HISTORY_BYTES_MIN", "0".to_owned());
        let env = [small_generations(), vec![no_history]].concat();
        let mut cluster = Cluster::start(Layout { n_nodes: 20, env, ..one_of_each() }).await;
        cluster.announce(AWAY);
        cluster.announce(&["crash point"]);
        cluster.note(point);
        cluster.kill("state");
        cluster.restart_with("state", &[("GODEL_STATE__CRASH_POINTS".to_owned(), (*point).to_owned())]);
        let submission = cluster.submit_tasks(N_FOLD_TASKS, 2, 50);
        cluster.wait_ended("state").await;
        cluster.restart("state");
        cluster.wait_submitted(&submission).await;
        finish(&cluster, &[submission]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_moments_lose_nothing() {
    let n_moments = if settings::is_long() { N_MOMENTS_LONG } else { N_MOMENTS };
    let mut cluster = Cluster::start(Layout {
        n_schedulers: 2,
        n_binders: 2,
        env: small_generations(),
        ..Layout::default()
    })
    .await;
    cluster.announce(AWAY);
    let mut submissions = Vec::new();
    for moment in 0..n_moments {
        let seed = settings::seed() + u64::try_from(moment).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let submission = cluster.submit_tasks(N_TASKS, 10, DURATION_MS);
        let victims = victims(&cluster, moment, &mut rng).await;
        cluster.note(&format!("moment {moment}, seed {seed}: {victims:?}"));
        cluster.wait_acknowledged(&submission, rng.random_range(0..N_TASKS)).await;
        keep_up(Duration::from_micros(rng.random_range(0..40_000))).await;
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
        cluster.wait_all_bound(submissions.len() * N_TASKS).await;
    }
    finish(&cluster, &submissions).await;
}

/// Each part in turn, its leader where it has one, and all of them.
pub(crate) async fn victims(cluster: &Cluster, moment: usize, rng: &mut StdRng) -> Vec<String> {
    match moment % 6 {
        0 => vec!["state".to_owned()],
        1 => vec![cluster.leader("dispatcher").await],
        2 => vec![cluster.leader("binder").await],
        3 => vec![format!("scheduler-{}", rng.random_range(1..=2))],
        4 => vec!["agent".to_owned()],
        _ => cluster.names(),
    }
}

async fn finish(cluster: &Cluster, submissions: &[Submission]) {
    let ledgers: Vec<&Submission> = submissions.iter().collect();
    cluster.wait_ready().await;
    cluster.wait_complete(&ledgers).await;
    cluster.assert_quiet();
}
