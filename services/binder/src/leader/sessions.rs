//! Schedulers and their streams. A decision belongs to a scheduler and the epoch of its lease, not to a
//! stream: after a reconnect its outcome goes to the new one, and the decision sent again is not taken twice.

use std::sync::Arc;

use godel_domain::ids::Epoch;
use godel_kit::message::{MESSAGE_BYTES_MAX, field_len, parts};
use godel_proto::v1;
use prost::Message as _;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::mpsc;
use tonic::Status;

/// Where outcomes go.
pub(crate) type OutcomeSender = mpsc::Sender<Result<v1::DecideResponse, Status>>;

/// Names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

/// Bytes of one outcome: what is over is shortened.
const OUTCOME_BYTES: usize = MESSAGE_BYTES_MAX / 2;

#[derive(Debug)]
struct Session {
    epoch: Epoch,
    /// The present stream, if one is open.
    stream: Option<(StreamId, OutcomeSender)>,
    /// Decisions without an outcome, by id.
    live: FxHashSet<u64>,
    outcomes: Vec<v1::Outcome>,
}

/// All schedulers that have something open.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: FxHashMap<Arc<str>, Session>,
    names: FxHashMap<StreamId, Arc<str>>,
}

impl Sessions {
    /// A scheduler opened a stream; an older one of it is closed.
    ///
    /// # Errors
    /// A stream of a later epoch is open.
    pub(crate) fn open(
        &mut self,
        id: StreamId,
        scheduler: &str,
        epoch: Epoch,
        sender: OutcomeSender,
    ) -> Result<(), Epoch> {
        let name: Arc<str> = scheduler.into();
        let session = self.sessions.entry(Arc::clone(&name)).or_insert_with(|| Session {
            epoch,
            stream: None,
            live: FxHashSet::default(),
            outcomes: Vec::new(),
        });
        if session.epoch > epoch {
            return Err(session.epoch);
        }
        if session.epoch < epoch {
            session.live.clear();
            session.epoch = epoch;
        }
        session.outcomes.clear();
        if let Some((old, sender)) = session.stream.replace((id, sender)) {
            self.names.remove(&old);
            let _ = sender.try_send(Err(Status::aborted("another stream of this scheduler was opened")));
        }
        self.names.insert(id, name);
        Ok(())
    }

    /// Scheduler and epoch of a stream that is still the scheduler's present one.
    pub(crate) fn of(&self, id: StreamId) -> Option<(Arc<str>, Epoch)> {
        let name = self.names.get(&id)?;
        Some((Arc::clone(name), self.sessions.get(name)?.epoch))
    }

    /// Notes a decision; false when it is under way already.
    pub(crate) fn take(&mut self, scheduler: &Arc<str>, decision_id: u64) -> bool {
        self.sessions.get_mut(scheduler).is_some_and(|session| session.live.insert(decision_id))
    }

    /// An outcome for the scheduler, unless it has another epoch by now.
    pub(crate) fn answer(&mut self, scheduler: &Arc<str>, epoch: Epoch, outcome: v1::Outcome) {
        let Some(session) = self.sessions.get_mut(scheduler).filter(|session| session.epoch == epoch) else {
            return;
        };
        session.live.remove(&outcome.decision_id);
        if session.stream.is_some() {
            session.outcomes.push(outcome);
        } else if session.live.is_empty() {
            self.sessions.remove(scheduler);
        }
    }

    /// Sends what has gathered. Streams whose queue is full are cut; their number is returned.
    pub(crate) fn flush(&mut self) -> u64 {
        let mut n_cut = 0;
        for session in self.sessions.values_mut().filter(|session| !session.outcomes.is_empty()) {
            let outcomes = std::mem::take(&mut session.outcomes);
            let Some((id, sender)) = &session.stream else { continue };
            for message in messages(outcomes) {
                if sender.try_send(Ok(message)).is_err() {
                    self.names.remove(id);
                    session.stream = None;
                    n_cut += 1;
                    break;
                }
            }
        }
        n_cut
    }

