//! Transactions made, refused, checked again; nothing answered after a lost lease.

use std::{collections::VecDeque, sync::Arc};

use godel_base::resources::Resources;
use godel_domain::{
    decision::{Claim, GroupPlacement},
    demand::Demand,
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    records::Record,
    running_units::{EvictionReason, Phase, RunChange, Statuses},
    txn::{RecordRef, TxnRefusal, TxnRefusalReason},
    unit::UnitRecord,
};
use godel_testkit::BuildUnit as _;

use super::*;

mod moves;

/// A transaction as it was built.
#[derive(Debug, Default)]
pub(super) struct Txn {
    pub(super) changes: Vec<Change>,
    /// Each precondition in words.
    pub(super) required: Vec<String>,
}

impl TxnBuilder for Txn {
    fn push(&mut self, change: &Change) -> usize {
        self.changes.push(change.clone());
        1
    }

    fn require(&mut self, record: RecordRef<'_>, revision: Revision) -> usize {
        self.required.push(format!("{record:?} {revision}"));
        1
    }
}

/// What the leader said.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) welcomed: Vec<StreamId>,
    pub(super) outcomes: VecDeque<(StreamId, Outcome)>,
    pub(super) ended: Vec<(StreamId, StreamEnd)>,
    pub(super) evicted: Vec<(JobId, Result<Revision, EvictFailure>)>,
    pub(super) moved: Vec<(JobId, Result<MoveReport, EvictFailure>)>,
    pub(super) rejected: Vec<RejectionReason>,
    pub(super) n_cut: u32,
    /// Streams take no outcomes.
    pub(super) is_full: bool,
}

impl Sent {
    /// The decisions whose outcomes came on a stream.
    pub(super) fn ids(&self, stream: StreamId) -> Vec<u64> {
        let of = self.outcomes.iter().filter(|(to, _)| *to == stream);
        of.map(|(_, outcome)| outcome.decision_id).collect()
    }
}

impl BinderOutbox for Sent {
    fn welcome(&mut self, stream: StreamId, _leader: Epoch) {
        self.welcomed.push(stream);
    }

    fn outcomes(&mut self, stream: StreamId, outcomes: Vec<Outcome>) -> bool {
        if !self.is_full {
            self.outcomes.extend(outcomes.into_iter().map(|outcome| (stream, outcome)));
        }
        !self.is_full
    }

    fn end(&mut self, stream: StreamId, why: StreamEnd) {
        self.ended.push((stream, why));
    }

    fn evicted(&mut self, job: JobId, answer: Result<Revision, EvictFailure>) {
        self.evicted.push((job, answer));
    }

    fn moved(&mut self, job: JobId, answer: Result<MoveReport, EvictFailure>) {
        self.moved.push((job, answer));
    }

    fn note(&mut self, note: BinderNote<'_>) {
        match note {
            BinderNote::Rejected(rejections) => {
                self.rejected.extend(rejections.iter().map(|rejection| rejection.reason));
            }
            BinderNote::StreamCut => self.n_cut += 1,
            _ => {}
        }
    }
}

struct Bench {
    leader: BinderLeader,
    revision: u64,
    sent: Sent,
    /// Of the last batch.
    txn: Txn,
}

const STREAM: StreamId = StreamId(1);
const JOB: JobId = JobId(1);

fn config() -> BinderLeaderConfig {
    BinderLeaderConfig {
        txn_bytes_max: 1_000,
        txn_placements_max: 8_192,
        queued_max: 1_000,
        placements_open_max: 10_000,
        wait_ms: 10_000,
        hold_ms: 600_000,
        gang_hold_ms: 300_000,
        squeeze_ms: 2_000,
        sub_cluster_key: String::new(),
    }
}

impl Bench {
    /// Two nodes with 1,000 milli-cores each and a scheduler that is connected.
    fn new() -> Self {
        let (leader, sent, txn) = (BinderLeader::new(config()), Sent::default(), Txn::default());
        let mut bench = Self { leader, revision: 0, sent, txn };
        bench.leader.reset();
        bench.leader.on_synced(Revision(0), &mut bench.sent);
        for id in [1, 2] {
            bench.change(Change::Put(Record::NodeSpec(node(id))));
            let capacity = Resources::new([("cpu", 1_000)]).unwrap();
            let report = NodeReport { id: NodeId(id), capacity, ready: true, ..NodeReport::default() };
            bench.change(Change::Put(Record::NodeReport(report)));
        }
        bench.leader.open(STREAM, "s1", Epoch(1), Epoch(7), &mut bench.sent);
        assert_eq!(bench.sent.welcomed, [STREAM]);
        bench
    }

