//! Verifies all backups of a directory.

use std::{fmt, fs, path::Path};

use godel_base::words::count;

use super::{
    BackupEntry, BackupError, BackupManifest, MANIFEST_FILE, backup_path,
    chain::{chain, leaves},
    list_locked,
    read::state_at,
    readable,
};
use crate::{
    admin::{self, ContentCheck},
    log::files::{digest, failed},
};

/// The result of [`verify`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyReport {
    /// The backups, oldest first.
    pub backups: Vec<BackupEntry>,
    /// The state at the end of each chain of backups that is whole.
    pub states: Vec<VerifiedState>,
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Problems that prevent a backup from being restored or its records from being read.
    pub problems: Vec<String>,
}

/// A state that was rebuilt from backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedState {
    /// Number of the last backup of the chain.
    pub number: u64,
    /// Id of the store.
    pub store_id: u64,
    /// First revision that can be restored.
    pub from: u64,
    /// Revision of the state.
    pub revision: u64,
}

impl VerifyReport {
    /// Whether there are no problems.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for VerifiedState { number, store_id, from, revision } in &self.states {
            writeln!(f, "backup {number}: store {store_id}, revisions {from} to {revision} can be restored")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        let read = format!("{}, {} bytes read", count(self.backups.len(), "backup"), self.bytes);
        write!(f, "{read}: {}", if self.is_ok() { "everything is whole" } else { "something is damaged" })
    }
}

/// Reads every byte of the backups in `dir`, verifies all checksums and chains, rebuilds the state at the end of each
/// chain, and reads its records with `content`. Changes nothing.
///
/// # Errors
/// The directory has no backup, or another process makes one. Damage is not an error: it is reported.
pub fn verify(dir: &Path, content: ContentCheck<'_>) -> Result<VerifyReport, BackupError> {
    let (backups, _lock) = list_locked(dir)?;
    let mut report = VerifyReport::default();
    for entry in &backups {
        match &entry.manifest {
            Ok(manifest) => verify_files(dir, manifest, &mut report)?,
            Err(what) => report.problems.push(format!("backup {}: {what}", entry.number)),
        }
    }
    let manifests = readable(&backups);
    for leaf in leaves(&manifests) {
        let rebuilt = chain(&manifests, leaf.number).map_err(|what| BackupError::Damaged { what });
        let rebuilt = rebuilt.and_then(|chain| {
            let state = state_at(dir, &chain, leaf.last_revision)?;
            Ok((chain[0].floor(), state))
        });
        match rebuilt {
            Ok((from, state)) => {
                let (number, store_id) = (leaf.number, leaf.store_id);
                if state.revision().0 > 0 && state.store_id().0 != store_id {
                    let what = format!("backup {number}: its records are of store {}", state.store_id());
                    report.problems.push(what);
                }
                let unreadable = admin::unreadable(&state, content);
                let unreadable = unreadable.iter().map(|record| format!("backup {number}: {record}"));
                report.problems.extend(unreadable);
                report.states.push(VerifiedState { number, store_id, from, revision: leaf.last_revision });
            }
            Err(error) => report.problems.push(explain(&error)),
        }
    }
    report.backups = backups;
    Ok(report)
}

/// Compares the files of a backup with its manifest.
fn verify_files(dir: &Path, manifest: &BackupManifest, report: &mut VerifyReport) -> Result<(), BackupError> {
    let path = backup_path(dir, manifest.number);
    let mut problem = |what: String| report.problems.push(format!("backup {}: {what}", manifest.number));
    for file in &manifest.files {
        match digest(&path.join(&file.name)) {
            Ok((bytes, crc)) if (bytes, crc) == (file.bytes, file.crc) => report.bytes += bytes,
            Ok((bytes, _)) => {
                report.bytes += bytes;
                problem(format!("{} is not as it was written", file.name));
            }
            Err(error) => problem(explain(&error)),
        }
    }
    for entry in fs::read_dir(&path).map_err(failed("listing", &path))? {
        let name = entry.map_err(failed("listing", &path))?.file_name();
        if name != MANIFEST_FILE && manifest.files.iter().all(|file| name != *file.name) {
            problem(format!("{} does not belong to it", name.to_string_lossy()));
        }
    }
    Ok(())
}

/// Formats an error with its causes.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
