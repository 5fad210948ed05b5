//! The task that owns the stream.

use std::{collections::VecDeque, time::Duration};

use godel_base::ids::Revision;
use godel_proto::{
    raw,
    v1::{self, state_service_client::StateServiceClient},
};
use godel_wire::{from_proto, to_proto};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::{Conditions, Receipt, TxnError, TxnRoom, TxnSubmission};
use crate::{
    client::{Backoff, Channel},
    lease::Fence,
    message::RECEIVED_BYTES_MAX,
    status,
};

/// First pause before the stream is opened again.
const RECONNECT_BASE: Duration = Duration::from_millis(20);

struct TxnEntry {
    request: raw::TxnRequest,
    sequence: u64,
    reply: oneshot::Sender<Result<Receipt, TxnError>>,
    _room: TxnRoom,
}

struct Task {
    fence: Fence,
    submissions: mpsc::UnboundedReceiver<TxnSubmission>,
    /// Without an answer, in order.
    pending: VecDeque<TxnEntry>,
    next_sequence: u64,
    /// No handle is left: ends when everything is answered.
    closing: bool,
}

/// Why a stream ended.
enum TxnStreamEnd {
    Reconnect(Status),
    LeaseLost,
    Finished,
}

pub(super) async fn run(
    state: Channel,
    fence: Fence,
    submissions: mpsc::UnboundedReceiver<TxnSubmission>,
    reconnect_max: Duration,
) {
    let mut task = Task {
        fence: fence.clone(),
        submissions,
        pending: VecDeque::new(),
        next_sequence: 1,
        closing: false,
    };
    let mut backoff = Backoff::new(RECONNECT_BASE, reconnect_max.max(RECONNECT_BASE));
    loop {
        if task.pending.is_empty() && !task.wait_for_work().await {
            break;
        }
        let answered = task.answered();
        let end = tokio::select! {
            biased;
            () = fence.lost() => TxnStreamEnd::LeaseLost,
            end = task.stream(&state) => end,
        };
        match end {
            TxnStreamEnd::Finished => return,
            TxnStreamEnd::LeaseLost => {
                // The store may have said so before anybody else noticed.
                fence.revoke();
                break;
            }
            TxnStreamEnd::Reconnect(failure) => {
                tracing::debug!(code = ?failure.code(), why = failure.message(), n_pending = task.pending.len(), "transaction stream ended");
                if task.answered() > answered {
                    backoff.reset();
                }
                tokio::select! {
                    () = sleep(backoff.pause()) => {}
                    () = fence.lost() => break,
                }
            }
        }
    }
    task.fail_all();
}

impl Task {
    /// Transactions answered so far.
    fn answered(&self) -> u64 {
        self.next_sequence - self.pending.len() as u64
    }

    /// Waits for the first submission while no stream is open; false when there will be none, or no lease.
    async fn wait_for_work(&mut self) -> bool {
        if self.closing {
            return false;
        }
        let submission = tokio::select! {
            biased;
            () = self.fence.lost() => None,
            submission = self.submissions.recv() => submission,
        };
        match submission {
            Some(submission) => {
                self.queue(submission);
                true
            }
            None => false,
        }
    }

    fn queue(&mut self, submission: TxnSubmission) -> &TxnEntry {
        let TxnSubmission { ops, conditions, reply, room } = submission;
        let Conditions { preconditions, nodes_as_of, changes } = conditions;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let writer =
            v1::Writer { lease: self.fence.lease().to_owned(), epoch: self.fence.epoch().0, sequence };
        let request = raw::TxnRequest {
            writer: Some(writer),
            preconditions,
            ops,
            nodes_as_of: nodes_as_of.0,
            store_id: self.fence.store().0,
            changes: changes.iter().map(to_proto::change_line).collect(),
        };
        self.pending.push_back(TxnEntry { request, sequence, reply, _room: room });
        self.pending.back().expect("just pushed")
    }

    /// One stream, from its opening to its end. Everything unanswered is sent first, in order.
    async fn stream(&mut self, state: &Channel) -> TxnStreamEnd {
        // Bounded by the room in the pipeline.
        let (requests, outgoing) = mpsc::unbounded_channel();
        for entry in &self.pending {
            // The receiver lives until the call is made.
            let _ = requests.send(entry.request.clone());
        }
        let mut client = StateServiceClient::new(state.clone()).max_decoding_message_size(RECEIVED_BYTES_MAX);
        let opened = client.transact(UnboundedReceiverStream::new(outgoing)).await;
        let mut answers = match opened {
            Ok(answers) => answers.into_inner(),
            Err(failure) => return end_of(failure),
        };
        loop {
            if self.closing && self.pending.is_empty() {
                return TxnStreamEnd::Finished;
            }
            tokio::select! {
                biased;
                answer = next(&mut answers) => match answer {
                    Ok(answer) => if let Err(end) = self.answer(answer) {
                        return end;
                    },
                    Err(failure) => return end_of(failure),
                },
                submission = self.submissions.recv(), if !self.closing => match submission {
                    Some(submission) => {
                        let request = self.queue(submission).request.clone();
                        if requests.send(request).is_err() {
                            return TxnStreamEnd::Reconnect(Status::unavailable("the stream takes no more requests"));
                        }
                    }
                    None => self.closing = true,
                },
            }
        }
    }

    /// Hands an answer to whoever waits for it.
    fn answer(&mut self, answer: v1::TxnResponse) -> Result<(), TxnStreamEnd> {
        // A store that answers twice what was sent twice repeats itself: only the first answer counts.
        match self.pending.front().map(|entry| entry.sequence) {
            Some(first) if answer.sequence == first => {}
            Some(first) if answer.sequence < first => return Ok(()),
            None => return Ok(()),
            Some(first) => {
                let message = format!("answer to {}, expected an answer to {first}", answer.sequence);
                return Err(TxnStreamEnd::Reconnect(Status::internal(message)));
            }
        }
        let refusal = answer.refusal.map(from_proto::txn_refusal);
        if refusal.as_ref().is_some_and(|refusal| refusal.reason.is_stale()) {
            return Err(TxnStreamEnd::LeaseLost);
        }
        let entry = self.pending.pop_front().expect("the front was looked at");
        let result = match refusal {
            Some(refusal) => Err(TxnError::Refused(refusal)),
            None => Ok(Receipt { revision: Revision(answer.revision), time_ms: answer.commit_time_ms }),
        };
        // The submitter may have stopped waiting.
        let _ = entry.reply.send(result);
        Ok(())
    }

    /// The lease is over: so is everything that waits.
    fn fail_all(&mut self) {
        self.submissions.close();
        for entry in self.pending.drain(..) {
            let _ = entry.reply.send(Err(TxnError::LeaseLost));
        }
        while let Ok(submission) = self.submissions.try_recv() {
            let _ = submission.reply.send(Err(TxnError::LeaseLost));
        }
    }
}

async fn next(answers: &mut Streaming<v1::TxnResponse>) -> Result<v1::TxnResponse, Status> {
    answers.message().await?.ok_or_else(|| Status::unavailable("the store ended the stream"))
}

fn end_of(failure: Status) -> TxnStreamEnd {
    if status::is_lease_lost(&failure) { TxnStreamEnd::LeaseLost } else { TxnStreamEnd::Reconnect(failure) }
}