    fn change(&mut self, change: Change) -> u64 {
        self.revision += 1;
        let revision = Revision(self.revision);
        self.leader.apply(&Commit { revision, time_ms: 1, changes: vec![change] }, &mut self.sent);
        self.revision
    }

    fn unit(&mut self, id: u64, priority: i32) -> u64 {
        self.change(Change::Put(Record::Unit(Arc::new(unit(id).priority(priority)))))
    }

    fn decide(&mut self, id: u64, spec_revision: u64, places: &[(u32, u32)]) {
        self.decide_as_of(id, spec_revision, Revision(0), places);
    }

    fn decide_as_of(&mut self, id: u64, spec_revision: u64, nodes_as_of: Revision, places: &[(u32, u32)]) {
        let placement = GroupPlacement {
            ordinals: places.iter().map(|place| place.0).collect(),
            nodes: places.iter().map(|place| NodeId(place.1)).collect(),
            ..GroupPlacement::default()
        };
        let decision = Decision {
            id,
            unit: UnitId(id),
            spec_revision: Revision(spec_revision),
            nodes_as_of,
            groups: vec![placement],
            claim: Claim::FreeRoom,
        };
        self.leader.decide(STREAM, vec![decision], Millis(0), &mut self.sent);
    }

    fn outcomes(&mut self) -> Vec<Outcome> {
        self.leader.flush(&mut self.sent);
        self.sent.outcomes.drain(..).map(|(_, outcome)| outcome).collect()
    }

    fn next_batch(&mut self) -> Option<Batch> {
        self.txn = Txn::default();
        self.leader.next_batch(&mut self.txn, &mut self.sent)
    }

    fn batch(&mut self) -> Batch {
        self.next_batch().expect("something to write")
    }

    fn refuse(&mut self, batch: Batch, reason: TxnRefusalReason, index: usize, revision: u64) {
        let refusal =
            TxnRefusal { reason, index, revision: Revision(revision), message: "refused".to_owned() };
        self.leader.on_refused(batch, &refusal, &mut self.sent);
    }

    /// Commits and reads it.
    fn commit(&mut self, batch: Batch) -> u64 {
        let mut changes = Vec::new();
        for item in &batch.items {
            match item {
                Item::Drop { .. } | Item::Reserve { .. } => {}
                Item::Decision { accepted, .. } | Item::Convert(accepted) => changes.extend(
                    accepted
                        .binds
                        .iter()
                        .map(|bind| Change::Rows(accepted.unit, RunChange::Bind(bind.clone()))),
                ),
                Item::Requeue(work) => {
                    changes.push(Change::Rows(work.unit, RunChange::Requeue(work.requeue.clone())))
                }
                Item::Evict { departure, .. } => {
                    changes.push(Change::Rows(departure.unit, RunChange::Evict(departure.evict.clone())))
                }
                Item::Move { accepted, .. } => {
                    let evict = accepted.evict.clone();
                    changes.extend(evict.map(|evict| Change::Rows(accepted.unit, RunChange::Evict(evict))));
                    changes.push(Change::Put(Record::Hold(Arc::clone(&accepted.hold))));
                }
            }
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        self.leader.on_committed(batch, revision, &mut self.sent);
        self.leader.apply(&Commit { revision, time_ms: 1, changes }, &mut self.sent);
        self.revision
    }

    fn evict(&mut self, asked: &[(UnitId, Evict)], read: u64) {
        self.leader.evict(JOB, asked, Revision(read), &mut self.sent);
    }
}

fn eviction(ordinals: &[u32], reason: EvictionReason) -> Evict {
    Evict {
        ordinals: ordinals.to_vec(),
        reason,
        by: String::new(),
        incarnations: Vec::new(),
        preemptor: UnitId(0),
    }
}

fn node(id: u32) -> NodeSpec {
    NodeSpec { id: NodeId(id), name: format!("n{id}"), ..NodeSpec::default() }
}

fn unit(id: u64) -> UnitRecord {
    let demand = Demand {
        requests: Resources::new([("cpu", 100)]).unwrap(),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    };
    godel_testkit::unit(format!("unit{id}")).id(UnitId(id)).main_group(4, demand)
}

fn units(batch: &Batch) -> Vec<u64> {
    batch
        .items
        .iter()
        .map(|item| match item {
            Item::Decision { accepted, .. } | Item::Convert(accepted) => accepted.unit.0,
            Item::Drop { .. } | Item::Reserve { .. } => 0,
            Item::Requeue(work) => work.unit.0,
            Item::Evict { departure, .. } => departure.unit.0,
            Item::Move { accepted, .. } => accepted.unit.0,
        })
        .collect()
}

#[test]
fn decisions_of_one_scheduler_share_a_transaction_in_order() {
    let mut bench = Bench::new();
    for (id, priority) in [(1, 0), (2, 9), (3, 0)] {
        let revision = bench.unit(id, priority);
        bench.decide(id, revision, &[(0, 1), (1, 2)]);
    }
    let batch = bench.batch();
    assert_eq!(units(&batch), [1, 2, 3], "whatever their priority");
    assert_eq!(
        (bench.txn.changes.len(), bench.txn.required.len()),
        (3, 4),
        "one for each unit, and their queue"
    );
    assert_eq!(batch.nodes_as_of().0, bench.revision);
    assert!(bench.outcomes().is_empty(), "nothing is answered before it is durable");
    let revision = bench.commit(batch);
    let outcomes = bench.outcomes();
    assert_eq!(outcomes.iter().map(|outcome| outcome.revision.0).collect::<Vec<_>>(), [revision; 3]);
    assert!(bench.next_batch().is_none());
}

#[test]
fn only_the_conflicting_decision_waits_for_the_other() {
    let mut bench = Bench::new();
    let (one, two) = (bench.unit(1, 0), bench.unit(2, 0));
    bench.decide(1, one, &[(0, 1)]);
    bench.decide(2, two, &[(0, 1)]);
    let batch = bench.batch();
    // Unit 1 is written again in the meantime: its precondition is the first.
    let newer = bench.revision + 1;
    bench.refuse(batch, TxnRefusalReason::Precondition, 0, newer);
    let batch = bench.batch();
    assert_eq!(units(&batch), [2]);
    bench.commit(batch);
    assert_eq!(bench.outcomes().len(), 1);

    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1)]);
    let batch = bench.batch();
    bench.refuse(batch, TxnRefusalReason::Precondition, 0, bench.revision + 1);
    assert!(bench.next_batch().is_none() && bench.outcomes().is_empty());
    bench.unit(1, 0);
    assert!(bench.next_batch().is_none());
    let outcome = bench.outcomes().remove(0);
    assert_eq!(outcome.rejections[0].reason, RejectionReason::UnitChanged);
}

