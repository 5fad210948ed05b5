//! Disruption budgets.

use godel_domain::budget_spec::{Amount, BudgetSpec, Limit, NAMESPACE_DEFAULT};
use godel_proto::v1::{self, budget_amount, disruption_budget};

use super::{BadField, Result};

/// A disruption budget as stored.
///
/// # Errors
/// It has no name, or an amount that is none.
pub fn budget(pb: v1::DisruptionBudget) -> Result<BudgetSpec> {
    let (spec, bad) = given_budget(pb);
    match bad.into_iter().next() {
        Some(first) => Err(first),
        None if spec.name.is_empty() => Err(BadField::new("name", "missing")),
        None => Ok(spec),
    }
}

/// A disruption budget as a client wrote it, and every field that cannot be read, which is left at its default. What can
/// be read may be wrong all the same: that is for the checks of admission.
pub fn given_budget(pb: v1::DisruptionBudget) -> (BudgetSpec, Vec<BadField>) {
    let v1::DisruptionBudget { name, namespace, unit, selector, limit, description } = pb;
    let mut bad = Vec::new();
    let mut read = |field: &str, pb: v1::BudgetAmount| match pb.amount {
        Some(budget_amount::Amount::Count(n)) => Amount::Count(n),
        Some(budget_amount::Amount::Percent(percent)) => Amount::Percent(percent),
        None => {
            bad.push(BadField::new(field, "neither a count nor a percentage"));
            Amount::Count(0)
        }
    };
    let limit = match limit {
        None => Limit::default(),
        Some(disruption_budget::Limit::MaxUnavailable(most)) => {
            Limit::MaxUnavailable(read("max_unavailable", most))
        }
        Some(disruption_budget::Limit::MinAvailable(least)) => {
            Limit::MinAvailable(read("min_available", least))
        }
    };
    let namespace = if namespace.is_empty() { NAMESPACE_DEFAULT.to_owned() } else { namespace };
    let selector = selector.into_iter().collect();
    (BudgetSpec { name, namespace, unit, selector, limit, description }, bad)
}
