//! Defragmentation: whole devices, nodes or topology domains become free for what needs them whole.
//!
//! Two aims. [`Aim::Room`] makes as many nodes or domains as possible have room for running units of one demand: the cheapest
//! ones to clear come first (branch and bound over the running units of a node, [`cheapest_clearing`]), and what leaves goes
//! where it raises the fragmentation least, not to nodes that are to be cleared themselves. [`Aim::Rate`] lowers the
//! fragmentation rate by annealing.
//!
//! [`let_in`](crate::let_in) is the same on demand: the moves that let one waiting gang in.

use std::collections::BTreeMap;

use godel_domain::demand::Demand;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    clearing::{Clearing, cheapest_clearing, evacuate},
    columns::enumerate_columns,
    domains::LayoutDomains,
    fragmentation::{Fragmentation, TypicalDemand},
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason},
    search::{Annealing, Draws, anneal, descend, n_steps_of},
    whole_shapes::WholeShapes,
    workspace::Workspace,
};

/// Nodes with room that are rated for each running unit that leaves: so many in all of a cluster of moderate size, fewer of a
/// larger one, so that a plan takes no more than seconds.
const N_LOOKS: usize = 512;
const N_LOOKS_MIN: usize = 32;
const N_NODES_MODERATE: usize = 2_000;
/// Domains in a row that could not be cleared after which a pass ends: those that follow are dearer.
const N_FAILED_MAX: usize = 300;
/// Passes over all domains, at most: each begins with what the last one left.
const N_PASSES: usize = 4;
/// Steps of a search for a lower rate in a small cluster, at most.
const N_STEPS_MAX: u64 = 6_000_000;
/// Nodes that are looked at for each running unit with devices before the annealing of a large cluster.
const N_TARGETS: usize = 24;

/// What defragmentation is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Aim {
    /// Room for running units of a demand.
    Room {
        /// The demand.
        demand: Demand,
        /// How many of them one domain is to have room for.
        n_copies: u32,
        /// Label of nodes that makes domains; `None`: each node is one.
        level: Option<String>,
        /// How many domains with room are enough; `None`: as many as possible.
        n_enough: Option<u32>,
        /// Most running units that may move for one more domain with room; `None`: any number.
        n_moves_each_max: Option<usize>,
    },
    /// A low fragmentation rate.
    Rate {
        /// Steps of the search for each running unit.
        n_steps_each: u64,
        /// The rate that is good enough.
        rate_max: f64,
    },
}

/// The policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Defragmentation {
    /// What it is for.
    pub aim: Aim,
    /// The work that the cluster sees most: what fragmentation is measured by.
    pub typical: Vec<TypicalDemand>,
}

/// The goal of [`Aim::Room`]: few domains without room, and of two layouts with as many the less fragmented one. The
/// fragmentation alone never outweighs a domain, and never rises above what it was.
pub(crate) struct RoomGoal {
    pub(crate) whole: WholeShapes,
    n_enough: Option<u32>,
    fragmentation: Fragmentation,
    at_first: f64,
}

impl RoomGoal {
    /// Returns the goal that `n_enough` domains, or as many as possible, have the room that `whole` counts.
    pub(crate) fn new(
        layout: &mut Layout<'_>,
        whole: WholeShapes,
        n_enough: Option<u32>,
        typical: &[TypicalDemand],
    ) -> Self {
        let mut goal =
            Self { whole, n_enough, fragmentation: Fragmentation::new(layout, typical), at_first: 0.0 };
        goal.at_first = goal.value();
        goal
    }

    fn lacking(&self, n_gained: f64) -> f64 {
        let whole = f64::from(u32::try_from(self.whole.n_whole()).unwrap_or(u32::MAX)) + n_gained;
        match self.n_enough {
            Some(enough) => (f64::from(enough) - whole).max(0.0),
            None => self.whole.value() - n_gained,
        }
    }

