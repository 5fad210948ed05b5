//! Random lives of a store in an etcd that reorders, answers late or never, loses its quorum, raises its alarm, and applies
//! transactions of a process when another one has taken over.
//!
//! Nothing that was acknowledged is lost, nothing that was refused appears, each successor finds a whole log, and a process
//! that was taken over changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::model::{EtcdModel, Faults, Session};
use godel_proto::v1;
use godel_store::{
    Engine, Key, Pending, RefusalReason, Role, State, Store, StoreConfig, TxnRefusal, log::etcd::EtcdConfig,
};
use godel_wire::TXN_BYTES_MAX;
use prost::Message as _;

use crate::support::{Dice, Dispatcher, clock, internal, lease, partition, read_all, read_partition, small};

/// In the normal run; more with `GODEL_TEST_LONG=1`.
const N_SEEDS: u64 = 10;
const N_SEEDS_LONG: u64 = 300;
/// Processes that follow each other.
const N_PROCESSES: u64 = 6;
/// Records that are overwritten in turn.
const N_RECORDS: u64 = 5;

/// What is known of one record: its generations were submitted in order.
#[derive(Debug, Default)]
struct Submitted {
    acknowledged: u64,
    /// Those of which nothing is known, beyond the acknowledged one.
    unknown: BTreeSet<u64>,
}

/// What all processes together were told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    records: BTreeMap<String, Submitted>,
    /// By revision: the record and its generation.
    pub(super) acknowledged: BTreeMap<u64, String>,
    next_generation: u64,
    /// Transactions that were refused.
    n_refused: u64,
}

/// Counts of the situations that were met, over all seeds.
#[derive(Debug, Default)]
struct Reached {
    n_acknowledged: u64,
    n_unknown: u64,
    n_refused: u64,
    n_torn: u64,
    n_late_changes: u64,
    n_snapshots: u64,
    n_dropped: u64,
    n_zombies: u64,
    n_crashes: u64,
}

pub(super) fn settings(session: Arc<Session>, dir: &Path) -> StoreConfig {
    StoreConfig {
        generation_bytes_min: 40_000,
        snapshot_piece_bytes: 8 << 10,
        ..small(Engine::Etcd(EtcdConfig::new(session, dir)))
    }
}

/// Opens the store, again and again while etcd does not say what became of the opening.
fn open(model: &EtcdModel, dir: &Path) -> Result<(Store, Arc<Session>), String> {
    for _ in 0..500 {
        let session = model.connect();
        match Store::open(settings(Arc::clone(&session), dir), clock(), CrashPoints::default()) {
            Ok(store) => return Ok((store, session)),
            Err(error) if error.is_away() => session.cut(),
            Err(error) => return Err(format!("it does not open: {error:?}")),
        }
    }
    Err("it never opens".to_owned())
}

impl Ledger {
    /// Submits some transactions and notes what comes of them.
    pub(super) async fn work(&mut self, store: &Store, dice: &mut Dice, n: u64) -> Result<(), String> {
        let dispatcher = match self.elect(store).await {
            Ok(dispatcher) => dispatcher,
            Err(refusal) if may_come(&refusal) => return Ok(()),
            Err(refusal) => return Err(format!("no lease: {refusal:?}")),
        };
        let mut waiting: Vec<(String, u64, Pending)> = Vec::new();
        for _ in 0..n {
            self.next_generation += 1;
            let (name, generation) = (format!("p{}", dice.roll(N_RECORDS)), self.next_generation);
            // From a part of a chunk to a group of several transactions.
            let bytes = match dice.roll(20) {
                // As large as a transaction may be: three values, in two transactions of etcd.
                0 => TXN_BYTES_MAX - 200,
                1 => 300_000,
                2..=6 => 9_000,
                _ => 500,
            };
            let txn = dispatcher.txn(vec![partition(&name, generation, bytes)]);
            let submitted = self.records.entry(name.clone()).or_default();
            match store.enqueue(txn, Role::Leased).await {
                Ok(pending) => {
                    submitted.unknown.insert(generation);
                    waiting.push((name, generation, pending));
                }
                Err(refusal) if may_come(&refusal) => {}
                Err(refusal) => return Err(format!("{refusal:?}")),
            }
            if dice.roll(3) > 0 {
                for (name, generation, pending) in waiting.drain(..) {
                    self.note(name, generation, pending.await)?;
                }
            }
        }
        for (name, generation, pending) in waiting {
            self.note(name, generation, pending.await)?;
        }
        Ok(())
    }

