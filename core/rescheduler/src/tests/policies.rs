//! What holds of every policy on any cluster.

use godel_domain::label_expression::LabelExpression;
use proptest::prelude::*;

use super::clusters::{Size, assert_room, demand, node, random, running, settled, unit};
use crate::{
    Aim, Binpack, CheckedBy, ClusterSnapshot, Colocation, Defragmentation, EPSILON, FailureDomainSpread,
    GangPart, Layout, LoadBalance, MoveRefusals, NodeFilters, NodeIdx, PlanLimits, Policy, ReschedulePlan,
    RunIdx, TypicalDemand, WaitingGang, let_in, make_plan,
};
use godel_domain::unit::WorkloadClass;

fn typical() -> Vec<TypicalDemand> {
    vec![
        TypicalDemand { demand: demand(500, 1, 500), weight: 2.0 },
        TypicalDemand { demand: demand(2_000, 2, 1_000), weight: 1.0 },
        TypicalDemand { demand: demand(500, 0, 1_000), weight: 1.0 },
    ]
}

fn policies() -> Vec<Box<dyn Policy>> {
    let room = |n_copies, level: Option<&str>| Aim::Room {
        demand: demand(1_000, 4, 1_000),
        n_copies,
        level: level.map(str::to_owned),
        n_enough: None,
        n_moves_each_max: None,
    };
    vec![
        Box::new(Colocation { n_steps_each: 60, ..Colocation::default() }),
        Box::new(LoadBalance::default()),
        Box::new(FailureDomainSpread { level: Some("rack".to_owned()), n_domains: 3 }),
        Box::new(Binpack { use_max: 0.9, ends_within_ms: 0 }),
        Box::new(Defragmentation { aim: room(1, None), typical: typical() }),
        Box::new(Defragmentation { aim: room(2, Some("rack")), typical: typical() }),
        Box::new(Defragmentation { aim: Aim::Rate { n_steps_each: 60, rate_max: 0.0 }, typical: typical() }),
    ]
}

const SIZE: Size = Size { n_nodes: 9, n_units: 8, n_running: 45, has_shares: true };

/// The layout after a plan, made from the plan alone.
fn after<'a>(layout: &Layout<'a>, plan: &ReschedulePlan) -> Layout<'a> {
    let mut after = layout.clone();
    after.apply(&plan.moves);
    after
}