fn queue(path: &str, max_running_units: u32) -> Change {
    Change::Put(Record::Queue(Arc::new(QueueSpec { max_running_units, ..QueueSpec::new(path) })))
}

#[test]
fn a_refusal_for_a_queue_finds_all_that_rest_on_it() {
    let mut bench = Bench::new();
    let b = bench.change(queue("a.b", 0));
    for (id, path) in [(1, "a.b"), (2, "a.c"), (3, "a.b")] {
        let spec = unit(id).queue(path);
        let revision = bench.change(Change::Put(Record::Unit(Arc::new(spec))));
        bench.decide(id, revision, &[(0, 1)]);
    }
    let batch = bench.batch();
    let queues = bench.txn.required.iter().filter(|one| one.starts_with("Queue"));
    let expected =
        [format!("Queue(\"a.b\") {b}"), "Queue(\"a\") 0".to_owned(), "Queue(\"a.c\") 0".to_owned()];
    assert!(queues.eq(&expected), "each once");
    let items: Vec<Vec<usize>> = (0..7).map(|idx| batch.items_of_precondition(idx)).collect();
    assert_eq!(items, [vec![0], vec![0, 2], vec![0, 1, 2], vec![1], vec![1], vec![2], vec![]]);
}

#[test]
fn a_maximum_lowered_meanwhile_is_kept() {
    let mut bench = Bench::new();
    bench.change(queue("default", 2));
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1), (1, 1)]);
    let batch = bench.batch();
    let lowered = bench.revision + 1;
    bench.refuse(batch, TxnRefusalReason::Precondition, 1, lowered);
    assert!(bench.next_batch().is_none() && bench.outcomes().is_empty(), "it waits for the record");
    bench.change(queue("default", 1));
    let batch = bench.batch();
    bench.commit(batch);
    let outcome = bench.outcomes().remove(0);
    assert!(outcome.revision.0 > lowered);
    let refused = &outcome.rejections[0];
    assert_eq!((refused.reason, &refused.ordinals[..]), (RejectionReason::QueueFull, &[1][..]));
    assert_eq!(refused.detail, "queue default is at its maximum of running units");
    assert_eq!(bench.sent.rejected, [RejectionReason::QueueFull]);
}

