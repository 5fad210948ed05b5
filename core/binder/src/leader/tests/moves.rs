//! Requests to move running units: answered once, in order, whatever becomes of their transactions.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    decision::RejectionReason,
    records::Record,
    requested_move::{MadeMove, MoveRefusal, RequestedMove},
};

use super::*;
use crate::MoveTerms;

/// Of each move whether its hold is there, or why it is not made and whether it may be later; and the revision of the answer.
type Answer = (Vec<Result<bool, (RejectionReason, bool)>>, u64);

impl Bench {
    /// Unit 1 runs on node 1, with all its four replicas.
    fn with_four() -> Self {
        let mut bench = Self::new();
        let revision = bench.unit(1, 0);
        bench.decide(1, revision, &[(0, 1), (1, 1), (2, 1), (3, 1)]);
        let batch = bench.batch();
        bench.commit(batch);
        bench.outcomes();
        bench
    }

    /// Asks to move replicas of unit 1 to node 2.
    fn ask(&mut self, moves: &[(u32, u32)], read: u64) {
        let asked = moves.iter().map(|(ordinal, incarnation)| RequestedMove {
            running: RunningUnitId::new(UnitId(1), *ordinal, *incarnation),
            to: NodeId(2),
            wanted: Default::default(),
        });
        let terms = MoveTerms { movement: Arc::from("m"), expires_ms: 1_000 };
        self.leader.move_units(JOB, terms, asked.collect(), Revision(read), &mut self.sent);
    }

    /// What the only answer says of each move, `Ok` if it is made.
    fn answer(&mut self) -> Answer {
        let [(JOB, Ok(report))] = &self.sent.moved[..] else { panic!("{:?}", self.sent.moved) };
        let said = |one: &Result<MadeMove, MoveRefusal>| match one {
            Ok(made) => Ok(made.hold != HoldId(0)),
            Err(refusal) => Err((refusal.reason, refusal.later)),
        };
        let answer = (report.moves.iter().map(said).collect(), report.revision.0);
        self.sent.moved.clear();
        answer
    }
}

#[test]
fn each_move_is_answered_in_its_place() {
    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0), (7, 0), (2, 0)], 0);
    let batch = bench.batch();
    let kinds: Vec<&str> = bench
        .txn
        .changes
        .iter()
        .map(|change| match change {
            Change::Rows(UnitId(1), RunChange::Evict(_)) => "evict",
            Change::Put(Record::Hold(_)) => "hold",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["evict", "hold", "evict", "hold"]);
    assert_eq!(bench.txn.required.len(), 1, "the unit's record, once");
    assert!(bench.sent.moved.is_empty(), "nothing is answered before it is durable");
    let revision = bench.commit(batch);
    let expected = vec![Ok(true), Err((RejectionReason::NotThere, false)), Ok(true)];
    assert_eq!(bench.answer(), (expected, revision));
    // The same once more writes nothing.
    bench.ask(&[(0, 0), (2, 0)], 0);
    assert!(bench.next_batch().is_none());
    assert_eq!(bench.answer(), (vec![Ok(true), Ok(true)], revision));
}

#[test]
fn a_move_waits_for_what_its_caller_has_read() {
    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0)], bench.revision + 1);
    assert!(!bench.leader.has_work() && bench.next_batch().is_none());
    bench.unit(2, 0);
    assert!(bench.leader.has_work());
    let batch = bench.batch();
    bench.commit(batch);
    assert_eq!(bench.answer().0, [Ok(true)]);
}

#[test]
fn a_refused_move_is_judged_again() {
    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0), (1, 0)], 0);
    let batch = bench.batch();
    bench.refuse(batch, TxnRefusalReason::RowConflict, 0, bench.revision + 1);
    // The other one goes at once, the one that it was refused for when that is read: it has ended by itself.
    let batch = bench.batch();
    assert_eq!(bench.txn.changes.len(), 2);
    bench.commit(batch);
    let statuses = Statuses { ordinals: vec![0], phases: vec![Phase::Succeeded], ..Statuses::default() };
    bench.change(Change::Rows(UnitId(1), RunChange::Statuses(statuses)));
    assert!(bench.next_batch().is_none());
    assert_eq!(bench.answer().0, [Err((RejectionReason::NotThere, false)), Ok(true)]);

    // Not for ever.
    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0)], 0);
    for _ in 0..=N_ATTEMPTS_MAX {
        let batch = bench.batch();
        bench.refuse(batch, TxnRefusalReason::RowConflict, 0, 1);
    }
    assert!(bench.next_batch().is_none());
    assert_eq!(bench.answer().0, [Err((RejectionReason::Stale, true))]);
    assert_eq!(bench.leader.n_holds(), 0);

    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0)], 0);
    let batch = bench.batch();
    bench.refuse(batch, TxnRefusalReason::Invalid, 0, 1);
    assert_eq!(bench.answer().0, [Err((RejectionReason::Stale, false))]);
}

#[test]
fn without_the_lease_nothing_moves() {
    let mut bench = Bench::with_four();
    bench.ask(&[(0, 0)], 0);
    let _batch = bench.batch();
    bench.leader.step_down(&mut bench.sent);
    assert_eq!(bench.sent.moved, [(JOB, Err(EvictFailure::NotLeader))]);
    assert_eq!(bench.leader.n_holds(), 0);
    assert!(bench.next_batch().is_none());
}
