//! How far the watch history reaches back, and what it costs.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_store::{
    Compacted, Engine, RefusalReason, Role, SledConfig, State, Store, StoreConfig, WallClock, WatchRefused,
    admin::{UnreadablePolicy, check, export, restore},
    log::{LogReader as _, memory::MemoryDisk},
};

use crate::{
    contract::on_each_engine,
    support::{
        Dispatcher, PATIENCE, Place, clock, follow, leased, open, partition, read_partition, small, until,
    },
};

on_each_engine!(
    history_holds_enough_bytes_across_restarts,
    history_holds_enough_time_and_drops_what_is_older,
    a_watcher_resumes_from_the_floor_over_many_generations,
    concurrent_watchers_read_different_generations,
);

const GENERATION_BYTES: u64 = 20_000;
const HISTORY_BYTES: u64 = 100_000;
const NEVER: Duration = Duration::MAX;

/// Generations of ten transactions, little in memory.
fn config(place: &Place, history_age_min: Duration) -> StoreConfig {
    StoreConfig {
        generation_bytes_min: GENERATION_BYTES,
        history_bytes_min: HISTORY_BYTES,
        history_age_min,
        ring_bytes: 1,
        ..place.config()
    }
}

/// Overwrites one record `n` times; each takes a little over 2,000 bytes of log.
async fn write(store: &Store, dispatcher: &Dispatcher, n: u64) {
    let from = read_partition(store, "default").map_or(1, |last| last + 1);
    for generation in from..from + n {
        dispatcher.submit(store, vec![partition("default", generation, 2_000)]).await.unwrap();
    }
}

/// A clock that stands until it is told otherwise.
fn manual() -> (Arc<AtomicI64>, WallClock) {
    let now = Arc::new(AtomicI64::new(1_700_000_000_000));
    let shown = Arc::clone(&now);
    (now, Arc::new(move || shown.load(Ordering::Relaxed)))
}

