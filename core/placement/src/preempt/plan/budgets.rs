//! What disruption budgets allow of a plan.

use std::collections::BTreeSet;

use godel_domain::ids::UnitId;
use godel_rules::budget::Spent;
use rustc_hash::FxHashSet;

use super::{Item, Plan};

impl Plan<'_> {
    /// What budgets would have to allow if these left too.
    pub(super) fn spent_with(&self, victims: &[(UnitId, u32)]) -> Spent {
        let (budgets, mut spent) = (self.cluster.budgets(), self.spent.clone());
        for (unit, ordinal) in victims.iter().filter(|_| !budgets.is_empty()) {
            if let Some(rows) = self.cluster.rows(*unit) {
                budgets.spend(*unit, *ordinal, &rows.row(*ordinal), &mut spent);
            }
        }
        spent
    }

    /// Budgets allow these beside what leaves already.
    pub(in crate::preempt) fn affords(&self, victims: &[(UnitId, u32)]) -> bool {
        self.cluster.budgets().exceeded(&self.spent_with(victims)).is_none()
    }

    /// If a budget allows fewer than these: the first of its `items` to be spared, or a whole unit.
    pub(super) fn kept(
        &mut self,
        items: &[Item],
        victims: &[(UnitId, u32)],
        forced: &BTreeSet<UnitId>,
    ) -> Option<(UnitId, Option<u32>)> {
        let cluster = self.cluster;
        let budgets = cluster.budgets();
        let budget = budgets.exceeded(&self.spent_with(victims))?;
        self.is_kept = true;
        let counts = |(unit, ordinal): (UnitId, u32)| {
            let rows = cluster.rows(unit);
            rows.is_some_and(|rows| budgets.counting(unit, ordinal, &rows.row(ordinal)).contains(&budget))
        };
        let counted: FxHashSet<(UnitId, u32)> = victims.iter().copied().filter(|key| counts(*key)).collect();
        let is_whole = |unit| forced.contains(&unit) && counted.iter().any(|(other, _)| *other == unit);
        let kept =
            items.iter().find(|item| is_whole(item.unit) || counted.contains(&(item.unit, item.ordinal)));
        kept.map(|item| (item.unit, Some(item.ordinal).filter(|_| !is_whole(item.unit))))
    }
}
