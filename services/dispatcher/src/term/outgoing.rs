//! What the core decided on goes out: to schedulers, to the binder, to the store.

use std::collections::BTreeMap;

use godel_core::dispatcher::{Action, EvictRequest, SessionId};
use godel_kit::{CancellationToken, to_proto};
use godel_proto::v1;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;
use tonic::Status;

use super::{Loop, Ticket};
use crate::convert;

/// Bytes of assignments in one message.
const MESSAGE_BYTES: usize = 256 << 10;
/// Running units in one request to the binder.
const EVICT_ORDINALS: usize = 16_384;

/// A scheduler's stream; when this is dropped, the task that reads it ends too.
pub(super) struct Session {
    messages: mpsc::Sender<Result<v1::AttachResponse, Status>>,
    _over: DropGuard,
}

/// What one step sends on one stream, in order.
#[derive(Default)]
struct Outgoing {
    messages: Vec<v1::attach_response::Message>,
    assign_bytes: usize,
}

impl Session {
    pub(super) fn new(
        messages: mpsc::Sender<Result<v1::AttachResponse, Status>>,
        over: CancellationToken,
    ) -> Self {
        Self { messages, _over: over.drop_guard() }
    }

    /// Ends the stream; where it is full, by silence.
    pub(super) fn close(&self, status: Status) {
        let _ = self.messages.try_send(Err(status));
    }
}

impl Outgoing {
    fn assign(&mut self, unit: v1::UnitAssignment) {
        let bytes = unit.encoded_len();
        match self.messages.last_mut() {
            Some(v1::attach_response::Message::Assign(last))
                if self.assign_bytes + bytes <= MESSAGE_BYTES =>
            {
                self.assign_bytes += bytes;
                last.units.push(unit);
            }
            _ => {
                self.assign_bytes = bytes;
                self.messages
                    .push(v1::attach_response::Message::Assign(v1::UnitAssignments { units: vec![unit] }));
            }
        }
    }

    fn revoke(&mut self, unit: u64) {
        if let Some(v1::attach_response::Message::Revoke(last)) = self.messages.last_mut() {
            last.unit_ids.push(unit);
            return;
        }
        self.messages
            .push(v1::attach_response::Message::Revoke(v1::UnitRevocations { unit_ids: vec![unit] }));
    }
}

impl Loop<'_> {
    pub(super) fn carry_out(&mut self, actions: Vec<Action>) {
        let mut outgoing: BTreeMap<SessionId, Outgoing> = BTreeMap::new();
        let (mut evictions, mut deletes) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Assign(assignment) => {
                    self.context.metrics.assigned.inc();
                    outgoing.entry(assignment.session).or_default().assign(convert::assignment(assignment));
                }
                Action::Revoke(session, unit) => outgoing.entry(session).or_default().revoke(unit.0),
                Action::Close(session) => {
                    outgoing.remove(&session);
                    if let Some(session) = self.sessions.remove(&session) {
                        session.close(Status::unavailable("the lease was lost, or another stream took over"));
                    }
                }
                Action::Evict(request) => evictions.push(request),
                Action::Delete(unit) => deletes.push(unit),
                Action::WritePartition(split) => {
                    let op = to_proto::put_partition(&split);
                    if self.write(vec![op], Ticket::Partition(split, None)).is_err() {
                        let now = self.now();
                        self.core.on_partition_failed(now);
                    }
                }
            }
        }
        if !outgoing.is_empty() {
            self.context.crash.hit("dispatcher.assign");
        }
        for (session, outgoing) in outgoing {
            self.send(session, outgoing);
        }
        self.evict(evictions);
        if !deletes.is_empty() {
            let ops = deletes.iter().map(|unit| to_proto::delete(v1::Kind::UnitSpec, unit.0)).collect();
            if let Err((Ticket::Deletes(units), _)) = self.write(ops, Ticket::Deletes(deletes)) {
                let now = self.now();
                units.into_iter().for_each(|unit| self.core.on_delete_failed(unit, now));
            }
        }
    }

    fn send(&mut self, session: SessionId, outgoing: Outgoing) {
        let Some(open) = self.sessions.get(&session) else { return };
        for message in outgoing.messages {
            if let Err(error) = open.messages.try_send(Ok(v1::AttachResponse { message: Some(message) })) {
                // What was not sent is sent again when the scheduler is back with its inventory.
                if matches!(error, mpsc::error::TrySendError::Full(_)) {
                    self.context.metrics.streams_cut.inc();
                    tracing::info!(session = session.0, "a scheduler does not read its stream, cut off");
                }
                self.sessions.remove(&session);
                self.core.on_detached(session);
                return;
            }
        }
    }

    fn evict(&mut self, requests: Vec<EvictRequest>) {
        let mut chunk: Vec<EvictRequest> = Vec::new();
        let mut chunks = Vec::new();
        let mut n_ordinals = 0;
        for request in requests {
            n_ordinals += request.ordinals.len();
            chunk.push(request);
            if n_ordinals >= EVICT_ORDINALS {
                chunks.push(std::mem::take(&mut chunk));
                n_ordinals = 0;
            }
        }
        chunks.extend((!chunk.is_empty()).then_some(chunk));
        for chunk in chunks {
            self.context.metrics.evictions_asked.inc_by(chunk.len() as u64);
            // What finds no room is asked for again after a while.
            let _ = self.evictions.try_send(chunk);
        }
    }
}