/// Waits until no snapshot is under way, so that the floor stays where it is while nobody writes.
pub(crate) async fn settle(store: &Store, place: &Place, generation_bytes: u64) {
    let is_complete = || match place {
        Place::Memory(disk) => disk.generations().last().is_some_and(|newest| newest.manifest.is_some()),
        Place::Sled(dir) => {
            let sealed = generations(&dir.path().join("store"));
            sealed.iter().filter(|(_, sealed)| !sealed).count() == 1
        }
        Place::Etcd(place) => place.is_complete(),
    };
    let settled = async {
        loop {
            let is_settled = store.status().log_bytes < generation_bytes && is_complete();
            // The writer refuses this once it is done with what follows a snapshot, and looks what comes next.
            store.submit(leased(0, 1, Vec::new()), Role::Leased).await.unwrap_err();
            if is_settled {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("a snapshot is under way for ever");
}

/// Everything from the floor on, each transaction once.
async fn follow_all(store: &Store) {
    let (floor, revision) = (store.status().floor, store.status().revision);
    let mut watcher = store.watch(floor).unwrap();
    let seen = follow(&mut watcher, floor.0, revision.0).await;
    assert_eq!(seen.last().unwrap().revision(), revision);
}

async fn history_holds_enough_bytes_across_restarts(place: Place) {
    let mut floor = Revision(1);
    for round in 0..4 {
        let store = open(config(&place, NEVER));
        assert_eq!(store.status().floor, floor, "a restart changes nothing");
        let dispatcher = Dispatcher::elect(&store).await;
        for step in 0..40 {
            write(&store, &dispatcher, 1).await;
            let status = store.status();
            let what = format!("round {round}, step {step}: {status:?}");
            assert!(status.floor == Revision(1) || status.history_bytes >= HISTORY_BYTES, "{what}");
            // One generation on top of what must be, and those of which the snapshot is not complete yet: in etcd snapshots give
            // way to commits.
            let n_generations = if matches!(place, Place::Etcd(_)) { 10 } else { 4 };
            assert!(status.history_bytes <= HISTORY_BYTES + n_generations * GENERATION_BYTES, "{what}");
        }
        settle(&store, &place, GENERATION_BYTES).await;
        follow_all(&store).await;
        let status = store.status();
        floor = status.floor;
        if round % 2 == 0 {
            store.close().await;
        } else {
            drop(store);
        }
        let store = open(config(&place, NEVER));
        assert_eq!(store.status().history_bytes, status.history_bytes, "sizes survive restarts");
        follow_all(&store).await;
        drop(store);
    }
    assert!(floor > Revision(1), "nothing was ever dropped");
}

async fn history_holds_enough_time_and_drops_what_is_older(place: Place) {
    let age = Duration::from_mins(10);
    let (now, clock) = manual();
    let open = || Store::open(config(&place, age), Arc::clone(&clock), CrashPoints::default()).unwrap();
    let store = open();
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 35).await;
    settle(&store, &place, GENERATION_BYTES).await;
    assert_eq!(store.status().floor, Revision(1), "too few bytes, and too young");
    // One millisecond too young for all before to go, across a restart.
    store.close().await;
    now.fetch_add(599_000, Ordering::Relaxed);
    let store = open();
    let dispatcher = Dispatcher::elect(&store).await;
    assert!((598_000..600_000).contains(&store.status().history_age_ms), "{:?}", store.status());
    let turn = store.status().revision;
    write(&store, &dispatcher, 12).await;
    assert_eq!(store.status().floor, Revision(1), "too young still: {:?}", store.status());
    now.fetch_add(600_000, Ordering::Relaxed);
    // Generations of which every commit is older than ten minutes are gone once another one is complete.
    for _ in 0..20 {
        write(&store, &dispatcher, 1).await;
    }
    until("what is old is gone", || store.status().floor > Revision(1)).await;
    let status = store.status();
    assert!(status.history_bytes < HISTORY_BYTES, "bytes did not make it go: {status:?}");
    assert!(status.history_age_ms >= 600_000, "the history is too short: {status:?}");
    assert!(status.floor <= turn, "{status:?}");
    follow_all(&store).await;
}

async fn a_watcher_resumes_from_the_floor_over_many_generations(place: Place) {
    let store = open(config(&place, NEVER));
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 120).await;
    settle(&store, &place, GENERATION_BYTES).await;
    assert!(store.status().floor > Revision(1), "nothing was dropped");
    store.close().await;
    let store = open(config(&place, NEVER));
    let (floor, revision) = (store.status().floor, store.status().revision);
    assert!(revision.0 - floor.0 >= 4 * GENERATION_BYTES / 2_100, "the history is of a few generations");
    for from in (floor.0..=revision.0).step_by(7) {
        let mut watcher = store.watch(Revision(from)).unwrap();
        let seen = follow(&mut watcher, from, revision.0).await;
        let times: Vec<_> = seen.iter().map(|published| published.commit.commit_time_ms).collect();
        assert!(times.is_sorted());
    }
    let compacted = WatchRefused::Compacted(Compacted { floor });
    assert_eq!(store.watch(Revision(floor.0 - 1)).unwrap_err(), compacted);
    let last = store.read(State::revision);
    let future = store.watch(Revision(last.0 + 2)).unwrap_err();
    assert_eq!(future, WatchRefused::Future { last });
    assert!(store.watch(Revision(last.0 + 1)).is_ok());
    assert_eq!(store.watch(Revision(0)).unwrap().position(), floor);
}

async fn concurrent_watchers_read_different_generations(place: Place) {
    let store = open(config(&place, NEVER));
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 80).await;
    store.close().await;
    let store = open(config(&place, NEVER));
    let revision = store.status().revision;
    // Of two or three generations, none of which goes with the twenty transactions that come.
    let oldest = revision.0 - HISTORY_BYTES / 2_200 + 22;
    let watchers: Vec<_> = (0..8)
        .map(|idx| {
            let from = oldest + idx * (revision.0 - oldest) / 8;
            let mut watcher = store.watch(Revision(from)).unwrap();
            tokio::spawn(async move { follow(&mut watcher, from, revision.0).await.len() as u64 + from })
        })
        .collect();
    // Meanwhile generations come and go.
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 20).await;
    for watcher in watchers {
        assert!(watcher.await.unwrap() > revision.0);
    }
}

