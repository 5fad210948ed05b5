//! Migration of a store to another place, and back.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{Answer, CallError, Etcd, Op, Reply, Request, model::EtcdModel};
use godel_store::{
    Engine, OpenError, SledConfig, State, Store, StoreConfig,
    admin::{AdminError, UnreadablePolicy, check, export, remove, restore, truncate},
    log::{LogError, etcd::EtcdConfig, memory::MemoryDisk},
    migration::migrate,
};

use crate::support::{Dispatcher, Place, clock, open, partition, read_all, small, unit};

fn sled(dir: &Path) -> Engine {
    Engine::Sled(SledConfig::new(dir))
}

fn memory() -> Engine {
    Engine::Memory(MemoryDisk::default())
}

fn etcd(session: Arc<dyn Etcd>, prefix: &str, dir: &Path) -> Engine {
    Engine::Etcd(EtcdConfig { prefix: prefix.to_owned(), ..EtcdConfig::new(session, dir) })
}

/// An etcd that refuses every call that is waited for once it has answered so many.
#[derive(Debug)]
struct LimitedEtcd {
    etcd: Arc<dyn Etcd>,
    n_left: AtomicU64,
}

impl Etcd for LimitedEtcd {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        let left = self.n_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| CallError::Refused("the test has cut this off".to_owned()))?;
        self.etcd.call(request)
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        self.etcd.submit(request, delay, answer);
    }
}

/// An etcd that refuses to change anything beside the calls that are waited for, as it may refuse them all.
#[derive(Debug)]
struct RefusingEtcd {
    etcd: Arc<dyn Etcd>,
    error: CallError,
}

impl Etcd for RefusingEtcd {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.etcd.call(request)
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        if !matches!(request, Request::Txn(_)) {
            return self.etcd.submit(request, delay, answer);
        }
        let error = self.error.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            answer(Err(error));
        });
    }
}

/// Opens a store that keeps the history that it has.
fn open_at(engine: &Engine) -> Result<Store, OpenError> {
    let config = StoreConfig { history_bytes_min: u64::MAX, ..small(engine.clone()) };
    Store::open(config, clock(), CrashPoints::default())
}

fn move_store(from: &Engine, to: &Engine) -> Result<godel_store::migration::MigrationReport, AdminError> {
    migrate(from, to, &CrashPoints::default())
}

/// A store with several generations, and what is in it. The oldest of them are gone.
async fn fill(engine: &Engine) -> (State, Revision) {
    let store = open(small(engine.clone()));
    let dispatcher = Dispatcher::elect(&store).await;
    let first = store.status().last_unit_id + 1;
    for id in first..first + 80 {
        let ops = vec![unit(id), partition(&format!("p{}", id % 9), id, 3_000)];
        dispatcher.submit(&store, ops).await.unwrap();
    }
    store.close().await;
    let store = open_at(engine).unwrap();
    let (state, floor) = (store.read(State::clone), store.status().floor);
    assert!(floor > Revision(1));
    store.close().await;
    (state, floor)
}

#[tokio::test]
async fn a_store_moves_with_its_history_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let model = EtcdModel::new(7);
    let path = |name: &str| dir.path().join(name);
    let real = Place::etcd();
    let places: Vec<_> = [
        sled(&path("a")),
        etcd(model.connect(), "one/", &path("one")),
        memory(),
        etcd(model.connect(), "two/", &path("two")),
        etcd(model.connect(), "three/", &path("three")),
    ]
    .into_iter()
    .chain(real.as_ref().map(Place::engine))
    .chain([sled(&path("b")), sled(&path("c"))])
    .collect();
    let (mut state, mut floor) = fill(&places[0]).await;
    let mut commits = None;
    for pair in places.windows(2) {
        let report = move_store(&pair[0], &pair[1]).unwrap();
        assert_eq!((report.store_id, report.revision), (state.store_id().0, state.revision().0));
        assert_eq!(report.floor, floor.0);
        assert!(report.generations >= 2 && report.bytes > 60_000, "{report:?}");
        let refused = open_at(&pair[0]).err();
        assert!(
            matches!(&refused, Some(OpenError::Moved { to, .. }) if *to == pair[1].to_string()),
            "{refused:?}"
        );
        let store = open_at(&pair[1]).unwrap();
        assert!(store.read(|found| *found == state), "{}", pair[1]);
        assert_eq!(store.status().floor, floor);
        let (history, end) = read_all(&store, floor, state.revision()).await;
        assert_eq!(end, None);
        assert_eq!(commits.get_or_insert(history.len()), &history.len());
        store.close().await;
        let again = move_store(&pair[0], &pair[1]).unwrap_err();
        assert!(matches!(again, AdminError::Open(OpenError::Moved { .. })), "{again}");
    }
    // It goes on where it is now.
    (state, floor) = fill(&places[places.len() - 1]).await;
    let report = move_store(&places[places.len() - 1], &sled(&dir.path().join("d"))).unwrap();
    assert_eq!((report.revision, report.floor), (state.revision().0, floor.0));
}

