//! Disruption budgets: their records, and what they are shown with.

use std::sync::Arc;

use godel_domain::{
    budget_spec::BudgetSpec,
    ids::{Revision, UnitId},
};
use godel_rules::budget::{Budget, Budgets, Identity, Use, Wanted};

use super::{Dispatcher, queues::Versions};

/// A budget as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetView {
    /// Its record.
    pub spec: Arc<BudgetSpec>,
    /// Of its record.
    pub versions: Versions,
    /// Units that it selects.
    pub n_units: u64,
    /// Over all of them.
    pub used: Use,
    /// How many must be left.
    pub floor: u64,
    /// How many may leave now.
    pub allowed: u64,
}

impl Dispatcher {
    /// A budget's record as committed at `revision`, from the watch in its order. `created`: revision and commit time of
    /// the transaction that created it, used when it is new.
    pub fn on_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision, created: (Revision, i64)) {
        if let Some(listed) = &mut self.listed {
            listed.budgets.insert(spec.name.clone());
        }
        self.records.note_budget(&spec.name, revision, created);
        if self.budgets.put(spec, revision) {
            for (unit, entry) in &self.units {
                let wanted = || Wanted::of(&entry.spec);
                self.budgets.offer(*unit, &Identity::of(&entry.spec), wanted, Some(&entry.rows));
            }
        }
    }

    /// A budget's record is gone.
    pub fn on_budget_deleted(&mut self, name: &str) {
        self.records.forget_budget(name);
        self.budgets.remove(name);
    }

    /// A unit's record is another one.
    pub(super) fn offer(&mut self, unit: UnitId) {
        if self.budgets.is_empty() {
            return;
        }
        if let Some(entry) = self.units.get(&unit) {
            let wanted = || Wanted::of(&entry.spec);
            self.budgets.offer(unit, &Identity::of(&entry.spec), wanted, Some(&entry.rows));
        }
    }

    /// Budgets, and what they allow.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// A budget as shown; `None` if there is no such budget.
    pub fn budget_view(&self, name: &str) -> Option<BudgetView> {
        let budget = self.budgets.get(name)?;
        let Budget { spec, used, n_units, .. } = budget;
        Some(BudgetView {
            spec: Arc::clone(spec),
            versions: self.budget_versions(name).unwrap_or_default(),
            n_units: *n_units,
            used: *used,
            floor: budget.floor(),
            allowed: budget.allowed(),
        })
    }
}