#[test]
fn a_node_that_changed_is_looked_at_again() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1), (1, 2)]);
    let batch = bench.batch();
    let cordoned = bench.revision + 1;
    bench.refuse(batch, TxnRefusalReason::NodeChanged, 0, cordoned);
    assert!(bench.next_batch().is_none());
    bench.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(1) })));
    let batch = bench.batch();
    bench.commit(batch);
    let outcome = bench.outcomes().remove(0);
    assert!(outcome.revision.0 > 0);
    assert_eq!(outcome.rejections[0].reason, RejectionReason::NodeCordoned);
    assert_eq!((&outcome.rejections[0].ordinals[..], outcome.nodes[0].node), (&[0][..], NodeId(1)));
}

#[test]
fn what_the_store_never_takes_is_given_up() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1)]);
    for attempt in 0..=N_ATTEMPTS_MAX {
        let batch = bench.batch();
        bench.refuse(batch, TxnRefusalReason::RowConflict, 0, 0);
        let outcomes = bench.outcomes();
        let stale = outcomes.iter().filter(|one| one.rejections[0].reason == RejectionReason::Stale);
        assert_eq!(stale.count(), usize::from(attempt == N_ATTEMPTS_MAX));
        bench.change(Change::Put(Record::NodeSpec(node(9))));
    }
    assert_eq!((bench.leader.n_queued(), bench.leader.n_placements_open), (0, 0));

    bench.decide(1, one, &[(1, 1)]);
    let batch = bench.batch();
    bench.refuse(batch, TxnRefusalReason::Invalid, 0, 0);
    assert_eq!(bench.outcomes()[0].rejections[0].reason, RejectionReason::Invalid);
}

#[test]
fn a_full_store_takes_nothing_away() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1)]);
    for _ in 0..20 {
        let batch = bench.batch();
        bench.refuse(batch, TxnRefusalReason::StoreFull, 0, 0);
    }
    let batch = bench.batch();
    bench.commit(batch);
    assert!(bench.outcomes()[0].revision.0 > 0);
}

#[test]
fn a_lost_lease_answers_nothing() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1)]);
    let _lost = bench.batch();
    bench.evict(&[], 0);
    assert_eq!(bench.sent.evicted, [(JOB, Ok(Revision(bench.revision)))], "nothing to do");
    bench.leader.step_down(&mut bench.sent);
    assert_eq!(bench.sent.ended, [(STREAM, StreamEnd::NotLeader)]);
    assert!(bench.outcomes().is_empty());
    assert!(bench.next_batch().is_none() && bench.leader.n_queued() == 0);
}

#[test]
fn a_decision_on_a_record_that_never_comes_is_rejected_in_time() {
    let mut bench = Bench::new();
    bench.decide(1, 900, &[(0, 1)]);
    assert!(bench.next_batch().is_none() && bench.leader.has_waits());
    assert!(bench.leader.expire(Millis(10_000), &mut bench.sent));
    assert!(!bench.leader.expire(Millis(10_001), &mut bench.sent));
    assert_eq!(bench.outcomes()[0].rejections[0].reason, RejectionReason::Stale, "to be decided again");
}

/// A cordoned node, and a decision whose scheduler may have read more of it.
fn ahead_of_its_reading() -> (Bench, u64) {
    let mut bench = Bench::new();
    let (one, two) = (bench.unit(1, 0), bench.unit(2, 0));
    bench.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(1) })));
    let as_of = Revision(bench.revision + 1);
    bench.decide_as_of(1, one, as_of, &[(0, 1)]);
    assert!(bench.next_batch().is_none() && bench.leader.has_waits());
    (bench, two)
}

#[test]
fn a_decision_ahead_of_what_is_read_holds_nobody_up() {
    let (mut bench, two) = ahead_of_its_reading();
    bench.decide(2, two, &[(0, 2)]);
    let other = bench.batch();
    assert_eq!(units(&other), [2]);
    bench.change(Change::Put(Record::NodeSpec(node(1))));
    let batch = bench.batch();
    assert_eq!(units(&batch), [1]);
    bench.commit(other);
    bench.commit(batch);
    assert!(bench.outcomes().iter().all(|outcome| outcome.rejections.is_empty()));
}

#[test]
fn a_decision_ahead_is_judged_in_time_by_what_is_read() {
    let (mut bench, _) = ahead_of_its_reading();
    assert!(bench.leader.expire(Millis(10_000), &mut bench.sent));
    assert!(bench.next_batch().is_none());
    bench.leader.expire(Millis(10_001), &mut bench.sent);
    assert!(bench.next_batch().is_none() && !bench.leader.has_waits());
    assert_eq!(bench.outcomes()[0].rejections[0].reason, RejectionReason::NodeCordoned);
}

