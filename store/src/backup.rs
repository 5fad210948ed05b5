//! Backups of a store in a directory: full backups and increments, which consist of the chunks that the engine keeps.
//!
//! A full backup has a snapshot and the log from its base; an increment has the log since the previous backup. Both end
//! at one revision, and any revision of the log can be restored. Chunks are copied as the engine has them: their checksums
//! form one chain over snapshot, log and increments, which proves that nothing is missing or changed (ADR 0103).
//!
//! Only its owner may read a backup. Private keys are sealed in it as in the store, and the key that opens them is not part of it.
//!
//! ```text
//! <dir>/backup-000001/manifest        its store and revisions, the backup that it continues, and its files with their checksums
//! <dir>/backup-000001/snapshot.chunks chunks of the snapshot, each behind its length (u16, big endian)
//! <dir>/backup-000001/log.chunks      chunks of the log, in the same form
//! <dir>/part-000002/                  a backup that is being made or removed
//! ```

mod chain;
mod manifest;
mod read;
mod restore;
mod verify;
mod write;

use std::{
    fs::{self, File},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use godel_base::ids::Revision;

use self::{chain::chain, manifest::MANIFEST_FILE};
use crate::{
    admin::AdminError,
    log::{
        LogError,
        files::{create_private_dir, failed, remove_dir, sync_dir},
    },
};

pub use manifest::{BackupFile, BackupManifest, BackupSnapshot};
pub use restore::{RestoreReport, restore};
pub use verify::{VerifiedState, VerifyReport, verify};
pub use write::{BackupWriter, NewBackup};

/// Names of the files of a backup.
const SNAPSHOT_FILE: &str = "snapshot.chunks";
const LOG_FILE: &str = "log.chunks";

/// Why an operation on backups failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The directory has no backup.
    #[error("no backup in {}", .dir.display())]
    NoBackup {
        /// The directory, as given.
        dir: PathBuf,
    },
    /// Another process makes or reads backups in the directory.
    #[error("{} is in use by another process", .dir.display())]
    Locked {
        /// The directory, as given.
        dir: PathBuf,
    },
    /// The log of the store does not continue the last backup.
    #[error("the store has another history than backup {number}")]
    Diverged {
        /// Number of the last backup.
        number: u64,
    },
    /// The chunks from the store are incomplete or damaged.
    #[error("the data from state is incomplete or damaged: {what}")]
    BadStream {
        /// Description of the problem.
        what: String,
    },
    /// A backup cannot be used.
    #[error("{what}")]
    Damaged {
        /// The backup and the problem.
        what: String,
    },
    /// No backup has the revision to restore.
    #[error("{what}")]
    NotThere {
        /// The revisions that can be restored.
        what: String,
    },
    /// The backup has records that services cannot read.
    #[error(
        "the backup contains unreadable records, so nothing was restored: {}. Restore it with \
         `--keep-unreadable` and remove them with `godel state repair --remove`",
        .records.join("; ")
    )]
    Unreadable {
        /// The records, each with the reason.
        records: Vec<String>,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] LogError),
    /// The new store cannot be created.
    #[error(transparent)]
    Store(#[from] AdminError),
}

impl BackupError {
    fn damaged(number: u64, what: impl std::fmt::Display) -> Self {
        Self::Damaged { what: format!("backup {number}: {what}") }
    }
}

/// A backup in a directory. Its manifest may be unreadable.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupEntry {
    /// The number in the name of the backup.
    pub number: u64,
    /// The manifest, or why it cannot be read.
    pub manifest: Result<BackupManifest, String>,
}

/// The position at which the next increment begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Number of the backup that the increment continues.
    pub number: u64,
    /// Id of the store.
    pub store_id: u64,
    /// First revision of the increment.
    pub first: Revision,
    /// Checksum of the chunk before that revision.
    pub previous_crc: u32,
}

/// A directory with backups, locked by this process while it makes or removes backups.
#[derive(Debug)]
pub struct BackupDir {
    dir: PathBuf,
    _lock: File,
}

impl BackupDir {
    /// Locks a directory for new backups, and creates it if it is absent. Removes leftovers of an interrupted process: parts of backups
    /// that were being made or removed.
    ///
    /// # Errors
    /// The directory cannot be created or used, or another process uses it.
    pub fn take(dir: &Path) -> Result<Self, BackupError> {
        create_private_dir(dir)?;
        let lock = File::open(dir).map_err(failed("opening", dir))?;
        taken(dir, lock.try_lock())?;
        let backups = Self { dir: dir.to_owned(), _lock: lock };
        for name in names(dir, "part-")?.into_values() {
            remove_dir(&dir.join(name))?;
        }
        Ok(backups)
    }

