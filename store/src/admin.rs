//! What an operator does with a store that no process has open: check it, export it, restore it, repair it.
//!
//! Nothing here opens the store's own files with the engine, which may change them, but the removal of a record from a
//! store that is whole: it works on a copy beside the store, made under the store's lock and removed afterwards.

mod etcd;
mod export;
mod repair;

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
};

use bytes::BytesMut;
use godel_base::ids::{Revision, UnitId};
use godel_proto::{kinds::WHOLE, v1};
use prost::Message as _;

use crate::{
    chunk::Assembler,
    log::{
        Claimed, Generation, Log, LogError, LogReader,
        sled::{Copied, Lock, SledLog, Which, copy_for_reading, is_store, lock},
    },
    loss::Loss,
    migration,
    record::{Key, encode_record},
    recovery::{self, Recovered, unpanicked},
    snapshot,
    state::State,
    store::{Engine, OpenError, SledConfig},
};

pub use etcd::{check_etcd, export_etcd, remove_etcd, truncate_etcd};
pub use export::{ExportReport, UnreadablePolicy, export, restore};
pub(crate) use export::{make_store, refuse_used};
pub use repair::{RemoveReport, TruncateReport, remove, truncate};

/// Says what keeps readers from reading a record, if anything. The store itself only looks at keys and rows.
pub type ContentCheck<'a> = &'a dyn Fn(&v1::Record) -> Result<(), String>;