#[tokio::test]
async fn a_full_disk_gives_up_history_that_need_not_stay() {
    let disk = MemoryDisk::default();
    let place = Place::Memory(disk.clone());
    let (now, clock) = manual();
    let config = config(&place, Duration::from_mins(10));
    let store = Store::open(config, clock, CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 45).await;
    settle(&store, &place, GENERATION_BYTES).await;
    assert_eq!(store.status().floor, Revision(1));
    // Room for a group beside two generations, not beside all.
    disk.set_capacity(Some(store.status().disk_bytes + (2 << 20) - 20_000));
    let full = dispatcher.submit(&store, vec![partition("default", 46, 100)]).await.unwrap_err();
    assert_eq!(full.reason, RefusalReason::StoreFull);
    assert_eq!(store.status().floor, Revision(1), "history that must stay stays");
    now.fetch_add(601_000, Ordering::Relaxed);
    dispatcher.submit(&store, vec![partition("default", 46, 100)]).await.unwrap();
    assert!(store.status().floor > Revision(1));
    follow_all(&store).await;
}

/// Directories of generations under `dir`, and whether each is sealed.
fn generations(dir: &Path) -> Vec<(std::path::PathBuf, bool)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut generations: Vec<_> = entries
        .filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name != "aside"))
        .map(|path| (path.clone(), path.with_extension("sealed").exists()))
        .collect();
    generations.sort();
    generations
}

/// A sled store with history of several generations, not closed in order.
async fn with_history(place: &Place) -> std::path::PathBuf {
    let Place::Sled(dir) = place else { unreachable!() };
    let store = open(config(place, NEVER));
    let dispatcher = Dispatcher::elect(&store).await;
    write(&store, &dispatcher, 45).await;
    settle(&store, place, GENERATION_BYTES).await;
    drop(store);
    dir.path().join("store")
}

#[tokio::test]
async fn recovery_leaves_sealed_generations_alone() {
    let place = Place::sled();
    let dir = with_history(&place).await;
    let all = generations(&dir);
    let n_sealed = all.iter().filter(|(_, sealed)| *sealed).count();
    assert!(n_sealed >= 3 && all.len() - n_sealed <= 2 && !all.last().unwrap().1, "{all:?}");
    // If it read or copied them it would fail, or take over what it found.
    for (sealed, _) in all.iter().filter(|(_, sealed)| *sealed) {
        std::fs::rename(sealed.join("db"), sealed.join("hidden")).unwrap();
    }
    let store = open(config(&place, NEVER));
    let revision = store.status().revision;
    assert_eq!(store.status().floor, Revision(1));
    for (sealed, _) in all.iter().filter(|(_, sealed)| *sealed) {
        std::fs::rename(sealed.join("hidden"), sealed.join("db")).unwrap();
    }
    let mut watcher = store.watch(Revision(1)).unwrap();
    follow(&mut watcher, 1, revision.0).await;
}

#[tokio::test]
async fn lost_history_is_not_served_and_keeps_nothing_from_opening() {
    let place = Place::sled();
    let dir = with_history(&place).await;
    let second = &generations(&dir)[1].0;
    std::fs::remove_dir_all(second).unwrap();
    std::fs::remove_file(second.with_extension("ready")).unwrap();
    std::fs::remove_file(second.with_extension("sealed")).unwrap();
    let report = check(&dir, &|_| Ok(())).unwrap();
    assert!(!report.is_ok() && report.loss.is_none(), "{report}");
    let [(from, to)] = report.history_missing[..] else { panic!("{report}") };
    assert!(from > 1 && from <= to, "{report}");
    let store = open(config(&place, NEVER));
    let floor = store.status().floor;
    assert_eq!(floor, Revision(report.floor));
    assert!(floor > Revision(1));
    follow_all(&store).await;
}

