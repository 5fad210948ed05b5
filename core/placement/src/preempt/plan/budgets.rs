//! What disruption budgets allow of a plan.

use std::collections::BTreeSet;

use godel_base::ids::UnitId;
use godel_cluster::Cluster;
use godel_rules::budget::Spent;
use rustc_hash::FxHashSet;

use super::VictimCandidate;

/// What leaves by a plan, as disruption budgets count it.
pub(super) struct BudgetSpending<'a> {
    cluster: &'a Cluster,
    spent: Spent,
    /// Somebody was spared because of a budget.
    is_limiting: bool,
}

impl<'a> BudgetSpending<'a> {
    /// Nothing leaves yet.
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, spent: Spent::default(), is_limiting: false }
    }

    /// Whether somebody was spared because of a budget.
    pub(super) fn is_limiting(&self) -> bool {
        self.is_limiting
    }

    /// These leave.
    pub(super) fn spend(&mut self, victims: &[(UnitId, u32)]) {
        self.spent = self.spent_with(victims);
    }

    /// What budgets would have to allow if these left too.
    fn spent_with(&self, victims: &[(UnitId, u32)]) -> Spent {
        let (budgets, mut spent) = (self.cluster.taken().budgets(), self.spent.clone());
        for (unit, ordinal) in victims.iter().filter(|_| !budgets.is_empty()) {
            if let Some(rows) = self.cluster.rows().of(*unit) {
                budgets.spend(*unit, *ordinal, &rows.row(*ordinal), &mut spent);
            }
        }
        spent
    }

    /// What budgets count as leaving already.
    pub(super) fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Somebody is spared because of a budget.
    pub(super) fn note_spared(&mut self) {
        self.is_limiting = true;
    }

    /// Budgets allow these beside what leaves already.
    pub(super) fn affords(&self, victims: &[(UnitId, u32)]) -> bool {
        self.cluster.taken().budgets().exceeded(&self.spent_with(victims)).is_none()
    }

    /// If a budget allows fewer than these: the first of the `items` to be spared, or a whole unit.
    pub(super) fn first_spared(
        &mut self,
        items: &[VictimCandidate],
        victims: &[(UnitId, u32)],
        forced: &BTreeSet<UnitId>,
    ) -> Option<(UnitId, Option<u32>)> {
        let cluster = self.cluster;
        let budgets = cluster.taken().budgets();
        let budget = budgets.exceeded(&self.spent_with(victims))?;
        self.is_limiting = true;
        let counts = |(unit, ordinal): (UnitId, u32)| {
            let rows = cluster.rows().of(unit);
            rows.is_some_and(|rows| budgets.counting(unit, ordinal, &rows.row(ordinal)).contains(&budget))
        };
        let counted: FxHashSet<(UnitId, u32)> = victims.iter().copied().filter(|key| counts(*key)).collect();
        let is_whole = |unit| forced.contains(&unit) && counted.iter().any(|(other, _)| *other == unit);
        let spared =
            items.iter().find(|item| is_whole(item.unit) || counted.contains(&(item.unit, item.ordinal)));
        spared.map(|item| (item.unit, Some(item.ordinal).filter(|_| !is_whole(item.unit))))
    }
}
