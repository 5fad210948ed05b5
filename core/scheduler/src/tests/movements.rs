//! Replicas that movements move.

use std::collections::BTreeMap;

use godel_domain::{
    change::PartitionMode,
    hold::{Hold, MovementTarget},
    ids::{HoldId, RunningUnitId},
    running_units::{Evict, EvictionReason, Requeue, Statuses},
};

use super::*;

/// A unit of two that ran on node 1, whose first replica moves to node 3: it has left, and room is held for it there. The
/// profile prefers the node that is fuller.
fn moving(cpus: [i64; 3]) -> (Scheduler, UnitRecord) {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for (id, cpu) in (1..).zip(cpus) {
        scheduler.picture.cluster.put_spec(node_spec(id), Revision(1));
        scheduler.picture.cluster.put_report(node_report(id, resources(cpu, 8), 0, ""), Revision(1));
    }
    let record = unit(1, 2, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    let demand = Arc::new(record.spec.task_groups[0].template.demand.clone());
    let bind = Bind {
        demand: Arc::clone(&demand),
        ordinals: vec![0, 1],
        nodes: vec![NodeId(1); 2],
        ..Bind::default()
    };
    let evict = Evict {
        ordinals: vec![0],
        incarnations: Vec::new(),
        reason: EvictionReason::Rescheduled,
        by: "movement m".to_owned(),
        preemptor: UnitId(0),
    };
    let hold = Hold {
        id: HoldId(9),
        node: NodeId(3),
        unit: UnitId(1),
        spec_revision: Revision(1),
        demand,
        ordinals: vec![0],
        incarnations: vec![1],
        expires_ms: i64::MAX,
        movement: Some(MovementTarget {
            movement: Arc::from("m"),
            from: RunningUnitId::new(UnitId(1), 0, 0),
        }),
        ..Hold::default()
    };
    let stopped = Statuses { ordinals: vec![0], phases: vec![Phase::Stopped], ..Statuses::default() };
    let again = Requeue { ordinals: vec![0], incarnations: vec![1], ..Requeue::default() };
    let rows = |change| Change::Rows(UnitId(1), change);
    let changes = [
        rows(RunChange::Bind(bind)),
        rows(RunChange::Evict(evict)),
        Change::Hold(Arc::new(hold)),
        rows(RunChange::Statuses(stopped)),
        rows(RunChange::Requeue(again)),
    ];
    for (revision, change) in (2..).zip(&changes) {
        scheduler.load(change, Revision(revision), 0, Millis(0));
    }
    (scheduler, record)
}

/// Nodes by unit and ordinal of what is decided.
fn places(scheduler: &mut Scheduler) -> BTreeMap<(u64, u32), u32> {
    let decisions = scheduler.step(Millis(0), 100).decisions;
    let placed = decisions.iter().flat_map(|decision| {
        let of = |group: &GroupPlacement| {
            let nodes: Vec<u32> = group.nodes.iter().map(|node| node.0).collect();
            group.ordinals.clone().into_iter().zip(nodes).collect::<Vec<_>>()
        };
        let unit = decision.unit.0;
        decision.groups.iter().flat_map(of).map(move |(ordinal, node)| ((unit, ordinal), node))
    });
    placed.collect()
}

#[test]
fn who_moves_goes_where_room_is_held_for_it() {
    let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
    // Somebody else who would fit there alone does not get the room.
    let other = unit(2, 3, 1, Demand { requests: resources(2_500, 1), ..Demand::default() });
    scheduler.on_assign(&other, Revision(1), &all(&other), 0, Millis(0));
    scheduler.on_assign(&record, Revision(1), &replicas(&[(0, 1)]), 0, Millis(0));
    let placed = places(&mut scheduler);
    assert_eq!(placed[&(1, 0)], 3);
    assert!(placed.iter().all(|((unit, _), node)| *unit == 1 || *node != 3), "{placed:?}");
}

#[test]
fn who_moves_goes_to_a_node_of_another_scheduler() {
    let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let split = Partition { mode: PartitionMode::Strict, schedulers, ..Partition::default() };
    scheduler.load(&Change::Partition(split), Revision(20), 0, Millis(0));
    scheduler.on_assign(&record, Revision(1), &replicas(&[(0, 1)]), 0, Millis(0));
    assert_eq!(places(&mut scheduler).get(&(1, 0)), Some(&3));
}

#[test]
fn who_moves_goes_elsewhere_if_the_target_takes_it_no_more() {
    for change in [
        Change::NodeSpec(NodeSpec { cordoned: true, ..node_spec(3) }),
        Change::NodeReport(node_report(3, resources(900, 8), 0, "")),
        Change::NodeDeleted(NodeId(3)),
    ] {
        let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
        scheduler.load(&change, Revision(20), 0, Millis(0));
        scheduler.on_assign(&record, Revision(1), &replicas(&[(0, 1)]), 0, Millis(0));
        assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 0), 1)]), "{change:?}");
    }
}

#[test]
fn only_who_moves_gets_what_is_held_for_it() {
    // The other replica of its unit comes back too, and goes where it fits.
    let (mut scheduler, record) = moving([2_000, 0, 1_000]);
    let stopped = Statuses { ordinals: vec![1], phases: vec![Phase::Stopped], ..Statuses::default() };
    let again = Requeue { ordinals: vec![1], incarnations: vec![1], ..Requeue::default() };
    for (revision, change) in (20..).zip([RunChange::Statuses(stopped), RunChange::Requeue(again)]) {
        scheduler.load(&Change::Rows(UnitId(1), change), Revision(revision), 0, Millis(0));
    }
    scheduler.on_assign(&record, Revision(1), &replicas(&[(0, 1), (1, 1)]), 0, Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 0), 3), ((1, 1), 1)]));
    // Its decision is under way: the room is its own until the answer.
    let other = unit(2, 1, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    scheduler.on_assign(&other, Revision(1), &all(&other), 0, Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((2, 0), 1)]));
}
