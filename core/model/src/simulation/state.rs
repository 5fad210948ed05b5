//! State as its followers see it: group commits, one after the other, what is committed sent to everybody.
//!
//! It judges nothing: whatever the binder lets through is committed, so that a wrong decision shows in the audit.

use godel_audit::Commit;
use godel_base::ids::Revision;
use godel_domain::{change::Change, running_units::RunChange};

use super::{BINDER, DISPATCHER, PartMessage, PartTurn, SCHEDULERS, TimedPart, TimedTxn, weight};

pub(super) struct TimedState {
    followers: Vec<usize>,
}

impl TimedState {
    pub(super) fn new(n_schedulers: usize) -> Self {
        let schedulers = SCHEDULERS..SCHEDULERS + n_schedulers;
        Self { followers: [DISPATCHER, BINDER].into_iter().chain(schedulers).collect() }
    }

    fn commit(txn: TimedTxn, turn: &mut PartTurn<'_>, n_followers: usize) -> u64 {
        let TimedTxn { changes, .. } = txn;
        let (n_units, n_rows) = weight(&changes, true);
        let delays = turn.delays;
        turn.work(delays.state.of(n_units, n_rows));
        // Units' records go to the dispatcher and the binder only.
        let (n_changes, _) = weight(&changes, false);
        turn.work(2 * delays.fan_out.of(n_units - n_changes, 0));
        turn.work(n_followers as u64 * delays.fan_out.of(n_changes, n_rows));
        let revision = turn.ledger.commits.last().map_or(1, |last| last.revision.0 + 1);
        let time_ms = i64::try_from(turn.now_ms().0).unwrap_or(i64::MAX);
        let bound = changes.iter().map(|change| match change {
            Change::Rows(_, RunChange::Bind(bind)) => bind.ordinals.len() as u64,
            _ => 0,
        });
        turn.ledger.n_bound += bound.sum::<u64>();
        turn.ledger.commits.push(Commit { revision: Revision(revision), time_ms, changes });
        revision
    }
}

impl TimedPart for TimedState {
    fn turn(&mut self, turn: &mut PartTurn<'_>) {
        let first = turn.ledger.commits.len();
        let n_bound = turn.ledger.n_bound;
        let mut answers = Vec::new();
        while let Some(message) = turn.next() {
            let PartMessage::Txn(txn) = message else { unreachable!("not for state: {message:?}") };
            let (from, id) = (txn.from, txn.id);
            let revision = Self::commit(txn, turn, self.followers.len());
            answers.push((from, PartMessage::Committed { id, revision: Revision(revision) }));
        }
        if answers.is_empty() {
            return;
        }
        // Work on the next group goes on while this one is synced, but a group's sync follows its own work: the
        // rate is that of the slower of both, the way through is the sum.
        let cpu = turn.busy();
        let sync = turn.delays.commit.0;
        turn.work(sync.saturating_sub(cpu));
        let rest = cpu.min(sync);
        for (from, message) in answers {
            turn.send(from, rest + turn.delays.hop.0, message);
        }
        let seen = rest + turn.delays.watch.0;
        let commits = first..turn.ledger.commits.len();
        for follower in &self.followers {
            turn.send(*follower, seen, PartMessage::Commits(commits.clone()));
        }
        if turn.ledger.n_bound > n_bound {
            turn.ledger.last_bound = turn.now + turn.busy() + seen;
        }
    }
}
