//! Random damage to one file of a store, after a kill and after an orderly stop: afterwards everything that was
//! acknowledged is there, or start and check say what is not.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_proto::kinds::WHOLE;
use godel_store::{
    Engine, Loss, OpenError, Published, SledConfig, State, Store, StoreConfig, WatchEnd,
    admin::{AdminError, CheckReport, check, truncate},
};

use crate::{
    disk::scratch,
    support::{Dice, Dispatcher, PATIENCE, clock, partition, read_all, small},
};

const N_COMMITS: u64 = 2_000;
/// In the normal run; all of them with `GODEL_TEST_LONG=1`.
const N_DAMAGES: u64 = 60;
const N_DAMAGES_LONG: u64 = 500;

/// A store of which everything is known, as a kill and as an orderly stop left it.
struct Original {
    name: &'static str,
    killed: PathBuf,
    closed: PathBuf,
    state: State,
    /// By revision, from 1 on.
    commits: Vec<Arc<Published>>,
    floor: u64,
}

fn config(dir: &Path, generation_bytes: u64) -> StoreConfig {
    StoreConfig {
        generation_bytes_min: generation_bytes,
        history_bytes_min: u64::MAX,
        ring_bytes: 1,
        ..small(Engine::Sled(SledConfig::new(dir)))
    }
}

impl Original {
    /// Makes a store of `N_COMMITS` commits in generations of about so many bytes.
    async fn make(at: &Path, name: &'static str, generation_bytes: u64) -> Self {
        let (live, killed, closed) =
            (at.join(name), at.join(format!("{name}-killed")), at.join(format!("{name}-closed")));
        let store = Store::open(config(&live, generation_bytes), clock(), CrashPoints::default()).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        let mut pending = Vec::new();
        for generation in 2..=N_COMMITS {
            let bytes = 60 + usize::try_from(generation % 300).unwrap();
            let ops = vec![partition(&format!("p{}", generation % 7), generation, bytes)];
            pending.push(store.enqueue(dispatcher.txn(ops), godel_store::Role::Leased).await.unwrap());
            // Groups of several sizes.
            if generation % 13 == 0 || generation == N_COMMITS {
                for pending in pending.drain(..) {
                    pending.await.unwrap();
                }
            }
        }
        let state = store.read(|state| state.clone());
        assert_eq!(state.revision(), Revision(N_COMMITS));
        let (commits, end) = read_all(&store, Revision(1), Revision(N_COMMITS)).await;
        assert_eq!((commits.len() as u64, end), (N_COMMITS, None));
        let floor = store.status().floor.0;
        copy(&live, &killed);
        store.close().await;
        copy(&live, &closed);
        assert!(closed.join("clean").exists() && !killed.join("clean").exists());
        Self { name, killed, closed, state, commits, floor }
    }

