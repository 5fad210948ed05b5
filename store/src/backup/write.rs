//! Writes a backup from the parts of a store, and verifies each part on arrival.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    BackupError, BackupFile, BackupManifest, BackupSnapshot, Continuation, LOG_FILE, SNAPSHOT_FILE,
    backup_path, part_path,
};
use crate::{
    chunk::{self, Assembler},
    log::files::{create_private_dir, failed, private_file, remove_dir, sync_dir},
    store_reader::{SnapshotStart, StorePart, StoreStart},
};

/// Describes a backup to be written.
#[derive(Clone, Debug)]
pub struct NewBackup {
    /// Id of the store.
    pub store_id: u64,
    /// What the store will deliver.
    pub start: StoreStart,
    /// The position that the backup continues; required if the store delivers no snapshot.
    pub continues: Option<Continuation>,
    /// Time by the clock of state, in Unix milliseconds.
    pub time_ms: i64,
    /// Version of state.
    pub version: String,
    /// Engine of the store.
    pub engine: String,
}

/// Writes the parts of a store. The backup exists once [`BackupWriter::finish`] has returned; if the writer is
/// dropped before, nothing of it remains.
#[derive(Debug)]
pub struct BackupWriter {
    dir: PathBuf,
    part: PartDir,
    manifest: BackupManifest,
    continues: Option<Continuation>,
    snapshot: Option<SnapshotCheck>,
    log: ChunkFile,
    assembler: Assembler,
    /// First revision that has not arrived.
    next: u64,
}

/// The directory of a backup that is being written. It is removed on drop unless it was renamed to its final name.
#[derive(Debug)]
struct PartDir(PathBuf);

impl Drop for PartDir {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.0) {
            // The next backup removes it first.
            tracing::warn!(%error, "the files of an unfinished backup cannot be removed");
        }
    }
}

/// Progress of the snapshot.
#[derive(Debug)]
struct SnapshotCheck {
    file: ChunkFile,
    assembler: Assembler,
    start: SnapshotStart,
    n_pieces: u64,
    crc: u32,
}

impl BackupWriter {
    pub(super) fn create(dir: &Path, number: u64, new: NewBackup) -> Result<Self, BackupError> {
        let NewBackup { store_id, start, continues, time_ms, version, engine } = new;
        let part = part_path(dir, number);
        let previous_crc = match (&start.snapshot, &continues) {
            (Some(snapshot), None) if snapshot.base.0 + 1 == start.first.0 => snapshot.previous_crc,
            (None, Some(continues)) if continues.first == start.first && continues.store_id == store_id => {
                continues.previous_crc
            }
            _ => {
                let what = format!("it begins with revision {}, which was not requested", start.first);
                return Err(BackupError::BadStream { what });
            }
        };
        remove_dir(&part)?;
        create_private_dir(&part)?;
        let part = PartDir(part);
        let snapshot = match start.snapshot {
            Some(start) => Some(SnapshotCheck {
                file: ChunkFile::create(&part.0, SNAPSHOT_FILE)?,
                assembler: Assembler::new(Some(0), Some(0)),
                start,
                n_pieces: 0,
                crc: 0,
            }),
            None => None,
        };
        let manifest = BackupManifest {
            number,
            store_id,
            continues: continues.as_ref().map_or(0, |continues| continues.number),
            first_revision: start.first.0,
            last_revision: start.last.0,
            previous_crc,
            crc: previous_crc,
            time_ms,
            snapshot: start.snapshot.map(|snapshot| BackupSnapshot {
                base_revision: snapshot.base.0,
                manifest: snapshot.manifest,
            }),
            files: Vec::new(),
            version,
            engine,
        };
        Ok(Self {
            dir: dir.to_owned(),
            log: ChunkFile::create(&part.0, LOG_FILE)?,
            part,
            manifest,
            continues,
            snapshot,
            assembler: Assembler::new(Some(start.first.0), Some(previous_crc)),
            next: start.first.0,
        })
    }

