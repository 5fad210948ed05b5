//! What the RPC handlers know: who leads, and how to reach the loop while it is this process.

use std::sync::{Arc, atomic::AtomicU64};

use godel_base::ids::StoreId;
use godel_kit::{lease::Leadership, status};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tonic::Status;

use crate::{
    call_limiter::CallLimiter,
    requests::{LeaderRequest, Reply},
};

/// The loop of a term.
#[derive(Clone)]
pub(crate) struct LeaderHandle {
    pub(crate) calls: mpsc::Sender<LeaderRequest>,
    /// Room in the admission queue, in KiB.
    pub(crate) room: Arc<Semaphore>,
    pub(crate) call_limiter: Arc<CallLimiter>,
    /// In which its lease was granted.
    pub(crate) store: StoreId,
    /// The revision up to which the loop has read.
    pub(crate) read: Arc<AtomicU64>,
}

/// Shared by all handlers.
#[derive(Clone)]
pub(crate) struct Front {
    leadership: watch::Receiver<Leadership>,
    term: watch::Receiver<Option<LeaderHandle>>,
}

impl Front {
    pub(crate) fn new(
        leadership: watch::Receiver<Leadership>,
        term: watch::Receiver<Option<LeaderHandle>>,
    ) -> Self {
        Self { leadership, term }
    }

    /// The present term.
    ///
    /// # Errors
    /// NOT_LEADER on a standby, UNAVAILABLE while a leader still reads.
    pub(crate) fn term(&self) -> Result<LeaderHandle, Status> {
        let leads = match &*self.leadership.borrow() {
            Leadership::Standby { leader } => return Err(status::not_leader(leader.as_deref())),
            Leadership::Leader { fence, .. } => fence.is_valid(),
        };
        if !leads {
            return Err(status::not_leader(None));
        }
        let term = self.term.borrow().clone();
        term.ok_or_else(|| Status::unavailable("the dispatcher has just become leader and is reading"))
    }

    /// Asks the loop and waits for its answer.
    pub(crate) async fn ask<T>(&self, call: impl FnOnce(Reply<T>) -> LeaderRequest) -> Result<T, Status> {
        let term = self.term()?;
        let (reply, answer) = oneshot::channel();
        term.calls.send(call(reply)).await.map_err(|_| term_over())?;
        answer.await.map_err(|_| term_over())
    }
}

/// The loop ended while somebody waited: another dispatcher leads, or will.
pub(crate) fn term_over() -> Status {
    Status::unavailable("the dispatcher lost its leadership")
}
