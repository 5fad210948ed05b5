//! What the leader decided on goes out to schedulers and to the binder.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use godel_base::ids::{IdMap, UnitId};
use godel_core_dispatcher::{EvictRequest, SessionId, leader::Outgoing};
use godel_domain::{assignment::Assignment, unit::UnitRecord};
use godel_kit::{CancellationToken, message::field_len};
use godel_proto::{raw, v1};
use godel_wire::to_proto;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;
use tonic::Status;

use super::outbox::EngineOutbox;
use crate::convert;

/// Bytes of assignments in one message; a larger one goes alone. See its message for how large it may be.
const MESSAGE_BYTES: usize = 256 << 10;
/// Units whose bytes are kept until they are handed out; what waits beyond that is encoded again.
const N_ENCODED: usize = 65_536;
/// Units in one message of revocations, of 10 bytes at most.
const N_REVOKED: usize = 32_768;
/// A request to the binder ends once it has so many running units: with the last unit's 4,096 at most 20,480 of
/// 8 bytes each, and about 350 bytes for each of the thousand units of a step.
const EVICT_ORDINALS: usize = 16_384;

/// A scheduler's stream; when this is dropped, the task that reads it ends too.
pub(super) struct AttachedScheduler {
    messages: mpsc::Sender<Result<v1::AttachResponse, Status>>,
    _over: DropGuard,
}

/// Records of units that no scheduler has had yet, as they were committed.
#[derive(Default)]
pub(super) struct Encoded {
    units: IdMap<UnitId, (Arc<UnitRecord>, Bytes)>,
}

impl Encoded {
    /// `op` puts the unit.
    pub(super) fn keep(&mut self, record: &Arc<UnitRecord>, op: &Bytes) {
        if self.units.len() < N_ENCODED
            && let Some((_, bytes)) = raw::op_payload(op)
        {
            self.units.insert(record.id, (Arc::clone(record), bytes));
        }
    }

    pub(super) fn forget(&mut self, unit: UnitId) {
        self.units.remove(&unit);
    }

    /// The record that an assignment is about.
    fn take(&mut self, assignment: &Assignment) -> Bytes {
        let kept = self.units.remove(&assignment.record.id);
        let kept = kept.filter(|(record, _)| Arc::ptr_eq(record, &assignment.record));
        kept.map_or_else(|| to_proto::encoded_unit(&assignment.record), |(_, bytes)| bytes)
    }
}

/// What one step sends on one stream, in order.
#[derive(Default)]
struct Messages {
    messages: Vec<v1::attach_response::Message>,
    assign_bytes: usize,
}

impl AttachedScheduler {
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

impl Messages {
    fn assign(&mut self, unit: raw::UnitAssignment) {
        let bytes = field_len(unit.encoded_len());
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
        if let Some(v1::attach_response::Message::Revoke(last)) = self.messages.last_mut()
            && last.unit_ids.len() < N_REVOKED
        {
            last.unit_ids.push(unit);
            return;
        }
        self.messages
            .push(v1::attach_response::Message::Revoke(v1::UnitRevocations { unit_ids: vec![unit] }));
    }
}

impl EngineOutbox {
    /// Sends messages in their order on each stream. Returns the streams that took no more: what was not sent is sent
    /// again when the scheduler is back with what it has.
    pub(super) fn send_out(&mut self, outgoing: Vec<Outgoing>) -> Vec<SessionId> {
        let mut streams: BTreeMap<SessionId, Messages> = BTreeMap::new();
        let mut evictions = Vec::new();
        for message in outgoing {
            match message {
                Outgoing::Assign(session, assignment) => {
                    self.context.metrics.assigned.inc();
                    let record = self.encoded.take(&assignment);
                    let to = streams.entry(session).or_default();
                    to.assign(convert::assignment(assignment, record));
                }
                Outgoing::Revoke(session, unit) => streams.entry(session).or_default().revoke(unit.0),
                Outgoing::Close(session) => {
                    streams.remove(&session);
                    if let Some(session) = self.sessions.remove(&session) {
                        session.close(Status::unavailable("the lease was lost, or another stream took over"));
                    }
                }
                Outgoing::Evict(request) => evictions.push(request),
            }
        }
        if !streams.is_empty() {
            self.context.crash.hit("dispatcher.assign");
        }
        let cut = streams.into_iter().filter_map(|(session, messages)| {
            let is_sent = self.send_on(session, messages);
            (!is_sent).then_some(session)
        });
        let cut = cut.collect();
        self.evict(evictions);
        cut
    }

