//! Random lives of a store: commits, snapshots and drops of history, and between them backups, restores, exports and
//! migrations. After each step the store is what plain maps say, at each of its revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::PathBuf,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::model::EtcdModel;
use godel_proto::v1;
use godel_store::{
    Engine, Key, OpenError, SledConfig, State, Store, StoreConfig,
    admin::{self, ExportReport, UnreadablePolicy, export, export_etcd},
    backup::{restore, verify},
    log::{etcd::EtcdConfig, memory::MemoryDisk},
    migration::migrate,
};
use prost::Message as _;

use crate::{
    backup::back_up,
    support::{Dice, Dispatcher, delete, open, partition, read_all, small, unit},
};

/// In the normal run; more with `GODEL_TEST_LONG=1`.
const N_SEEDS: u64 = 5;
const N_SEEDS_LONG: u64 = 300;
/// Of one life.
const N_STEPS: u64 = 30;

/// What a state has, as far as a life writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    /// Generations by name.
    partitions: BTreeMap<String, u64>,
    units: BTreeSet<u64>,
}

impl Content {
    fn of(state: &State) -> Self {
        let generation = |record: &godel_store::Record| {
            v1::Partition::decode(record.value.clone()).expect("this test wrote it").generation
        };
        let partitions = state.records(v1::Kind::Partition, None);
        let units = state.records(v1::Kind::Unit, None).filter_map(|(key, _)| match key {
            Key::Id(id) => Some(*id),
            Key::Name(_) => None,
        });
        Self {
            partitions: partitions.map(|(key, record)| (key.to_string(), generation(record))).collect(),
            units: units.collect(),
        }
    }
}

/// Counts of the situations that were met, over all seeds.
#[derive(Debug, Default)]
struct Reached {
    n_full: u64,
    n_increments: u64,
    n_restores: u64,
    n_exports: u64,
    n_moves: u64,
    n_dropped: u64,
}

struct Life<'a> {
    dice: Dice,
    dir: tempfile::TempDir,
    etcd: EtcdModel,
    n_places: u64,
    history_bytes_min: u64,
    engine: Engine,
    /// `None`: it is closed.
    store: Option<(Store, Dispatcher)>,
    content: Content,
    /// The contents of each store at each of its revisions.
    expected: BTreeMap<(u64, u64), Content>,
    generation: u64,
    reached: &'a mut Reached,
}

impl<'a> Life<'a> {
    async fn begin(seed: u64, reached: &'a mut Reached) -> Self {
        let mut dice = Dice(seed);
        let history_bytes_min = [0, 40_000, u64::MAX][dice.index(3)];
        let mut life = Self {
            dice,
            dir: tempfile::tempdir().unwrap(),
            etcd: EtcdModel::new(seed),
            n_places: 0,
            history_bytes_min,
            engine: Engine::Memory(MemoryDisk::default()),
            store: None,
            content: Content::default(),
            expected: BTreeMap::new(),
            generation: 0,
            reached,
        };
        life.engine = life.new_engine();
        life.open().await;
        life
    }

    fn new_path(&mut self) -> PathBuf {
        self.n_places += 1;
        self.dir.path().join(format!("place-{}", self.n_places))
    }

    /// An engine that holds nothing; seldom one in files, which is slow.
    fn new_engine(&mut self) -> Engine {
        let path = self.new_path();
        match self.dice.roll(5) {
            0 => Engine::Sled(SledConfig::new(path)),
            1 | 2 => Engine::Memory(MemoryDisk::default()),
            _ => {
                let prefix = format!("place-{}/", self.n_places);
                Engine::Etcd(EtcdConfig { prefix, ..EtcdConfig::new(self.etcd.connect(), path) })
            }
        }
    }

    fn config(&self, engine: &Engine) -> StoreConfig {
        let history_bytes_min = self.history_bytes_min;
        StoreConfig { generation_bytes_min: 16_000, history_bytes_min, ..small(engine.clone()) }
    }

    /// Opens a store; but for one in memory, its watermark proves that nothing of it is missing.
    fn open_at(&self, engine: &Engine) -> Store {
        let store = open(self.config(engine));
        if !matches!(engine, Engine::Memory(_)) {
            assert_eq!(store.opened().unproven, None, "{engine}");
        }
        store
    }

    fn store(&self) -> &Store {
        &self.store.as_ref().expect("it is open").0
    }

    /// Notes what the store must have at its present revision.
    fn note(&mut self) {
        let status = self.store().status();
        self.expected.insert((status.store_id, status.revision.0), self.content.clone());
    }

    async fn open(&mut self) {
        let store = self.open_at(&self.engine);
        let status = store.status();
        self.expected.insert((status.store_id, status.revision.0), self.content.clone());
        let dispatcher = Dispatcher::elect(&store).await;
        self.store = Some((store, dispatcher));
        self.note();
    }

    async fn close(&mut self) {
        let (store, _) = self.store.take().expect("it is open");
        if self.dice.roll(2) == 0 { store.close().await } else { drop(store) }
    }

    async fn commit(&mut self) {
        for _ in 0..1 + self.dice.roll(14) {
            let name = format!("p{}", self.dice.roll(6));
            let op = match self.dice.roll(7) {
                0 => {
                    let id = self.store().status().last_unit_id + 1;
                    self.content.units.insert(id);
                    unit(id)
                }
                1 if self.content.partitions.remove(&name).is_some() => delete(v1::Kind::Partition, &name),
                _ => {
                    self.generation += 1;
                    self.content.partitions.insert(name.clone(), self.generation);
                    partition(&name, self.generation, 10 + self.dice.index(4_000))
                }
            };
            let (store, dispatcher) = self.store.as_ref().expect("it is open");
            dispatcher.submit(store, vec![op]).await.unwrap();
            self.note();
        }
    }

