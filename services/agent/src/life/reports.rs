//! What a node says to state: reports in order, each kept until state has it on its disk.

use godel_domain::{run_end::RunEnd, running_units::Phase};
use godel_membership::agent_admission::AssignmentRefusal;

use super::{Action, Key, N_REPORTS_MAX, N_ROOM_KEPT, NodeLife, Status};

impl NodeLife {
    /// This start of it came to nothing for the sake of the node. That is no end of its own, whatever its policy says: it returns
    /// elsewhere as its next incarnation, and no attempt is used up.
    pub(super) fn give_back(&mut self, key: Key, why: AssignmentRefusal, out: &mut Vec<Action>) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        (run.phase, run.exit_code, run.end) = (Phase::Stopped, 0, RunEnd::default());
        let (weight, pool) = (run.orders.weight, run.orders.pool);
        let status = Status { refused: Some(why), ..run.status(key) };
        self.count_of(weight, pool, -1);
        self.dirty.push_back(status);
        out.push(Action::Keep(status));
    }

    /// A session begins: everything that runs here, and every end not yet acknowledged. What was on its way
    /// is to be reported again, in new sequences.
    pub fn open(&mut self) -> Vec<Status> {
        let lost = std::mem::take(&mut self.in_flight);
        for (_, statuses) in lost.into_iter().rev() {
            for status in statuses.into_iter().rev() {
                self.dirty.push_front(status);
            }
        }
        self.last_sequence = 0;
        let mut all: Vec<Status> = self.runs.iter().map(|(key, run)| run.status(*key)).collect();
        all.sort_unstable_by_key(|status| status.key);
        all
    }

    /// The next report with at most `n_max` statuses, if there is something to say and not too much is on its way.
    pub fn next_report(&mut self, n_max: usize) -> Option<(u64, Vec<Status>)> {
        if self.dirty.is_empty() || self.in_flight.len() >= N_REPORTS_MAX {
            return None;
        }
        // What a burst has made large is handed on with it: thousands of nodes may live in one process.
        let rest = self.dirty.split_off(self.dirty.len().min(n_max.max(1)));
        let statuses = Vec::from(std::mem::replace(&mut self.dirty, rest));
        self.last_sequence += 1;
        self.in_flight.push_back((self.last_sequence, statuses.clone()));
        Some((self.last_sequence, statuses))
    }

    /// The last report could not be sent after all.
    pub fn unsent(&mut self) {
        if let Some((sequence, statuses)) = self.in_flight.pop_back() {
            self.last_sequence = sequence - 1;
            for status in statuses.into_iter().rev() {
                self.dirty.push_front(status);
            }
        }
    }

    /// Every report up to `sequence` is durable.
    pub fn acknowledged(&mut self, sequence: u64, out: &mut Vec<Action>) {
        while self.in_flight.front().is_some_and(|(first, _)| *first <= sequence) {
            let Some((_, statuses)) = self.in_flight.pop_front() else { return };
            for status in statuses.into_iter().filter(|status| status.phase.is_ended()) {
                let same =
                    self.runs.get(&status.key).is_some_and(|run| run.incarnation == status.incarnation);
                if same {
                    self.runs.remove(&status.key);
                    self.remember(status);
                    out.push(Action::Forget(status));
                }
            }
        }
        let (room, len) = (self.runs.capacity(), self.runs.len());
        if room > N_ROOM_KEPT && len < room / 4 {
            self.runs.shrink_to(2 * len);
        }
    }

    /// Something waits to be reported.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// What is here now is another store's, with everything that is left over taken out of it: what was to be said
    /// about that is not said, and what was remembered of ends was true in the other store only.
    pub fn change_store(&mut self) {
        self.remembered.clear();
        let runs = &self.runs;
        let is_here =
            |status: &Status| runs.get(&status.key).is_some_and(|run| run.incarnation == status.incarnation);
        self.dirty.retain(is_here);
        self.in_flight.iter_mut().for_each(|(_, statuses)| statuses.retain(is_here));
    }
}
