//! What the RPC handlers know: who leads, and how to reach the loop while it is this process.

use std::sync::{Arc, atomic::AtomicU64};

use godel_base::ids::{Epoch, StoreId};
use godel_core_dispatcher::Dispatcher;
use godel_kit::{lease::Leadership, status};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::{
    admission_room::AdmissionRoom,
    call_limiter::CallLimiter,
    requests::{CallReply, LeaderRequest},
};

/// The loop of a term.
#[derive(Clone)]
pub(crate) struct LeaderHandle {
    pub(crate) calls: mpsc::Sender<LeaderRequest>,
    /// Room in the admission queue, in KiB.
    pub(crate) room: Arc<AdmissionRoom>,
    pub(crate) call_limiter: Arc<CallLimiter>,
    /// In which its lease was granted.
    pub(crate) store: StoreId,
    /// Of its grant.
    pub(crate) epoch: Epoch,
    /// The revision up to which the loop has read.
    pub(crate) read: Arc<AtomicU64>,
}

impl LeaderHandle {
    /// Asks the loop and waits for its answer.
    pub(crate) async fn ask<T>(&self, call: impl FnOnce(CallReply<T>) -> LeaderRequest) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| term_over())?;
        answer.await.map_err(|_| term_over())
    }

    /// Has the loop look at its state, between two of its steps.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Dispatcher) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let read = |reply: CallReply<T>| {
            LeaderRequest::Read(Box::new(move |core| {
                // The caller may be gone.
                let _ = reply.send(look(core));
            }))
        };
        self.ask(read).await
    }
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
    pub(crate) async fn ask<T>(&self, call: impl FnOnce(CallReply<T>) -> LeaderRequest) -> Result<T, Status> {
        self.term()?.ask(call).await
    }

    /// Has the loop look at its state.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Dispatcher) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.term()?.read(look).await
    }
}

/// The loop ended while somebody waited: another dispatcher leads, or will.
pub(crate) fn term_over() -> Status {
    Status::unavailable("the dispatcher lost its leadership")
}
