//! How the store keeps etcd from its alarm, and what it deletes.

use std::time::Duration;

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{Etcd, model::EtcdModel};
use godel_store::{Engine, RefusalReason, Role, Store, StoreConfig, log::etcd::EtcdConfig};

use crate::support::{
    Dispatcher, EtcdPlace, PATIENCE, clock, internal, lease, partition, read_partition, small, until,
};

/// Half of the reserve, which a snapshot leaves, is more than the 2 MiB that leases need.
const QUOTA_BYTES: u64 = 32 << 20;

fn settings(model: &EtcdModel, dir: &std::path::Path, compacts: bool) -> StoreConfig {
    let etcd = EtcdConfig {
        quota_bytes: QUOTA_BYTES,
        compacts,
        compaction_age: Duration::ZERO,
        ..EtcdConfig::new(model.connect(), dir)
    };
    StoreConfig {
        generation_bytes_min: 1 << 20,
        snapshot_piece_bytes: 64 << 10,
        history_bytes_min: u64::MAX,
        ..small(Engine::Etcd(etcd))
    }
}

/// Sizes in etcd are asked for once a second.
async fn ask(store: &Store, what: &str, mut done: impl AsyncFnMut(&Store) -> bool) {
    let asked = async {
        while !done(store).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_goes_before_writes_are_refused() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    let store = Store::open(settings(&model, dir.path(), true), clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut largest = 0;
    for generation in 1..=400 {
        // More than the quota in all, in one record.
        let done = dispatcher.submit(&store, vec![partition("p", generation, 100_000)]).await;
        match done {
            Ok(_) => {}
            Err(refusal) if refusal.reason == RefusalReason::StoreFull => {
                // What was dropped is being deleted.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
        largest = largest.max(model.happened().refused);
    }
    assert!(store.status().floor > Revision(1), "no history has gone: {:?}", store.status());
    assert_eq!(largest, 0, "the alarm came from this store");
    ask(&store, "writes are accepted again", async |store| {
        dispatcher.submit(store, vec![partition("q", 1, 100)]).await.is_ok()
    })
    .await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_go_on_when_writes_are_refused() {
    let (model, dir) = (EtcdModel::new(2), tempfile::tempdir().unwrap());
    let store = Store::open(settings(&model, dir.path(), true), clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    // Many records: no history can go. Before it knows the sizes again, the store may refuse a write for which there is room.
    let etcd = model.connect();
    let is_full = || {
        let sizes = (&*etcd as &dyn Etcd).sizes().unwrap();
        sizes.in_use_bytes >= QUOTA_BYTES * 7 / 10 && store.status().full
    };
    let mut last = 0;
    loop {
        match dispatcher.submit(&store, vec![partition(&format!("p{last}"), last + 1, 100_000)]).await {
            Ok(_) => last += 1,
            Err(refusal) => {
                assert_eq!(refusal.reason, RefusalReason::StoreFull);
                if is_full() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    assert!(last > 20, "{last} {:?}", store.status());
    for epoch in 2..50 {
        ask(&store, "a lease is granted", async |store| {
            store.submit(internal(vec![lease("dispatcher", epoch)]), Role::State).await.is_ok()
        })
        .await;
    }
    assert_eq!(read_partition(&store, "p0"), Some(1), "reads go on");
    assert_eq!(model.happened().refused, 0, "the alarm came from this store");
    drop(store);
    let store = Store::open(settings(&model, dir.path(), true), clock(), CrashPoints::default()).unwrap();
    assert_eq!(read_partition(&store, &format!("p{}", last - 1)), Some(last));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generations_that_are_dropped_are_deleted_once_nobody_reads_them() {
    let (model, dir) = (EtcdModel::new(3), tempfile::tempdir().unwrap());
    let etcd = EtcdConfig {
        compacts: false,
        compaction_age: Duration::ZERO,
        ..EtcdConfig::new(model.connect(), dir.path())
    };
    let config = StoreConfig { generation_bytes_min: 1 << 20, ..small(Engine::Etcd(etcd)) };
    let store = Store::open(config, clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut generation = 0;
    let mut write_until_floor_is_beyond = async |floor: Revision| {
        while store.status().floor <= floor {
            generation += 1;
            dispatcher.submit(&store, vec![partition("p", generation, 100_000)]).await.unwrap();
        }
    };
    write_until_floor_is_beyond(Revision(1)).await;
    let reader = store.floor().unwrap();
    let base = reader.base();
    let n_keys = || {
        // Pieces of other generations have small numbers, too.
        let of = format!("godel/00000000/{:016x}/", base.0);
        model.dump().iter().filter(|(key, _)| key.starts_with(of.as_bytes())).count()
    };
    write_until_floor_is_beyond(Revision(base.0 + 1)).await;
    assert!(n_keys() > 5, "somebody reads it");
    drop(reader);
    write_until_floor_is_beyond(store.status().floor).await;
    until("it is deleted", || n_keys() == 0).await;
    assert_eq!(model.revisions().compacted, 0, "compaction is left to others");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_snapshots_that_were_never_completed_are_deleted() {
    let (model, dir) = (EtcdModel::new(4), tempfile::tempdir().unwrap());
    let n_attempts = || {
        let keys = model.dump().into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned());
        let attempts =
            keys.filter_map(|key| Some(key.split_once("/snapshot/")?.1.split('/').next()?.to_owned()));
        attempts.collect::<std::collections::BTreeSet<_>>().len()
    };
    // One byte a piece: no snapshot ends before the store does.
    let slow = || StoreConfig {
        snapshot_piece_bytes: 1,
        generation_bytes_min: 20_000,
        ..settings(&model, dir.path(), true)
    };
    for round in 0..4u64 {
        let store = Store::open(slow(), clock(), CrashPoints::default()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        for generation in 0..20 {
            let name = format!("p{}", generation % 5);
            dispatcher.submit(&store, vec![partition(&name, round * 20 + generation, 1_500)]).await.unwrap();
        }
        drop(store);
    }
    let store = Store::open(settings(&model, dir.path(), true), clock(), CrashPoints::default()).unwrap();
    until("the snapshot is complete", || store.status().snapshot_bytes > 0).await;
    assert_eq!(n_attempts(), 1);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_etcd_is_kept_from_its_alarm() {
    let quota_bytes = 64 << 20;
    let Some(place) = EtcdPlace::start(|config| config.quota_bytes = Some(quota_bytes)) else { return };
    let etcd = EtcdConfig { quota_bytes, compaction_age: Duration::ZERO, ..place.config() };
    let config = StoreConfig {
        generation_bytes_min: 2 << 20,
        snapshot_piece_bytes: 64 << 10,
        history_bytes_min: u64::MAX,
        ..small(Engine::Etcd(etcd))
    };
    let store = Store::open(config, clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    // Four times the quota in all, in a few records.
    let (mut generation, mut n_refused) = (1, 0);
    while generation <= 2_560 {
        let name = format!("p{}", generation % 5);
        match dispatcher.submit(&store, vec![partition(&name, generation, 100_000)]).await {
            Ok(_) => generation += 1,
            Err(refusal) => {
                assert_eq!(refusal.reason, RefusalReason::StoreFull);
                n_refused += 1;
                assert!(n_refused < 500, "no room is made: {:?} {:?}", store.status(), place.etcd.sizes());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let sizes = place.etcd.sizes().unwrap();
    assert!(!sizes.has_no_space && sizes.db_bytes < quota_bytes, "{sizes:?}");
    assert!(store.status().floor > Revision(1), "{:?}", store.status());
    store.close().await;
}
