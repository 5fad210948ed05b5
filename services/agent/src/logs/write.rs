//! The writing end of a log.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use super::{Segment, segment_path, segments};

/// Appends to a log and removes its oldest files.
#[derive(Debug)]
pub(crate) struct LogWriter {
    dir: PathBuf,
    max_bytes: u64,
    n_files: usize,
    /// The newest is the one that is written.
    segments: Vec<Segment>,
    file: Option<File>,
    /// Bytes that could not be written since the last that could, and why.
    lost: Option<(u64, io::Error)>,
}

impl LogWriter {
    /// Opens the log in `dir`, behind what is there.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub(crate) fn open(dir: &Path, max_bytes: u64, n_files: usize) -> io::Result<Self> {
        // What units write is for nobody else.
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let segments = segments(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            max_bytes: max_bytes.max(1),
            n_files: n_files.max(1),
            segments,
            file: None,
            lost: None,
        })
    }

    /// Appends `bytes`. What cannot be written, on a full disk for example, is counted and said in the log once it can be again:
    /// a unit is not stopped because its output cannot be kept.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if let Some((n, error)) = self.lost.take() {
            let words = format!("\n[godel: {n} bytes of output could not be written: {error}]\n");
            if let Err((_, error)) = self.append(words.as_bytes()) {
                self.lost = Some((n + count(bytes), error));
                return;
            }
        }
        if let Err(lost) = self.append(bytes) {
            self.lost = Some(lost);
        }
    }

    /// Makes sure that what was written is on the disk.
    pub(crate) fn sync(&self) {
        if let Some(file) = &self.file {
            // Nobody can do anything about it.
            let _failed = file.sync_data();
        }
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), (u64, io::Error)> {
        while !bytes.is_empty() {
            let written = self.append_some(bytes);
            match written {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((count(bytes), error)),
            }
        }
        Ok(())
    }

    fn append_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_full = self.segments.last().is_none_or(|newest| newest.len >= self.max_bytes);
        if is_full {
            self.begin_file()?;
        }
        let Some(newest) = self.segments.last_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(options().append(true).open(&newest.path)?),
        };
        let room = usize::try_from(self.max_bytes - newest.len).unwrap_or(usize::MAX);
        let n = file.write(&bytes[..bytes.len().min(room)])?;
        newest.len += u64::try_from(n).unwrap_or(0);
        if n == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(n) }
    }

    fn begin_file(&mut self) -> io::Result<()> {
        let start = self.segments.last().map_or(0, |newest| newest.start + newest.len);
        let path = segment_path(&self.dir, start);
        self.file = Some(options().write(true).create_new(true).open(&path)?);
        self.segments.push(Segment { start, len: 0, path });
        while self.segments.len() > self.n_files {
            let oldest = self.segments.remove(0);
            // It is tried again by who removes the whole log.
            let _stays = fs::remove_file(oldest.path);
        }
        Ok(())
    }
}

/// Files are private, and a link that somebody has put in their place is not followed.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    options
}

fn count(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
