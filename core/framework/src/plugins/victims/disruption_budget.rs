//! Victim rule `disruption-budget`: what budgets allow of one running unit beside all that leaves already. What they allow of all victims
//! of a decision together is counted by the search, and by the binder in the transaction that evicts them.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct DisruptionBudget;

impl Plugin for DisruptionBudget {
    const NAME: &'static str = "disruption-budget";
    const DOC: &'static str = "Every disruption budget that selects the unit of the running unit allows its eviction, in addition to all \
                               other evictions of the same decision and all evictions in progress.";
}

impl VictimRule for DisruptionBudget {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        let forbids = of
            .spent
            .and_then(|spent| of.cluster.taken().budgets().forbids(of.unit, of.ordinal, of.row, spent));
        match forbids {
            Some(_) => Err(Spared::Budget),
            None => Ok(()),
        }
    }
}
