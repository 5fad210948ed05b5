//! What recovery accepts, and what it refuses to serve.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_store::{
    OpenError, RefusalReason, Role, Store, StoreConfig, TxnRefusal,
    log::{Claimed, LogReader as _, memory::MemoryDisk},
};

use crate::support::{Dispatcher, Place, clock, internal, node, open, partition, read_partition, unit};

/// A memory log with one group per transaction, the last one of several chunks.
async fn written() -> (MemoryDisk, Place, u64) {
    let disk = MemoryDisk::default();
    let place = Place::Memory(disk.clone());
    let store = open(StoreConfig { generation_bytes_min: u64::MAX, ..place.config() });
    let dispatcher = Dispatcher::elect(&store).await;
    for id in 1..=10 {
        dispatcher.submit(&store, vec![unit(id)]).await.unwrap();
    }
    dispatcher.submit(&store, vec![partition("default", 1, 30_000)]).await.unwrap();
    let revision = store.read(|state| state.revision().0);
    drop(store);
    (disk, place, revision)
}

fn flip(chunk: &Bytes, byte: usize) -> Bytes {
    let mut bytes = chunk.to_vec();
    bytes[byte] ^= 0x10;
    bytes.into()
}

#[tokio::test]
async fn a_torn_end_is_dropped_and_never_served() {
    type Tear = fn(&mut Vec<Bytes>);
    let tears: [(&str, Tear); 5] = [
        ("the last chunk is missing", |chunks| *chunks.last_mut().unwrap() = Bytes::new()),
        ("the last chunk is rotten", |chunks| {
            let last = chunks.last_mut().unwrap();
            *last = flip(last, 100);
        }),
        ("the last chunk is short", |chunks| {
            let last = chunks.last_mut().unwrap();
            *last = last.slice(..last.len() - 1);
        }),
        ("a chunk of the last group is missing", |chunks| {
            let idx = chunks.len() - 3;
            chunks[idx] = Bytes::new();
        }),
        ("the first chunk of the last group is missing", |chunks| {
            let idx = chunks.len() - 5;
            chunks[idx] = Bytes::new();
        }),
    ];
    for (what, tear) in tears {
        let (disk, place, revision) = written().await;
        disk.edit_log(|chunks| {
            assert_eq!(chunks.len(), 16, "11 groups of one chunk, one of five");
            tear(chunks);
        });
        // What the watermark claims is never taken for torn.
        let error = place.try_open().err().expect("it must not open");
        let OpenError::Damaged { loss, .. } = &error else { panic!("{what}: {error}") };
        assert_eq!((loss.from, loss.n_commits()), (revision, Some(1)), "{what}: {error}");
        // Neither is it where the watermark is lost: each could be what is wrong.
        disk.set_claimed(Claimed::Lost("the watermark cannot be read".to_owned()));
        let error = place.try_open().err().expect("it must not open");
        let OpenError::Damaged { loss, .. } = &error else { panic!("{what}: {error}") };
        assert_eq!((loss.from, loss.n_commits()), (revision, None), "{what}: {error}");
        disk.set_claimed(Claimed::Never);
        let store = place.open();
        assert!(store.opened().torn.is_some(), "{what}");
        assert_eq!(store.read(|state| state.revision().0), revision - 1, "{what}");
        assert_eq!(read_partition(&store, "default"), None, "{what}");
        let dispatcher = Dispatcher::elect(&store).await;
        dispatcher.submit(&store, vec![partition("default", 2, 100)]).await.unwrap();
        drop(store);
        let store = place.open();
        assert_eq!(store.opened().torn, None, "{what}");
        assert_eq!(read_partition(&store, "default"), Some(2), "{what}");
    }
}

