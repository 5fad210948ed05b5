//! Why a unit may not be submitted where it wants to go.

use crate::{sub_cluster::Disagreement, unreadable::Unreadable};

/// Why a unit may not go into a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Neither `default` nor one with a record.
    #[error("there is no queue `{0}`: create it first, or name another one")]
    Unknown(String),
    /// Only leaves take units.
    #[error("queue `{queue}` has queues below it, which take its units: name one of them, as `{below}`")]
    NotALeaf {
        /// The queue.
        queue: String,
        /// The first of them.
        below: String,
    },
    /// A list of owners leaves it out.
    #[error("owner `{owner}` may not submit to queue `{queue}`: queue `{by}` names those who may")]
    Denied {
        /// Who asked.
        owner: String,
        /// The queue.
        queue: String,
        /// Whose list it is.
        by: String,
    },
}

/// What is wrong with where a unit wants to go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// Its queue does not take it.
    #[error(transparent)]
    Queue(#[from] NotAdmitted),
    /// There is no such priority class.
    #[error("there is no priority class `{0}`: create it first, or name another one")]
    UnknownClass(String),
    /// It would be of two sub-clusters.
    #[error(transparent)]
    SubClusters(#[from] Disagreement),
    /// Its queue, one above it or its priority class cannot be read.
    #[error("{0}: a newer version wrote it, or it is damaged; the log of the dispatcher says more")]
    Unreadable(Box<Unreadable>),
}
