//! How far each policy stays from what the referee proves, and what the referee proves against every layout of tiny clusters.
//!
//! No plan may be below its bound, which would mean that the plan or the program is wrong, and the sum of the gaps over all seeds may be no
//! larger than it was when measured.

use std::time::Duration;

use godel_base::resources::{CPU, MEMORY, NETWORK, Resources};
use godel_domain::allocation::DeviceSet;
use proptest::prelude::*;

use super::clusters::{Size, demand, random};
use crate::{
    Aim, Binpack, ClusterSnapshot, Colocation, Defragmentation, FailureDomainSpread, Filters, Layout,
    LoadBalance, NodeFilters, NodeIdx, PlanLimits, RescheduleKind, RunIdx, bound_of, make_plan,
};

const SIZE: Size = Size { n_nodes: 5, n_units: 4, n_running: 11, has_shares: false };
const SEEDS: std::ops::Range<u64> = 0..25;
const N_MOVES_MAX: usize = 4;
/// More than any program of these tests takes.
const LONG: Duration = Duration::from_secs(60);

fn room(n_copies: u32, level: Option<&str>, n_enough: Option<u32>) -> RescheduleKind {
    let demand = demand(1_000, 4, 1_000);
    let level = level.map(str::to_owned);
    let aim = Aim::Room { demand, n_copies, level, n_enough, n_moves_each_max: None };
    RescheduleKind::Defragmentation(Defragmentation { aim, typical: Vec::new() })
}

fn spread(level: Option<&str>) -> RescheduleKind {
    RescheduleKind::Spread(FailureDomainSpread { level: level.map(str::to_owned), n_domains: 3 })
}

fn binpack() -> RescheduleKind {
    RescheduleKind::Binpack(Binpack { use_max: 1.0, ends_within_ms: 0 })
}

fn colocation(n_steps_each: u64) -> RescheduleKind {
    RescheduleKind::Colocation(Colocation { n_steps_each, ..Colocation::default() })
}

fn balance(hot: f64) -> RescheduleKind {
    RescheduleKind::LoadBalance(LoadBalance { hot, calm: hot })
}

/// Compares a policy with the optimum on every seed.
fn assert_gap(kind: &RescheduleKind, gap_max: f64) {
    let (mut before, mut best, mut own) = (0.0, 0.0, 0.0);
    for seed in SEEDS {
        let snapshot = random(seed, SIZE);
        let layout = Layout::new(&snapshot).unwrap();
        let limits = PlanLimits { seed, ..PlanLimits::of_moves(N_MOVES_MAX) };
        let plan = make_plan(kind.policy(), &layout, &[], &NodeFilters, &limits);
        let bound = bound_of(kind, &layout, &NodeFilters, &limits, LONG).unwrap();
        let least = bound.value;
        assert!(bound.is_exact, "seed {seed}");
        assert!(plan.after >= least - 1e-6, "seed {seed}: {} is better than the optimum {least}", plan.after);
        (before, best, own) = (before + plan.before, best + least, own + plan.after);
    }
    let name = kind.policy().name();
    println!("{name}: {before:.3} -> {own:.3} where {best:.3} is the optimum, summed over the seeds");
    assert!(own - best <= gap_max, "{name}: {own:.3} is more than {gap_max} above {best:.3}");
}

#[test]
fn binpack_is_near_the_optimum() {
    assert_gap(&binpack(), 0.5);
}

#[test]
fn defragmentation_is_near_the_optimum() {
    assert_gap(&room(1, None, None), 0.5);
}

#[test]
fn spread_is_near_the_optimum() {
    assert_gap(&spread(Some("rack")), 0.5);
}

#[test]
fn colocation_is_near_the_optimum() {
    assert_gap(&colocation(2_000), 0.15);
}

#[test]
fn load_balance_is_near_the_optimum() {
    assert_gap(&balance(0.6), 5.5);
}

/// What a cluster has that programs do not tell apart.
#[derive(Clone, Copy, PartialEq)]
enum Blur {
    None,
    /// Shares of devices.
    Shares,
    /// A node with less than what is there takes.
    TooMuch,
}

/// A cluster in which little room is left.
fn tight(seed: u64, blur: Blur) -> ClusterSnapshot {
    let has_shares = blur == Blur::Shares;
    let mut snapshot = random(seed, Size { n_nodes: 4, n_units: 3, n_running: 7, has_shares });
    for (at, node) in snapshot.nodes.iter_mut().enumerate() {
        let used: i64 = snapshot
            .running
            .iter()
            .filter(|unit| unit.node == node.id)
            .map(|unit| unit.demand.requests.get(CPU))
            .sum();
        let cpu = if at == 3 && blur == Blur::TooMuch { (used - 500).max(1_000) } else { used + 2_000 };
        node.capacity = Resources::new([(CPU, cpu), (MEMORY, cpu << 20), (NETWORK, 1_000)]).unwrap();
    }
    snapshot
}

