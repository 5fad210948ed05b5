//! Batches against brute force, and what holds of them at every moment.

use proptest::prelude::*;

use super::*;
use crate::{
    filters::NodeFilters,
    policy::moves_of,
    search::Draws,
    snapshot::{BudgetRoom, ClusterSnapshot},
    tests::clusters::{NODE_CPU, Size, assert_room, demand, node, random, running, unit},
};
use godel_base::resources::CPU;
use godel_domain::unit::WorkloadClass;

/// A cluster without devices, and somewhere else for some of what runs there.
fn moved(seed: u64, size: Size, n_moves: usize) -> (ClusterSnapshot, Vec<PlannedMove>) {
    let mut snapshot = random(seed, size);
    let mut draws = Draws::new(seed ^ 1);
    snapshot.nodes.iter_mut().for_each(|node| node.accepts = draws.below(8) > 0);
    for name in ["a", "b"] {
        let members = snapshot.running.iter().map(|one| one.id).filter(|_| draws.below(3) == 0).collect();
        let allowed = u32::try_from(1 + draws.below(3)).unwrap();
        snapshot.budgets.push(BudgetRoom { name: name.to_owned(), allowed, members });
    }
    let mut layout = Layout::new(&snapshot).unwrap();
    for _ in 0..n_moves * 20 {
        let unit = RunIdx::at(draws.below(layout.n_running()));
        let to = NodeIdx::at(draws.below(layout.n_nodes()));
        if layout.n_moved() < n_moves || layout.is_moved(unit) {
            layout.relocate(unit, to);
        }
    }
    let moves = moves_of(&layout).collect();
    (snapshot, moves)
}

/// Makes the batches step by step and asserts what must hold at every moment, from the facts alone.
fn assert_sound(snapshot: &ClusterSnapshot, moves: &[PlannedMove], made: &MoveBatches) {
    let mut layout = Layout::new(snapshot).unwrap();
    for batch in &made.batches {
        assert!(!batch.is_empty());
        for budget in &snapshot.budgets {
            let n = batch.iter().filter(|step| budget.members.contains(&layout.facts(step.unit).id)).count();
            assert!(n <= budget.allowed as usize, "budget {} in a batch of {}", budget.name, batch.len());
        }
        // Held on the target, and not gone from the source.
        for at in layout.nodes() {
            let cpu = |unit: RunIdx| layout.facts(unit).demand.requests.get(CPU);
            let here: i64 = layout.on(at).iter().map(|unit| cpu(*unit)).sum();
            let coming: i64 = batch.iter().filter(|step| step.to == at).map(|step| cpu(step.unit)).sum();
            assert!(here + coming <= NODE_CPU, "{here} and {coming} on {}", layout.node(at).name);
            let mut left: Vec<i32> = layout.rooms().devices_left(at).to_vec();
            for step in batch.iter().filter(|step| step.to == at) {
                let milli = layout.facts(step.unit).demand.devices.first().map_or(0, |one| one.milli);
                step.devices.iter().for_each(|device| left[device] -= i32::try_from(milli).unwrap());
            }
            assert!(left.iter().all(|left| *left >= 0), "{left:?} on {}", layout.node(at).name);
        }
        for step in batch {
            assert_eq!(layout.node_of(step.unit), step.from);
            layout.force(step.unit, step.to, step.devices);
        }
        assert_room(&layout);
    }
    for one in moves {
        let expected = if made.impossible.contains(&one.unit) { None } else { Some(one.to.0) };
        assert!(
            expected.is_none_or(|to| layout.node_of(one.unit) == to),
            "{:?} is not where it should be",
            one.unit
        );
    }
}

