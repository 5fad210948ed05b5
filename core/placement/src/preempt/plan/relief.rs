//! Who leaves for the sake of a maximum: running units below the queue whose maximum it is, on whatever nodes.

use std::collections::BTreeSet;

use godel_base::ids::UnitId;
use godel_domain::running_units::{RunningUnit, RunningUnits};
use godel_framework::point::Rank;
use godel_queueing::{Amounts, QueueIdx, Quota, at, sum_of};

use super::{N_VICTIMS_MAX, VictimCandidate, VictimPlan, by_unit, queues::paid, queues::queue_of};
use crate::preempt::Full;

/// What a candidate gives back of the queue.
type Gift = (VictimCandidate, Amounts);

impl<'a> VictimPlan<'a> {
    /// Only running units below a queue may leave.
    pub(in crate::preempt) fn limit_to_queue(&mut self, quota: &'a Quota, queue: QueueIdx) {
        self.below = Some((quota, queue));
    }

    /// Has running units leave until nothing is lacking any more under the maxima, the lowest queue first, each spared who can
    /// be, the highest rank first. False if too few can leave.
    ///
    /// `O(running units below the queues)`.
    pub(in crate::preempt) fn relieve(&mut self, full: &Full<'_>) -> bool {
        full.lacks.iter().all(|lack| {
            let mut wanted = lack.amounts.clone();
            let given = self.given(full.quota, lack.queue);
            sum_of(&mut wanted, &given, -1);
            wanted.iter_mut().for_each(|amount| *amount = (*amount).max(0));
            wanted.iter().all(|amount| *amount == 0) || self.relieve_one(full, lack.queue, &wanted)
        })
    }

    fn relieve_one(&mut self, full: &Full<'_>, queue: QueueIdx, wanted: &Amounts) -> bool {
        let mut gifts = self.gifts(full, queue, wanted);
        loop {
            let Some((leaving, forced)) = self.least_given(&gifts, wanted) else { return false };
            let (unit, ordinal) = match self.overdrawn(&leaving, &forced) {
                Some(overdrawn) => overdrawn,
                None => {
                    let victims = self.victims(&leaving, &forced);
                    let items: Vec<VictimCandidate> = gifts.iter().map(|(item, _)| *item).collect();
                    let Some(spared) = self.budgets.first_spared(&items, &victims, &forced) else {
                        let fits = self.n_gone() + victims.len() <= N_VICTIMS_MAX;
                        if fits {
                            self.evict_victims(&victims);
                        }
                        return fits;
                    };
                    spared
                }
            };
            gifts.retain(|(item, _)| {
                item.unit != unit || ordinal.is_some_and(|ordinal| ordinal != item.ordinal)
            });
        }
    }

    /// What those who leave by this plan give back of a queue.
    fn given(&self, quota: &Quota, queue: QueueIdx) -> Amounts {
        let mut sum = Amounts::new();
        // What leaves for the decision already is no longer lacking.
        for (unit, ordinal) in self.gone.iter().filter(|(unit, ordinal)| !self.so_far.has(*unit, *ordinal)) {
            let Some(rows) = self.cluster.rows().of(*unit) else { continue };
            let row = rows.row(*ordinal);
            if is_below(quota, queue, rows, &row) {
                sum_of(&mut sum, &paid(quota, rows, &row).1, 1);
            }
        }
        sum
    }

    /// Candidates below a queue that give back something wanted, in the order in which they are spared.
    fn gifts(&mut self, full: &Full<'_>, queue: QueueIdx, wanted: &Amounts) -> Vec<Gift> {
        let mut items: Vec<VictimCandidate> = Vec::new();
        for &unit in full.units {
            let Some(rows) = self.cluster.rows().of(unit) else { continue };
            for (ordinal, row) in rows.live() {
                let Some(standing) = rows.standing(row.group).filter(|standing| standing.preemptible) else {
                    continue;
                };
                let Some(shape) = self.cluster.rows().group_shape(unit, row.group) else { continue };
                if !is_below(full.quota, queue, rows, row) {
                    continue;
                }
                let parts = parts(wanted, &paid(full.quota, rows, row).1);
                if parts > 0 && self.is_candidate(unit, ordinal, rows, row) {
                    let rank = Rank { guaranteed: self.sides(rows, row).other, priority: standing.priority };
                    let (allocation, since) = (row.allocation, row.bound_time_ms);
                    let is_master = standing.is_master(ordinal);
                    items.push(VictimCandidate {
                        unit,
                        ordinal,
                        group: row.group,
                        rank,
                        is_master,
                        shape,
                        allocation,
                        since,
                        breaks: false,
                        parts,
                    });
                }
            }
        }
        let gives = |item: &VictimCandidate| {
            let rows = self.cluster.rows().of(item.unit);
            rows.map(|rows| paid(full.quota, rows, &rows.row(item.ordinal)).1).unwrap_or_default()
        };
        let in_order = self.in_order(items);
        in_order.into_iter().map(|item| (item, gives(&item))).collect()
    }

    /// The victims, and the units that go whole.
    fn least_given(
        &self,
        gifts: &[Gift],
        wanted: &Amounts,
    ) -> Option<(Vec<VictimCandidate>, BTreeSet<UnitId>)> {
        let mut all = Amounts::new();
        gifts.iter().for_each(|(_, gives)| sum_of(&mut all, gives, 1));
        let suffices = |sum: &Amounts| wanted.iter().enumerate().all(|(idx, wanted)| at(sum, idx) >= *wanted);
        if !suffices(&all) {
            return None;
        }
        let mut forced: BTreeSet<UnitId> = BTreeSet::new();
        loop {
            let (mut left, mut leaving) = (all.clone(), Vec::new());
            for (item, gives) in gifts {
                sum_of(&mut left, gives, -1);
                if forced.contains(&item.unit) || !suffices(&left) {
                    sum_of(&mut left, gives, 1);
                    leaving.push(*item);
                }
            }
            leaving.sort_unstable_by_key(|item| (item.unit, item.ordinal));
            let is_broken = |of_unit: &&[VictimCandidate]| {
                let unit = of_unit[0].unit;
                let known = self.units.get(&unit);
                let breaks =
                    known.is_none_or(|known| known.is_broken_by(of_unit.iter().map(|item| item.group)));
                breaks && !forced.contains(&unit)
            };
            let broken: Vec<UnitId> =
                by_unit(&leaving).filter(is_broken).map(|of_unit| of_unit[0].unit).collect();
            if broken.is_empty() {
                return Some((leaving, forced));
            }
            forced.extend(broken);
        }
    }
}

/// Whether a running unit counts in a queue.
pub(super) fn is_below(quota: &Quota, queue: QueueIdx, rows: &RunningUnits, row: &RunningUnit) -> bool {
    quota.tree().upwards(queue_of(quota, rows, row)).any(|level| level == queue)
}

/// Thousandths of what is wanted that a running unit gives back, of the resource of which it is the most; nothing counts more
/// than all.
fn parts(wanted: &Amounts, gives: &[i128]) -> i64 {
    let asked = wanted.iter().enumerate().filter(|(_, amount)| **amount > 0);
    let of = asked.map(|(idx, amount)| at(gives, idx).min(*amount).saturating_mul(1_000) / amount);
    // What gives anything at all gives at least one.
    let most = of.max().unwrap_or(0);
    let gives_some = wanted.iter().enumerate().any(|(idx, amount)| *amount > 0 && at(gives, idx) > 0);
    i64::try_from(most.max(i128::from(gives_some))).unwrap_or(i64::MAX)
}
