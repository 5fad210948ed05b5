//! A store whose etcd is away, full, or somebody else's.

use std::sync::{Arc, Mutex};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::model::EtcdModel;
use godel_store::{Engine, OpenError, RefusalReason, SledConfig, Store, StoreConfig};

use super::{config, open};
use crate::support::{Dispatcher, EtcdPlace, clock, follow, partition, read_partition, small, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_wait_for_a_quorum_and_reads_go_on() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    let store = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
    assert_eq!(store.status().waiting_for, None);
    model.set_quorum(false);
    let pending =
        store.enqueue(dispatcher.txn(vec![partition("p", 2, 100)]), godel_store::Role::Leased).await.unwrap();
    until("commits wait", || store.status().waiting_for.is_some()).await;
    assert_eq!(read_partition(&store, "p"), Some(1), "nothing is shown that is not known to be there");
    let mut watcher = store.watch(Revision(1)).unwrap();
    follow(&mut watcher, 1, 2).await;
    model.set_quorum(true);
    assert_eq!(pending.await.unwrap().revision, Revision(3));
    assert_eq!((read_partition(&store, "p"), store.status().waiting_for), (Some(2), None));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_closes_while_its_etcd_is_away() {
    let (model, dir) = (EtcdModel::new(2), tempfile::tempdir().unwrap());
    for is_orderly in [true, false] {
        let fatal = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&fatal);
        let on_fatal = Arc::new(move |text: &str| *heard.lock().unwrap() = Some(text.to_owned()));
        let settings = StoreConfig { on_fatal, ..config(model.connect(), dir.path()) };
        let store = Store::open(settings, clock(), CrashPoints::default()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        model.set_quorum(false);
        let pending = store
            .enqueue(dispatcher.txn(vec![partition("p", 1, 100)]), godel_store::Role::Leased)
            .await
            .unwrap();
        until("commits wait", || store.status().waiting_for.is_some()).await;
        if is_orderly {
            store.close().await
        } else {
            drop(store)
        }
        assert_eq!(pending.await.unwrap_err().reason, RefusalReason::Closed);
        assert_eq!(*fatal.lock().unwrap(), None, "no process must end for that");
        let error = open(&model, dir.path()).err().unwrap();
        assert!(error.is_away() && !error.is_full(), "{error:?}");
        model.set_quorum(true);
    }
    open(&model, dir.path()).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_come_back_once_the_alarm_of_others_is_disarmed() {
    let (model, dir) = (EtcdModel::new(3), tempfile::tempdir().unwrap());
    let store = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    model.set_alarm(true);
    let pending =
        store.enqueue(dispatcher.txn(vec![partition("p", 1, 100)]), godel_store::Role::Leased).await.unwrap();
    until("commits wait", || store.status().waiting_for.is_some()).await;
    let why = store.status().waiting_for.unwrap();
    assert!(why.contains("etcdctl defrag") && why.contains("alarm disarm"), "{why}");
    model.set_alarm(false);
    pending.await.unwrap();
    assert_eq!(read_partition(&store, "p"), Some(1));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_taken_over_ends() {
    let model = EtcdModel::new(4);
    let (first_dir, second_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fatal = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&fatal);
    let on_fatal = Arc::new(move |text: &str| *heard.lock().unwrap() = Some(text.to_owned()));
    let settings = StoreConfig { on_fatal, ..config(model.connect(), first_dir.path()) };
    let first = Store::open(settings, clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&first).await;
    let locked = open(&model, first_dir.path()).err().unwrap();
    assert!(matches!(locked, OpenError::Locked { .. }), "two processes with one watermark: {locked:?}");
    let second = open(&model, second_dir.path()).unwrap();
    let refusal = dispatcher.submit(&first, vec![partition("p", 1, 100)]).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Closed);
    until("it is said why", || fatal.lock().unwrap().is_some()).await;
    let text = fatal.lock().unwrap().clone().unwrap();
    let holder = format!("process {} on ", std::process::id());
    let of_second = format!("whose data directory is {}", second_dir.path().display());
    assert!(text.contains("taken over") && text.contains(&holder) && text.ends_with(&of_second), "{text}");
    let dispatcher = Dispatcher::elect(&second).await;
    dispatcher.submit(&second, vec![partition("p", 2, 100)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_write_learns_that_it_was_taken_over() {
    let model = EtcdModel::new(6);
    let (first_dir, second_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fatal = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&fatal);
    let on_fatal = Arc::new(move |text: &str| *heard.lock().unwrap() = Some(text.to_owned()));
    let settings = StoreConfig { on_fatal, ..config(model.connect(), first_dir.path()) };
    let _first = Store::open(settings, clock(), CrashPoints::default()).unwrap();
    let _second = open(&model, second_dir.path()).unwrap();
    until("it ends", || fatal.lock().unwrap().is_some()).await;
}

#[tokio::test]
async fn a_directory_has_one_engine() {
    let (model, dir) = (EtcdModel::new(5), tempfile::tempdir().unwrap());
    let (in_etcd, in_sled) = (dir.path().join("a"), dir.path().join("b"));
    open(&model, &in_etcd).unwrap().close().await;
    let sled = |dir| Store::open(small(Engine::Sled(SledConfig::new(dir))), clock(), CrashPoints::default());
    let error = sled(&in_etcd).err().unwrap();
    assert!(matches!(error, OpenError::OtherEngine { engine: "etcd", .. }), "{error:?}");
    sled(&in_sled).unwrap().close().await;
    let error = open(&model, &in_sled).err().unwrap();
    assert!(matches!(error, OpenError::OtherEngine { engine: "sled", .. }), "{error:?}");
}

/// The same on a real one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_wait_for_an_etcd_that_is_paused_killed_and_started_again() {
    let Some(mut place) = EtcdPlace::start(|_| {}) else { return };
    let settings = small(Engine::Etcd(place.config()));
    let store = Store::open(settings.clone(), clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    for round in 0..4 {
        if round % 2 == 0 {
            place.processes.pause(0)
        } else {
            place.processes.kill(0)
        }
        let txn = dispatcher.txn(vec![partition("p", round, 50_000)]);
        let pending = store.enqueue(txn, godel_store::Role::Leased).await.unwrap();
        until("commits wait", || store.status().waiting_for.is_some()).await;
        if round % 2 == 0 {
            place.processes.resume(0)
        } else {
            place.processes.restart(0).unwrap()
        }
        pending.await.unwrap();
        assert_eq!(read_partition(&store, "p"), Some(round));
    }
    let before = store.read(|state| state.clone());
    place.processes.pause(0);
    store.close().await;
    place.processes.resume(0);
    let store = Store::open(settings, clock(), CrashPoints::default()).unwrap();
    assert!(store.read(|state| *state == before));
}
