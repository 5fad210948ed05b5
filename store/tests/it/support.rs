//! Stores of all engines, and transactions.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{
    Etcd, RangeRequest, prefix_end,
    process::{EtcdProcesses, ProcessConfig},
};
use godel_proto::{raw, v1};
use godel_store::{
    Committed, Engine, Key, OpenError, Published, Role, SledConfig, State, Store, StoreConfig, TxnRefusal,
    WallClock, WatchEnd, WatchRefused, Watcher,
    log::{etcd::EtcdConfig, memory::MemoryDisk},
};
use godel_testkit::skip;

use crate::disk::scratch;

/// Longest that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where a test keeps its store.
pub(crate) enum Place {
    Memory(MemoryDisk),
    Sled(tempfile::TempDir),
    Etcd(EtcdPlace),
}

/// An etcd of a test's own, and the directory of the state beside it.
pub(crate) struct EtcdPlace {
    pub(crate) processes: EtcdProcesses,
    pub(crate) etcd: Arc<dyn Etcd>,
    pub(crate) dir: tempfile::TempDir,
}

/// How long a call of etcd may take.
pub(crate) const ETCD_TIMEOUT: Duration = Duration::from_secs(2);

impl EtcdPlace {
    /// `None`: this machine has no etcd, and the test said so.
    pub(crate) fn start(change: impl FnOnce(&mut ProcessConfig)) -> Option<Self> {
        let dir = scratch();
        let mut config = ProcessConfig::new(dir.path().join("etcd"));
        // Elections that are done before a test has begun.
        config.args.extend(["--heartbeat-interval=20", "--election-timeout=200"].map(str::to_owned));
        change(&mut config);
        match EtcdProcesses::start(config) {
            Ok(processes) => Some(Self { etcd: processes.client(ETCD_TIMEOUT), processes, dir }),
            Err(why) => {
                skip(why);
                None
            }
        }
    }

    /// The snapshot of the newest generation is complete.
    pub(crate) fn is_complete(&self) -> bool {
        let (from, to) = ("godel/".into(), prefix_end(b"godel/"));
        let page = self.etcd.range(RangeRequest { from, to, limit: 100_000, keys_only: true }).unwrap();
        let keys = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned());
        let keys: Vec<String> = keys.collect();
        let newest = keys.iter().rfind(|key| key.ends_with("/begin")).unwrap();
        keys.contains(&newest.replace("/begin", "/manifest"))
    }

    pub(crate) fn config(&self) -> EtcdConfig {
        EtcdConfig::new(Arc::clone(&self.etcd), self.dir.path().join("state"))
    }
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryDisk::default())
    }

    pub(crate) fn sled() -> Self {
        Self::Sled(tempfile::tempdir().unwrap())
    }

    /// `None`: this machine has no etcd, and the test said so.
    pub(crate) fn etcd() -> Option<Self> {
        EtcdPlace::start(|_| {}).map(Self::Etcd)
    }

    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Memory(disk) => Engine::Memory(disk.clone()),
            Self::Sled(dir) => Engine::Sled(SledConfig::new(dir.path().join("store"))),
            Self::Etcd(place) => Engine::Etcd(place.config()),
        }
    }

    /// Small generations, so that tests see many; no reserve.
    pub(crate) fn config(&self) -> StoreConfig {
        small(self.engine())
    }

    pub(crate) fn open(&self) -> Store {
        open(self.config())
    }

    pub(crate) fn try_open(&self) -> Result<Store, OpenError> {
        Store::open(self.config(), clock(), CrashPoints::default())
    }
}

/// Log bytes of a generation in [`small`] stores.
pub(crate) const SMALL_GENERATION_BYTES: u64 = 64 << 10;

pub(crate) fn small(engine: Engine) -> StoreConfig {
    StoreConfig {
        generation_bytes_min: SMALL_GENERATION_BYTES,
        snapshot_piece_bytes: 2 << 10,
        reserve_bytes: 0,
        history_bytes_min: 0,
        on_fatal: Arc::new(|_| {}),
        ..StoreConfig::new(engine)
    }
}

pub(crate) fn open(config: StoreConfig) -> Store {
    Store::open(config, clock(), CrashPoints::default()).unwrap()
}

pub(crate) fn open_dir(dir: &Path) -> Result<Store, OpenError> {
    Store::open(small(Engine::Sled(SledConfig::new(dir))), clock(), CrashPoints::default())
}

pub(crate) fn clock() -> WallClock {
    Arc::new(|| 1_700_000_000_000)
}

/// The dispatcher's hand: holds its lease and counts its sequence.
pub(crate) struct Dispatcher {
    pub(crate) epoch: u64,
    sequence: AtomicU64,
}

impl Dispatcher {
    /// Takes the lease under the next epoch.
    pub(crate) async fn elect(store: &Store) -> Self {
        let last =
            |state: &State| state.lease("dispatcher").map_or(0, |lease| lease.epoch).max(state.epoch_floor());
        let epoch = store.read(last) + 1;
        store.submit(internal(vec![lease("dispatcher", epoch)]), Role::State).await.unwrap();
        Self::of_epoch(epoch)
    }

    /// Whoever holds the lease under this epoch.
    pub(crate) fn of_epoch(epoch: u64) -> Self {
        Self { epoch, sequence: AtomicU64::new(1) }
    }

    pub(crate) fn txn(&self, ops: Vec<Bytes>) -> raw::TxnRequest {
        leased(self.epoch, self.sequence.fetch_add(1, Ordering::Relaxed), ops)
    }

    pub(crate) async fn submit(&self, store: &Store, ops: Vec<Bytes>) -> Result<Committed, TxnRefusal> {
        store.submit(self.txn(ops), Role::Leased).await
    }
}

