//! The binder: its leader with streams that never end, and a few transactions under way.

use std::collections::BTreeMap;

use godel_audit::Commit;
use godel_base::ids::{Epoch, Revision};
use godel_core_binder::leader::{
    Batch, BinderLeader, BinderLeaderConfig, BinderNote, BinderOutbox, StreamId,
};
use godel_domain::{
    change::Change,
    decision::{Decision, Outcome},
    running_units::RunChange,
    txn::{RecordRef, TxnBuilder},
};

use super::{BINDER, Nanos, PartMessage, PartTurn, SCHEDULERS, STATE, SimulationDelays, TimedPart, TimedTxn};

/// Transactions under way at once, as configured by default.
const N_TXNS_MAX: usize = 4;
/// Running units in one transaction, as configured by default.
const N_PLACEMENTS_MAX: usize = 8_192;
/// Units in one transaction: about as many as fit into the bytes of one.
const N_UNITS_MAX: usize = 4_096;
/// Nothing waits for longer than a run, milliseconds.
const FOREVER_MS: u64 = 1 << 40;

pub(super) struct TimedBinder {
    leader: BinderLeader,
    in_flight: BTreeMap<u64, Batch>,
    last_txn: u64,
}

/// A transaction as it is built, and how long the binder works on it.
struct BinderTxn<'a> {
    delays: &'a SimulationDelays,
    changes: Vec<Change>,
    work: Nanos,
}

/// What the leader says goes to the schedulers and into the ledger.
struct BinderReplies<'a, 'b>(&'a mut PartTurn<'b>);

impl TimedBinder {
    pub(super) fn new(records: &[Commit], n_schedulers: usize, sub_cluster_key: &str) -> Self {
        let mut leader = BinderLeader::new(BinderLeaderConfig {
            txn_bytes_max: N_UNITS_MAX,
            txn_placements_max: N_PLACEMENTS_MAX,
            queued_max: usize::MAX,
            placements_open_max: usize::MAX,
            wait_ms: FOREVER_MS,
            hold_ms: FOREVER_MS,
            gang_hold_ms: FOREVER_MS,
            squeeze_ms: FOREVER_MS,
            sub_cluster_key: sub_cluster_key.to_owned(),
        });
        leader.reset();
        for commit in records {
            for change in &commit.changes {
                leader.load(change.clone(), commit.revision, commit.time_ms);
            }
        }
        let read = records.last().map_or(Revision(0), |last| last.revision);
        leader.on_synced(read, &mut Nobody);
        leader.lead(Epoch(1));
        for scheduler in 0..n_schedulers {
            leader.open(stream(scheduler), &format!("s{scheduler}"), Epoch(1), Epoch(1), &mut Nobody);
        }
        Self { leader, in_flight: BTreeMap::new(), last_txn: 0 }
    }

    fn take(&mut self, message: PartMessage, turn: &mut PartTurn<'_>) {
        match message {
            PartMessage::Decisions(scheduler, decisions) => {
                let n_decided: usize = decisions.iter().map(Decision::len).sum();
                turn.ledger.answers.decided += n_decided as u64;
                let now = turn.now_ms();
                self.leader.decide(stream(scheduler), decisions, now, &mut BinderReplies(turn));
            }
            PartMessage::Commits(range) => {
                turn.follow(&range, true);
                for idx in range {
                    let commit = turn.ledger.commits[idx].clone();
                    self.leader.apply(&commit, &mut BinderReplies(turn));
                }
            }
            PartMessage::Committed { id, revision } => {
                if let Some(batch) = self.in_flight.remove(&id) {
                    self.leader.on_committed(batch, revision, &mut BinderReplies(turn));
                }
            }
            other => unreachable!("not for the binder: {other:?}"),
        }
    }

    /// One transaction, if there is room for another one under way.
    fn write(&mut self, turn: &mut PartTurn<'_>) {
        if self.in_flight.len() >= N_TXNS_MAX {
            return;
        }
        let mut txn = BinderTxn { delays: turn.delays, changes: Vec::new(), work: 0 };
        let batch = self.leader.next_batch(&mut txn, &mut BinderReplies(turn));
        let BinderTxn { changes, work, .. } = txn;
        turn.work(work);
        if let Some(batch) = batch {
            self.last_txn += 1;
            self.in_flight.insert(self.last_txn, batch);
            let txn = TimedTxn { from: BINDER, id: self.last_txn, changes };
            turn.call(STATE, PartMessage::Txn(txn));
        }
    }
}

impl TxnBuilder for BinderTxn<'_> {
    fn push(&mut self, change: &Change) -> usize {
        if let Change::Rows(_, RunChange::Bind(bind)) = change {
            self.work += self.delays.binder.of(1, bind.ordinals.len());
        }
        self.changes.push(change.clone());
        1
    }

    fn require(&mut self, _record: RecordRef<'_>, _revision: Revision) -> usize {
        0
    }
}

impl BinderOutbox for BinderReplies<'_, '_> {
    fn outcomes(&mut self, stream: StreamId, outcomes: Vec<Outcome>) -> bool {
        let scheduler = usize::try_from(stream.0).expect("made from an index");
        self.0.call(SCHEDULERS + scheduler, PartMessage::Outcomes(outcomes));
        true
    }

    fn note(&mut self, note: BinderNote<'_>) {
        let BinderNote::Rejected(rejections) = note else { return };
        for rejection in rejections {
            let n_refused = rejection.ordinals.len();
            self.0.work(self.0.delays.binder.of(0, n_refused));
            let answers = &mut self.0.ledger.answers;
            *answers.refused.entry(rejection.reason.name()).or_default() += n_refused as u64;
            answers.conflicts += if rejection.reason.is_conflict() { n_refused as u64 } else { 0 };
        }
    }
}

/// Before the run begins nobody listens.
struct Nobody;

impl BinderOutbox for Nobody {
    fn outcomes(&mut self, _stream: StreamId, _outcomes: Vec<Outcome>) -> bool {
        true
    }
}

fn stream(scheduler: usize) -> StreamId {
    StreamId(scheduler as u64)
}

impl TimedPart for TimedBinder {
    fn turn(&mut self, turn: &mut PartTurn<'_>) {
        while let Some(message) = turn.next() {
            self.take(message, turn);
        }
        self.write(turn);
        self.leader.flush(&mut BinderReplies(turn));
    }
}
