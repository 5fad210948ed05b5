//! Backups of a store in a directory: full ones and increments, made of the chunks that the engine keeps.
//!
//! A full backup has a snapshot and the log from its base; an increment has the log since the backup before it. Both are
//! of one revision, and any revision between can be restored. Chunks are kept as the engine has them: their checksums
//! are one chain over snapshot, log and increments, which proves that nothing is missing or changed (ADR 0103).
//!
//! Nobody else may read a backup. What the store holds sealed is sealed in it, and the key is not part of it.
//!
//! ```text
//! <dir>/backup-000001/manifest        what it is of, what it continues, and its files with their checksums
//! <dir>/backup-000001/snapshot.chunks chunks of the snapshot, each behind its length (u16, big endian)
//! <dir>/backup-000001/log.chunks      the same of the log
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

/// Why something cannot be done with backups.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There are none.
    #[error("no backup in {}", .dir.display())]
    NoBackup {
        /// As given.
        dir: PathBuf,
    },
    /// Another process makes one or reads them.
    #[error("{} is in use by another process", .dir.display())]
    Locked {
        /// As given.
        dir: PathBuf,
    },
    /// What comes from the store does not go on where the last backup ended.
    #[error("the store has another history than backup {number}")]
    Diverged {
        /// The last backup.
        number: u64,
    },
    /// What came from the store is not whole.
    #[error("what state sent is not whole: {what}")]
    BadStream {
        /// What is wrong.
        what: String,
    },
    /// A backup cannot be used.
    #[error("{what}")]
    Damaged {
        /// Which one, and what is wrong.
        what: String,
    },
    /// The revision to restore is in no backup.
    #[error("{what}")]
    NotThere {
        /// What there is.
        what: String,
    },
    /// It holds records that nobody can read.
    #[error(
        "the backup contains unreadable records, so nothing was restored: {}. Restore it with \
         `--keep-unreadable` and remove them with `godel state repair --remove`",
        .records.join("; ")
    )]
    Unreadable {
        /// Which ones, and why.
        records: Vec<String>,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] LogError),
    /// The new store cannot be made.
    #[error(transparent)]
    Store(#[from] AdminError),
}

impl BackupError {
    fn damaged(number: u64, what: impl std::fmt::Display) -> Self {
        Self::Damaged { what: format!("backup {number}: {what}") }
    }
}

/// A backup of a directory, as far as its manifest can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupEntry {
    /// From its name.
    pub number: u64,
    /// Its manifest, or what is wrong with it.
    pub manifest: Result<BackupManifest, String>,
}

/// Where the next increment begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Of the backup that it continues.
    pub number: u64,
    /// Which store it is of.
    pub store_id: u64,
    /// Its first revision.
    pub first: Revision,
    /// Checksum of the chunk before that.
    pub previous_crc: u32,
}

/// A directory with backups, taken by this process while it makes or removes some.
#[derive(Debug)]
pub struct BackupDir {
    dir: PathBuf,
    _lock: File,
}

impl BackupDir {
    /// Takes a directory for new backups, and creates it if it is absent. What an interrupted process left of backups
    /// that were being made or removed goes.
    ///
    /// # Errors
    /// It cannot be created or used, or another process uses it.
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

    /// The backups, oldest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn entries(&self) -> Result<Vec<BackupEntry>, BackupError> {
        entries(&self.dir)
    }

    /// Where an increment to the last backup begins; `None`: there is none that can be continued, and why, if there is
    /// one.
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
    /// Its files cannot be created.
    pub fn begin(&self, new: NewBackup) -> Result<BackupWriter, BackupError> {
        let number = self.entries()?.last().map_or(1, |last| last.number + 1);
        BackupWriter::create(&self.dir, number, new)
    }

    /// Removes backups until the newest `keep` are left, with all that they rest on; their numbers.
    ///
    /// # Errors
    /// The manifest of one cannot be read, so that it is not known what rests on it; or one cannot be removed. Those that are
    /// left can be used.
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

/// The backups in `dir`, oldest first, whatever else is done with them now.
///
/// # Errors
/// There is no such directory, or it cannot be read.
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

/// The same for a process that reads them: none is removed meanwhile.
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

/// The manifests that can be read.
fn readable(entries: &[BackupEntry]) -> Vec<BackupManifest> {
    entries.iter().filter_map(|entry| entry.manifest.clone().ok()).collect()
}

/// Names in `dir` of a prefix and a number, by number.
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
