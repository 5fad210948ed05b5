//! A state is not served from an etcd that has less than it has acknowledged.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use godel_crash::CrashPoints;
use godel_etcd::{
    Answer, CallError, Compare, Etcd, Header, Op, Reply, Request, Sizes, TxnRequest, model::EtcdModel,
};
use godel_store::{OpenError, RefusalReason, Role, Store};

use super::{config, open, open_session};
use crate::support::{Dice, Dispatcher, clock, partition, read_partition};

/// Commits some more, and ends.
async fn write(model: &EtcdModel, dir: &Path, generations: std::ops::Range<u64>) {
    let store = open(model, dir).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    for generation in generations {
        dispatcher.submit(&store, vec![partition("p", generation, 3_000)]).await.unwrap();
    }
    store.close().await;
}

/// All keys of the store but that of the fence, which is taken before the log is read.
fn keys_of_store(model: &EtcdModel) -> Vec<(Bytes, Bytes)> {
    model.dump().into_iter().filter(|(key, _)| !key.ends_with(b"fence")).collect()
}

/// It is refused with these words, again and again, and nothing in etcd is changed.
fn assert_refused(model: &EtcdModel, dir: &Path, words: &str) -> OpenError {
    let before = keys_of_store(model);
    open(model, dir).err().expect("it must not open");
    let error = open(model, dir).err().expect("it must not open");
    let text = error.to_string();
    assert!(text.contains(words) && text.contains("repair --truncate"), "{text}");
    assert!(keys_of_store(model) == before, "a refused start changed something: {text}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_was_restored_is_not_served() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    write(&model, dir.path(), 1..10).await;
    let (backup, revision) = (model.dump(), model.revisions().last);
    write(&model, dir.path(), 10..20).await;
    let last = model.revisions().last;
    // As `etcdctl snapshot restore` leaves it: another cluster, at the revision of the backup.
    model.restore(backup.clone(), revision);
    model.set_cluster(77);
    assert_refused(&model, dir.path(), "the etcd that answers is the cluster 4d");
    // As `--force-new-cluster` may leave it: the same cluster, and a lower revision.
    model.set_cluster(1);
    assert_refused(&model, dir.path(), "etcd is at revision");
    // Others have gone on to write.
    model.restore(backup, last + 100);
    let error = assert_refused(&model, dir.path(), "although revision");
    let OpenError::Damaged { loss, .. } = error else { panic!("{error:?}") };
    // Two leases and nineteen commits, of which one lease and nine commits are there.
    assert_eq!((loss.from, loss.n_commits()), (11, Some(11)));
    model.restore(Vec::new(), last + 200);
    assert_refused(&model, dir.path(), "etcd holds no store");
}

/// An etcd in which the one member that says its size has just come back, and knows little of what the others have agreed on.
#[derive(Debug)]
struct LaggingMember(Arc<dyn Etcd>);

impl Etcd for LaggingMember {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        Ok(match self.0.call(request)? {
            Reply::Sizes(sizes) => {
                Reply::Sizes(Sizes { header: Header { revision: 1, ..sizes.header }, ..sizes })
            }
            other => other,
        })
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        self.0.submit(request, delay, answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lags_behind_is_no_etcd_that_has_gone_back() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    write(&model, dir.path(), 1..10).await;
    let settings = config(Arc::new(LaggingMember(model.connect())), dir.path());
    let store = Store::open(settings, clock(), CrashPoints::default()).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(9));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_store_below_the_prefix_is_not_served_and_not_disturbed() {
    let (model, dir, other) = (EtcdModel::new(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&model, dir.path(), 1..5).await;
    model.restore(Vec::new(), model.revisions().last);
    let store = open(&model, other.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    assert_refused(&model, dir.path(), "is another one than that of the watermark");
    dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_machine_takes_what_it_finds() {
    let (model, dir, other) = (EtcdModel::new(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&model, dir.path(), 1..10).await;
    let store = open(&model, other.path()).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(9));
    assert!(store.opened().unproven.is_some(), "there was no watermark");
    store.close().await;
    write(&model, other.path(), 10..20).await;
    // The first one knows less than there is.
    let store = open(&model, dir.path()).unwrap();
    assert_eq!((read_partition(&store, "p"), store.opened().unproven.clone()), (Some(19), None));
}

/// Changes keys behind the back of the store.
fn change(model: &EtcdModel, op: Op) {
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    let compares = match &op {
        Op::Put(key, _) | Op::Delete(key) | Op::DeleteRange(key, _) => vec![Compare::Present(key.clone())],
    };
    assert!(etcd.txn(TxnRequest { compares, ops: vec![op], reads: Vec::new() }).unwrap().succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_who_deletes_keys_of_a_running_store_ends_it() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    let store = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
    let last = model.dump().into_iter().map(|(key, _)| key).rfind(is_of_log).unwrap();
    change(&model, Op::Delete(last));
    let refusal = dispatcher.submit(&store, vec![partition("p", 2, 100)]).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Closed, "it does not go on behind a hole");
    drop(store);
    assert_refused(&model, dir.path(), "although revision");
}

fn is_of_log(key: &Bytes) -> bool {
    String::from_utf8_lossy(key).contains("/log/")
}

/// Opens the store of damaged keys: it serves all that was acknowledged, or says what is lost.
fn judge(model: &EtcdModel, dir: &Path, n_commits: u64) -> Result<bool, String> {
    let before = keys_of_store(model);
    match open(model, dir) {
        Ok(store) => {
            let revision = store.read(|state| state.revision().0);
            let found = read_partition(&store, "p");
            if (revision, found) == (n_commits + 1, Some(n_commits)) {
                Ok(true)
            } else {
                Err(format!("it serves revision {revision} with {found:?}"))
            }
        }
        Err(OpenError::Damaged { what, loss }) => {
            if keys_of_store(model) != before {
                return Err(format!("a refused start changed something ({what})"));
            }
            match loss.n_commits() {
                Some(n) if loss.from + n == n_commits + 2 => Ok(false),
                _ => Err(format!("not all that is missing was said: {loss} ({what})")),
            }
        }
        Err(error) => Err(format!("{error:?}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_keys_are_mended_or_said() {
    const N_COMMITS: u64 = 60;
    let (mut wrong, mut n_served, mut n_refused) = (Vec::new(), 0, 0);
    for seed in 0..150 {
        let (model, dir) = (EtcdModel::new(seed), tempfile::tempdir().unwrap());
        let (store, session) = open_session(&model, dir.path());
        let dispatcher = Dispatcher::elect(&store).await;
        for generation in 1..=N_COMMITS {
            let txn = dispatcher.txn(vec![partition("p", generation, 3_000)]);
            store.submit(txn, Role::Leased).await.unwrap();
        }
        store.close().await;
        // Nothing of it is under way any more.
        session.cut();
        let mut dice = Dice(seed);
        let entries = keys_of_store(&model);
        let (key, value) = entries[dice.index(entries.len())].clone();
        let name = String::from_utf8_lossy(&key).into_owned();
        let what = match dice.roll(3) {
            0 => {
                change(&model, Op::Delete(key));
                "deleted"
            }
            1 if !value.is_empty() => {
                let mut rotten = value.to_vec();
                let at = dice.index(rotten.len());
                rotten[at] ^= 1 << dice.roll(8);
                change(&model, Op::Put(key, rotten.into()));
                "rotten"
            }
            _ => {
                let len = dice.index(value.len());
                change(&model, Op::Put(key, value.slice(..len)));
                "short"
            }
        };
        match judge(&model, dir.path(), N_COMMITS) {
            Ok(true) => n_served += 1,
            Ok(false) => n_refused += 1,
            Err(error) => wrong.push(format!("seed {seed}, {name} {what}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{} damages:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_served > 5 && n_refused > 20, "{n_served} served, {n_refused} refused");
}