/// Every layout that moves within the limits lead to, or at least those in which what moves gets the first devices that are free.
fn for_each_layout(snapshot: &ClusterSnapshot, limits: &PlanLimits, visit: &mut dyn FnMut(&ClusterSnapshot)) {
    let layout = Layout::new(snapshot).unwrap();
    let nodes: Vec<NodeIdx> = layout.nodes().collect();
    let mut places: Vec<NodeIdx> = layout.running().map(|unit| layout.home(unit)).collect();
    choose(&layout, limits, &nodes, 0, &mut places, &mut |places| {
        if let Some(moved) = moved(&layout, places) {
            visit(&moved);
        }
    });
}

fn choose(
    layout: &Layout<'_>,
    limits: &PlanLimits,
    nodes: &[NodeIdx],
    at: usize,
    places: &mut [NodeIdx],
    visit: &mut dyn FnMut(&[NodeIdx]),
) {
    let unit = RunIdx::at(at);
    if at == places.len() {
        let is_moved = |unit: &RunIdx| places[unit.idx()] != layout.home(*unit);
        let n_moved = layout.running().filter(is_moved).count();
        let is_within = |(owner, left): (usize, &u32)| {
            layout.running().filter(is_moved).filter(|unit| layout.owner(*unit).idx() == owner).count()
                <= *left as usize
        };
        if n_moved <= limits.n_moves_max && limits.owner_left.iter().enumerate().all(is_within) {
            visit(places);
        }
        return;
    }
    let home = layout.home(unit);
    let may_use = |node: NodeIdx| limits.in_scope.get(node.idx()).copied().unwrap_or(true);
    let may_move = limits.movable.get(at).copied().unwrap_or(true) && may_use(home);
    for node in nodes {
        if *node == home || may_move && may_use(*node) && NodeFilters.admits(layout, unit, *node) {
            places[at] = *node;
            choose(layout, limits, nodes, at + 1, places, visit);
        }
    }
    places[at] = home;
}

/// The snapshot with everything where it is to be; `None`: it has no room there.
fn moved(layout: &Layout<'_>, places: &[NodeIdx]) -> Option<ClusterSnapshot> {
    let mut snapshot = layout.snapshot().clone();
    let stays = |at: usize| places[at] == layout.home(RunIdx::at(at));
    let mut left: Vec<Vec<u32>> = snapshot.nodes.iter().map(|node| vec![1_000; node.devices.len()]).collect();
    let mut cpu: Vec<i64> = snapshot.nodes.iter().map(|node| node.capacity.get(CPU)).collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|at| !stays(*at));
    for at in order {
        let (node, unit) = (places[at].idx(), &mut snapshot.running[at]);
        let asked = unit.demand.requests.get(CPU);
        cpu[node] -= asked;
        if !stays(at) && cpu[node] < 0 {
            return None;
        }
        let (n, milli) = unit.demand.devices.first().map_or((0, 0), |ask| (ask.count, ask.milli));
        if !stays(at) {
            let free = left[node].iter().enumerate().filter(|(_, left)| **left >= milli);
            unit.devices = free.map(|(device, _)| device).take(n as usize).collect::<DeviceSet>();
            unit.node = layout.node(places[at]).id;
            if unit.devices.len() < n {
                return None;
            }
        }
        unit.devices.iter().for_each(|device| left[node][device] -= milli);
    }
    Some(snapshot)
}

fn kinds() -> Vec<RescheduleKind> {
    vec![
        binpack(),
        spread(Some("rack")),
        spread(None),
        colocation(60),
        balance(0.4),
        balance(0.8),
        room(1, None, None),
        room(1, None, Some(2)),
        room(2, Some("rack"), None),
        room(2, Some("rack"), Some(1)),
    ]
}

/// Limits of all sorts, by a seed.
fn limits_by(seed: u64, snapshot: &ClusterSnapshot, n_moves_max: usize) -> PlanLimits {
    let mut draws = crate::Draws::new(seed ^ 0x5eed);
    let mut often =
        |n: usize, one_of: usize| -> Vec<bool> { (0..n).map(|_| draws.below(one_of) > 0).collect() };
    let (movable, in_scope) = (often(snapshot.running.len(), 6), often(snapshot.nodes.len(), 8));
    let owner_left = (0..snapshot.units.len()).map(|_| u32::try_from(draws.below(4)).unwrap()).collect();
    PlanLimits { n_moves_max, movable, in_scope, busy: Vec::new(), owner_left, seed }
}

