//! The log engine: where groups of transactions and snapshots are kept. Everything else exists once, above it.
//!
//! A generation is a snapshot and the log after it. The newest takes all commits; older ones stay for the watch
//! history, as long as [`crate::history`] says.

pub mod etcd;
pub(crate) mod files;
pub mod memory;
pub mod sled;
mod watermark;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;

use crate::history::Extent;

/// Chunks in key order.
pub type Chunks = Box<dyn Iterator<Item = Result<Bytes, LogError>> + Send>;

/// An engine failed, or holds what it must not.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file operation failed.
    #[error("{what}")]
    Io {
        /// What was done.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The engine failed.
    #[error("log engine: {0}")]
    Engine(String),
    /// Another process has taken the log over.
    #[error("another process has taken over the log{by}")]
    Fenced {
        /// Which one, behind a colon, if that is known.
        by: String,
    },
    /// What was read cannot be right.
    #[error("{0}")]
    Corrupt(String),
    /// It is not known whether it was done, or it was not done yet. The same call, with the same arguments, is made again
    /// until that is known. An engine in this process never says so.
    #[error("{0}")]
    Unknown(String),
}

impl LogError {
    /// Another process, nobody knows which, has taken the log over.
    pub(crate) fn fenced() -> Self {
        Self::Fenced { by: String::new() }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Proof that this process may append: the engine refuses an older one where storage is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// A complete snapshot.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Manifest {
    /// Which attempt at a snapshot of this generation it was.
    #[prost(uint64, tag = "1")]
    pub attempt: u64,
    /// Pieces of it.
    #[prost(uint64, tag = "2")]
    pub n_pieces: u64,
    /// Checksum of the last chunk.
    #[prost(uint32, tag = "3")]
    pub crc: u32,
    /// Revision at which it ended: the log must at least arrive there.
    #[prost(uint64, tag = "4")]
    pub end_revision: u64,
    /// Bytes of its chunks.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
}

/// How the log of a generation ended, noted when the next one began.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct End {
    /// Its last revision: the base of the next generation.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Checksum of its last chunk.
    #[prost(uint32, tag = "2")]
    pub crc: u32,
    /// Bytes of its chunks.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Time of its first commit, Unix milliseconds, if it has one.
    #[prost(int64, optional, tag = "4")]
    pub first_commit_ms: Option<i64>,
}

impl End {
    /// How the log `ended`, the next generation having `base` and `previous_crc`.
    pub fn new(base: Revision, previous_crc: u32, ended: Extent) -> Self {
        let Extent { bytes, first_commit_ms, .. } = ended;
        Self { revision: base.0, crc: previous_crc, bytes, first_commit_ms }
    }
}

/// One generation, as far as it is known without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its log begins behind this revision.
    pub base: Revision,
    /// Checksum of the last chunk of the log before it.
    pub previous_crc: u32,
    /// Its snapshot, once complete.
    pub manifest: Option<Manifest>,
    /// How its log ended: another generation follows. `None`: it takes what comes.
    pub end: Option<End>,
}

impl Generation {
    /// Whether `next` begins where this one ended.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.end.is_some_and(|end| (end.revision, end.crc) == (next.base.0, next.previous_crc))
    }
}

/// What the log must hold: the watermark beside it, written after each sync and before the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// First revision of the history.
    pub floor: Revision,
    /// Last revision that was synced.
    pub last: Revision,
    /// Checksum of the last chunk up to there.
    pub crc: u32,
}

/// What is known of what the log must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// At least this; what is missing of it is damage.
    AtLeast(Claim),
    /// No watermark was ever written: an older version wrote the store.
    Never,
    /// There was a watermark and it cannot be read any more; why.
    Lost(String),
}

impl Claimed {
    /// What must be there, if that is known.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::AtLeast(claim) => Some(claim),
            Self::Never | Self::Lost(_) => None,
        }
    }
}

/// A part of a snapshot, in the order in which they are put.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotPart<'a> {
    /// Opens a new generation, the log before having ended like this; appends go there from now on.
    Begin(End),
    /// A piece of the snapshot.
    Piece {
        /// See [`Manifest`].
        attempt: u64,
        /// From 0.
        piece: u64,
        /// Its chunks.
        chunks: &'a [Bytes],
    },
    /// All pieces are there: older generations are only read from now on.
    Complete(Manifest),
}

/// Called once work beside the commits can go on; from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What an engine has to do beside the commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesideWork {
    /// Nothing: a part of a snapshot can be put.
    None,
    /// Something that is under way.
    UnderWay,
}

/// What is written. One thread owns it.
pub trait Log: Send {
    /// Appends the chunks of one group, which begins with revision `first`. Durable when it returns.
    ///
    /// # Errors
    /// After [`LogError::Unknown`] the same call is made again. After any other error, whether it was written is unknown, and the
    /// process must end.
    fn append(&mut self, first: Revision, chunks: &[Bytes], fence: Fence) -> Result<(), LogError>;

