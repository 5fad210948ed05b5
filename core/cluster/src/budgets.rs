//! Disruption budgets beside the rows that they count.

use std::sync::Arc;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{budget_spec::BudgetSpec, running_units::RunningUnits};
use godel_rules::budget::{Budgets, UnitIdentity, WantedOrdinals};

use super::taken::TakenRoom;

impl TakenRoom {
    /// Returns the disruption budgets, and what they allow.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Follows a budget's record. True if all units have to be offered.
    pub fn put_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision) -> bool {
        self.budgets.put(spec, revision)
    }

    /// Forgets a budget's record.
    pub fn remove_budget(&mut self, name: &str) {
        self.budgets.remove(name);
    }

    /// Follows a unit's record, for the budgets and the terms of others that select it.
    pub(crate) fn offer(
        &mut self,
        unit: UnitId,
        identity: &UnitIdentity,
        wanted: impl FnOnce() -> WantedOrdinals,
    ) {
        let rows = self.rows.of(unit);
        self.budgets.offer(unit, identity, wanted, rows);
        if self.domains.is_active() {
            let mut domains = std::mem::take(&mut self.domains);
            domains.offer(unit, identity, || self.places_of(unit));
            self.domains = domains;
        }
    }

    /// Counts running units as told to leave, which their rows do not show yet.
    pub fn depart(&mut self, members: impl IntoIterator<Item = (UnitId, u32)>) {
        self.count_members(members, Budgets::depart);
    }

    /// Counts running units by their rows again, which were counted as told to leave: their rows show it, or they stay.
    pub fn arrive(&mut self, members: impl IntoIterator<Item = (UnitId, u32)>) {
        self.count_members(members, Budgets::arrive);
    }

    /// Changes the count unit by unit: the rows of each are counted once.
    fn count_members(
        &mut self,
        members: impl IntoIterator<Item = (UnitId, u32)>,
        turn: impl Fn(&mut Budgets, UnitId, &[(UnitId, u32)], Option<&RunningUnits>),
    ) {
        let mut members: Vec<(UnitId, u32)> = members.into_iter().collect();
        members.sort_unstable();
        for of_unit in members.chunk_by(|a, b| a.0 == b.0) {
            let rows = self.rows.of(of_unit[0].0);
            turn(&mut self.budgets, of_unit[0].0, of_unit, rows);
        }
    }

    /// Counts the rows of a unit again, since they have changed.
    pub(super) fn recount_budgets(&mut self, unit: UnitId) {
        if self.budgets.selects(unit) {
            let rows = self.rows.of(unit);
            self.budgets.recount(unit, rows);
        }
    }
}
