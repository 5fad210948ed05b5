//! Units that find no place, with the real binder behind them.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_core_binder::{Accepted, Binder, HoldWork, Verdict};
use godel_domain::{
    change::{Commit, Partition, PartitionMode},
    hold::{Hold, Slot},
    pause::{Pause, Scope},
    priority_classes::PriorityClasses,
    queue_spec::{PriorityClass, QueueSpec},
    records::{Record, RecordKey},
    running_units::{PreemptionTerms, Requeue, Statuses},
    unreadable::{AffectedNodes, Unreadable},
};

use super::*;

mod again;
mod alone;
mod domains;
mod elsewhere;
mod gather;
mod held;
mod maxima;
mod minima;
mod own_domains;
mod parts;
mod plan;
mod spanning;

/// A scheduler and a binder that follow the same commits.
struct Pair {
    scheduler: Scheduler,
    binder: Binder,
    revision: u64,
    now: Millis,
}

fn config() -> Config {
    Config { name: "a".to_owned(), ..Config::default() }
}

fn cpu(cpu: i64) -> Demand {
    Demand { requests: resources(cpu, 1), devices: Vec::new(), host_ports: Vec::new(), zones: None }
}

/// The same with a port of its node.
fn with_port(cpu: i64) -> Demand {
    let requests = resources(cpu, 1);
    Demand { requests, devices: Vec::new(), host_ports: vec!["80/tcp".parse().unwrap()], zones: None }
}

fn ranked(id: u64, priority: i32, replicas: u32, min_member: u32, demand: Demand) -> UnitRecord {
    unit(id, replicas, min_member, demand).priority(priority)
}

impl Pair {
    fn new(n_nodes: u32) -> Self {
        Self::with(config(), n_nodes)
    }

    fn with(config: Config, n_nodes: u32) -> Self {
        let scheduler = Scheduler::new(config, 7);
        let mut pair = Self { scheduler, binder: Binder::new(), revision: 0, now: Millis(0) };
        for id in 1..=n_nodes {
            pair.commit(vec![
                Change::Put(Record::NodeSpec(node_spec(id))),
                Change::Put(Record::NodeReport(node_report(id, resources(1000, 100), 0, "A10"))),
            ]);
        }
        pair
    }

    fn commit(&mut self, changes: Vec<Change>) -> Revision {
        self.revision += 1;
        let (revision, time_ms) = (Revision(self.revision), i64::try_from(self.revision * 100).unwrap());
        let commit = Commit { revision, time_ms, changes };
        self.scheduler.apply(&commit, self.now);
        for change in commit.changes {
            self.binder.on_change(change, revision, time_ms);
        }
        self.binder.on_revision(revision);
        revision
    }

    fn assign(&mut self, record: &UnitRecord) {
        self.assign_with(record, &all(record), Permit::default());
    }