#[tokio::test]
async fn a_new_store_and_a_restored_one_move() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (new, file) = (sled(&path("new")), path("export"));
    open_at(&new).unwrap().close().await;
    let report = move_store(&new, &sled(&path("new-2"))).unwrap();
    assert_eq!((report.revision, report.generations), (0, 1));
    fill(&sled(&path("a"))).await;
    export(&path("a"), &file).unwrap();
    let restored = restore(&file, &path("b"), &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    let report = move_store(&sled(&path("b")), &sled(&path("c"))).unwrap();
    assert_eq!((report.revision, report.store_id), (restored.revision, restored.store_id));
    open_at(&sled(&path("c"))).unwrap().close().await;
}

#[tokio::test]
async fn a_source_can_be_read_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (state, _) = fill(&sled(&a)).await;
    move_store(&sled(&a), &sled(&b)).unwrap();
    let report = check(&a, &|_| Ok(())).unwrap();
    assert!(report.is_ok() && report.revision == state.revision().0, "{report}");
    assert!(report.to_string().contains("note: it was moved to sled:"), "{report}");
    assert_eq!(export(&a, &dir.path().join("e")).unwrap().revision, state.revision().0);
    let key = godel_store::Key::Name("p1".to_owned());
    for refused in [
        truncate(&a).map(drop).unwrap_err(),
        remove(&a, godel_proto::v1::Kind::Partition, &key, 7).map(drop).unwrap_err(),
        move_store(&sled(&a), &sled(&dir.path().join("c"))).map(drop).unwrap_err(),
    ] {
        assert!(matches!(refused, AdminError::Open(OpenError::Moved { .. })), "{refused}");
    }
    assert!(!dir.path().join("c").join("watermark").exists());
}

#[tokio::test]
async fn what_cannot_be_moved_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (sled(&dir.path().join("a")), sled(&dir.path().join("b")));
    assert!(matches!(move_store(&a, &b), Err(AdminError::NoStoreAt { .. })));
    fill(&a).await;
    assert!(matches!(move_store(&a, &a), Err(AdminError::NotEmpty { .. })));
    fill(&b).await;
    assert!(matches!(move_store(&a, &b), Err(AdminError::NotEmpty { .. })));
    let served = open_at(&a).unwrap();
    let locked = move_store(&a, &sled(&dir.path().join("c"))).unwrap_err();
    assert!(matches!(locked, AdminError::Open(OpenError::Locked { .. })), "{locked}");
    served.close().await;
    open_at(&a).unwrap().close().await;
}

/// Not a test of its own: what the child process runs.
#[test]
fn child_migration() {
    let Some(dir) = std::env::var_os("GODEL_STORE_CHILD_MIGRATION") else { return };
    let crash = std::env::var_os("GODEL_STORE_CHILD_CRASH").unwrap_or_default().into_string().unwrap();
    let dir = Path::new(&dir);
    let crash = CrashPoints::parse(&crash).unwrap();
    migrate(&sled(&dir.join("a")), &sled(&dir.join("b")), &crash).unwrap();
}

#[tokio::test]
async fn of_a_migration_that_was_killed_one_place_is_served() {
    for point in ["store.migration-begun", "store.migration-copied", "store.migration-moved"] {
        for is_ended in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (a, b) = (sled(&dir.path().join("a")), sled(&dir.path().join("b")));
            let (state, _) = fill(&a).await;
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["migration::child_migration", "--exact", "--nocapture", "--test-threads=1"])
                .env("GODEL_STORE_CHILD_MIGRATION", dir.path())
                .env("GODEL_STORE_CHILD_CRASH", point)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(!status.success(), "{point}");
            if is_ended {
                // Again, without a word about what was left.
                let report = move_store(&a, &b).unwrap();
                assert_eq!(report.revision, state.revision().0, "{point}");
                assert!(matches!(open_at(&a), Err(OpenError::Moved { .. })), "{point}");
                let store = open_at(&b).unwrap();
                assert!(store.read(|found| *found == state), "{point}");
                store.close().await;
                continue;
            }
            let is_moved = point == "store.migration-moved";
            let (served, other) = if is_moved { (&b, &a) } else { (&a, &b) };
            let refused = open_at(other).err();
            match refused {
                Some(OpenError::Moved { .. }) => assert!(is_moved, "{point}"),
                Some(OpenError::Unfinished { .. }) => assert!(!is_moved, "{point}"),
                other => panic!("{point}: {other:?}"),
            }
            let store = open_at(served).unwrap();
            assert!(store.read(|found| *found == state), "{point}");
            store.close().await;
        }
    }
}

