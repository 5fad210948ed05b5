//! Replicas whose volumes a node keeps.

use std::collections::BTreeSet;

use godel_domain::{
    records::RecordKey,
    running_units::{Requeue, Statuses},
    unit::Volume,
};

use super::*;

/// A unit of three replicas with a volume each, that ran on nodes 1, 2 and 1, and of which the fourth never ran.
fn ran() -> (Scheduler, UnitRecord, Vec<ReplicaId>) {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for (id, cpu) in [(1, 2_000), (2, 1_000), (3, 8_000)] {
        scheduler.picture.cluster.nodes_mut().put_spec(node_spec(id), Revision(1));
        scheduler
            .picture
            .cluster
            .nodes_mut()
            .put_report(node_report(id, resources(cpu, 8), 0, ""), Revision(1));
    }
    let mut record = unit(1, 4, 1, Demand { requests: resources(1_000, 1), ..Demand::default() })
        .class(WorkloadClass::Service)
        .profile("least-allocated");
    let volume = Volume { name: "data".to_owned(), bytes: 1, path: None };
    record.spec.task_groups[0].template.run.volumes = vec![volume];
    let ordinals = vec![0, 1, 2];
    let bind = Bind {
        demand: Arc::new(record.spec.task_groups[0].template.demand.clone()),
        ordinals: ordinals.clone(),
        nodes: vec![NodeId(1), NodeId(2), NodeId(1)],
        ..Bind::default()
    };
    let stopped = Statuses {
        ordinals: ordinals.clone(),
        incarnations: vec![0; 3],
        phases: vec![Phase::Stopped; 3],
        exit_codes: vec![0; 3],
        restarts: vec![0; 3],
        ends: Vec::new(),
    };
    let again = Requeue { ordinals, incarnations: vec![1; 3], ..Requeue::default() };
    let changes = [RunChange::Bind(bind), RunChange::Statuses(stopped), RunChange::Requeue(again)];
    for (revision, change) in (2..).zip(&changes) {
        scheduler.picture.cluster.apply_rows(UnitId(1), change, Revision(revision), 0);
    }
    let wanted =
        [(0, 1), (1, 1), (2, 1), (3, 0)].map(|(ordinal, incarnation)| ReplicaId { ordinal, incarnation });
    (scheduler, record, wanted.to_vec())
}

/// Nodes by ordinal of what is decided.
fn places(scheduler: &mut Scheduler) -> BTreeMap<u32, u32> {
    let decisions = scheduler.step(Millis(0), 100).decisions;
    for decision in &decisions {
        let groups: BTreeSet<u16> = decision.groups.iter().map(|group| group.group).collect();
        assert_eq!(groups.len(), decision.groups.len(), "a task group stands once");
    }
    let groups = decisions.iter().flat_map(|decision| &decision.groups);
    groups
        .flat_map(|group| group.ordinals.iter().copied().zip(group.nodes.iter().map(|node| node.0)))
        .collect()
}

#[test]
fn replicas_go_back_to_their_volumes() {
    let (mut scheduler, record, wanted) = ran();
    scheduler.on_assign(&assignment(&record, Revision(1), &wanted, 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([(0, 1), (1, 2), (2, 1), (3, 3)]));
}

#[test]
fn a_replica_waits_for_the_node_of_its_volumes() {
    let (mut scheduler, record, wanted) = ran();
    let other = unit(2, 1, 1, Demand { requests: resources(1_000, 1), ..Demand::default() });
    let bind = Bind {
        demand: Arc::new(other.spec.task_groups[0].template.demand.clone()),
        ordinals: vec![0],
        nodes: vec![NodeId(2)],
        ..Bind::default()
    };
    scheduler.picture.cluster.apply_rows(UnitId(2), &RunChange::Bind(bind), Revision(9), 0);
    scheduler.on_assign(&assignment(&record, Revision(1), &wanted, 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([(0, 1), (2, 1), (3, 3)]));
    assert_eq!(scheduler.units.parked.len(), 1, "the other one waits");
    // Its node has room again: the scheduler says so, and the dispatcher calls the unit.
    let left = Statuses {
        ordinals: vec![0],
        incarnations: vec![0],
        phases: vec![Phase::Stopped],
        exit_codes: vec![0],
        restarts: vec![0],
        ends: Vec::new(),
    };
    let change = Change::Rows(UnitId(2), RunChange::Statuses(left));
    scheduler.load(&change, Revision(10), 0, Millis(1));
    assert_eq!(scheduler.step(Millis(1), 100).rooms.iter().map(|room| room.places).collect::<Vec<_>>(), [1]);
}

#[test]
fn volumes_are_lost_with_the_record_of_their_node() {
    let (mut scheduler, record, wanted) = ran();
    scheduler.picture.cluster.nodes_mut().remove(NodeId(2));
    scheduler.on_assign(&assignment(&record, Revision(1), &wanted, 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([(0, 1), (1, 3), (2, 1), (3, 3)]));
}

#[test]
fn the_end_of_a_node_frees_who_waits_for_it() {
    let (mut scheduler, record, wanted) = ran();
    let mut report = node_report(2, resources(1_000, 8), 0, "");
    report.ready = false;
    scheduler.picture.cluster.nodes_mut().put_report(report, Revision(9));
    scheduler.on_assign(&assignment(&record, Revision(1), &wanted, 0), Millis(0));
    assert_eq!(places(&mut scheduler), BTreeMap::from([(0, 1), (2, 1), (3, 3)]));
    let change = Change::Gone(RecordKey::NodeSpec(NodeId(2)));
    scheduler.load(&change, Revision(10), 0, Millis(1));
    let rooms = scheduler.step(Millis(1), 100).rooms;
    assert!(rooms.iter().any(|room| room.places > 0), "{rooms:?}");
}
