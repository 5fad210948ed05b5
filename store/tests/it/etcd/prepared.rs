//! The group that is validated while the one ahead of it is being written.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{
    Answer, CallError, Etcd, PendingReply, Reply, Request,
    model::{EtcdModel, Session},
};
use godel_store::{Pending, RefusalReason, Role, Store, StoreConfig, WallClock};
use godel_wire::TXN_BYTES_MAX;

use super::{config, open};
use crate::support::{Dispatcher, clock, partition, read_partition, until};

/// Of a transaction beside which no other fits into a group.
const LARGE_BYTES: usize = TXN_BYTES_MAX - 200;

/// An etcd that makes the transactions of the writer when it is told to.
struct HoldingEtcd {
    session: Arc<Session>,
    holds: AtomicBool,
    held: Mutex<Vec<(Request, Answer)>>,
}

impl HoldingEtcd {
    fn new(model: &EtcdModel) -> Arc<Self> {
        Arc::new(Self { session: model.connect(), holds: AtomicBool::new(false), held: Mutex::default() })
    }

    fn hold(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    fn n_held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Makes what is held; what comes next is held again if `holds`.
    fn release(&self, holds: bool) {
        self.holds.store(holds, Ordering::Relaxed);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        for (request, answer) in held {
            answer(self.session.call(request));
        }
    }
}

impl fmt::Debug for HoldingEtcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingEtcd").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Etcd for HoldingEtcd {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.session.call(request)
    }

    fn start(&self, request: Request) -> PendingReply {
        let (answer, pending) = PendingReply::new();
        if self.holds.load(Ordering::Relaxed) {
            self.held.lock().unwrap().push((request, answer));
        } else {
            answer(self.session.call(request));
        }
        pending
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        self.session.submit(request, delay, answer);
    }
}

/// A clock that counts how often it is read: once for each transaction that is validated.
fn counting_clock() -> (WallClock, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, time) = (Arc::clone(&count), clock());
    let read = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        time()
    };
    (Arc::new(read), count)
}

/// A store whose transaction `second` is being written while `third` is validated.
struct Prepared {
    store: Store,
    etcd: Arc<HoldingEtcd>,
    second: Pending,
    third: Pending,
    fatal: Arc<Mutex<Option<String>>>,
}

impl Prepared {
    async fn reach(model: &EtcdModel, dir: &Path) -> Self {
        let (etcd, (clock, n_validated)) = (HoldingEtcd::new(model), counting_clock());
        let fatal = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&fatal);
        let settings = StoreConfig {
            generation_bytes_min: 64 << 20,
            on_fatal: Arc::new(move |text: &str| *heard.lock().unwrap() = Some(text.to_owned())),
            ..config(Arc::clone(&etcd) as Arc<dyn Etcd>, dir)
        };
        let store = Store::open(settings, clock, CrashPoints::default()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        etcd.hold();
        let put = |generation, bytes| {
            let txn = dispatcher.txn(vec![partition("p", generation, bytes)]);
            store.enqueue(txn, Role::Leased)
        };
        let before = n_validated.load(Ordering::Relaxed);
        let first = put(1, 100).await.unwrap();
        until("the first is being written", || etcd.n_held() == 1).await;
        let second = put(2, LARGE_BYTES).await.unwrap();
        let third = put(3, LARGE_BYTES).await.unwrap();
        etcd.release(true);
        first.await.unwrap();
        until("the third is validated", || n_validated.load(Ordering::Relaxed) == before + 3).await;
        assert_eq!((read_partition(&store, "p"), etcd.n_held()), (Some(1), 1), "neither was written");
        Self { store, etcd, second, third, fatal }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_validated_while_another_is_written_and_is_seen_behind_it() {
    let (model, dir) = (EtcdModel::new(11), tempfile::tempdir().unwrap());
    let Prepared { store, etcd, second, third, .. } = Prepared::reach(&model, dir.path()).await;
    etcd.release(false);
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    assert_eq!(third.revision, Revision(second.revision.0 + 1));
    assert_eq!(read_partition(&store, "p"), Some(3));
    let before = store.read(|state| state.clone());
    store.close().await;
    let store = open(&model, dir.path()).unwrap();
    assert!(store.read(|state| *state == before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_group_falls_with_the_one_ahead_of_it() {
    let model = EtcdModel::new(12);
    let (first_dir, second_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Prepared { store, etcd, second, third, fatal } = Prepared::reach(&model, first_dir.path()).await;
    let successor = open(&model, second_dir.path()).unwrap();
    etcd.release(false);
    for pending in [second, third] {
        assert_eq!(pending.await.unwrap_err().reason, RefusalReason::Closed);
    }
    until("it is said why", || fatal.lock().unwrap().is_some()).await;
    let text = fatal.lock().unwrap().clone().unwrap();
    assert!(text.contains("taken over"), "{text}");
    assert_eq!((read_partition(&store, "p"), read_partition(&successor, "p")), (Some(1), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_closes_writes_what_is_prepared() {
    let (model, dir) = (EtcdModel::new(13), tempfile::tempdir().unwrap());
    let Prepared { store, etcd, second, third, .. } = Prepared::reach(&model, dir.path()).await;
    let closing = tokio::spawn(async move { store.close().await });
    etcd.release(false);
    second.await.unwrap();
    third.await.unwrap();
    closing.await.unwrap();
    assert_eq!(read_partition(&open(&model, dir.path()).unwrap(), "p"), Some(3));
}
