//! What every engine must do.

use godel_base::ids::Revision;
use godel_proto::v1;
use godel_store::{Compacted, Key, RefusalReason, Role, State, Store, StoreConfig, WatchEnd, WatchRefused};
use godel_wire::TXN_BYTES_MAX;
use prost::Message as _;

use crate::{
    history::settle,
    support::{
        Dispatcher, Place, SMALL_GENERATION_BYTES, delete, follow, internal, lease, leased, node, open,
        partition, priority_class, queue, read_partition, unit, until,
    },
};

macro_rules! on_each_engine {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Place::memory()).await })*
        }
        mod sled {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Place::sled()).await })*
        }
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(place) = super::Place::etcd() {
                    super::$name(place).await;
                }
            })*
        }
    };
}
pub(crate) use on_each_engine;

on_each_engine!(
    what_was_answered_is_there_after_an_orderly_end,
    what_was_answered_is_there_without_an_orderly_end,
    concurrent_writers_share_syncs_and_get_their_own_answers,
    repeated_sequences_are_remembered_across_restarts,
    watchers_see_each_transaction_once_across_restarts,
    generations_change_while_transactions_go_on,
    history_ends_with_the_generation_before_the_last,
    queues_and_classes_are_stored_and_watched_by_name,
    an_unfinished_snapshot_is_taken_up_again,
    slow_watchers_are_cut_off_and_resume,
    pipelined_transactions_keep_their_order,
    a_closing_store_commits_what_waits_and_refuses_the_rest,
    the_largest_transaction_commits_and_a_larger_is_refused,
);

async fn what_was_answered_is_there_after_an_orderly_end(place: Place) {
    let store = place.open();
    let dispatcher = Dispatcher::elect(&store).await;
    store.submit(internal(vec![node(1), node(2)]), Role::Admin).await.unwrap();
    let committed = dispatcher.submit(&store, vec![unit(1), partition("default", 3, 20_000)]).await.unwrap();
    assert_eq!(store.read(|state| state.revision()), committed.revision);
    let before = store.read(|state| state.clone());
    store.close().await;
    for _ in 0..3 {
        let store = place.open();
        assert!(store.read(|state| *state == before));
        assert_eq!(store.opened().torn, None);
        let status = store.status();
        assert_eq!((status.revision, status.units, status.nodes), (committed.revision, 1, 2));
        assert!(status.disk_bytes > 20_000);
        store.close().await;
    }
}

async fn what_was_answered_is_there_without_an_orderly_end(place: Place) {
    for round in 0..5u64 {
        let store = place.open();
        assert_eq!(read_partition(&store, "default"), (round > 0).then(|| round * 10 - 1));
        let dispatcher = Dispatcher::elect(&store).await;
        for generation in round * 10..round * 10 + 10 {
            dispatcher.submit(&store, vec![partition("default", generation, 5_000)]).await.unwrap();
        }
        drop(store);
    }
}

async fn concurrent_writers_share_syncs_and_get_their_own_answers(place: Place) {
    let store = open(StoreConfig { generation_bytes_min: u64::MAX, ..place.config() });
    let dispatcher = std::sync::Arc::new(Dispatcher::elect(&store).await);
    let mut tasks = Vec::new();
    for task in 0..32 {
        let (store, dispatcher) = (store.clone(), std::sync::Arc::clone(&dispatcher));
        tasks.push(tokio::spawn(async move {
            let mut revisions = Vec::new();
            for generation in 0..20 {
                let name = format!("p{task}");
                let committed =
                    dispatcher.submit(&store, vec![partition(&name, generation, 300)]).await.unwrap();
                assert_eq!(read_partition(&store, &name), Some(generation), "answered, but not visible");
                revisions.push(committed.revision.0);
            }
            revisions
        }));
    }
    let mut revisions = Vec::new();
    for task in tasks {
        let own = task.await.unwrap();
        assert!(own.is_sorted());
        revisions.extend(own);
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (2..2 + 640).collect::<Vec<_>>());
    let status = store.status();
    assert_eq!(status.commits, 641);
    assert!(status.groups < status.commits, "{status:?}");
}

