//! What a backup says of itself.

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
/// Name of its file.
pub(super) const MANIFEST_FILE: &str = "manifest";
/// A manifest is about 200 bytes: what is longer is none.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// A backup: the store up to a revision, or what was committed between two.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupManifest {
    /// Of the backup in its directory, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Which store it is of.
    #[prost(uint64, tag = "2")]
    pub store_id: u64,
    /// Number of the backup whose log this one continues; 0: it is full and needs no other.
    #[prost(uint64, tag = "3")]
    pub continues: u64,
    /// First revision of its log; above `last_revision` if nothing was committed behind its snapshot.
    #[prost(uint64, tag = "4")]
    pub first_revision: u64,
    /// Last revision of its log: it is the store at this revision.
    #[prost(uint64, tag = "5")]
    pub last_revision: u64,
    /// Checksum of the chunk before its log.
    #[prost(uint32, tag = "6")]
    pub previous_crc: u32,
    /// Checksum of the last chunk of its log.
    #[prost(uint32, tag = "7")]
    pub crc: u32,
    /// When it was made, by state's clock, Unix milliseconds.
    #[prost(int64, tag = "8")]
    pub time_ms: i64,
    /// Its snapshot; absent in an increment.
    #[prost(message, optional, tag = "9")]
    pub snapshot: Option<BackupSnapshot>,
    /// Its files.
    #[prost(message, repeated, tag = "10")]
    pub files: Vec<BackupFile>,
    /// Version of the state that it is of.
    #[prost(string, tag = "11")]
    pub version: String,
    /// Engine of the store that it is of.
    #[prost(string, tag = "12")]
    pub engine: String,
}

/// The snapshot of a full backup.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BackupSnapshot {
    /// The log behind it begins after this revision.
    #[prost(uint64, tag = "1")]
    pub base_revision: u64,
    /// Its size and checksum.
    #[prost(message, required, tag = "2")]
    pub manifest: Manifest,
}

/// A file of a backup.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupFile {
    /// In the directory of the backup.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its length.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Its checksum, crc32c.
    #[prost(uint32, tag = "3")]
    pub crc: u32,
}

impl BackupManifest {
    /// Whether it needs no other backup.
    pub fn is_full(&self) -> bool {
        self.continues == 0
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// First revision to which it can be restored, with those before it. A snapshot is written while transactions go on:
    /// before its end it is of no one revision.
    pub(super) fn floor(&self) -> u64 {
        let snapshot = |snapshot: BackupSnapshot| snapshot.base_revision.max(snapshot.manifest.end_revision);
        self.snapshot.map_or(self.first_revision, snapshot)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), BackupError> {
        Ok(write_file(&dir.join(MANIFEST_FILE), &envelope::seal(MARK, self))?)
    }

    /// The manifest of the backup in `dir`, or what is wrong with it.
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
