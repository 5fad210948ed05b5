//! Clocks that are stepped by a day while another root replaces the first one, under load: nothing that runs is touched, whatever is submitted
//! succeeds, and nobody has to join again.

use std::time::{Duration, Instant};

use anyhow::ensure;
use godel_integration_tests::{
    secured::{Lost, SecuredCluster, SteppedClock},
    settings,
    trace::{resources, unit},
    wait::{keep_up, wait_for},
};
use godel_kit::{CancellationToken, clock::SharedClock, task};
use godel_proto::v1::{self, WorkloadClass};

const DAY_MS: i64 = 24 * 3_600_000;
/// Between two looks, and between two units of the load.
const LOOK: Duration = Duration::from_millis(500);
const BETWEEN_UNITS: Duration = Duration::from_millis(50);
/// Everybody asks for the roots within a sixth of a life: whoever has not when the second one signs has to join again.
const LEARNED: Duration = Duration::from_secs(10);
/// So long everybody may take to renew: a sixth of the life until he hears of it, with what an own clock that was stepped adds.
const RENEWAL: Duration = Duration::from_secs(60);
/// A root that nobody uses stays for two minutes.
const DROP: Duration = Duration::from_secs(180);

/// How much is done.
struct Course {
    n_agents: usize,
    /// Steps of the clock before the second root signs, with a pause behind each.
    before: &'static [i64],
    /// While both roots are there and the second one signs, unless the clock is stepped back.
    between: &'static [i64],
    /// Whether it waits until the first root is gone.
    waits_for_drop: bool,
    after: &'static [i64],
    pause: Duration,
}

impl Course {
    fn wanted() -> Self {
        if !settings::is_long() {
            let (n_agents, pause) = (10, Duration::from_secs(2));
            return Self {
                n_agents,
                before: &[],
                between: &[],
                waits_for_drop: false,
                after: &[-DAY_MS],
                pause,
            };
        }
        let there_and_back = &[-DAY_MS, DAY_MS];
        Self {
            n_agents: 200,
            before: there_and_back,
            between: there_and_back,
            waits_for_drop: true,
            after: there_and_back,
            // Longer than a third of a lifetime: all renew meanwhile.
            pause: Duration::from_secs(25),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_is_replaced_while_clocks_are_stepped() {
    let course = Course::wanted();
    let n_replicas = u32::try_from(course.n_agents).unwrap();
    let mut cluster = SecuredCluster::new(&[("state.leaf_lifetime", "30s")]);
    let stepped = SteppedClock::new();
    let clock = stepped.clone() as SharedClock;
    for (part, name) in [
        ("state", "state"),
        ("dispatcher", "dispatcher-1"),
        ("binder", "binder-1"),
        ("scheduler", "scheduler-1"),
    ] {
        cluster.start_inside(part, name, &clock).await;
    }
    cluster.start_agents_inside(course.n_agents, &clock).await;
    cluster.wait_ready().await;
    let web = v1::UnitSpec {
        workload_class: WorkloadClass::Service.into(),
        ..unit("web", "", n_replicas, resources(10, 1), None, 0)
    };
    let web = cluster.submit(web).await.unwrap();
    cluster.wait_running("web", n_replicas).await;
    let (revision, leases) = (cluster.revision().await, cluster.leases().await.unwrap());
    let over = CancellationToken::new();
    let load = task::spawn("load", submit_units(cluster.client.clone(), over.clone()));

    let second = cluster.rotate().await.unwrap().fingerprint;
    hold(&mut cluster, LEARNED).await;
    hold_through(&mut cluster, &stepped, course.before, course.pause).await;
    // It signs now.
    stepped.step(DAY_MS);
    let begun = Instant::now();
    wait_renewed(&cluster, &second).await;
    println!("all had a leaf of the second root after {:?}", begun.elapsed());
    hold_through(&mut cluster, &stepped, course.between, course.pause).await;
    if course.waits_for_drop {
        wait_renewed(&cluster, &second).await;
        wait_for("the first root to be dropped", DROP, async || {
            let roots = cluster.roots().await?;
            ensure!(roots == [second.clone()], "{} roots", roots.len());
            Ok(())
        })
        .await;
    }
    hold_through(&mut cluster, &stepped, course.after, course.pause).await;

    over.cancel();
    let n_units = load.await.unwrap();
    wait_for("the load to succeed", RENEWAL, async || {
        let (all, _) = cluster.client.list_units(v1::ListUnitsRequest::default(), usize::MAX).await?;
        let has_succeeded =
            |unit: &&v1::Unit| unit.counts.as_ref().is_some_and(|counts| counts.succeeded == 1);
        let n = all.iter().filter(has_succeeded).count();
        ensure!(n == n_units, "{n} of {n_units} units have succeeded");
        Ok(())
    })
    .await;
    println!("{n_units} units were submitted meanwhile, and all succeeded");
    cluster.check_all_connected().await.unwrap();
    assert_eq!(cluster.lost_since(revision, &[web]).await.unwrap(), Lost::default());
    assert_eq!((cluster.n_sessions_lost(), cluster.leases().await.unwrap()), (0, leases));
    let identities = cluster.identities().await.unwrap().identities;
    assert!(identities.iter().all(|info| info.standing() == v1::IdentityStanding::Valid), "{identities:?}");
    cluster.assert_all_run();
    cluster.stop().await;
}

/// Waits until everybody was issued a leaf of that root.
async fn wait_renewed(cluster: &SecuredCluster, root: &[u8]) {
    wait_for("everybody to have a leaf of the second root", RENEWAL, async || {
        cluster.check_all_connected().await?;
        let identities = cluster.identities().await?.identities;
        let is_old = |info: &&v1::IdentityInfo| {
            info.record.as_ref().is_none_or(|record| record.root_fingerprint != root)
        };
        let n_old = identities.iter().filter(is_old).count();
        ensure!(n_old == 0, "{n_old} of {} have one of the first", identities.len());
        Ok(())
    })
    .await;
}

/// Steps the clock, and lets some time pass after each step.
async fn hold_through(cluster: &mut SecuredCluster, clock: &SteppedClock, steps: &[i64], pause: Duration) {
    for step in steps {
        clock.step(*step);
        hold(cluster, pause).await;
    }
}

/// Lets some time pass in which nobody may lose his session.
async fn hold(cluster: &mut SecuredCluster, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        cluster.check_all_connected().await.unwrap();
        cluster.assert_all_run();
        keep_up(LOOK).await;
    }
}

/// Submits short units until it is over; how many.
async fn submit_units(client: godel_client::client::Client, over: CancellationToken) -> usize {
    let mut n = 0;
    while !over.is_cancelled() {
        let spec = unit(&format!("load-{n}"), "", 1, resources(10, 1), None, 100);
        let request = v1::SubmitUnitRequest { unit: Some(spec) };
        client.units(async |mut units| units.submit_unit(request.clone()).await).await.unwrap();
        n += 1;
        keep_up(BETWEEN_UNITS).await;
    }
    n
}
