//! Load balance: no node is hot by what its running units really use, of CPU and of the network.
//!
//! A node is hot above one threshold, and receives only up to a lower one (hysteresis), so that what was moved away from a hot
//! spot does not make the next one. A running unit that is hot by itself wherever it goes stays where it is.

use crate::{
    goal::{CheckPoint, EPSILON, Goal},
    layout::{Layout, NodeIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason},
    snapshot::{MeasuredUse, NodeFacts},
    workspace::Workspace,
};
use godel_base::resources::{CPU, NETWORK};

/// Share of its CPU or network above which a node is hot, unless a policy says otherwise.
pub(crate) const HOT: f64 = 0.85;
/// What is measured: CPU and network.
const N_MEASURES: usize = 2;
/// Nodes with enough room in their load that are tried for one running unit.
const N_TRIES: usize = 32;
/// Running units of one node that are tried in an exchange.
const N_EXCHANGES: usize = 16;
/// Nodes that one plan looks at, once for each running unit that looks, so that a plan for a large cluster takes no more than seconds where
/// nothing helps. A hot node of a cluster of 20,000 that cannot be cooled takes some 500,000 looks.
const N_NODES_LOOKED: usize = 400_000_000;

/// The policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadBalance {
    /// A node that uses more than this share of what it has is hot.
    pub hot: f64,
    /// A node receives as long as it uses no more than this share with what comes; not above `hot`.
    pub calm: f64,
}

impl Default for LoadBalance {
    fn default() -> Self {
        Self { hot: HOT, calm: 0.8 }
    }
}

/// A quantity as a number to compute with; exact up to 2^53.
fn number(amount: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 53 bits")]
    let number = amount as f64;
    number
}

fn measures(usage: MeasuredUse) -> [f64; N_MEASURES] {
    [number(usage.cpu_milli), number(usage.network_bps)]
}

/// What every node uses of what it has.
#[derive(Clone, Debug)]
struct LoadGoal {
    policy: LoadBalance,
    capacity: Vec<[f64; N_MEASURES]>,
    used: Vec<[f64; N_MEASURES]>,
    sum: f64,
}

impl LoadGoal {
    fn new(layout: &Layout<'_>, policy: LoadBalance) -> Self {
        let mut goal = Self { policy, capacity: Vec::new(), used: Vec::new(), sum: 0.0 };
        for node in layout.nodes() {
            let has = &layout.node(node).capacity;
            goal.capacity.push([number(has.get(CPU)), number(has.get(NETWORK))]);
            let used = used_on(layout, node);
            goal.used.push(used);
            goal.sum += goal.heat(node, used);
        }
        goal
    }

    /// Returns the share that a node would use of each measure.
    fn shares(&self, node: NodeIdx, used: [f64; N_MEASURES]) -> [f64; N_MEASURES] {
        let mut shares = [0.0; N_MEASURES];
        for (at, share) in shares.iter_mut().enumerate() {
            let capacity = self.capacity[node.idx()][at];
            *share = if capacity > 0.0 { used[at] / capacity } else { 0.0 };
        }
        shares
    }

    /// Returns how hot a node would be: for each measure above the threshold 1, and by how much it is above.
    fn heat(&self, node: NodeIdx, used: [f64; N_MEASURES]) -> f64 {
        let shares = self.shares(node, used).into_iter();
        let above = shares.map(|share| share - self.policy.hot).filter(|above| *above > EPSILON);
        above.map(|above| 1.0 + above).sum()
    }

    fn is_hot(&self, node: NodeIdx) -> bool {
        self.heat(node, self.used[node.idx()]) > 0.0
    }

    fn with(&self, node: NodeIdx, more: [f64; N_MEASURES], sign: f64) -> [f64; N_MEASURES] {
        let mut used = self.used[node.idx()];
        used.iter_mut().zip(more).for_each(|(sum, more)| *sum += sign * more);
        used
    }

    /// Returns the greatest share that a node would use with a running unit more.
    fn share_with(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> f64 {
        let used = self.with(node, measures(layout.facts(unit).usage), 1.0);
        self.shares(node, used).into_iter().fold(0.0, f64::max)
    }
}

impl Goal for LoadGoal {
    fn value(&self) -> f64 {
        // What rounding has left of heat that is gone is none.
        if self.sum > EPSILON { self.sum } else { 0.0 }
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let from = layout.node_of(unit);
        if from == to {
            return 0.0;
        }
        let more = measures(layout.facts(unit).usage);
        let of = |node: NodeIdx, sign: f64| {
            self.heat(node, self.with(node, more, sign)) - self.heat(node, self.used[node.idx()])
        };
        of(from, -1.0) + of(to, 1.0)
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        let more = measures(layout.facts(unit).usage);
        for (node, sign) in [(from, -1.0), (to, 1.0)] {
            let used = self.with(node, more, sign);
            self.sum += self.heat(node, used) - self.heat(node, self.used[node.idx()]);
            self.used[node.idx()] = used;
        }
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        let used = self.with(to, measures(layout.facts(unit).usage), 1.0);
        let hotter = self.heat(to, used) > self.heat(to, self.used[to.idx()]) + EPSILON;
        hotter.then_some(CheckPoint::Enter)
    }
}

/// How many nodes are hot by a measure, and how many of these one running unit alone makes hot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotNodes {
    /// Hot nodes, without those of `alone`.
    pub hot: usize,
    /// Nodes that one of their running units would make hot by itself.
    pub alone: usize,
}

