//! The movement generator: in which order moves are made, as few batches as capacity and disruption budgets allow.
//!
//! Nodes are vertices and moves are edges. The strongly connected components (Tarjan, "Depth-First Search and Linear Graph
//! Algorithms", SIAM J. Comput. 1, 1972; by petgraph) make a directed acyclic graph, and batches are filled in its reverse
//! topological order: receivers first, so that what has left makes room for what comes.
//!
//! The rule at every moment: a batch holds its targets before anything leaves, so during a batch its running units take room on
//! both nodes. A batch ends when all of them run again, so a budget allows as many in each batch as it does now, and so does what a
//! unit can spare. Where no move
//! of a component can be made that way, one of its running units goes through a spare node (ADR 0066).
//!
//! Up to [`N_EXACT_MAX`] moves of what depends on one another, the number of batches is the least possible, by breadth-first
//! search over sets of moves made. Beyond that batches are filled greedily, and [`MoveBatches::n_batches_min`] says how few there
//! could be at most.

use std::collections::BTreeMap;

use godel_base::ids::{IdMap, RunningUnitId};
use godel_domain::allocation::DeviceSet;
use petgraph::{algo::tarjan_scc, graph::DiGraph};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    filters::Filters,
    layout::{Layout, NodeIdx, OwnerIdx, RunIdx},
    policy::PlannedMove,
    workspace::PlanLimits,
};

#[cfg(test)]
mod tests;

/// Moves that depend on one another up to which batches are as few as possible.
pub const N_EXACT_MAX: usize = 10;
/// Sets of moves that the exact search looks at, at most.
const N_SETS_MAX: usize = 20_000;

/// One step of a running unit: its whole move, or one leg of a move through a spare node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveStep {
    /// The running unit.
    pub unit: RunIdx,
    /// Where it leaves.
    pub from: NodeIdx,
    /// Where it goes.
    pub to: NodeIdx,
    /// The devices that it gets there.
    pub devices: DeviceSet,
    /// Whether `to` is only a spare node on its way.
    pub is_detour: bool,
}

/// Moves in the order in which they can be made.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveBatches {
    /// The steps of each batch, which are made together; the next begins when all of them run again.
    pub batches: Vec<Vec<MoveStep>>,
    /// How few batches there would be at least, by budgets and by what units can spare alone.
    pub n_batches_min: usize,
    /// Moves that cannot be made: no order and no spare node allows them, or a budget never does. They stay as they are, and
    /// so does what waits for them.
    pub impossible: Vec<RunIdx>,
}

impl MoveBatches {
    /// Returns how many steps go to a spare node.
    pub fn n_detours(&self) -> usize {
        self.batches.iter().flatten().filter(|step| step.is_detour).count()
    }
}

/// Budgets by the moves that they count, and what units can spare.
struct BudgetIndex {
    allowed: Vec<u32>,
    of_unit: FxHashMap<RunIdx, Vec<u32>>,
}

impl BudgetIndex {
    fn new(layout: &Layout<'_>, moves: &[PlannedMove]) -> Self {
        let by_id: FxHashMap<RunningUnitId, RunIdx> = moves.iter().map(|one| (one.id, one.unit)).collect();
        let budgets = &layout.snapshot().budgets;
        let mut of_unit: FxHashMap<RunIdx, Vec<u32>> = FxHashMap::default();
        for (budget, room) in (0..).zip(budgets) {
            for unit in room.members.iter().filter_map(|member| by_id.get(member)) {
                of_unit.entry(*unit).or_default().push(budget);
            }
        }
        let mut allowed: Vec<u32> = budgets.iter().map(|budget| budget.allowed).collect();
        // What a unit can spare bounds its moves as a budget would.
        let mut of_owner: BTreeMap<OwnerIdx, Vec<RunIdx>> = BTreeMap::new();
        for one in moves {
            of_owner.entry(layout.owner(one.unit)).or_default().push(one.unit);
        }
        for (owner, units) in of_owner {
            let spare = layout.snapshot().units[owner.idx()].spare;
            if usize::try_from(spare).is_ok_and(|spare| units.len() > spare) {
                let at = u32::try_from(allowed.len()).unwrap_or(u32::MAX);
                allowed.push(spare);
                units.iter().for_each(|unit| of_unit.entry(*unit).or_default().push(at));
            }
        }
        Self { allowed, of_unit }
    }

