//! Replicas that movements move.

use std::collections::BTreeMap;

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    change::{Commit, PartitionMode},
    hold::{Hold, MovementTarget},
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{Evict, EvictionReason, Requeue, Statuses},
    unit_topology::{Segments, UnitTopology},
};
use godel_queueing::QueueIdx;

use super::*;

/// A unit of two that ran on node 1, whose first replica moves to node 3: it has left, and room is held for it there. The
/// profile prefers the node that is fuller.
fn moving(cpus: [i64; 3]) -> (Scheduler, UnitRecord) {
    let record = unit(1, 2, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    (moving_of(cpus, &record, &[0, 1], 0), record)
}

fn with_nodes(cpus: [i64; 3]) -> Scheduler {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for (id, cpu) in (1..).zip(cpus) {
        let spec = node_spec(id);
        scheduler.load(&Change::Put(Record::NodeSpec(spec)), Revision(1), 0, Millis(0));
        let report = node_report(id, resources(cpu, 8), 0, "");
        scheduler.load(&Change::Put(Record::NodeReport(report)), Revision(1), 0, Millis(0));
    }
    scheduler
}

/// The same of a unit of which these replicas ran on node 1, and one of them moves.
fn moving_of(cpus: [i64; 3], record: &UnitRecord, bound: &[u32], moved: u32) -> Scheduler {
    let mut scheduler = with_nodes(cpus);
    for (revision, change) in (2..).zip(&moves(record, bound, moved)) {
        scheduler.load(change, Revision(revision), 0, Millis(0));
    }
    scheduler
}

/// Their binding, the move, the end of the one that moves, and that it comes back.
fn moves(record: &UnitRecord, bound: &[u32], moved: u32) -> [Change; 5] {
    let demand = Arc::new(record.spec.task_groups[0].template.demand.clone());
    let bind = Bind {
        demand: Arc::clone(&demand),
        ordinals: bound.to_vec(),
        nodes: vec![NodeId(1); bound.len()],
        ..Bind::default()
    };
    let evict = Evict {
        ordinals: vec![moved],
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
        ordinals: vec![moved],
        incarnations: vec![1],
        expires_ms: i64::MAX,
        movement: Some(MovementTarget {
            movement: Arc::from("m"),
            from: RunningUnitId::new(UnitId(1), moved, 0),
        }),
        ..Hold::default()
    };
    let stopped = Statuses { ordinals: vec![moved], phases: vec![Phase::Stopped], ..Statuses::default() };
    let again = Requeue { ordinals: vec![moved], incarnations: vec![1], ..Requeue::default() };
    let rows = |change| Change::Rows(UnitId(1), change);
    [
        rows(RunChange::Bind(bind)),
        rows(RunChange::Evict(evict)),
        Change::Put(Record::Hold(Arc::new(hold))),
        rows(RunChange::Statuses(stopped)),
        rows(RunChange::Requeue(again)),
    ]
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
    scheduler.on_assign(&assignment(&other, Revision(1), &all(&other), 0), Millis(0));
    scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0), Millis(0));
    let placed = places(&mut scheduler);
    assert_eq!(placed[&(1, 0)], 3);
    assert!(placed.iter().all(|((unit, _), node)| *unit == 1 || *node != 3), "{placed:?}");
}

#[test]
fn who_moves_goes_to_a_node_of_another_scheduler() {
    let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let split = Partition { mode: PartitionMode::Strict, schedulers, ..Partition::default() };
    scheduler.load(&Change::Put(Record::Partition(split)), Revision(20), 0, Millis(0));
    scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0), Millis(0));
    assert_eq!(places(&mut scheduler).get(&(1, 0)), Some(&3));
}

#[test]
fn who_moves_goes_elsewhere_if_the_target_takes_it_no_more() {
    for change in [
        Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node_spec(3) })),
        Change::Put(Record::NodeReport(node_report(3, resources(900, 8), 0, ""))),
        Change::Gone(RecordKey::NodeSpec(NodeId(3))),
    ] {
        let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
        scheduler.load(&change, Revision(20), 0, Millis(0));
        scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0), Millis(0));
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
    scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1), (1, 1)]), 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 0), 3), ((1, 1), 1)]));
    // Its decision is under way: the room is its own until the answer.
    let other = unit(2, 1, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    scheduler.on_assign(&assignment(&other, Revision(1), &all(&other), 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((2, 0), 1)]));
}

