//! Where the leader's messages go: the streams of the schedulers, the callers who wait for evictions, counters and logs.

use godel_base::ids::{Epoch, Revision};
use godel_core_binder::{
    Accepted,
    leader::{BinderNote, BinderOutbox, EvictFailure, JobId, MoveReport, StreamEnd, StreamId},
};
use godel_domain::{decision::Outcome, txn::TxnRefusal};
use godel_kit::{
    message::{MESSAGE_BYTES_MAX, field_len, parts},
    status,
};
use godel_proto::v1;
use godel_wire::to_proto;
use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::metrics::{BinderMetrics, WhyLabel};

/// Where outcomes go.
pub(crate) type OutcomeSender = mpsc::Sender<Result<v1::DecideResponse, Status>>;

/// Where the answer to a request goes.
pub(crate) type StreamReply<T> = oneshot::Sender<Result<T, Status>>;

/// Bytes of one outcome: what is over is shortened.
const OUTCOME_BYTES: usize = MESSAGE_BYTES_MAX / 2;

/// The leader's [`BinderOutbox`].
#[derive(Debug)]
pub(crate) struct Streams {
    streams: FxHashMap<StreamId, Stream>,
    jobs: FxHashMap<JobId, StreamReply<Revision>>,
    moves: FxHashMap<JobId, StreamReply<MoveReport>>,
    last_job: u64,
    /// Who leads instead, as far as it is known when this binder stops to lead.
    pub(crate) leader: Option<String>,
    metrics: BinderMetrics,
}

#[derive(Debug)]
struct Stream {
    scheduler: String,
    epoch: Epoch,
    sender: OutcomeSender,
}

impl Streams {
    pub(crate) fn new(metrics: BinderMetrics) -> Self {
        Self {
            streams: FxHashMap::default(),
            jobs: FxHashMap::default(),
            moves: FxHashMap::default(),
            last_job: 0,
            leader: None,
            metrics,
        }
    }

    /// Adds a stream that a scheduler opened under the epoch of its lease.
    pub(crate) fn add(&mut self, id: StreamId, scheduler: String, epoch: Epoch, sender: OutcomeSender) {
        self.streams.insert(id, Stream { scheduler, epoch, sender });
    }

    /// Forgets a stream whose reader has ended.
    pub(crate) fn remove(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    /// Streams that are open.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Adds a request to evict and names it.
    pub(crate) fn add_job(&mut self, reply: StreamReply<Revision>) -> JobId {
        let id = self.next_job();
        self.jobs.insert(id, reply);
        id
    }

    /// Adds a request to move and names it.
    pub(crate) fn add_moves(&mut self, reply: StreamReply<MoveReport>) -> JobId {
        let id = self.next_job();
        self.moves.insert(id, reply);
        id
    }

    fn next_job(&mut self) -> JobId {
        self.last_job += 1;
        JobId(self.last_job)
    }

    fn failure(&self, why: EvictFailure) -> Status {
        match why {
            EvictFailure::NotLeader => status::not_leader(self.leader.as_deref()),
            EvictFailure::Refused(message) => Status::aborted(message),
        }
    }

    fn count_holds_dropped(&self, why: &'static str, n_holds: usize) {
        self.metrics.holds_dropped.get_or_create(&WhyLabel { why }).inc_by(number(n_holds));
    }

    /// A decision's transaction is durable.
    fn count_decision(&self, accepted: &Accepted) {
        let Accepted { binds, holds, evictions, gone, .. } = accepted;
        let n_held: usize = holds.iter().map(|hold| hold.ordinals.len()).sum();
        if holds.is_empty() {
            self.metrics.bound.inc_by(number(binds.iter().map(|bind| bind.ordinals.len()).sum()));
        } else {
            self.metrics.held.inc_by(number(n_held));
            let n_victims = evictions.iter().map(|(_, evict)| evict.ordinals.len()).sum();
            self.metrics.preempted.inc_by(number(n_victims));
        }
        for (_, why) in gone {
            self.count_holds_dropped(why, 1);
        }
        let Some((hold, turn)) = holds.first().and_then(|hold| Some((hold, hold.turn.as_ref()?))) else {
            return;
        };
        self.metrics.gang_turns.inc();
        let (unit, nodes, until_ms) = (hold.unit.0, holds.len(), hold.expires_ms);
        let sub_cluster = turn.sub_cluster.as_deref().unwrap_or_default();
        let (pool, priority) = (hold.pool, turn.priority);
        tracing::info!(
            unit,
            places = n_held,
            nodes,
            ?pool,
            sub_cluster,
            priority,
            until_ms,
            "a gang gathers room"
        );
    }

    fn count_refusal(&self, refusal: &TxnRefusal) {
        self.metrics.txns_refused.inc();
        if refusal.reason.is_final() {
            tracing::error!(
                reason = ?refusal.reason,
                why = refusal.message,
                "the store refused a transaction for good"
            );
        }
    }
}

impl BinderOutbox for Streams {
    fn welcome(&mut self, stream: StreamId, leader: Epoch) {
        let Some(known) = self.streams.get(&stream) else { return };
        let welcome = v1::decide_response::Message::Welcome(v1::DecideWelcome { epoch: leader.0 });
        // The queue of a new stream is empty, and if nobody reads it the stream's end is noticed.
        let _ = known.sender.try_send(Ok(v1::DecideResponse { message: Some(welcome) }));
    }

