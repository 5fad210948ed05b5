//! Which logs go: those of units that are gone, of earlier incarnations after a while, and the oldest of too many.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use godel_core_agent::RunKey;

use super::run_of;

/// Incarnations of a replica whose logs stay as long as its unit: the current one and the one before.
const N_INCARNATIONS: usize = 2;

/// How long and how much is kept of what is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogLimits {
    /// Earlier incarnations stay for so long after they were written to.
    pub(crate) keep: Duration,
    /// All logs together, bytes.
    pub(crate) bytes_max: u64,
}

/// The log of an incarnation that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogAge {
    pub(crate) name: String,
    /// `None`: no agent gave it this name.
    pub(crate) run: Option<(RunKey, u32)>,
    pub(crate) bytes: u64,
    /// Since it was written to.
    pub(crate) age: Duration,
}

/// Removes logs in `dir`, but for those of `live`; `gone` are units without a record. Returns the units of the others.
pub(crate) fn sweep(
    dir: &Path,
    live: &BTreeSet<String>,
    limits: LogLimits,
    gone: &BTreeSet<u64>,
) -> BTreeSet<u64> {
    let mut over = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !live.contains(&name) {
            let (bytes, age) = about(&entry.path());
            over.push(LogAge { run: run_of(&name), name, bytes, age });
        }
    }
    let removed = to_remove(&over, limits, gone);
    for name in &removed {
        let path = dir.join(name);
        // What cannot be removed is tried again.
        let _tried_again = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
    let units_live: BTreeSet<u64> = live.iter().filter_map(|name| Some(run_of(name)?.0.unit)).collect();
    let kept = over.iter().filter(|log| !removed.contains(&log.name));
    kept.filter_map(|log| Some(log.run?.0.unit)).filter(|unit| !units_live.contains(unit)).collect()
}

/// Names of the logs that go.
pub(crate) fn to_remove(over: &[LogAge], limits: LogLimits, gone: &BTreeSet<u64>) -> BTreeSet<String> {
    let mut incarnations: BTreeMap<RunKey, Vec<u32>> = BTreeMap::new();
    for (key, incarnation) in over.iter().filter_map(|log| log.run) {
        incarnations.entry(key).or_default().push(incarnation);
    }
    for known in incarnations.values_mut() {
        known.sort_unstable_by(|a, b| b.cmp(a));
        known.truncate(N_INCARNATIONS);
    }
    let goes = |log: &LogAge| match log.run {
        Some((key, _)) if gone.contains(&key.unit) => true,
        Some((key, incarnation)) => !incarnations[&key].contains(&incarnation) && log.age >= limits.keep,
        None => log.age >= limits.keep,
    };
    let (goes, mut stays): (Vec<&LogAge>, Vec<&LogAge>) = over.iter().partition(|log| goes(log));
    let mut removed: BTreeSet<String> = goes.into_iter().map(|log| log.name.clone()).collect();
    stays.sort_by_key(|log| log.age);
    let mut bytes: u64 = 0;
    for log in stays {
        bytes = bytes.saturating_add(log.bytes);
        if bytes > limits.bytes_max {
            removed.insert(log.name.clone());
        }
    }
    removed
}

/// Bytes of the files in a directory, and how long ago the last of them was written to; now, where that is not known.
fn about(path: &Path) -> (u64, Duration) {
    let inner = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let (mut bytes, mut age) = (0, Duration::MAX);
    for path in inner.chain(std::iter::once(path.to_owned())) {
        let Ok(known) = fs::symlink_metadata(&path) else { continue };
        bytes += if known.is_file() { known.len() } else { 0 };
        let written = known.modified().ok();
        let since = written.and_then(|at| SystemTime::now().duration_since(at).ok());
        age = age.min(since.unwrap_or_default());
    }
    (bytes, if age == Duration::MAX { Duration::ZERO } else { age })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_incarnations_stay_as_long_as_their_unit() {
        let log = |name: &str, bytes, hours: u64| LogAge {
            name: name.to_owned(),
            run: run_of(name),
            bytes,
            age: Duration::from_secs(3600 * hours),
        };
        let over = [
            log("1-0-0", 10, 30),
            log("1-0-1", 10, 20),
            log("1-0-2", 10, 2),
            log("1-0-3", 10, 1),
            log("1-1-0", 10, 99),
            log("2-0-0", 10, 50),
            log("what is this", 10, 40),
            log("and-this-one-too", 10, 3),
        ];
        for (keep_hours, bytes_max, gone, expected) in [
            (24, 1000, vec![], vec!["1-0-0", "what is this"]),
            (2, 1000, vec![], vec!["1-0-0", "1-0-1", "and-this-one-too", "what is this"]),
            (99, 1000, vec![1], vec!["1-0-0", "1-0-1", "1-0-2", "1-0-3", "1-1-0"]),
            (24, 1000, vec![2, 7], vec!["1-0-0", "2-0-0", "what is this"]),
            (24, 45, vec![], vec!["1-0-0", "1-1-0", "2-0-0", "what is this"]),
            (24, 0, vec![], over.iter().map(|log| log.name.as_str()).collect()),
        ] {
            let limits = LogLimits { keep: Duration::from_secs(3600 * keep_hours), bytes_max };
            let removed = to_remove(&over, limits, &gone.iter().copied().collect());
            let mut expected = expected;
            expected.sort_unstable();
            assert_eq!(
                removed.iter().map(String::as_str).collect::<Vec<_>>(),
                expected,
                "{limits:?} {gone:?}"
            );
        }
    }

    #[test]
    fn names_are_those_of_directories_of_logs() {
        let key = RunKey { unit: 12, ordinal: 3 };
        assert_eq!(run_of(&crate::logs::dir_name(key, 4)), Some((key, 4)));
        for name in ["", "1", "1-2", "1-2-3-4", "a-2-3", "1-2-x", "-1-2-3"] {
            assert_eq!(run_of(name), None, "{name}");
        }
    }
}
