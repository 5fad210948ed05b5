//! A process that writes and says what was acknowledged, for its parent to stop, kill or cut the power of.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use godel_crash::CrashPoints;
use godel_etcd::{Client, ClientConfig};
use godel_store::{Engine, SledConfig, Store, StoreConfig, SyncMode, log::etcd::EtcdConfig};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Dispatcher, ETCD_TIMEOUT, PATIENCE, clock, partition, read_partition};

const TASKS: u64 = 8;
/// Each task writes its records in turn, so that the store stays small while its log grows.
const RECORDS: u64 = 8;

/// How the child writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// Armed in the child.
    pub(crate) crash: String,
    /// Leaves the syncs out.
    pub(crate) is_unsafe: bool,
    /// One transaction after the other, each small: every group is one chunk.
    pub(crate) is_lone: bool,
}

/// Where a child has its store.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Of the state.
    pub(crate) dir: PathBuf,
    /// The etcd that the log is in, if it is in one.
    pub(crate) etcd: Option<EtcdHome>,
}

/// Where a child has its log.
#[derive(Clone, Debug)]
pub(crate) struct EtcdHome {
    pub(crate) endpoints: String,
    pub(crate) prefix: String,
}

impl Home {
    /// A store in files.
    pub(crate) fn sled(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), etcd: None }
    }

    fn engine(&self, is_unsafe: bool) -> Engine {
        let Some(EtcdHome { endpoints, prefix }) = &self.etcd else {
            let mut sled = SledConfig::new(&self.dir);
            sled.sync = if is_unsafe { SyncMode::Unsafe } else { SyncMode::Full };
            return Engine::Sled(sled);
        };
        let endpoints = endpoints.split(',').map(str::to_owned).collect();
        let client = ClientConfig { endpoints, timeout: ETCD_TIMEOUT, tls: None, user: None };
        let etcd = Arc::new(Client::start(&client).unwrap());
        Engine::Etcd(EtcdConfig { prefix: prefix.clone(), ..EtcdConfig::new(etcd, &self.dir) })
    }

    /// Small generations, small pieces: about a third of the time a generation is being changed, and two or three are
    /// history.
    pub(crate) fn config(&self, is_unsafe: bool) -> StoreConfig {
        StoreConfig {
            generation_bytes_min: 512 << 10,
            history_bytes_min: 1 << 20,
            snapshot_piece_bytes: 16 << 10,
            reserve_bytes: 2 << 20,
            ..StoreConfig::new(self.engine(is_unsafe))
        }
    }

    /// The store as a process finds it that comes after the child.
    pub(crate) fn open(&self) -> Store {
        Store::open(self.config(false), clock(), CrashPoints::default()).unwrap()
    }
}

/// A running child.
pub(crate) struct Writer {
    child: Child,
    /// Per task the highest generation acknowledged.
    acks: Arc<Mutex<Acks>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

/// What was acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// By task: the highest generation, each lower one having been acknowledged before.
    pub(crate) generations: [u64; TASKS as usize],
    /// Highest revision.
    pub(crate) revision: u64,
    pub(crate) count: u64,
}

/// Not a test of its own: what the child process runs.
#[test]
fn child_writer() {
    let Some(dir) = std::env::var_os("GODEL_STORE_CHILD_DIR") else { return };
    let text = |name| std::env::var_os(name).unwrap_or_default().into_string().unwrap();
    let crash = CrashPoints::parse(&text("GODEL_STORE_CHILD_CRASH")).unwrap();
    let is_unsafe = text("GODEL_STORE_CHILD_UNSAFE") == "true";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let is_lone = text("GODEL_STORE_CHILD_LONE") == "true";
    let endpoints = text("GODEL_STORE_CHILD_ETCD");
    let etcd = EtcdHome { endpoints, prefix: text("GODEL_STORE_CHILD_PREFIX") };
    let home = Home { dir: dir.into(), etcd: (!etcd.endpoints.is_empty()).then_some(etcd) };
    runtime.block_on(write(&home, crash, is_unsafe, is_lone));
}