    fn of(&self, unit: RunIdx) -> &[u32] {
        self.of_unit.get(&unit).map_or(&[], Vec::as_slice)
    }

    /// Whether a budget never lets a running unit go.
    fn forbids(&self, unit: RunIdx) -> bool {
        self.of(unit).iter().any(|budget| self.allowed[*budget as usize] == 0)
    }

    fn n_batches_min_of(&self, moves: &[&PlannedMove]) -> usize {
        let mut counts = vec![0u32; self.allowed.len()];
        for budget in moves.iter().flat_map(|one| self.of(one.unit)) {
            counts[*budget as usize] += 1;
        }
        let of_budgets = counts.iter().zip(&self.allowed).filter(|(_, allowed)| **allowed > 0);
        let least = of_budgets.map(|(n, allowed)| n.div_ceil(*allowed)).max().unwrap_or(0);
        usize::try_from(least).unwrap_or(usize::MAX).max(usize::from(!moves.is_empty()))
    }
}

/// A batch that is being filled: its units stand on both nodes. The layout shows them on their targets; what they still take of
/// their sources is kept apart, and given back when the batch ends.
struct Filling<'l, 'a> {
    layout: &'l mut Layout<'a>,
    budgets: &'l BudgetIndex,
    used: Vec<u32>,
    leaving: Vec<(RunIdx, NodeIdx, DeviceSet)>,
    steps: Vec<MoveStep>,
}

impl<'l, 'a> Filling<'l, 'a> {
    fn new(layout: &'l mut Layout<'a>, budgets: &'l BudgetIndex) -> Self {
        let used = vec![0; budgets.allowed.len()];
        Self { layout, budgets, used, leaving: Vec::new(), steps: Vec::new() }
    }

    /// Adds a step if its target has room at this moment and every budget allows one more.
    fn add(&mut self, unit: RunIdx, to: NodeIdx, devices: DeviceSet, is_detour: bool) -> bool {
        let of_unit = self.budgets.of(unit);
        let is_allowed =
            of_unit.iter().all(|budget| self.used[*budget as usize] < self.budgets.allowed[*budget as usize]);
        let shape = self.layout.shape_of(unit);
        if !is_allowed || !self.layout.rooms().can_take(shape, to, devices) {
            return false;
        }
        of_unit.iter().for_each(|budget| self.used[*budget as usize] += 1);
        let (from, from_devices) = (self.layout.node_of(unit), self.layout.devices(unit));
        self.layout.force(unit, to, devices);
        self.layout.rooms_mut().take(from, shape, from_devices);
        self.leaving.push((unit, from, from_devices));
        self.steps.push(MoveStep { unit, from, to, devices, is_detour });
        true
    }

    /// Ends the batch: its units have left.
    fn end(self) -> Vec<MoveStep> {
        for (unit, from, devices) in &self.leaving {
            let shape = self.layout.shape_of(*unit);
            self.layout.rooms_mut().give_back(*from, shape, *devices);
        }
        self.layout.forget_steps();
        self.steps
    }
}

/// Orders moves into batches. The layout is as its snapshot, and each running unit is moved at most once. `filters` say which
/// nodes may be spare ones.
pub fn order_moves(layout: &Layout<'_>, moves: &[PlannedMove], filters: &dyn Filters) -> MoveBatches {
    order_moves_within(layout, moves, filters, &PlanLimits::default())
}