    fn assign_with(&mut self, record: &UnitRecord, pending: &[ReplicaId], permit: Permit) {
        let revision = self.commit(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
        let assigned = Assignment { permit, ..assignment(record, revision, pending, 0) };
        self.scheduler.on_assign(&assigned, self.now);
    }

    fn write(&mut self, accepted: &Accepted) -> Revision {
        let binds =
            accepted.binds.iter().map(|bind| Change::Rows(accepted.unit, RunChange::Bind(bind.clone())));
        let evicts = accepted
            .evictions
            .iter()
            .map(|(unit, evict)| Change::Rows(*unit, RunChange::Evict(evict.clone())));
        let holds = accepted
            .holds
            .iter()
            .chain(&accepted.slots)
            .map(|hold| Change::Put(Record::Hold(Arc::clone(hold))));
        let ends =
            accepted.ends.iter().map(|(id, _): &(HoldId, Revision)| Change::Gone(RecordKey::Hold(*id)));
        let gone = accepted.gone.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id)));
        let changes = binds.chain(evicts).chain(holds).chain(ends).chain(gone).collect();
        let revision = self.commit(changes);
        self.binder.commit(accepted.ticket, revision);
        revision
    }

    /// What the binder makes of a decision.
    fn decide(&mut self, decision: &Decision) -> Outcome {
        let mut outcome = Outcome { decision_id: decision.id, unit: decision.unit, ..Outcome::default() };
        match self.binder.check(decision) {
            Verdict::Bind(accepted) => {
                outcome.held = !accepted.holds.is_empty();
                outcome.revision = self.write(&accepted);
                outcome.rejections = accepted.rejections;
            }
            Verdict::Reject(rejections) => {
                outcome.nodes = self.binder.picture().fresh_nodes(decision.unit, &rejections);
                outcome.rejections = rejections;
            }
            Verdict::Wait(wait) => panic!("waits for {wait:?}"),
        }
        outcome
    }

    /// One step, and everything that it decides; reports by unit.
    fn step(&mut self) -> Vec<(u64, ReportState)> {
        let step = self.scheduler.step(self.now, 1_000);
        for decision in &step.decisions {
            let outcome = self.decide(decision);
            self.scheduler.on_outcome(&outcome, self.now);
        }
        call(&mut self.scheduler, &step.rooms);
        step.reports.iter().map(|report| (report.unit.0, report.state)).collect()
    }

    fn steps(&mut self) -> Vec<(u64, ReportState)> {
        (0..8).flat_map(|_| self.step()).collect()
    }

    /// Those told to leave have left; what was held is bound, what left is pending again.
    fn leave(&mut self) {
        for id in 1..=199 {
            let Some(rows) = self.binder.cluster().rows().of(UnitId(id)) else { continue };
            let leaving = rows.live().filter(|(_, row)| row.eviction.is_some());
            let (ordinals, incarnations): (Vec<u32>, Vec<u32>) =
                leaving.map(|(ordinal, row)| (ordinal, row.incarnation)).unzip();
            let phases = vec![Phase::Stopped; ordinals.len()];
            let statuses = Statuses { ordinals, incarnations, phases, ..Statuses::default() };
            self.commit(vec![Change::Rows(UnitId(id), RunChange::Statuses(statuses))]);
        }
        for work in self.binder.take_hold_work() {
            match work {
                HoldWork::Bind(accepted) => {
                    self.write(&accepted);
                }
                HoldWork::Drop { why, .. } => panic!("dropped: {why}"),
                HoldWork::Reserve { .. } => panic!("nobody reserves"),
            }
        }
        for work in self.binder.take_requeues(100) {
            let requeue: Requeue = work.requeue;
            self.commit(vec![Change::Rows(work.unit, RunChange::Requeue(requeue))]);
        }
    }

    fn live(&self, unit: u64) -> Vec<u32> {
        let rows = self.binder.cluster().rows().of(UnitId(unit)).cloned().unwrap_or_default();
        rows.live().map(|(_, row)| row.node.0).collect()
    }

    /// Units and nodes of those who are to leave.
    fn leaving(&self) -> Vec<(u64, u32)> {
        let mut leaving: Vec<(u64, u32)> = Vec::new();
        for hold in self.binder.cluster().holds().all() {
            leaving.extend(hold.victims.iter().map(|one| (one.unit.0, hold.node.0)));
        }
        leaving.sort_unstable();
        leaving
    }

    /// Both see the same room.
    fn assert_same(&self) {
        for node in self.binder.cluster().nodes().ids() {
            assert_eq!(
                self.scheduler.picture.cluster.free().node_state(node),
                self.binder.cluster().free().node_state(node)
            );
        }
    }
}

#[test]
fn a_unit_without_a_place_has_others_leave() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 2, 1, cpu(500)));
    pair.assign(&ranked(2, 5, 2, 1, cpu(500)));
    pair.steps();
    assert_eq!((pair.live(1).len(), pair.live(2).len()), (2, 2));
    pair.assign(&ranked(3, 9, 1, 1, cpu(400)));
    assert!(pair.steps().contains(&(3, ReportState::Parked)), "it waits for whatever comes first");
    assert_eq!(pair.binder.n_holds(), 1);
    pair.assert_same();
    pair.leave();
    pair.assert_same();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.live(3).len()), (1, 2, 1));
    let stats = pair.scheduler.stats();
    assert_eq!((stats.preemptions_tried, stats.victims), (1, 1));
    // Nobody of its rank or above leaves.
    pair.assign(&ranked(4, 1, 1, 1, cpu(900)));
    assert!(pair.steps().contains(&(4, ReportState::Parked)));
    assert_eq!(pair.scheduler.stats().victims, 1);
}