#[test]
fn bounds_are_the_best_of_all_layouts_of_tiny_clusters() {
    let mut n_exact = 0;
    for seed in 0..40 {
        let blur = match seed % 8 {
            6 => Blur::TooMuch,
            7 => Blur::Shares,
            _ => Blur::None,
        };
        let snapshot = tight(seed, blur);
        let limits = match seed % 2 {
            0 => PlanLimits::of_moves(3),
            _ => limits_by(seed, &snapshot, 3),
        };
        let layout = Layout::new(&snapshot).unwrap();
        let all = kinds();
        let mut least = vec![f64::INFINITY; all.len()];
        for_each_layout(&snapshot, &limits, &mut |snapshot| {
            for (kind, least) in all.iter().zip(&mut least) {
                let mut layout = Layout::new(snapshot).unwrap();
                *least = least.min(kind.policy().goal(&mut layout).value());
            }
        });
        for (kind, least) in all.iter().zip(least) {
            let bound = bound_of(kind, &layout, &NodeFilters, &limits, LONG).unwrap();
            let name = kind.policy().name();
            assert!(
                bound.value <= least + 1e-9,
                "seed {seed}, {name}: {bound:?} where {least} can be reached"
            );
            if bound.is_exact && blur == Blur::None {
                assert!(
                    bound.value > least - 1e-5,
                    "seed {seed}, {name}: {bound:?} where {least} is the best"
                );
                n_exact += 1;
            }
        }
    }
    assert_eq!(n_exact, 300, "every program is solved to its end");
}

#[test]
fn there_is_no_bound_without_time_or_for_what_is_too_large() {
    let within = |kind: &RescheduleKind, n_running, time_limit| {
        let snapshot = random(1, Size { n_nodes: n_running / 5, n_units: 4, n_running, has_shares: false });
        let layout = Layout::new(&snapshot).unwrap();
        let bound = bound_of(kind, &layout, &NodeFilters, &PlanLimits::of_moves(10), time_limit);
        (layout.n_running(), bound.is_some())
    };
    for kind in kinds() {
        assert_eq!(within(&kind, 30, Duration::ZERO), (30, false), "{kind:?}");
        assert_eq!(within(&kind, 400, LONG), (400, false), "{kind:?}");
    }
    let aim = Aim::Rate { n_steps_each: 1, rate_max: 0.0 };
    let rate = RescheduleKind::Defragmentation(Defragmentation { aim, typical: Vec::new() });
    assert_eq!(within(&rate, 30, LONG), (30, false));
}

#[test]
fn what_may_not_move_costs_no_time() {
    let snapshot = random(1, Size { n_nodes: 100, n_units: 4, n_running: 500, has_shares: false });
    let mut layout = Layout::new(&snapshot).unwrap();
    let limits = PlanLimits { movable: vec![false; snapshot.running.len()], ..PlanLimits::of_moves(10) };
    for kind in kinds() {
        let bound = bound_of(&kind, &layout, &NodeFilters, &limits, LONG).unwrap();
        let value = kind.policy().goal(&mut layout).value();
        assert!(bound.is_exact && (bound.value - value).abs() < 1e-6, "{kind:?}: {bound:?} is not {value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever may move, no plan of any policy is better than its bound, be it exact or not.
    #[test]
    fn no_plan_is_below_its_bound(seed: u64, n_moves_max in 0usize..20) {
        let snapshot = random(seed, Size { n_nodes: 8, n_units: 6, n_running: 30, has_shares: true });
        let layout = Layout::new(&snapshot).unwrap();
        let limits = limits_by(seed, &snapshot, n_moves_max);
        for kind in kinds() {
            let plan = make_plan(kind.policy(), &layout, &[], &NodeFilters, &limits);
            let mut after = layout.clone();
            after.apply(&plan.moves);
            for (from, ms) in [(&layout, 20), (&after, 200)] {
                let bound = bound_of(&kind, from, &NodeFilters, &limits, Duration::from_millis(ms));
                if let Some(bound) = bound {
                    prop_assert!(bound.value <= plan.after + 1e-9, "{kind:?}: {bound:?} and {plan}");
                }
            }
        }
    }
}
