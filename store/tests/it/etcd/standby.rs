//! Processes that follow a store, and take it over from one another.

use std::{path::Path, sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{
    Etcd,
    model::{EtcdModel, Session},
};
use godel_store::{NotTakenOver, RefusalReason, Role, Standing, State, Store, TxnRefusal};

use super::config;
use crate::support::{Dispatcher, clock, partition, read_partition};

/// For what comes within milliseconds: no test depends on it.
const PATIENCE: Duration = Duration::from_mins(1);

/// A process that follows the store of a model.
fn follow(model: &EtcdModel, dir: &Path) -> (Store, Arc<Session>) {
    let session = model.connect();
    let settings = config(Arc::clone(&session) as Arc<dyn Etcd>, dir);
    (Store::follow(settings, clock(), CrashPoints::default()).unwrap(), session)
}

/// The number of the fence under which somebody holds the store, as `store` knows it.
fn holder(store: &Store) -> u64 {
    match &*store.standing().borrow() {
        Standing::Follows(holder) => holder.as_ref().map_or(0, |holder| holder.number),
        Standing::Leads(hold) => hold.as_ref().map_or(0, |hold| hold.number()),
        Standing::Ended(why) => panic!("{why}"),
    }
}

/// Waits until `store` knows that another process than the one with the number `before` holds the store.
async fn next_holder(store: &Store, before: u64) -> u64 {
    let mut standing = store.standing();
    let is_other = |standing: &Standing| match standing {
        Standing::Follows(holder) => holder.as_ref().is_some_and(|holder| holder.number > before),
        Standing::Leads(_) | Standing::Ended(_) => true,
    };
    tokio::time::timeout(PATIENCE, standing.wait_for(is_other)).await.unwrap().unwrap();
    holder(store)
}

fn revision(store: &Store) -> Revision {
    store.read(State::revision)
}

async fn put(store: &Store, dispatcher: &Dispatcher, generation: u64) -> Result<Revision, TxnRefusal> {
    let txn = dispatcher.txn(vec![partition("p", generation, 100)]);
    store.submit(txn, Role::Leased).await.map(|committed| committed.revision)
}

fn dirs() -> [tempfile::TempDir; 3] {
    [(); 3].map(|()| tempfile::tempdir().unwrap())
}

#[tokio::test]
async fn the_first_process_makes_the_store_and_the_others_follow_it() {
    let (model, [a, b, _]) = (EtcdModel::new(1), dirs());
    let (one, _) = follow(&model, a.path());
    let (two, _) = follow(&model, b.path());
    assert_eq!([holder(&one), holder(&two)], [0, 0]);
    one.take_over(0, Revision(0)).await.unwrap();
    let dispatcher = Dispatcher::elect(&one).await;
    for generation in 1..200 {
        let revision = put(&one, &dispatcher, generation).await.unwrap();
        assert!(two.wait_for(revision, PATIENCE).await);
        assert_eq!(read_partition(&two, "p"), read_partition(&one, "p"));
    }
    assert!(two.read(|two| one.read(|one| two == one)));
    let refused = two.take_over(0, Revision(0)).await.unwrap_err();
    assert_eq!(refused, NotTakenOver::Late, "somebody has taken it over since");
    // A follower takes nothing.
    let refused = put(&two, &dispatcher, 200).await.unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Closed);
    one.confirm().await.unwrap();
    two.confirm().await.unwrap_err();
}

