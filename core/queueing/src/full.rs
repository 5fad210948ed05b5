//! Units that wait for room under a maximum, for which others there might have to leave.
//!
//! The first unit of each lane that waits at a full queue is worth a try at a scheduler when a running unit below that queue is
//! of lower priority, or when a queue of the unit below it stays within its guarantee. Nothing is looked at that did not
//! change: a full queue is looked at after something came, went or was bound below it, at most once a second, and a try in vain
//! makes the next one of that unit wait longer. Costs follow the queues below a full one, not the units that wait.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::demand::Pool;
use godel_domain::queue_spec::Band;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    leaf::ClassRef,
    limit_gate::{LaneRef, LimitGate},
    order::{Branch, Queues, Waiting},
    quota::Quota,
    tree::QueueIdx,
};

/// A full queue is not looked at again so soon, milliseconds.
const LOOK_EVERY_MS: u64 = 1_000;
/// Most units handed out at one look.
const N_OUT_MAX: usize = 16;
/// A try in vain is not repeated so soon, milliseconds; twice that after the second, and so on.
const VAIN_MS: u64 = 1_000;
/// Nor later than that.
const VAIN_MS_MAX: u64 = 30_000;
/// Tries in vain that are remembered.
const N_VAIN_MAX: usize = 4_096;

/// What running units are to those who might have them leave: pool, priority. `None`: they never have to.
pub type VictimClass = Option<(Pool, i32)>;

/// Says how many running units of one unit are of a class.
#[derive(Clone, Copy, Debug)]
pub struct VictimCount {
    /// The class of each of them.
    pub class: VictimClass,
    /// How many there are.
    pub n: u32,
}

/// When full queues are looked at, and what was tried.
#[derive(Debug, Default)]
pub(super) struct FullQueues {
    due: BTreeSet<(Millis, QueueIdx)>,
    vain: FxHashMap<UnitId, Vain>,
}

/// Tries of a unit that came to nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Vain {
    until: Millis,
    n: u32,
    /// Since when others have passed it.
    since: Option<Millis>,
}

/// When a gate was looked at, and will be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookTimes {
    last: Option<Millis>,
    next: Option<Millis>,
}

/// Bound running units that may be made to leave, by pool and priority: there are few of these.
#[derive(Clone, Debug, Default)]
pub(super) struct VictimClasses(SmallVec<[((Pool, i32), u64); 2]>);

impl VictimClasses {
    /// So many running units stand so now, and so many stood otherwise before.
    pub(super) fn note(&mut self, before: VictimCount, after: VictimCount) {
        self.shift(before, false);
        self.shift(after, true);
    }

    fn shift(&mut self, VictimCount { class, n }: VictimCount, is_more: bool) {
        let (Some(key), n) = (class, u64::from(n)) else { return };
        match self.0.iter().position(|(known, _)| *known == key) {
            Some(at) if is_more => self.0[at].1 += n,
            Some(at) => {
                self.0[at].1 = self.0[at].1.saturating_sub(n);
                if self.0[at].1 == 0 {
                    self.0.swap_remove(at);
                }
            }
            None if is_more && n > 0 => self.0.push((key, n)),
            None => {}
        }
    }

    fn lowest(&self, pool: Pool) -> Option<i32> {
        self.0.iter().filter(|((of, _), _)| *of == pool).map(|((_, priority), _)| *priority).min()
    }
}

