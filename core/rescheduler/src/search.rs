//! Local search: simulated annealing over moves, exchanges and returns, within the limit of moves.
//!
//! Annealing follows Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated Annealing" (Science 220, 1983), with a geometric
//! schedule. The limit of moves is hard: at the limit, a running unit that is still at home is moved together with the return
//! of another one, and both are judged as one step. The core has no clock, so a search is as long as its number of steps.
//!
//! A step of a large cluster costs more than one of a small one, since nothing that it looks at is near the processor, and there
//! are more running units to try. So a search of a large cluster has fewer steps in all ([`n_steps_of`]), and begins with what
//! [`descend`] finds: the best moves first, each looked at again before it is made (lazy greedy, Minoux 1978).

use std::{cmp::Reverse, collections::BinaryHeap};

use godel_base::seed::mix;

use crate::{
    goal::EPSILON,
    layout::{Layout, NodeIdx, RunIdx},
    workspace::Workspace,
};

/// Numbers that look random and follow from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Draws(u64);

impl Draws {
    /// Returns the draws of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `n`, 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        let n = u128::try_from(n).unwrap_or(0);
        usize::try_from((u128::from(self.draw()) * n) >> 64).unwrap_or(0)
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        let high = u32::try_from(self.draw() >> 32).unwrap_or(0);
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }
}

/// How an annealing goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Annealing {
    /// How many steps are tried.
    pub n_steps: u64,
    /// The rise of the objective that is accepted with probability 1/e at first.
    pub first: f64,
    /// The same at last.
    pub last: f64,
}

/// Running units at which a step costs twice as much as in a small cluster.
const N_DOUBLE: u64 = 8_000;

/// Returns how many steps a search has: as many for each running unit that it tries as asked, but no more in all than `n_max`
/// steps of a small cluster take time.
pub(crate) fn n_steps_of(n_steps_each: u64, n_tried: u64, n_max: u64) -> u64 {
    let n_affordable = n_max.saturating_mul(N_DOUBLE) / N_DOUBLE.saturating_add(n_tried);
    n_steps_each.saturating_mul(n_tried).min(n_affordable)
}

impl Annealing {
    /// Returns the annealing of a search that has fewer steps than it would need: it begins as a descent from the best moves, and
    /// is colder from the start.
    pub(crate) fn cooled(self, n_steps_wanted: u64) -> Self {
        if self.is_whole(n_steps_wanted) { self } else { Self { first: self.last * COOL, ..self } }
    }

    /// Whether it has so large a part of the steps wanted that it needs no descent before.
    pub(crate) fn is_whole(&self, n_steps_wanted: u64) -> bool {
        self.n_steps.saturating_mul(N_PARTS_MAX) >= n_steps_wanted
    }
}

/// By how much the first temperature of a cold annealing is above its last one.
const COOL: f64 = 30.0;
/// A search that has less than this part of its steps is cold.
const N_PARTS_MAX: u64 = 4;

/// A move that lowers the objective, by how much; the greatest is the best.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DescentMove {
    gain: f64,
    unit: RunIdx,
    to: NodeIdx,
}

impl Eq for DescentMove {}

impl PartialOrd for DescentMove {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DescentMove {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.gain.total_cmp(&other.gain).then(Reverse(self.unit).cmp(&Reverse(other.unit)))
    }
}

/// Names nodes that a running unit could be better on.
pub(crate) type MoveTargets<'p> = dyn FnMut(&Layout<'_>, RunIdx, &mut Vec<NodeIdx>) + 'p;

/// Makes the moves that lower the objective most, one after the other, until none does or the limit of moves is reached. Every
/// running unit is looked at once, and again when its move is the best that is known.
pub(crate) fn descend(work: &mut Workspace<'_>, units: &[RunIdx], targets: &mut MoveTargets<'_>) {
    let mut nodes = Vec::new();
    let mut best = |work: &Workspace<'_>, unit: RunIdx| -> Option<DescentMove> {
        nodes.clear();
        targets(work.layout(), unit, &mut nodes);
        let here = work.layout().node_of(unit);
        let gains = nodes.iter().filter(|to| **to != here).filter_map(|to| {
            let gain = -work.change(unit, *to);
            (gain > EPSILON && work.layout().has_room(unit, *to)).then_some(DescentMove {
                gain,
                unit,
                to: *to,
            })
        });
        gains.max()
    };
    let movable = units.iter().filter(|unit| work.is_movable(**unit));
    let mut heap: BinaryHeap<DescentMove> = movable.filter_map(|unit| best(work, *unit)).collect();
    while let Some(DescentMove { unit, .. }) = heap.pop() {
        if work.layout().n_moved() >= work.limits().n_moves_max {
            break;
        }
        let Some(now) = best(work, unit) else { continue };
        if heap.peek().is_some_and(|next| next.gain > now.gain + EPSILON) {
            heap.push(now);
        } else if work.try_move(unit, now.to) {
            heap.extend(best(work, unit));
        }
    }
    work.forget_steps();
}

