//! Units of queues that are at a maximum, with the real binder behind them.

use godel_base::resources::CPU;
use godel_domain::records::Record;

use super::*;
use crate::PlanOutcome;

/// A queue's record: guaranteed CPUs, at most so many, and so many running units.
fn limited(path: &str, min: i64, max: i64, max_running_units: u32) -> Change {
    let of = |amount: i64| (amount > 0).then(|| (CPU.to_owned(), amount)).into_iter().collect();
    Change::Put(Record::Queue(Arc::new(QueueSpec {
        min: of(min),
        max: of(max),
        max_running_units,
        ..QueueSpec::new(path)
    })))
}

impl Pair {
    /// The dispatcher sees that a queue of the unit is full.
    fn assign_full(&mut self, record: &UnitRecord) {
        self.assign_with(record, &all(record), Permit { at_maximum: true, ..Permit::default() });
    }

    /// The same again.
    fn again(&mut self, record: &UnitRecord, pending: &[(u32, u32)]) {
        self.assign_with(record, &replicas(pending), Permit { at_maximum: true, ..Permit::default() });
    }

    /// Running units told to leave, wherever their room is held.
    fn told(&self) -> Vec<(u64, u32)> {
        let mut told: Vec<(u64, u32)> = Vec::new();
        for hold in self.binder.cluster().holds().all() {
            told.extend(hold.all_victims().map(|one| (one.unit.0, one.replica.ordinal)));
        }
        told.sort_unstable();
        told
    }

    /// How many more running units, or CPUs if these are fewer, there is room for in a queue by the binder.
    fn room(&self, path: &str) -> usize {
        let quota = self.binder.picture().quota();
        let queue = quota.tree().find(path).unwrap();
        let fits = |n: &i128| quota.usage().exceeded(queue, &[*n, *n], |_, _| 0).is_none();
        (1..10_000).take_while(fits).count()
    }
}

const NONE: [(u64, u32); 0] = [];

#[test]
fn what_a_full_queue_gives_back_is_its_masters_last() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("co", 0, 300, 0), limited("co.a", 300, 0, 0), limited("co.b", 0, 0, 0)]);
    let app = ranked(1, 900, 3, 1, cpu(100)).class(godel_domain::unit::WorkloadClass::Yarn);
    pair.assign(&of("co.b", app));
    pair.steps();
    pair.assign_full(&of("co.a", ranked(2, 0, 1, 1, cpu(200))));
    pair.steps();
    assert_eq!(pair.told(), [(1, 1), (1, 2)]);
    pair.leave();
    assert_eq!(pair.live(2).len(), 1);
    // Nobody else is left.
    pair.assign_full(&of("co.a", ranked(3, 0, 1, 1, cpu(100))));
    pair.steps();
    assert_eq!(pair.told(), [(1, 0)]);
    pair.assert_same();
}

#[test]
fn a_guarantee_below_a_full_queue_is_taken_back() {
    // By CPUs, and by running units of which the guarantee says nothing.
    for (max, max_running_units, n_victims) in [(300, 0, 2), (0, 3, 1)] {
        let mut pair = Pair::new(2);
        pair.commit(vec![
            limited("co", 0, max, max_running_units),
            limited("co.a", 300, 0, 0),
            limited("co.b", 0, 0, 0),
        ]);
        let borrower = of("co.b", ranked(1, 900, 3, 1, cpu(100)));
        pair.assign(&borrower);
        pair.steps();
        let owner = of("co.a", ranked(2, 0, 1, 1, cpu(200)));
        pair.assign_full(&owner);
        pair.steps();
        assert_eq!((pair.told().len(), pair.binder.n_holds()), (n_victims, 1), "{max}");
        pair.leave();
        assert_eq!((pair.live(1).len(), pair.live(2).len()), (3 - n_victims, 1));
        // Whatever its priority: it borrows.
        pair.again(&borrower, &[(2, 1)]);
        assert!(pair.steps().contains(&(1, ReportState::QueueFull)));
        assert_eq!((pair.told(), pair.scheduler.stats().conflicts), (NONE.to_vec(), 0));
        pair.assert_same();
    }
}

