//! Schedulers and their streams. A decision belongs to a scheduler and the epoch of its lease, not to a
//! stream: after a reconnect its outcome goes to the new one, and the decision sent again is not taken twice.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::Epoch;
use godel_domain::decision::Outcome;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{BinderNote, BinderOutbox, StreamEnd};

/// Names a stream of decisions and outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

#[derive(Debug)]
struct Session {
    epoch: Epoch,
    /// The present stream, if one is open.
    stream: Option<StreamId>,
    /// Decisions without an outcome, by id.
    live: FxHashSet<u64>,
    outcomes: Vec<Outcome>,
}

/// All schedulers that have something open.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<Arc<str>, Session>,
    names: FxHashMap<StreamId, Arc<str>>,
}

impl Sessions {
    /// A scheduler opened a stream; an older one of it is closed.
    ///
    /// # Errors
    /// A stream of a later epoch is open.
    pub(super) fn open(
        &mut self,
        id: StreamId,
        scheduler: &str,
        epoch: Epoch,
        out: &mut impl BinderOutbox,
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
        if let Some(old) = session.stream.replace(id) {
            self.names.remove(&old);
            out.end(old, StreamEnd::Replaced);
        }
        self.names.insert(id, name);
        Ok(())
    }

    /// Scheduler and epoch of a stream that is still the scheduler's present one.
    pub(super) fn of(&self, id: StreamId) -> Option<(Arc<str>, Epoch)> {
        let name = self.names.get(&id)?;
        Some((Arc::clone(name), self.sessions.get(name)?.epoch))
    }

    /// Notes a decision; false when it is under way already.
    pub(super) fn take(&mut self, scheduler: &Arc<str>, decision_id: u64) -> bool {
        self.sessions.get_mut(scheduler).is_some_and(|session| session.live.insert(decision_id))
    }

    /// An outcome for the scheduler, unless it has another epoch by now.
    pub(super) fn answer(&mut self, scheduler: &Arc<str>, epoch: Epoch, outcome: Outcome) {
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

    /// Sends the outcomes that have gathered. A stream that takes no more is cut.
    pub(super) fn flush(&mut self, out: &mut impl BinderOutbox) {
        for session in self.sessions.values_mut().filter(|session| !session.outcomes.is_empty()) {
            let outcomes = std::mem::take(&mut session.outcomes);
            let Some(id) = session.stream else { continue };
            if !out.outcomes(id, outcomes) {
                self.names.remove(&id);
                session.stream = None;
                out.note(BinderNote::StreamCut);
            }
        }
    }

    /// A stream ended. What is under way for its scheduler goes on.
    pub(super) fn close(&mut self, id: StreamId) {
        let Some(name) = self.names.remove(&id) else { return };
        if let Some(session) = self.sessions.get_mut(&name) {
            session.stream = None;
            session.outcomes.clear();
            if session.live.is_empty() {
                self.sessions.remove(&name);
            }
        }
    }

    /// All streams end, as this binder leads no longer; nothing is remembered.
    pub(super) fn close_all(&mut self, out: &mut impl BinderOutbox) {
        self.names.clear();
        for session in std::mem::take(&mut self.sessions).into_values() {
            if let Some(id) = session.stream {
                out.end(id, StreamEnd::NotLeader);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Sent, *};

    fn outcome(decision_id: u64) -> Outcome {
        Outcome { decision_id, ..Outcome::default() }
    }

    #[test]
    fn an_outcome_follows_its_scheduler_to_the_next_stream() {
        let (mut sessions, mut sent) = (Sessions::default(), Sent::default());
        sessions.open(StreamId(1), "s1", Epoch(3), &mut sent).unwrap();
        let (name, epoch) = sessions.of(StreamId(1)).unwrap();
        assert!(sessions.take(&name, 7));
        sessions.close(StreamId(1));
        assert!(sessions.of(StreamId(1)).is_none());
        sessions.open(StreamId(2), "s1", Epoch(3), &mut sent).unwrap();
        assert!(!sessions.take(&name, 7), "it is under way");
        sessions.answer(&name, epoch, outcome(7));
        sessions.flush(&mut sent);
        assert_eq!(sent.ids(StreamId(2)), [7]);
        assert!(sessions.take(&name, 7), "it was answered: it may come again");
    }

    #[test]
    fn another_epoch_is_another_scheduler() {
        let (mut sessions, mut sent) = (Sessions::default(), Sent::default());
        sessions.open(StreamId(1), "s1", Epoch(3), &mut sent).unwrap();
        let (name, _) = sessions.of(StreamId(1)).unwrap();
        assert!(sessions.take(&name, 1));
        sessions.open(StreamId(2), "s1", Epoch(4), &mut sent).unwrap();
        assert_eq!(sent.ended, [(StreamId(1), StreamEnd::Replaced)]);
        assert!(sessions.take(&name, 1));
        sessions.answer(&name, Epoch(3), outcome(1));
        sessions.flush(&mut sent);
        assert!(sent.ids(StreamId(2)).is_empty());
        assert_eq!(sessions.open(StreamId(3), "s1", Epoch(3), &mut sent), Err(Epoch(4)));
    }

    #[test]
    fn a_stream_that_is_not_read_is_cut() {
        let (mut sessions, mut sent) = (Sessions::default(), Sent::default());
        sessions.open(StreamId(1), "s1", Epoch(1), &mut sent).unwrap();
        let (name, epoch) = sessions.of(StreamId(1)).unwrap();
        for (id, is_full) in [(1, false), (2, true)] {
            sent.is_full = is_full;
            assert!(sessions.take(&name, id));
            sessions.answer(&name, epoch, outcome(id));
            sessions.flush(&mut sent);
            assert_eq!(sent.n_cut, u32::from(is_full));
        }
        assert!(sessions.of(StreamId(1)).is_none());
    }
}