/// Why an operation on a closed store failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The directory holds no store.
    #[error("no store in {}", .dir.display())]
    NoStore {
        /// As given.
        dir: PathBuf,
    },
    /// There is no store to be moved.
    #[error("no store in {place}")]
    NoStoreAt {
        /// As given.
        place: String,
    },
    /// What was copied is not what was to be copied.
    #[error("{place} reads back differently: {what}; the source stays in force")]
    Differs {
        /// The target.
        place: String,
        /// What differs.
        what: String,
    },
    /// The target of a restore or a migration holds something.
    #[error("{place} is not empty; name a new place")]
    NotEmpty {
        /// As given.
        place: String,
    },
    /// The file to make is there already.
    #[error("{} exists; nothing was written: use another file, or move it away", .file.display())]
    Exists {
        /// As given.
        file: PathBuf,
    },
    /// The export holds records that nobody can read.
    #[error(
        "{} contains unreadable records, so nothing was restored: {}. Restore it with `--keep-unreadable` \
         and remove them with `godel state repair --remove`",
        .file.display(), .records.join("; ")
    )]
    Unreadable {
        /// As given.
        file: PathBuf,
        /// Which ones, and why.
        records: Vec<String>,
    },
    /// There is nothing to truncate.
    #[error("the state of {} is whole up to revision {revision}; nothing to truncate", .dir.display())]
    NotDamaged {
        /// As given.
        dir: PathBuf,
        /// Last revision.
        revision: u64,
    },
    /// A record cannot be removed.
    #[error("{kind} {key} cannot be removed: {why}")]
    NotRemoved {
        /// As the wire names it.
        kind: &'static str,
        /// As given.
        key: String,
        /// What to do instead, or what is in the way.
        why: String,
    },
    /// The file is not a whole export.
    #[error("{} is not a complete export: {what}", .file.display())]
    BadExport {
        /// As given.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file operation failed.
    #[error("{what}")]
    Io {
        /// What was done.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The store does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<LogError> for AdminError {
    fn from(error: LogError) -> Self {
        Self::Open(error.into())
    }
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Which store it is; 0 if the state cannot be recovered, or is of an older version that gave none.
    pub store_id: u64,
    /// Last revision that can be recovered; what was committed after it is lost, see `loss`.
    pub revision: u64,
    /// Last revision that was acknowledged, as the watermark has it.
    pub acknowledged: Option<u64>,
    /// First revision that can be watched; 0 if the state cannot be recovered.
    pub floor: u64,
    /// Oldest first.
    pub generations: Vec<GenerationReport>,
    /// Records by kind.
    pub records: Vec<(&'static str, usize)>,
    /// Rows of all units.
    pub rows: u64,
    /// An unfinished group at the end, never acknowledged: opening drops it.
    pub torn: Option<String>,
    /// What to know; nothing of it keeps the store from opening or loses anything.
    pub notes: Vec<String>,
    /// Acknowledged commits that cannot be recovered.
    pub loss: Option<Loss>,
    /// Revisions of the watch history that are missing, first and last of each range.
    pub history_missing: Vec<(u64, u64)>,
    /// Records that nobody can read, and why.
    pub unreadable: Vec<String>,
    /// What keeps the store from opening, its history from being served, or its records from being read.
    pub problems: Vec<String>,
}

/// One generation of a checked store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationReport {
    /// Its log begins behind this revision.
    pub base: u64,
    /// Last revision of its log.
    pub last: u64,
    /// Groups of its log.
    pub groups: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Its snapshot is complete.
    pub complete: bool,
    /// Bytes of its snapshot.
    pub snapshot_bytes: u64,
}

impl CheckReport {
    /// Nothing is wrong.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store {}, revision {}, history from {}", self.store_id, self.revision, self.floor)?;
        if let Some(acknowledged) = self.acknowledged {
            writeln!(f, "acknowledged at least up to revision {acknowledged}")?;
        }
        for generation in &self.generations {
            let GenerationReport { base, last, groups, log_bytes, complete, snapshot_bytes } = generation;
            let snapshot = if *complete { "complete" } else { "not complete" };
            writeln!(
                f,
                "generation {base}: log to revision {last}, {groups} groups, {log_bytes} bytes; snapshot \
                 {snapshot}, {snapshot_bytes} bytes"
            )?;
        }
        for (kind, count) in &self.records {
            writeln!(f, "{kind}: {count}")?;
        }
        writeln!(f, "rows: {}", self.rows)?;
        if let Some(torn) = &self.torn {
            writeln!(f, "unfinished at the end, never acknowledged: {torn}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        for (from, to) in &self.history_missing {
            writeln!(f, "MISSING HISTORY: revisions {from} to {to} cannot be watched")?;
        }
        if let Some(loss) = &self.loss {
            writeln!(f, "LOST: {loss}")?;
        }
        f.write_str(if self.is_ok() { "the store is whole" } else { "the store is damaged" })
    }
}

/// Reads every chunk of a store, verifies all checksums, rebuilds the state and reads its records as `content` does;
/// changes nothing.
///
/// # Errors
/// There is no store, another process has it, or it cannot be copied. Damage is not an error: it is reported.
pub fn check(dir: &Path, content: ContentCheck<'_>) -> Result<CheckReport, AdminError> {
    let copy = Copy::of(dir, Which::All)?;
    let mut report = CheckReport::default();
    let engine = Engine::Sled(SledConfig::new(dir));
    report.notes.extend(migration::describe(&engine)?);
    let Copied { unmarked, problem, watermark } = &copy.copied;
    report.notes.extend(watermark.map(str::to_owned));
    report.notes.extend(
        unmarked.iter().map(|number| {
            format!("generation number {number} has lost its marker; the next start restores it")
        }),
    );
    report.problems.extend(problem.clone());
    let log = copy.open()?;
    examine(&log, content, &mut report)?;
    // It is the store that they are about.
    report.problems.iter_mut().for_each(|problem| *problem = copy.of_store(problem, dir));
    Ok(report)
}

/// Reads a whole log and notes what is there and what is not.
fn examine(log: &dyn Log, content: ContentCheck<'_>, report: &mut CheckReport) -> Result<(), LogError> {
    let (reader, claimed) = (log.reader(), log.claimed());
    report.acknowledged = claimed.claim().map(|claim| claim.last.0);
    let unopened = log.unopened();
    report.problems.extend(unopened.iter().cloned());
    let generations = reader.generations();
    for (idx, generation) in generations.iter().enumerate() {
        let is_newest = idx + 1 == generations.len();
        report.generations.push(check_generation(&*reader, generation, is_newest, &mut report.problems));
    }
    report.history_missing = missing_history(&generations, &report.generations, &claimed);
    let state = match recovery::recover(&*reader, &claimed) {
        Ok(recovered) if unopened.is_empty() => whole(recovered, report),
        recovered => {
            match recovered {
                Err(error @ LogError::Unknown(_)) => return Err(error),
                Err(error) => push_problem(&mut report.problems, error.to_string()),
                Ok(_) => {}
            }
            let state = recovery::salvage(&*reader)?;
            report.loss = Some(Loss::after(state.revision(), &claimed));
            state
        }
    };
    report.store_id = state.store_id().0;
    report.revision = state.revision().0;
    report.rows = state.rows().n_rows();
    report.records = WHOLE.iter().map(|kind| (kind.as_str_name(), state.count(*kind))).collect();
    report.records.push((v1::Kind::Rows.as_str_name(), state.count(v1::Kind::Rows)));
    report.unreadable = unreadable(&state, content);
    report.problems.extend(report.unreadable.iter().map(|record| format!("cannot be read: {record}")));
    if !report.history_missing.is_empty() {
        push_problem(&mut report.problems, "some of the watch history is missing".to_owned());
    }
    Ok(())
}

fn whole(recovered: Recovered, report: &mut CheckReport) -> State {
    let Recovered { state, torn, generations: kept, .. } = recovered;
    report.floor = kept.first().map_or(0, |oldest| oldest.base.0 + 1);
    report.torn = torn;
    state
}

/// Ranges of the watch history that are missing: before the first generation, and at the end of each but the newest.
fn missing_history(
    generations: &[Generation],
    reports: &[GenerationReport],
    claimed: &Claimed,
) -> Vec<(u64, u64)> {
    let mut missing = Vec::new();
    // First revision that is not accounted for yet.
    let mut next = claimed.claim().map_or(0, |claim| claim.floor.0);
    for (generation, report) in generations.iter().zip(reports) {
        let base = generation.base.0;
        if next > 0 && next <= base {
            missing.push((next, base));
        }
        next = report.last.max(base) + 1;
        if let Some(end) = generation.end {
            if next <= end.revision {
                missing.push((next, end.revision));
            }
            next = next.max(end.revision + 1);
        }
    }
    missing
}

/// The records that `content` cannot read, and why.
pub(crate) fn unreadable(state: &State, content: ContentCheck<'_>) -> Vec<String> {
    let mut unreadable = Vec::new();
    let mut encoded = BytesMut::new();
    let mut read = |kind: v1::Kind, key: &dyn fmt::Display, record: &crate::Record| {
        encoded.clear();
        encode_record(kind, record, &mut encoded);
        let read = v1::Record::decode(&encoded[..]).map_err(|error| error.to_string());
        if let Err(why) = read.and_then(|record| content(&record)) {
            unreadable.push(format!("{} {key}: {why}", kind.as_str_name()));
        }
    };
    for kind in WHOLE {
        for (key, record) in state.records(kind, None) {
            read(kind, key, record);
        }
    }
    for (unit, ..) in state.rows().iter(None) {
        if let Some(record) = state.rows().record(unit) {
            read(v1::Kind::Rows, &Key::Id(unit.0), &record);
        }
    }
    let units_of_groups: BTreeSet<UnitId> = state
        .records(v1::Kind::TaskGroup, None)
        .filter_map(|(key, _)| match key {
            Key::Name(name) => name.split_once('/')?.0.parse().ok().map(UnitId),
            Key::Id(_) => None,
        })
        .collect();
    let misplaced =
        units_of_groups.into_iter().filter_map(|unit| Some((unit, state.misplaced_groups(unit)?)));
    unreadable.extend(misplaced.map(|(unit, why)| format!("{} {unit}: {why}", v1::Kind::Unit.as_str_name())));
    unreadable
}

fn check_generation(
    reader: &dyn LogReader,
    generation: &Generation,
    is_newest: bool,
    problems: &mut Vec<String>,
) -> GenerationReport {
    let base = generation.base;
    let mut report = GenerationReport { base: base.0, last: base.0, ..GenerationReport::default() };
    if let Some(manifest) = &generation.manifest {
        report.complete = true;
        report.snapshot_bytes = manifest.bytes;
        if let Err(error) = unpanicked(|| snapshot::load(reader, base, manifest)) {
            push_problem(problems, error.to_string());
        }
    }
    let read = unpanicked(|| check_log(reader, generation, &mut report));
    // Whether it is only a torn end is for the recovery to say.
    if let Err(error) = read
        && !is_newest
    {
        push_problem(problems, format!("generation {base}, after revision {}: {error}", report.last));
    }
    report
}

fn check_log(
    reader: &dyn LogReader,
    generation: &Generation,
    report: &mut GenerationReport,
) -> Result<(), LogError> {
    let base = generation.base;
    let mut assembler = Assembler::new(Some(base.0 + 1), Some(generation.previous_crc));
    for chunk in reader.scan(base, Revision(base.0 + 1))? {
        if let Some(group) = assembler.push(&chunk?).map_err(LogError::Corrupt)? {
            report.last = group.last.0;
            report.groups += 1;
            report.log_bytes += group.bytes;
        }
    }
    match generation.end {
        Some(end) if end.revision != report.last => {
            Err(LogError::Corrupt(format!("the log ends there and not at revision {}", end.revision)))
        }
        _ => Ok(()),
    }
}

fn push_problem(problems: &mut Vec<String>, problem: String) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// A copy of a store beside it, removed when dropped.
struct Copy {
    dir: PathBuf,
    copied: Copied,
}

impl Copy {
    /// Takes the lock of the store while it copies.
    fn of(dir: &Path, which: Which) -> Result<Self, AdminError> {
        if !is_store(dir) {
            return Err(AdminError::NoStore { dir: dir.to_owned() });
        }
        let lock = lock(dir)?;
        Self::under(dir, which, &lock)
    }

    fn under(dir: &Path, which: Which, lock: &Lock) -> Result<Self, AdminError> {
        let whole = dir.canonicalize().map_err(export::failed("finding", dir))?;
        let mut name = whole.file_name().unwrap_or_default().to_owned();
        name.push(format!(".copy-{}", std::process::id()));
        let target = whole.with_file_name(name);
        // Who made it before the copy is not known: it is not removed then.
        std::fs::create_dir(&target).map_err(export::failed("creating", &target))?;
        let mut copy = Self { dir: target, copied: Copied::default() };
        copy.copied = copy_for_reading(dir, &copy.dir, which, lock)?;
        Ok(copy)
    }

    fn open(&self) -> Result<SledLog, OpenError> {
        SledLog::open_copy(&self.dir)
    }

    /// What was said of the copy, of the store in `dir`.
    fn of_store(&self, text: &str, dir: &Path) -> String {
        text.replace(&self.dir.display().to_string(), &dir.display().to_string())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(%error, copy = %self.dir.display(), "a copy of the store could not be removed");
        }
    }
}