#[test]
fn a_higher_priority_takes_from_a_lower_one_of_its_full_queue() {
    for (max, max_running_units) in [(200, 0), (0, 2)] {
        let mut pair = Pair::new(1);
        pair.commit(vec![limited("q", 0, max, max_running_units)]);
        pair.assign(&of("q", ranked(1, 1, 2, 1, cpu(100))));
        pair.steps();
        let high = of("q", ranked(2, 9, 3, 1, cpu(100)));
        pair.assign_full(&high);
        let reports = pair.steps();
        assert_eq!((pair.told().len(), pair.room("q")), (2, 0), "{reports:?}");
        pair.leave();
        assert_eq!((pair.live(1).len(), pair.live(2).len()), (0, 2));
        pair.again(&high, &[(2, 0)]);
        assert!(pair.steps().contains(&(2, ReportState::QueueFull)), "of equal rank");
        assert_eq!((pair.told(), pair.scheduler.stats().conflicts), (NONE.to_vec(), 0));
        pair.assert_same();
    }
}

#[test]
fn who_leaves_a_full_queue_may_be_on_another_node() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("q", 0, 1_500, 0)]);
    pair.assign(&of("q", ranked(1, 1, 1, 1, cpu(900))));
    pair.steps();
    let [near] = pair.live(1)[..] else { panic!("one runs") };
    // It has room on the other node, and none in its queue.
    pair.assign_full(&of("q", ranked(2, 9, 1, 1, cpu(1000))));
    pair.steps();
    let holds = pair.binder.cluster().holds().all();
    assert_ne!(holds[0].node.0, near);
    assert_eq!((holds[0].victims.len(), holds[0].queue_victims.len(), holds[0].at_maximum), (0, 1, true));
    assert!(pair.binder.take_hold_work().is_empty(), "it has yet to leave");
    assert_eq!(pair.room("q"), 500, "what it gives up is nobody else's");
    pair.leave();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.room("q")), (0, 1, 500));
}

#[test]
fn a_full_node_and_a_full_queue_have_the_same_one_leave() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("q", 0, 1_000, 0)]);
    pair.assign(&of("q", ranked(1, 5, 1, 1, cpu(1000))));
    pair.steps();
    pair.assign(&of("r", ranked(2, 1, 1, 1, cpu(1000))));
    pair.steps();
    // One of the other queue has a lower priority, but leaves the queue as full as it is.
    pair.assign_full(&of("q", ranked(3, 9, 1, 1, cpu(1000))));
    pair.steps();
    assert_eq!(pair.told(), [(1, 0)]);
    pair.leave();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.live(3).len()), (0, 1, 1));
}

#[test]
fn a_gang_takes_together_what_one_large_victim_leaves() {
    let mut pair = Pair::new(3);
    pair.commit(vec![limited("q", 0, 1_000, 0)]);
    pair.assign(&of("q", ranked(1, 1, 1, 1, cpu(900))));
    pair.steps();
    pair.assign_full(&of("q", ranked(2, 9, 3, 3, cpu(300))));
    pair.steps();
    assert_eq!((pair.told(), pair.room("q")), (vec![(1, 0)], 100));
    pair.leave();
    assert_eq!((pair.live(2).len(), pair.binder.n_holds(), pair.room("q")), (3, 0, 100));
    pair.assert_same();
}

#[test]
fn each_full_queue_evicts_only_as_many_as_it_must() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("a", 0, 500, 0), limited("a.x", 0, 0, 1), limited("a.y", 0, 0, 0)]);
    pair.assign(&of("a.x", ranked(1, 5, 1, 1, cpu(100))));
    pair.steps();
    pair.assign(&of("a.y", ranked(2, 1, 4, 1, cpu(100))));
    pair.steps();
    // `a.x` may run one, and `a` is full: that one leaves, and of the other queue one beside it.
    pair.assign_full(&of("a.x", ranked(3, 9, 1, 1, cpu(200))));
    pair.steps();
    assert_eq!(pair.told().iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((pair.room("a"), pair.room("a.x")), (0, 0));
    pair.leave();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.live(3).len()), (0, 3, 1));
}