#[test]
fn a_gang_takes_what_is_free_and_preempts_the_rest() {
    let mut pair = Pair::new(3);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 9, 4, 3, cpu(1000)));
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 3, "also of what is free");
    assert_eq!(pair.live(2), [] as [u32; 0]);
    pair.leave();
    assert_eq!(pair.live(2).len(), 3);
    pair.assert_same();
    assert_eq!(pair.binder.n_holds(), 0);
}

#[test]
fn missing_replicas_of_a_bound_unit_preempt_one_by_one() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 9, 3, 1, cpu(1000)));
    let reports = pair.steps();
    assert_eq!(pair.live(2).len(), 1, "what is free at once");
    assert_eq!(pair.binder.n_holds(), 1);
    assert!(reports.contains(&(2, ReportState::Parked)), "the third finds nobody: {reports:?}");
    pair.leave();
    assert_eq!(pair.live(2).len(), 2);
    pair.assert_same();
}

#[test]
fn who_is_in_the_slot_of_a_reservation_stays_and_others_leave() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    let rows = pair.binder.cluster().rows().of(UnitId(1)).cloned().unwrap();
    let occupant = Some(RunningUnitId::new(UnitId(1), 1, 0));
    pair.commit(vec![Change::Put(Record::Hold(Arc::new(Hold {
        id: HoldId(1),
        node: rows.row(1).node,
        demand: Arc::new(cpu(1000)),
        ordinals: vec![0],
        slot: Some(Slot { reservation: Arc::from("r"), occupant }),
        ..Hold::default()
    })))]);
    pair.assign(&ranked(2, 9, 2, 1, cpu(1000)));
    pair.steps();
    let leaving: Vec<u32> = pair
        .binder
        .cluster()
        .holds()
        .all()
        .iter()
        .flat_map(|hold| &hold.victims)
        .map(|one| one.replica.ordinal)
        .collect();
    assert_eq!(leaving, [0]);
}

#[test]
fn preemption_can_be_off() {
    let mut pair = Pair::with(Config { preemption: false, ..config() }, 1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    assert_eq!(pair.scheduler.stats().preemptions_tried, 0);
}

#[test]
fn nobody_searches_while_preemption_is_paused() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    let scope = Scope::Preemption;
    let pause =
        Pause { scope: scope.clone(), since_ms: 1, reason: String::new(), sub_cluster_key: String::new() };
    pair.commit(vec![Change::Put(Record::Pause(pause))]);
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    assert_eq!(pair.scheduler.stats().preemptions_tried, 0);
    pair.commit(vec![Change::Gone(RecordKey::Pause(scope.to_string()))]);
    pair.steps();
    pair.leave();
    assert_eq!(pair.live(2), [1]);
}

#[test]
fn nobody_searches_while_what_ranks_rest_on_cannot_be_read() {
    for subject in
        [RecordKey::Queue("a".to_owned()), RecordKey::Budget("b".to_owned()), RecordKey::Rows(UnitId(99))]
    {
        let mut pair = Pair::new(1);
        pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
        pair.steps();
        let nodes = AffectedNodes::default();
        let unreadable = Unreadable { nodes, ..Unreadable::new(subject.clone(), "field", "problem") };
        pair.commit(vec![Change::Unreadable(Box::new(unreadable))]);
        pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
        assert!(pair.steps().contains(&(2, ReportState::Parked)), "{subject}");
        assert_eq!(pair.scheduler.stats().preemptions_tried, 0);
        pair.commit(vec![Change::Gone(subject)]);
        pair.steps();
        pair.leave();
        assert_eq!(pair.live(2), [1]);
    }
}

