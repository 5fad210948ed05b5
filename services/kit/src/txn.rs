//! Transactions as a pipeline: many under way, answered in order, sent again after a reconnect with the same
//! sequence, so that each is applied once.

mod task;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_domain::{
    change::Change,
    change_line::{CallCause, ChangeLine},
    txn::{RecordRef, TxnBuilder, TxnRefusal, TxnRefusalReason},
};
use godel_proto::v1;
use godel_wire::to_proto;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{client::Channel, config::TxnConfig, lease::Fence};

pub use godel_domain::txn::Receipt;
pub use godel_wire::TXN_BYTES_MAX;

/// Encodes the operations and preconditions of a transaction as they are added.
#[derive(Debug, Default)]
pub struct TxnEncoder {
    /// The operations, encoded.
    pub ops: Vec<Bytes>,
    /// The preconditions.
    pub preconditions: Vec<v1::Precondition>,
}

impl TxnBuilder for TxnEncoder {
    fn push(&mut self, change: &Change) -> usize {
        // No leader writes what has no operation; state would refuse the empty one as invalid.
        let op = to_proto::op(change).unwrap_or_default();
        // Tag and length: at most 4 bytes for an operation below 1 MiB.
        let n_bytes = op.len() + 4;
        self.ops.push(op);
        n_bytes
    }

    fn require(&mut self, record: RecordRef<'_>, revision: Revision) -> usize {
        let precondition = to_proto::requirement(record, revision);
        // Tag and length: 2 bytes more for the longest path.
        let n_bytes = precondition.encoded_len() + 4;
        self.preconditions.push(precondition);
        n_bytes
    }
}

/// What must hold for a transaction to be applied, and on whose behalf it is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Revisions of records.
    pub preconditions: Vec<v1::Precondition>,
    /// Specs of the nodes that it binds to have not changed after this; 0: not looked at.
    pub nodes_as_of: Revision,
    /// Lines of the change log that are written with it.
    pub changes: Vec<ChangeLine>,
}

impl From<v1::Precondition> for Conditions {
    fn from(precondition: v1::Precondition) -> Self {
        Self { preconditions: vec![precondition], ..Self::default() }
    }
}

impl Conditions {
    /// The same conditions for a transaction that is made on behalf of these calls.
    #[must_use]
    pub fn on_behalf_of(mut self, calls: impl IntoIterator<Item = CallCause>) -> Self {
        self.changes.extend(calls.into_iter().map(ChangeLine::done));
        self
    }
}

/// Why a transaction is not (known to be) durable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TxnError {
    /// The store refused it; nothing of it was applied.
    #[error("refused: {}", .0.message)]
    Refused(TxnRefusal),
    /// The lease ended first. It may have been applied: who leads next will see it.
    #[error("the lease was lost before the answer")]
    LeaseLost,
    /// The pipeline's task is gone.
    #[error("the pipeline is closed")]
    Closed,
}

/// The one writer of a lease's transactions. Clones share it; when all are gone, what was submitted is still
/// answered.
#[derive(Clone)]
pub struct TxnPipeline {
    submissions: mpsc::UnboundedSender<TxnSubmission>,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    fence: Fence,
}

/// A transaction under way: resolves once it is durable, refused, or the lease is lost.
#[derive(Debug)]
pub struct Pending {
    reply: oneshot::Receiver<Result<Receipt, TxnError>>,
}

struct TxnSubmission {
    ops: Vec<Bytes>,
    conditions: Conditions,
    reply: oneshot::Sender<Result<Receipt, TxnError>>,
    room: TxnRoom,
}

/// Room in the pipeline, given back when the answer is there.
struct TxnRoom {
    _place: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl TxnPipeline {
    /// Starts the pipeline of one grant of a lease. Its sequences start at 1.
    pub fn spawn(state: Channel, fence: Fence, config: &TxnConfig) -> Self {
        let (submissions, receiver) = mpsc::unbounded_channel();
        let bytes_max = config.max_in_flight_bytes.clamp(TXN_BYTES_MAX, Semaphore::MAX_PERMITS);
        let pipeline = Self {
            submissions,
            places: Arc::new(Semaphore::new(config.max_in_flight.clamp(1, Semaphore::MAX_PERMITS))),
            bytes: Arc::new(Semaphore::new(bytes_max)),
            bytes_max,
            fence: fence.clone(),
        };
        crate::task::spawn("transactions", task::run(state, fence, receiver, *config.reconnect_max));
        pipeline
    }

    /// Puts a transaction into the pipeline, waiting for room. Transactions are applied in the order in which
    /// these calls return.
    ///
    /// # Errors
    /// `Refused` as invalid when it is empty or over [`TXN_BYTES_MAX`]; `LeaseLost`; `Closed`.
    pub async fn submit(&self, ops: Vec<Bytes>, conditions: Conditions) -> Result<Pending, TxnError> {
        let size = checked_size(&ops)?;
        let lost = async {
            self.fence.lost().await;
            TxnError::LeaseLost
        };
        let room = async {
            let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| TxnError::Closed)?;
            let bytes = Arc::clone(&self.bytes).acquire_many_owned(self.permits(size)).await;
            Ok(TxnRoom { _place: place, _bytes: bytes.map_err(|_| TxnError::Closed)? })
        };
        let room = tokio::select! {
            biased;
            lost = lost => return Err(lost),
            room = room => room?,
        };
        self.send(ops, conditions, room)
    }

    /// The same without waiting; `None` when there is no room now.
    ///
    /// # Errors
    /// As [`TxnPipeline::submit`].
    pub fn try_submit(&self, ops: Vec<Bytes>, conditions: Conditions) -> Result<Option<Pending>, TxnError> {
        let size = checked_size(&ops)?;
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Ok(None);
        };
        let Ok(bytes) = Arc::clone(&self.bytes).try_acquire_many_owned(self.permits(size)) else {
            return Ok(None);
        };
        self.send(ops, conditions, TxnRoom { _place: place, _bytes: bytes }).map(Some)
    }

    /// The grant it writes under.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    fn permits(&self, size: usize) -> u32 {
        u32::try_from(size.min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    fn send(&self, ops: Vec<Bytes>, conditions: Conditions, room: TxnRoom) -> Result<Pending, TxnError> {
        if !self.fence.is_valid() {
            return Err(TxnError::LeaseLost);
        }
        let (sender, reply) = oneshot::channel();
        let submission = TxnSubmission { ops, conditions, reply: sender, room };
        self.submissions.send(submission).map_err(|_| match self.fence.is_valid() {
            true => TxnError::Closed,
            false => TxnError::LeaseLost,
        })?;
        Ok(Pending { reply })
    }
}

impl fmt::Debug for TxnPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxnPipeline").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl Future for Pending {
    type Output = Result<Receipt, TxnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply).poll(cx).map(|reply| reply.unwrap_or(Err(TxnError::Closed)))
    }
}

fn checked_size(ops: &[Bytes]) -> Result<usize, TxnError> {
    let size = ops.iter().map(Bytes::len).sum::<usize>();
    if !ops.is_empty() && size <= TXN_BYTES_MAX {
        return Ok(size);
    }
    Err(TxnError::Refused(TxnRefusal {
        reason: TxnRefusalReason::Invalid,
        index: 0,
        revision: Revision(0),
        message: format!("{} operations with {size} bytes: 1 to {TXN_BYTES_MAX} are allowed", ops.len()),
    }))
}
