//! Which ordinal gets which of the places that a unit has.

use std::collections::BTreeSet;

use godel_domain::{
    running_units::{Requeue, Statuses},
    unit_topology::UnitTopology,
};

use super::*;

/// Eight nodes for two replicas each, in two racks of one zone that take turns.
fn two_racks() -> Scheduler {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for id in 1..=8 {
        let mut spec = node_spec(id);
        spec.labels.insert("rack".to_owned(), if id % 2 == 0 { "even" } else { "odd" }.to_owned());
        spec.labels.insert("zone".to_owned(), "z".to_owned());
        scheduler.picture.cluster.nodes_mut().put_spec(spec, Revision(1));
        scheduler
            .picture
            .cluster
            .nodes_mut()
            .put_report(node_report(id, resources(2_000, 2), 0, ""), Revision(1));
    }
    scheduler
}

/// The nodes of a unit in the order of its ordinals.
fn nodes_of(scheduler: &mut Scheduler, record: &UnitRecord) -> Vec<u32> {
    scheduler.on_assign(&assignment(record, Revision(1), &all(record), 0), Millis(0));
    let decisions = scheduler.step(Millis(0), 100_000).decisions;
    let mut nodes = BTreeMap::new();
    for group in decisions.iter().flat_map(|decision| &decision.groups) {
        nodes.extend(group.ordinals.iter().zip(&group.nodes).map(|(ordinal, node)| (*ordinal, node.0)));
    }
    nodes.into_values().collect()
}

#[test]
fn consecutive_ordinals_are_in_one_rack_and_on_one_node() {
    let topology = UnitTopology {
        required: "zone".to_owned(),
        preferred: vec!["rack".to_owned()],
        ..UnitTopology::default()
    };
    // More than one rack holds.
    let mut record = unit(1, 12, 12, Demand { requests: resources(1_000, 1), ..Demand::default() })
        .profile("least-allocated");
    record.spec.topology = topology;
    let nodes = nodes_of(&mut two_racks(), &record);
    assert_eq!(nodes.len(), 12);
    let changes = |of: &dyn Fn(u32) -> u32| nodes.windows(2).filter(|two| of(two[0]) != of(two[1])).count();
    assert_eq!(changes(&|node| node % 2), 1, "each rack once: {nodes:?}");
    let n_nodes = nodes.iter().collect::<BTreeSet<_>>().len();
    assert_eq!(changes(&|node| node), n_nodes - 1, "each node once: {nodes:?}");
}

/// Runs a unit of one replica on node 1, has it end and come back, and returns where it goes.
fn second_node(class: WorkloadClass) -> u32 {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for (id, cpu) in [(1, 2_000), (2, 8_000)] {
        scheduler.picture.cluster.nodes_mut().put_spec(node_spec(id), Revision(1));
        scheduler
            .picture
            .cluster
            .nodes_mut()
            .put_report(node_report(id, resources(cpu, 8), 0, ""), Revision(1));
    }
    let record = unit(1, 1, 1, Demand { requests: resources(1_000, 1), ..Demand::default() })
        .class(class)
        .profile("least-allocated");
    let bind = Bind {
        demand: Arc::new(record.spec.task_groups[0].template.demand.clone()),
        ordinals: vec![0],
        nodes: vec![NodeId(1)],
        ..Bind::default()
    };
    let stopped = Statuses {
        ordinals: vec![0],
        incarnations: vec![0],
        phases: vec![Phase::Stopped],
        exit_codes: vec![0],
        restarts: vec![0],
        ends: Vec::new(),
    };
    let again = Requeue { ordinals: vec![0], incarnations: vec![1], anew: false };
    let changes = [RunChange::Bind(bind), RunChange::Statuses(stopped), RunChange::Requeue(again)];
    for (revision, change) in (2..).zip(&changes) {
        scheduler.picture.cluster.apply_rows(UnitId(1), change, Revision(revision), 0);
    }
    let wanted = [ReplicaId { ordinal: 0, incarnation: 1 }];
    scheduler.on_assign(&assignment(&record, Revision(1), &wanted, 0), Millis(0));
    let decisions = scheduler.step(Millis(0), 10).decisions;
    decisions[0].groups[0].nodes[0].0
}

#[test]
fn a_stateful_replica_goes_back_to_its_node() {
    assert_eq!(second_node(WorkloadClass::Stateful), 1);
    assert_eq!(second_node(WorkloadClass::Service), 2, "it goes to the emptier one");
}