/// Orders moves as [`order_moves`] does, within the limits of a plan: a detour moves its unit twice, which is to be within the rate of that, and
/// no spare node is hot by other load.
pub fn order_moves_within(
    layout: &Layout<'_>,
    moves: &[PlannedMove],
    filters: &dyn Filters,
    limits: &PlanLimits,
) -> MoveBatches {
    let budgets = BudgetIndex::new(layout, moves);
    let (forbidden, possible): (Vec<&PlannedMove>, Vec<&PlannedMove>) =
        moves.iter().partition(|one| budgets.forbids(one.unit));
    let mut impossible: Vec<RunIdx> = forbidden.iter().map(|one| one.unit).collect();
    let mut result =
        MoveBatches { n_batches_min: budgets.n_batches_min_of(&possible), ..MoveBatches::default() };
    let mut layout = layout.clone();
    let mut spares = Spares::of(&layout, &possible, filters, limits);
    for (at, group) in dependent_groups(&possible, &budgets).into_iter().enumerate() {
        spares.group = at;
        spares.group_of.extend(group.iter().flat_map(|one| [(one.from.0, at), (one.to.0, at)]));
        let (mut batches, left) = greedy_batches(&mut layout, &group, &budgets, &mut spares);
        for one in &group {
            layout.force(one.unit, one.from.0, layout.home_devices(one.unit));
        }
        let is_direct = left.is_empty() && !batches.iter().flatten().any(|step| step.is_detour);
        let is_least = is_direct && batches.len() <= budgets.n_batches_min_of(&group);
        let exact = if is_least || group.len() > N_EXACT_MAX {
            None
        } else {
            fewest_batches(&mut layout, &group, &budgets)
        };
        match exact {
            Some(fewest) => batches = fewest,
            None => impossible.extend(left),
        }
        for (at, batch) in batches.into_iter().enumerate() {
            match result.batches.get_mut(at) {
                Some(known) => known.extend(batch),
                None => result.batches.push(batch),
            }
        }
    }
    for batch in &mut result.batches {
        batch.sort_unstable();
    }
    impossible.sort_unstable();
    result.impossible = impossible;
    result
}

/// Splits moves into groups that have neither a node nor a budget in common: their batches are made side by side.
fn dependent_groups<'m>(moves: &[&'m PlannedMove], budgets: &BudgetIndex) -> Vec<Vec<&'m PlannedMove>> {
    let mut leader: Vec<usize> = (0..moves.len()).collect();
    fn find(leader: &mut [usize], mut at: usize) -> usize {
        while leader[at] != at {
            leader[at] = leader[leader[at]];
            at = leader[at];
        }
        at
    }
    let mut first_of_node: FxHashMap<NodeIdx, usize> = FxHashMap::default();
    let mut first_of_budget: IdMap<u32, usize> = IdMap::default();
    for (at, one) in moves.iter().enumerate() {
        let mut others: Vec<usize> =
            [one.from.0, one.to.0].map(|node| *first_of_node.entry(node).or_insert(at)).to_vec();
        others
            .extend(budgets.of(one.unit).iter().map(|budget| *first_of_budget.entry(*budget).or_insert(at)));
        for other in others {
            let (a, b) = (find(&mut leader, at), find(&mut leader, other));
            leader[a.max(b)] = a.min(b);
        }
    }
    let mut groups: Vec<Vec<&PlannedMove>> = vec![Vec::new(); moves.len()];
    for (at, one) in moves.iter().enumerate() {
        let group = find(&mut leader, at);
        groups[group].push(one);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// Returns the fewest batches without a detour, `None` if there is no such order or the search grows too large.
fn fewest_batches(
    layout: &mut Layout<'_>,
    moves: &[&PlannedMove],
    budgets: &BudgetIndex,
) -> Option<Vec<Vec<MoveStep>>> {
    let all: u32 = (1 << moves.len()) - 1;
    let mut reached: FxHashMap<u32, (u32, Vec<MoveStep>)> = FxHashMap::default();
    let mut level = vec![0u32];
    let mut seen: FxHashSet<u32> = level.iter().copied().collect();
    while !level.is_empty() && !seen.contains(&all) {
        let mut next = Vec::new();
        for &done in &level {
            for one in bits(done) {
                layout.force(moves[one].unit, moves[one].to.0, moves[one].devices);
            }
            extend_batches(layout, moves, budgets, done, &mut |made, steps| {
                if seen.insert(made) {
                    reached.insert(made, (done, steps));
                    next.push(made);
                }
            });
            for one in bits(done) {
                layout.force(moves[one].unit, moves[one].from.0, layout.home_devices(moves[one].unit));
            }
            layout.forget_steps();
            if seen.len() > N_SETS_MAX {
                return None;
            }
        }
        level = next;
    }
    let (mut batches, mut at) = (Vec::new(), all);
    while at != 0 {
        let (before, steps) = reached.remove(&at)?;
        batches.push(steps);
        at = before;
    }
    batches.reverse();
    Some(batches)
}

fn bits(set: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |bit| set >> bit & 1 == 1)
}