    /// Writes the next part.
    ///
    /// # Errors
    /// The part is not the expected one, or cannot be written. [`BackupError::Diverged`]: the log of the store does not continue the
    /// backup that this one continues.
    pub fn take(&mut self, part: &StorePart) -> Result<(), BackupError> {
        match part {
            StorePart::Snapshot(chunks) => chunks.iter().try_for_each(|chunk| self.take_snapshot(chunk)),
            StorePart::Log(chunks) => chunks.iter().try_for_each(|chunk| self.take_log(chunk)),
        }
    }

    fn take_snapshot(&mut self, chunk: &Bytes) -> Result<(), BackupError> {
        let bad = |what: String| BackupError::BadStream { what: format!("snapshot: {what}") };
        let snapshot = self.snapshot.as_mut().ok_or_else(|| bad("none was asked for".to_owned()))?;
        if let Some(piece) = snapshot.assembler.push(chunk).map_err(bad)? {
            snapshot.n_pieces += 1;
            snapshot.crc = piece.crc;
        }
        snapshot.file.put(chunk)
    }

    fn take_log(&mut self, chunk: &Bytes) -> Result<(), BackupError> {
        if let Some(continues) = &self.continues
            && self.log.bytes == 0
            && chunk::read(chunk).is_ok_and(|(header, _)| header.previous_crc != continues.previous_crc)
        {
            return Err(BackupError::Diverged { number: continues.number });
        }
        let bad = |what: String| BackupError::BadStream { what: format!("log: {what}") };
        if let Some(group) = self.assembler.push(chunk).map_err(bad)? {
            self.next = group.last.0 + 1;
            self.manifest.crc = group.crc;
        }
        self.log.put(chunk)
    }

    /// Ends the backup. When this returns, the backup is complete, durable and has its final name.
    ///
    /// # Errors
    /// A part is missing, or a file operation failed; then nothing of the backup remains.
    pub fn finish(self) -> Result<BackupManifest, BackupError> {
        let Self { dir, part, mut manifest, snapshot, log, assembler, next, .. } = self;
        let missing = |what: &str| BackupError::BadStream { what: format!("{what} is incomplete") };
        if let Some(SnapshotCheck { file, assembler, start, n_pieces, crc }) = snapshot {
            let is_whole = n_pieces == start.manifest.n_pieces && crc == start.manifest.crc;
            if !is_whole || assembler.is_open() {
                return Err(missing("the snapshot"));
            }
            manifest.files.push(file.finish()?);
        }
        if next != manifest.last_revision + 1 || assembler.is_open() {
            return Err(missing("the log"));
        }
        manifest.files.push(log.finish()?);
        manifest.write(&part.0)?;
        let path = backup_path(&dir, manifest.number);
        fs::rename(&part.0, &path).map_err(failed("renaming", &part.0))?;
        sync_dir(&dir)?;
        Ok(manifest)
    }
}

/// A file of chunks, each preceded by its length.
#[derive(Debug)]
struct ChunkFile {
    name: &'static str,
    path: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
    crc: u32,
}

impl ChunkFile {
    fn create(dir: &Path, name: &'static str) -> Result<Self, BackupError> {
        let path = dir.join(name);
        let file =
            private_file().write(true).create_new(true).open(&path).map_err(failed("creating", &path))?;
        Ok(Self { name, path, out: BufWriter::new(file), bytes: 0, crc: 0 })
    }

    fn put(&mut self, chunk: &Bytes) -> Result<(), BackupError> {
        let too_long = |_| BackupError::BadStream { what: format!("a chunk of {} bytes", chunk.len()) };
        let len = u16::try_from(chunk.len()).map_err(too_long)?.to_be_bytes();
        for bytes in [&len[..], chunk] {
            self.out.write_all(bytes).map_err(failed("writing", &self.path))?;
            self.bytes += bytes.len() as u64;
            self.crc = crc32c::crc32c_append(self.crc, bytes);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<BackupFile, BackupError> {
        let synced = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        synced.map_err(failed("writing", &self.path))?;
        Ok(BackupFile { name: self.name.to_owned(), bytes: self.bytes, crc: self.crc })
    }
}
