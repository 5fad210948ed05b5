//! Crashes at named points, one after the other on one cluster; everything acknowledged before is there after.

use godel_integration_tests::cluster::{Cluster, Layout, Submission};

use crate::kills::{AWAY, DURATION_MS, finish, small_generations};

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

/// Points in a snapshot fold, in the order in which a fold comes to them: what one start of state has left, the next one goes on with.
const FOLD_POINTS: &[&str] =
    &["store.generation-begin", "store.snapshot-chunk", "store.generation-complete", "store.drop-generation"];

/// Tasks that make the log long enough for two generations.
const N_FOLD_TASKS: usize = 500;
const FOLD_DURATION_MS: u64 = 50;

/// Tasks per crash.
const N_TASKS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_named_point_loses_nothing() {
    // One process of each part: after a restart the same one leads again.
    let env = small_generations();
    let layout = Layout { n_dispatchers: 1, n_schedulers: 1, n_binders: 1, env, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(AWAY);
    cluster.announce(&["crash point"]);
    let mut submissions = vec![crash_in_a_snapshot_fold(&mut cluster).await];
    for (process, point) in POINTS {
        let submission = crash_at(&mut cluster, process, point).await;
        submissions.push(submission);
        cluster.wait_all_bound(N_FOLD_TASKS + (submissions.len() - 1) * N_TASKS).await;
    }
    finish(&cluster, &submissions).await;
}

/// State aborts at each point of a fold while work flows: first, as generations are short only as long as there is little to fold.
async fn crash_in_a_snapshot_fold(cluster: &mut Cluster) -> Submission {
    cluster.kill("state");
    start_with_crash(cluster, FOLD_POINTS[0]);
    let submission = cluster.submit_tasks(N_FOLD_TASKS, 2, FOLD_DURATION_MS);
    for next in &FOLD_POINTS[1..] {
        cluster.wait_ended("state").await;
        start_with_crash(cluster, next);
    }
    cluster.wait_ended("state").await;
    cluster.restart("state");
    cluster.wait_submitted(&submission).await;
    submission
}

fn start_with_crash(cluster: &mut Cluster, point: &str) {
    cluster.note(point);
    // No history beyond the generation before: so that one is dropped at each fold.
    let env = [("GODEL_STATE__CRASH_POINTS", point), ("GODEL_STATE__HISTORY_BYTES_MIN", "0")];
    cluster.restart_with("state", &env.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

async fn crash_at(cluster: &mut Cluster, process: &str, point: &str) -> Submission {
    cluster.note(point);
    // Gracefully: its lease is free at once.
    cluster.stop(process).await;
    let part = process.trim_end_matches("-1").to_uppercase();
    cluster.restart_with(process, &[(format!("GODEL_{part}__CRASH_POINTS"), point.to_owned())]);
    let submission = cluster.submit_tasks(N_TASKS, 10, DURATION_MS);
    if point.starts_with("state.lease-grant") {
        // A new holder asks for a lease.
        cluster.kill("scheduler-1");
        cluster.restart("scheduler-1");
    }
    cluster.wait_ended(process).await;
    cluster.restart(process);
    cluster.wait_submitted(&submission).await;
    submission
}
