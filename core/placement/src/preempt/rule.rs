//! Who may be preempted for whom.

use godel_cluster::Cluster;
use godel_domain::{
    demand::Pool,
    ids::UnitId,
    running_units::{PreemptionTerms, RunningUnit, RunningUnits},
};
use rustc_hash::FxHashSet;

use super::Sides;

/// Units of a round of evictions that are looked at.
const N_ROUND_MAX: usize = 64;

/// Who looks for room.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    /// Its unit.
    pub unit: UnitId,
    /// Higher wins.
    pub priority: i32,
    /// Pool that pays for it.
    pub pool: Pool,
    /// Unix milliseconds.
    pub now_ms: i64,
}

/// Why a running unit may not be preempted by a seeker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is not there, leaves already, or is the seeker's own.
    Gone,
    /// It is never preempted.
    NotPreemptible,
    /// Its rank is not lower.
    Rank,
    /// Another pool pays for it.
    Pool,
    /// It may be from then on, Unix milliseconds.
    Until(i64),
    /// The two would evict each other in turn, by themselves or by way of others.
    Loop,
}

impl Seeker {
    /// Whether a row of another unit may be preempted, `sides` being how their queues stand: the one rule that
    /// schedulers search by, the binder checks, and the audit repeats.
    ///
    /// # Errors
    /// Why not.
    pub fn may_preempt(
        &self,
        unit: UnitId,
        rows: &RunningUnits,
        row: &RunningUnit,
        sides: Sides,
        is_loop: impl FnOnce() -> bool,
    ) -> Result<(), Spared> {
        if unit == self.unit || !row.phase.is_live() || row.eviction.is_some() {
            return Err(Spared::Gone);
        }
        let pool = rows.groups.get(usize::from(row.group)).and_then(Option::as_ref).map(|group| group.pool);
        if pool != Some(self.pool) {
            return Err(Spared::Pool);
        }
        let Some(standing) = rows.standing(row.group).filter(|standing| standing.preemptible) else {
            return Err(Spared::NotPreemptible);
        };
        if !sides.outranked(self.priority, standing.priority) {
            return Err(Spared::Rank);
        }
        if is_loop() {
            return Err(Spared::Loop);
        }
        let free_at = row.bound_time_ms.saturating_add(min_run(standing));
        if free_at > self.now_ms { Err(Spared::Until(free_at)) } else { Ok(()) }
    }
}

/// Whether a seeker, preempted for the units of `own` before, and a unit evict each other in turn: that preempted the
/// seeker's before; or the seeker's preempted it before, and was evicted for it since by way of others. Ranks may go
/// round, as queues come to borrow and borrow no more, so no potential falls with each eviction: each such round is
/// made once.
pub fn is_loop(
    cluster: &Cluster,
    (seeker, own): (UnitId, &[UnitId]),
    unit: UnitId,
    rows: &RunningUnits,
) -> bool {
    if own.contains(&unit) {
        return true;
    }
    if !rows.preemptors().contains(&seeker) {
        return false;
    }
    let mut round: Vec<UnitId> = own.to_vec();
    let mut at = 0;
    while let Some(one) = round.get(at).filter(|_| at < N_ROUND_MAX) {
        let preemptors = cluster.rows(*one).map_or(&[][..], RunningUnits::preemptors);
        if preemptors.contains(&unit) {
            return true;
        }
        at += 1;
        for other in preemptors {
            if !round.contains(other) {
                round.push(*other);
            }
        }
    }
    false
}

fn min_run(standing: &PreemptionTerms) -> i64 {
    i64::try_from(standing.min_run_ms).unwrap_or(i64::MAX)
}

/// Live running units of a unit that do not leave.
pub fn staying(rows: &RunningUnits) -> impl Iterator<Item = (u32, &RunningUnit)> {
    rows.live().filter(|(_, row)| is_staying(row))
}

pub(super) fn is_staying(row: &RunningUnit) -> bool {
    row.phase.is_live() && row.eviction.is_none()
}

/// The same without those that decisions under way have leave: the binder counts them as gone, or waits for that.
pub(super) fn unclaimed<'a>(
    unit: UnitId,
    rows: &'a RunningUnits,
    claimed: &'a FxHashSet<(UnitId, u32)>,
) -> impl Iterator<Item = (u32, &'a RunningUnit)> {
    staying(rows).filter(move |(ordinal, _)| !claimed.contains(&(unit, *ordinal)))
}

/// The task groups of which the unit is worth nothing with fewer running units than these.
pub fn group_minima(rows: &RunningUnits) -> impl Iterator<Item = (u16, usize)> {
    let standings = (0u16..).zip(&rows.groups).filter_map(|(idx, group)| {
        let standing = group.as_ref()?.standing.as_ref()?;
        Some((idx, standing.group_min_member as usize))
    });
    standings.filter(|(_, minimum)| *minimum > 0)
}

/// With fewer running units than this the unit is worth nothing.
pub fn min_member(rows: &RunningUnits) -> usize {
    let standings = rows.groups.iter().flatten().filter_map(|group| group.standing.as_ref());
    standings.map(|standing| standing.min_member as usize).max().unwrap_or(0)
}