    async fn elect(&mut self, store: &Store) -> Result<Dispatcher, TxnRefusal> {
        let last = |state: &State| state.lease("dispatcher").map_or(0, |lease| lease.epoch);
        let epoch = store.read(last) + 1;
        store.submit(internal(vec![lease("dispatcher", epoch)]), Role::State).await?;
        Ok(Dispatcher::of_epoch(epoch))
    }

    fn note(
        &mut self,
        name: String,
        generation: u64,
        answer: Result<godel_store::Committed, TxnRefusal>,
    ) -> Result<(), String> {
        let submitted = self.records.entry(name.clone()).or_default();
        match answer {
            Ok(committed) => {
                submitted.unknown.retain(|unknown| *unknown > generation);
                submitted.acknowledged = generation;
                let what = format!("{name} {generation}");
                if let Some(other) = self.acknowledged.insert(committed.revision.0, what) {
                    return Err(format!(
                        "revision {} was given twice, first for {other}",
                        committed.revision
                    ));
                }
            }
            // It may be there or not.
            Err(refusal) if refusal.reason == RefusalReason::Closed => {}
            Err(refusal) if may_come(&refusal) => {
                self.n_refused += 1;
                submitted.unknown.remove(&generation);
            }
            Err(refusal) => return Err(format!("{name} {generation}: {refusal:?}")),
        }
        Ok(())
    }

    /// Compares what a store has with what was said.
    pub(super) async fn check(&mut self, store: &Store) -> Result<(), String> {
        for (name, submitted) in &mut self.records {
            let key = Key::Name(name.clone());
            let value = store.read(|state| Some(state.record(v1::Kind::Partition, &key)?.value.clone()));
            let found = value.map_or(0, |value| v1::Partition::decode(value).unwrap().generation);
            if found != submitted.acknowledged && !submitted.unknown.contains(&found) {
                return Err(format!("{name}: found {found}, {submitted:?}"));
            }
            // From now on it is there, and what was lost never comes.
            submitted.acknowledged = found;
            submitted.unknown.clear();
        }
        let (floor, last) = (store.status().floor, store.status().revision);
        if let Some((&acknowledged, what)) = self.acknowledged.last_key_value()
            && acknowledged > last.0
        {
            return Err(format!("revision {acknowledged} ({what}) is lost: the last one is {last}"));
        }
        if last < floor {
            return Ok(());
        }
        let (seen, end) = read_all(store, floor, last).await;
        // A snapshot may be completed meanwhile, and the history before it go.
        if let Some(end) = end
            && store.status().floor == floor
        {
            return Err(format!("history from {floor} ends: {end}"));
        }
        for published in seen {
            let Some(what) = self.acknowledged.get(&published.revision().0) else { continue };
            let is_there = published.changes.iter().any(|change| match change {
                godel_wire::ops::ParsedOp::Put { key, value, .. } => {
                    let generation = v1::Partition::decode(value.clone()).map_or(0, |found| found.generation);
                    format!("{key} {generation}") == *what
                }
                _ => false,
            });
            if !is_there {
                return Err(format!("revision {} is not {what}", published.revision()));
            }
        }
        Ok(())
    }
}

/// Refusals that the faults bring about.
fn may_come(refusal: &TxnRefusal) -> bool {
    matches!(refusal.reason, RefusalReason::Closed | RefusalReason::StoreFull)
}