#[tokio::test]
async fn a_torn_seal_is_as_good_as_none() {
    let place = Place::sled();
    let dir = with_history(&place).await;
    for (idx, (generation, sealed)) in generations(&dir).into_iter().enumerate() {
        if sealed {
            let seal = generation.with_extension("sealed");
            let content = std::fs::read(&seal).unwrap();
            std::fs::write(&seal, &content[..idx.min(content.len() - 1)]).unwrap();
        }
    }
    let store = open(config(&place, NEVER));
    assert_eq!(store.status().floor, Revision(1));
    follow_all(&store).await;
}

#[tokio::test]
async fn check_export_and_restore_know_many_generations() {
    let place = Place::sled();
    let dir = with_history(&place).await;
    let report = check(&dir, &|_| Ok(())).unwrap();
    assert!(report.is_ok() && report.generations.len() >= 4 && report.floor == 1, "{report}");
    for pair in report.generations.windows(2) {
        assert_eq!(pair[0].last, pair[1].base);
    }
    assert_eq!(report.generations.last().unwrap().last, report.revision);
    let other = tempfile::tempdir().unwrap();
    let (file, to) = (other.path().join("state.export"), other.path().join("restored"));
    export(&dir, &file).unwrap();
    let renewed = restore(&file, &to, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    let restored = open(small(Engine::Sled(SledConfig::new(&to))));
    assert_eq!(restored.status().floor, Revision(renewed.revision + 1));
    let store = open(config(&place, NEVER));
    let mut expected = store.read(|state| state.clone());
    godel_store::identity::renew_as(&mut expected, godel_base::ids::StoreId(renewed.store_id));
    assert!(restored.read(|restored| *restored == expected));
    // Rot in sealed history is reported, and keeps nothing from opening.
    drop(store);
    let (sealed, _) = &generations(&dir)[0];
    std::fs::write(sealed.join("db"), b"rot").unwrap();
    let report = check(&dir, &|_| Ok(())).unwrap();
    assert!(!report.is_ok() && report.revision > 0, "{report}");
    let (base, end) = (report.generations[0].base, report.generations[1].base);
    assert_eq!(report.history_missing, [(base + 1, end)], "{report}");
    open(config(&place, NEVER)).close().await;
}

/// Bytes on disk of `dir`; a file that goes while they are counted has none.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => panic!("{}: {error}", entry.path().display()),
        })
        .sum()
}

/// 3 × live data, two generations, and what the history needs: its bytes and one generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_of_overwrites_stays_within_its_bound_on_disk() {
    let place = Place::sled();
    let Place::Sled(dir) = &place else { unreachable!() };
    let dir = dir.path().join("store");
    let (generation_bytes_min, history_bytes_min) = (4 << 20, 8 << 20);
    let config = StoreConfig {
        generation_bytes_min,
        history_bytes_min,
        history_age_min: NEVER,
        snapshot_piece_bytes: 256 << 10,
        ..place.config()
    };
    let store = Store::open(config, clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut n_drops = 0;
    let mut floor = Revision(1);
    for round in 0..500_u64 {
        let bytes = 100_000 + usize::try_from(round * 7_919 % 50_000).unwrap();
        dispatcher.submit(&store, vec![partition(&format!("p{}", round % 10), round, bytes)]).await.unwrap();
        let status = store.status();
        n_drops += u64::from(status.floor > floor);
        floor = status.floor;
        let generation = generation_bytes_min.max(2 * status.snapshot_bytes) + status.snapshot_bytes;
        // sled's files take about twice what is written to them.
        let bound = 3 * status.live_bytes + 5 * (2 * generation + history_bytes_min + generation) / 2;
        assert!(disk_bytes(&dir) <= bound, "round {round}: more than {bound} bytes: {status:?}");
        assert!(status.history_bytes <= history_bytes_min + 3 * generation, "round {round}: {status:?}");
    }
    assert!(n_drops >= 5, "history was dropped only {n_drops} times");
}
