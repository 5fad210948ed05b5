//! What queues are owed and borrow, as a plan has it: whose rank is higher.

use std::collections::BTreeSet;

use godel_base::ids::UnitId;
use godel_cluster::Cluster;
use godel_domain::running_units::{RunningUnit, RunningUnits};
use godel_framework::{plugins::victims::whole_gang::is_staying, point::Sides};
use godel_queueing::{Amounts, QueueIdx, Quota};
use rustc_hash::FxHashSet;

use super::{VictimCandidate, VictimPlan, by_unit};
use crate::preempt::{QueueTally, Rights};

impl VictimPlan<'_> {
    /// How the seeker's queue and a running unit's stand.
    pub(super) fn sides(&self, rows: &RunningUnits, row: &RunningUnit) -> Sides {
        let Some(rights) = self.rights else { return Sides::default() };
        let (queue, takes) = claimed_of(rights, rows, row);
        rights.against(queue, &takes, &self.tally)
    }

    /// The first of those that would leave together whose queue borrows no more without the others: one that must not
    /// leave beside them, or a whole unit.
    pub(super) fn overdrawn(
        &mut self,
        leaving: &[VictimCandidate],
        forced: &BTreeSet<UnitId>,
    ) -> Option<(UnitId, Option<u32>)> {
        let rights = self.rights.filter(|_| leaving.len() > 1)?;
        let mut tally = self.tally.clone();
        for of_unit in by_unit(leaving) {
            let unit = of_unit[0].unit;
            let rows = self.cluster.rows().of(unit)?;
            let is_whole = forced.contains(&unit) && self.units[&unit].min_member > 1;
            for item in of_unit {
                let row = rows.row(item.ordinal);
                let (queue, takes) = claimed_of(rights, rows, &row);
                let sides = rights.against(queue, &takes, &tally);
                if !sides.outranked(self.seeker.priority, item.rank.priority) {
                    return Some((unit, Some(item.ordinal).filter(|_| !is_whole)));
                }
                if is_whole {
                    break;
                }
                rights.take(queue, &takes, &mut tally);
            }
            if is_whole {
                let victims = self.victims(of_unit, &BTreeSet::from([unit]));
                self.tally_whole(unit, &victims, rights, &mut tally);
            }
        }
        None
    }

    /// Counts what is taken of queues.
    pub(super) fn tally(&mut self, victims: &[(UnitId, u32)]) {
        let Some(rights) = self.rights else { return };
        let mut tally = std::mem::take(&mut self.tally);
        for of_unit in victims.chunk_by(|a, b| a.0 == b.0) {
            self.is_turned |= self.tally_whole(of_unit[0].0, of_unit, rights, &mut tally);
        }
        self.tally = tally;
    }

    /// What leaves of one unit at once. True if that ends some queue's borrowing.
    fn tally_whole(
        &self,
        unit: UnitId,
        victims: &[(UnitId, u32)],
        rights: &Rights<'_>,
        tally: &mut QueueTally,
    ) -> bool {
        let Some(rows) = self.cluster.rows().of(unit) else { return false };
        let mut ends = false;
        for (_, ordinal) in victims {
            ends |= take(rights, rows, &rows.row(*ordinal), tally);
        }
        ends
    }

    /// Whether ranks have changed since this was asked last: then who may leave is looked at again.
    pub(in crate::preempt) fn is_turned(&mut self) -> bool {
        if !std::mem::take(&mut self.is_turned) {
            return false;
        }
        self.units.values_mut().for_each(|known| known.members = None);
        true
    }
}

/// Counts what a running unit takes of its queue. True if that ends some queue's borrowing.
pub(super) fn take(
    rights: &Rights<'_>,
    rows: &RunningUnits,
    row: &RunningUnit,
    tally: &mut QueueTally,
) -> bool {
    let (queue, takes) = claimed_of(rights, rows, row);
    rights.take(queue, &takes, tally)
}

/// The queue of a running unit, and what it takes of it.
fn claimed_of(rights: &Rights<'_>, rows: &RunningUnits, row: &RunningUnit) -> (QueueIdx, Amounts) {
    paid(rights.quota(), rows, row)
}

/// The same whatever queues guarantee.
pub fn paid(quota: &Quota, rows: &RunningUnits, row: &RunningUnit) -> (QueueIdx, Amounts) {
    let group = rows.groups.get(usize::from(row.group)).and_then(Option::as_ref);
    let takes = group.map(|group| quota.usage().amounts_of(&group.demand)).unwrap_or_default();
    (queue_of(quota, rows, row), takes)
}

pub(super) fn queue_of(quota: &Quota, rows: &RunningUnits, row: &RunningUnit) -> QueueIdx {
    let path = rows.standing(row.group).and_then(|standing| standing.queue.as_deref());
    path.map_or(QueueIdx::DEFAULT, |path| quota.tree().find(path).unwrap_or(QueueIdx::DEFAULT))
}

/// What leaves of queues for decisions under way.
pub(in crate::preempt) fn claimed_tally(
    cluster: &Cluster,
    claimed: &FxHashSet<(UnitId, u32)>,
    rights: Option<&Rights<'_>>,
) -> QueueTally {
    let mut tally = QueueTally::default();
    for (unit, ordinal) in claimed.iter().filter(|_| rights.is_some()) {
        let Some((rows, rights)) = cluster.rows().of(*unit).zip(rights) else { continue };
        let row = rows.row(*ordinal);
        if is_staying(&row) {
            take(rights, rows, &row, &mut tally);
        }
    }
    tally
}