#[test]
fn a_unit_of_a_full_queue_goes_back_where_nobody_may_leave() {
    let spared = [
        ranked(1, 1, 2, 1, cpu(100)).preemptible(false),
        ranked(1, 1, 2, 1, cpu(100)).min_run_ms(1_000_000),
        ranked(1, 9, 2, 1, cpu(100)),
        ranked(1, 1, 2, 1, cpu(100)),
    ];
    for (idx, low) in spared.into_iter().enumerate() {
        let mut pair = Pair::new(1);
        pair.commit(vec![limited("q", 0, 200, 0)]);
        pair.assign(&of("q", low));
        pair.steps();
        if idx == 3 {
            pair.commit(vec![Change::Put(Record::Pause(Pause {
                scope: Scope::Preemption,
                since_ms: 1,
                reason: String::new(),
                sub_cluster_key: String::new(),
            }))]);
        }
        pair.assign_full(&of("q", ranked(2, 9, 1, 1, cpu(100))));
        let reports = pair.steps();
        assert_eq!(
            (reports.last(), pair.told()),
            (Some(&(2, ReportState::QueueFull)), NONE.to_vec()),
            "{idx}"
        );
        assert!(pair.scheduler.inventory().is_empty());
    }
}

#[test]
fn what_leaves_a_full_queue_already_is_waited_for() {
    let mut pair = Pair::new(1);
    pair.commit(vec![limited("q", 0, 200, 0)]);
    pair.assign(&of("q", ranked(1, 1, 2, 1, cpu(100))));
    pair.steps();
    let evict = godel_domain::running_units::Evict {
        ordinals: vec![1],
        incarnations: vec![0],
        reason: godel_domain::running_units::EvictionReason::Drained,
        by: String::new(),
        preemptor: UnitId(0),
    };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Evict(evict))]);
    pair.assign_full(&of("q", ranked(2, 9, 1, 1, cpu(100))));
    assert_eq!(pair.steps(), [(2, ReportState::QueueFull)]);
    assert_eq!(pair.told(), NONE);
}

#[test]
fn a_unit_of_a_full_queue_is_placed_once_there_is_room() {
    let mut pair = Pair::new(1);
    pair.commit(vec![limited("q", 0, 200, 0)]);
    pair.assign(&of("q", ranked(1, 1, 1, 1, cpu(100))));
    pair.steps();
    pair.assign_full(&of("q", ranked(2, 9, 1, 1, cpu(100))));
    assert_eq!(pair.steps(), [(2, ReportState::Done)]);
    assert_eq!((pair.live(1).len(), pair.live(2).len()), (1, 1));
}

#[test]
fn what_is_held_in_a_full_queue_ends_together() {
    let mut pair = Pair::new(4);
    pair.commit(vec![limited("q", 0, 1_200, 0)]);
    pair.assign(&of("q", ranked(1, 1, 1, 1, cpu(900))));
    pair.steps();
    let spec = of("q", ranked(2, 9, 4, 1, cpu(300)));
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(spec.clone())))]);
    pair.scheduler.on_assign(&assignment(&spec, revision, &replicas(&[(0, 0)]), 0), pair.now);
    pair.steps();
    pair.again(&spec, &[(1, 0), (2, 0), (3, 0)]);
    pair.steps();
    let nodes: Vec<u32> = pair.binder.cluster().holds().all().iter().map(|hold| hold.node.0).collect();
    assert_eq!((nodes.len() > 1, pair.told(), pair.room("q")), (true, vec![(1, 0)], 0));
    // One of its nodes is closed: without its share of what the victim gives up the others would be too much.
    let closed = godel_domain::node::NodeSpec { cordoned: true, ..node_spec(nodes[nodes.len() - 1]) };
    pair.commit(vec![Change::Put(Record::NodeSpec(closed))]);
    let work = pair.binder.take_hold_work();
    let [HoldWork::Drop { holds, .. }] = &work[..] else { panic!("{work:?}") };
    assert_eq!(holds.len(), nodes.len());
}

