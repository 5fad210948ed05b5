//! Certificates that cannot be renewed for a long time: nothing that runs is touched, and all are renewed as soon as it works again.

use std::time::{Duration, Instant};

use anyhow::ensure;
use godel_integration_tests::{
    machine::Processes,
    secured::{Lost, SecuredCluster, SteppedClock},
    settings,
    trace::{resources, unit},
    wait::{LIMIT, keep_up, wait_for},
};
use godel_kit::clock::SharedClock;
use godel_proto::v1::{self, WorkloadClass};

const N_SIMULATED: usize = 1_000;
const N_REAL: usize = 10;
const LIFETIME: Duration = Duration::from_secs(60);
const N_LIFETIMES: u32 = 3;
/// All are renewed within this once it works.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Between two looks while nothing is renewed.
const LOOK: Duration = Duration::from_secs(1);

fn service(name: &str, replicas: usize) -> v1::UnitSpec {
    let replicas = u32::try_from(replicas).unwrap();
    v1::UnitSpec {
        workload_class: WorkloadClass::Service.into(),
        ..unit(name, "", replicas, resources(10, 1), None, 0)
    }
}

/// A thousand agents in this process, each with an identity and a connection of its own, ten that run commands, and the services, which are processes.
#[tokio::test(flavor = "multi_thread")]
async fn renewal_that_is_broken_for_three_lifetimes_ends_nothing() {
    if !settings::is_long() {
        return println!("SKIPPED: GODEL_TEST_LONG=1 runs it");
    }
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    let mut cluster = SecuredCluster::new(&[
        ("state.leaf_lifetime", &format!("{}s", LIFETIME.as_secs())),
        ("state.signing_fails_while", &broken.display().to_string()),
        ("state.heartbeat_interval", &format!("{}s", HEARTBEAT.as_secs())),
        ("state.node_lease_ttl", "30s"),
    ]);
    for (part, name) in [
        ("state", "state"),
        ("dispatcher", "dispatcher-1"),
        ("binder", "binder-1"),
        ("scheduler", "scheduler-1"),
    ] {
        cluster.start(part, name).await;
    }
    for number in 0..N_REAL {
        cluster.start_agent(&format!("real-{number}")).await;
    }
    let clock = SteppedClock::new() as SharedClock;
    cluster.start_agents_inside(N_SIMULATED, &clock).await;
    cluster.wait_ready().await;
    let processes = Processes::default();
    let mut real = service("real", N_REAL);
    let template = real.task_groups[0].template.as_mut().unwrap();
    template.run = Some(processes.run());
    template.node_selector.insert("kind".to_owned(), "real".to_owned());
    let units =
        [cluster.submit(service("web", N_SIMULATED)).await.unwrap(), cluster.submit(real).await.unwrap()];
    cluster.wait_running("web", u32::try_from(N_SIMULATED).unwrap()).await;
    cluster.wait_running("real", u32::try_from(N_REAL).unwrap()).await;
    let (revision, leases) = (cluster.revision().await, cluster.leases().await.unwrap());
    let n_lost = cluster.n_sessions_lost();

    std::fs::write(&broken, "").unwrap();
    let since = Instant::now();
    while since.elapsed() < N_LIFETIMES * LIFETIME {
        cluster.check_all_connected().await.unwrap();
        cluster.assert_all_run();
        keep_up(LOOK).await;
    }
    let expired = cluster.identities().await.unwrap().identities;
    let n_expired = expired.iter().filter(|info| info.standing() == v1::IdentityStanding::Expired).count();
    assert_eq!(n_expired, expired.len(), "nobody was renewed");

    let fixed_ms = cluster.identities().await.unwrap().now_ms;
    std::fs::remove_file(&broken).unwrap();
    let fixed = Instant::now();
    wait_for("everybody to be renewed", LIMIT, async || {
        let identities = cluster.identities().await?.identities;
        // Times of issue are whole seconds.
        let is_old = |info: &&v1::IdentityInfo| {
            info.record.as_ref().is_none_or(|record| record.issued_ms + 1_000 <= fixed_ms)
        };
        let n_old = identities.iter().filter(is_old).count();
        ensure!(identities.len() == N_SIMULATED + N_REAL + 4 && n_old == 0, "{n_old} have the old one");
        Ok(())
    })
    .await;
    let renewed = fixed.elapsed();
    println!("{} identities were renewed within {:.2} s", expired.len(), renewed.as_secs_f64());
    assert!(renewed <= HEARTBEAT, "{renewed:?}");

    cluster.check_all_connected().await.unwrap();
    assert_eq!(cluster.lost_since(revision, &units).await.unwrap(), Lost::default());
    assert_eq!((cluster.n_sessions_lost(), cluster.leases().await.unwrap()), (n_lost, leases));
    assert_eq!(processes.counts(), [("real.0".to_owned(), N_REAL)].into());
    // And they can be told apart from nobody: what comes next is placed and run.
    cluster.submit(service("more", N_SIMULATED)).await.unwrap();
    cluster.wait_running("more", u32::try_from(N_SIMULATED).unwrap()).await;
    cluster.assert_all_run();
    cluster.stop().await;
}
