//! Rebuilds the state at any revision of a chain of backups.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{BackupError, BackupManifest, LOG_FILE, SNAPSHOT_FILE, backup_path};
use crate::{
    chunk::Assembler,
    log::files::{failed, private_file},
    recovery,
    snapshot::SnapshotLoader,
    state::State,
};

/// Rebuilds the state at revision `at` from a chain of backups in `dir`, the full one first. Everything up to `at` is verified; the rest
/// is not read.
pub(super) fn state_at(dir: &Path, chain: &[BackupManifest], at: u64) -> Result<State, BackupError> {
    let (full, snapshot) = chain
        .first()
        .and_then(|full| Some((full, full.snapshot?)))
        .ok_or_else(|| BackupError::Damaged { what: "there is no snapshot to begin with".to_owned() })?;
    let mut state = load(dir, full)?;
    let mut reached = snapshot.base_revision;
    let mut assembler = Assembler::new(Some(reached + 1), Some(full.previous_crc));
    for backup in chain {
        if reached >= at {
            break;
        }
        let damaged = |what: String| BackupError::damaged(backup.number, format!("{LOG_FILE}: {what}"));
        let mut file = ChunkReader::open(dir, backup.number, LOG_FILE)?;
        while let Some(chunk) = file.next_chunk()? {
            let Some(group) = assembler.push(&chunk).map_err(damaged)? else { continue };
            for commit in recovery::commits(&group).map_err(damaged)? {
                if commit.revision().0 <= at {
                    state.replay(&commit);
                    reached = commit.revision().0;
                }
            }
            if reached >= at {
                break;
            }
        }
    }
    if reached == at {
        return Ok(state);
    }
    let last = chain.last().map_or(0, |last| last.number);
    Err(BackupError::damaged(last, format!("{LOG_FILE}: the log ends at revision {reached}, before {at}")))
}

/// Rebuilds the state in the snapshot of a full backup.
fn load(dir: &Path, full: &BackupManifest) -> Result<State, BackupError> {
    let damaged = |what: String| BackupError::damaged(full.number, format!("{SNAPSHOT_FILE}: {what}"));
    let manifest = full.snapshot.map(|snapshot| snapshot.manifest).unwrap_or_default();
    let (mut loader, mut assembler, mut crc) =
        (SnapshotLoader::default(), Assembler::new(Some(0), Some(0)), 0);
    let mut file = ChunkReader::open(dir, full.number, SNAPSHOT_FILE)?;
    while let Some(chunk) = file.next_chunk()? {
        let Some(piece) = assembler.push(&chunk).map_err(damaged)? else { continue };
        crc = piece.crc;
        loader.piece(piece.payload, piece.last.0 + 1 == manifest.n_pieces).map_err(damaged)?;
    }
    if crc != manifest.crc || !loader.is_complete(manifest.n_pieces) {
        return Err(damaged("it is incomplete".to_owned()));
    }
    Ok(loader.state)
}

/// Reads the chunks of one file.
struct ChunkReader {
    number: u64,
    path: PathBuf,
    file: BufReader<File>,
}

impl ChunkReader {
    fn open(dir: &Path, number: u64, name: &str) -> Result<Self, BackupError> {
        let path = backup_path(dir, number).join(name);
        let file = private_file().read(true).open(&path).map_err(failed("opening", &path))?;
        Ok(Self { number, path, file: BufReader::new(file) })
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, BackupError> {
        let mut len = [0; 2];
        if self.file.fill_buf().map_err(failed("reading", &self.path))?.is_empty() {
            return Ok(None);
        }
        self.read(&mut len)?;
        let mut chunk = vec![0; usize::from(u16::from_be_bytes(len))];
        self.read(&mut chunk)?;
        Ok(Some(chunk.into()))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), BackupError> {
        match self.file.read_exact(into) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Err(BackupError::damaged(self.number, format!("the end of {name} is missing")))
            }
            read => Ok(read.map_err(failed("reading", &self.path))?),
        }
    }
}
