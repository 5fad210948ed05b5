//! What the engine keeps, as chunks up to one revision: for backups, and for whoever follows the log of another process.
//!
//! The newest complete snapshot comes first, if it is wanted, and then the log from its base, over the ends of generations.
//! The checksums of the log's chunks are one chain, so that the receiver sees that none is missing. Everything is read
//! from the engine by the caller's thread, a part at a time: the writer waits for nothing.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;

use crate::{
    chunk::Assembler,
    log::{Chunks, Generation, LogError, LogReader, Manifest},
    recovery::unpanicked,
};

/// A part ends once it has as many bytes of chunks: messages are at most 512 KiB.
const PART_BYTES: usize = 256 << 10;

/// Where a snapshot stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStart {
    /// The log to be replayed onto it begins behind this revision.
    pub base: Revision,
    /// Checksum of the last chunk of the log before that.
    pub previous_crc: u32,
    /// Its size and checksum. Without pieces it has no chunks: nothing was committed up to its base.
    pub manifest: Manifest,
}

/// What a [`StoreReader`] delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStart {
    /// The snapshot that comes first; `None`: the log alone was asked for.
    pub snapshot: Option<SnapshotStart>,
    /// First revision of the log; above `last` if there is none.
    pub first: Revision,
    /// Last revision of the log: the last visible one when reading began.
    pub last: Revision,
}

/// Chunks in their order, about 256 KiB together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// Of the snapshot.
    Snapshot(Vec<Bytes>),
    /// Of the log.
    Log(Vec<Bytes>),
}

/// Why the store cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum StoreReadError {
    /// History does not go back so far: begin with a snapshot.
    #[error("history begins at revision {floor}")]
    Compacted {
        /// First revision of the log that is kept.
        floor: Revision,
    },
    /// The first revision asked for is beyond the next one: what was read before is not this store.
    #[error("the last revision is {last}")]
    Future {
        /// Of the store.
        last: Revision,
    },
    /// The store dropped the generation while it was read: begin again.
    #[error("the store dropped generation {base} while it was being read")]
    Dropped {
        /// Of the generation.
        base: Revision,
    },
    /// What is kept cannot be read, or is not whole.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Reads a store to one revision. What was asked for at the beginning is delivered whole or ends with an error.
pub struct StoreReader {
    reader: Arc<dyn LogReader>,
    start: StoreStart,
    /// Chunks of the snapshot and how many of its pieces are left.
    snapshot: Option<(Chunks, u64)>,
    /// Chunks of the generation with this base, once its log is read.
    log: Option<(Revision, Chunks)>,
    /// Of the log: chunks follow each other over generations.
    assembler: Assembler,
    /// First revision that was not delivered.
    next: Revision,
}

impl fmt::Debug for StoreReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, next, .. } = self;
        f.debug_struct("StoreReader").field("start", start).field("next", next).finish_non_exhaustive()
    }
}

impl StoreReader {
    /// Begins with the group of revision `from`, or with the newest snapshot if `from` is 0. `last` is the last visible
    /// revision; `floor` the first one whose history is offered.
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

    /// What is delivered.
    pub fn start(&self) -> StoreStart {
        self.start
    }

    /// The next chunks; `None` behind the last one. Reads from the engine.
    ///
    /// # Errors
    /// See [`StoreReadError`]; nothing can be read from this reader after that.
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

    /// Some chunks of the snapshot, of which `n_pieces` pieces are left.
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
            // The next generation goes on where this one ended.
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

    /// The chunks of the generation that has the next revision.
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

/// What is read of the generation with `base`. A failure means nothing if the generation is gone by now.
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
