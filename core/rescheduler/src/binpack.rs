//! Bin packing: as few nodes as possible have work, so that the others can be given back.
//!
//! The least used nodes are emptied first, and of those the ones that would be in use longest: what ends soon by itself needs no
//! move. What leaves goes where the least stays free, as in best fit.

use godel_base::time::Millis;
use godel_domain::unit::WorkloadClass;

use crate::{
    clearing::evacuate,
    goal::{CheckPoint, Goal},
    layout::{Layout, NodeIdx, RunIdx},
    policy::{Algorithm, Detection, Detector, Policy, Reason},
    workspace::Workspace,
};

/// Nodes with room that are rated for each running unit that leaves.
const N_LOOKS: usize = 256;
/// Nodes that differ less in use than this count as alike: then the time decides.
const N_STEPS_OF_USE: f64 = 10.0;

/// The policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Binpack {
    /// Nodes that use more than this share of the resource of which they use most are not emptied.
    pub use_max: f64,
    /// Nodes that are empty by themselves within this time are left alone, milliseconds.
    pub ends_within_ms: u64,
}

impl Default for Binpack {
    fn default() -> Self {
        Self { use_max: 0.5, ends_within_ms: 600_000 }
    }
}

/// Whether a running unit keeps its node in use: a daemon does not, since it is on every node.
fn keeps_in_use(layout: &Layout<'_>, unit: RunIdx) -> bool {
    layout.owner_facts(unit).class != WorkloadClass::Daemon
}

/// How many nodes have work.
struct BinpackGoal {
    n_working: Vec<u32>,
    n_used: u32,
}

impl BinpackGoal {
    fn new(layout: &Layout<'_>) -> Self {
        let n_working: Vec<u32> = layout
            .nodes()
            .map(|node| layout.on(node).iter().filter(|unit| keeps_in_use(layout, **unit)).map(|_| 1).sum())
            .collect();
        let n_used = n_working.iter().map(|n| u32::from(*n > 0)).sum();
        Self { n_working, n_used }
    }

    fn is_used(&self, node: NodeIdx) -> bool {
        self.n_working[node.idx()] > 0
    }
}

impl Goal for BinpackGoal {
    fn value(&self) -> f64 {
        f64::from(self.n_used)
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let from = layout.node_of(unit);
        if from == to || !keeps_in_use(layout, unit) {
            return 0.0;
        }
        f64::from(u8::from(!self.is_used(to))) - f64::from(u8::from(self.n_working[from.idx()] == 1))
    }

    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        if !keeps_in_use(layout, unit) {
            return;
        }
        self.n_working[from.idx()] -= 1;
        self.n_used -= u32::from(self.n_working[from.idx()] == 0);
        self.n_used += u32::from(self.n_working[to.idx()] == 0);
        self.n_working[to.idx()] += 1;
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        (self.change(layout, unit, to) > 0.0).then_some(CheckPoint::Enter)
    }
}

/// Returns the share of a resource of which a node uses most.
fn use_of(layout: &Layout<'_>, node: NodeIdx) -> f64 {
    let amounts = layout.rooms().free_amounts(node).iter().zip(layout.rooms().capacity(node));
    let of_amounts = amounts.filter(|(_, has)| **has > 0).map(|(free, has)| 1.0 - ratio(*free, *has));
    let left = layout.rooms().devices_left(node);
    let whole = i64::try_from(left.len()).unwrap_or(0) * 1_000;
    let free: i64 = left.iter().map(|left| i64::from(*left)).sum();
    let of_devices = if whole > 0 { 1.0 - ratio(free, whole) } else { 0.0 };
    of_amounts.fold(of_devices, f64::max)
}

fn ratio(part: i64, whole: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "shares need no more than 53 bits")]
    let ratio = part as f64 / whole as f64;
    ratio
}

