//! Why a store did not open.

use std::path::PathBuf;

use crate::{log::LogError, loss::Loss, nearby};

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another process", .dir.display())]
    Locked {
        /// The store.
        dir: PathBuf,
    },
    /// Its files cannot be used, or the engine failed.
    #[error("the store cannot be opened")]
    Log(#[source] LogError),
    /// Something acknowledged is missing or rotten; nothing was changed.
    #[error(
        "the store is damaged: {what}. {loss} Nothing was changed. Run `godel state check` for details, \
         then `godel state repair --truncate` to drop what is missing, or `godel state restore` to start \
         from an export"
    )]
    Damaged {
        /// What was found.
        what: String,
        /// What cannot be recovered.
        loss: Loss,
    },
    /// There is no store, but one right above or below, which would not be read.
    #[error("{} holds no store, but {} does, and it would not be read: {}", .dir.display(), .found.display(), nearby::start_of(.found, .dir))]
    Elsewhere {
        /// Where a store would have been made.
        dir: PathBuf,
        /// Where there is one.
        found: PathBuf,
    },
    /// The log is kept by another engine.
    #[error(
        "the state of {} has its log in {engine}, not here: start it with the engine that it has, migrate it with \
         `godel state migrate`, or name another directory",
        .dir.display()
    )]
    OtherEngine {
        /// Directory of the state.
        dir: PathBuf,
        /// The engine that keeps its log.
        engine: &'static str,
    },
    /// The store was moved, and is served where it went.
    #[error(
        "the store in {place} was moved to {to} and is not served here; it can be read with `godel state check` and \
         `godel state export`"
    )]
    Moved {
        /// The place that was opened.
        place: String,
        /// Where the store is now.
        to: String,
    },
    /// A migration to this place has not ended.
    #[error(
        "{place} holds a store that is being moved from {from}; end that with `godel state migrate --from {from} --to {place}`"
    )]
    Unfinished {
        /// The place that was opened.
        place: String,
        /// Where the store is.
        from: String,
    },
    /// There is no room for the copy that is made before opening after an unclean stop.
    #[error(
        "opening after an unclean stop needs {needed} free bytes for a copy, but only {free} are free: \
         make room on the disk of the store"
    )]
    NoSpace {
        /// Bytes of the copy.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
}

impl OpenError {
    /// There is no room on the disk: it opens once there is.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Log(LogError::Io { source, .. }) => source.kind() == std::io::ErrorKind::StorageFull,
            Self::Log(_)
            | Self::Locked { .. }
            | Self::Damaged { .. }
            | Self::Elsewhere { .. }
            | Self::OtherEngine { .. }
            | Self::Moved { .. }
            | Self::Unfinished { .. } => false,
        }
    }

    /// What keeps the log does not answer, or refuses writes: it opens once it does not.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Log(LogError::Unknown(_)))
    }
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Corrupt(what) => Self::Damaged { what, loss: Loss::default() },
            error => Self::Log(error),
        }
    }
}