impl LoadBalance {
    /// Counts the nodes that are hot by CPU and by network.
    pub fn hot_nodes(&self, layout: &Layout<'_>) -> [HotNodes; N_MEASURES] {
        let goal = LoadGoal::new(layout, *self);
        let mut counts = [HotNodes::default(); N_MEASURES];
        for node in layout.nodes() {
            let shares = goal.shares(node, goal.used[node.idx()]);
            for (at, count) in
                counts.iter_mut().enumerate().filter(|(at, _)| shares[*at] > self.hot + EPSILON)
            {
                let alone = layout.on(node).iter().any(|unit| {
                    goal.shares(node, measures(layout.facts(*unit).usage))[at] > self.hot + EPSILON
                });
                if alone { count.alone += 1 } else { count.hot += 1 }
            }
        }
        counts
    }
}

impl Detector for LoadBalance {
    fn detect(&self, layout: &Layout<'_>, _goal: &dyn Goal) -> Detection {
        let loads = LoadGoal::new(layout, *self);
        let mut hot: Vec<NodeIdx> = layout.nodes().filter(|node| loads.is_hot(*node)).collect();
        hot.sort_by(|a, b| {
            let heat = |node: &NodeIdx| loads.heat(*node, loads.used[node.idx()]);
            heat(b).total_cmp(&heat(a)).then(a.cmp(b))
        });
        let suspects = hot.iter().flat_map(|node| layout.on(*node).iter().copied()).collect();
        let mut finding =
            format!("{} nodes use more than {:.0} % of their CPU or network", hot.len(), 100.0 * self.hot);
        let n_by_others = hot.iter().filter(|node| is_busy(layout.node(**node), self.hot)).count();
        if n_by_others > 0 {
            finding.push_str(&format!(
                ", {n_by_others} of them by load that is not godel's, which no move takes away"
            ));
        }
        Detection { suspects, finding }
    }
}

impl Algorithm for LoadBalance {
    fn improve(&self, work: &mut Workspace<'_>, detection: &Detection) {
        let mut loads = LoadGoal::new(work.layout(), *self);
        let mut hot: Vec<NodeIdx> =
            detection.suspects.iter().map(|unit| work.layout().node_of(*unit)).collect();
        hot.dedup();
        let n_nodes = work.layout().n_nodes();
        let mut n_looks_left = N_NODES_LOOKED;
        for node in hot {
            while loads.is_hot(node) {
                // One running unit that moves has looked once, as a rule; nobody has moved only after all have looked.
                let n_able = work.layout().on(node).iter().filter(|unit| work.may_still_move(**unit)).count();
                let n_lookers = n_able + n_able.min(N_EXCHANGES);
                let is_cooler = self.cool(work, &mut loads, node);
                let n_looks = if is_cooler { n_nodes } else { n_lookers * n_nodes };
                n_looks_left = n_looks_left.saturating_sub(n_looks);
                if n_looks_left == 0 {
                    return;
                }
                if !is_cooler {
                    break;
                }
            }
        }
    }
}

impl LoadBalance {
    /// Makes one move or exchange that leaves a node less hot; says whether there was one.
    fn cool(&self, work: &mut Workspace<'_>, loads: &mut LoadGoal, node: NodeIdx) -> bool {
        let layout = work.layout();
        let mut units: Vec<(f64, f64, RunIdx)> = layout
            .on(node)
            .iter()
            .filter(|unit| work.may_still_move(**unit))
            .map(|unit| {
                let usage = measures(layout.facts(*unit).usage);
                let left = loads.heat(node, loads.with(node, usage, -1.0));
                let shares = loads.shares(node, usage);
                (left, shares.into_iter().sum(), *unit)
            })
            .collect();
        // What leaves the least heat behind, and of that what uses least.
        units.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let units: Vec<RunIdx> = units.into_iter().map(|(_, _, unit)| unit).collect();
        for unit in &units {
            for to in self.calm_nodes(work, loads, *unit) {
                if work.change(*unit, to) < -EPSILON && work.try_move(*unit, to) {
                    loads.on_moved(work.layout(), *unit, node, to);
                    return true;
                }
            }
        }
        units.iter().take(N_EXCHANGES).any(|unit| self.exchange(work, loads, *unit))
    }