#[test]
fn who_moves_is_placed_though_others_of_its_unit_wait_before_it() {
    // There is room on the target, and nowhere else: replicas 0 and 1 wait.
    let record = unit(1, 4, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    let mut scheduler = moving_of([1_000, 0, 1_000], &record, &[2, 3], 3);
    scheduler
        .on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 0), (1, 0), (3, 1)]), 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 3), 3)]));
    // Also if its queue is due no place now.
    let mut scheduler = moving_of([1_000, 0, 1_000], &record, &[2, 3], 3);
    let permit = Permit { places_max: Some(0), ..Permit::default() };
    let assigned = assignment(&record, Revision(1), &replicas(&[(0, 0), (1, 0), (3, 1)]), 0);
    scheduler.on_assign(&Assignment { permit, ..assigned }, Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 3), 3)]));
}

#[test]
fn waiting_replicas_follow_the_one_that_moves() {
    let rack = |id: u32| if id == 1 { "a" } else { "b" };
    let keys = ["required", "homogeneous", "segments", "group"];
    for key in keys {
        let demand = Demand { requests: resources(1_000, 1), ..Demand::default() };
        let mut record = unit(1, 3, 1, demand);
        let within = "rack".to_owned();
        let topology = &mut record.spec.topology;
        match key {
            "required" => topology.required = within,
            "homogeneous" => topology.homogeneous = within,
            "segments" => topology.segments = Some(Segments { size: 3, within }),
            _ => {
                let topology = UnitTopology { required: within, ..UnitTopology::default() };
                record.spec.task_groups[0].topology = Some(Box::new(topology));
            }
        }
        // Room for one more where it was, and for two more where it goes: node 2 is in the rack of its target.
        let mut scheduler = with_nodes([1_000, 2_000, 1_000]);
        for id in 1..=3 {
            let labels = [("rack".to_owned(), rack(id).to_owned())].into();
            let spec = NodeSpec { labels, ..node_spec(id) };
            scheduler.load(&Change::Put(Record::NodeSpec(spec)), Revision(1), 0, Millis(0));
        }
        let changes = moves(&record, &[2], 2);
        // It is still there: the others go where it goes all the same.
        for (revision, change) in (2..).zip(&changes[..3]) {
            scheduler.load(change, Revision(revision), 0, Millis(0));
        }
        scheduler.load(&Change::Put(Record::Unit(Arc::new(record.clone()))), Revision(1), 0, Millis(0));
        scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 0), (1, 0)]), 1), Millis(0));
        let placed = places(&mut scheduler);
        assert_eq!(placed, BTreeMap::from([((1, 0), 2), ((1, 1), 2)]), "{key}");
        for (revision, change) in (5..).zip(&changes[3..]) {
            scheduler.load(change, Revision(revision), 0, Millis(0));
        }
        scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(2, 1)]), 0), Millis(0));
        assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 2), 3)]), "{key}");
    }
}

#[test]
fn a_segment_without_room_for_all_that_wait_lets_the_one_that_moves_in() {
    let mut record = unit(1, 3, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    record.spec.topology.segments = Some(Segments { size: 3, within: "rack".to_owned() });
    let mut scheduler = with_nodes([1_000, 0, 1_000]);
    for id in 1..=3 {
        let labels = [("rack".to_owned(), format!("r{id}"))].into();
        let spec = NodeSpec { labels, ..node_spec(id) };
        scheduler.load(&Change::Put(Record::NodeSpec(spec)), Revision(1), 0, Millis(0));
    }
    for (revision, change) in (2..).zip(&moves(&record, &[2], 2)) {
        scheduler.load(change, Revision(revision), 0, Millis(0));
    }
    scheduler
        .on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 0), (1, 0), (2, 1)]), 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 2), 3)]));
}