#[test]
fn what_was_checked_earlier_is_written_as_of_then() {
    let mut bench = Bench::new();
    let checked = Revision(bench.revision);
    bench.leader.hold_work.push_back((checked, HoldWork::Drop { holds: Vec::new(), why: "test" }));
    bench.unit(1, 0);
    assert!(bench.leader.read() > Some(checked));
    assert_eq!(bench.batch().read, checked, "a node may have changed since");
}

#[test]
fn evictions_go_first_and_what_was_drained_comes_back() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1), (1, 1)]);
    let batch = bench.batch();
    bench.commit(batch);
    bench.evict(&[(UnitId(1), eviction(&[0, 1], EvictionReason::Drained))], 0);
    let two = bench.unit(2, 0);
    bench.decide(2, two, &[(0, 1)]);
    let batch = bench.batch();
    assert_eq!(units(&batch), [1, 2]);
    assert!(bench.sent.evicted.is_empty());
    // One of them ended by itself before: the store refuses the operation, and the rest is asked for again.
    let statuses = |ordinal, phase| {
        let statuses = Statuses { ordinals: vec![ordinal], phases: vec![phase], ..Statuses::default() };
        Change::Rows(UnitId(1), RunChange::Statuses(statuses))
    };
    bench.refuse(batch, TxnRefusalReason::RowConflict, 0, 0);
    bench.change(statuses(1, Phase::Succeeded));
    let batch = bench.batch();
    assert!(matches!(&batch.items[0], Item::Evict { departure, .. } if departure.evict.ordinals == [0]));
    let revision = bench.commit(batch);
    assert_eq!(bench.sent.evicted, [(JOB, Ok(Revision(revision)))]);

    bench.change(statuses(0, Phase::Stopped));
    assert!(bench.leader.has_work());
    let batch = bench.batch();
    assert!(matches!(&batch.items[0], Item::Requeue(work) if work.requeue.ordinals == [0]));
    bench.commit(batch);
    assert!(!bench.leader.has_work());
}

#[test]
fn an_eviction_waits_for_what_its_caller_had_read() {
    let mut bench = Bench::new();
    let one = bench.unit(1, 0);
    bench.decide(1, one, &[(0, 1)]);
    let batch = bench.batch();
    // The caller has read this commit already.
    bench.evict(&[(UnitId(1), eviction(&[0], EvictionReason::Cancelled))], bench.revision + 1);
    assert!(bench.next_batch().is_none());
    assert!(bench.sent.evicted.is_empty(), "nothing has left");
    let bound = bench.commit(batch);
    let batch = bench.batch();
    assert!(matches!(&batch.items[..], [Item::Evict { departure, .. }] if departure.evict.ordinals == [0]));
    assert_eq!(bench.commit(batch), bound + 1);
    assert_eq!(bench.sent.evicted, [(JOB, Ok(Revision(bound + 1)))]);
}

#[test]
fn of_another_store_nothing_is_kept() {
    let mut bench = Bench::new();
    let spec_revision = bench.unit(1, 0);
    bench.decide(1, spec_revision, &[(0, 1)]);
    // It waits for what was read by who asked.
    bench.evict(&[(UnitId(1), eviction(&[0], EvictionReason::Drained))], 900);
    assert!(bench.leader.has_work());
    bench.leader.open(StreamId(2), "s2", Epoch(9), Epoch(7), &mut bench.sent);

    bench.leader.change_store(StoreId(7), &mut bench.sent);
    bench.leader.reset();
    assert_eq!((bench.leader.store(), bench.leader.read()), (StoreId(7), None));
    bench.leader.on_synced(Revision(3), &mut bench.sent);
    assert_eq!(bench.leader.store(), StoreId(7));

    // From one store to another.
    bench.leader.change_store(StoreId(8), &mut bench.sent);
    bench.leader.reset();
    bench.leader.on_synced(Revision(1_000), &mut bench.sent);
    // After a list it looks at its holds once; there are none.
    assert!(bench.next_batch().is_none());
    assert!(!bench.leader.has_work() && !bench.leader.has_waits() && bench.leader.n_queued() == 0);
    assert_eq!(bench.sent.evicted, [(JOB, Err(EvictFailure::NotLeader))], "whoever asked hears of it");
    assert_eq!(bench.sent.ended.len(), 2, "streams end");
    // Epochs may begin again there.
    bench.leader.open(StreamId(3), "s2", Epoch(1), Epoch(1), &mut bench.sent);
    assert_eq!(bench.sent.welcomed, [STREAM, StreamId(2), StreamId(3)]);
}