    /// Returns how many more domains with room are wanted.
    fn n_wanted(&self) -> usize {
        self.n_enough.map_or(usize::MAX, |enough| (enough as usize).saturating_sub(self.whole.n_whole()))
    }

    fn is_enough(&self) -> bool {
        self.lacking(0.0) < EPSILON
    }
}

impl Goal for RoomGoal {
    fn value(&self) -> f64 {
        self.lacking(0.0)
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        self.lacking(-self.whole.change(layout, unit, to)) - self.lacking(0.0)
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        self.whole.on_moved(layout, unit, from, to);
        self.fragmentation.on_moved(layout, unit, from, to);
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        if self.whole.on_node(to) == 0 {
            return None;
        }
        let rises = self.value() + self.change(layout, unit, to) > self.at_first + EPSILON;
        rises.then_some(CheckPoint::Enter)
    }
}

impl Defragmentation {
    fn room_goal(&self, layout: &mut Layout<'_>) -> Option<RoomGoal> {
        let Aim::Room { demand, n_copies, level, n_enough, .. } = &self.aim else { return None };
        let shape = layout.rooms_mut().intern(demand);
        let domains = LayoutDomains::new(layout, level.as_deref());
        let whole = WholeShapes::new(layout, shape, *n_copies, domains);
        Some(RoomGoal::new(layout, whole, *n_enough, &self.typical))
    }
}

impl Detector for Defragmentation {
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection {
        let suspects = || layout.running().collect();
        match &self.aim {
            Aim::Room { n_copies, level, .. } if goal.value() > 0.0 => Detection {
                suspects: suspects(),
                finding: format!(
                    "{:.0} of the {} that could have room for {n_copies} of the demand lack it",
                    goal.value(),
                    level.as_ref().map_or("nodes".to_owned(), |level| format!("domains by `{level}`")),
                ),
            },
            Aim::Rate { rate_max, .. } if goal.value() > *rate_max => Detection {
                suspects: suspects(),
                finding: format!(
                    "typical work cannot use {:.2} % of the devices, more than {:.2} %",
                    100.0 * goal.value(),
                    100.0 * rate_max
                ),
            },
            Aim::Room { .. } | Aim::Rate { .. } => Detection::default(),
        }
    }
}

impl Algorithm for Defragmentation {
    fn improve(&self, work: &mut Workspace<'_>, _detection: &Detection) {
        let mut layout = work.layout().clone();
        match &self.aim {
            Aim::Room { n_moves_each_max, .. } => {
                let Some(goal) = self.room_goal(&mut layout) else { return };
                clear_domains(work, goal, n_moves_each_max.unwrap_or(usize::MAX));
            }
            Aim::Rate { n_steps_each, .. } => {
                let n_running = u64::try_from(work.layout().n_running()).unwrap_or(u64::MAX);
                let one_device =
                    1.0 / f64::from(u32::try_from(work.layout().n_nodes()).unwrap_or(u32::MAX).max(1));
                let n_wanted = n_steps_each.saturating_mul(n_running);
                let annealing = Annealing {
                    n_steps: n_steps_of(*n_steps_each, n_running, N_STEPS_MAX),
                    first: one_device * 0.05,
                    last: one_device * 0.000_1,
                };
                if !annealing.is_whole(n_wanted) {
                    descend_rate(work);
                }
                anneal(work, &annealing.cooled(n_wanted), &mut any_move);
                enumerate_columns(work);
            }
        }
    }
}

/// Moves what lowers the rate most, as far as a few nodes for each running unit show: what has no devices is left alone.
fn descend_rate(work: &mut Workspace<'_>) {
    let layout = work.layout();
    let has_devices = |unit: &RunIdx| !layout.rooms().shape(layout.shape_of(*unit)).devices.is_empty();
    let units: Vec<RunIdx> = layout.running().filter(has_devices).collect();
    let mut draws = Draws::new(work.limits().seed);
    descend(work, &units, &mut |layout, _, nodes| {
        nodes.extend((0..N_TARGETS).map(|_| NodeIdx::at(draws.below(layout.n_nodes()))));
    });
}