impl Binpack {
    /// Returns the nodes that are worth emptying, first ones first.
    fn candidates(&self, layout: &Layout<'_>) -> Vec<NodeIdx> {
        let soon = layout.snapshot().now.plus(self.ends_within_ms);
        let never = Millis(u64::MAX);
        let mut nodes: Vec<(f64, std::cmp::Reverse<Millis>, NodeIdx)> = layout
            .nodes()
            .filter_map(|node| {
                let working = layout.on(node).iter().filter(|unit| keeps_in_use(layout, **unit));
                let end = working.map(|unit| layout.facts(*unit).ends_at.unwrap_or(never)).max()?;
                let share = use_of(layout, node);
                (share <= self.use_max && end > soon)
                    .then(|| ((share * N_STEPS_OF_USE).floor(), std::cmp::Reverse(end), node))
            })
            .collect();
        nodes.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        nodes.into_iter().map(|(_, _, node)| node).collect()
    }
}

impl Detector for Binpack {
    fn detect(&self, layout: &Layout<'_>, goal: &dyn Goal) -> Detection {
        let nodes = self.candidates(layout);
        let on_node = |node: &NodeIdx| layout.on(*node).iter().copied();
        let suspects = nodes.iter().flat_map(on_node).filter(|unit| keeps_in_use(layout, *unit)).collect();
        let finding = format!(
            "{} of the {:.0} nodes with work use at most {:.0} % of what they have",
            nodes.len(),
            goal.value(),
            100.0 * self.use_max
        );
        Detection { suspects, finding }
    }
}

impl Algorithm for Binpack {
    fn improve(&self, work: &mut Workspace<'_>, _detection: &Detection) {
        let nodes = self.candidates(work.layout());
        let mut may_receive = vec![true; work.layout().n_nodes()];
        // The first half is what there may be room for: nothing goes there that would leave again.
        for node in nodes.iter().take(nodes.len() / 2) {
            may_receive[node.idx()] = false;
        }
        for node in nodes {
            let layout = work.layout();
            let units: Vec<RunIdx> =
                layout.on(node).iter().copied().filter(|unit| keeps_in_use(layout, *unit)).collect();
            let n_left = work.limits().n_moves_max.saturating_sub(layout.n_moved());
            let n_new = units.iter().filter(|unit| !layout.is_moved(**unit)).count();
            if n_new > n_left || !units.iter().all(|unit| work.is_movable(*unit)) {
                may_receive[node.idx()] = true;
                continue;
            }
            may_receive[node.idx()] = false;
            let is_empty = evacuate(work, &units, N_LOOKS, &mut |work, _, to| {
                let layout = work.layout();
                let in_use = layout.on(to).iter().any(|unit| keeps_in_use(layout, *unit));
                (in_use && may_receive[to.idx()]).then(|| 1.0 - use_of(layout, to))
            });
            may_receive[node.idx()] = !is_empty;
        }
    }
}

impl Policy for Binpack {
    fn name(&self) -> &'static str {
        "binpack"
    }

    fn goal<'a>(&'a self, layout: &mut Layout<'_>) -> Box<dyn Goal + 'a> {
        Box::new(BinpackGoal::new(layout))
    }

    fn reasons(&self, before: &Layout<'_>, after: &Layout<'_>, moved: &[RunIdx]) -> Vec<Reason> {
        moved.iter().map(|unit| self.reason(before, after, *unit)).collect()
    }
}

impl Binpack {
    fn reason(&self, before: &Layout<'_>, after: &Layout<'_>, unit: RunIdx) -> Reason {
        let (from, to) = (before.node_of(unit), after.node_of(unit));
        let percent = |layout: &Layout<'_>, node: NodeIdx| 100.0 * use_of(layout, node);
        Reason {
            why_unit: format!(
                "`{}` is on `{}`, which becomes empty",
                before.owner_facts(unit).name,
                before.node(from).name
            ),
            why_node: format!(
                "`{}` has work already, and little is left of it with this",
                before.node(to).name
            ),
            why_now: String::new(),
            numbers: vec![
                ("use of its node before, %", percent(before, from)),
                ("use of its node after, %", percent(after, from)),
                ("use of the target before, %", percent(before, to)),
                ("use of the target after, %", percent(after, to)),
            ],
        }
    }
}
