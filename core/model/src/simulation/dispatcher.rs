//! The dispatcher without its streams, and who submits.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{Epoch, Revision, UnitId},
    time::Millis,
};
use godel_core_dispatcher::{
    Attach, Config, Dispatcher, SessionId,
    leader::{
        DispatcherLeader, DispatcherLeaderConfig, DispatcherOutbox, NotSent, NotSubmitted, Outgoing,
        TxnTicket, UnitBatch, UnitSubmission,
    },
};
use godel_domain::{
    assignment::Assignment,
    change::{Change, Commit, Lease},
    records::Record,
    txn::{Receipt, RecordRef, TxnBuilder},
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};

use super::{CLIENT, DISPATCHER, PartMessage, PartTurn, SCHEDULERS, STATE, TimedPart, TimedTxn};

/// Messages of the submitter without an answer.
const N_SUBMITS_MAX: usize = 32;
/// Running units in one message of the submitter, roughly.
const N_PLACEMENTS: usize = 1_000;
/// Units in one message of the submitter at most.
const N_UNITS_MAX: usize = 100;
/// Units in one transaction, as configured by default.
const N_TXN_UNITS_MAX: usize = 4_096;
/// Transactions of units under way at once, as configured by default.
const N_TXNS_MAX: usize = 4;

/// Submits as fast as it is answered.
pub(super) struct TimedClient {
    lots: std::vec::IntoIter<Vec<Arc<UnitRecord>>>,
    n_open: usize,
}

impl TimedClient {
    pub(super) fn new(units: &[Arc<UnitRecord>]) -> Self {
        let mut lots: Vec<Vec<Arc<UnitRecord>>> = Vec::new();
        let mut n_placements = N_PLACEMENTS;
        for unit in units {
            let is_full =
                |lot: &Vec<Arc<UnitRecord>>| n_placements >= N_PLACEMENTS || lot.len() >= N_UNITS_MAX;
            match lots.last_mut().filter(|lot| !is_full(lot)) {
                Some(lot) => lot.push(Arc::clone(unit)),
                None => {
                    n_placements = 0;
                    lots.push(vec![Arc::clone(unit)]);
                }
            }
            n_placements += usize::try_from(unit.spec.replicas()).unwrap_or(usize::MAX);
        }
        Self { lots: lots.into_iter(), n_open: 0 }
    }
}

impl TimedPart for TimedClient {
    fn turn(&mut self, turn: &mut PartTurn<'_>) {
        while turn.next().is_some() {
            self.n_open -= 1;
        }
        while self.n_open < N_SUBMITS_MAX
            && let Some(lot) = self.lots.next()
        {
            self.n_open += 1;
            turn.call(DISPATCHER, PartMessage::Submit(lot));
        }
    }
}

pub(super) struct TimedDispatcher {
    leader: DispatcherLeader<DispatcherReplies>,
    out: DispatcherReplies,
}

/// What the leader says and writes, to be sent at the end of a turn.
#[derive(Default)]
struct DispatcherReplies {
    tickets: BTreeMap<u64, TxnTicket<Self>>,
    last_txn: u64,
    txns: Vec<(u64, Vec<Change>)>,
    outgoing: Vec<Outgoing>,
    /// Units that are not durable yet, of each message of the submitter.
    open: BTreeMap<u64, usize>,
    last_lot: u64,
    /// Messages of the submitter that have their answers.
    n_answered: usize,
}

/// The operations of a transaction.
#[derive(Default)]
struct TxnChanges(Vec<Change>);

impl TxnBuilder for TxnChanges {
    fn push(&mut self, change: &Change) -> usize {
        self.0.push(change.clone());
        1
    }

    fn require(&mut self, _record: RecordRef<'_>, _revision: Revision) -> usize {
        0
    }
}

impl DispatcherOutbox for DispatcherReplies {
    /// The message of the submitter.
    type Submitter = u64;
    type Caller = ();
    type Editor = ();
    type Record = ();
    type Txn = TxnChanges;

    fn encode(&mut self, _record: &UnitRecord) -> ((), usize) {
        ((), 1)
    }

    fn begin(&mut self) -> TxnChanges {
        TxnChanges::default()
    }

    fn submit(&mut self, txn: TxnChanges, ticket: TxnTicket<Self>) -> Result<(), (TxnTicket<Self>, NotSent)> {
        self.last_txn += 1;
        self.tickets.insert(self.last_txn, ticket);
        self.txns.push((self.last_txn, txn.0));
        Ok(())
    }

    fn submit_units(&mut self, batch: UnitBatch<Self>) -> Result<(), (UnitBatch<Self>, NotSent)> {
        let changes = batch.units.iter().map(|unit| Change::Put(Record::Unit(Arc::clone(&unit.record))));
        self.last_txn += 1;
        self.txns.push((self.last_txn, changes.collect()));
        self.tickets.insert(self.last_txn, TxnTicket::Units(batch));
        Ok(())
    }

    fn submitted(
        &mut self,
        _core: &Dispatcher,
        lot: u64,
        _spec: &UnitSpec,
        _unit: UnitId,
        _revision: Revision,
        _is_duplicate: bool,
    ) {
        if let Some(n_open) = self.open.get_mut(&lot) {
            *n_open -= 1;
            if *n_open == 0 {
                self.open.remove(&lot);
                self.n_answered += 1;
            }
        }
    }

