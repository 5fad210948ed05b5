//! kill -9 at random moments while work flows, and graceful stops, on one cluster: everything acknowledged before is there after.

use std::time::{Duration, Instant};

use godel_integration_tests::{
    cluster::{Cluster, Layout, Submission},
    settings,
    wait::keep_up,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// What may be said at WARN when processes are killed: leases are lost, and a group of commits that was being
/// written is dropped at the next start.
pub(crate) const AWAY: &[&str] = &[
    "lease lost",
    "registration lost",
    "an unfinished group at the end of the log was dropped",
    "state does not say whom to refuse",
    "cannot be renewed; tried again",
    "not joined yet",
];

/// Random kill moments: a share in `make test`, all in `make test-long`.
const N_MOMENTS: usize = 6;
const N_MOMENTS_LONG: usize = 200;

/// Tasks per kill: they end soon, so that there is room for ever more.
const N_TASKS: usize = 40;
pub(crate) const DURATION_MS: u64 = 400;

/// Tasks that run through everything.
const N_STAYING: usize = 100;
/// Tasks that come while one service after the other is stopped.
const N_MEANWHILE: usize = 150;

/// The log is folded into a snapshot again and again.
pub(crate) fn small_generations() -> Vec<(&'static str, &'static str, String)> {
    vec![("state", "GODEL_STATE__GENERATION_BYTES_MIN", "20000".to_owned())]
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_moments_and_graceful_stops_lose_nothing() {
    let layout = Layout { env: small_generations(), ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(AWAY);
    let staying = cluster.submit_tasks(N_STAYING, 10, 0);
    cluster.wait_submitted(&staying).await;
    let mut submissions = vec![staying];
    kill_at_random_moments(&mut cluster, &mut submissions).await;
    stop_each_service(&mut cluster, &mut submissions).await;
    finish(&cluster, &submissions).await;
}

/// The lease of a leader that was killed ends with its connection: at the longest lease there is, its standby waits for a question of its
/// own, which is due each tenth of that time, and not for the end of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_of_a_killed_leader_does_not_wait_for_its_lease() {
    const TTL: Duration = Duration::from_secs(60);
    let settings = ["dispatcher", "binder"].map(|part| (format!("{part}.lease.ttl"), "60s".to_owned()));
    let layout =
        Layout { n_nodes: 0, n_binders: 2, n_schedulers: 1, settings: settings.into(), ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(AWAY);
    for lease in ["dispatcher", "binder"] {
        let (name, old) = (cluster.leader(lease).await, cluster.api.holder(lease).await.unwrap());
        cluster.kill(&name);
        let killed_at = Instant::now();
        cluster.wait_other_leader(lease, old.epoch).await;
        let takeover = killed_at.elapsed();
        cluster.note(&format!("another {lease} leads {takeover:?} after the kill"));
        assert!(takeover < TTL / 2, "{takeover:?}");
        cluster.restart(&name);
    }
    cluster.wait_ready().await;
    cluster.assert_quiet();
}

async fn kill_at_random_moments(cluster: &mut Cluster, submissions: &mut Vec<Submission>) {
    let n_moments = if settings::is_long() { N_MOMENTS_LONG } else { N_MOMENTS };
    for moment in 0..n_moments {
        let seed = settings::seed() + u64::try_from(moment).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let submission = cluster.submit_tasks(N_TASKS, 10, DURATION_MS);
        let victims = victims(cluster, moment, &mut rng).await;
        cluster.note(&format!("moment {moment}, seed {seed}: {victims:?}"));
        cluster.wait_acknowledged(&submission, rng.random_range(0..N_TASKS)).await;
        keep_up(Duration::from_micros(rng.random_range(0..40_000))).await;
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
        // The first are those that stay.
        cluster.wait_all_bound(N_STAYING + (submissions.len() - 1) * N_TASKS).await;
    }
}

/// Each part in turn, its leader where it has one, and all of them.
pub(crate) async fn victims(cluster: &Cluster, moment: usize, rng: &mut StdRng) -> Vec<String> {
    match moment % 6 {
        0 => vec!["state".to_owned()],
        1 => vec![cluster.leader("dispatcher").await],
        2 => vec![cluster.leader("binder").await],
        3 => {
            let n_schedulers = cluster.processes().filter(|name| name.starts_with("scheduler-")).count();
            vec![format!("scheduler-{}", rng.random_range(1..=n_schedulers))]
        }
        4 => vec!["agent".to_owned()],
        _ => cluster.names(),
    }
}

async fn stop_each_service(cluster: &mut Cluster, submissions: &mut Vec<Submission>) {
    let submission = cluster.submit_tasks(N_MEANWHILE, 10, DURATION_MS);
    cluster.wait_acknowledged(&submission, N_MEANWHILE / 3).await;
    for part in ["binder", "dispatcher", "scheduler/scheduler-2"] {
        let name = cluster.leader(part).await;
        cluster.note(&format!("{name} is stopped"));
        cluster.stop(&name).await;
        cluster.restart(&name);
    }
    cluster.stop("state").await;
    cluster.restart("state");
    cluster.wait_submitted(&submission).await;
    submissions.push(submission);
}

/// Everything submitted is there and has its place, and nobody complained.
pub(crate) async fn finish(cluster: &Cluster, submissions: &[Submission]) {
    let ledgers: Vec<&Submission> = submissions.iter().collect();
    cluster.wait_ready().await;
    cluster.wait_complete(&ledgers).await;
    cluster.assert_quiet();
}