/// Proposes any running unit and any node.
fn any_move(layout: &Layout<'_>, draws: &mut Draws) -> Option<(RunIdx, NodeIdx)> {
    let unit = RunIdx::at(draws.below(layout.n_running()));
    let node = NodeIdx::at(draws.below(layout.n_nodes()));
    layout.has_room(unit, node).then_some((unit, node))
}

/// A domain that could be cleared, with the least that has to leave for that, each node by itself.
struct DomainCandidate {
    domain: u32,
    cost_ms: u64,
    n_moves: usize,
}

/// Clears domains, cheapest first, in passes until one gains nothing.
pub(crate) fn clear_domains(work: &mut Workspace<'_>, mut goal: RoomGoal, n_moves_each_max: usize) {
    for _ in 0..N_PASSES {
        let mut candidates = candidates(work, &goal.whole);
        candidates.retain(|candidate| candidate.n_moves <= n_moves_each_max);
        candidates.sort_by_key(|one| (one.cost_ms, one.n_moves, one.domain));
        let (mut n_gained, mut n_failed) = (0, 0);
        let mut left = work.limits().n_moves_max.saturating_sub(work.layout().n_moved());
        // Those that the moves suffice for are to be cleared: nothing goes there.
        let mut is_target = vec![false; goal.whole.domains().len()];
        let n_wanted = goal.n_wanted();
        for candidate in candidates.iter().take(n_wanted) {
            if candidate.n_moves > left {
                break;
            }
            left -= candidate.n_moves;
            is_target[candidate.domain as usize] = true;
        }
        for candidate in &candidates {
            if goal.is_enough() {
                return;
            }
            let is_cleared = clear(work, &mut goal, candidate.domain, &is_target, n_moves_each_max);
            n_gained += usize::from(is_cleared);
            is_target[candidate.domain as usize] = is_cleared;
            n_failed = if is_cleared { 0 } else { n_failed + 1 };
            if n_failed > N_FAILED_MAX {
                break;
            }
        }
        if n_gained == 0 {
            return;
        }
    }
}

fn candidates(work: &Workspace<'_>, whole: &WholeShapes) -> Vec<DomainCandidate> {
    let domains = 0..u32::try_from(whole.domains().len()).unwrap_or(u32::MAX);
    let lacking = domains.filter(|domain| whole.is_possible(*domain) && !whole.is_whole(*domain));
    lacking
        .filter_map(|domain| {
            let needed = whole.n_copies().saturating_sub(whole.in_domain(domain));
            let mut options: Vec<(Clearing, NodeIdx)> = Vec::new();
            for node in whole.domains().nodes(domain) {
                let most = if needed == 1 { 1 } else { needed.min(8) };
                let on_node = whole.on_node(*node);
                let mut before = (0, 0);
                for more in 1..=most {
                    let Some(clearing) = next_clearing(work, whole, *node, on_node + more) else { break };
                    let step = (clearing.cost_ms.saturating_sub(before.0), clearing.units.len());
                    before = (clearing.cost_ms, clearing.units.len());
                    options.push((Clearing { cost_ms: step.0, units: clearing.units }, *node));
                }
            }
            options.sort_by_key(|(one, _)| (one.cost_ms, one.units.len()));
            let mut left_in: FxHashMap<u32, u32> = FxHashMap::default();
            options.retain(|(_, node)| {
                let Some(share) = whole.limits().share(*node) else { return true };
                let left = left_in.entry(share).or_insert_with(|| whole.left_in(share));
                let has_left = *left > 0;
                *left = left.saturating_sub(1);
                has_left
            });
            let taken = options.iter().take(needed as usize).map(|(one, _)| one);
            let n_options = taken.clone().count();
            (n_options == needed as usize).then(|| DomainCandidate {
                domain,
                cost_ms: taken.clone().fold(0, |sum: u64, one| sum.saturating_add(one.cost_ms)),
                n_moves: taken.map(|one| one.units.len()).sum(),
            })
        })
        .collect()
}