    fn outcomes(&mut self, stream: StreamId, outcomes: Vec<Outcome>) -> bool {
        let Some(known) = self.streams.get(&stream) else { return false };
        let encoded = outcomes.iter().map(to_proto::outcome);
        let is_read = messages(encoded).into_iter().all(|message| known.sender.try_send(Ok(message)).is_ok());
        if !is_read {
            self.streams.remove(&stream);
        }
        is_read
    }

    fn end(&mut self, stream: StreamId, why: StreamEnd) {
        let Some(Stream { scheduler, epoch, sender }) = self.streams.remove(&stream) else { return };
        let status = match why {
            StreamEnd::Replaced => Status::aborted("another stream of this scheduler was opened"),
            StreamEnd::StaleEpoch => status::stale_epoch(&format!("scheduler/{scheduler}"), epoch.0),
            StreamEnd::NotLeader => status::not_leader(self.leader.as_deref()),
        };
        // A full queue ends without the reason: its reader looks for the leader all the same.
        let _ = sender.try_send(Err(status));
    }

    fn evicted(&mut self, job: JobId, answer: Result<Revision, EvictFailure>) {
        let Some(reply) = self.jobs.remove(&job) else { return };
        // The caller may have gone.
        let _ = reply.send(answer.map_err(|why| self.failure(why)));
    }

    fn moved(&mut self, job: JobId, answer: Result<MoveReport, EvictFailure>) {
        let Some(reply) = self.moves.remove(&job) else { return };
        // The caller may have gone.
        let _ = reply.send(answer.map_err(|why| self.failure(why)));
    }

