//! Disruption budgets: their records, the units that they select, and what they are shown with.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_domain::{budget_spec::BudgetSpec, txn::Receipt};
use godel_rules::budget::{Budget, Budgets, UnitIdentity, Use, WantedOrdinals};

use super::{
    queues::{RecordVersions, Versions},
    unit_entry::UnitEntry,
    units::Units,
};

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

/// Disruption budgets by name.
#[derive(Debug, Default)]
pub struct BudgetRecords {
    pub(super) budgets: Budgets,
    pub(super) versions: RecordVersions,
}

impl BudgetRecords {
    /// Budgets, and what they allow.
    pub fn all(&self) -> &Budgets {
        &self.budgets
    }

    /// A budget as shown; `None` if there is no such budget.
    pub fn view(&self, name: &str) -> Option<BudgetView> {
        let budget = self.budgets.get(name)?;
        let Budget { spec, used, n_units, .. } = budget;
        Some(BudgetView {
            spec: Arc::clone(spec),
            versions: self.versions.get(name).unwrap_or_default(),
            n_units: *n_units,
            used: *used,
            floor: budget.floor(),
            allowed: budget.allowed(),
        })
    }

    /// A budget's record as committed at `revision`: it may select other units.
    pub(super) fn put(&mut self, spec: Arc<BudgetSpec>, revision: Revision, created: Receipt, units: &Units) {
        self.versions.note(&spec.name, revision, created);
        if self.budgets.put(spec, revision) {
            units.entries.values().for_each(|entry| self.offer(entry));
        }
    }

    /// A budget's record is gone.
    pub(super) fn remove(&mut self, name: &str) {
        self.versions.remove(name);
        self.budgets.remove(name);
    }

    /// A unit's record is another one.
    pub(super) fn offer(&mut self, entry: &UnitEntry) {
        let wanted = || WantedOrdinals::of(&entry.record);
        self.budgets.offer(entry.record.id, &UnitIdentity::of(&entry.record.spec), wanted, Some(&entry.rows));
    }
}