    fn not_submitted(&mut self, _lot: u64, spec: UnitSpec, why: NotSubmitted) {
        unreachable!("unit {} of a simulation is not taken: {why:?}", spec.name)
    }

    fn send(&mut self, messages: Vec<Outgoing>) -> Vec<SessionId> {
        self.outgoing.extend(messages);
        Vec::new()
    }

    fn new_uid(&mut self) -> String {
        String::new()
    }
}

impl TimedDispatcher {
    pub(super) fn new(records: &[Commit], schedulers: &[String], credits: u32) -> Self {
        let now = Millis(0);
        let config = DispatcherLeaderConfig {
            units_max: usize::MAX,
            txn_units_max: N_TXN_UNITS_MAX,
            txn_bytes_max: usize::MAX,
            txns_in_flight_max: N_TXNS_MAX,
            edit_bytes_max: usize::MAX,
            sub_cluster_key: String::new(),
        };
        let mut out = DispatcherReplies::default();
        let mut leader = DispatcherLeader::new(Dispatcher::new(Config::default()), UnitId(0), config);
        leader.reset();
        leader.lead(Revision(0));
        for commit in records {
            for change in &commit.changes {
                let created = Receipt { revision: commit.revision, time_ms: 0 };
                leader.load(change, commit.revision, created, now, &mut out);
            }
        }
        let read = records.last().map_or(Revision(0), |last| last.revision);
        for name in schedulers {
            let lease = Lease {
                name: format!("scheduler/{name}"),
                holder: name.clone(),
                epoch: Epoch(1),
                ..Lease::default()
            };
            let created = Receipt { revision: read, time_ms: 0 };
            leader.load(&Change::Put(Record::Lease(lease)), read, created, now, &mut out);
        }
        leader.on_synced(read, now, &mut out);
        for (session, name) in (0..).zip(schedulers) {
            let attach = Attach {
                name: name.clone(),
                epoch: Epoch(1),
                session: SessionId(session),
                inventory: Vec::new(),
                credits,
            };
            leader.attach(attach, now).expect("its lease was granted above");
        }
        Self { leader, out }
    }

    fn take(&mut self, message: PartMessage, turn: &mut PartTurn<'_>) {
        let now = turn.now_ms();
        match message {
            PartMessage::Submit(units) => {
                let n_placements = units.iter().map(|unit| unit.spec.replicas() as usize).sum();
                turn.work(turn.delays.submit.of(units.len(), n_placements));
                self.out.last_lot += 1;
                let lot = self.out.last_lot;
                self.out.open.insert(lot, units.len());
                for unit in units {
                    let submission =
                        UnitSubmission { spec: unit.spec.clone(), by: UnitCaller::default(), submitter: lot };
                    self.leader.submit(submission, now, &mut self.out);
                }
            }
            PartMessage::Committed { id, revision } => {
                if let Some(ticket) = self.out.tickets.remove(&id) {
                    let receipt = Receipt { revision, time_ms: 0 };
                    self.leader.on_answer(ticket, Ok(receipt), now, &mut self.out);
                }
            }
            PartMessage::Commits(range) => {
                turn.follow(&range, true);
                for idx in range {
                    let commit = turn.ledger.commits[idx].clone();
                    self.leader.apply(&commit, now, &mut self.out);
                }
            }
            PartMessage::Reports(scheduler, reports, rooms) => {
                self.leader.on_reports(session(scheduler), reports, now, &mut self.out);
                self.leader.on_rooms(session(scheduler), &rooms);
            }
            PartMessage::Credits(scheduler, credits) => self.leader.on_credits(session(scheduler), credits),
            other => unreachable!("not for the dispatcher: {other:?}"),
        }
    }

    fn step(&mut self, turn: &mut PartTurn<'_>) {
        self.leader.step(turn.now_ms(), 0, &mut self.out);
        let mut lots: BTreeMap<SessionId, Vec<Assignment>> = BTreeMap::new();
        for message in std::mem::take(&mut self.out.outgoing) {
            match message {
                Outgoing::Assign(session, assignment) => {
                    turn.work(turn.delays.dispatch.of(1, assignment.ordinals.len()));
                    lots.entry(session).or_default().push(assignment);
                }
                Outgoing::Revoke(session, unit) => turn.call(seat(session), PartMessage::Revoke(unit)),
                // Nobody comes, goes or is evicted here.
                Outgoing::Close(_) | Outgoing::Evict(_) => {}
            }
        }
        for (session, lot) in lots {
            turn.call(seat(session), PartMessage::Assign(lot));
        }
        for (id, changes) in std::mem::take(&mut self.out.txns) {
            turn.call(STATE, PartMessage::Txn(TimedTxn { from: DISPATCHER, id, changes }));
        }
        for _ in 0..std::mem::take(&mut self.out.n_answered) {
            turn.call(CLIENT, PartMessage::Submitted);
        }
    }
}

fn session(scheduler: usize) -> SessionId {
    SessionId(scheduler as u64)
}

fn seat(session: SessionId) -> usize {
    SCHEDULERS + usize::try_from(session.0).expect("made from an index")
}

impl TimedPart for TimedDispatcher {
    fn turn(&mut self, turn: &mut PartTurn<'_>) {
        while let Some(message) = turn.next() {
            self.take(message, turn);
        }
        self.step(turn);
        turn.wake_at(self.leader.next_wake(turn.now_ms()));
    }
}