#[test]
fn an_unreadable_node_record_closes_the_node() {
    let mut pair = Pair::new(2);
    let unreadable = Unreadable::new(RecordKey::NodeAllocatable(NodeId(1)), "field", "problem");
    pair.commit(vec![Change::Unreadable(Box::new(unreadable))]);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    let rows = pair.binder.cluster().rows().of(UnitId(1)).unwrap();
    assert_eq!(rows.live().map(|(_, row)| row.node).collect::<Vec<_>>(), [NodeId(2)]);
    pair.commit(vec![Change::Gone(RecordKey::NodeAllocatable(NodeId(1)))]);
    pair.steps();
    assert_eq!(pair.live(1).len(), 2);
}

#[test]
fn a_settled_group_does_not_hide_a_higher_rank() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 5, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    pair.assign(&ranked(3, 9, 1, 1, cpu(1000)));
    pair.steps();
    pair.leave();
    assert_eq!(pair.live(3), [1]);
}

#[test]
fn two_at_once_have_one_leave_each() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 4, 1, cpu(250)));
    pair.steps();
    pair.assign(&ranked(2, 9, 1, 1, cpu(250)));
    pair.assign(&ranked(3, 9, 1, 1, cpu(250)));
    pair.step();
    pair.steps();
    assert_eq!((pair.scheduler.stats().victims, pair.binder.n_holds()), (2, 2));
    pair.leave();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.live(3).len()), (2, 1, 1));
    pair.assert_same();
}

#[test]
fn own_nodes_come_first_and_strictly_only() {
    for (mode, other) in [(PartitionMode::Preferred, 9), (PartitionMode::Strict, 1)] {
        let mut pair = Pair::new(2);
        pair.assign(&ranked(1, if mode == PartitionMode::Strict { 9 } else { 2 }, 1, 1, cpu(1000)));
        pair.steps();
        let on = pair.live(1)[0];
        pair.assign(&ranked(2, 1, 1, 1, cpu(1000)));
        pair.steps();
        // The dearer node is ours, the cheaper one is not.
        let slots = (1..=2).map(|id| (NodeId(id), u32::from(id != on))).collect();
        let schedulers = vec!["a".to_owned(), "b".to_owned()];
        pair.commit(vec![Change::Put(Record::Partition(Partition {
            mode,
            schedulers,
            slots,
            ..Partition::default()
        }))]);
        pair.assign(&ranked(3, 9, 1, 1, cpu(1000)));
        pair.steps();
        let holds: Vec<u32> = pair.binder.cluster().holds().all().iter().map(|hold| hold.node.0).collect();
        if other == 9 {
            assert_eq!(holds, [on]);
        } else {
            assert_eq!(holds, [] as [u32; 0]);
        }
    }
}

fn queue(path: &str, min_cpu: i64) -> Change {
    let min = BTreeMap::from([(godel_base::resources::CPU.to_owned(), min_cpu)]);
    Change::Put(Record::Queue(Arc::new(QueueSpec { min, ..QueueSpec::new(path) })))
}

fn of(queue: &str, record: UnitRecord) -> UnitRecord {
    record.queue(queue)
}

#[test]
fn a_queue_takes_back_what_it_is_guaranteed_and_no_more() {
    for is_late in [false, true] {
        let mut pair = Pair::new(2);
        let min = queue("own", 1_000);
        if !is_late {
            pair.commit(vec![min.clone()]);
        }
        let lab = of("lab", ranked(1, 9, 4, 1, cpu(500)));
        pair.assign(&lab);
        pair.steps();
        if is_late {
            // What runs already is counted then.
            pair.commit(vec![min]);
        }
        pair.assign(&of("own", ranked(2, 0, 3, 1, cpu(500))));
        assert!(pair.steps().contains(&(2, ReportState::Parked)), "the third one borrows");
        pair.leave();
        pair.assert_same();
        assert_eq!((pair.live(1).len(), pair.live(2).len()), (2, 2));
        // Who borrowed does not take it back, whatever its priority.
        let revision = pair.revision;
        pair.scheduler.on_assign(
            &assignment(&lab, Revision(3 + u64::from(!is_late)), &replicas(&[(0, 1), (1, 1)]), 2),
            pair.now,
        );
        assert!(pair.steps().contains(&(1, ReportState::Parked)));
        pair.now = Millis(5_000);
        pair.steps();
        assert_eq!((pair.revision, pair.scheduler.stats().victims), (revision, 2));
        assert_eq!(pair.scheduler.stats().conflicts, 0, "the binder agreed with everything");
    }
}

