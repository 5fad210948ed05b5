//! Which running units have to leave a node so that something fits there, and where they go.

use crate::{
    layout::{Layout, NodeIdx, RunIdx, ShapeIdx},
    workspace::Workspace,
};

/// Sets that the search for the cheapest clearing looks at, at most; beyond them the best found counts.
const N_SETS_MAX: u32 = 500;

/// Running units that leave a node together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clearing {
    /// What their moves cost, milliseconds of work.
    pub cost_ms: u64,
    /// They.
    pub units: Vec<RunIdx>,
}

impl Clearing {
    fn of(layout: &Layout<'_>, units: Vec<RunIdx>) -> Self {
        let cost_ms = units.iter().fold(0, |sum: u64, unit| sum.saturating_add(layout.cost(*unit)));
        Self { cost_ms, units }
    }

    fn key(&self) -> (u64, usize) {
        (self.cost_ms, self.units.len())
    }
}

/// Returns the cheapest set of running units of a node without which `n_copies` of a demand fit there; `None`: there is none.
/// Among the running units, `may_leave` says who may be in the set.
///
/// Branch and bound over the running units, dearest kept first, from a greedy set as the first bound.
pub fn cheapest_clearing(
    layout: &Layout<'_>,
    node: NodeIdx,
    shape: ShapeIdx,
    n_copies: u32,
    may_leave: &dyn Fn(RunIdx) -> bool,
) -> Option<Clearing> {
    let fits = |gone: &[RunIdx]| {
        layout.rooms().copies_in(shape, node, layout.room_without(node, gone), n_copies) >= n_copies
    };
    if fits(&[]) {
        return Some(Clearing::default());
    }
    let mut units: Vec<RunIdx> = layout.on(node).iter().copied().filter(|unit| may_leave(*unit)).collect();
    if !fits(&units) {
        return None;
    }
    let relief = |unit: RunIdx| {
        let shape = layout.rooms().shape(layout.shape_of(unit));
        (shape.device_milli(), shape.amounts.first().copied().unwrap_or(0))
    };
    units.sort_by_key(|unit| (std::cmp::Reverse(layout.cost(*unit)), relief(*unit), *unit));
    // All leave but those who need not, dearest and smallest first.
    let mut greedy = units.clone();
    for unit in &units {
        let without: Vec<RunIdx> = greedy.iter().copied().filter(|other| other != unit).collect();
        if fits(&without) {
            greedy = without;
        }
    }
    let mut best = Clearing::of(layout, greedy);
    let mut chosen = Vec::new();
    let mut n_sets = 0;
    units.reverse();
    branch(layout, &units, &fits, &mut chosen, &mut best, &mut n_sets);
    best.units.sort_unstable();
    Some(best)
}

/// Tries all sets that begin with `chosen` and are cheaper than the best one.
fn branch(
    layout: &Layout<'_>,
    rest: &[RunIdx],
    fits: &dyn Fn(&[RunIdx]) -> bool,
    chosen: &mut Vec<RunIdx>,
    best: &mut Clearing,
    n_sets: &mut u32,
) {
    for (at, unit) in rest.iter().enumerate() {
        if *n_sets >= N_SETS_MAX {
            return;
        }
        *n_sets += 1;
        chosen.push(*unit);
        let clearing = Clearing::of(layout, chosen.clone());
        if clearing.key() < best.key() {
            if fits(chosen) {
                *best = clearing;
            } else {
                branch(layout, &rest[at + 1..], fits, chosen, best, n_sets);
            }
        }
        chosen.pop();
    }
}

/// Moves running units away, each to the node that `rate` rates lowest, largest first. `rate` returns `None` for nodes that
/// must not receive. Where one finds no place, all stay, and the answer is no. At most `n_looks` nodes that have room are rated
/// for each.
pub fn evacuate(
    work: &mut Workspace<'_>,
    units: &[RunIdx],
    n_looks: usize,
    rate: &mut dyn FnMut(&Workspace<'_>, RunIdx, NodeIdx) -> Option<f64>,
) -> bool {
    let mark = work.mark();
    let mut ordered = units.to_vec();
    ordered.sort_by_key(|unit| {
        let shape = work.layout().rooms().shape(work.layout().shape_of(*unit));
        (std::cmp::Reverse((shape.device_milli(), shape.amounts.first().copied())), *unit)
    });
    let n_nodes = work.layout().n_nodes();
    for unit in ordered {
        // From the node's own position on, so that bounded looks do not all go to the same nodes.
        let start = work.layout().node_of(unit).idx();
        let mut rated: Vec<(f64, NodeIdx)> = (1..n_nodes)
            .map(|step| NodeIdx::at((start + step) % n_nodes))
            .filter(|node| work.layout().has_room(unit, *node))
            .filter_map(|node| Some((rate(work, unit, node)?, node)))
            .take(n_looks)
            .collect();
        rated.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if !rated.iter().any(|(_, node)| work.try_move(unit, *node)) {
            work.undo_to(mark);
            return false;
        }
    }
    true
}
