//! A killed process: everything that it acknowledged is there afterwards.

use crate::{
    child::{EtcdHome, Home, Orders, Writer},
    support::{EtcdPlace, holes_in_history},
};

/// Deterministic, spread over the range.
fn spread(round: u64, range: u64) -> u64 {
    round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % range
}

/// A store below `prefix` in an etcd.
fn in_etcd(place: &EtcdPlace, prefix: &str) -> Home {
    let etcd = EtcdHome { endpoints: place.processes.endpoints().join(","), prefix: format!("{prefix}/") };
    Home { dir: place.dir.path().join(prefix), etcd: Some(etcd) }
}

fn kill_at_random_moments(home: &Home) {
    for round in 0..20 {
        let orders = Orders { is_lone: round % 2 == 1, ..Orders::default() };
        let mut writer = Writer::spawn(home, &orders);
        writer.wait_for_more(1 + spread(round, 300));
        let acks = writer.kill();
        let store = home.open();
        assert_eq!(acks.missing_in(&store), [""; 0], "round {round}");
        assert_eq!(holes_in_history(&store), [""; 0], "round {round}");
        drop(store);
    }
}

fn crash_at(point: &str, home: &Home) {
    for round in 0..2 {
        let orders = Orders { crash: point.to_owned(), ..Orders::default() };
        let writer = Writer::spawn(home, &orders);
        let acks = writer.wait_for_death();
        let store = home.open();
        assert_eq!(acks.missing_in(&store), [""; 0], "{point}, round {round}");
        assert_eq!(holes_in_history(&store), [""; 0], "{point}, round {round}");
        drop(store);
    }
}

const POINTS: [&str; 8] = [
    "store.before-append:9",
    "store.after-append:30",
    "store.after-sync:20",
    "store.before-answer:25",
    "store.generation-begin:2",
    "store.snapshot-chunk:3",
    "store.generation-complete:1",
    "store.drop-generation:2",
];

#[test]
fn kill_9_at_random_moments_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    kill_at_random_moments(&Home::sled(dir.path().join("store")));
}

#[test]
fn kill_9_at_random_moments_loses_nothing_in_etcd() {
    let Some(place) = EtcdPlace::start(|_| {}) else { return };
    kill_at_random_moments(&in_etcd(&place, "killed"));
}

#[test]
fn every_crash_point_of_the_store_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for point in POINTS {
        crash_at(point, &Home::sled(dir.path().join(point.replace(':', "-"))));
    }
}

#[test]
fn every_crash_point_of_the_store_loses_nothing_in_etcd() {
    let Some(place) = EtcdPlace::start(|_| {}) else { return };
    for point in POINTS {
        crash_at(point, &in_etcd(&place, &point.replace(':', "-")));
    }
}

/// etcd itself is killed and started again, while the process that writes goes on.
#[test]
fn an_etcd_that_is_killed_loses_nothing() {
    let Some(mut place) = EtcdPlace::start(|_| {}) else { return };
    let home = in_etcd(&place, "etcd-killed");
    let mut writer = Writer::spawn(&home, &Orders::default());
    for round in 0..8 {
        writer.wait_for_more(1 + spread(round, 200));
        place.processes.kill(0);
        place.processes.restart(0).unwrap();
    }
    writer.wait_for_more(50);
    let acks = writer.kill();
    let store = home.open();
    assert_eq!(acks.missing_in(&store), [""; 0]);
    assert_eq!(holes_in_history(&store), [""; 0]);
}

/// One member after the other is killed or paused, and comes back.
#[test]
fn members_that_come_and_go_lose_nothing() {
    let Some(mut place) = EtcdPlace::start(|config| config.n_members = 3) else { return };
    let home = in_etcd(&place, "members");
    let mut writer = Writer::spawn(&home, &Orders::default());
    for (round, member) in (0..8).zip([0, 1, 2].into_iter().cycle()) {
        writer.wait_for_more(1 + spread(round, 100));
        if round % 2 == 0 {
            place.processes.kill(member)
        } else {
            place.processes.pause(member)
        }
        writer.wait_for_more(20);
        if round % 2 == 0 { place.processes.restart(member).unwrap() } else { place.processes.resume(member) }
    }
    // Without a quorum nothing is acknowledged that would be lost.
    place.processes.kill(0);
    place.processes.kill(1);
    let acks = writer.kill();
    place.processes.restart(0).unwrap();
    place.processes.restart(1).unwrap();
    place.processes.wait_until_ready().unwrap();
    let store = home.open();
    assert_eq!(acks.missing_in(&store), [""; 0]);
    assert_eq!(holes_in_history(&store), [""; 0]);
}
