//! Refusals as statuses, and why the service cannot serve.

use std::time::Duration;

use godel_kit::{
    server::ServerError,
    status::{self, reason, resource_exhausted, with_info},
};
use godel_proto::v1;
use godel_store::{OpenError, RefusalReason, TxnRefusal};
use godel_wire::BadField;
use tokio::sync::mpsc::error::TrySendError;
use tonic::{Code, Status};

use crate::identities::{CaError, OwnLeafError};

/// Why the state service ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store does not open.
    #[error("the store in {dir} cannot be opened")]
    Open {
        /// Its directory.
        dir: String,
        /// Why.
        #[source]
        source: OpenError,
    },
    /// There is no client of the etcd that the store is in.
    #[error("the client of etcd")]
    Etcd(#[from] godel_etcd::ClientError),
    /// A setting is impossible.
    #[error("configuration: {0}")]
    Config(BadField),
    /// The text that arms crash points is wrong.
    #[error("configuration: crash_points")]
    CrashPoints(#[from] godel_crash::CrashPointsError),
    /// State cannot register itself.
    #[error("state cannot write its own registration")]
    Register(#[source] TxnRefusal),
    /// There is no CA.
    #[error("identities")]
    Ca(#[from] CaError),
    /// State has no certificate of its own.
    #[error("identities")]
    OwnLeaf(#[from] OwnLeafError),
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The listener cannot be used.
    #[error("the listener of state")]
    Listener(#[source] std::io::Error),
    /// The address under which other states would reach this one is malformed.
    #[error(transparent)]
    Address(#[from] godel_kit::address::BadAddress),
    /// A thread cannot be started.
    #[error("a thread of the service cannot be started")]
    Thread(#[source] std::io::Error),
    /// A part of the service has panicked; the log says which.
    #[error("a task of the service has panicked")]
    Panicked,
}

/// Pause that a full disk asks for.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// Pause that a full queue asks for.
const QUEUE_RETRY: Duration = Duration::from_millis(100);

/// A refused transaction as a status; `writer` is whose it was.
pub(crate) fn status(refusal: &TxnRefusal, writer: Option<&v1::Writer>) -> Status {
    let message = refusal.message.clone();
    let metadata = || {
        let mut metadata = vec![("index", refusal.index.to_string())];
        if refusal.revision.0 > 0 {
            metadata.push(("revision", refusal.revision.to_string()));
        }
        if let Some(writer) = writer {
            metadata.push(("lease", writer.lease.clone()));
        }
        metadata
    };
    match refusal.reason {
        RefusalReason::Precondition | RefusalReason::NodeChanged => {
            with_info(Code::Aborted, reason::REVISION_MISMATCH, message, metadata())
        }
        RefusalReason::RowConflict => with_info(Code::Aborted, ROW_CONFLICT, message, metadata()),
        RefusalReason::StaleEpoch => {
            with_info(Code::FailedPrecondition, reason::STALE_EPOCH, message, metadata())
        }
        RefusalReason::StoreChanged => {
            with_info(Code::FailedPrecondition, reason::STORE_CHANGED, message, metadata())
        }
        RefusalReason::FutureRevision => {
            with_info(Code::OutOfRange, reason::FUTURE_REVISION, message, metadata())
        }
        RefusalReason::Forbidden => with_info(Code::PermissionDenied, reason::FORBIDDEN, message, metadata()),
        RefusalReason::Invalid => {
            let path = message.split_once(": ").map_or("txn", |(path, _)| path).to_owned();
            status::invalid_argument([BadField::new(path, message)])
        }
        RefusalReason::StoreFull => resource_exhausted(reason::STORE_FULL, message, FULL_RETRY),
        RefusalReason::Closed => status::stopping(),
    }
}

/// A row or record is not in the state that the operation needs.
const ROW_CONFLICT: &str = "ROW_CONFLICT";

/// A refusal as it stands in an answer; `None` when the stream must end instead.
pub(crate) fn refusal(refusal: &TxnRefusal) -> Option<v1::TxnRefusal> {
    let reason = match refusal.reason {
        RefusalReason::Precondition => v1::TxnRefusalReason::Precondition,
        RefusalReason::StaleEpoch => v1::TxnRefusalReason::StaleEpoch,
        RefusalReason::StoreChanged => v1::TxnRefusalReason::StoreChanged,
        RefusalReason::FutureRevision => v1::TxnRefusalReason::FutureRevision,
        RefusalReason::Forbidden => v1::TxnRefusalReason::Forbidden,
        RefusalReason::Invalid => v1::TxnRefusalReason::Invalid,
        RefusalReason::StoreFull => v1::TxnRefusalReason::StoreFull,
        RefusalReason::RowConflict => v1::TxnRefusalReason::RowConflict,
        RefusalReason::NodeChanged => v1::TxnRefusalReason::NodeChanged,
        RefusalReason::Closed => return None,
    };
    Some(v1::TxnRefusal {
        reason: reason.into(),
        index: refusal.index,
        revision: refusal.revision.0,
        message: refusal.message.clone(),
    })
}

/// Name of a reason in metrics.
pub(crate) fn reason_name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Precondition => reason::REVISION_MISMATCH,
        RefusalReason::StaleEpoch => reason::STALE_EPOCH,
        RefusalReason::StoreChanged => reason::STORE_CHANGED,
        RefusalReason::FutureRevision => reason::FUTURE_REVISION,
        RefusalReason::Forbidden => reason::FORBIDDEN,
        RefusalReason::Invalid => "INVALID",
        RefusalReason::StoreFull => reason::STORE_FULL,
        RefusalReason::RowConflict => ROW_CONFLICT,
        RefusalReason::NodeChanged => "NODE_CHANGED",
        RefusalReason::Closed => reason::STOPPING,
    }
}

/// A job that found no room in its queue, or nobody to take it.
pub(crate) fn queue<T>(error: TrySendError<T>) -> Status {
    match error {
        TrySendError::Full(_) => {
            resource_exhausted(reason::OVERLOADED, "too many requests wait for a commit", QUEUE_RETRY)
        }
        TrySendError::Closed(_) => status::stopping(),
    }
}