    /// Sends messages on a stream. Returns false if it takes no more.
    fn send_on(&mut self, session: SessionId, messages: Messages) -> bool {
        let Some(open) = self.sessions.get(&session) else { return true };
        for message in messages.messages {
            if let Err(error) = open.messages.try_send(Ok(v1::AttachResponse { message: Some(message) })) {
                if matches!(error, mpsc::error::TrySendError::Full(_)) {
                    self.context.metrics.streams_cut.inc();
                    tracing::info!(session = session.0, "a scheduler does not read its stream, cut off");
                }
                self.sessions.remove(&session);
                return false;
            }
        }
        true
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

#[cfg(test)]
mod tests {
    use godel_domain::limits::{REPLICAS_MAX, SPEC_BYTES_MAX};
    use godel_kit::message::MESSAGE_BYTES_MAX;
    use godel_rules::admission::{grow::ADDED_BYTES_MAX, scale::N_RANGES_MAX};
    use v1::attach_response::Message;

    use super::*;

    /// A unit with a record of `bytes` and `n_ordinals` to place, columns as wide as they get.
    fn assignment(id: u64, bytes: usize, n_ordinals: u32) -> raw::UnitAssignment {
        let spec = Some(v1::UnitSpec { queue: "x".repeat(bytes), ..v1::UnitSpec::default() });
        let record = v1::UnitRecord { unit_id: id, spec, ..v1::UnitRecord::default() };
        raw::UnitAssignment {
            record: record.encode_to_vec().into(),
            spec_revision: u64::MAX,
            ordinals: (0..n_ordinals).map(|ordinal| (1 << 20) - 1 - ordinal).collect(),
            incarnations: vec![u32::MAX; n_ordinals as usize],
            bound: u32::MAX,
            scope: v1::AssignmentScope::Global.into(),
            at_maximum: true,
            turn: true,
            called: true,
            places_max: Some(u32::MAX),
            read_revision: u64::MAX,
        }
    }

    /// Sends `assigned` with a revocation behind every third, and checks what went out.
    fn check(assigned: &[raw::UnitAssignment], n_revoked: u64) -> usize {
        let mut outgoing = Messages::default();
        let mut expected = Vec::new();
        for (idx, unit) in assigned.iter().enumerate() {
            expected.push(format!("assign {}", raw::unit_id(&unit.record).unwrap()));
            outgoing.assign(unit.clone());
            if idx % 3 == 2 {
                for revoked in 0..n_revoked {
                    expected.push(format!("revoke {revoked}"));
                    outgoing.revoke(revoked);
                }
            }
        }
        let n_messages = outgoing.messages.len();
        let mut found = Vec::new();
        for message in outgoing.messages {
            let response = v1::AttachResponse { message: Some(message) };
            assert!(response.encoded_len() <= MESSAGE_BYTES_MAX, "{}", response.encoded_len());
            match response.message {
                Some(Message::Assign(part)) => {
                    let n_ordinals = part.units.iter().map(|unit| unit.ordinals.len()).sum::<usize>();
                    assert!(part.units.len() == 1 || n_ordinals < MESSAGE_BYTES);
                    found.extend(
                        part.units
                            .iter()
                            .map(|unit| format!("assign {}", raw::unit_id(&unit.record).unwrap())),
                    );
                }
                Some(Message::Revoke(part)) => {
                    found.extend(part.unit_ids.iter().map(|unit| format!("revoke {unit}")));
                }
                Some(Message::Welcome(_)) | None => panic!("neither"),
            }
        }
        assert!(found == expected, "order is kept and nothing is lost");
        n_messages
    }

    #[test]
    fn messages_to_a_scheduler_are_bounded_and_in_order() {
        let many = |n: u64, bytes, n_ordinals| -> Vec<_> {
            (1..=n).map(|id| assignment(id, bytes, n_ordinals)).collect()
        };
        assert_eq!(check(&many(1, 100, 1), 0), 1);
        assert_eq!(check(&many(100, SPEC_BYTES_MAX, 1), 0), 34);
        assert_eq!(check(&many(1_000, 100, 1), 0), 1);
        // The widest that the limits of a unit allow.
        let widest = SPEC_BYTES_MAX + ADDED_BYTES_MAX + 10 * N_RANGES_MAX;
        assert_eq!(check(&many(3, widest, REPLICAS_MAX), 0), 3);
        assert_eq!(check(&many(6, 10, 1), 100_000), 2 * (1 + 4));
        let mixed: Vec<_> = many(9, 1_000, 10)
            .into_iter()
            .chain(many(2, SPEC_BYTES_MAX, REPLICAS_MAX))
            .chain(many(9, 10, 1))
            .collect();
        check(&mixed, 7);
    }
}