/// Tells of every set of moves that one more batch can make beside those done, largest sets first.
fn extend_batches(
    layout: &mut Layout<'_>,
    moves: &[&PlannedMove],
    budgets: &BudgetIndex,
    done: u32,
    tell: &mut dyn FnMut(u32, Vec<MoveStep>),
) {
    let left: Vec<usize> = (0..moves.len()).filter(|one| done >> one & 1 == 0).collect();
    let mut subsets: Vec<u32> = (1..1u32 << left.len()).collect();
    subsets.sort_by_key(|subset| std::cmp::Reverse(subset.count_ones()));
    for subset in subsets {
        let chosen = || bits(subset).map(|bit| left[bit]);
        let mut filling = Filling::new(layout, budgets);
        let fits =
            chosen().all(|one| filling.add(moves[one].unit, moves[one].to.0, moves[one].devices, false));
        let steps = filling.end();
        for step in &steps {
            let devices = layout.home_devices(step.unit);
            layout.force(step.unit, step.from, devices);
        }
        if fits {
            tell(chosen().fold(done, |set, one| set | 1 << one), steps);
            if chosen().count() == left.len() {
                return;
            }
        }
    }
}

/// Fills batches in reverse topological order until nothing is left, through spare nodes where nothing else goes. Returns what
/// cannot be made as well.
fn greedy_batches(
    layout: &mut Layout<'_>,
    moves: &[&PlannedMove],
    budgets: &BudgetIndex,
    spares: &mut Spares<'_>,
) -> (Vec<Vec<MoveStep>>, Vec<RunIdx>) {
    let mut left: Vec<&PlannedMove> = receivers_first(moves);
    let mut batches = Vec::new();
    let mut detoured: FxHashSet<RunIdx> = FxHashSet::default();
    while !left.is_empty() {
        let mut filling = Filling::new(layout, budgets);
        left.retain(|one| !filling.add(one.unit, one.to.0, one.devices, false));
        if filling.steps.is_empty() && !take_detour(&mut filling, &left, spares, &mut detoured) {
            filling.end();
            break;
        }
        batches.push(filling.end());
    }
    (batches, left.iter().map(|one| one.unit).collect())
}

/// Which nodes a group of moves may send running units through: those that no other group uses.
struct Spares<'f> {
    filters: &'f dyn Filters,
    group: usize,
    used: FxHashSet<NodeIdx>,
    group_of: FxHashMap<NodeIdx, usize>,
    /// How often each unit may be moved beside its moves, by position.
    owner_left: Vec<u32>,
    /// Which nodes are hot by other load, by position.
    busy: &'f [bool],
}