    /// Lists the backups, oldest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn entries(&self) -> Result<Vec<BackupEntry>, BackupError> {
        entries(&self.dir)
    }

    /// Returns where an increment to the last backup begins, or why the last backup cannot be continued; the reason is `None` if there is
    /// no backup.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn continuation(&self) -> Result<Result<Continuation, Option<String>>, BackupError> {
        let entries = self.entries()?;
        let Some(last) = entries.last() else { return Ok(Err(None)) };
        let manifest = match &last.manifest {
            Ok(manifest) => manifest,
            Err(what) => return Ok(Err(Some(format!("backup {}: {what}", last.number)))),
        };
        let chain = match chain(&readable(&entries), last.number) {
            Ok(chain) => chain,
            Err(what) => return Ok(Err(Some(what))),
        };
        for backup in &chain {
            for file in &backup.files {
                let path = backup_path(&self.dir, backup.number).join(&file.name);
                if fs::metadata(&path).map_or(0, |metadata| metadata.len()) != file.bytes {
                    let what = format!("backup {}: {} is not as it was written", backup.number, file.name);
                    return Ok(Err(Some(what)));
                }
            }
        }
        Ok(Ok(Continuation {
            number: manifest.number,
            store_id: manifest.store_id,
            first: Revision(manifest.last_revision + 1),
            previous_crc: manifest.crc,
        }))
    }

    /// Begins the next backup.
    ///
    /// # Errors
    /// The files of the backup cannot be created.
    pub fn begin(&self, new: NewBackup) -> Result<BackupWriter, BackupError> {
        let number = self.entries()?.last().map_or(1, |last| last.number + 1);
        BackupWriter::create(&self.dir, number, new)
    }

    /// Removes all backups except the newest `keep` and those that they continue. Returns the numbers of the removed backups.
    ///
    /// # Errors
    /// The manifest of a backup cannot be read, so that its continuations are unknown; or a backup cannot be removed. The remaining
    /// backups are usable.
    pub fn prune(&self, keep: NonZeroUsize) -> Result<Vec<u64>, BackupError> {
        let entries = self.entries()?;
        for entry in &entries {
            if let Err(what) = &entry.manifest {
                return Err(BackupError::damaged(entry.number, format!("{what}; nothing was deleted")));
            }
        }
        let gone = chain::prunable(&readable(&entries), keep.get());
        for number in &gone {
            let (path, part) = (backup_path(&self.dir, *number), part_path(&self.dir, *number));
            fs::rename(&path, &part).map_err(failed("removing", &path))?;
            sync_dir(&self.dir)?;
            remove_dir(&part)?;
        }
        Ok(gone)
    }
}

/// Lists the backups in `dir`, oldest first, without a lock.
///
/// # Errors
/// The directory does not exist or cannot be read.
pub fn list(dir: &Path) -> Result<Vec<BackupEntry>, BackupError> {
    let entries = match entries(dir) {
        Err(BackupError::File(LogError::Io { source, .. }))
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Vec::new()
        }
        entries => entries?,
    };
    if entries.is_empty() {
        return Err(BackupError::NoBackup { dir: dir.to_owned() });
    }
    Ok(entries)
}

/// Lists the backups in `dir` for a process that reads them, and locks the directory, so that none is removed meanwhile.
fn list_locked(dir: &Path) -> Result<(Vec<BackupEntry>, File), BackupError> {
    let lock = match File::open(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(BackupError::NoBackup { dir: dir.to_owned() });
        }
        lock => lock.map_err(failed("opening", dir))?,
    };
    taken(dir, lock.try_lock_shared())?;
    Ok((list(dir)?, lock))
}

fn taken(dir: &Path, locked: Result<(), fs::TryLockError>) -> Result<(), BackupError> {
    match locked {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => Err(BackupError::Locked { dir: dir.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(failed("locking", dir)(error).into()),
    }
}

fn entries(dir: &Path) -> Result<Vec<BackupEntry>, BackupError> {
    let entry = |(number, name): (u64, String)| BackupEntry {
        number,
        manifest: BackupManifest::read(&dir.join(name), number),
    };
    Ok(names(dir, "backup-")?.into_iter().map(entry).collect())
}

/// Returns the manifests that can be read.
fn readable(entries: &[BackupEntry]) -> Vec<BackupManifest> {
    entries.iter().filter_map(|entry| entry.manifest.clone().ok()).collect()
}

/// Lists the entries of `dir` whose names are a prefix and a number, by number.
fn names(dir: &Path, prefix: &str) -> Result<std::collections::BTreeMap<u64, String>, LogError> {
    let mut names = std::collections::BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(failed("listing", dir))? {
        let name = entry.map_err(failed("listing", dir))?.file_name();
        let Some(name) = name.to_str() else { continue };
        let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        names.extend(number.map(|number| (number, name.to_owned())));
    }
    Ok(names)
}

fn backup_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("backup-{number:06}"))
}

fn part_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("part-{number:06}"))
}