fn value(policy: &dyn Policy, snapshot: &ClusterSnapshot) -> (f64, f64) {
    let mut layout = Layout::new(snapshot).unwrap();
    let goal = policy.goal(&mut layout);
    (goal.value(), goal.bound())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Of every policy with every other one as its check: it does not worsen its own objective nor the other's bound, it says
    /// what its objective really is, and what it plans has room, a reason, and is within its limits.
    #[test]
    fn no_plan_worsens_its_own_goal_or_a_checking_one(seed: u64, n_moves_max in 0usize..30) {
        let snapshot = random(seed, SIZE);
        let layout = Layout::new(&snapshot).unwrap();
        let all = policies();
        for (at, policy) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate().filter(|(other_at, _)| *other_at != at) {
                let limits = PlanLimits { seed, ..PlanLimits::of_moves(n_moves_max) };
                let checks = [CheckedBy { policy: &**other }];
                let plan = make_plan(&**policy, &layout, &checks, &NodeFilters, &limits);
                let after = after(&layout, &plan);
                assert_room(&after);
                let settled = settled(&after);
                let (own, _) = value(&**policy, &settled);
                let (_, bound) = value(&**other, &settled);
                let (_, bound_before) = value(&**other, &snapshot);
                let pair = format!("{at} {} checked by {other_at} {}", policy.name(), other.name());
                prop_assert!((own - plan.after).abs() < 1e-6, "{pair}: {own} is not {}", plan.after);
                prop_assert!(plan.after <= plan.before + EPSILON, "{pair}: {plan}");
                prop_assert!(bound <= bound_before + 1e-6, "{pair}: {bound_before} -> {bound}");
                prop_assert!(plan.moves.len() <= n_moves_max, "{pair}: {plan}");
                prop_assert_eq!(plan.moves.is_empty(), plan.after > plan.before - EPSILON, "{}: {}", pair, plan);
                for one in &plan.moves {
                    let reason = &one.reason;
                    let has_all = ![&reason.why_unit, &reason.why_node, &reason.why_now].iter().any(|text| text.is_empty());
                    prop_assert!(has_all && !reason.numbers.is_empty(), "{pair}: {reason:?}");
                    prop_assert_ne!(one.from, one.to);
                }
            }
        }
    }

    /// What a goal says that a move changes is what it changes, however many moves were made before.
    #[test]
    fn goals_follow_every_move_and_its_undoing(seed: u64, steps in proptest::collection::vec((0usize..45, 0usize..9), 1..40)) {
        let snapshot = random(seed, SIZE);
        for policy in policies() {
            let mut layout = Layout::new(&snapshot).unwrap();
            let mut goal = policy.goal(&mut layout);
            let mut trail = Vec::new();
            for (unit, to) in &steps {
                let (unit, to) = (RunIdx::at(unit % layout.n_running().max(1)), NodeIdx::at(*to));
                let from = layout.node_of(unit);
                if from == to || !layout.has_room(unit, to) {
                    continue;
                }
                let (before, change) = (goal.value(), goal.change(&layout, unit, to));
                trail.push((layout.mark(), before));
                prop_assert!(layout.relocate(unit, to));
                goal.on_moved(&layout, unit, from, to);
                // Clamped at zero, a value may change by less.
                let differs = (goal.value() - before - change).abs();
                prop_assert!(differs < 1e-6, "{}: {before} {change} {}", policy.name(), goal.value());
            }
            let (fresh, _) = value(&*policy, &settled(&layout));
            prop_assert!((fresh - goal.value()).abs() < 1e-6, "{}: {fresh} {}", policy.name(), goal.value());
            for (mark, before) in trail.into_iter().rev() {
                while let Some(undone) = layout.undo_one(mark) {
                    if let Some((unit, at)) = undone {
                        goal.on_moved(&layout, unit, at, layout.node_of(unit));
                    }
                }
                prop_assert!((goal.value() - before).abs() < 1e-6, "{}", policy.name());
            }
        }
    }

    /// The same input gives the same plan.
    #[test]
    fn equal_input_gives_equal_plans(seed: u64) {
        let snapshot = random(seed, SIZE);
        let layout = Layout::new(&snapshot).unwrap();
        for policy in policies() {
            let limits = PlanLimits { seed, ..PlanLimits::of_moves(20) };
            let plan = || make_plan(&*policy, &layout, &[], &NodeFilters, &limits);
            prop_assert_eq!(plan(), plan());
        }
    }

    /// What is protected, out of scope or moved as often as it may be stays.
    #[test]
    fn protected_units_and_rates_are_kept(seed: u64) {
        let snapshot = random(seed, SIZE);
        let layout = Layout::new(&snapshot).unwrap();
        let movable: Vec<bool> = layout.running().map(|unit| unit.idx() % 3 != 0).collect();
        let in_scope: Vec<bool> = layout.nodes().map(|node| node.idx() != 4).collect();
        let limits = PlanLimits { movable, in_scope, owner_left: vec![1; snapshot.units.len()], ..PlanLimits::of_moves(30) };
        for policy in policies() {
            let plan = make_plan(&*policy, &layout, &[], &NodeFilters, &limits);
            let after = after(&layout, &plan);
            for one in &plan.moves {
                prop_assert!(one.unit.idx() % 3 != 0 && one.from.0.idx() != 4 && one.to.0.idx() != 4);
                prop_assert!(after.n_moved_of(after.owner(one.unit)) <= 1);
            }
        }
    }
}

