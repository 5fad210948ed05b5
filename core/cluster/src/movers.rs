//! Running units that a movement moves, and where the terms of units count them on their way.
//!
//! From its hold on a replica counts on its target as if it ran there: whoever has to be apart from it stays away, and whoever has to
//! be near to it, or together with it, goes there. Where it still runs it is in the way of others as long as it is there, but
//! nobody follows it to that node any more. What was placed counts where it was placed; should that be another node than its
//! target, its hold keeps others away until it goes.
//!
//! In its queue it counts from the end of its old incarnation on, until it is placed or its hold goes.
//!
//! All of it follows from holds, rows and assumptions, in whatever order they come.

use godel_base::ids::{HoldId, IdMap, NodeId, ReplicaId, UnitId};
use godel_domain::{
    hold::{BoundState, Hold, MoverShare},
    running_units::EvictionReason,
};
use smallvec::SmallVec;

use super::{
    domains::UnitPlaces,
    holds::NodeHolds,
    taken::{TakenRoom, is_past},
};

/// What is counted of a replica that moves, beside its row and what is assumed of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mover {
    /// It runs there, and leaves.
    leaves: Option<NodeId>,
    /// It will run there.
    comes: Option<NodeId>,
    /// It was to run there, and was placed elsewhere.
    spared: Option<NodeId>,
}

/// Replicas that move. Few units have any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Movers {
    by_unit: IdMap<UnitId, SmallVec<[(u32, Mover); 2]>>,
    /// The one whose target does not count, because a place is looked for it.
    lifted: Option<(UnitId, u32)>,
}

impl Mover {
    /// Returns where it will run, if it is not placed yet.
    pub(crate) fn comes(&self) -> Option<NodeId> {
        self.comes
    }

    /// Whether it runs somewhere, and leaves.
    pub(crate) fn leaves(&self) -> bool {
        self.leaves.is_some()
    }
}

impl Movers {
    /// Whether nobody moves.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_unit.is_empty()
    }

    /// Returns what is counted of a replica.
    pub(crate) fn get(&self, unit: UnitId, ordinal: u32) -> Option<&Mover> {
        let of_unit = self.by_unit.get(&unit)?;
        of_unit.iter().find(|(known, _)| *known == ordinal).map(|(_, mover)| mover)
    }

    /// Returns where replicas of a unit will run that are not placed yet, in no order that may show.
    pub(crate) fn targets(&self, unit: UnitId) -> impl Iterator<Item = NodeId> {
        self.of(unit).filter_map(|mover| mover.comes)
    }

    /// Adds where the replicas of a unit are counted to where its rows and assumptions are.
    pub(crate) fn add_places(&self, unit: UnitId, places: &mut UnitPlaces) {
        for mover in self.of(unit) {
            places.all.extend(mover.comes.into_iter().chain(mover.spared));
            places.leaving.extend(mover.leaves.into_iter().chain(mover.spared));
        }
    }

    fn of(&self, unit: UnitId) -> impl Iterator<Item = &Mover> {
        self.by_unit.get(&unit).into_iter().flatten().map(|(_, mover)| mover)
    }

    fn ordinals(&self, unit: UnitId) -> impl Iterator<Item = u32> {
        self.by_unit.get(&unit).into_iter().flatten().map(|(ordinal, _)| *ordinal)
    }

    /// Sets what is counted of a replica. Returns what was before.
    fn replace(&mut self, unit: UnitId, ordinal: u32, mover: Mover) -> Mover {
        let is_none = mover == Mover::default();
        if is_none && !self.by_unit.contains_key(&unit) {
            return mover;
        }
        let of_unit = self.by_unit.entry(unit).or_default();
        let at = of_unit.iter().position(|(known, _)| *known == ordinal);
        let before = match at {
            Some(at) if is_none => of_unit.swap_remove(at).1,
            Some(at) => std::mem::replace(&mut of_unit[at].1, mover),
            None => {
                if !is_none {
                    of_unit.push((ordinal, mover));
                }
                Mover::default()
            }
        };
        if of_unit.is_empty() {
            self.by_unit.remove(&unit);
        }
        before
    }
}

/// Counts a replica where it is to be counted now.
pub(crate) fn settle(taken: &mut TakenRoom, holds: &NodeHolds, unit: UnitId, ordinal: u32) {
    let now = stand(taken, holds, unit, ordinal);
    let before = taken.movers.replace(unit, ordinal, now);
    if now != before && taken.domains.is_active() {
        follow(taken, unit, before, now);
    }
}

/// The same of each replica of a unit that has a target or had one, and of some others that may leave for one.
pub(crate) fn settle_unit(taken: &mut TakenRoom, holds: &NodeHolds, unit: UnitId, others: &[u32]) {
    let held = targets(holds, unit).flat_map(Hold::replicas).map(|replica| replica.ordinal);
    let known = taken.movers.ordinals(unit).chain(held);
    let mut ordinals: SmallVec<[u32; 4]> = known.chain(others.iter().copied()).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    for ordinal in ordinals {
        settle(taken, holds, unit, ordinal);
    }
}