#[tokio::test]
async fn a_migration_to_an_etcd_and_back_can_be_cut_off_at_any_call() {
    let (dir, model) = (tempfile::tempdir().unwrap(), EtcdModel::new(7));
    let (first, last) = (memory(), memory());
    let (state, _) = fill(&first).await;
    let whole = etcd(model.connect(), "godel/", dir.path());
    for (from, to) in [(&first, &whole), (&whole, &last)] {
        let (mut n_calls, mut n_cut) = (0, 0);
        loop {
            let limited = Arc::new(LimitedEtcd { etcd: model.connect(), n_left: AtomicU64::new(n_calls) });
            let limited = etcd(limited, "godel/", dir.path());
            let of = |engine: &Engine| {
                if matches!(engine, Engine::Etcd(_)) { limited.clone() } else { engine.clone() }
            };
            match move_store(&of(from), &of(to)) {
                Ok(report) => {
                    assert_eq!(report.revision, state.revision().0);
                    break;
                }
                Err(error) => assert!(format!("{error:?}").contains("cut this off"), "{error:?}"),
            }
            // The source is served until it says where the store has gone.
            let served = match open_at(from) {
                Ok(store) => Some(store),
                Err(error) => {
                    assert!(matches!(error, OpenError::Moved { .. }), "{n_calls}: {error:?}");
                    open_at(to).ok()
                }
            };
            if let Some(store) = served {
                assert!(store.read(|found| *found == state), "{n_calls}");
                store.close().await;
            }
            n_cut += 1;
            n_calls += 1 + n_calls / 8;
        }
        assert!(n_cut > 10, "{n_cut}");
        assert!(matches!(open_at(from), Err(OpenError::Moved { .. })));
        let store = open_at(to).unwrap();
        assert!(store.read(|found| *found == state));
        store.close().await;
    }
}

#[tokio::test]
async fn a_migration_that_etcd_refuses_says_so_at_once() {
    let (dir, model, source) = (tempfile::tempdir().unwrap(), EtcdModel::new(7), memory());
    let (state, _) = fill(&source).await;
    for (error, words) in [
        (CallError::Refused("etcdserver: permission denied".to_owned()), "permission denied"),
        (CallError::NoSpace, "etcdctl defrag"),
    ] {
        let refusing = Arc::new(RefusingEtcd { etcd: model.connect(), error });
        let refused = move_store(&source, &etcd(refusing, "godel/", dir.path())).unwrap_err();
        // It is neither tried again nor waited for.
        assert!(matches!(refused, AdminError::Open(OpenError::Log(LogError::Engine(_)))), "{refused:?}");
        assert!(format!("{refused:?}").contains(words), "{refused:?}");
    }
    let report = move_store(&source, &etcd(model.connect(), "godel/", dir.path())).unwrap();
    assert_eq!(report.revision, state.revision().0);
}

/// An etcd in which another process takes the store over before a mark of a migration is left there.
struct OvertakenEtcd {
    etcd: Arc<dyn Etcd>,
    take_over: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for OvertakenEtcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OvertakenEtcd").field("etcd", &self.etcd).finish_non_exhaustive()
    }
}

impl Etcd for OvertakenEtcd {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        let is_mark = |op: &Op| matches!(op, Op::Put(key, _) if key.ends_with(b"migration"));
        if matches!(&request, Request::Txn(txn) if txn.ops.iter().any(is_mark))
            && let Some(take_over) = self.take_over.lock().unwrap().take()
        {
            take_over();
        }
        self.etcd.call(request)
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        self.etcd.submit(request, delay, answer);
    }
}

#[tokio::test]
async fn a_source_that_another_process_has_taken_over_does_not_move() {
    let (dir, model) = (tempfile::tempdir().unwrap(), EtcdModel::new(7));
    let (rival, first) = (etcd(model.connect(), "godel/", &dir.path().join("rival")), memory());
    fill(&first).await;
    move_store(&first, &rival).unwrap();
    let served = Arc::new(Mutex::new(None));
    let (store, opened) = (Arc::clone(&served), rival.clone());
    let take_over = Box::new(move || *store.lock().unwrap() = Some(open_at(&opened).unwrap()));
    let overtaken = OvertakenEtcd { etcd: model.connect(), take_over: Mutex::new(Some(take_over)) };
    let source = etcd(Arc::new(overtaken), "godel/", &dir.path().join("source"));
    let target = memory();
    let refused = move_store(&source, &target).unwrap_err();
    assert!(
        matches!(refused, AdminError::Open(OpenError::Log(LogError::Fenced { .. }))),
        "what the other process commits would be lost: {refused:?}"
    );
    let store: Store = served.lock().unwrap().take().unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 10)]).await.unwrap();
    let state = store.read(State::clone);
    store.close().await;
    assert!(matches!(open_at(&target), Err(OpenError::Unfinished { .. })));
    // Run again it ends.
    move_store(&source, &target).unwrap();
    assert!(open_at(&target).unwrap().read(|found| *found == state));
}