impl FullQueues {
    /// When a full queue is to be looked at next.
    pub(super) fn due(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the next full queue that is to be looked at now.
    pub(super) fn take_due(&mut self, now: Millis) -> Option<QueueIdx> {
        let &(_, queue) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        Some(queue)
    }

    /// A unit that was given out has come back: nobody could be made to leave.
    pub(super) fn note_vain(&mut self, unit: UnitId, now: Millis) {
        if self.vain.len() >= N_VAIN_MAX {
            self.vain.clear();
        }
        let vain = self.vain.entry(unit).or_default();
        vain.n = vain.n.saturating_add(1);
        let wait = VAIN_MS.saturating_mul(1 << (vain.n - 1).min(16)).min(VAIN_MS_MAX);
        vain.until = now.plus(wait);
    }

    /// A try of the unit came to nothing so short a time ago that the next one has to wait.
    pub(super) fn is_vain(&self, unit: UnitId, now: Millis) -> bool {
        self.vain.get(&unit).is_some_and(|vain| vain.until > now)
    }

    /// A unit that others have passed since then is given out.
    fn note_passed(&mut self, unit: UnitId, since: Option<Millis>) {
        if since.is_some() {
            self.vain.entry(unit).or_default().since = since;
        }
    }

    /// Since when others have passed a unit that was out for a try meanwhile.
    pub(super) fn passed_before(&self, unit: UnitId) -> Option<Millis> {
        if self.vain.is_empty() { None } else { self.vain.get(&unit)?.since }
    }

    /// A unit is served, or gone.
    pub(super) fn forget_vain(&mut self, unit: UnitId) {
        if !self.vain.is_empty() {
            self.vain.remove(&unit);
        }
    }

    /// Something has changed below a queue, or in it: what waits at its gate is looked at.
    pub(super) fn on_news(&mut self, queue: QueueIdx, gate: &mut LimitGate) {
        if gate.looks.next.is_some() || !gate.has_stalled() {
            return;
        }
        let at = gate.looks.last.map_or(Millis(0), |last| last.plus(LOOK_EVERY_MS));
        gate.looks.next = Some(at);
        self.due.insert((at, queue));
    }

    /// A queue has no gate any more.
    pub(super) fn forget_looks(&mut self, looks: LookTimes, queue: QueueIdx) {
        if let Some(at) = looks.next {
            self.due.remove(&(at, queue));
        }
    }

    /// A queue is to be looked at again, not before `next`.
    fn look_again(&mut self, queue: QueueIdx, gate: &mut LimitGate, next: Millis) {
        match gate.looks.next {
            Some(at) if at <= next => {}
            known => {
                gate.looks.next = Some(next);
                if let Some(at) = known {
                    self.due.remove(&(at, queue));
                }
                self.due.insert((next, queue));
            }
        }
    }
}

/// As [`Queues::take_full`].
pub(super) fn take_full(queues: &mut Queues, now: Millis) -> Vec<Waiting> {
    let mut taken = Vec::new();
    while taken.len() < N_OUT_MAX
        && let Some(queue) = queues.full.take_due(now)
    {
        look_at(queues, queue, now, &mut taken);
    }
    taken
}

fn look_at(queues: &mut Queues, queue: QueueIdx, now: Millis, taken: &mut Vec<Waiting>) {
    let Some(gate) = &mut queues.branches[queue.idx()].gate else { return };
    gate.looks = LookTimes { last: Some(now), next: None };
    let stalled: Vec<_> = gate.iter_stalled().collect();
    let mut lowest: BTreeMap<bool, Option<i32>> = BTreeMap::new();
    let mut next: Option<Millis> = None;
    let mut worth: Vec<(Waiting, Option<Millis>)> = Vec::new();
    for (band, LaneRef { queue: leaf, seat }) in stalled {
        let of_leaf = &queues.branches[leaf.idx()].leaf;
        let Some(stall) = of_leaf.lane(band, seat).and_then(|lane| lane.stall) else { continue };
        let Some((_, waiting)) = of_leaf.head(ClassRef { band, seat, class: stall.class }) else {
            continue;
        };
        let waiting = *waiting;
        if let Some(vain) = queues.full.vain.get(&waiting.unit).filter(|vain| vain.until > now) {
            next = Some(next.map_or(vain.until, |at| at.min(vain.until)));
            continue;
        }
        let is_best_effort = band == Band::BestEffort;
        let pool = if is_best_effort { Pool::BestEffort } else { Pool::Guaranteed };
        let lowest = lowest.entry(is_best_effort);
        let lowest = *lowest.or_insert_with(|| lowest_below(&queues.branches, &queues.quota, queue, pool));
        let outranks = lowest.is_some_and(|lowest| lowest < waiting.priority);
        if outranks || (lowest.is_some() && is_owed(&queues.quota, &waiting, queue)) {
            worth.push((waiting, stall.since));
        }
    }
    worth.sort_unstable_by_key(|(one, _)| (one.band, Reverse(one.priority), one.unit));
    for (waiting, since) in worth {
        if taken.len() >= N_OUT_MAX {
            next = Some(now.plus(LOOK_EVERY_MS));
            break;
        }
        if queues.remove(&waiting).is_some() {
            queues.full.note_passed(waiting.unit, since);
            taken.push(waiting);
        }
    }
    if let Some(next) = next
        && let Some(gate) = &mut queues.branches[queue.idx()].gate
    {
        queues.full.look_again(queue, gate, next.max(now.plus(LOOK_EVERY_MS)));
    }
}

/// A queue of a unit below a full one stays within its guarantee with what the unit needs.
fn is_owed(quota: &Quota, waiting: &Waiting, full: QueueIdx) -> bool {
    let (tree, usage) = (quota.tree(), quota.usage());
    if !usage.guarantees().is_any() {
        return false;
    }
    let asked = usage.asks().amounts(waiting.need, usage.columns().len());
    let asked: SmallVec<[i128; 8]> = asked.iter().map(|n| i128::from(*n)).collect();
    let mut below = tree.upwards(waiting.queue).take_while(|level| *level != full);
    below.any(|level| usage.guarantees().is_within(level, &asked, |idx| asked.get(idx).copied().unwrap_or(0)))
}

/// The lowest priority of a running unit that may be made to leave, in a queue or below it. `O(queues below)`.
fn lowest_below(branches: &[Branch], quota: &Quota, queue: QueueIdx, pool: Pool) -> Option<i32> {
    let (mut lowest, mut below) = (None, vec![queue]);
    while let Some(level) = below.pop() {
        below.extend(quota.tree().paths_below(level));
        let Some(branch) = branches.get(level.idx()) else { continue };
        lowest = lowest.into_iter().chain(branch.standings.lowest(pool)).min();
    }
    lowest
}