/// A cluster of nodes with four GPUs, and one unit a running unit: (node, GPUs it has, milliseconds that it ran).
fn gpu_cluster(n_nodes: usize, placed: &[(usize, &[usize], u64)]) -> ClusterSnapshot {
    let mut snapshot = ClusterSnapshot {
        now: godel_base::time::Millis(10_000),
        nodes: (0..n_nodes).map(|at| node(at, 4)).collect(),
        ..ClusterSnapshot::default()
    };
    for (at, (on, gpus, ran_ms)) in placed.iter().enumerate() {
        snapshot.units.push(unit(at, WorkloadClass::Training));
        let mut one = running(at, 0, *on, demand(500, u32::try_from(gpus.len()).unwrap(), 1_000));
        one.devices = gpus.iter().copied().collect();
        one.started_at = godel_base::time::Millis(10_000 - ran_ms);
        snapshot.running.push(one);
    }
    snapshot
}

fn gang(n_members: u32, level: Option<&str>) -> WaitingGang {
    let part = GangPart {
        demand: demand(1_000, 4, 1_000),
        n_members,
        level: level.map(str::to_owned),
        limits: Vec::new(),
    };
    WaitingGang { parts: vec![part], within: None }
}

fn part(n_members: u32, n_gpus: u32, level: Option<&str>) -> GangPart {
    GangPart {
        demand: demand(100, n_gpus, 1_000),
        n_members,
        level: level.map(str::to_owned),
        limits: Vec::new(),
    }
}

/// The units that move for a gang.
fn moved_for(snapshot: &ClusterSnapshot, parts: Vec<GangPart>, within: Option<&str>) -> Option<Vec<u64>> {
    let layout = Layout::new(snapshot).unwrap();
    let gang = WaitingGang { parts, within: within.map(str::to_owned) };
    let plan = let_in(&gang, &layout, &NodeFilters, &PlanLimits::of_moves(10))?;
    Some(plan.moves.iter().map(|one| one.id.unit.0).collect())
}

#[test]
fn parts_of_a_gang_do_not_count_the_same_room_twice() {
    // Racks of two nodes with four devices each. Node 0 is free; each of the others has one device taken.
    let snapshot = gpu_cluster(4, &[(1, &[0], 100), (2, &[0], 5_000), (3, &[0], 9_000)]);
    // One part of a whole node has room. The second one needs another node, where the youngest work leaves; it goes where no whole node is lost.
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None)], None), None);
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None); 2], None), Some(vec![1]));
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None), part(2, 1, None)], None), None);
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None); 4], None), None, "nobody has anywhere to go");
}

#[test]
fn all_parts_of_a_gang_go_to_one_domain_if_they_have_to() {
    // Rack a has nodes 0 and 1, rack b nodes 2 and 3.
    let mut snapshot = gpu_cluster(4, &[(0, &[0], 5_000), (2, &[0], 100), (3, &[0], 200)]);
    for node in &mut snapshot.nodes {
        node.labels.insert("host".to_owned(), node.name.clone());
    }
    // Node 1 is free, but only in rack b are two nodes cheap to clear: each part is a whole node.
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None); 2], None), Some(vec![2]));
    assert_eq!(moved_for(&snapshot, vec![part(1, 4, None); 2], Some("rack")), Some(vec![2, 3]));
    // Two segments of two replicas, each on one machine, all in one rack.
    assert_eq!(moved_for(&snapshot, vec![part(2, 2, Some("host")); 2], Some("rack")), Some(vec![2, 3]));
}

#[test]
fn a_gang_gets_in_by_the_cheapest_moves() {
    // Each node could be cleared for one member; the youngest work loses least.
    let snapshot = gpu_cluster(4, &[(0, &[0], 5_000), (1, &[0], 100), (2, &[0], 900), (3, &[0, 1], 200)]);
    let layout = Layout::new(&snapshot).unwrap();
    let plan = let_in(&gang(2, None), &layout, &NodeFilters, &PlanLimits::of_moves(10)).unwrap();
    let moved: Vec<u64> = plan.moves.iter().map(|one| one.id.unit.0).collect();
    assert_eq!((moved, plan.cost_ms()), (vec![2, 4], 100 + 200 + 2 * 10));
    // In one rack, only nodes 0 and 1, or 2 and 3, will do: the latter are cheaper.
    let plan = let_in(&gang(2, Some("rack")), &layout, &NodeFilters, &PlanLimits::of_moves(10)).unwrap();
    let moved: Vec<u64> = plan.moves.iter().map(|one| one.id.unit.0).collect();
    assert_eq!((moved, plan.cost_ms()), (vec![3, 4], 900 + 200 + 2 * 10));
}

