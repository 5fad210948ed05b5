//! The binder without its streams: batches of decisions checked, a few transactions under way.

use std::{cmp::Reverse, collections::BTreeMap};

use godel_audit::Commit;
use godel_core_binder::{Accepted, Binder, Ticket, Verdict, Wait};
use godel_domain::{
    change::Change,
    decision::{Decision, Outcome, Rejection},
    ids::Revision,
    running_units::RunChange,
};

use super::world::{BINDER, Message, Part, SCHEDULERS, STATE, Turn, Txn};

/// Transactions under way at once, as configured by default.
const N_TXNS_MAX: usize = 4;
/// Running units in one transaction, as configured by default.
const N_PLACEMENTS_MAX: usize = 8_192;
/// Units in one transaction: about as many as fit into the bytes of one.
const N_UNITS_MAX: usize = 4_096;

/// A decision and whose it is.
#[derive(Debug)]
struct Queued {
    scheduler: usize,
    decision: Decision,
}

/// What became of a decision: who gets the answer, the answer but for its revision.
struct Item {
    scheduler: usize,
    decision_id: u64,
    accepted: Box<Accepted>,
}

pub(super) struct BinderPart {
    core: Binder,
    /// By priority, then arrival.
    ready: BTreeMap<(Reverse<i32>, u64), Queued>,
    last_arrival: u64,
    waiting: Vec<(Wait, Queued)>,
    in_flight: BTreeMap<u64, Vec<Item>>,
    last_txn: u64,
    outcomes: BTreeMap<usize, Vec<Outcome>>,
}

impl BinderPart {
    pub(super) fn new(records: &[Commit]) -> Self {
        let mut core = Binder::new();
        for commit in records {
            for change in &commit.changes {
                core.on_change(change.clone(), commit.revision, commit.time_ms);
            }
            core.on_revision(commit.revision);
        }
        Self {
            core,
            ready: BTreeMap::new(),
            last_arrival: 0,
            waiting: Vec::new(),
            in_flight: BTreeMap::new(),
            last_txn: 0,
            outcomes: BTreeMap::new(),
        }
    }

    fn take(&mut self, message: Message, turn: &mut Turn<'_>) {
        match message {
            Message::Decisions(scheduler, decisions) => {
                for decision in decisions {
                    self.push(Queued { scheduler, decision });
                }
            }
            Message::Commits(range) => {
                turn.follow(&range, true);
                for commit in &turn.ledger.commits[range] {
                    for change in &commit.changes {
                        self.core.on_change(change.clone(), commit.revision, commit.time_ms);
                    }
                    self.core.on_revision(commit.revision);
                }
                self.wake_for(&[]);
            }
            Message::Committed { id, revision } => {
                let items = self.in_flight.remove(&id).unwrap_or_default();
                let tickets: Vec<Ticket> = items.iter().map(|item| item.accepted.ticket).collect();
                for item in items {
                    self.core.commit(item.accepted.ticket, revision);
                    let unit = item.accepted.unit;
                    self.answer(
                        item.scheduler,
                        (item.decision_id, unit),
                        revision,
                        item.accepted.rejections,
                        turn,
                    );
                }
                self.wake_for(&tickets);
            }
            other => unreachable!("not for the binder: {other:?}"),
        }
    }

    /// Those that waited for these transactions, or for what has been read by now, are checked again.
    fn wake_for(&mut self, tickets: &[Ticket]) {
        let read = self.core.revision();
        let is_over = |wait: &Wait| match wait {
            Wait::Revision(revision) => *revision <= read,
            Wait::Ticket(ticket) => tickets.contains(ticket),
        };
        let woken: Vec<_> = self.waiting.extract_if(.., |(wait, _)| is_over(wait)).collect();
        for (_, queued) in woken {
            self.push(queued);
        }
    }

    fn push(&mut self, queued: Queued) {
        self.last_arrival += 1;
        let priority = self.core.priority(queued.decision.unit);
        self.ready.insert((Reverse(priority), self.last_arrival), queued);
    }

    /// One transaction, if there is room for another one under way.
    fn write(&mut self, turn: &mut Turn<'_>) {
        if self.in_flight.len() >= N_TXNS_MAX {
            return;
        }
        let (mut items, mut changes) = (Vec::new(), Vec::new());
        let mut n_placements = 0;
        while n_placements < N_PLACEMENTS_MAX
            && changes.len() < N_UNITS_MAX
            && let Some((_, queued)) = self.ready.pop_first()
        {
            turn.work(turn.delays.binder_us.of(1, queued.decision.len()));
            match self.core.check(&queued.decision) {
                Verdict::Bind(mut accepted) => {
                    for bind in std::mem::take(&mut accepted.binds) {
                        n_placements += bind.ordinals.len();
                        changes.push(Change::Rows(accepted.unit, RunChange::Bind(bind)));
                    }
                    let Queued { scheduler, decision } = queued;
                    turn.ledger.answers.decided += decision.len() as u64;
                    items.push(Item { scheduler, decision_id: decision.id, accepted });
                }
                Verdict::Wait(wait) => self.waiting.push((wait, queued)),
                Verdict::Reject(rejections) => {
                    let Queued { scheduler, decision } = queued;
                    turn.ledger.answers.decided += decision.len() as u64;
                    self.answer(scheduler, (decision.id, decision.unit), Revision(0), rejections, turn);
                }
            }
        }
        if !items.is_empty() {
            self.last_txn += 1;
            self.in_flight.insert(self.last_txn, items);
            let txn = Txn { from: BINDER, id: self.last_txn, changes };
            turn.call(STATE, Message::Txn(txn));
        }
    }

    fn answer(
        &mut self,
        scheduler: usize,
        (decision_id, unit): (u64, godel_domain::ids::UnitId),
        revision: Revision,
        rejections: Vec<Rejection>,
        turn: &mut Turn<'_>,
    ) {
        let answers = &mut turn.ledger.answers;
        for rejection in &rejections {
            let n_refused = rejection.ordinals.len() as u64;
            *answers.refused.entry(rejection.reason.name()).or_default() += n_refused;
            answers.conflicts += if rejection.reason.is_conflict() { n_refused } else { 0 };
        }
        let nodes = self.core.fresh_nodes(unit, &rejections);
        let outcome = Outcome { decision_id, unit, revision, held: false, rejections, nodes };
        self.outcomes.entry(scheduler).or_default().push(outcome);
    }
}

impl Part for BinderPart {
    fn turn(&mut self, turn: &mut Turn<'_>) {
        while let Some(message) = turn.next() {
            self.take(message, turn);
        }
        self.write(turn);
        for (scheduler, outcomes) in std::mem::take(&mut self.outcomes) {
            turn.call(SCHEDULERS + scheduler, Message::Outcomes(outcomes));
        }
    }
}
