//! The dispatcher without its streams, and who submits.

use std::{collections::BTreeMap, sync::Arc};

use godel_audit::Commit;
use godel_core_dispatcher::{Action, Assignment, Attach, Config, Dispatcher, SessionId};
use godel_domain::{
    change::{Change, Lease},
    ids::{Epoch, Revision},
    time::Millis,
    unit::UnitSpec,
};

use super::world::{CLIENT, DISPATCHER, Message, Part, SCHEDULERS, STATE, Turn, Txn};

/// Messages of the submitter without an answer.
const N_SUBMITS_MAX: usize = 32;
/// Running units in one message of the submitter, roughly.
const N_PLACEMENTS: usize = 1_000;
/// Units in one message of the submitter at most.
const N_UNITS_MAX: usize = 100;

/// Submits as fast as it is answered.
pub(super) struct ClientPart {
    lots: std::vec::IntoIter<Vec<Arc<UnitSpec>>>,
    n_open: usize,
}

impl ClientPart {
    pub(super) fn new(units: &[Arc<UnitSpec>]) -> Self {
        let mut lots: Vec<Vec<Arc<UnitSpec>>> = Vec::new();
        let mut n_placements = N_PLACEMENTS;
        for unit in units {
            let is_full = |lot: &Vec<Arc<UnitSpec>>| n_placements >= N_PLACEMENTS || lot.len() >= N_UNITS_MAX;
            match lots.last_mut().filter(|lot| !is_full(lot)) {
                Some(lot) => lot.push(Arc::clone(unit)),
                None => {
                    n_placements = 0;
                    lots.push(vec![Arc::clone(unit)]);
                }
            }
            n_placements += usize::try_from(unit.replicas()).unwrap_or(usize::MAX);
        }
        Self { lots: lots.into_iter(), n_open: 0 }
    }
}

impl Part for ClientPart {
    fn turn(&mut self, turn: &mut Turn<'_>) {
        while turn.next().is_some() {
            self.n_open -= 1;
        }
        while self.n_open < N_SUBMITS_MAX
            && let Some(lot) = self.lots.next()
        {
            self.n_open += 1;
            turn.call(DISPATCHER, Message::Submit(lot));
        }
    }
}

pub(super) struct DispatcherPart {
    core: Dispatcher,
    submitted: BTreeMap<u64, Vec<Arc<UnitSpec>>>,
    last_txn: u64,
}

impl DispatcherPart {
    pub(super) fn new(records: &[Commit], schedulers: &[String], credits: u32) -> Self {
        let now = Millis(0);
        let mut core = Dispatcher::new(Config::default());
        core.on_reset();
        for commit in records {
            for change in &commit.changes {
                match change {
                    Change::NodeSpec(spec) => core.on_node_spec(spec, now),
                    Change::NodeReport(report) => core.on_node_report(report, now),
                    Change::Partition(partition) => core.on_partition(partition.clone(), commit.revision),
                    _ => {}
                }
            }
        }
        for name in schedulers {
            let lease = Lease {
                name: format!("scheduler/{name}"),
                holder: name.clone(),
                epoch: Epoch(1),
                ..Lease::default()
            };
            core.on_lease(&lease, now);
        }
        core.on_synced(records.last().map_or(Revision(0), |last| last.revision), now);
        for (session, name) in (0..).zip(schedulers) {
            let attach = Attach {
                name: name.clone(),
                epoch: Epoch(1),
                session: SessionId(session),
                inventory: Vec::new(),
                credits,
            };
            core.on_attached(attach, now).expect("its lease was granted above");
        }
        Self { core, submitted: BTreeMap::new(), last_txn: 0 }
    }

    fn take(&mut self, message: Message, turn: &mut Turn<'_>) {
        let now = turn.now_ms();
        match message {
            Message::Submit(units) => {
                let n_placements = units.iter().map(|unit| unit.replicas() as usize).sum();
                turn.work(turn.delays.submit_us.of(units.len(), n_placements));
                self.last_txn += 1;
                let changes = units.iter().map(|unit| Change::UnitSpec(Arc::clone(unit))).collect();
                self.submitted.insert(self.last_txn, units);
                turn.call(STATE, Message::Txn(Txn { from: DISPATCHER, id: self.last_txn, changes }));
            }
            Message::Committed { id, revision } => {
                for unit in self.submitted.remove(&id).unwrap_or_default() {
                    self.core.on_unit(unit, revision, (revision, 0), now);
                }
                turn.call(CLIENT, Message::Submitted);
            }
            Message::Commits(range) => {
                turn.follow(&range, true);
                for commit in &turn.ledger.commits[range] {
                    for change in &commit.changes {
                        match change {
                            Change::UnitSpec(spec) => {
                                let created = (commit.revision, commit.time_ms);
                                self.core.on_unit(Arc::clone(spec), commit.revision, created, now);
                            }
                            Change::Rows(unit, rows) => {
                                self.core.on_rows(*unit, rows, commit.revision, commit.time_ms, now);
                            }
                            _ => {}
                        }
                    }
                    self.core.on_revision(commit.revision);
                }
            }
            Message::Reports(scheduler, reports, rooms) => {
                for report in reports {
                    self.core.on_report(session(scheduler), report, now);
                }
                self.core.on_rooms(session(scheduler), &rooms);
            }
            Message::Credits(scheduler, credits) => self.core.on_credits(session(scheduler), credits),
            other => unreachable!("not for the dispatcher: {other:?}"),
        }
    }

    fn step(&mut self, turn: &mut Turn<'_>) {
        let mut lots: BTreeMap<SessionId, Vec<Assignment>> = BTreeMap::new();
        for action in self.core.step(turn.now_ms()) {
            match action {
                Action::Assign(assignment) => {
                    turn.work(turn.delays.dispatch_us.of(1, assignment.ordinals.len()));
                    lots.entry(assignment.session).or_default().push(assignment);
                }
                Action::Revoke(session, unit) => turn.call(seat(session), Message::Revoke(unit)),
                // Nobody comes, goes, is cancelled or ends here.
                Action::Close(_)
                | Action::Evict(_)
                | Action::End(..)
                | Action::Delete(_)
                | Action::WritePartition(_) => {}
            }
        }
        for (session, lot) in lots {
            turn.call(seat(session), Message::Assign(lot));
        }
    }
}

fn session(scheduler: usize) -> SessionId {
    SessionId(scheduler as u64)
}

fn seat(session: SessionId) -> usize {
    SCHEDULERS + usize::try_from(session.0).expect("made from an index")
}

impl Part for DispatcherPart {
    fn turn(&mut self, turn: &mut Turn<'_>) {
        while let Some(message) = turn.next() {
            self.take(message, turn);
        }
        self.step(turn);
        turn.wake_at(self.core.next_wake(turn.now_ms()));
    }
}