#[test]
fn a_gang_that_fits_or_cannot_fit_moves_nothing() {
    let free = gpu_cluster(3, &[(0, &[0], 1)]);
    let full = gpu_cluster(2, &[(0, &[0, 1, 2], 1), (1, &[0, 1], 1)]);
    for (snapshot, n_members) in [(free, 2), (full, 1)] {
        let layout = Layout::new(&snapshot).unwrap();
        assert_eq!(let_in(&gang(n_members, None), &layout, &NodeFilters, &PlanLimits::of_moves(9)), None);
    }
}

#[test]
fn a_checkpoint_makes_a_move_cheaper() {
    let mut snapshot = gpu_cluster(3, &[(0, &[0], 5_000), (1, &[0], 1_000), (2, &[0, 1, 2], 9_000)]);
    let moved = |snapshot: &ClusterSnapshot| {
        let layout = Layout::new(snapshot).unwrap();
        let plan = let_in(&gang(1, None), &layout, &NodeFilters, &PlanLimits::of_moves(9)).unwrap();
        plan.moves.iter().map(|one| one.id.unit.0).collect::<Vec<_>>()
    };
    assert_eq!(moved(&snapshot), [2]);
    snapshot.running[0].checkpoint_at = Some(godel_base::time::Millis(9_999));
    assert_eq!(moved(&snapshot), [1]);
}

#[test]
fn what_can_go_elsewhere_makes_room_for_a_replica() {
    // Two racks of two nodes with sixteen cores each: unit, node, cores. Unit 0 has two replicas in one rack. On node 2, a replica of unit 1 is cheaper
    // to move than units 2 and 3 together, but its unit has the other one in the only other rack.
    let placed = [
        (0, 0, 4),
        (0, 0, 4),
        (1, 0, 4),
        (4, 0, 4),
        (5, 1, 12),
        (1, 2, 4),
        (2, 2, 2),
        (3, 2, 2),
        (6, 2, 8),
        (7, 3, 16),
    ];
    let mut snapshot = ClusterSnapshot {
        nodes: (0..4).map(|at| node(at, 0)).collect(),
        units: (0..8).map(|at| unit(at, WorkloadClass::Service)).collect(),
        ..ClusterSnapshot::default()
    };
    for (ordinal, (owner, on, cores)) in (0..).zip(placed) {
        snapshot.running.push(running(owner, ordinal, on, demand(1_000 * cores, 0, 1_000)));
    }
    let layout = Layout::new(&snapshot).unwrap();
    let policy = FailureDomainSpread { level: Some("rack".to_owned()), n_domains: 2 };
    let movable = layout.running().map(|unit| layout.owner(unit).idx() < 4).collect();
    let limits = PlanLimits { movable, ..PlanLimits::of_moves(9) };
    let plan = make_plan(&policy, &layout, &[], &NodeFilters, &limits);
    let moves: Vec<(u64, u32)> = plan.moves.iter().map(|one| (one.id.unit.0, one.to.1.0)).collect();
    assert_eq!((plan.before, plan.after, moves), (1.0, 0.0, vec![(1, 3), (3, 2), (4, 2)]));
}

#[test]
fn a_plan_that_is_full_tries_no_more() {
    // Each of three nodes is hot by two running units that ask for little, and has both replicas of a unit; three more are empty.
    let mut snapshot = ClusterSnapshot {
        nodes: (0..6).map(|at| node(at, 0)).collect(),
        units: (0..3).map(|at| unit(at, WorkloadClass::Service)).collect(),
        ..ClusterSnapshot::default()
    };
    for at in 0..3 {
        for ordinal in 0..2 {
            let mut one = running(at, ordinal, at, demand(500, 0, 1_000));
            one.usage.cpu_milli = 8_000;
            snapshot.running.push(one);
        }
    }
    let layout = Layout::new(&snapshot).unwrap();
    let policies: [Box<dyn Policy>; 2] =
        [Box::new(LoadBalance::default()), Box::new(FailureDomainSpread { level: None, n_domains: 2 })];
    for policy in policies {
        let plan = |n_max| make_plan(&*policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(n_max));
        assert_eq!(plan(9).moves.len(), 3, "{}", policy.name());
        let full = plan(1);
        assert_eq!((full.moves.len(), full.refusals), (1, MoveRefusals::default()), "{}", policy.name());
    }
}

