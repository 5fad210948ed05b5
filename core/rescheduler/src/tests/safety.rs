//! What no plan does: send too many running units to a node, take more of a unit than it can spare, move what stays, send work to a node that is
//! hot by other load, or make room that members of a gang cannot use together.

use std::collections::BTreeMap;

use godel_base::time::Millis;
use godel_domain::unit::WorkloadClass;

use super::clusters::{NODE_CPU, Size, demand, node, random, running, unit};
use crate::{
    binpack::Binpack,
    config::{PolicyConfig, PolicyScope, RescheduleConfig, RescheduleKind},
    eligibility::MoveLog,
    filters::NodeFilters,
    generator::order_moves,
    kept::KeptReason,
    layout::{Layout, NodeIdx},
    load_balance::LoadBalance,
    planning::{OrderedPlan, PlanTerms, plan_policy},
    policy::moves_of,
    room::{GangPart, MemberLimit, WaitingGang, let_in},
    search::Draws,
    snapshot::{ClusterSnapshot, MeasuredUse},
    trigger::Trigger,
    workspace::PlanLimits,
};

const SEEDS: std::ops::Range<u64> = 0..60;

fn plan(kind: RescheduleKind, snapshot: &ClusterSnapshot) -> OrderedPlan {
    let policy = PolicyConfig {
        kind,
        enabled: true,
        dry_run: false,
        triggers: vec![Trigger::Request],
        scope: PolicyScope::default(),
        checked_by: std::collections::BTreeSet::new(),
        moved_max_percent: 100,
    };
    let config =
        RescheduleConfig { policies: [("p".to_owned(), policy)].into(), ..RescheduleConfig::default() };
    let log = MoveLog::default();
    let terms = PlanTerms { log: &log, fixed: &[], n_moves_max: 1_000, seed: 1, bound_within: None };
    plan_policy(&config, "p", snapshot, &NodeFilters, terms).unwrap()
}

fn pack() -> RescheduleKind {
    RescheduleKind::Binpack(Binpack { use_max: 1.0, ends_within_ms: 0 })
}

/// Units of one replica, one on each of the first nodes.
fn one_each(n_nodes: usize) -> ClusterSnapshot {
    ClusterSnapshot {
        now: Millis(1_000_000),
        nodes: (0..n_nodes).map(|at| node(at, 0)).collect(),
        units: (0..n_nodes).map(|at| unit(at, WorkloadClass::Service)).collect(),
        running: (0..n_nodes).map(|at| running(at, 0, at, demand(1_000, 0, 0))).collect(),
        ..ClusterSnapshot::default()
    }
}

#[test]
fn a_node_is_sent_no_more_running_units_than_it_takes() {
    let mut snapshot = one_each(4);
    snapshot.nodes[0].n_running_max = Some(1);
    snapshot.nodes[1].n_running_max = Some(0);
    snapshot.nodes[2].n_running_max = Some(3);
    let packed = plan(pack(), &snapshot);
    assert_eq!(packed.objective, (4.0, 2.0), "of three on one node, and one where it is");
    for seed in SEEDS {
        let mut snapshot = random(seed, Size { n_nodes: 5, n_units: 8, n_running: 14, has_shares: false });
        let mut draws = Draws::new(seed);
        snapshot.units.iter_mut().for_each(|unit| unit.spare = u32::MAX);
        for node in &mut snapshot.nodes {
            let n_there = snapshot.running.iter().filter(|one| one.node == node.id).count();
            node.n_running_max = Some(u32::try_from(n_there + draws.below(3)).unwrap());
        }
        let plan = plan(pack(), &snapshot);
        let mut on: BTreeMap<_, i64> = BTreeMap::new();
        snapshot.running.iter().for_each(|one| *on.entry(one.node).or_default() += 1);
        for one in &plan.moves {
            *on.entry(one.from.0).or_default() -= 1;
            *on.entry(one.to.0).or_default() += 1;
        }
        for node in &snapshot.nodes {
            let n = on.get(&node.id).copied().unwrap_or(0);
            assert!(n <= i64::from(node.n_running_max.unwrap()), "seed {seed}: {n} on {}", node.name);
        }
    }
}

#[test]
fn a_batch_takes_no_more_of_a_unit_than_it_can_spare() {
    for (spare, expected) in [(1, 3), (2, 2), (3, 1), (u32::MAX, 1)] {
        let mut snapshot = one_each(4);
        snapshot.units.truncate(1);
        snapshot.units[0].spare = spare;
        for (ordinal, one) in (0..).zip(&mut snapshot.running) {
            one.id = godel_base::ids::RunningUnitId::new(snapshot.units[0].id, ordinal, 0);
        }
        let plan = plan(pack(), &snapshot);
        assert_eq!((plan.moves.len(), plan.n_batches), (3, expected), "{spare}");
        for batch in 0..plan.n_batches {
            let n = plan.moves.iter().filter(|one| one.batch == batch).count();
            assert!(n <= usize::try_from(spare).unwrap(), "{spare}: {n} in batch {batch}");
        }
    }
    let mut snapshot = one_each(2);
    snapshot.units[0].spare = 0;
    let unspared = plan(pack(), &snapshot);
    assert_eq!(unspared.kept, [(KeptReason::NotSpared.to_string(), 1)]);
    assert_eq!(unspared.moves.len(), 1, "the other one moves to it");
    assert_eq!(unspared.moves[0].to.0, snapshot.nodes[0].id);
}