    /// Starts what the next call of [`Log::append`], with the same arguments, completes; whether it has. An engine that writes on the
    /// thread of its caller starts nothing.
    ///
    /// # Errors
    /// As `append`.
    fn start_append(&mut self, _first: Revision, _chunks: &[Bytes], _fence: Fence) -> Result<bool, LogError> {
        Ok(false)
    }

    /// Notes beside the log that everything up to revision `last` is durable, `crc` being the checksum of the last
    /// chunk: from now on its absence is damage.
    ///
    /// # Errors
    /// As `append`.
    fn synced(&mut self, last: Revision, crc: u32) -> Result<(), LogError>;

    /// What was noted by [`Log::synced`] before this log was opened.
    fn claimed(&self) -> Claimed;

    /// What of the log could not be opened, in words. The state must not be served if there is anything.
    fn unopened(&self) -> Vec<String> {
        Vec::new()
    }

    /// Puts a part of the snapshot of the generation with base `revision`. Durable when it returns, but for a piece, which may be
    /// under way until [`Log::tend`] says that nothing is.
    ///
    /// # Errors
    /// As `append`.
    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError>;

    /// Bytes of a piece of a snapshot at most, without what goes around it.
    fn piece_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Goes on with work beside the commits, without waiting for it. Where something is under way, `waker` is called once it
    /// can go on.
    ///
    /// # Errors
    /// As `append`.
    fn tend(&mut self, _waker: &Waker) -> Result<BesideWork, LogError> {
        Ok(BesideWork::None)
    }

    /// Forgets whole generations with a base below `revision`.
    ///
    /// # Errors
    /// As `append`.
    fn drop_before(&mut self, revision: Revision) -> Result<(), LogError>;

    /// Forgets log chunks of groups that begin above `revision`: a torn tail, found on recovery.
    ///
    /// # Errors
    /// As `append`.
    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError>;

    /// Proof that goes with each append.
    fn fence(&self) -> Fence;

    /// The hold of this process on a log that other processes may take over; `None` where none can.
    fn hold(&self) -> Option<Arc<etcd::FenceHold>> {
        None
    }

    /// What is read, from any thread.
    fn reader(&self) -> Arc<dyn LogReader>;

    /// Room left for this log; `None` where that is not known.
    ///
    /// # Errors
    /// The question could not be answered.
    fn free_bytes(&self) -> Result<Option<u64>, LogError>;

    /// Bytes that stay free for leases and for what frees space; `of_disk` is what is to stay free on a disk.
    fn reserve_bytes(&self, of_disk: u64) -> u64 {
        of_disk
    }

    /// While fewer bytes than this are free, only the history stays that the state needs.
    fn history_reserve_bytes(&self) -> u64 {
        0
    }

    /// What an operator is to do when writes are refused for want of space.
    fn advice(&self) -> String {
        "make room on the disk of the store".to_owned()
    }

    /// Bytes that the next opening needs for a copy if this process is killed.
    fn copy_bytes(&self) -> u64 {
        0
    }

    /// Says that what was recovered is good, up to revision `last` with the checksum `crc`: copies kept for the case
    /// that it was not may go. `generations` are all of them, for an engine that was cut off before it had noted how
    /// one ended.
    ///
    /// # Errors
    /// As `append`.
    fn opened(&mut self, generations: &[Extent], last: Revision, crc: u32) -> Result<(), LogError>;

    /// Says that what was recovered is not good: everything is put back as it was before this log was opened.
    ///
    /// # Errors
    /// Something could not be put back; the next opening begins with that.
    fn abandon(self: Box<Self>) -> Result<(), LogError>;

    /// Ends in order.
    ///
    /// # Errors
    /// As `append`.
    fn close(self: Box<Self>) -> Result<(), LogError>;
}

/// What is read. Chunks of the last group may not be durable yet: the caller knows up to where it may look.
pub trait LogReader: Send + Sync + fmt::Debug {
    /// All generations, oldest first.
    fn generations(&self) -> Vec<Generation>;

    /// Log chunks of the generation with `base`, from the group that holds `from` on.
    ///
    /// # Errors
    /// There is no such generation, or it cannot be read.
    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError>;

    /// Chunks of an attempt at a snapshot of the generation with `base`.
    ///
    /// # Errors
    /// As `scan`.
    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError>;

    /// Bytes in storage.
    fn disk_bytes(&self) -> u64;

    /// First revision whose commit is kept.
    fn floor(&self) -> Revision {
        self.generations().first().map_or(Revision(1), |generation| Revision(generation.base.0 + 1))
    }
}