impl<'f> Spares<'f> {
    fn of(
        layout: &Layout<'_>,
        moves: &[&PlannedMove],
        filters: &'f dyn Filters,
        limits: &'f PlanLimits,
    ) -> Self {
        let used = moves.iter().flat_map(|one| [one.from.0, one.to.0]).collect();
        let group_of = FxHashMap::default();
        let (owner_left, busy) = (limits.owner_left.clone(), limits.busy.as_slice());
        let mut spares = Self { filters, group: 0, used, group_of, owner_left, busy };
        moves.iter().for_each(|one| spares.note_move(layout.owner(one.unit)));
        spares
    }

    /// Whether a unit may make one move more than those of the plan.
    fn may_move(&self, owner: OwnerIdx) -> bool {
        self.owner_left.get(owner.idx()).is_none_or(|left| *left > 0)
    }

    fn note_move(&mut self, owner: OwnerIdx) {
        if let Some(left) = self.owner_left.get_mut(owner.idx()) {
            *left = left.saturating_sub(1);
        }
    }

    fn may_be(&self, layout: &Layout<'_>, one: &PlannedMove, node: NodeIdx) -> bool {
        let is_own = match self.group_of.get(&node) {
            Some(group) => *group == self.group,
            None => !self.used.contains(&node),
        };
        let is_busy = self.busy.get(node.idx()).copied().unwrap_or(false);
        is_own
            && !is_busy
            && node != one.from.0
            && node != one.to.0
            && self.filters.admits(layout, one.unit, node)
    }
}

/// Sends the cheapest running unit whose leaving helps another one to a spare node: one that no move of the plan needs, if there
/// is one. Each running unit is sent at most once.
fn take_detour(
    filling: &mut Filling<'_, '_>,
    left: &[&PlannedMove],
    spares: &mut Spares<'_>,
    detoured: &mut FxHashSet<RunIdx>,
) -> bool {
    let wanted: FxHashSet<NodeIdx> = left.iter().map(|one| one.to.0).collect();
    let mut candidates: Vec<&&PlannedMove> =
        left.iter().filter(|one| wanted.contains(&one.from.0) && !detoured.contains(&one.unit)).collect();
    candidates.sort_by_key(|one| (one.cost_ms, one.unit));
    for one in candidates {
        let shape = filling.layout.shape_of(one.unit);
        let owner = filling.layout.owner(one.unit);
        if filling.layout.rooms().shape(shape).is_fixed || !spares.may_move(owner) {
            continue;
        }
        let mut nodes: Vec<NodeIdx> =
            filling.layout.nodes().filter(|node| spares.may_be(filling.layout, one, *node)).collect();
        nodes.sort_by_key(|node| (wanted.contains(node), *node));
        for node in nodes {
            let Some(devices) = filling.layout.rooms().fit(shape, node) else { continue };
            if filling.add(one.unit, node, devices, true) {
                detoured.insert(one.unit);
                spares.note_move(owner);
                spares.group_of.insert(node, spares.group);
                return true;
            }
        }
    }
    false
}

/// Returns moves in reverse topological order of the components of their nodes, cheapest first inside of one.
fn receivers_first<'m>(moves: &[&'m PlannedMove]) -> Vec<&'m PlannedMove> {
    let mut graph: DiGraph<NodeIdx, ()> = DiGraph::new();
    let mut vertex = FxHashMap::default();
    for one in moves {
        let [from, to] =
            [one.from.0, one.to.0].map(|node| *vertex.entry(node).or_insert_with(|| graph.add_node(node)));
        graph.add_edge(from, to, ());
    }
    // Tarjan's algorithm gives components in reverse topological order: receivers first.
    let mut position = FxHashMap::default();
    for (at, component) in tarjan_scc(&graph).into_iter().enumerate() {
        for one in component {
            position.insert(graph[one], at);
        }
    }
    let place = |node: NodeIdx| position.get(&node).copied().unwrap_or(usize::MAX);
    let mut ordered = moves.to_vec();
    ordered.sort_by_key(|one| (place(one.to.0), place(one.from.0), one.cost_ms, one.unit));
    ordered
}
