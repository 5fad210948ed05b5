//! Random lives of three processes on one etcd: one writes and the others follow, while etcd reorders, answers late or never, and loses its quorum.
//! The one that writes is cut off, closes in order, or goes on while another one takes over.
//!
//! Nothing that was acknowledged is lost, and what each follower shows is what the one that writes had at that revision.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::model::{EtcdModel, Faults, Session};
use godel_store::{NotTakenOver, Standing, State, Store};

use super::faults::{Ledger, settings};
use crate::support::{Dice, clock};

/// In the normal run; more with `GODEL_TEST_LONG=1`.
const N_SEEDS: u64 = 8;
const N_SEEDS_LONG: u64 = 300;
/// How often the store is taken over in one life.
const N_TERMS: usize = 6;
/// For what comes within milliseconds: no test depends on it.
const PATIENCE: Duration = Duration::from_mins(1);

struct Process {
    store: Store,
    session: Arc<Session>,
}

impl Process {
    /// Follows the store, again and again while etcd does not say what is in it.
    fn follow(model: &EtcdModel, dir: &Path) -> Result<Self, String> {
        for _ in 0..500 {
            let session = model.connect();
            match Store::follow(settings(Arc::clone(&session), dir), clock(), CrashPoints::default()) {
                Ok(store) => return Ok(Self { store, session }),
                Err(error) if error.is_away() => session.cut(),
                Err(error) => return Err(format!("it does not follow: {error:?}")),
            }
        }
        Err("it never follows".to_owned())
    }

    /// The number under which somebody holds the store, as far as this process knows.
    fn holder(&self) -> Result<u64, String> {
        match &*self.store.standing().borrow() {
            Standing::Follows(holder) => Ok(holder.as_ref().map_or(0, |holder| holder.number)),
            Standing::Leads(_) => Err("it leads".to_owned()),
            Standing::Ended(why) => Err(format!("it has ended: {why}")),
        }
    }

    /// Takes the store over, whoever holds it.
    async fn take_over(&self, seen: Revision) -> Result<(), String> {
        for _ in 0..10_000 {
            match self.store.take_over(self.holder()?, seen).await {
                Ok(()) => return Ok(()),
                // Its look at the holder is some milliseconds old.
                Err(NotTakenOver::Late | NotTakenOver::NoAnswer(_)) => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) => return Err(format!("it does not take over: {error:?}")),
            }
        }
        Err("it never takes over".to_owned())
    }

    /// Whether it has come too late to read what it had not read: it begins anew then.
    fn is_too_late(&self) -> bool {
        let standing = self.store.standing();
        matches!(&*standing.borrow(), Standing::Ended(why) if why.contains("was dropped before it was read"))
    }

    fn revision(&self) -> Revision {
        self.store.read(State::revision)
    }
}

/// Whether two processes have the same state.
async fn compare(leader: &Process, follower: &Process) -> Result<(), String> {
    if !follower.store.wait_for(leader.revision(), PATIENCE).await {
        let standing = follower.store.standing().borrow().clone();
        return Err(format!("it is at {} of {}: {standing:?}", follower.revision(), leader.revision()));
    }
    let is_same = leader.store.read(|leader| follower.store.read(|follower| leader == follower));
    if is_same { Ok(()) } else { Err("a follower has another state".to_owned()) }
}

async fn live(seed: u64) -> Result<u64, String> {
    let dir = tempfile::tempdir().unwrap();
    let model = EtcdModel::new(seed);
    let (mut dice, mut ledger) = (Dice(seed ^ 0x0707), Ledger::default());
    let dirs = [0, 1, 2].map(|machine| dir.path().join(format!("machine-{machine}")));
    let mut processes = Vec::new();
    model.set_faults(Faults::many());
    for dir in &dirs {
        processes.push(Process::follow(&model, dir)?);
    }
    let mut leads = 0;
    processes[leads].take_over(Revision(0)).await?;
    for _ in 0..N_TERMS {
        let n = 10 + dice.roll(40);
        ledger.work(&processes[leads].store, &mut dice, n).await?;
        let next = (leads + 1 + usize::from(dice.roll(2) == 1)) % processes.len();
        for (at, process) in processes.iter_mut().enumerate().filter(|(at, _)| *at != leads) {
            if process.is_too_late() {
                let old = process.store.clone();
                old.close().await;
                *process = Process::follow(&model, &dirs[at])?;
            }
        }
        let seen = Revision(ledger.acknowledged.last_key_value().map_or(0, |(revision, _)| *revision));
        match dice.roll(3) {
            0 => {
                // It goes on until it notices.
                let n = 5 + dice.roll(10);
                let worked = ledger.work(&processes[leads].store, &mut dice, n);
                let (worked, taken) = tokio::join!(worked, processes[next].take_over(seen));
                worked?;
                taken?;
            }
            1 => {
                processes[leads].session.cut();
                processes[next].take_over(seen).await?;
            }
            _ => {
                let old = processes[leads].store.clone();
                old.close().await;
                processes[next].take_over(seen).await?;
            }
        }
        model.set_faults(Faults::default());
        ledger.check(&processes[next].store).await?;
        model.settle();
        for (at, process) in processes.iter().enumerate().filter(|(at, _)| ![leads, next].contains(at)) {
            compare(&processes[next], process).await.map_err(|error| format!("process {at}: {error}"))?;
        }
        // What it was before, it is no more: it begins anew.
        let Process { store, session } = processes.remove(leads);
        session.cut();
        drop(store);
        processes.insert(leads, Process::follow(&model, &dirs[leads])?);
        model.set_faults(Faults::many());
        leads = next;
    }
    Ok(ledger.acknowledged.len() as u64)
}

#[test]
fn nothing_is_lost_while_processes_take_over_from_one_another() {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
    let is_long = std::env::var_os("GODEL_TEST_LONG").is_some_and(|value| value == "1");
    let seeds = match number("GODEL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { N_SEEDS_LONG } else { N_SEEDS },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut wrong, mut n_acknowledged) = (String::new(), 0);
    for seed in seeds {
        match runtime.block_on(live(seed)) {
            Ok(n) => n_acknowledged += n,
            Err(error) => writeln!(wrong, "GODEL_TEST_SEED={seed}: {error}").unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(number("GODEL_TEST_SEED").is_some() || n_acknowledged > 500, "{n_acknowledged}");
}
