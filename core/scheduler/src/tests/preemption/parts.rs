//! Searches for several replicas at once, with the real binder behind them.

use godel_base::ids::ReplicaId;
use godel_domain::{
    decision::Preemption,
    records::Record,
    reservation_spec::ReservationSpec,
    running_units::{Evict, EvictionReason},
};

use super::*;

/// The same unit with one more replica, of another task group.
pub(super) fn with_another(unit: UnitRecord, demand: Demand) -> UnitRecord {
    let mut other = unit.spec.task_groups[0].clone();
    (other.name, other.replicas) = ("other".to_owned(), 1);
    other.template.demand = demand;
    unit.group(other)
}

impl Pair {
    /// A unit of which one is bound already, whether or not rows say so here.
    fn assign_rest(&mut self, record: &UnitRecord, rest: &[ReplicaId]) {
        let revision = self.commit(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
        self.scheduler.on_assign(&assignment(record, revision, rest, 1), self.now);
    }
}

#[test]
fn both_task_groups_of_a_unit_have_others_leave() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    pair.assign(&with_another(ranked(2, 9, 1, 2, cpu(900)), cpu(800)));
    pair.steps();
    assert_eq!((pair.leaving(), pair.binder.n_holds()), (vec![(1, 1), (1, 2)], 2));
}

#[test]
fn one_search_serves_what_is_missing_of_a_unit() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 4, 1, cpu(500)));
    pair.steps();
    pair.assign_rest(&ranked(2, 9, 4, 1, cpu(500)), &replicas(&[(1, 0), (2, 0), (3, 0)]));
    pair.steps();
    let stats = pair.scheduler.stats();
    assert_eq!((stats.preemptions_tried, stats.victims), (1, 3));
}

#[test]
fn a_gang_beyond_its_guarantee_claims_by_priority() {
    let mut pair = Pair::new(2);
    pair.commit(vec![queue("own", 1_000)]);
    pair.assign(&of("lab", ranked(1, 1, 2, 1, cpu(1000))));
    pair.steps();
    pair.assign(&of("own", ranked(2, 9, 2, 2, cpu(1000))));
    pair.steps();
    assert_eq!(pair.leaving(), [(1, 1), (1, 2)]);
}

#[test]
fn a_part_within_its_guarantee_claims_though_the_whole_cannot() {
    let mut pair = Pair::new(1);
    pair.commit(vec![queue("a", 2_000), queue("a.x", 500)]);
    pair.assign(&of("a.y", ranked(1, 9, 2, 1, cpu(500))));
    pair.steps();
    // `a` is owed room for both, and its other queue has it; `a.x` is owed room for one.
    pair.assign_rest(&of("a.x", ranked(2, 0, 3, 1, cpu(500))), &replicas(&[(1, 0), (2, 0)]));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    assert_eq!((pair.leaving(), pair.scheduler.stats().conflicts), (vec![(1, 1)], 0));
}

#[test]
fn claims_within_and_beyond_a_guarantee_do_not_mix() {
    for has_first in [false, true] {
        let mut pair = Pair::new(2);
        pair.commit(vec![queue("a", 3_000), queue("a.x", 500)]);
        pair.assign(&of("a.y", ranked(1, 9, 2, 1, cpu(500))));
        pair.steps();
        pair.assign(&of("lab", ranked(2, 10, 1, 1, cpu(1000))));
        pair.steps();
        let near = pair.live(1)[0];
        // The small one takes from its neighbour if nothing else is asked for; both together only from the other queue.
        let small = ranked(3, 0, 1, 1, cpu(if has_first { 1 } else { 500 }));
        let small = if has_first { with_another(small, cpu(500)) } else { small };
        let both = of("a.x", with_another(small, cpu(1000)));
        pair.assign_rest(&both, &all(&both)[usize::from(has_first)..]);
        let decisions = pair.scheduler.step(pair.now, 1_000).decisions;
        let placed: Vec<_> = decisions.iter().flat_map(|decision| &decision.groups).collect();
        let placed: Vec<_> = placed.into_iter().map(|group| (group.group, group.nodes.clone())).collect();
        assert_eq!(placed, [(u16::from(has_first), vec![NodeId(near)])], "{has_first}");
        let victims = decisions.iter().filter_map(|decision| decision.claim.preemption());
        let victims: Vec<u64> = victims.flat_map(Preemption::victims).map(|victim| victim.unit.0).collect();
        assert_eq!(victims, [1], "{has_first}");
    }
}

#[test]
fn two_task_groups_claim_no_more_of_a_queue_than_it_borrows() {
    let mut pair = Pair::new(3);
    pair.commit(vec![queue("own", 1_000), queue("other", 1_000)]);
    pair.assign(&of("own", ranked(1, 0, 2, 1, cpu(200)).preemptible(false)));
    pair.steps();
    pair.assign(&of("own", ranked(2, 0, 3, 1, cpu(400))));
    pair.steps();
    pair.assign(&of("other", with_another(ranked(3, 1, 2, 1, cpu(800)), cpu(400))));
    pair.steps();
    // It borrows 600, and ends with the second of them.
    assert_eq!((pair.leaving().len(), pair.scheduler.stats().conflicts), (2, 0), "{:?}", pair.leaving());
}