/// A process that goes on without knowing that another one has taken over.
struct Zombie {
    store: Store,
    session: Arc<Session>,
}

/// A process that was taken over changes nothing, whatever it tries.
async fn outlive(model: &EtcdModel, old: Zombie, ledger: &mut Ledger, dice: &mut Dice) -> Result<(), String> {
    let calm = Faults::default();
    model.set_faults(calm);
    model.settle();
    let Zombie { store: old, session } = old;
    let before = session.n_changes();
    if ledger.elect(&old).await.is_ok() {
        return Err("a process that was taken over has committed something".to_owned());
    }
    ledger.work(&old, dice, 3).await?;
    drop(old);
    model.settle();
    if session.n_changes() != before {
        return Err("a process that was taken over has changed something".to_owned());
    }
    Ok(())
}

async fn cut_off(session: &Session) {
    while !session.is_cut() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn live(seed: u64, reached: &mut Reached) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let model = EtcdModel::new(seed);
    let (mut dice, mut ledger) = (Dice(seed ^ 0x5eed), Ledger::default());
    let mut zombie: Option<Zombie> = None;
    for process in 0..N_PROCESSES {
        model.set_faults(Faults::many());
        let (store, session) = open(&model, dir_of(dir.path(), process).as_path())?;
        reached.n_torn += u64::from(store.opened().torn.is_some());
        // What is under way still arrives, but reads are answered.
        model.set_faults(Faults::default());
        ledger.check(&store).await.map_err(|error| format!("process {process}: {error}"))?;
        model.set_faults(Faults::many());
        if let Some(old) = zombie.take() {
            reached.n_zombies += 1;
            outlive(&model, old, &mut ledger, &mut dice).await?;
            model.set_faults(Faults::many());
        }
        let n = 10 + dice.roll(50);
        if dice.roll(3) == 0 {
            session.cut_after(dice.roll(150));
        }
        tokio::select! {
            worked = ledger.work(&store, &mut dice, n) => worked?,
            // What waits then is not known to anybody.
            () = cut_off(&session) => {}
        }
        let status = store.status();
        reached.n_snapshots += u64::from(status.snapshot_bytes > 0);
        reached.n_dropped += u64::from(status.floor > Revision(1));
        match dice.roll(4) {
            _ if session.is_cut() => reached.n_crashes += 1,
            0 => store.close().await,
            1 => {
                zombie = Some(Zombie { store, session });
            }
            _ => {
                // Its transactions are still under way when the next one comes.
                reached.n_crashes += 1;
                session.cut();
                drop(store);
            }
        }
    }
    drop(zombie);
    reached.n_late_changes += model.happened().late_changes;
    model.set_faults(Faults::default());
    let (store, _) = open(&model, &dir_of(dir.path(), N_PROCESSES))?;
    ledger.check(&store).await.map_err(|error| format!("at the end: {error}"))?;
    store.close().await;
    reached.n_acknowledged += ledger.acknowledged.len() as u64;
    reached.n_refused += ledger.n_refused;
    reached.n_unknown += ledger.records.values().map(|record| record.unknown.len() as u64).sum::<u64>();
    Ok(())
}

/// Two machines in turn: each has a watermark, one of them an old one. A zombie keeps its own.
fn dir_of(dir: &Path, process: u64) -> std::path::PathBuf {
    dir.join(format!("machine-{}", process % 3))
}