#[test]
fn a_unit_is_tried_once_its_scheduler_has_read_as_much_as_its_assignment_says() {
    let record = unit(1, 2, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    let mut scheduler = with_nodes([4_000, 4_000, 1_000]);
    let changes = moves(&record, &[0, 1], 0);
    let read = |scheduler: &mut Scheduler, idx: usize| {
        let revision = Revision(2 + u64::try_from(idx).unwrap());
        let changes = vec![changes[idx].clone()];
        scheduler.apply(&Commit { revision, time_ms: 0, changes }, Millis(0));
    };
    read(&mut scheduler, 0);
    // The dispatcher is ahead of it.
    let permit = Permit { read: Revision(4), ..Permit::default() };
    let assigned = assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0);
    scheduler.on_assign(&Assignment { permit, ..assigned }, Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::new());
    assert_eq!((scheduler.next_wake(), scheduler.stats().units), (None, 1), "it waits for what it reads");
    read(&mut scheduler, 1);
    assert_eq!(places(&mut scheduler), BTreeMap::new());
    read(&mut scheduler, 2);
    assert_eq!(places(&mut scheduler), BTreeMap::from([((1, 0), 3)]));
}

#[test]
fn what_a_rejection_said_of_a_target_keeps_nobody_from_moving_there() {
    let (mut scheduler, record) = moving([4_000, 4_000, 1_000]);
    // While another one that has just entered the node is not read, what was held for it counts beside it.
    scheduler.picture.cluster.nodes_mut().note_foreign(
        NodeId(3),
        Pool::Guaranteed,
        &resources(2_000, 2),
        &[],
    );
    let other = unit(2, 1, 1, Demand { requests: resources(100, 1), ..Demand::default() });
    scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0), Millis(0));
    scheduler.on_assign(&assignment(&other, Revision(1), &all(&other), 0), Millis(0));
    let placed = places(&mut scheduler);
    assert_eq!((placed[&(1, 0)], placed[&(2, 0)] == 3), (3, false));
}

/// Running units that count in the queue `default`, where some queue guarantees something.
fn counted(scheduler: &Scheduler) -> i128 {
    scheduler.picture.shares.quota().usage().running_units(QueueIdx::DEFAULT)
}

#[test]
fn a_replica_that_moves_counts_once_in_its_queue() {
    let min = [("cpu".to_owned(), 1)].into();
    let queue = Change::Put(Record::Queue(Arc::new(QueueSpec { min, ..QueueSpec::new("other") })));
    let record = unit(1, 2, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    let load = |scheduler: &mut Scheduler, changes: &[&Change]| {
        for (revision, change) in (2..).zip(changes) {
            scheduler.load(change, Revision(revision), 0, Millis(0));
        }
    };
    let [bind, evict, hold, stopped, again] = &moves(&record, &[0, 1], 0);
    for (changes, expected) in [
        (&[&queue, bind][..], 2),
        (&[&queue, bind, hold, evict], 2),
        (&[&queue, bind, evict, hold, stopped], 2),
        (&[&queue, bind, evict, hold, stopped, again], 2),
        (&[&queue, bind, evict, stopped, again, hold], 2),
        (&[&queue, hold, bind, evict, stopped, again], 2),
        (&[bind, evict, hold, stopped, again, &queue], 2),
        (&[&queue, bind, evict, stopped, again], 1),
        (&[&queue, bind, evict, hold, stopped, again, &Change::Gone(RecordKey::Hold(HoldId(9)))], 1),
    ] {
        let mut scheduler = with_nodes([8_000, 8_000, 8_000]);
        load(&mut scheduler, changes);
        assert_eq!(counted(&scheduler), expected, "{changes:?}");
    }
    let mut scheduler = with_nodes([8_000, 8_000, 8_000]);
    load(&mut scheduler, &[&queue, bind, evict, hold, stopped, again]);
    scheduler.on_assign(&assignment(&record, Revision(1), &replicas(&[(0, 1)]), 0), Millis(0));
    let decisions = scheduler.step(Millis(0), 100).decisions;
    assert_eq!((decisions.len(), counted(&scheduler)), (1, 2), "by what is decided");
    let rejection = Rejection {
        reason: RejectionReason::InsufficientResources,
        ordinals: vec![0],
        node: NodeId(3),
        detail: String::new(),
    };
    let outcome = Outcome {
        decision_id: decisions[0].id,
        revision: Revision(0),
        rejections: vec![rejection],
        ..Outcome::default()
    };
    scheduler.on_outcome(&outcome, Millis(0));
    assert_eq!(counted(&scheduler), 2, "by its hold again");
}