/// The same of all replicas of a unit, whose rows are others than before. `O(running units of the unit)`.
pub(crate) fn settle_all(taken: &mut TakenRoom, holds: &NodeHolds, unit: UnitId) {
    let rows = taken.rows.live(unit);
    let leaving = rows.filter(|(_, row)| row.eviction == Some(EvictionReason::Rescheduled));
    let leaving: SmallVec<[u32; 4]> = leaving.map(|(ordinal, _)| ordinal).collect();
    settle_unit(taken, holds, unit, &leaving);
}

/// Counts nothing of a unit any more, because its records go.
pub(crate) fn remove(taken: &mut TakenRoom, unit: UnitId) {
    let ordinals: SmallVec<[u32; 4]> = taken.movers.ordinals(unit).collect();
    for ordinal in ordinals {
        let before = taken.movers.replace(unit, ordinal, Mover::default());
        if taken.domains.is_active() {
            follow(taken, unit, before, Mover::default());
        }
    }
}

/// Counts the target of a replica no longer, until [`put_down`]. False, and without effect, if it has none.
pub(crate) fn lift(taken: &mut TakenRoom, holds: &NodeHolds, unit: UnitId, ordinal: u32) -> bool {
    if taken.movers.get(unit, ordinal).is_none_or(|mover| mover.comes.is_none()) {
        return false;
    }
    taken.movers.lifted = Some((unit, ordinal));
    settle(taken, holds, unit, ordinal);
    true
}

/// Counts the target of the replica that was lifted again, unless the replica has a place by now.
pub(crate) fn put_down(taken: &mut TakenRoom, holds: &NodeHolds) {
    if let Some((unit, ordinal)) = taken.movers.lifted.take() {
        settle(taken, holds, unit, ordinal);
    }
}

/// What a movement's hold counts for in the queue of its unit: nothing once its replica is placed, on its target or elsewhere.
pub(crate) fn share(taken: &TakenRoom, hold: &Hold) -> MoverShare {
    let rows = taken.rows.of(hold.unit);
    let bound = |ordinal| rows.map(|rows| BoundState::of(&rows.row(ordinal))).unwrap_or_default();
    let share = hold.mover_share(bound);
    let is_placed = |replica: ReplicaId| {
        let assumed = taken.assumptions.get(hold.unit, replica.ordinal);
        assumed.is_some_and(|assumed| assumed.incarnation == replica.incarnation)
    };
    if share.n_counted > 0 && hold.replicas().any(is_placed) { MoverShare::default() } else { share }
}

/// The holds of movements for replicas of a unit, in order of ids.
fn targets(holds: &NodeHolds, unit: UnitId) -> impl Iterator<Item = &Hold> {
    let ids: SmallVec<[HoldId; 2]> = if holds.is_any() { holds.of(unit) } else { SmallVec::new() };
    let of_unit = ids.into_iter().filter_map(|id| holds.get(id));
    of_unit.map(|hold| &**hold).filter(|hold| hold.movement.is_some())
}

/// What is to be counted of a replica.
fn stand(taken: &TakenRoom, holds: &NodeHolds, unit: UnitId, ordinal: u32) -> Mover {
    let row = taken.rows.row(unit, ordinal);
    let awaited = |hold: &&Hold| {
        let mut replicas = hold.replicas();
        replicas.any(|replica| replica.ordinal == ordinal && !is_past(&row, replica.incarnation))
    };
    let target = targets(holds, unit).find(awaited);
    let is_moved = target.is_some() || row.eviction == Some(EvictionReason::Rescheduled);
    let leaves = (row.phase.is_live() && is_moved).then_some(row.node);
    let Some(node) = target.map(|hold| hold.node) else { return Mover { leaves, ..Mover::default() } };
    match taken.assumptions.get(unit, ordinal) {
        Some(assumed) if assumed.node == node => Mover { leaves, ..Mover::default() },
        Some(_) => Mover { leaves, spared: Some(node), comes: None },
        None if taken.movers.lifted == Some((unit, ordinal)) => Mover { leaves, ..Mover::default() },
        None => Mover { leaves, comes: Some(node), spared: None },
    }
}

/// Counters of the unit follow; what is new first, so that nothing opens in between.
fn follow(taken: &mut TakenRoom, unit: UnitId, before: Mover, now: Mover) {
    for (is, was, (is_counted, leaves)) in [
        (now.leaves, before.leaves, (false, true)),
        (now.comes, before.comes, (true, false)),
        (now.spared, before.spared, (true, true)),
    ] {
        if is == was {
            continue;
        }
        for (node, sign) in is.map(|node| (node, 1)).into_iter().chain(was.map(|node| (node, -1))) {
            if is_counted {
                taken.domains.shift(unit, node, sign);
            }
            if leaves {
                taken.domains.shift_leaving(unit, node, sign);
            }
        }
    }
}