#[test]
fn hot_nodes_cool_and_nothing_becomes_hot() {
    let mut snapshot = gpu_cluster(3, &[(0, &[], 0), (0, &[], 0), (0, &[], 0), (1, &[], 0), (2, &[], 0)]);
    for (at, cpu_milli) in [(0, 6_000), (1, 6_000), (2, 3_000), (3, 12_000), (4, 5_000)] {
        snapshot.running[at].usage.cpu_milli = cpu_milli;
    }
    let layout = Layout::new(&snapshot).unwrap();
    let policy = LoadBalance::default();
    let plan = make_plan(&policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(9));
    let moves: Vec<(u64, u32)> = plan.moves.iter().map(|one| (one.id.unit.0, one.to.1.0)).collect();
    // The smallest that cools its node, to the node that stays calm.
    assert_eq!((moves, plan.after), (vec![(3, 3)], 0.0));
    // One unit that is hot alone stays where it is.
    snapshot.running[0].usage.cpu_milli = 15_000;
    snapshot.running.truncate(1);
    let layout = Layout::new(&snapshot).unwrap();
    let [cpu, _] = policy.hot_nodes(&layout);
    assert_eq!((cpu.hot, cpu.alone), (0, 1));
    assert!(make_plan(&policy, &layout, &[], &NodeFilters, &PlanLimits::of_moves(9)).moves.is_empty());
}

#[test]
fn nodes_that_do_not_accept_and_other_sub_clusters_get_nothing() {
    let mut snapshot = gpu_cluster(3, &[(0, &[0], 1), (1, &[0], 1)]);
    snapshot.nodes[1].accepts = false;
    snapshot.nodes[2].sub_cluster = "other".to_owned();
    let layout = Layout::new(&snapshot).unwrap();
    assert_eq!(
        let_in(&gang(1, None), &layout, &NodeFilters, &PlanLimits::of_moves(9)).map(|plan| plan.moves),
        None
    );
}

#[test]
fn the_scope_and_protection_of_a_policy_become_limits() {
    use crate::{
        MoveLog, MoveRate, PolicyConfig, PolicyScope, Protection, RescheduleKind, Trigger, limits_of,
    };
    let mut snapshot = gpu_cluster(3, &[(0, &[0], 1), (1, &[0], 1), (2, &[0], 1)]);
    snapshot.units[0].queue = "batch".to_owned();
    snapshot.units[1].labels.insert("pinned".to_owned(), "yes".to_owned());
    let layout = Layout::new(&snapshot).unwrap();
    let policy = PolicyConfig {
        kind: RescheduleKind::Binpack(Binpack::default()),
        enabled: true,
        dry_run: false,
        triggers: vec![Trigger::Request],
        scope: PolicyScope { node_labels: vec![LabelExpression::is("rack", "r0")], ..PolicyScope::default() },
        checked_by: std::collections::BTreeSet::new(),
        moved_max_percent: 100,
    };
    let protection =
        Protection { labels: vec![LabelExpression::is("pinned", "yes")], ..Protection::default() };
    let mut log = MoveLog::default();
    log.note(snapshot.units[0].id, snapshot.now);
    let limits =
        limits_of(&layout, &policy, &protection, MoveRate { n_moves_max: 1, within_ms: 10 }, &log, 3);
    assert_eq!(limits.in_scope, [true, true, false]);
    assert_eq!(limits.movable, [true, false, true]);
    assert_eq!((limits.owner_left, limits.n_moves_max), (vec![0, 1, 1], 1));
    let mut scoped = policy;
    scoped.scope.queues.insert("batch".to_owned());
    let limits = limits_of(&layout, &scoped, &protection, MoveRate::default(), &log, 3);
    assert_eq!(limits.movable, [true, false, false]);
}
