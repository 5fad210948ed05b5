//! Disruption budgets: their records, and what they are shown with.

use std::sync::Arc;

use godel_base::ids::UnitId;
use godel_domain::budget_spec::BudgetSpec;
use godel_rules::budget::{Budget, Budgets, Identity, Use, WantedOrdinals};

use super::{
    queues::{QueueRecords, Versions},
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

impl BudgetView {
    /// A budget as shown; `None` if there is no such budget.
    pub(super) fn of(name: &str, budgets: &Budgets, records: &QueueRecords) -> Option<Self> {
        let budget = budgets.get(name)?;
        let Budget { spec, used, n_units, .. } = budget;
        Some(Self {
            spec: Arc::clone(spec),
            versions: records.budgets.get(name).copied().unwrap_or_default(),
            n_units: *n_units,
            used: *used,
            floor: budget.floor(),
            allowed: budget.allowed(),
        })
    }
}

/// A unit's record is another one.
pub(super) fn offer(budgets: &mut Budgets, unit: UnitId, entry: &UnitEntry) {
    let wanted = || WantedOrdinals::of(&entry.record);
    budgets.offer(unit, &Identity::of(&entry.record.spec), wanted, Some(&entry.rows));
}

/// A budget's record is another one: it may select other units.
pub(super) fn offer_all(budgets: &mut Budgets, units: &Units) {
    for (unit, entry) in &units.entries {
        offer(budgets, *unit, entry);
    }
}