/// Steps between two changes of the temperature.
const N_STEPS_ALIKE: u64 = 256;

/// Proposes steps.
pub type Propose<'p> = dyn FnMut(&Layout<'_>, &mut Draws) -> Option<(RunIdx, NodeIdx)> + 'p;

/// Anneals a workspace. If the objective does not fall by that, everything is where it was before. Marks made before are void.
pub fn anneal(work: &mut Workspace<'_>, annealing: &Annealing, propose: &mut Propose<'_>) {
    let mut draws = Draws::new(work.limits().seed);
    let before = work.goal().value();
    let start = work.state();
    let mut moved = MovedUnits::of(work);
    let n_rounds = annealing.n_steps.div_ceil(N_STEPS_ALIKE).max(1);
    let rounds = u32::try_from(n_rounds).unwrap_or(u32::MAX);
    let factor = (annealing.last / annealing.first).powf(1.0 / f64::from(rounds));
    let mut temperature = annealing.first;
    for _ in 0..n_rounds {
        for _ in 0..N_STEPS_ALIKE {
            step(work, temperature, propose, &mut draws, &mut moved);
        }
        temperature *= factor;
        work.forget_steps();
    }
    if work.goal().value() > before - EPSILON {
        work.return_to(&start);
    }
}

/// The running units that are moved, for draws among them.
struct MovedUnits {
    all: Vec<RunIdx>,
    place: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl MovedUnits {
    fn of(work: &Workspace<'_>) -> Self {
        let mut moved = Self { all: Vec::new(), place: vec![ABSENT; work.layout().n_running()] };
        for (unit, ..) in work.state() {
            moved.note(work.layout(), unit);
        }
        moved
    }

    fn note(&mut self, layout: &Layout<'_>, unit: RunIdx) {
        let place = self.place[unit.idx()];
        if layout.is_moved(unit) && place == ABSENT {
            self.place[unit.idx()] = u32::try_from(self.all.len()).unwrap_or(ABSENT);
            self.all.push(unit);
        } else if !layout.is_moved(unit) && place != ABSENT {
            self.all.swap_remove(place as usize);
            if let Some(follower) = self.all.get(place as usize) {
                self.place[follower.idx()] = place;
            }
            self.place[unit.idx()] = ABSENT;
        }
    }
}

fn step(
    work: &mut Workspace<'_>,
    temperature: f64,
    propose: &mut Propose<'_>,
    draws: &mut Draws,
    moved: &mut MovedUnits,
) {
    let Some((unit, to)) = propose(work.layout(), draws) else { return };
    if to == work.layout().node_of(unit) || !work.is_movable(unit) {
        return;
    }
    let n_moves_max = work.limits().n_moves_max;
    let is_full = work.layout().n_moved() >= n_moves_max && !work.layout().is_moved(unit);
    let rise_max = -temperature * (1.0 - draws.unit()).max(f64::MIN_POSITIVE).ln();
    if !is_full {
        if work.change(unit, to) <= rise_max && work.try_move(unit, to) {
            moved.note(work.layout(), unit);
        }
        return;
    }
    let Some(&other) = moved.all.get(draws.below(moved.all.len())) else { return };
    let change = work.change(unit, to);
    let home = work.layout().home(other);
    // Nearly what both change together: whoever is not promising is not tried.
    if change + work.change(other, home) > rise_max + temperature {
        return;
    }
    let mark = work.mark();
    if !work.try_move_within(unit, to, n_moves_max + 1) {
        return;
    }
    if change + work.change(other, home) <= rise_max && work.try_move(other, home) {
        moved.note(work.layout(), unit);
        moved.note(work.layout(), other);
    } else {
        work.undo_to(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_searches_have_fewer_steps_than_asked() {
        for (each, n_tried, n_max, expected) in [
            (10, 100, 1_000_000, 1_000),
            (1_000, 8_000, 1_000_000, 500_000),
            (1_000, 792_000, 1_000_000, 10_000),
            (u64::MAX, u64::MAX, 0, 0),
            (5, 0, 100, 0),
        ] {
            assert_eq!(n_steps_of(each, n_tried, n_max), expected, "{each} {n_tried} {n_max}");
        }
        let annealing = Annealing { n_steps: 1_000, first: 5.0, last: 0.1 };
        assert_eq!(annealing.cooled(4_000), annealing);
        assert_eq!(annealing.cooled(4_001).first, 0.1 * COOL);
    }
}