#[tokio::test]
async fn damage_before_a_whole_group_refuses_to_open() {
    for idx in 0..11 {
        for rot in [true, false] {
            let (disk, place, _) = written().await;
            disk.edit_log(|chunks| chunks[idx] = if rot { flip(&chunks[idx], 40) } else { Bytes::new() });
            let error = place.try_open().err().expect("it must not open");
            assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("state check") && text.contains("state restore"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_missing_generation_refuses_to_open_if_the_state_needs_it() {
    // (the newest generation's snapshot is complete, which generation is lost, it opens all the same)
    for (complete, lost, opens) in [(true, 0, true), (true, 1, false), (false, 0, false), (false, 1, false)] {
        let disk = MemoryDisk::default();
        let place = Place::Memory(disk.clone());
        let store = open(StoreConfig { generation_bytes_min: 10_000, ring_bytes: 1, ..place.config() });
        let dispatcher = Dispatcher::elect(&store).await;
        let mut generation = 0;
        // An older generation may go a moment after its successor is complete.
        while store.status().floor == Revision(1) || !is_complete(&disk) || disk.generations().len() > 2 {
            generation += 1;
            dispatcher.submit(&store, vec![partition("default", generation, 2_000)]).await.unwrap();
        }
        drop(store);
        if !complete {
            disk.lose_snapshot();
        }
        assert_eq!(disk.generations().len(), 2);
        assert!(recovers(&disk, generation), "both generations are there");
        disk.lose_generation(lost);
        assert_eq!(recovers(&disk, generation), opens, "complete: {complete}, lost: {lost}");
    }
}

/// Opens without writing a snapshot, so that nothing changes.
fn recovers(disk: &MemoryDisk, generation: u64) -> bool {
    let config = StoreConfig { reserve_bytes: u64::MAX / 4, ..Place::Memory(disk.clone()).config() };
    disk.set_capacity(Some(0));
    let opened = Store::open(config, clock(), CrashPoints::default());
    let recovers = opened.is_ok_and(|store| read_partition(&store, "default") == Some(generation));
    disk.set_capacity(None);
    recovers
}

/// The newest generation is complete.
fn is_complete(disk: &MemoryDisk) -> bool {
    disk.generations().last().is_some_and(|newest| newest.manifest.is_some())
}

#[tokio::test]
async fn a_failed_append_ends_the_store_and_is_not_answered_as_done() {
    let disk = MemoryDisk::default();
    let place = Place::Memory(disk.clone());
    let reason = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&reason);
    let on_fatal = Arc::new(move |text: &str| *heard.lock().unwrap() = Some(text.to_owned()));
    let store = open(StoreConfig { on_fatal, ..place.config() });
    store.submit(internal(vec![node(1)]), Role::Admin).await.unwrap();
    disk.fail_next_append();
    let failed: TxnRefusal = store.submit(internal(vec![node(2)]), Role::Admin).await.unwrap_err();
    assert_eq!(failed.reason, RefusalReason::Closed);
    let later = store.submit(internal(vec![node(3)]), Role::Admin).await.unwrap_err();
    assert_eq!(later.reason, RefusalReason::Closed);
    assert_eq!(store.read(|state| state.revision()), Revision(1), "what was not synced is not shown");
    store.close().await;
    assert!(reason.lock().unwrap().as_ref().is_some_and(|text| text.contains("told to fail")));
}

#[tokio::test]
async fn a_second_process_fences_the_first_off() {
    let place = Place::memory();
    let first = place.open();
    first.submit(internal(vec![node(1)]), Role::Admin).await.unwrap();
    let second = place.open();
    second.submit(internal(vec![node(2)]), Role::Admin).await.unwrap();
    let refusal = first.submit(internal(vec![node(2)]), Role::Admin).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Closed);

    let place = Place::sled();
    let store = place.open();
    let error = place.try_open().err().expect("two must not open it");
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    drop(store);
    place.open().close().await;
}

#[tokio::test]
async fn a_sled_store_that_does_not_open_is_put_back_as_it_was() {
    let place = Place::sled();
    let Place::Sled(dir) = &place else { unreachable!() };
    let dir = dir.path().join("store");
    let store = place.open();
    store.submit(internal(vec![node(1)]), Role::Admin).await.unwrap();
    drop(store);
    let conf = dir.join("gen-00000001/conf");
    let good = std::fs::read(&conf).unwrap();
    std::fs::write(&conf, b"").unwrap();
    std::fs::write(dir.join("gen-00000001/db"), b"rot").unwrap();
    for _ in 0..2 {
        let error = place.try_open().err().expect("it must not open");
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        // What was there before sled touched anything is there again.
        assert_eq!(std::fs::read(dir.join("gen-00000001/db")).unwrap(), b"rot");
        assert_eq!(std::fs::read(&conf).unwrap(), b"");
        assert!(!dir.join("aside").exists() && !dir.join("aside.ready").exists());
    }
    assert!(!good.is_empty());
}

#[tokio::test]
async fn leftovers_of_a_crash_between_generations_are_removed() {
    let place = Place::sled();
    let Place::Sled(dir) = &place else { unreachable!() };
    let dir = dir.path().join("store");
    let store = place.open();
    store.submit(internal(vec![node(1)]), Role::Admin).await.unwrap();
    store.close().await;
    std::fs::create_dir(dir.join("gen-00000002")).unwrap();
    std::fs::write(dir.join("gen-00000002/db"), b"half").unwrap();
    let store = place.open();
    assert_eq!(store.read(|state| state.revision()), Revision(1));
    assert!(!dir.join("gen-00000002").exists() && !dir.join("aside").exists() && !dir.join("clean").exists());
    store.close().await;
    assert!(dir.join("clean").exists());
}