pub(crate) fn internal(ops: Vec<Bytes>) -> raw::TxnRequest {
    raw::TxnRequest { ops, ..raw::TxnRequest::default() }
}

pub(crate) fn leased(epoch: u64, sequence: u64, ops: Vec<Bytes>) -> raw::TxnRequest {
    let writer = Some(v1::Writer { lease: "dispatcher".into(), epoch, sequence });
    raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() }
}

pub(crate) fn lease(lease: &str, epoch: u64) -> Bytes {
    raw::encode_op(v1::op::Op::PutLease(v1::LeaseRecord {
        lease: lease.into(),
        holder: "test".into(),
        epoch,
        ..Default::default()
    }))
}

/// A record of any size: its content follows from `generation`.
pub(crate) fn partition(name: &str, generation: u64, bytes: usize) -> Bytes {
    raw::encode_op(v1::op::Op::PutPartition(v1::Partition {
        name: name.into(),
        generation,
        schedulers: vec![content(generation, bytes)],
        ..Default::default()
    }))
}

pub(crate) fn queue(name: &str, weight: u32) -> Bytes {
    let meta = Some(v1::ObjectMeta { name: name.into(), ..Default::default() });
    raw::encode_op(v1::op::Op::PutQueue(v1::Queue { meta, weight: Some(weight), ..Default::default() }))
}

pub(crate) fn priority_class(name: &str, value: i32) -> Bytes {
    let class = v1::PriorityClass { name: name.into(), value, ..Default::default() };
    raw::encode_op(v1::op::Op::PutPriorityClass(class))
}

pub(crate) fn delete(kind: v1::Kind, name: &str) -> Bytes {
    let key = Some(v1::Key { id: 0, name: name.into() });
    raw::encode_op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key }))
}

/// Text that does not compress or repeat across seeds.
pub(crate) fn content(seed: u64, bytes: usize) -> String {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            char::from(b'a' + u8::try_from(x % 26).unwrap())
        })
        .collect()
}

/// The record of [`partition`], checked against its generation.
pub(crate) fn read_partition(store: &Store, name: &str) -> Option<u64> {
    use prost::Message as _;
    let key = Key::Name(name.into());
    let value = store.read(|state| Some(state.record(v1::Kind::Partition, &key)?.value.clone()))?;
    let record = v1::Partition::decode(value).unwrap();
    assert_eq!(record.schedulers, [content(record.generation, record.schedulers[0].len())]);
    Some(record.generation)
}

pub(crate) fn unit(id: u64) -> Bytes {
    let spec = Some(v1::UnitSpec { min_member: Some(1), ..Default::default() });
    raw::encode_op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id: id, spec, ..Default::default() }))
}

pub(crate) fn node(id: u32) -> Bytes {
    raw::encode_op(v1::op::Op::PutNodeSpec(v1::NodeSpec { node_id: id, ..Default::default() }))
}

/// The next transactions up to revision `to`; panics if one is missing, repeated or late.
pub(crate) async fn follow(watcher: &mut Watcher, from: u64, to: u64) -> Vec<Arc<Published>> {
    let mut seen: Vec<Arc<Published>> = Vec::new();
    while from + (seen.len() as u64) <= to {
        let batch =
            tokio::time::timeout(PATIENCE, watcher.next()).await.expect("a transaction is late").unwrap();
        for published in batch {
            assert_eq!(published.revision(), Revision(from + seen.len() as u64));
            seen.push(published);
        }
    }
    seen
}

/// The commits from `from` to `to` as a watcher gets them, and why there are not more.
pub(crate) async fn read_all(
    store: &Store,
    from: Revision,
    to: Revision,
) -> (Vec<Arc<Published>>, Option<WatchEnd>) {
    let mut seen: Vec<Arc<Published>> = Vec::new();
    let mut watcher = match store.watch(from) {
        Ok(watcher) => watcher,
        Err(WatchRefused::Compacted(compacted)) => return (seen, Some(compacted.into())),
        Err(refused) => panic!("{refused}"),
    };
    while from.0 + (seen.len() as u64) <= to.0 {
        match watcher.next().await {
            Ok(batch) => {
                for published in batch {
                    assert_eq!(published.revision(), Revision(from.0 + seen.len() as u64));
                    seen.push(published);
                }
            }
            Err(end) => return (seen, Some(end)),
        }
    }
    (seen, None)
}

/// What keeps a watcher from following everything from the floor of the history to its end, if anything. The
/// floor may rise meanwhile, when the store goes on with a snapshot.
pub(crate) fn holes_in_history(store: &Store) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    loop {
        let floor = store.status().floor;
        let hole = runtime.block_on(hole_behind(store, floor));
        if hole.is_none() || store.status().floor == floor {
            return hole.into_iter().collect();
        }
    }
}

async fn hole_behind(store: &Store, floor: Revision) -> Option<String> {
    let revision = store.status().revision;
    let mut next = floor;
    let ends = |next: Revision, why: String| Some(format!("history from {floor} ends before {next}: {why}"));
    let mut watcher = match store.watch(floor) {
        Ok(watcher) => watcher,
        Err(compacted) => return ends(next, compacted.to_string()),
    };
    while next <= revision {
        let batch = match watcher.next().await {
            Ok(batch) => batch,
            Err(end) => return ends(next, end.to_string()),
        };
        for published in batch {
            if published.revision() != next {
                return ends(next, format!("revision {} stands there", published.revision()));
            }
            next = Revision(next.0 + 1);
        }
    }
    None
}

/// Waits until `done`.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Chance from one seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `below`; 0 if that is 0.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// A place among so many; 0 if there are none.
    pub(crate) fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.roll(below as u64)).unwrap()
    }
}
