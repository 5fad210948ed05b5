//! Replicas of services on nodes that differ, and how many running units a node takes.

use godel_domain::running_units::Statuses;

use super::*;

const GIB: i64 = 1 << 30;

fn scheduler(nodes: &[NodeReport]) -> Scheduler {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for report in nodes {
        scheduler.picture.cluster.nodes_mut().put_spec(node_spec(report.id.0), Revision(1));
        scheduler.picture.cluster.nodes_mut().put_report(report.clone(), Revision(1));
    }
    scheduler
}

fn of_class(class: WorkloadClass, id: u64, replicas: u32, requests: Resources) -> UnitRecord {
    unit(id, replicas, 1, Demand { requests, devices: Vec::new(), host_ports: Vec::new(), zones: None })
        .class(class)
        .profile("")
}

/// Replicas by node once all of it is placed that finds a place.
fn placed(scheduler: &mut Scheduler, record: &UnitRecord) -> BTreeMap<u32, usize> {
    scheduler.on_assign(&assignment(record, Revision(1), &all(record), 0), Millis(0));
    let mut counts = BTreeMap::new();
    for decision in scheduler.step(Millis(0), 100_000).decisions {
        for node in decision.groups.iter().flat_map(|group| &group.nodes) {
            *counts.entry(node.0).or_default() += 1;
        }
    }
    counts
}

/// Nodes of 32 CPU, but for one that is twenty times as large.
fn unlike(n_nodes: u32) -> Vec<NodeReport> {
    let times = |id| if id == 7 { 20 } else { 1 };
    let report = |id| node_report(id, resources(times(id) * 32_000, times(id) * 128 * GIB), 0, "");
    (1..=n_nodes).map(report).collect()
}

#[test]
fn replicas_of_a_service_go_to_different_nodes() {
    for (class, n_nodes) in
        [(WorkloadClass::Service, 5), (WorkloadClass::Stateful, 5), (WorkloadClass::Stream, 1)]
    {
        let mut scheduler = scheduler(&unlike(40));
        let counts = placed(&mut scheduler, &of_class(class, 1, 5, resources(500, GIB)));
        assert_eq!(counts.len(), n_nodes, "{class:?}: {counts:?}");
    }
}

#[test]
fn a_much_better_node_takes_several_replicas() {
    let nodes = [
        node_report(1, resources(100_000, 100 * GIB), 0, ""),
        node_report(2, resources(4_000, 4 * GIB), 0, ""),
    ];
    let counts =
        placed(&mut scheduler(&nodes), &of_class(WorkloadClass::Service, 1, 6, resources(2_000, 2 * GIB)));
    assert_eq!(counts, [(1, 5), (2, 1)].into());
}

#[test]
fn replicas_without_requests_are_spread_evenly() {
    let nodes: Vec<_> = (1..=5).map(|id| node_report(id, resources(4_000, 64 * GIB), 0, "")).collect();
    let mut scheduler = scheduler(&nodes);
    let counts = placed(&mut scheduler, &of_class(WorkloadClass::Service, 1, 50, Resources::default()));
    assert_eq!(counts, (1..=5).map(|id| (id, 10)).collect());
    // Far beyond what their nominal requests fill: by count.
    let counts = placed(&mut scheduler, &of_class(WorkloadClass::Service, 2, 500, Resources::default()));
    assert!(counts.values().all(|n| (99..=101).contains(n)), "{counts:?}");
}

#[test]
fn work_without_requests_counts_a_little_in_scores() {
    // Of many units of one replica each no unit spreads by itself.
    let nodes: Vec<_> = (1..=4).map(|id| node_report(id, resources(4_000, 64 * GIB), 0, "")).collect();
    let mut scheduler = scheduler(&nodes);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for id in 1..=40 {
        let of_unit = placed(&mut scheduler, &of_class(WorkloadClass::Service, id, 1, Resources::default()));
        of_unit.into_iter().for_each(|(node, n)| *counts.entry(node).or_default() += n);
    }
    assert!(counts.len() == 4 && counts.values().all(|n| (5..=15).contains(n)), "{counts:?}");
}

#[test]
fn a_replica_that_comes_back_goes_where_its_unit_is_not() {
    let nodes: Vec<_> = (1..=6).map(|id| node_report(id, resources(64_000, 64 * GIB), 0, "")).collect();
    let mut scheduler = scheduler(&nodes);
    let record = of_class(WorkloadClass::Service, 1, 6, resources(100, GIB));
    assert_eq!(placed(&mut scheduler, &record).len(), 6);
    let bind = Bind {
        demand: Arc::new(record.spec.task_groups[0].template.demand.clone()),
        ordinals: (0..6).collect(),
        nodes: (1..=6).map(NodeId).collect(),
        ..Bind::default()
    };
    scheduler.load(&Change::Rows(record.id, RunChange::Bind(bind)), Revision(2), 1, Millis(0));
    for other in 2..=4 {
        placed(&mut scheduler, &of_class(WorkloadClass::Service, other, 3, resources(100, GIB)));
    }
    // The one on node 4 has ended, and is wanted again; node 4 is the only one without a replica.
    let ended = Statuses { ordinals: vec![3], phases: vec![Phase::Stopped], ..Statuses::default() };
    scheduler.load(&Change::Rows(record.id, RunChange::Statuses(ended)), Revision(3), 1, Millis(0));
    let again =
        godel_domain::running_units::Requeue { ordinals: vec![3], incarnations: vec![1], anew: false };
    scheduler.load(&Change::Rows(record.id, RunChange::Requeue(again)), Revision(4), 1, Millis(0));
    scheduler.on_assign(&assignment(&record, Revision(4), &replicas(&[(3, 1)]), 0), Millis(0));
    let decisions = scheduler.step(Millis(0), 100).decisions;
    assert_eq!(decisions[0].groups[0].nodes, [NodeId(4)]);
}

#[test]
fn a_node_takes_no_more_running_units_than_it_says() {
    let most = |id, max_running_units| NodeReport {
        max_running_units,
        ..node_report(id, resources(64_000, 64 * GIB), 0, "")
    };
    let mut scheduler = scheduler(&[most(1, 3), most(2, 4), most(3, 0)]);
    for (id, requests) in [(1, Resources::default()), (2, resources(10, GIB))] {
        let spec = of_class(WorkloadClass::Batch, id, 5, requests);
        let counts = placed(&mut scheduler, &spec);
        assert_eq!(counts.values().sum::<usize>(), if id == 1 { 5 } else { 2 }, "{counts:?}");
        assert!(!counts.contains_key(&3));
    }
    let plan = scheduler.plan(&of_class(WorkloadClass::Batch, 3, 1, Resources::default()).spec);
    let refusals = plan.refusals.unwrap();
    assert_eq!(refusals.reasons[0].reason, "insufficient running-units");
    assert!(refusals.nearest_miss.ends_with("lacks running-units (0 free of 1 asked)"), "{refusals:?}");
}
