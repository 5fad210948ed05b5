//! Plans as movements have them: with batches, reasons, and only what can be made.

use std::time::Duration;

use godel_base::{ids::UnitId, resources::CPU, time::Millis};
use godel_domain::{allocation::DeviceSet, unit::WorkloadClass};

use super::clusters::{demand, node, running, unit};
use crate::{
    binpack::Binpack,
    config::{PolicyConfig, PolicyScope, RescheduleConfig, RescheduleKind},
    eligibility::MoveLog,
    filters::NodeFilters,
    layout::Layout,
    movement::MovePhase,
    planning::{OrderedPlan, PlanFault, PlanTerms, plan_policy, plan_room},
    referee::PlanBound,
    room::{GangPart, WaitingGang},
    snapshot::{BudgetRoom, ClusterSnapshot},
    trigger::Trigger,
};

fn config() -> RescheduleConfig {
    let pack = PolicyConfig {
        kind: RescheduleKind::Binpack(Binpack { use_max: 1.0, ends_within_ms: 0 }),
        enabled: true,
        dry_run: false,
        triggers: vec![Trigger::Request],
        scope: PolicyScope::default(),
        checked_by: std::collections::BTreeSet::new(),
        moved_max_percent: 100,
    };
    RescheduleConfig { policies: [("pack".to_owned(), pack)].into(), ..RescheduleConfig::default() }
}

/// Replicas of one service, one on each of the first nodes.
fn spread(n_nodes: usize, cpu: i64) -> ClusterSnapshot {
    ClusterSnapshot {
        now: Millis(1_000_000),
        nodes: (0..n_nodes).map(|at| node(at, 0)).collect(),
        units: vec![unit(0, WorkloadClass::Service)],
        running: (0..n_nodes)
            .map(|at| running(0, u32::try_from(at).unwrap(), at, demand(cpu, 0, 0)))
            .collect(),
        ..ClusterSnapshot::default()
    }
}

const ALL: usize = 1_000;

fn plan(snapshot: &ClusterSnapshot, log: &MoveLog, fixed: &[bool], n_moves_max: usize) -> OrderedPlan {
    let terms = PlanTerms { log, fixed, n_moves_max, seed: 1, bound_within: None };
    plan_policy(&config(), "pack", snapshot, &NodeFilters, terms).unwrap()
}

#[test]
fn a_plan_has_batches_reasons_and_its_objective() {
    let snapshot = spread(4, 1_000);
    let plan = plan(&snapshot, &MoveLog::default(), &[], ALL);
    assert_eq!((plan.moves.len(), plan.n_batches, plan.objective), (3, 1, (4.0, 1.0)));
    for one in &plan.moves {
        assert_eq!(
            (one.unit.as_str(), one.phase, one.id.replica.incarnation),
            ("unit-0", MovePhase::Waiting, 0)
        );
        assert_ne!(one.from, one.to);
        let reason = &one.reason;
        assert!([&reason.why_unit, &reason.why_node, &reason.why_now].iter().all(|why| !why.is_empty()));
    }
    assert_eq!(plan.cost_ms(), 30);
}

#[test]
fn a_bound_is_reported_beside_the_same_moves() {
    let snapshot = spread(4, 5_000);
    let terms =
        PlanTerms { log: &MoveLog::default(), fixed: &[], n_moves_max: ALL, seed: 1, bound_within: None };
    let plan = |bound_within| {
        let terms = PlanTerms { bound_within, ..terms };
        plan_policy(&config(), "pack", &snapshot, &NodeFilters, terms).unwrap()
    };
    let (without, with) = (plan(None), plan(Some(Duration::from_secs(60))));
    // Three fit on one node.
    assert_eq!((with.objective, without.bound), ((4.0, 2.0), None));
    assert_eq!(with.bound, Some(PlanBound { value: 2.0, is_exact: true }));
    assert_eq!(OrderedPlan { bound: None, ..with }, without);
}

#[test]
fn a_budget_spreads_moves_over_batches_or_forbids_them() {
    let mut snapshot = spread(4, 1_000);
    let members = snapshot.running.iter().map(|one| one.id).collect();
    snapshot.budgets = vec![BudgetRoom { name: "web".to_owned(), allowed: 1, members }];
    let one_by_one = plan(&snapshot, &MoveLog::default(), &[], ALL);
    assert_eq!((one_by_one.n_batches, one_by_one.n_batches_min), (3, 3));
    let batches: Vec<u32> = one_by_one.moves.iter().map(|one| one.batch).collect();
    assert_eq!(batches, [0, 1, 2]);
    snapshot.budgets[0].allowed = 0;
    let forbidden = plan(&snapshot, &MoveLog::default(), &[], ALL);
    assert_eq!((forbidden.moves.len(), forbidden.n_impossible > 0), (0, true));
    assert_eq!(forbidden.objective, (4.0, 4.0));
}

#[test]
fn what_is_fixed_and_what_has_moved_enough_stays() {
    let snapshot = spread(4, 1_000);
    let fixed = plan(&snapshot, &MoveLog::default(), &[true; 4], ALL);
    assert!(fixed.moves.is_empty());
    assert!(plan(&snapshot, &MoveLog::default(), &[], 2).moves.len() <= 2);
    let mut log = MoveLog::default();
    (0..10).for_each(|_| log.note(UnitId(1), Millis(999_999)));
    let moved = plan(&snapshot, &log, &[], ALL);
    assert!(moved.moves.is_empty());
    assert!(moved.refusals.iter().any(|(why, n)| why.contains("rate") && *n > 0), "{:?}", moved.refusals);
}

#[test]
fn a_policy_that_is_not_there_has_no_plan() {
    let log = MoveLog::default();
    let terms = PlanTerms { log: &log, fixed: &[], n_moves_max: ALL, seed: 1, bound_within: None };
    let wrong = plan_policy(&config(), "pac", &spread(1, 1), &NodeFilters, terms);
    assert_eq!(wrong, Err(PlanFault::NoPolicy("pac".to_owned())));
}

#[test]
fn room_is_made_for_a_gang_by_the_cheapest_moves() {
    // Two nodes, each half taken: a member that needs a whole node fits after one move.
    let snapshot = spread(2, 8_000);
    let gang = |n_members| {
        let part = GangPart { demand: demand(16_000, 0, 0), n_members, level: None, limits: Vec::new() };
        WaitingGang { parts: vec![part], within: None }
    };
    let log = MoveLog::default();
    let terms = PlanTerms { log: &log, fixed: &[], n_moves_max: ALL, seed: 1, bound_within: None };
    let room = |n| plan_room(&config(), &gang(n), &snapshot, &NodeFilters, terms).unwrap();
    let plan = room(1);
    assert_eq!((plan.moves.len(), plan.n_batches), (1, 1), "{plan:?}");
    // The layout after the moves has room for it.
    let layout = Layout::new(&snapshot).unwrap();
    let freed = layout.nodes().find(|at| layout.node(*at).id == plan.moves[0].from.0).unwrap();
    assert_eq!(layout.node(freed).capacity.get(CPU), 16_000);
    assert_eq!(plan.moves[0].devices, DeviceSet::NONE);
    let none = room(2);
    assert!(none.moves.is_empty() && none.finding.contains("no moves"), "{none:?}");
    let fixed = PlanTerms { fixed: &[true, true], ..terms };
    assert!(plan_room(&config(), &gang(1), &snapshot, &NodeFilters, fixed).unwrap().moves.is_empty());
}