    /// A stream ended. What is under way for its scheduler goes on.
    pub(crate) fn close(&mut self, id: StreamId) {
        let Some(name) = self.names.remove(&id) else { return };
        if let Some(session) = self.sessions.get_mut(&name) {
            session.stream = None;
            session.outcomes.clear();
            if session.live.is_empty() {
                self.sessions.remove(&name);
            }
        }
    }

    /// All streams end with `status`; nothing is remembered.
    pub(crate) fn close_all(&mut self, status: &Status) {
        self.names.clear();
        for (_, session) in self.sessions.drain() {
            if let Some((_, sender)) = session.stream {
                // A full queue ends without the reason: its reader looks for the leader all the same.
                let _ = sender.try_send(Err(status.clone()));
            }
        }
    }
}

/// Outcomes in messages of bounded size, in order.
fn messages(outcomes: Vec<v1::Outcome>) -> Vec<v1::DecideResponse> {
    let wrap = |outcomes| v1::decide_response::Message::Outcomes(v1::Outcomes { outcomes });
    let parts = parts(outcomes.into_iter().map(shortened));
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

    fn received(rx: &mut mpsc::Receiver<Result<v1::DecideResponse, Status>>) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Ok(Ok(response)) = rx.try_recv() {
            if let Some(v1::decide_response::Message::Outcomes(outcomes)) = response.message {
                ids.extend(outcomes.outcomes.iter().map(|outcome| outcome.decision_id));
            }
        }
        ids
    }

    #[test]
    fn an_outcome_follows_its_scheduler_to_the_next_stream() {
        let mut sessions = Sessions::default();
        let (first, _first_rx) = mpsc::channel(4);
        sessions.open(StreamId(1), "s1", Epoch(3), first).unwrap();
        let (name, epoch) = sessions.of(StreamId(1)).unwrap();
        assert!(sessions.take(&name, 7));
        sessions.close(StreamId(1));
        assert!(sessions.of(StreamId(1)).is_none());
        let (second, mut rx) = mpsc::channel(4);
        sessions.open(StreamId(2), "s1", Epoch(3), second).unwrap();
        assert!(!sessions.take(&name, 7), "it is under way");
        sessions.answer(&name, epoch, outcome(7));
        assert_eq!(sessions.flush(), 0);
        assert_eq!(received(&mut rx), [7]);
        assert!(sessions.take(&name, 7), "it was answered: it may come again");
    }

    #[test]
    fn another_epoch_is_another_scheduler() {
        let mut sessions = Sessions::default();
        let (first, mut first_rx) = mpsc::channel(4);
        sessions.open(StreamId(1), "s1", Epoch(3), first).unwrap();
        let (name, _) = sessions.of(StreamId(1)).unwrap();
        assert!(sessions.take(&name, 1));
        let (second, mut rx) = mpsc::channel(4);
        sessions.open(StreamId(2), "s1", Epoch(4), second).unwrap();
        assert!(first_rx.try_recv().unwrap().is_err());
        assert!(sessions.take(&name, 1));
        sessions.answer(&name, Epoch(3), outcome(1));
        sessions.flush();
        assert!(received(&mut rx).is_empty());
        let (late, _late_rx) = mpsc::channel(4);
        assert_eq!(sessions.open(StreamId(3), "s1", Epoch(3), late), Err(Epoch(4)));
    }

    #[test]
    fn a_stream_that_is_not_read_is_cut() {
        let mut sessions = Sessions::default();
        let (sender, _rx) = mpsc::channel(1);
        sessions.open(StreamId(1), "s1", Epoch(1), sender).unwrap();
        let (name, epoch) = sessions.of(StreamId(1)).unwrap();
        for (id, n_cut) in [(1, 0), (2, 1)] {
            assert!(sessions.take(&name, id));
            sessions.answer(&name, epoch, outcome(id));
            assert_eq!(sessions.flush(), n_cut);
        }
        assert!(sessions.of(StreamId(1)).is_none());
    }

    #[test]
    fn messages_are_bounded() {
        let long = v1::Outcome {
            rejections: vec![v1::Rejection { detail: "x".repeat(300 << 10), ..v1::Rejection::default() }],
            ..v1::Outcome::default()
        };
        assert_eq!(messages(vec![long.clone(), long, outcome(1)]).len(), 2);
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
            let sent = messages(vec![outcome(4), whole.clone(), outcome(6)]);
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
