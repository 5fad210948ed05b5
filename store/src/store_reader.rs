//! Reads the chunks of a store up to one revision: for backups, and for a process that follows the log of another one.
//!
//! The newest complete snapshot comes first, if requested, and then the log from its base, across the ends of generations.
//! The checksums of the chunks of the log form one chain, so that the receiver notices a missing one. Everything is read
//! from the engine by the thread of the caller, one part at a time, and the writer never waits for it.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;

use crate::{
    chunk::Assembler,
    log::{Chunks, Generation, LogError, LogReader, Manifest},
    recovery::unpanicked,
};

/// A part ends once it has this many bytes of chunks: messages have at most 512 KiB.
const PART_BYTES: usize = 256 << 10;

/// The position of a snapshot in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStart {
    /// The log to be replayed onto the snapshot begins behind this revision.
    pub base: Revision,
    /// Checksum of the last chunk of the log before that revision.
    pub previous_crc: u32,
    /// Size and checksum of the snapshot. Without pieces it has no chunks, because nothing was committed up to its base.
    pub manifest: Manifest,
}

/// What a [`StoreReader`] delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStart {
    /// The snapshot that comes first; `None` if only the log was requested.
    pub snapshot: Option<SnapshotStart>,
    /// First revision of the log; above `last` if the log is empty.
    pub first: Revision,
    /// Last revision of the log, which was the last visible one when reading began.
    pub last: Revision,
}

/// Consecutive chunks, of about 256 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// Chunks of the snapshot.
    Snapshot(Vec<Bytes>),
    /// Chunks of the log.
    Log(Vec<Bytes>),
}

/// Why the store cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum StoreReadError {
    /// The history does not reach back to the requested revision: start with a snapshot.
    #[error("history begins at revision {floor}")]
    Compacted {
        /// First revision of the history.
        floor: Revision,
    },
    /// The requested revision is beyond the next one of the store: the reader has read another store before.
    #[error("the last revision is {last}")]
    Future {
        /// Last revision of the store.
        last: Revision,
    },
    /// The store dropped the generation while it was read: start again.
    #[error("the store dropped generation {base} while it was being read")]
    Dropped {
        /// Base of the generation.
        base: Revision,
    },
    /// The store cannot be read, or is damaged.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Reads a store up to one revision. The reader delivers everything up to that revision, or ends with an error.
pub struct StoreReader {
    reader: Arc<dyn LogReader>,
    start: StoreStart,
    /// The chunks of the snapshot, and the number of pieces that are left.
    snapshot: Option<(Chunks, u64)>,
    /// The chunks of the log of the generation with this base, once it is being read.
    log: Option<(Revision, Chunks)>,
    /// Verifies that chunks of the log follow each other across generations.
    assembler: Assembler,
    /// First revision that has not been delivered.
    next: Revision,
}

impl fmt::Debug for StoreReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, next, .. } = self;
        f.debug_struct("StoreReader").field("start", start).field("next", next).finish_non_exhaustive()
    }
}

impl StoreReader {
    /// Starts at the group of revision `from`, or at the newest snapshot if `from` is 0. `last` is the last visible
    /// revision, and `floor` the first one whose history is offered.
    pub(crate) fn open(
        reader: Arc<dyn LogReader>,
        from: Revision,
        last: Revision,
        floor: Revision,
    ) -> Result<Self, StoreReadError> {
        if from.0 > last.0 + 1 {
            return Err(StoreReadError::Future { last });
        }
        if from.0 > 0 {
            if from < floor {
                return Err(StoreReadError::Compacted { floor });
            }
            let start = StoreStart { snapshot: None, first: from, last };
            return Ok(Self::of(reader, start, None, Assembler::default()));
        }
        let generations = reader.generations();
        let newest = generations.iter().rev().find_map(|generation| Some((generation, generation.manifest?)));
        let (&Generation { base, previous_crc, .. }, manifest) =
            newest.ok_or_else(|| LogError::Corrupt("no generation has a complete snapshot".to_owned()))?;
        let snapshot = SnapshotStart { base, previous_crc, manifest };
        let chunks: Option<Chunks> = if manifest.n_pieces == 0 {
            None
        } else {
            Some(of_generation(&*reader, base, || reader.snapshot(base, manifest.attempt))?)
        };
        let first = Revision(base.0 + 1);
        let start = StoreStart { snapshot: Some(snapshot), first, last };
        let assembler = Assembler::new(Some(first.0), Some(previous_crc));
        Ok(Self::of(Arc::clone(&reader), start, chunks.map(|chunks| (chunks, manifest.n_pieces)), assembler))
    }