#[test]
fn of_a_full_queue_the_lowest_leaves_and_a_gang_whole() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("q", 0, 500, 0)]);
    pair.assign(&of("q", ranked(1, 5, 1, 1, cpu(100))));
    pair.steps();
    pair.assign(&of("q", ranked(2, 1, 3, 3, cpu(100))));
    pair.steps();
    pair.assign(&of("q", ranked(3, 2, 1, 1, cpu(100))));
    pair.steps();
    pair.assign_full(&of("q", ranked(4, 9, 1, 1, cpu(200))));
    pair.steps();
    assert_eq!(
        pair.told(),
        [(2, 0), (2, 1), (2, 2)],
        "of lower rank than the others, and worth nothing in part"
    );
    pair.leave();
    assert_eq!([1, 2, 3, 4].map(|unit| pair.live(unit).len()), [1, 0, 1, 1]);
}

#[test]
fn a_plan_says_who_has_to_leave_a_full_queue() {
    let mut pair = Pair::new(1);
    pair.commit(vec![limited("q", 0, 200, 0)]);
    pair.assign(&of("q", ranked(1, 1, 2, 1, cpu(100))));
    pair.steps();
    let mut plan = |priority, replicas, min_member| {
        let report = pair.scheduler.plan(&of("q", ranked(2, priority, replicas, min_member, cpu(100))).spec);
        (report.outcome, report.victims.get(&UnitId(1)).copied(), report.unplaced)
    };
    assert_eq!(plan(9, 1, 1), (PlanOutcome::Preempts, Some(1), 0));
    assert_eq!(plan(9, 3, 1), (PlanOutcome::Partly, Some(2), 1));
    assert_eq!(plan(1, 1, 1), (PlanOutcome::Waits, None, 1));
    pair.steps();
    assert_eq!((pair.told(), pair.scheduler.stats().victims), (NONE.to_vec(), 0));
    pair.assert_same();
}

#[test]
fn a_queue_with_room_at_the_decision_loses_nobody() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("q", 0, 200, 0)]);
    pair.assign(&of("q", ranked(1, 1, 2, 1, cpu(100))));
    pair.steps();
    pair.assign_full(&of("q", ranked(2, 9, 1, 1, cpu(100))));
    let decisions = pair.scheduler.step(pair.now, 1_000).decisions;
    assert!(decisions[0].claim.preemption().is_some());
    let ended = Statuses {
        ordinals: vec![0],
        incarnations: vec![0],
        phases: vec![Phase::Succeeded],
        ..Statuses::default()
    };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Statuses(ended))]);
    let outcome = pair.decide(&decisions[0]);
    assert_eq!(outcome.rejections[0].reason, RejectionReason::VictimGone);
    pair.scheduler.on_outcome(&outcome, pair.now);
    pair.steps();
    assert_eq!((pair.live(1).len(), pair.live(2).len(), pair.binder.n_holds()), (1, 1, 0));
}

#[test]
fn replicas_with_a_port_relieve_a_full_queue_one_by_one() {
    let mut pair = Pair::new(2);
    pair.commit(vec![limited("q", 0, 2_000, 0)]);
    pair.assign(&of("q", ranked(1, 1, 2, 1, cpu(1000))));
    pair.steps();
    // One who leaves makes room for both, on a node where only one can have the port.
    pair.assign_full(&of("q", ranked(2, 9, 2, 2, with_port(300))));
    pair.steps();
    assert_eq!(pair.told(), [(1, 0), (1, 1)]);
    pair.leave();
    let mut nodes = pair.live(2);
    nodes.sort_unstable();
    assert_eq!((nodes, pair.binder.n_holds()), (vec![1, 2], 0));
    pair.assert_same();
}
