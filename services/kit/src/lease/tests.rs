use std::time::Duration;

use godel_base::ids::{Epoch, Revision, StoreId};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Election, Fence, Leadership, LeaseSpec, Membership};
use crate::{
    config::LeaseConfig,
    tests::fake::{Fake, TTL, eventually, soon},
};

fn spec(lease: &str, address: &str) -> LeaseSpec {
    LeaseSpec::new(lease, address, LeaseConfig { ttl: TTL.into() })
}

/// The grant, once it is held.
async fn leading(leadership: &mut watch::Receiver<Leadership>) -> Option<(Epoch, Revision, Fence)> {
    match &*leadership.wait_for(|now| now.fence().is_some()).await.ok()? {
        Leadership::Leader { epoch, since, fence } => Some((*epoch, *since, fence.clone())),
        Leadership::Standby { .. } => None,
    }
}

async fn standby_with(leadership: &mut watch::Receiver<Leadership>, leader: Option<&str>) {
    let known =
        |now: &Leadership| matches!(now, Leadership::Standby { leader: known } if known.as_deref() == leader);
    soon("standby", leadership.wait_for(known)).await.unwrap();
}

#[tokio::test]
async fn one_leads_the_other_knows_where_and_takes_over_when_it_stops() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let (stop_a, stop_b) = (CancellationToken::new(), CancellationToken::new());
    let first = Election::spawn(spec("binder", "http://a"), served.channel(), stop_a.clone());
    let (epoch, since, fence) = soon("a leads", leading(&mut first.watch())).await.unwrap();
    assert_eq!((epoch, since.0, fence.lease()), (Epoch(1), 1, "binder"));

    let second = Election::spawn(spec("binder", "http://b"), served.channel(), stop_b.clone());
    standby_with(&mut second.watch(), Some("http://a")).await;
    // Held well beyond one TTL by renewals.
    let start = Instant::now();
    eventually("time passes", || (start.elapsed() > TTL + TTL / 2).then_some(())).await;
    assert!(fence.is_valid() && second.watch().borrow().fence().is_none());

    stop_a.cancel();
    first.released().await;
    assert!(!fence.is_valid());
    let (epoch, ..) = soon("b leads", leading(&mut second.watch())).await.unwrap();
    assert_eq!(epoch, Epoch(2));
    stop_b.cancel();
    second.released().await;
    assert!(fake.with(|world| world.leases["binder"].holder.is_empty()));
}

#[tokio::test]
async fn a_lost_registration_comes_back_with_a_new_epoch() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let spec = spec("scheduler/s1", "http://s1").with_counters(|| vec![("placed", 7)]);
    let member = Membership::spawn(spec, served.channel(), CancellationToken::new());
    let mut watch = member.watch();
    let (_, _, first) = soon("registered", leading(&mut watch)).await.unwrap();
    let placed = || fake.with(|world| world.leases["scheduler/s1"].status.counters.get("placed").copied());
    assert_eq!(eventually("counters arrive", placed).await, 7);

    fake.with(|world| world.refuse_renewal = true);
    soon("lost", first.lost()).await;
    let (epoch, _, second) = soon("registered again", leading(&mut watch)).await.unwrap();
    assert_eq!(epoch, Epoch(2));
    assert!(second.is_valid() && !first.is_valid());
}

#[tokio::test]
async fn a_lease_of_another_store_is_lost_and_taken_anew() {
    let fake = Fake::new();
    fake.with(|world| world.store_id = 7);
    let served = fake.serve().await;
    let stop = CancellationToken::new();
    let election = Election::spawn(spec("binder", "http://a"), served.channel(), stop.clone());
    let mut watch = election.watch();
    let (epoch, _, first) = soon("leads", leading(&mut watch)).await.unwrap();
    assert_eq!((epoch, first.store()), (Epoch(1), StoreId(7)));
    // An older export of the same store, in which the lease is held under the same epoch.
    fake.with(|world| world.store_id = 8);
    soon("lost", first.lost()).await;
    let (epoch, _, second) = soon("leads again", leading(&mut watch)).await.unwrap();
    assert_eq!((epoch, second.store()), (Epoch(2), StoreId(8)));
    assert!(second.is_valid() && !first.is_valid());
    stop.cancel();
    election.released().await;
}

#[tokio::test]
async fn without_answers_a_holder_stops_before_its_lease_ends() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let election =
        Election::spawn(spec("dispatcher", "http://a"), served.channel(), CancellationToken::new());
    let mut watch = election.watch();
    let (_, _, fence) = soon("leads", leading(&mut watch)).await.unwrap();
    let address = served.kill().await;
    let cut = Instant::now();
    soon("the fence ends", fence.lost()).await;
    assert!(!fence.is_valid());
    // Two thirds from the send of the last renewal, which was before the cut; with room for a slow machine.
    assert!(cut.elapsed() < TTL, "{:?}", cut.elapsed());
    standby_with(&mut watch, None).await;
    let _served = fake.serve_with(address, &crate::config::ServerConfig::default()).await;
    let (epoch, ..) = soon("leads again", leading(&mut watch)).await.unwrap();
    assert_eq!(epoch, Epoch(2));
}

#[tokio::test]
async fn a_fence_expires_by_the_clock_alone() {
    let fence = Fence::expired("binder", Epoch(1), StoreId(7));
    assert!(!fence.is_valid());
    fence.extend(Instant::now() + Duration::from_secs(60));
    assert!(fence.clone().is_valid());
    // A validity is never taken back, except by the clock.
    fence.extend(Instant::now());
    assert!(fence.is_valid());
    let short = Fence::expired("binder", Epoch(1), StoreId(7));
    short.extend(Instant::now() + Duration::from_millis(3));
    eventually("it ends without anybody doing anything", || (!short.is_valid()).then_some(())).await;
    let unlimited = Fence::unlimited("binder", Epoch(2));
    assert!(unlimited.is_valid());
    unlimited.clone().revoke();
    assert!(!unlimited.is_valid());
}