    fn of(
        reader: Arc<dyn LogReader>,
        start: StoreStart,
        snapshot: Option<(Chunks, u64)>,
        assembler: Assembler,
    ) -> Self {
        Self { reader, start, snapshot, log: None, assembler, next: start.first }
    }

    /// Returns what the reader will deliver.
    pub fn start(&self) -> StoreStart {
        self.start
    }

    /// Reads the next chunks from the engine; `None` behind the last one.
    ///
    /// # Errors
    /// See [`StoreReadError`]. The reader cannot be used after an error.
    pub fn next_part(&mut self) -> Result<Option<StorePart>, StoreReadError> {
        if let Some((chunks, n_pieces)) = self.snapshot.take() {
            let base = self.start.snapshot.map_or(Revision(0), |snapshot| snapshot.base);
            return self.next_of_snapshot(base, chunks, n_pieces).map(Some);
        }
        let (mut part, mut bytes) = (Vec::new(), 0);
        while self.next <= self.start.last && bytes < PART_BYTES {
            let chunk = self.next_of_log()?;
            let pushed = self.assembler.push(&chunk);
            bytes += chunk.len();
            part.push(chunk);
            let Some(group) = pushed.map_err(|what| self.damaged(&what))? else { continue };
            if group.last > self.start.last || group.first > self.next {
                return Err(self.damaged(&format!("found revision {}", group.first)));
            }
            self.next = Revision(group.last.0 + 1);
        }
        Ok((!part.is_empty()).then_some(StorePart::Log(part)))
    }

    /// Reads some chunks of the snapshot, of which `n_pieces` pieces are left.
    fn next_of_snapshot(
        &mut self,
        base: Revision,
        mut chunks: Chunks,
        mut n_pieces: u64,
    ) -> Result<StorePart, StoreReadError> {
        let (mut part, mut bytes) = (Vec::new(), 0);
        while n_pieces > 0 && bytes < PART_BYTES {
            let next = of_generation(&*self.reader, base, || chunks.next().transpose())?;
            let incomplete = || LogError::Corrupt(format!("the snapshot of generation {base} is incomplete"));
            let chunk = next.ok_or_else(incomplete)?;
            let (header, _) = crate::chunk::read(&chunk)
                .map_err(|error| LogError::Corrupt(format!("snapshot of generation {base}: {error}")))?;
            n_pieces -= u64::from(header.index + 1 == header.count);
            bytes += chunk.len();
            part.push(chunk);
        }
        if n_pieces > 0 {
            self.snapshot = Some((chunks, n_pieces));
        }
        Ok(StorePart::Snapshot(part))
    }

    fn next_of_log(&mut self) -> Result<Bytes, StoreReadError> {
        loop {
            let (base, mut chunks) = match self.log.take() {
                Some(open) => open,
                None => self.open_log()?,
            };
            if let Some(chunk) = of_generation(&*self.reader, base, || chunks.next().transpose())? {
                self.log = Some((base, chunks));
                return Ok(chunk);
            }
            // The next generation continues where this one ended.
            let has_next = self
                .reader
                .generations()
                .iter()
                .any(|generation| generation.base > base && generation.base.0 < self.next.0);
            if !has_next {
                return Err(self.damaged("nothing follows"));
            }
        }
    }

    /// Returns the chunks of the generation that has the next revision.
    fn open_log(&self) -> Result<(Revision, Chunks), StoreReadError> {
        let generations = self.reader.generations();
        let found = generations.iter().rev().find(|generation| generation.base < self.next);
        let base = found.map(|generation| generation.base);
        let base = base.ok_or(StoreReadError::Dropped { base: Revision(self.next.0.saturating_sub(1)) })?;
        let chunks = of_generation(&*self.reader, base, || self.reader.scan(base, self.next))?;
        Ok((base, chunks))
    }

    fn damaged(&self, what: &str) -> StoreReadError {
        let revision = self.next;
        StoreReadError::Log(LogError::Corrupt(format!("revision {revision} cannot be read: {what}")))
    }
}

/// Judges the outcome of a read of the generation with `base`: a failure means only that it was dropped if the generation is gone by now.
fn of_generation<T>(
    reader: &dyn LogReader,
    base: Revision,
    read: impl FnOnce() -> Result<T, LogError>,
) -> Result<T, StoreReadError> {
    unpanicked(read).map_err(|error| {
        let is_kept = reader.generations().iter().any(|generation| generation.base == base);
        if is_kept { StoreReadError::Log(error) } else { StoreReadError::Dropped { base } }
    })
}
