//! Daemons: one replica to a node, on the nodes without one.

use super::*;
use godel_domain::records::Record;

/// Nodes 1 to `n` of 4 CPU; those of `full` have none free.
fn scheduler(n: u32, full: &[u32]) -> Scheduler {
    let mut scheduler = Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 7);
    for id in 1..=n {
        join(&mut scheduler, id, if full.contains(&id) { 0 } else { 4_000 });
    }
    scheduler
}

fn join(scheduler: &mut Scheduler, id: u32, cpu: i64) {
    scheduler.load(&Change::Put(Record::NodeSpec(node_spec(id))), Revision(1), 1, Millis(0));
    let report = node_report(id, resources(cpu, 1 << 30), 0, "");
    scheduler.load(&Change::Put(Record::NodeReport(report)), Revision(1), 1, Millis(0));
}

fn daemon(replicas: u32) -> UnitRecord {
    let demand =
        Demand { requests: resources(1_000, 0), devices: Vec::new(), host_ports: Vec::new(), zones: None };
    unit(1, replicas, 1, demand).class(WorkloadClass::Daemon).profile("")
}

/// Nodes of what was decided, and the reasons of what was parked.
fn step(scheduler: &mut Scheduler) -> (Vec<u32>, Vec<String>) {
    let step = scheduler.step(Millis(0), 100_000);
    let groups = step.decisions.iter().flat_map(|decision| &decision.groups);
    let mut nodes: Vec<u32> = groups.flat_map(|group| &group.nodes).map(|node| node.0).collect();
    nodes.sort_unstable();
    let refusals = step.reports.iter().filter_map(|report| report.refusals.as_ref());
    let reasons = refusals.flat_map(|refusals| &refusals.reasons);
    (nodes, reasons.map(|one| format!("{} {}: {}", one.nodes, one.plugin, one.reason)).collect())
}

#[test]
fn each_node_gets_one_replica_and_a_full_one_is_waited_for() {
    let mut scheduler = scheduler(5, &[4]);
    let record = daemon(5);
    scheduler.on_assign(&assignment(&record, Revision(1), &all(&record), 0), Millis(0));
    let (nodes, reasons) = step(&mut scheduler);
    assert_eq!(nodes, [1, 2, 3, 5]);
    assert_eq!(
        reasons,
        ["4 daemon: a replica of the unit is on the node", "1 resources-fit: insufficient cpu"]
    );
}

#[test]
fn a_replica_looks_at_the_nodes_without_one_only() {
    let mut scheduler = scheduler(60, &[]);
    let record = daemon(60);
    scheduler.on_assign(&assignment(&record, Revision(1), &all(&record), 0), Millis(0));
    assert_eq!(step(&mut scheduler).0, (1..=60).collect::<Vec<u32>>());
    let bind = Bind {
        demand: Arc::new(record.spec.task_groups[0].template.demand.clone()),
        ordinals: (0..60).collect(),
        nodes: (1..=60).map(NodeId).collect(),
        ..Bind::default()
    };
    scheduler.load(&Change::Rows(record.id, RunChange::Bind(bind)), Revision(2), 1, Millis(0));
    join(&mut scheduler, 61, 4_000);
    let before = scheduler.picture.placer.n_looked;
    let again = daemon(61);
    scheduler.on_assign(&assignment(&again, Revision(2), &replicas(&[(60, 0)]), 0), Millis(0));
    assert_eq!(step(&mut scheduler).0, [61]);
    let n_looked = scheduler.picture.placer.n_looked - before;
    assert!(n_looked <= 2, "{n_looked} nodes were looked at");
}

#[test]
fn a_plan_of_a_daemon_is_for_all_nodes() {
    let mut scheduler = scheduler(4, &[2]);
    let spec = daemon(0).spec;
    for _ in 0..2 {
        let plan = scheduler.plan(&spec);
        let mut nodes: Vec<u32> = plan.nodes.iter().map(|node| node.0).collect();
        nodes.sort_unstable();
        assert_eq!((plan.outcome, nodes, plan.unplaced), (PlanOutcome::Partly, vec![1, 3, 4], 1));
    }
}