async fn repeated_sequences_are_remembered_across_restarts(place: Place) {
    let store = place.open();
    store.submit(internal(vec![lease("dispatcher", 1)]), Role::State).await.unwrap();
    let txn = |sequence| leased(1, sequence, vec![partition("default", sequence, 1_000)]);
    let mut first = Vec::new();
    for sequence in 1..200 {
        first.push(store.submit(txn(sequence), Role::Leased).await.unwrap());
    }
    let revision = store.read(|state| state.revision());
    store.close().await;
    for _ in 0..2 {
        let store = place.open();
        for (sequence, first) in (1..200).zip(&first) {
            assert_eq!(store.submit(txn(sequence), Role::Leased).await.unwrap(), *first);
        }
        assert_eq!(store.read(|state| state.revision()), revision);
        let refusal = store.submit(leased(2, 1, vec![unit(1)]), Role::Leased).await.unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::StaleEpoch);
        assert_eq!(store.status().stale_epoch_refusals, 1);
        drop(store);
    }
}

async fn watchers_see_each_transaction_once_across_restarts(place: Place) {
    let big =
        |place: &Place| StoreConfig { generation_bytes_min: u64::MAX, ring_bytes: 20_000, ..place.config() };
    let store = open(big(&place));
    let dispatcher = Dispatcher::elect(&store).await;
    let mut early = store.watch(Revision(0)).unwrap();
    for id in 1..=300 {
        dispatcher.submit(&store, vec![unit(id), partition("default", id, 200)]).await.unwrap();
    }
    let seen = follow(&mut early, 1, 301).await;
    for (id, published) in (1u64..).zip(&seen[1..]) {
        assert_eq!(published.changes.len(), 2);
        assert_eq!(published.kinds, 1 << 4 | 1 << 6);
        assert!(
            matches!(&published.changes[0], godel_wire::ops::ParsedOp::Put { key: Key::Id(put), .. } if *put == id)
        );
    }
    store.close().await;
    assert_eq!(early.next().await, Err(WatchEnd::Closed));
    let store = open(big(&place));
    for from in [1, 2, 150, 301] {
        let mut watcher = store.watch(Revision(from)).unwrap();
        let again = follow(&mut watcher, from, 301).await;
        assert_eq!(again, seen[usize::try_from(from).unwrap() - 1..]);
    }
    let mut late = store.watch(Revision(302)).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![unit(301)]).await.unwrap();
    follow(&mut late, 302, 303).await;
    assert_eq!(store.status().watchers, 1);
}

