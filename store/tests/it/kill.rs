//! A killed process: everything that it acknowledged is there afterwards.

use godel_crash::CrashPoints;
use godel_store::Store;

use crate::{
    child::{Orders, Writer, config},
    support::{clock, holes_in_history},
};

/// Deterministic, spread over the range.
fn spread(round: u64, range: u64) -> u64 {
    round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % range
}

#[test]
fn kill_9_at_random_moments_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for round in 0..20 {
        let orders = Orders { is_lone: round % 2 == 1, ..Orders::default() };
        let mut writer = Writer::spawn(&path, &orders);
        writer.wait_for_more(1 + spread(round, 300));
        let acks = writer.kill();
        let store = Store::open(config(&path, false), clock(), CrashPoints::default()).unwrap();
        assert_eq!(acks.missing_in(&store), [""; 0], "round {round}");
        assert_eq!(holes_in_history(&store), [""; 0], "round {round}");
        drop(store);
    }
}

#[test]
fn every_crash_point_of_the_store_loses_nothing() {
    let points = [
        "store.before-append:9",
        "store.after-append:30",
        "store.after-sync:20",
        "store.before-answer:25",
        "store.generation-begin:2",
        "store.snapshot-chunk:3",
        "store.generation-complete:1",
        "store.drop-generation:2",
    ];
    let dir = tempfile::tempdir().unwrap();
    for point in points {
        let path = dir.path().join(point.replace(':', "-"));
        for round in 0..2 {
            let orders = Orders { crash: point.to_owned(), ..Orders::default() };
            let writer = Writer::spawn(&path, &orders);
            let acks = writer.wait_for_death();
            let store = Store::open(config(&path, false), clock(), CrashPoints::default()).unwrap();
            assert_eq!(acks.missing_in(&store), [""; 0], "{point}, round {round}");
            assert_eq!(holes_in_history(&store), [""; 0], "{point}, round {round}");
            drop(store);
        }
    }
}