/// The fewest batches without detours by amounts of CPU, `None`: no order does. Shares no code with the generator.
fn brute_force(snapshot: &ClusterSnapshot, moves: &[PlannedMove]) -> Option<usize> {
    let all = (1usize << moves.len()) - 1;
    let mut used = vec![0i64; snapshot.nodes.len()];
    let cpu: Vec<i64> = snapshot.running.iter().map(|one| one.demand.requests.get(CPU)).collect();
    for (one, cpu) in snapshot.running.iter().zip(&cpu) {
        used[one.node.idx() - 1] += cpu;
    }
    let can_follow = |done: usize, batch: usize| {
        let mut used = used.clone();
        for (at, one) in moves.iter().enumerate() {
            if done >> at & 1 == 1 {
                used[one.from.0.idx()] -= cpu[one.unit.idx()];
            }
            if (done | batch) >> at & 1 == 1 {
                used[one.to.0.idx()] += cpu[one.unit.idx()];
            }
        }
        let keeps_budget = |budget: &BudgetRoom| {
            let counted =
                |(at, one): &(usize, &PlannedMove)| batch >> at & 1 == 1 && budget.members.contains(&one.id);
            moves.iter().enumerate().filter(counted).count() <= budget.allowed as usize
        };
        used.iter().all(|used| *used <= NODE_CPU) && snapshot.budgets.iter().all(keeps_budget)
    };
    let mut fewest: Vec<Option<usize>> = vec![None; all + 1];
    fewest[0] = Some(0);
    for done in 0..=all {
        let Some(n) = fewest[done] else { continue };
        for batch in 1..=all {
            if batch & done == 0 && can_follow(done, batch) {
                let next = &mut fewest[done | batch];
                *next = Some(next.map_or(n + 1, |known| known.min(n + 1)));
            }
        }
    }
    fewest[all]
}