#[test]
fn batches_of_random_moves_take_no_more_of_a_unit_than_it_can_spare() {
    for seed in SEEDS {
        let mut snapshot = random(seed, Size { n_nodes: 6, n_units: 3, n_running: 12, has_shares: false });
        let mut draws = Draws::new(seed);
        for unit in &mut snapshot.units {
            unit.spare = 1 + u32::try_from(draws.below(2)).unwrap();
        }
        let mut layout = Layout::new(&snapshot).unwrap();
        for unit in layout.running() {
            layout.relocate(unit, NodeIdx::at(draws.below(snapshot.nodes.len())));
        }
        let moves: Vec<_> = moves_of(&layout).collect();
        let start = Layout::new(&snapshot).unwrap();
        let made = order_moves(&start, &moves, &NodeFilters);
        for batch in &made.batches {
            let mut of_unit = BTreeMap::new();
            batch.iter().for_each(|step| *of_unit.entry(start.owner(step.unit)).or_insert(0u32) += 1);
            for (owner, n) in of_unit {
                assert!(n <= snapshot.units[owner.idx()].spare, "seed {seed}: {n} of {owner:?}");
            }
        }
    }
}

#[test]
fn what_stays_is_not_moved_and_is_counted_by_its_reason() {
    let mut snapshot = one_each(5);
    snapshot.running[1].kept = Some(KeptReason::NotMovable);
    snapshot.running[2].kept = Some(KeptReason::MinRun);
    snapshot.running[3].kept = Some(KeptReason::NotMovable);
    let plan = plan(pack(), &snapshot);
    assert_eq!(plan.objective, (5.0, 3.0));
    let moved: Vec<u64> = plan.moves.iter().map(|one| one.id.unit.0).collect();
    assert!(moved.iter().all(|unit| [1, 5].contains(unit)), "{moved:?}");
    let kept = [(KeptReason::NotMovable.to_string(), 2), (KeptReason::MinRun.to_string(), 1)];
    assert_eq!(plan.kept, kept);
}

fn uses(cpu_milli: i64) -> MeasuredUse {
    MeasuredUse { cpu_milli, network_bps: 0 }
}

#[test]
fn a_node_that_others_make_hot_is_cooled_and_receives_nothing() {
    let cool = || RescheduleKind::LoadBalance(LoadBalance { hot: 0.8, calm: 0.7 });
    let mut snapshot = one_each(3);
    snapshot.running.iter_mut().for_each(|one| one.usage = uses(NODE_CPU / 10));
    assert_eq!(plan(cool(), &snapshot).finding, "0 nodes use more than 80 % of their CPU or network");
    // Others use three quarters of the first node: without its running unit it is not hot.
    snapshot.nodes[0].other_use = uses(NODE_CPU * 3 / 4);
    let cooled = plan(cool(), &snapshot);
    assert_eq!((cooled.moves.len(), cooled.moves[0].from.0), (1, snapshot.nodes[0].id));
    assert_eq!(cooled.objective.1, 0.0);
    // All of it: it is hot whatever moves, and is said to be so.
    snapshot.nodes[0].other_use = uses(NODE_CPU);
    let hot = plan(cool(), &snapshot);
    assert!(hot.finding.contains("1 nodes") && hot.finding.contains("not godel's"), "{}", hot.finding);
    // A hot node beside it finds no other one calm.
    snapshot.nodes.truncate(2);
    snapshot.running.truncate(2);
    snapshot.running[1].usage = uses(NODE_CPU * 9 / 10);
    for one in plan(cool(), &snapshot).moves {
        assert_ne!(one.to.0, snapshot.nodes[0].id, "{one:?}");
    }
}

