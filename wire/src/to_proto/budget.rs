//! Disruption budgets.

use godel_domain::budget_spec::{Amount, BudgetSpec, Limit};
use godel_proto::v1::{self, budget_amount, disruption_budget};

/// A disruption budget.
pub fn budget(spec: &BudgetSpec) -> v1::DisruptionBudget {
    let BudgetSpec { name, namespace, unit, selector, limit, description } = spec;
    v1::DisruptionBudget {
        name: name.clone(),
        namespace: namespace.clone(),
        unit: unit.clone(),
        selector: super::map(selector),
        limit: Some(budget_limit(*limit)),
        description: description.clone(),
    }
}

/// What a disruption budget allows.
pub fn budget_limit(limit: Limit) -> disruption_budget::Limit {
    match limit {
        Limit::MaxUnavailable(most) => disruption_budget::Limit::MaxUnavailable(amount(most)),
        Limit::MinAvailable(least) => disruption_budget::Limit::MinAvailable(amount(least)),
    }
}

fn amount(amount: Amount) -> v1::BudgetAmount {
    let amount = match amount {
        Amount::Count(n) => budget_amount::Amount::Count(n),
        Amount::Percent(percent) => budget_amount::Amount::Percent(percent),
    };
    v1::BudgetAmount { amount: Some(amount) }
}
