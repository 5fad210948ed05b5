//! The example of `docs/policy-author.md` compiles and does what the text says.

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    resources::{CPU, Resources},
    time::Millis,
};
use godel_core_rescheduler::{
    ClusterSnapshot, Layout, MeasuredUse, NodeFacts, NodeFilters, PlanLimits, RunningFacts, UnitFacts,
    make_plan, order_moves,
};
use godel_domain::{allocation::DeviceSet, demand::Demand, unit::WorkloadClass};

use crate::vacate::Vacate;

#[allow(unreachable_pub, reason = "the example is as a file of the crate would be")]
mod vacate;

const NODE_CPU: i64 = 4_000;

fn cpus(milli: i64) -> Resources {
    Resources::new([(CPU, milli)]).expect("the amount is not negative")
}

fn node(id: u32, label: Option<&str>) -> NodeFacts {
    NodeFacts {
        id: NodeId(id),
        name: format!("n{id}"),
        capacity: cpus(NODE_CPU),
        labels: label.map(|label| (label.to_owned(), "yes".to_owned())).into_iter().collect(),
        accepts: true,
        ..NodeFacts::default()
    }
}

fn unit(id: u64, class: WorkloadClass) -> UnitFacts {
    let name = format!("u{id}");
    UnitFacts::new(UnitId(id), name, class, 10)
}

fn running(unit: u64, ordinal: u32, node: u32, cpu: i64) -> RunningFacts {
    RunningFacts {
        id: RunningUnitId::new(UnitId(unit), ordinal, 0),
        node: NodeId(node),
        demand: Demand { requests: cpus(cpu), ..Demand::default() },
        devices: DeviceSet::NONE,
        started_at: Millis(0),
        checkpoint_at: None,
        ends_at: None,
        usage: MeasuredUse::default(),
        kept: None,
    }
}

/// Node 1 is to become empty: it has a service, a daemon and something that fits nowhere else. Of the others node 3 has most.
fn snapshot() -> ClusterSnapshot {
    let classes =
        [WorkloadClass::Service, WorkloadClass::Daemon, WorkloadClass::Service, WorkloadClass::Service];
    ClusterSnapshot {
        now: Millis(1_000),
        nodes: vec![node(1, Some("leaves")), node(2, None), node(3, None)],
        units: (1..).zip(classes).map(|(id, class)| unit(id, class)).collect(),
        running: vec![
            running(1, 0, 1, 500),
            running(2, 0, 1, 100),
            running(3, 0, 1, 3_000),
            running(4, 0, 2, 1_500),
            running(4, 1, 3, 1_000),
            running(4, 2, 3, 500),
        ],
        ..ClusterSnapshot::default()
    }
}

#[test]
fn a_node_with_the_label_becomes_empty() {
    let policy = Vacate { label: "leaves".to_owned() };
    let snapshot = snapshot();
    let layout = Layout::new(&snapshot).unwrap();
    let plan = make_plan(&policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(10));
    assert_eq!((plan.before, plan.after), (2.0, 1.0), "the daemon does not count, and 3 cores fit nowhere");
    assert_eq!(plan.finding, "2 running units are on nodes with the label `leaves`");
    let moves: Vec<_> = plan.moves.iter().map(|one| (one.id.unit, one.from.1, one.to.1)).collect();
    assert_eq!(moves, [(UnitId(1), NodeId(1), NodeId(3))], "the node with most running units");
    let reason = &plan.moves[0].reason;
    assert!(reason.why_unit.contains("`n1`") && reason.why_node.contains("`n3`"), "{reason:?}");
    assert_eq!(reason.why_now, plan.finding);
    assert_eq!(order_moves(&layout, &plan.moves, &NodeFilters).batches.len(), 1);

    // A plan for what the moves make of it is empty.
    let mut after = snapshot.clone();
    after.running[0].node = NodeId(3);
    let layout = Layout::new(&after).unwrap();
    let again = make_plan(&policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(10));
    assert!(again.moves.is_empty() && again.before == again.after, "{again:?}");
}

#[test]
fn nothing_is_wrong_without_the_label() {
    let policy = Vacate { label: "other".to_owned() };
    let snapshot = snapshot();
    let layout = Layout::new(&snapshot).unwrap();
    let plan = make_plan(&policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(10));
    assert!(plan.moves.is_empty() && plan.before == 0.0, "{plan:?}");
}

#[test]
fn the_document_shows_this_example() {
    let document = include_str!("../../../../docs/policy-author.md");
    let example = include_str!("vacate.rs");
    assert!(
        document.contains(&format!("```rust\n{example}```\n")),
        "docs/policy-author.md shows another text"
    );
    assert!(example.lines().count() <= 100);
}