fn next_clearing(
    work: &Workspace<'_>,
    whole: &WholeShapes,
    node: NodeIdx,
    n_copies: u32,
) -> Option<Clearing> {
    let is_usable = work.layout().node(node).accepts && work.is_in_scope(node);
    if !is_usable || !whole.counts_more(node, n_copies.saturating_sub(1)) {
        return None;
    }
    cheapest_clearing(work.layout(), node, whole.shape(), n_copies, &|unit| work.is_movable(unit))
}

/// The cheapest clearing of each node of a domain for one more running unit of the demand there, in order of cost. Only nodes that have changed
/// are looked at again: a domain may be all of a large cluster.
struct DomainClearings {
    domain: u32,
    in_order: BTreeMap<ClearingKey, Vec<RunIdx>>,
    of_node: FxHashMap<NodeIdx, ClearingKey>,
}

/// What leaves by a clearing, in milliseconds of work, and how many; and the node.
type ClearingKey = (u64, usize, NodeIdx);

impl DomainClearings {
    fn new(work: &Workspace<'_>, whole: &WholeShapes, domain: u32) -> Self {
        let mut clearings = Self { domain, in_order: BTreeMap::new(), of_node: FxHashMap::default() };
        for node in whole.domains().nodes(domain) {
            clearings.put_back(work, whole, *node);
        }
        clearings
    }

    /// Returns the nodes that are cheapest to clear.
    fn cheapest(&self, n: usize) -> impl Iterator<Item = NodeIdx> {
        self.in_order.keys().take(n).map(|(_, _, node)| *node)
    }

    /// Takes out the cheapest node, with what leaves.
    fn take_first(&mut self) -> Option<(NodeIdx, Vec<RunIdx>)> {
        let ((_, _, node), units) = self.in_order.pop_first()?;
        self.of_node.remove(&node);
        Some((node, units))
    }

    /// Looks at a node, which is not in.
    fn put_back(&mut self, work: &Workspace<'_>, whole: &WholeShapes, node: NodeIdx) {
        let Some(Clearing { cost_ms, units }) = next_clearing(work, whole, node, whole.on_node(node) + 1)
        else {
            return;
        };
        let key = (cost_ms, units.len(), node);
        self.in_order.insert(key, units);
        self.of_node.insert(node, key);
    }

    /// Looks again at a node that received something, unless it is out: it cannot be cleared, or is of another domain.
    fn renew(&mut self, work: &Workspace<'_>, whole: &WholeShapes, node: NodeIdx) {
        let is_inside = whole.domains().of(node) == Some(self.domain);
        if let Some(key) = self.of_node.remove(&node).filter(|_| is_inside) {
            self.in_order.remove(&key);
            self.put_back(work, whole, node);
        }
    }
}