    fn note(&mut self, note: BinderNote<'_>) {
        let metrics = &self.metrics;
        match note {
            BinderNote::Decision => {
                metrics.decisions.inc();
            }
            BinderNote::Committed => {
                metrics.txns.inc();
            }
            BinderNote::Refused(refusal) => self.count_refusal(refusal),
            BinderNote::Rejected(rejections) => {
                for rejection in rejections {
                    metrics.reject(rejection.reason, rejection.ordinals.len());
                }
            }
            BinderNote::Accepted(accepted) => self.count_decision(accepted),
            BinderNote::HoldsBound(accepted) => {
                let n_bound = accepted.binds.iter().map(|bind| bind.ordinals.len()).sum();
                metrics.bound.inc_by(number(n_bound));
                metrics.holds_bound.inc_by(number(accepted.ends.len()));
            }
            BinderNote::SlotsHeld { reservation, n_slots } => {
                metrics.slots_held.inc_by(number(n_slots));
                tracing::info!(reservation, slots = n_slots, "slots of a reservation are held");
            }
            BinderNote::HoldsDropped { why, n_holds } => self.count_holds_dropped(why, n_holds),
            BinderNote::Requeued(n) => {
                metrics.requeued.inc_by(number(n));
            }
            BinderNote::Evicted { reason, n } => metrics.evict(reason, number(n)),
            BinderNote::Moved(accepted) => {
                metrics.moves.inc();
                if let Some(evict) = &accepted.evict {
                    metrics.evict(evict.reason, 1);
                }
                let (unit, hold) = (accepted.unit.0, &accepted.hold);
                let movement = hold.movement.as_ref().map(|target| &*target.movement).unwrap_or_default();
                let (ordinals, node) = (&hold.ordinals, hold.node.0);
                tracing::debug!(unit, ?ordinals, node, movement, "a running unit moves");
            }
            BinderNote::MoveRefused(reason) => metrics.refuse_move(reason),
            BinderNote::Squeezed(n) => {
                metrics.squeezed.inc_by(number(n));
            }
            BinderNote::Rechecked(n) => {
                metrics.rechecked.inc_by(number(n));
            }
            BinderNote::StreamCut => {
                metrics.streams_cut.inc();
            }
            BinderNote::TurnEnded { unit, turn, why } => {
                metrics.gang_turns_ended.get_or_create(&WhyLabel { why }).inc();
                tracing::info!(unit = unit.0, why, since_ms = turn.since_ms, "a gang gathers no longer");
            }
        }
    }
}

fn number(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Outcomes in messages of bounded size, in order.
fn messages(outcomes: impl Iterator<Item = v1::Outcome>) -> Vec<v1::DecideResponse> {
    let wrap = |outcomes| v1::decide_response::Message::Outcomes(v1::Outcomes { outcomes });
    let parts = parts(outcomes.map(shortened));
    parts.into_iter().map(|part| v1::DecideResponse { message: Some(wrap(part)) }).collect()
}

/// An outcome that fits a message. Where thousands of nodes refused, their fresh states go without those that
/// find no room (the scheduler reads them from the records), and rejections without their words if even these
/// are too many: what is left is 18 bytes at most for each of the 16,384 running units of a decision.
fn shortened(mut outcome: v1::Outcome) -> v1::Outcome {
    if outcome.encoded_len() <= OUTCOME_BYTES {
        return outcome;
    }
    let nodes = std::mem::take(&mut outcome.nodes);
    if outcome.encoded_len() > OUTCOME_BYTES {
        outcome.rejections.iter_mut().for_each(|rejection| rejection.detail.clear());
    }
    let mut n_bytes = outcome.encoded_len();
    outcome.nodes = nodes
        .into_iter()
        .take_while(|node| {
            n_bytes += field_len(node.encoded_len());
            n_bytes <= OUTCOME_BYTES
        })
        .collect();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(decision_id: u64) -> v1::Outcome {
        v1::Outcome { decision_id, ..v1::Outcome::default() }
    }

    #[test]
    fn messages_are_bounded() {
        let long = v1::Outcome {
            rejections: vec![v1::Rejection { detail: "x".repeat(300 << 10), ..v1::Rejection::default() }],
            ..v1::Outcome::default()
        };
        assert_eq!(messages([long.clone(), long, outcome(1)].into_iter()).len(), 2);
    }

    #[test]
    fn an_outcome_of_very_many_refusals_fits_a_message() {
        let refusals = |n: u32, detail: &str, n_names: usize| {
            let rejection = |ordinal| v1::Rejection {
                reason: v1::RejectionReason::InsufficientResources.into(),
                ordinals: vec![(1 << 20) - 1 - ordinal],
                node_id: u32::MAX - ordinal,
                detail: detail.to_owned(),
            };
            let amounts = (0..n_names).map(|name| (format!("resource-{name}"), i64::MAX)).collect();
            let node = v1::NodeState {
                node_id: 0,
                allocated: Some(v1::Resources { amounts }),
                device_free_milli: vec![1_000; 8],
                revision: 7,
                pool: 2,
            };
            v1::Outcome {
                decision_id: 5,
                rejections: (0..n).map(rejection).collect(),
                nodes: (0..n).map(|idx| v1::NodeState { node_id: u32::MAX - idx, ..node.clone() }).collect(),
                ..v1::Outcome::default()
            }
        };
        let n_max = u32::try_from(godel_domain::decision::N_PLACEMENTS_MAX).unwrap();
        for (whole, words_stay, n_nodes) in [
            (refusals(1_000, "cpu", 3), true, 1_000..1_001),
            (refusals(10_000, "cpu", 3), true, 1_000..10_000),
            (refusals(n_max, &"x".repeat(130), 32), false, 100..1_000),
        ] {
            let sent = messages([outcome(4), whole.clone(), outcome(6)].into_iter());
            assert!(sent.iter().all(|message| message.encoded_len() <= MESSAGE_BYTES_MAX));
            let sent: Vec<_> = sent
                .into_iter()
                .flat_map(|message| match message.message {
                    Some(v1::decide_response::Message::Outcomes(part)) => part.outcomes,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(sent.iter().map(|outcome| outcome.decision_id).collect::<Vec<_>>(), [4, 5, 6]);
            let refused = |outcome: &v1::Outcome| -> Vec<_> {
                let rejections = outcome.rejections.iter();
                rejections.map(|one| (one.reason, one.ordinals.clone(), one.node_id)).collect()
            };
            assert!(refused(&sent[1]) == refused(&whole), "every rejection is said");
            assert_eq!(sent[1].rejections[0].detail == whole.rejections[0].detail, words_stay);
            assert!(n_nodes.contains(&sent[1].nodes.len()), "{}", sent[1].nodes.len());
            assert!(whole.nodes.starts_with(&sent[1].nodes));
        }
    }
}