#[test]
fn no_policy_sends_work_to_a_node_that_others_make_hot() {
    let mut snapshot = one_each(2);
    snapshot.nodes[0].other_use = uses(NODE_CPU * 9 / 10);
    let packed = plan(pack(), &snapshot);
    assert_eq!(packed.moves.len(), 1);
    assert_eq!((packed.moves[0].from.0, packed.moves[0].to.0), (snapshot.nodes[0].id, snapshot.nodes[1].id));
    snapshot.nodes[1].other_use = uses(NODE_CPU * 9 / 10);
    assert!(plan(pack(), &snapshot).moves.is_empty());
    // Nor through such a node: two that change places need a spare one.
    let mut full = one_each(3);
    full.running.truncate(2);
    full.running.iter_mut().for_each(|one| one.demand = demand(NODE_CPU, 0, 0));
    let mut layout = Layout::new(&full).unwrap();
    let [one, other] = [0, 1].map(crate::layout::RunIdx::at);
    layout.force(one, NodeIdx(1), godel_domain::allocation::DeviceSet::NONE);
    layout.force(other, NodeIdx(0), godel_domain::allocation::DeviceSet::NONE);
    let moves: Vec<_> = moves_of(&layout).collect();
    let order = |busy: Vec<bool>| {
        let limits = PlanLimits { busy, ..PlanLimits::default() };
        let start = Layout::new(&full).unwrap();
        crate::generator::order_moves_within(&start, &moves, &NodeFilters, &limits).batches.len()
    };
    assert_eq!((order(Vec::new()), order(vec![false, false, true])), (3, 0));
}

/// How many members of a gang may stand on the nodes of a layout together, counted node by node.
fn n_members_fit(layout: &Layout<'_>, part: &GangPart, limit: &MemberLimit) -> u32 {
    let mut layout = layout.clone();
    let shape = layout.rooms_mut().intern(&part.demand);
    let mut by_value: BTreeMap<String, u32> = BTreeMap::new();
    for node in layout.nodes() {
        let mut n = 0;
        while layout.keep(shape, node) {
            n += 1;
        }
        *by_value.entry(layout.node(node).labels[&limit.label].clone()).or_default() += n;
    }
    let most = |value: &String| limit.most.0.get(value).copied().unwrap_or(limit.most.1);
    by_value.iter().map(|(value, n)| (*n).min(most(value))).sum()
}

#[test]
fn room_for_a_gang_is_room_for_members_that_stand_apart() {
    let (mut n_made, mut n_none) = (0, 0);
    for seed in 0..120 {
        let mut snapshot = random(seed, Size { n_nodes: 6, n_units: 6, n_running: 20, has_shares: false });
        for (at, node) in snapshot.nodes.iter_mut().enumerate() {
            node.labels.insert("own".to_owned(), format!("{at}"));
        }
        let mut draws = Draws::new(seed);
        let is_by_node = draws.below(2) == 0;
        let label = if is_by_node { "own" } else { "rack" };
        let mut limit = MemberLimit { label: label.to_owned(), most: (BTreeMap::new(), 1), is_by_node };
        if !is_by_node && draws.below(2) == 0 {
            limit.most.0 = [("r0".to_owned(), 2), ("r1".to_owned(), 0)].into();
        }
        let n_members = 2 + u32::try_from(draws.below(2)).unwrap();
        let part =
            GangPart { demand: demand(9_000, 0, 0), n_members, level: None, limits: vec![limit.clone()] };
        let gang = WaitingGang { parts: vec![part.clone()], within: None };
        let layout = Layout::new(&snapshot).unwrap();
        let had_room = n_members_fit(&layout, &part, &limit) >= n_members;
        match let_in(&gang, &layout, &NodeFilters, &PlanLimits::of_moves(6)) {
            Some(plan) => {
                assert!(!had_room, "seed {seed}: others are moved for nothing");
                let mut after = layout.clone();
                after.apply(&plan.moves);
                let n = n_members_fit(&after, &part, &limit);
                assert!(n >= n_members, "seed {seed}: {n} of {n_members} have room apart");
                n_made += 1;
            }
            None => n_none += 1,
        }
    }
    assert!(n_made >= 10 && n_none >= 10, "{n_made} with moves, {n_none} without");
}

#[test]
fn parts_of_a_gang_share_the_nodes_that_they_stand_apart_on() {
    let mut snapshot = one_each(3);
    for (at, node) in snapshot.nodes.iter_mut().enumerate() {
        node.labels.insert("own".to_owned(), format!("{at}"));
    }
    // Three nodes are free but for a core each: two parts of two members apart have no room, whatever moves.
    let limit = MemberLimit { label: "own".to_owned(), most: (BTreeMap::new(), 1), is_by_node: true };
    let part = |n_members| GangPart {
        demand: demand(4_000, 0, 0),
        n_members,
        level: None,
        limits: vec![limit.clone()],
    };
    let layout = Layout::new(&snapshot).unwrap();
    let limits = PlanLimits::of_moves(3);
    let in_two = |first, second| {
        let gang = WaitingGang { parts: vec![part(first), part(second)], within: None };
        let whole = let_in(&gang, &layout, &NodeFilters, &limits);
        whole.map(|plan| plan.moves.len())
    };
    assert_eq!(in_two(2, 2), None);
    // With demands that need a whole node it takes a move for each.
    let whole = GangPart { demand: demand(NODE_CPU, 0, 0), ..part(1) };
    let gang = WaitingGang { parts: vec![whole, part(1)], within: None };
    let plan = let_in(&gang, &layout, &NodeFilters, &limits).unwrap();
    assert_eq!(plan.moves.len(), 1);
}
