//! The manifest of a backup.

use std::path::Path;

use crate::{
    envelope::{self, MARK_BYTES},
    log::{
        Manifest,
        files::{failed, write_file},
    },
};

use super::BackupError;

/// First bytes of a manifest; the last one is the version of the format of backups.
const MARK: &[u8; MARK_BYTES] = b"godel-backup\0\0\0\x01";
/// Name of the file of a manifest.
pub(super) const MANIFEST_FILE: &str = "manifest";
/// Maximum size of a manifest, which has about 200 bytes; a longer file is refused.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// Describes a backup: the store up to a revision, or the commits between two revisions.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupManifest {
    /// Number of the backup in its directory, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Id of the store.
    #[prost(uint64, tag = "2")]
    pub store_id: u64,
    /// Number of the backup whose log this one continues; 0 for a full backup.
    #[prost(uint64, tag = "3")]
    pub continues: u64,
    /// First revision of the log; above `last_revision` if nothing was committed behind the snapshot.
    #[prost(uint64, tag = "4")]
    pub first_revision: u64,
    /// Last revision of the log, which is the revision of the backup.
    #[prost(uint64, tag = "5")]
    pub last_revision: u64,
    /// Checksum of the chunk before the log.
    #[prost(uint32, tag = "6")]
    pub previous_crc: u32,
    /// Checksum of the last chunk of the log.
    #[prost(uint32, tag = "7")]
    pub crc: u32,
    /// Time of the backup by the clock of state, in Unix milliseconds.
    #[prost(int64, tag = "8")]
    pub time_ms: i64,
    /// The snapshot; absent in an increment.
    #[prost(message, optional, tag = "9")]
    pub snapshot: Option<BackupSnapshot>,
    /// The files of the backup.
    #[prost(message, repeated, tag = "10")]
    pub files: Vec<BackupFile>,
    /// Version of the state that was backed up.
    #[prost(string, tag = "11")]
    pub version: String,
    /// Engine of the store that was backed up.
    #[prost(string, tag = "12")]
    pub engine: String,
}

/// The snapshot of a full backup.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BackupSnapshot {
    /// The log behind the snapshot begins after this revision.
    #[prost(uint64, tag = "1")]
    pub base_revision: u64,
    /// Size and checksum of the snapshot.
    #[prost(message, required, tag = "2")]
    pub manifest: Manifest,
}

/// A file of a backup.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupFile {
    /// Name of the file in the directory of the backup.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Length in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Checksum (crc32c).
    #[prost(uint32, tag = "3")]
    pub crc: u32,
}

impl BackupManifest {
    /// Whether the backup is full.
    pub fn is_full(&self) -> bool {
        self.continues == 0
    }

    /// Returns the size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the first revision that the backup can restore. A snapshot is written while transactions are committed, so
    /// that it is consistent only from its end on.
    pub(super) fn floor(&self) -> u64 {
        let snapshot = |snapshot: BackupSnapshot| snapshot.base_revision.max(snapshot.manifest.end_revision);
        self.snapshot.map_or(self.first_revision, snapshot)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), BackupError> {
        Ok(write_file(&dir.join(MANIFEST_FILE), &envelope::seal(MARK, self))?)
    }

    /// Reads the manifest of the backup in `dir`.
    pub(super) fn read(dir: &Path, number: u64) -> Result<Self, String> {
        let path = dir.join(MANIFEST_FILE);
        let len =
            std::fs::metadata(&path).map_err(|error| format!("its manifest cannot be read: {error}"))?;
        if len.len() > MANIFEST_BYTES_MAX {
            return Err("its manifest is too long".to_owned());
        }
        let bytes = std::fs::read(&path).map_err(failed("reading", &path));
        let bytes = bytes.map_err(|error| error.to_string())?;
        let manifest: Self = envelope::open(MARK, &bytes).map_err(|what| format!("its manifest: {what}"))?;
        if manifest.number != number {
            return Err(format!("its manifest is that of backup {}", manifest.number));
        }
        if manifest.files.iter().any(|file| file.name.contains('/') || file.name.starts_with('.')) {
            return Err("its manifest names files of other directories".to_owned());
        }
        Ok(manifest)
    }
}