async fn generations_change_while_transactions_go_on(place: Place) {
    let store = place.open();
    let dispatcher = std::sync::Arc::new(Dispatcher::elect(&store).await);
    let mut watcher = store.watch(Revision(1)).unwrap();
    let follower = tokio::spawn(async move { follow(&mut watcher, 1, 1 + 6 * 100).await.len() });
    let mut tasks = Vec::new();
    for task in 0..6 {
        let (store, dispatcher) = (store.clone(), std::sync::Arc::clone(&dispatcher));
        tasks.push(tokio::spawn(async move {
            for generation in 0..100 {
                let name = format!("p{task}-{}", generation % 7);
                dispatcher.submit(&store, vec![partition(&name, generation, 1_500)]).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(follower.await.unwrap(), 601);
    let before = store.read(|state| state.clone());
    until("a generation is complete", || store.status().snapshot_bytes > 0).await;
    drop(store);
    let store = place.open();
    assert!(store.read(|state| *state == before));
}

async fn history_ends_with_the_generation_before_the_last(place: Place) {
    let store = open(StoreConfig { ring_bytes: 1, ..place.config() });
    let dispatcher = Dispatcher::elect(&store).await;
    for generation in 1..400 {
        dispatcher.submit(&store, vec![partition("default", generation, 2_000)]).await.unwrap();
    }
    until("generations are complete", || store.status().floor > Revision(1)).await;
    settle(&store, &place, SMALL_GENERATION_BYTES).await;
    let status = store.status();
    let (floor, revision) = (status.floor, status.revision);
    let compacted = WatchRefused::Compacted(Compacted { floor });
    assert_eq!(store.watch(Revision(floor.0 - 1)).unwrap_err(), compacted);
    let last = store.read(State::revision);
    let future = store.watch(Revision(last.0 + 2)).unwrap_err();
    assert_eq!(future, WatchRefused::Future { last });
    assert!(store.watch(Revision(last.0 + 1)).is_ok());
    assert!(store.watch(Revision(1)).is_err());
    let mut watcher = store.watch(floor).unwrap();
    follow(&mut watcher, floor.0, revision.0).await;
    assert!(status.disk_bytes < 4 << 20, "{status:?}");
    store.close().await;
    let store = open(StoreConfig { ring_bytes: 1, ..place.config() });
    assert_eq!(store.status().floor, floor);
    let mut watcher = store.watch(Revision(0)).unwrap();
    follow(&mut watcher, floor.0, revision.0).await;
}

async fn queues_and_classes_are_stored_and_watched_by_name(place: Place) {
    let store = open(StoreConfig { ring_bytes: 1, ..place.config() });
    let dispatcher = Dispatcher::elect(&store).await;
    let first = vec![queue("prod.search", 1), queue("prod", 1), priority_class("gold", 7)];
    let created = dispatcher.submit(&store, first).await.unwrap().revision;
    dispatcher.submit(&store, vec![delete(v1::Kind::Queue, "prod.search")]).await.unwrap();
    let again = dispatcher.submit(&store, vec![queue("prod.search", 2)]).await.unwrap().revision;
    let changed = dispatcher.submit(&store, vec![priority_class("gold", 8)]).await.unwrap().revision;
    let mut watcher = store.watch(created).unwrap();
    let seen = follow(&mut watcher, created.0, changed.0).await;
    let kinds: Vec<u64> = seen.iter().map(|published| published.kinds).collect();
    assert_eq!(kinds, [1 << 7 | 1 << 8, 1 << 7, 1 << 7, 1 << 8]);
    let listed = |store: &Store| {
        store.read(|state| {
            let queues = state.records(v1::Kind::Queue, None).map(|(key, record)| {
                let weight = v1::Queue::decode(record.value.clone()).unwrap().weight();
                (key.to_string(), record.create_revision, record.revision, i64::from(weight))
            });
            let classes = state.records(v1::Kind::PriorityClass, None).map(|(key, record)| {
                let value = v1::PriorityClass::decode(record.value.clone()).unwrap().value;
                (key.to_string(), record.create_revision, record.revision, i64::from(value))
            });
            queues.chain(classes).collect::<Vec<_>>()
        })
    };
    let expected = [
        ("prod".to_owned(), created, created, 1),
        ("prod.search".to_owned(), again, again, 2),
        ("gold".to_owned(), created, changed, 8),
    ];
    assert_eq!(listed(&store), expected);
    // Until only snapshots know them.
    for generation in 1..400 {
        dispatcher.submit(&store, vec![partition("default", generation, 2_000)]).await.unwrap();
    }
    until("generations are complete", || store.status().floor > changed).await;
    assert!(store.watch(created).is_err());
    assert_eq!(listed(&store), expected);
    store.close().await;
    assert_eq!(listed(&place.open()), expected);
}

async fn an_unfinished_snapshot_is_taken_up_again(place: Place) {
    // One byte a piece: no snapshot of this state ends before the store does.
    let config = || StoreConfig { snapshot_piece_bytes: 1, generation_bytes_min: 20_000, ..place.config() };
    let mut expected = None;
    for round in 0..3u64 {
        let store = open(config());
        assert!(expected.is_none_or(|expected| store.read(|state| *state == expected)));
        let dispatcher = Dispatcher::elect(&store).await;
        for generation in 0..40 {
            let name = format!("p{}", generation % 5);
            dispatcher.submit(&store, vec![partition(&name, round * 40 + generation, 1_000)]).await.unwrap();
        }
        expected = Some(store.read(|state| state.clone()));
        drop(store);
    }
    let store = place.open();
    assert!(store.read(|state| Some(state.clone()) == expected));
    until("the snapshot is complete", || store.status().snapshot_bytes > 0).await;
    assert_eq!(store.status().floor, Revision(1), "the generation before stays");
}

async fn slow_watchers_are_cut_off_and_resume(place: Place) {
    let store = open(StoreConfig { backlog_items: 10, generation_bytes_min: u64::MAX, ..place.config() });
    let dispatcher = Dispatcher::elect(&store).await;
    let mut slow = store.watch(Revision(1)).unwrap();
    let mut quick = store.watch(Revision(1)).unwrap();
    follow(&mut slow, 1, 1).await;
    for id in 1..=20 {
        dispatcher.submit(&store, vec![unit(id)]).await.unwrap();
        follow(&mut quick, if id == 1 { 1 } else { id + 1 }, id + 1).await;
    }
    assert_eq!(slow.next().await, Err(WatchEnd::Lagged { resume_from: Revision(2) }));
    let mut resumed = store.watch(Revision(2)).unwrap();
    follow(&mut resumed, 2, 21).await;
}

async fn pipelined_transactions_keep_their_order(place: Place) {
    let store = place.open();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut pending = Vec::new();
    for id in 1..=500 {
        let txn = dispatcher.txn(vec![unit(if id % 100 == 0 { 1 } else { id })]);
        pending.push(store.enqueue(txn, Role::Leased).await.unwrap());
    }
    let mut last = 1;
    for pending in pending {
        let committed = pending.await.unwrap();
        assert_eq!(committed.revision.0, last + 1);
        last = committed.revision.0;
    }
    assert_eq!(store.read(|state| state.count(v1::Kind::Unit)), 495);
}

async fn a_closing_store_commits_what_waits_and_refuses_the_rest(place: Place) {
    let store = place.open();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut pending = Vec::new();
    for id in 1..=100 {
        pending.push(store.enqueue(dispatcher.txn(vec![unit(id)]), Role::Leased).await.unwrap());
    }
    let other = store.clone();
    store.close().await;
    for pending in pending {
        pending.await.unwrap();
    }
    let refusal = dispatcher.submit(&other, vec![unit(101)]).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Closed);
    assert_eq!(other.read(|state| state.count(v1::Kind::Unit)), 100);
}

async fn the_largest_transaction_commits_and_a_larger_is_refused(place: Place) {
    let store = open(StoreConfig { generation_bytes_min: 4 << 20, ..place.config() });
    let dispatcher = Dispatcher::elect(&store).await;
    let most = TXN_BYTES_MAX - 200;
    let mut pending = Vec::new();
    for generation in 0..20 {
        let txn = dispatcher.txn(vec![partition("default", generation, most)]);
        pending.push(store.enqueue(txn, Role::Leased).await.unwrap());
    }
    for pending in pending {
        pending.await.unwrap();
    }
    let refusal = dispatcher.submit(&store, vec![partition("default", 99, TXN_BYTES_MAX)]).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Invalid);
    store.close().await;
    if let Place::Sled(dir) = &place {
        let generations = std::fs::read_dir(dir.path().join("store")).unwrap();
        for generation in generations.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
            let blobs = std::fs::read_dir(generation.join("blobs")).map_or(0, Iterator::count);
            assert_eq!(blobs, 0, "sled moved a message into a file that it never syncs");
        }
    }
    assert_eq!(read_partition(&place.open(), "default"), Some(19));
}