#[test]
fn a_queue_that_guarantees_more_lets_parked_units_claim_it() {
    let mut pair = Pair::new(1);
    pair.commit(vec![queue("other", 1)]);
    pair.assign(&of("lab", ranked(1, 9, 1, 1, cpu(1000))));
    pair.assign(&of("lab", ranked(2, 9, 1, 1, cpu(1000))));
    pair.assign(&of("own", ranked(3, 0, 1, 1, cpu(1000))));
    let reports = pair.steps();
    assert!(reports.contains(&(3, ReportState::Parked)), "{reports:?}");
    pair.commit(vec![queue("own", 1_000)]);
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 1, "though one of higher priority waits for the same");
    pair.leave();
    assert_eq!((pair.live(1).len(), pair.live(3).len()), (0, 1));
}

#[test]
fn who_is_held_follows_its_priority_class() {
    let class = |value| {
        let (name, description) = ("gold".to_owned(), String::new());
        vec![Change::Put(Record::PriorityClass(PriorityClass {
            name,
            value,
            preemptible: true,
            description,
        }))]
    };
    let mut pair = Pair::new(1);
    pair.commit(class(1));
    pair.assign(&ranked(1, 5, 1, 1, cpu(1000)));
    pair.steps();
    let gold = ranked(2, 0, 1, 1, cpu(1000)).priority_class("gold");
    pair.assign(&gold);
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    pair.commit(class(9));
    pair.steps();
    assert_eq!((pair.scheduler.stats().preemptions_tried, pair.binder.n_holds()), (1, 1));
    pair.leave();
    assert_eq!(pair.live(2), [1]);
}

/// A unit's record as it is from now on, and the terms of what is bound of it.
fn changed(record: UnitRecord) -> Vec<Change> {
    let terms = PreemptionTerms::of(&record.spec, &PriorityClasses::default());
    vec![
        Change::Rows(record.id, RunChange::Terms(Arc::new(terms.into()))),
        Change::Put(Record::Unit(Arc::new(record))),
    ]
}

#[test]
fn what_runs_is_preempted_by_the_terms_that_it_has_now() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 9, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    assert_eq!(pair.leaving(), []);
    pair.commit(changed(ranked(1, 1, 1, 1, cpu(1000))));
    pair.now = Millis(5_000);
    pair.steps();
    assert_eq!(pair.leaving(), [(1, 1)]);
    // The other way round: it stays, and nobody searches in vain.
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    pair.commit(changed(ranked(1, 9, 1, 1, cpu(1000))));
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!((pair.leaving(), pair.scheduler.stats().conflicts), (vec![], 0));
}

#[test]
fn what_moves_is_charged_where_it_moved() {
    // The queue `own` takes back what `lab` borrows, but not from the one that has moved out of `lab`, into `own`.
    for moves in [false, true] {
        let mut pair = Pair::new(1);
        pair.commit(vec![queue("own", 1_000)]);
        let runs = of("lab", ranked(1, 9, 1, 1, cpu(1000)));
        pair.assign(&runs);
        pair.steps();
        if moves {
            pair.commit(changed(of("own", runs)));
        }
        pair.assign(&of("own", ranked(2, 0, 1, 1, cpu(1000))));
        pair.steps();
        assert_eq!(pair.leaving(), if moves { vec![] } else { vec![(1, 1)] });
        assert_eq!(pair.scheduler.stats().conflicts, 0, "the binder counts the same");
    }
}