    fn back_up(&mut self) {
        let is_full = self.dice.roll(4) == 0;
        let manifest = back_up(self.store(), &self.dir.path().join("backups"), is_full);
        assert_eq!(manifest.last_revision, self.store().status().revision.0);
        if manifest.is_full() { self.reached.n_full += 1 } else { self.reached.n_increments += 1 }
    }

    /// Restores some revision of some store that was backed up, and sometimes goes on with that.
    async fn restore(&mut self) {
        let backups = self.dir.path().join("backups");
        if !backups.exists() {
            return;
        }
        let verified = verify(&backups, &|_| Ok(())).unwrap();
        assert!(verified.is_ok(), "{verified}");
        let range = &verified.states[self.dice.index(verified.states.len())];
        let at = range.from + self.dice.roll(range.revision - range.from + 1);
        let at = (self.dice.roll(4) > 0).then_some(Revision(at));
        let engine = self.new_engine();
        let report = restore(&backups, at, &engine, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
        assert_eq!(report.restored, at.map_or(report.restored, |at| at.0));
        self.reached.n_restores += 1;
        let expected = self.expected[&(report.from_store_id, report.restored)].clone();
        let store = self.open_at(&engine);
        assert_eq!(store.read(Content::of), expected, "{report:?}");
        assert_eq!(store.status().store_id, report.store_id);
        assert!(store.status().revision.0 > report.restored);
        store.close().await;
        if self.dice.roll(2) == 0 {
            self.close().await;
            (self.engine, self.content) = (engine, expected);
            self.open().await;
        }
    }

    /// Exports the store, beside its process if it is in an etcd, and restores that.
    async fn export(&mut self) {
        let (file, to) = (self.new_path(), self.new_path());
        let report = match self.engine.clone() {
            Engine::Memory(_) => return,
            Engine::Etcd(config) => export_etcd(&config, &file).unwrap(),
            Engine::Sled(config) => {
                self.close().await;
                let report = export(&config.dir, &file).unwrap();
                self.open().await;
                report
            }
        };
        let ExportReport { store_id, revision, .. } = report;
        admin::restore(&file, &to, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
        let restored = self.open_at(&Engine::Sled(SledConfig::new(&to)));
        assert_eq!(restored.read(Content::of), self.expected[&(store_id, revision)]);
        self.reached.n_exports += 1;
    }

    async fn migrate(&mut self) {
        let (state, floor) = (self.store().read(State::clone), self.store().status().floor);
        self.close().await;
        let to = self.new_engine();
        let report = migrate(&self.engine, &to, &CrashPoints::default()).unwrap();
        assert_eq!((report.store_id, report.revision), (state.store_id().0, state.revision().0));
        // What was being dropped when its process ended has gone.
        assert!(report.floor >= floor.0, "{report:?} begins before {floor}");
        let refused = Store::open(self.config(&self.engine), crate::support::clock(), CrashPoints::default());
        assert!(matches!(refused, Err(OpenError::Moved { .. })));
        let store = self.open_at(&to);
        assert!(store.read(|found| *found == state), "{to}");
        store.close().await;
        self.engine = to;
        self.reached.n_moves += 1;
        self.open().await;
    }

    /// The store has what it must have, and its history is whole.
    async fn check(&mut self) {
        let (store, content) = (self.store(), &self.content);
        assert_eq!(store.read(Content::of), *content);
        loop {
            let (floor, last) = (store.status().floor, store.status().revision);
            let (_, end) =
                if floor <= last { read_all(store, floor, last).await } else { (Vec::new(), None) };
            // A snapshot may be completed meanwhile, and the history before it go.
            if store.status().floor == floor {
                assert_eq!(end, None, "the history from {floor} to {last}");
                self.reached.n_dropped += u64::from(floor > Revision(1));
                return;
            }
        }
    }

    async fn step(&mut self) -> &'static str {
        let step = match self.dice.roll(10) {
            0..=3 => {
                self.commit().await;
                "commits"
            }
            4 => {
                self.close().await;
                self.open().await;
                "another process"
            }
            5 | 6 => {
                self.back_up();
                "a backup"
            }
            7 => {
                self.restore().await;
                "a restore"
            }
            8 => {
                self.export().await;
                "an export"
            }
            _ => {
                self.migrate().await;
                "a migration"
            }
        };
        self.check().await;
        step
    }
}

#[test]
fn a_store_is_the_same_however_it_is_kept_and_moved() {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
    let is_long = std::env::var_os("GODEL_TEST_LONG").is_some_and(|value| value == "1");
    let seeds = match number("GODEL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { N_SEEDS_LONG } else { N_SEEDS },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut reached = Reached::default();
    for seed in seeds {
        // Shown when this fails.
        let _ = writeln!(std::io::stderr(), "GODEL_TEST_SEED={seed}");
        runtime.block_on(async {
            let mut life = Life::begin(seed, &mut reached).await;
            for n in 0..N_STEPS {
                let engine = life.engine.to_string();
                let step = life.step().await;
                let _ = writeln!(std::io::stderr(), "{n}: {step}, {engine}");
            }
        });
    }
    let _ = writeln!(std::io::stderr(), "{reached:?}");
    if number("GODEL_TEST_SEED").is_none() {
        let Reached { n_full, n_increments, n_restores, n_exports, n_moves, n_dropped } = reached;
        assert!(n_full > 5 && n_increments > 5 && n_dropped > 5, "{reached:?}");
        assert!(n_restores > 5 && n_exports > 5 && n_moves > 5, "{reached:?}");
    }
}