async fn write(home: &Home, crash: CrashPoints, is_unsafe: bool, is_lone: bool) {
    let store = Store::open(home.config(is_unsafe), clock(), crash).unwrap();
    let dispatcher = Arc::new(Dispatcher::elect(&store).await);
    // From one chunk to several, so that groups merge both.
    let (n_tasks, bytes_max) = if is_lone { (1, 1_500) } else { (TASKS, 12_000) };
    let tasks: Vec<_> = (0..n_tasks)
        .map(|task| tokio::spawn(work(store.clone(), Arc::clone(&dispatcher), task, bytes_max)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn work(store: Store, dispatcher: Arc<Dispatcher>, task: u64, bytes_max: u64) {
    let name = |generation| format!("t{task}-{}", generation % RECORDS);
    let last = (0..RECORDS).filter_map(|record| read_partition(&store, &name(record))).max();
    let mut generation = last.map_or(1, |last| last + 1);
    loop {
        let bytes = 50 + usize::try_from((generation * 2_654_435_761 + task * 977) % bytes_max).unwrap();
        let ops = vec![partition(&name(generation), generation, bytes)];
        let committed = dispatcher.submit(&store, ops).await.unwrap();
        let line = format!("ack {task} {generation} {}\n", committed.revision);
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
        generation += 1;
    }
}

impl Writer {
    pub(crate) fn spawn(home: &Home, orders: &Orders) -> Self {
        let etcd = home.etcd.as_ref();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child::child_writer", "--exact", "--nocapture", "--test-threads=1"])
            .env("GODEL_STORE_CHILD_DIR", &home.dir)
            .env("GODEL_STORE_CHILD_ETCD", etcd.map_or("", |etcd| &etcd.endpoints))
            .env("GODEL_STORE_CHILD_PREFIX", etcd.map_or("", |etcd| &etcd.prefix))
            .env("GODEL_STORE_CHILD_CRASH", &orders.crash)
            .env("GODEL_STORE_CHILD_UNSAFE", orders.is_unsafe.to_string())
            .env("GODEL_STORE_CHILD_LONE", orders.is_lone.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let acks = Arc::new(Mutex::new(Acks::default()));
        let sink = Arc::clone(&acks);
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sink.lock().unwrap().take(&line);
            }
        });
        Self { child, acks, reader: Some(reader) }
    }

    pub(crate) fn acks(&self) -> Acks {
        self.acks.lock().unwrap().clone()
    }

    /// Waits until `count` more transactions were acknowledged.
    pub(crate) fn wait_for_more(&mut self, count: u64) {
        let (start, from) = (Instant::now(), self.acks().count);
        while self.acks().count < from + count {
            assert!(start.elapsed() < PATIENCE, "the child is stuck at {:?}", self.acks());
            assert!(self.child.try_wait().unwrap().is_none(), "the child has ended at {:?}", self.acks());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops every thread of it; returns what had been acknowledged before.
    pub(crate) fn stop(&self) -> Acks {
        let acks = self.acks();
        kill_process(self.pid(), Signal::STOP).unwrap();
        let start = Instant::now();
        while !self.is_stopped() {
            assert!(start.elapsed() < PATIENCE, "the child does not stop");
            std::thread::yield_now();
        }
        acks
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    }

    pub(crate) fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Kills it; returns everything that it acknowledged.
    pub(crate) fn kill(mut self) -> Acks {
        self.child.kill().unwrap();
        self.end()
    }

    /// Waits until it has died by itself; returns everything that it acknowledged.
    pub(crate) fn wait_for_death(mut self) -> Acks {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "the child lives on");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end()
    }

    fn end(&mut self) -> Acks {
        let status = self.child.wait().unwrap();
        assert!(!status.success(), "the child ended in order");
        self.reader.take().unwrap().join().unwrap();
        self.acks()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Acks {
    fn take(&mut self, line: &str) {
        // The test harness may have written something before the first one.
        let Some(at) = line.find("ack ") else { return };
        let fields: Vec<u64> = line[at + 4..].split(' ').filter_map(|field| field.parse().ok()).collect();
        let [task, generation, revision] = fields[..] else { return };
        let slot = &mut self.generations[usize::try_from(task).unwrap()];
        assert!(*slot == 0 || *slot + 1 == generation, "task {task}: {generation} after {slot}");
        *slot = generation;
        self.revision = self.revision.max(revision);
        self.count += 1;
    }

    /// What `store` lacks of what was acknowledged; records are checked against their generations.
    pub(crate) fn missing_in(&self, store: &Store) -> Vec<String> {
        let mut missing = Vec::new();
        for (task, generation) in (0u64..).zip(self.generations) {
            for acknowledged in generation.saturating_sub(RECORDS - 1).max(1)..=generation {
                let name = format!("t{task}-{}", acknowledged % RECORDS);
                let found = read_partition(store, &name);
                if found.is_none_or(|found| found < acknowledged) {
                    missing.push(format!("{name}: acknowledged {acknowledged}, found {found:?}"));
                }
            }
        }
        let revision = store.read(|state| state.revision().0);
        if revision < self.revision {
            missing.push(format!("acknowledged revision {}, found {revision}", self.revision));
        }
        missing
    }
}