/// A cluster as full as it gets, so that order matters: sizes in thousandths of a core.
fn tight(seed: u64) -> (ClusterSnapshot, Vec<PlannedMove>) {
    let mut draws = Draws::new(seed);
    let mut snapshot =
        ClusterSnapshot { nodes: (0..4).map(|at| node(at, 0)).collect(), ..ClusterSnapshot::default() };
    for at in 0..9 {
        snapshot.units.push(unit(at, WorkloadClass::Service));
        let cpu = 1_000 * (2 + crate::tests::clusters::signed(draws.below(4)));
        snapshot.running.push(running(at, 0, at % 4, demand(cpu, 0, 1_000)));
    }
    let members = snapshot.running.iter().map(|one| one.id).filter(|_| draws.below(2) == 0).collect();
    let allowed = u32::try_from(1 + draws.below(3)).unwrap();
    snapshot.budgets.push(BudgetRoom { name: "a".to_owned(), allowed, members });
    let start = Layout::new(&snapshot).unwrap();
    // Any other layout with room, whether moves lead there one by one or not.
    for _ in 0..200 {
        let mut layout = start.clone();
        for unit in start.running() {
            let to = NodeIdx::at(draws.below(4));
            if draws.below(3) > 0 {
                layout.force(unit, to, DeviceSet::NONE);
            }
        }
        let has_room =
            layout.nodes().all(|node| layout.rooms().free_amounts(node).iter().all(|free| *free >= 0));
        if has_room && layout.n_moved() <= 7 {
            let moves = moves_of(&layout).collect();
            return (snapshot, moves);
        }
    }
    (snapshot, Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn batches_are_as_few_as_brute_force_finds(seed: u64) {
        let (snapshot, moves) = tight(seed);
        let layout = Layout::new(&snapshot).unwrap();
        let made = order_moves(&layout, &moves, &NodeFilters);
        assert_sound(&snapshot, &moves, &made);
        match brute_force(&snapshot, &moves) {
            Some(fewest) => {
                prop_assert_eq!((made.batches.len(), made.n_detours(), made.impossible.len()), (fewest, 0, 0));
                prop_assert!(made.n_batches_min <= fewest);
            }
            // No order does: something goes through a spare node, or stays.
            None => prop_assert!(made.n_detours() > 0 || !made.impossible.is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn capacity_and_budgets_hold_at_every_moment(seed: u64, n_moves in 1usize..60) {
        let size = Size { n_nodes: 14, n_units: 20, n_running: 90, has_shares: true };
        let (snapshot, moves) = moved(seed, size, n_moves);
        let layout = Layout::new(&snapshot).unwrap();
        let made = order_moves(&layout, &moves, &NodeFilters);
        assert_sound(&snapshot, &moves, &made);
        prop_assert!(made.batches.len() >= made.n_batches_min || !made.impossible.is_empty());
    }
}

/// Two full nodes whose running units change places, and perhaps a third that is free; with how often their units may be moved.
fn swap(n_nodes: usize, accepts: bool, owner_left: &[u32]) -> MoveBatches {
    let mut snapshot = ClusterSnapshot {
        nodes: (0..n_nodes).map(|at| node(at, 0)).collect(),
        units: (0..2).map(|at| unit(at, WorkloadClass::Service)).collect(),
        running: (0..2).map(|at| running(at, 0, at, demand(NODE_CPU, 0, 1_000))).collect(),
        ..ClusterSnapshot::default()
    };
    snapshot.nodes.iter_mut().for_each(|node| node.accepts = accepts);
    let mut layout = Layout::new(&snapshot).unwrap();
    layout.force(RunIdx(0), NodeIdx(1), DeviceSet::NONE);
    layout.force(RunIdx(1), NodeIdx(0), DeviceSet::NONE);
    let moves: Vec<PlannedMove> = moves_of(&layout).collect();
    let limits = PlanLimits { owner_left: owner_left.to_vec(), ..PlanLimits::default() };
    let made = order_moves_within(&Layout::new(&snapshot).unwrap(), &moves, &NodeFilters, &limits);
    assert_sound(&snapshot, &moves, &made);
    made
}

#[test]
fn a_cycle_goes_through_a_spare_node_or_stays() {
    for through in [swap(3, true, &[]), swap(3, true, &[1, 2])] {
        assert_eq!((through.batches.len(), through.n_detours(), through.impossible.len()), (3, 1, 0));
    }
    // A detour is two moves of its unit.
    for without in [swap(2, true, &[]), swap(3, false, &[]), swap(3, true, &[1, 1])] {
        assert_eq!((without.batches.len(), without.impossible), (0, vec![RunIdx(0), RunIdx(1)]));
    }
}

#[test]
fn a_budget_that_allows_nothing_keeps_its_units() {
    let (mut snapshot, moves) =
        moved(5, Size { n_nodes: 6, n_units: 6, n_running: 12, has_shares: false }, 4);
    assert!(!moves.is_empty());
    let members = snapshot.running.iter().map(|one| one.id).collect();
    snapshot.budgets = vec![BudgetRoom { name: "none".to_owned(), allowed: 0, members }];
    let made = order_moves(&Layout::new(&snapshot).unwrap(), &moves, &NodeFilters);
    assert_eq!((made.batches.len(), made.impossible.len()), (0, moves.len()));
}

#[test]
fn receivers_go_first_so_that_a_chain_follows() {
    // Full nodes 0 and 1, free node 2: what is on 1 goes to 2, then what is on 0 to 1.
    let snapshot = ClusterSnapshot {
        nodes: (0..3).map(|at| node(at, 0)).collect(),
        units: (0..2).map(|at| unit(at, WorkloadClass::Service)).collect(),
        running: (0..2).map(|at| running(at, 0, at, demand(NODE_CPU, 0, 1_000))).collect(),
        ..ClusterSnapshot::default()
    };
    let mut layout = Layout::new(&snapshot).unwrap();
    assert!(layout.relocate(RunIdx(1), NodeIdx(2)) && layout.relocate(RunIdx(0), NodeIdx(1)));
    let moves: Vec<PlannedMove> = moves_of(&layout).collect();
    let made = order_moves(&Layout::new(&snapshot).unwrap(), &moves, &NodeFilters);
    let order: Vec<Vec<u32>> =
        made.batches.iter().map(|batch| batch.iter().map(|step| step.unit.0).collect()).collect();
    assert_eq!(order, [[1], [0]]);
}