    /// The state after the commit of a revision.
    fn state_at(&self, revision: u64) -> State {
        let mut state = State::default();
        for commit in &self.commits[..usize::try_from(revision).unwrap()] {
            state.replay(commit);
        }
        state
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Content of all files below, but the lock's, which holds nothing.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().is_none_or(|name| name != "lock") {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Damages one file; what was done, in words.
fn damage(dir: &Path, dice: &mut Dice) -> String {
    let all: Vec<PathBuf> = files(dir).into_keys().collect();
    let (databases, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|path| path.file_name().is_some_and(|name| name == "db"));
    // The databases are most of what there is; the small files are what everything hangs on.
    let path = match dice.roll(10) {
        0..4 => databases.last().unwrap().clone(),
        4..7 => databases[dice.index(databases.len())].clone(),
        _ => others[dice.index(others.len())].clone(),
    };
    let mut bytes = fs::read(&path).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut text = format!("{}, {written} bytes written: ", path.strip_prefix(dir).unwrap().display());
    // Mostly where something is written.
    let within = if dice.roll(8) == 0 { bytes.len() } else { written };
    let at = dice.index(within);
    let block = |dice: &mut Dice| [16, 512, 4096][dice.index(3)];
    let kind = if bytes.is_empty() { 4 + dice.roll(2) } else { dice.roll(6) };
    match kind {
        0 => {
            let bit = dice.index(8);
            bytes[at] ^= 1 << bit;
            write!(text, "bit {bit} of byte {at} flipped").unwrap();
        }
        1 => {
            let len = block(dice);
            let at = at / len * len;
            let end = (at + len).min(bytes.len());
            bytes[at..end].fill(0);
            write!(text, "{len} bytes at {at} zeroed").unwrap();
        }
        2 => {
            bytes.truncate(at);
            write!(text, "cut to {at} bytes").unwrap();
        }
        3 => {
            let len = block(dice).min(bytes.len());
            let from = dice.index(within) / len * len;
            let (from, to) = (from.min(bytes.len() - len), (at / len * len).min(bytes.len() - len));
            bytes.copy_within(from..from + len, to);
            write!(text, "{len} bytes at {from} copied to {to}").unwrap();
        }
        4 => {
            fs::remove_file(&path).unwrap();
            return text + "deleted";
        }
        _ => {
            let len = 1 + dice.index(3_000);
            let end = at + len;
            if bytes.len() < end && dice.roll(2) == 0 {
                bytes.resize(end, 0);
            }
            let end = end.min(bytes.len().max(at));
            bytes[at..end].iter_mut().for_each(|byte| *byte = u8::try_from(dice.roll(256)).unwrap());
            write!(text, "garbage from {at} to {end}").unwrap();
        }
    }
    fs::write(&path, bytes).unwrap();
    text
}

/// What became of a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Whole,
    HistoryMissing,
    Refused,
}

fn have_same_records(one: &State, other: &State) -> bool {
    WHOLE.iter().all(|kind| one.records(*kind, None).eq(other.records(*kind, None)))
        && one.rows().iter(None).eq(other.rows().iter(None))
}

/// Looks at a damaged store as an operator and as a service would.
fn examine(
    original: &Original,
    dir: &Path,
    generation_bytes: u64,
    truncates: bool,
) -> Result<Outcome, String> {
    let before = files(dir);
    let report = match check(dir, &|_| Ok(())) {
        Ok(report) => report,
        // Every trace of it is gone.
        Err(error) => return Err(format!("check failed: {error:?}")),
    };
    if files(dir) != before {
        return Err("check changed something".to_owned());
    }
    let opened = Store::open(config(dir, generation_bytes), clock(), CrashPoints::default());
    match opened {
        Ok(store) => serves(original, &store, &report),
        Err(OpenError::Damaged { what, loss }) => {
            if files(dir) != before {
                let after = files(dir);
                let changed: Vec<_> = before
                    .keys()
                    .chain(after.keys())
                    .filter(|path| before.get(*path) != after.get(*path))
                    .collect();
                return Err(format!("a refused start changed {changed:?} ({what})"));
            }
            refuses(original, dir, &report, loss, truncates).map_err(|error| format!("{error} ({what})"))
        }
        Err(error) => Err(format!("start: {error:?}")),
    }
}

fn serves(original: &Original, store: &Store, report: &CheckReport) -> Result<Outcome, String> {
    let state = store.read(|state| state.clone());
    if state != original.state {
        return Err(format!("the state is another one, at revision {}; {report}", state.revision()));
    }
    if report.loss.is_some() || report.revision != N_COMMITS {
        return Err(format!("nothing is lost, and check says {report}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut from = original.floor;
    let mut missing = false;
    // Whoever asks for any revision gets that and what follows, or is told that it is gone.
    while from <= N_COMMITS {
        let read = async {
            tokio::time::timeout(PATIENCE, read_all(store, Revision(from), Revision(N_COMMITS))).await
        };
        let (seen, end) = runtime.block_on(read).map_err(|_| format!("history from {from} hangs"))?;
        for (revision, seen) in (from..).zip(&seen) {
            if seen.encoded != original.commits[usize::try_from(revision - 1).unwrap()].encoded {
                return Err(format!("a watcher got something else for revision {revision}"));
            }
        }
        let next = from + seen.len() as u64;
        match end {
            None => break,
            Some(WatchEnd::Compacted(compacted)) if compacted.floor.0 > next => {
                missing = true;
                if !report.history_missing.iter().any(|(from, to)| (*from..=*to).contains(&next)) {
                    return Err(format!("revision {next} cannot be watched, and check says {report}"));
                }
                from = compacted.floor.0;
            }
            Some(end) => return Err(format!("history ends before {next}: {end}")),
        }
    }
    if !missing && !report.history_missing.is_empty() {
        return Err(format!("history is whole, and check says {report}"));
    }
    Ok(if missing { Outcome::HistoryMissing } else { Outcome::Whole })
}

fn refuses(
    original: &Original,
    dir: &Path,
    report: &CheckReport,
    loss: Loss,
    truncates: bool,
) -> Result<Outcome, String> {
    let Some(said) = report.loss.filter(|_| !report.is_ok()) else {
        return Err(format!("start refuses, and check says {report}"));
    };
    if said != loss || loss.from == 0 {
        return Err(format!("start says {loss}, check {said}"));
    }
    if let Some(n_commits) = loss.n_commits()
        && loss.from + n_commits != N_COMMITS + 1
    {
        return Err(format!("not all that is missing was said: {loss}"));
    }
    if truncates {
        let report = truncate(dir).map_err(|error: AdminError| format!("truncate: {error:?}"))?;
        let checked = check(dir, &|_| Ok(())).map_err(|error| format!("check after truncate: {error:?}"))?;
        if report.loss != loss || report.recovered + 1 != loss.from || !checked.is_ok() {
            return Err(format!("truncate says {report:?}, check then {checked}"));
        }
        let store = Store::open(config(dir, 1 << 20), clock(), CrashPoints::default())
            .map_err(|error| format!("start after truncate: {error:?}"))?;
        if !store.read(|state| have_same_records(state, &original.state_at(report.recovered))) {
            return Err(format!("truncated to {}, the state is another one", report.recovered));
        }
    }
    Ok(Outcome::Refused)
}

#[test]
fn random_damage_is_mended_or_said() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let place = scratch();
    let sizes = [("one", u64::MAX / 4), ("several", 48 << 10)];
    let originals: Vec<_> = sizes
        .iter()
        .map(|(name, bytes)| (runtime.block_on(Original::make(place.path(), name, *bytes)), *bytes))
        .collect();
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
    let is_long = std::env::var_os("GODEL_TEST_LONG").is_some_and(|value| value == "1");
    let seeds = match number("GODEL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { N_DAMAGES_LONG } else { N_DAMAGES },
    };
    let (mut wrong, mut outcomes) = (Vec::new(), BTreeMap::new());
    for seed in seeds {
        let mut dice = Dice(seed);
        let (original, generation_bytes) = &originals[usize::try_from(seed % 2).unwrap()];
        let (how, from) =
            if seed / 2 % 2 == 0 { ("killed", &original.killed) } else { ("closed", &original.closed) };
        let dir = place.path().join("case");
        copy(from, &dir);
        let what = damage(&dir, &mut dice);
        match examine(original, &dir, *generation_bytes, seed % 3 == 0) {
            Ok(outcome) => *outcomes.entry(outcome).or_insert(0) += 1,
            Err(error) => wrong.push(format!(
                "GODEL_TEST_SEED={seed}: {} generation(s), {how}, {what}: {error}",
                original.name
            )),
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    assert!(wrong.is_empty(), "{} damages:\n{}", wrong.len(), wrong.join("\n"));
    let _ = writeln!(std::io::stderr(), "{outcomes:?}");
    assert!(number("GODEL_TEST_SEED").is_some() || outcomes.len() == 3, "{outcomes:?}");
}
