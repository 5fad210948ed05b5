//! What an operator does with a store that no process has open: check it, export it, restore it.
//!
//! Nothing here opens the store's own files with the engine, which may change them: it works on a copy beside
//! the store, made under the store's lock and removed afterwards.

mod export;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use godel_core::ids::Revision;
use godel_proto::v1;

pub use export::{ExportReport, export, restore};

use crate::{
    chunk::Assembler,
    crash::CrashPoints,
    log::{
        Generation, Log as _, LogError, LogReader,
        sled::{SledLog, Which, copy_for_reading, is_store},
    },
    recovery::{self, Recovered},
    snapshot,
    state::RECORD_KINDS,
    store::{OpenError, SledConfig},
};

/// Why an operation on a closed store failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The directory holds no store.
    #[error("there is no store in {}", .dir.display())]
    NoStore {
        /// As given.
        dir: PathBuf,
    },
    /// The target of a restore holds something.
    #[error("{} is not empty; restore into a new directory", .dir.display())]
    NotEmpty {
        /// As given.
        dir: PathBuf,
    },
    /// The file is not a whole export.
    #[error("{} is not a whole export: {what}", .file.display())]
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
    /// Last revision; 0 if the state cannot be recovered.
    pub revision: u64,
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
    /// What keeps the store from opening, or its history from being served.
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
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        f.write_str(if self.is_ok() { "the store is whole" } else { "the store is damaged" })
    }
}

/// Reads every chunk of a store, verifies all checksums and rebuilds the state; changes nothing.
///
/// # Errors
/// There is no store, another process has it, or it cannot be copied. Damage is not an error: it is reported.
pub fn check(dir: &Path) -> Result<CheckReport, AdminError> {
    let copy = Copy::of(dir, Which::All)?;
    let mut report = CheckReport::default();
    let log = match copy.open() {
        Ok(log) => log,
        Err(OpenError::Damaged { what }) => {
            report.problems.push(what);
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    let reader = log.reader();
    let generations = reader.generations();
    for (idx, generation) in generations.iter().enumerate() {
        let is_newest = idx + 1 == generations.len();
        report.generations.push(check_generation(&*reader, generation, is_newest, &mut report.problems));
    }
    match recovery::recover(&*reader) {
        Ok(Recovered { state, torn, generations: kept, .. }) => {
            report.store_id = state.store_id().0;
            report.revision = state.revision().0;
            report.floor = kept.first().map_or(0, |oldest| oldest.base.0 + 1);
            let n_lost = generations.len() - kept.len();
            if n_lost > 0 {
                let what = format!("{n_lost} generations before revision {} are behind a gap", report.floor);
                push_problem(&mut report.problems, what);
            }
            report.torn = torn;
            report.rows = state.n_rows();
            report.records =
                RECORD_KINDS.iter().map(|kind| (kind.as_str_name(), state.count(*kind))).collect();
            report.records.push((v1::Kind::Rows.as_str_name(), state.count(v1::Kind::Rows)));
        }
        Err(error) => push_problem(&mut report.problems, error.to_string()),
    }
    Ok(report)
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
        if let Err(error) = snapshot::load(reader, base, manifest) {
            push_problem(problems, error.to_string());
        }
    }
    let mut assembler = Assembler::new(Some(base.0 + 1), Some(generation.previous_crc));
    let chunks = match reader.scan(base, Revision(base.0 + 1)) {
        Ok(chunks) => chunks,
        Err(error) => {
            push_problem(problems, error.to_string());
            return report;
        }
    };
    for chunk in chunks {
        match chunk.map_err(|error| error.to_string()).and_then(|chunk| assembler.push(&chunk)) {
            Ok(None) => {}
            Ok(Some(group)) => {
                report.last = group.last.0;
                report.groups += 1;
                report.log_bytes += group.bytes;
            }
            // Whether it is only a torn end is for the recovery to say.
            Err(_) if is_newest => return report,
            Err(problem) => {
                push_problem(problems, format!("after revision {}: {problem}", report.last));
                return report;
            }
        }
    }
    report
}

fn push_problem(problems: &mut Vec<String>, problem: String) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// A copy of a store beside it, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(dir: &Path, which: Which) -> Result<Self, AdminError> {
        if !is_store(dir) {
            return Err(AdminError::NoStore { dir: dir.to_owned() });
        }
        let mut name = dir.file_name().unwrap_or_default().to_owned();
        name.push(format!(".copy-{}", std::process::id()));
        let copy = Self(dir.with_file_name(name));
        copy_for_reading(dir, &copy.0, which)?;
        Ok(copy)
    }

    fn open(&self) -> Result<SledLog, OpenError> {
        SledLog::open(&SledConfig::new(&self.0), CrashPoints::default())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, copy = %self.0.display(), "a copy of the store could not be removed");
        }
    }
}