    /// Returns nodes that would stay calm with a running unit, the calmest first.
    fn calm_nodes(&self, work: &Workspace<'_>, loads: &LoadGoal, unit: RunIdx) -> Vec<NodeIdx> {
        let layout = work.layout();
        let mut calm: Vec<(f64, NodeIdx)> = layout
            .nodes()
            .filter_map(|node| {
                Some((loads.share_with(layout, unit, node), node)).filter(|(share, _)| *share <= self.calm)
            })
            .filter(|(_, node)| layout.has_room(unit, *node))
            .collect();
        if calm.len() > N_TRIES {
            calm.select_nth_unstable_by(N_TRIES, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            calm.truncate(N_TRIES);
        }
        calm.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        calm.into_iter().map(|(_, node)| node).collect()
    }

    /// Lets a running unit change places with one that uses less, where both nodes are better for it.
    fn exchange(&self, work: &mut Workspace<'_>, loads: &mut LoadGoal, unit: RunIdx) -> bool {
        let layout = work.layout();
        let here = layout.node_of(unit);
        let own = measures(layout.facts(unit).usage);
        let mut calm: Vec<(f64, NodeIdx)> = layout
            .nodes()
            .filter(|node| *node != here && !loads.is_hot(*node))
            .map(|node| (loads.shares(node, loads.used[node.idx()]).into_iter().fold(0.0, f64::max), node))
            .collect();
        calm.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, there) in calm.into_iter().take(N_TRIES) {
            let others: Vec<RunIdx> = work.layout().on(there).iter().copied().take(N_EXCHANGES).collect();
            for other in others.into_iter().filter(|other| work.may_still_move(*other)).collect::<Vec<_>>() {
                let less = measures(work.layout().facts(other).usage);
                let mut difference = own;
                difference.iter_mut().zip(less).for_each(|(own, less)| *own -= less);
                let used = loads.with(there, difference, 1.0);
                let is_calm = loads.shares(there, used).into_iter().all(|share| share <= self.calm);
                let is_cooler = loads.heat(here, loads.with(here, difference, -1.0))
                    < loads.heat(here, loads.used[here.idx()]) - EPSILON;
                if is_calm && is_cooler && work.try_exchange(unit, other) {
                    loads.on_moved(work.layout(), unit, here, there);
                    loads.on_moved(work.layout(), other, there, here);
                    return true;
                }
            }
        }
        false
    }
}

impl Policy for LoadBalance {
    fn name(&self) -> &'static str {
        "load-balance"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        Box::new(LoadGoal::new(layout, *self))
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        moved.iter().map(|unit| self.reason(before, after, *unit)).collect()
    }
}

impl LoadBalance {
    fn reason(&self, before: &Layout<'_>, after: &Layout<'_>, unit: RunIdx) -> Reason {
        let (from, to) = (before.node_of(unit), after.node_of(unit));
        let shares =
            |layout: &Layout<'_>, node: NodeIdx| node_shares(layout, node).map(|share| 100.0 * share);
        let ([cpu, network], [cpu_after, network_after]) = (shares(before, from), shares(after, from));
        let [target_cpu, target_network] = shares(after, to);
        let hot = 100.0 * self.hot;
        let name = &before.owner_facts(unit).name;
        let node = &before.node(from).name;
        let why_unit = if cpu > hot || network > hot {
            format!(
                "without `{name}`, `{node}` is less hot, and few others use so little and cool it as much"
            )
        } else {
            format!("`{name}` makes room for what has to leave a hot node")
        };
        Reason {
            why_unit,
            why_node: format!(
                "`{}` stays at or below {:.0} % with it",
                before.node(to).name,
                100.0 * self.calm
            ),
            why_now: String::new(),
            numbers: vec![
                ("CPU of its node before, %", cpu),
                ("CPU of its node after, %", cpu_after),
                ("network of its node before, %", network),
                ("network of its node after, %", network_after),
                ("CPU of the target after, %", target_cpu),
                ("network of the target after, %", target_network),
            ],
        }
    }
}

/// Whether a node is hot by what others than its running units use.
pub(crate) fn is_busy(node: &NodeFacts, hot: f64) -> bool {
    let capacity = [number(node.capacity.get(CPU)), number(node.capacity.get(NETWORK))];
    let shares = measures(node.other_use).into_iter().zip(capacity);
    shares.filter(|(_, has)| *has > 0.0).any(|(used, has)| used / has > hot + EPSILON)
}

/// What a node uses of each measure: its running units, and others.
fn used_on(layout: &Layout<'_>, node: NodeIdx) -> [f64; N_MEASURES] {
    let mut used = measures(layout.node(node).other_use);
    for unit in layout.on(node) {
        used.iter_mut().zip(measures(layout.facts(*unit).usage)).for_each(|(sum, more)| *sum += more);
    }
    used
}

fn node_shares(layout: &Layout<'_>, node: NodeIdx) -> [f64; N_MEASURES] {
    let has = &layout.node(node).capacity;
    let used = used_on(layout, node);
    let capacity = [number(has.get(CPU)), number(has.get(NETWORK))];
    let share = |at: usize| if capacity[at] > 0.0 { used[at] / capacity[at] } else { 0.0 };
    [share(0), share(1)]
}