#[test]
fn who_finds_nobody_but_those_that_preempted_it_says_so() {
    let mut pair = Pair::new(1);
    let sent_away = ranked(2, 9, 1, 1, cpu(1000));
    pair.assign(&sent_away);
    pair.steps();
    let evict = Evict {
        ordinals: vec![0],
        incarnations: vec![0],
        reason: EvictionReason::Preempted,
        by: String::new(),
        preemptor: UnitId(1),
    };
    pair.commit(vec![Change::Rows(UnitId(2), RunChange::Evict(evict))]);
    pair.leave();
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign_rest(&sent_away, &replicas(&[(0, 1)]));
    let mut step = pair.scheduler.step(pair.now, 1_000);
    let report = step.reports.remove(0);
    assert_eq!((step.decisions.len(), report.state), (0, ReportState::Parked));
    let refusals = report.refusals.expect("it says why");
    assert!(refusals.reasons.iter().any(|reason| reason.plugin == "preemption"), "{refusals:?}");
    assert_eq!(pair.scheduler.stats().loops_refused, 1);
}

#[test]
fn explaining_a_gang_counts_the_room_it_found_itself() {
    let mut pair = Pair::new(3);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(3, 5, 3, 3, cpu(1000)));
    let mut step = pair.scheduler.step(pair.now, 1_000);
    let report = step.reports.remove(0);
    assert_eq!((step.decisions.len(), report.state), (0, ReportState::Parked));
    let refusals = report.refusals.expect("it says why");
    let n_refused: u32 = refusals.reasons.iter().map(|reason| reason.nodes).sum();
    assert_eq!((refusals.nodes, n_refused), (3, 3), "{refusals:?}");
}

#[test]
fn an_owner_of_too_few_slots_has_others_leave_for_all_of_it() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 2, 1, cpu(500)));
    pair.steps();
    pair.assign(&ranked(2, 9, 1, 1, cpu(500)));
    pair.steps();
    let (low, high) = (pair.live(1), pair.live(2));
    assert!(low[0] == low[1] && low[0] != high[0], "{low:?}, {high:?}");
    let labels: BTreeMap<String, String> = [("team".to_owned(), "own".to_owned())].into();
    let reservation = ReservationSpec {
        name: "r".to_owned(),
        namespace: "default".to_owned(),
        selector: labels.clone(),
        slots: 1,
        demand: cpu(500),
        ..ReservationSpec::default()
    };
    let slot = Hold {
        id: HoldId(1),
        node: NodeId(high[0]),
        demand: Arc::new(cpu(500)),
        ordinals: vec![0],
        slot: Some(Slot { reservation: Arc::from("r"), occupant: None }),
        ..Hold::default()
    };
    pair.commit(vec![
        Change::Put(Record::Reservation(Arc::new(reservation))),
        Change::Put(Record::Hold(Arc::new(slot))),
    ]);
    pair.assign(&ranked(3, 9, 2, 2, cpu(500)).labels(labels));
    assert!(pair.steps().contains(&(3, ReportState::Parked)));
    assert_eq!(pair.leaving(), [(1, low[0]), (1, low[0])]);
}

#[test]
fn as_many_leave_for_one_as_a_decision_may_name() {
    let most = i64::try_from(godel_placement::preempt::N_VICTIMS_MAX).unwrap();
    let mut pair = Pair::new(0);
    pair.commit(vec![
        Change::Put(Record::NodeSpec(node_spec(1))),
        Change::Put(Record::NodeReport(NodeReport {
            max_running_units: 10_000,
            ..node_report(1, resources(most, most), 0, "A10")
        })),
    ]);
    pair.assign(&ranked(1, 1, u32::try_from(most).unwrap(), 1, cpu(1)));
    pair.steps();
    pair.assign(&ranked(2, 9, 1, 1, cpu(most)));
    pair.steps();
    assert_eq!((pair.scheduler.stats().victims, pair.binder.n_holds()), (most.unsigned_abs(), 1));
}

#[test]
fn of_two_slots_on_a_node_a_port_takes_one() {
    let mut pair = Pair::new(2);
    let labels: BTreeMap<String, String> = [("team".to_owned(), "own".to_owned())].into();
    let reservation = ReservationSpec {
        name: "r".to_owned(),
        namespace: "default".to_owned(),
        selector: labels.clone(),
        slots: 2,
        demand: cpu(400),
        ..ReservationSpec::default()
    };
    let slot = |number| Hold {
        id: HoldId(1 + u64::from(number)),
        node: NodeId(1),
        demand: Arc::new(cpu(400)),
        ordinals: vec![number],
        slot: Some(Slot { reservation: Arc::from("r"), occupant: None }),
        ..Hold::default()
    };
    let slots = [0, 1].map(|number| Change::Put(Record::Hold(Arc::new(slot(number)))));
    pair.commit([Change::Put(Record::Reservation(Arc::new(reservation)))].into_iter().chain(slots).collect());
    pair.assign(&ranked(2, 9, 2, 2, with_port(400)).labels(labels));
    pair.step();
    let mut nodes = pair.live(2);
    nodes.sort_unstable();
    assert_eq!((nodes, pair.scheduler.stats().conflicts), (vec![1, 2], 0));
}