/// Clears one domain: one more running unit of the demand at a time, where that is cheapest now. If it cannot be cleared whole,
/// or makes the fragmentation worse than it was at first, it stays as it is.
fn clear(
    work: &mut Workspace<'_>,
    goal: &mut RoomGoal,
    domain: u32,
    is_target: &[bool],
    n_moves_max: usize,
) -> bool {
    let mark = work.mark();
    let n_moved = work.layout().n_moved();
    let n_looks = (N_LOOKS * N_NODES_MODERATE / work.layout().n_nodes().max(1)).clamp(N_LOOKS_MIN, N_LOOKS);
    let mut clearings = DomainClearings::new(work, &goal.whole, domain);
    let mut made: Vec<(RunIdx, NodeIdx, NodeIdx)> = Vec::new();
    while !goal.whole.is_whole(domain) {
        // Nodes of the domain that are to be cleared as well receive nothing.
        let n_missing = goal.whole.n_copies().saturating_sub(goal.whole.in_domain(domain)) as usize;
        let next: FxHashSet<NodeIdx> = clearings.cheapest(n_missing).collect();
        let Some((node, units)) = clearings.take_first() else { break };
        if !goal.whole.counts_more(node, goal.whole.on_node(node)) {
            continue;
        }
        let before: Vec<(RunIdx, NodeIdx)> =
            units.iter().map(|unit| (*unit, work.layout().node_of(*unit))).collect();
        let strict = evacuate(work, &units, n_looks, &mut |work, unit, to| {
            let is_next = next.contains(&to);
            if is_next { None } else { receiver_rating(work, goal, unit, to, domain, is_target) }
        });
        let is_cleared = strict
            || evacuate(work, &units, n_looks, &mut |work, unit, to| {
                if to == node { None } else { receiver_rating(work, goal, unit, to, domain, is_target) }
            });
        if !is_cleared {
            continue;
        }
        for (unit, from) in before {
            let to = work.layout().node_of(unit);
            goal.on_moved(work.layout(), unit, from, to);
            made.push((unit, from, to));
            clearings.renew(work, &goal.whole, to);
        }
        clearings.put_back(work, &goal.whole, node);
    }
    let n_moves = work.layout().n_moved().saturating_sub(n_moved);
    let is_worse = goal.fragmentation.rate() > goal.fragmentation.rate_at_first() + EPSILON;
    if goal.whole.is_whole(domain) && n_moves <= n_moves_max && !is_worse {
        return true;
    }
    work.undo_to(mark);
    for (unit, from, to) in made {
        goal.on_moved(work.layout(), unit, to, from);
    }
    false
}

/// Rates a node as the next one of a running unit that leaves: by how much its fragmentation rises. What there is of whole room
/// stays whole, and other domains that are to be cleared do not receive.
fn receiver_rating(
    work: &Workspace<'_>,
    goal: &RoomGoal,
    unit: RunIdx,
    to: NodeIdx,
    clearing: u32,
    is_target: &[bool],
) -> Option<f64> {
    if let Some(domain) = goal.whole.domains().of(to) {
        let is_kept = is_target.get(domain as usize).copied().unwrap_or(false);
        let has_copies = goal.whole.on_node(to) > 0;
        if has_copies && (domain == clearing || goal.whole.is_whole(domain)) || is_kept && domain != clearing
        {
            return None;
        }
    }
    let layout = work.layout();
    goal.fragmentation.rise(layout, layout.shape_of(unit), to)
}

impl Policy for Defragmentation {
    fn name(&self) -> &'static str {
        "defragmentation"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        match self.room_goal(layout) {
            Some(goal) => Box::new(goal),
            None => Box::new(Fragmentation::new(layout, &self.typical)),
        }
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        moved.iter().map(|unit| reason(before, after, *unit)).collect()
    }
}

/// Returns why a running unit moved to make room.
pub(crate) fn reason(before: &Layout<'_>, after: &Layout<'_>, unit: RunIdx) -> Reason {
    let (from, to) = (before.node_of(unit), after.node_of(unit));
    let left = |layout: &Layout<'_>, node: NodeIdx| {
        f64::from(layout.rooms().devices_left(node).iter().map(|left| (*left).max(0)).sum::<i32>())
    };
    Reason {
        why_unit: format!(
            "`{}` is among the cheapest of `{}` to move",
            before.owner_facts(unit).name,
            before.node(from).name
        ),
        why_node: format!("`{}` has room for it that whole demands cannot use", before.node(to).name),
        why_now: String::new(),
        numbers: vec![
            ("milliseconds of work lost", ms(before.cost(unit))),
            ("device thousandths free on its node before", left(before, from)),
            ("device thousandths free on its node after", left(after, from)),
            ("device thousandths free on the target before", left(before, to)),
            ("device thousandths free on the target after", left(after, to)),
        ],
    }
}

/// Milliseconds as a number of a reason.
fn ms(cost: u64) -> f64 {
    f64::from(u32::try_from(cost).unwrap_or(u32::MAX))
}