#[tokio::test]
async fn a_follower_that_takes_over_has_all_that_was_answered() {
    let (model, [a, b, c]) = (EtcdModel::new(2), dirs());
    let (one, session) = follow(&model, a.path());
    let (two, _) = follow(&model, b.path());
    let (three, _) = follow(&model, c.path());
    one.take_over(0, Revision(0)).await.unwrap();
    let dispatcher = Dispatcher::elect(&one).await;
    let mut watcher = two.watch(Revision(0)).unwrap();
    let mut last = Revision(0);
    // More than one generation.
    for generation in 1..500 {
        last = put(&one, &dispatcher, generation).await.unwrap();
    }
    session.cut();
    let number = next_holder(&two, 0).await;
    two.take_over(number, last).await.unwrap();
    assert_eq!(revision(&two), last);
    assert_eq!(three.take_over(number, last).await.unwrap_err(), NotTakenOver::Late);
    assert!(next_holder(&three, number).await > number);
    // Epochs and sequences go on: the leases are in the store.
    let later = Dispatcher::elect(&two).await;
    for generation in 500..1_000 {
        last = put(&two, &later, generation).await.unwrap();
    }
    assert!(three.wait_for(last, PATIENCE).await);
    // A watcher that began before has each commit once.
    let mut next = Revision(1);
    while next <= last {
        for published in watcher.next().await.unwrap() {
            assert_eq!(published.revision(), next);
            next = Revision(next.0 + 1);
        }
    }
    // And so has a process that opens the store anew.
    two.close().await;
    let reopened = super::open(&model, a.path());
    assert!(reopened.is_err(), "its watermark is locked by the process that was cut off");
    one.close().await;
    let reopened = super::open(&model, a.path()).unwrap();
    assert!(reopened.read(|reopened| three.read(|three| reopened.revision() == three.revision())));
}

#[tokio::test]
async fn a_process_whose_store_was_taken_over_confirms_nothing_and_says_so() {
    let (model, [a, b, _]) = (EtcdModel::new(3), dirs());
    let (one, _) = follow(&model, a.path());
    let (two, _) = follow(&model, b.path());
    one.take_over(0, Revision(0)).await.unwrap();
    let Standing::Leads(Some(hold)) = one.standing().borrow().clone() else { panic!("it leads") };
    let confirmed = hold.age();
    one.confirm().await.unwrap();
    assert!(hold.age() <= confirmed + PATIENCE);
    let number = next_holder(&two, 0).await;
    two.take_over(number, Revision(0)).await.unwrap();
    one.confirm().await.unwrap_err();
    let mut standing = one.standing();
    let ended = standing.wait_for(|standing| matches!(standing, Standing::Ended(_))).await.unwrap();
    let Standing::Ended(why) = &*ended else { panic!("it has ended") };
    assert!(why.contains("another process has taken over the log: process"), "{why}");
}

#[tokio::test]
async fn a_store_that_was_given_back_is_taken_over_without_waiting() {
    let (model, [a, b, _]) = (EtcdModel::new(4), dirs());
    let session = model.connect();
    let mut settings = config(session, a.path());
    if let godel_store::Engine::Etcd(etcd) = &mut settings.engine {
        etcd.address = "http://one:7700".to_owned();
    }
    let one = Store::follow(settings, clock(), CrashPoints::default()).unwrap();
    one.take_over(0, Revision(0)).await.unwrap();
    let (two, _) = follow(&model, b.path());
    let number = next_holder(&two, 0).await;
    let address = |store: &Store| match &*store.standing().borrow() {
        Standing::Follows(Some(holder)) => holder.address.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(address(&two), "http://one:7700");
    one.close().await;
    let number = next_holder(&two, number).await;
    assert_eq!(address(&two), "", "nobody holds it");
    two.take_over(number, Revision(0)).await.unwrap();
}

#[tokio::test]
async fn a_log_that_lacks_what_another_process_has_read_is_not_taken_over() {
    let (model, [a, b, _]) = (EtcdModel::new(5), dirs());
    let (one, _) = follow(&model, a.path());
    let (two, _) = follow(&model, b.path());
    one.take_over(0, Revision(0)).await.unwrap();
    let number = next_holder(&two, 0).await;
    let last = revision(&one);
    let seen = Revision(last.0 + 1);
    assert_eq!(two.take_over(number, seen).await.unwrap_err(), NotTakenOver::Behind { last, seen });
    // The store is still the other's.
    Dispatcher::elect(&one).await;
}