#[test]
fn nothing_is_lost_or_made_up_whatever_etcd_does() {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
    let is_long = std::env::var_os("GODEL_TEST_LONG").is_some_and(|value| value == "1");
    let seeds = match number("GODEL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { N_SEEDS_LONG } else { N_SEEDS },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut wrong, mut reached) = (String::new(), Reached::default());
    for seed in seeds {
        if let Err(error) = runtime.block_on(live(seed, &mut reached)) {
            writeln!(wrong, "GODEL_TEST_SEED={seed}: {error}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let _ = writeln!(std::io::stderr(), "{reached:?}");
    if number("GODEL_TEST_SEED").is_none() {
        let Reached { n_acknowledged, n_late_changes, n_snapshots, n_dropped, n_zombies, .. } = reached;
        assert!(n_acknowledged > 1_000 && n_late_changes > 50, "{reached:?}");
        assert!(n_snapshots > 5 && n_dropped > 5 && n_zombies > 5, "{reached:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_takes_several_transactions_counts_only_whole() {
    let (mut n_torn, mut n_whole) = (0, 0);
    // It takes two.
    for n_txns in 0..3 {
        let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
        let (store, session) = open(&model, dir.path()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
        session.cut_after(n_txns);
        let large = dispatcher.txn(vec![partition("p", 2, TXN_BYTES_MAX - 200)]);
        let pending = store.enqueue(large, Role::Leased).await.unwrap();
        cut_off(&session).await;
        drop(store);
        let is_acknowledged = pending.await.is_ok();
        let (store, _) = open(&model, dir.path()).unwrap();
        let found = read_partition(&store, "p");
        assert!(found == Some(2) || (found == Some(1) && !is_acknowledged), "{n_txns}: {found:?}");
        n_torn += u64::from(store.opened().torn.is_some());
        n_whole += u64::from(found == Some(2));
        let dispatcher = Dispatcher::elect(&store).await;
        dispatcher.submit(&store, vec![partition("p", 3, TXN_BYTES_MAX - 200)]).await.unwrap();
        drop(store);
        let (store, _) = open(&model, dir.path()).unwrap();
        assert_eq!((read_partition(&store, "p"), store.opened().torn.clone()), (Some(3), None));
    }
    assert!(n_torn > 0 && n_whole > 0, "{n_torn} torn, {n_whole} whole");
}

/// Each transaction is applied once more, long after it was answered.
const TWICE: Faults = Faults { unanswered: 0, lost: 0, late: 0, twice: 1_000, outage: 0, alarm: 0, held: 0 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_comes_again_after_its_generation_was_deleted_changes_nothing() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    model.set_faults(TWICE);
    model.hold_late();
    let (store, session) = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let n_of_first = || {
        let keys = model.dump().into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned());
        keys.filter(|key| key.starts_with("godel/00000000/0000000000000000/")).count()
    };
    let mut generation = 0;
    while n_of_first() > 0 {
        generation += 1;
        dispatcher.submit(&store, vec![partition("p", generation, 9_000)]).await.unwrap();
    }
    store.close().await;
    session.cut();
    let before = (model.dump(), model.happened().late);
    model.settle();
    assert!(model.happened().late > before.1 + 20, "{:?}", model.happened());
    assert!(model.dump() == before.0, "something that came again has changed something");
    let (store, _) = open(&model, dir.path()).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(generation));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_of_a_torn_group_that_comes_again_spares_the_group_in_its_place() {
    // What comes again comes in another order for each seed.
    for seed in 0..12 {
        let (model, dir) = (EtcdModel::new(seed), tempfile::tempdir().unwrap());
        let (store, session) = open(&model, dir.path()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        // Of two.
        session.cut_after(1);
        let large = dispatcher.txn(vec![partition("p", 1, TXN_BYTES_MAX - 200)]);
        drop(store.enqueue(large, Role::Leased).await.unwrap());
        cut_off(&session).await;
        drop(store);
        model.set_faults(TWICE);
        model.hold_late();
        let (store, session) = open(&model, dir.path()).unwrap();
        assert!(store.opened().torn.is_some(), "{seed}");
        let dispatcher = Dispatcher::elect(&store).await;
        dispatcher.submit(&store, vec![partition("p", 2, 100)]).await.unwrap();
        drop(store);
        session.cut();
        model.set_faults(Faults::default());
        model.settle();
        let (store, _) = open(&model, dir.path()).unwrap();
        assert_eq!(read_partition(&store, "p"), Some(2), "{seed}");
    }
}
