//! Disruption budgets as shown.

use std::collections::BTreeMap;

use godel_domain::budget_spec::{Amount, Limit};
use godel_proto::v1;
use godel_wire::{from_proto, to_proto};

use super::pairs;
use crate::{
    output::{View, ViewColumn},
    view,
};

view! {
    /// A disruption budget and what it allows.
    pub struct BudgetView from (status: &v1::DisruptionBudgetStatus) with {
        let (spec, _) = from_proto::given_budget(status.budget.clone().unwrap_or_default());
        let (max_unavailable, min_available) = match spec.limit {
            Limit::MaxUnavailable(amount) => (amount.to_string(), String::new()),
            Limit::MinAvailable(amount) => (String::new(), amount.to_string()),
        };
    } {
        /// Unique.
        pub name: String = spec.name,
        /// Of the units that it is about.
        pub namespace: String = spec.namespace,
        /// The one unit that it is about; empty: those that the selector says.
        pub unit: String = spec.unit,
        /// Labels of the units that it is about.
        pub selector: BTreeMap<String, String> = spec.selector,
        /// As `1` or `20%`; empty: the other one is set.
        pub max_unavailable: String = max_unavailable,
        /// As `3` or `80%`; empty: the other one is set.
        pub min_available: String = min_available,
        /// Free text.
        pub description: String = spec.description,
        /// Units that it selects.
        pub units: u64 = status.units,
        /// Running units that these want and that have not ended by themselves.
        pub expected: u64 = status.expected,
        /// Of these, running and not told to leave.
        pub available: u64 = status.available,
        /// So many must be left.
        pub required: u64 = status.required,
        /// So many may leave now.
        pub allowed: u64 = status.allowed,
        /// Of its record.
        pub revision: u64 = status.revision,
        /// Of its record, Unix milliseconds.
        pub create_time_ms: i64 = status.create_time_ms,
    }
}

impl View for BudgetView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("UNITS", |view| view.units.to_string()),
        ("LIMIT", |view| match view.min_available.as_str() {
            "" => format!("max-unavailable={}", view.max_unavailable),
            least => format!("min-available={least}"),
        }),
        ("EXPECTED", |view| view.expected.to_string()),
        ("AVAILABLE", |view| view.available.to_string()),
        ("REQUIRED", |view| view.required.to_string()),
        ("ALLOWED", |view| view.allowed.to_string()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("NAMESPACE", |view| view.namespace.clone()),
        ("SELECTS", |view| if view.unit.is_empty() { pairs(&view.selector) } else { view.unit.clone() }),
        ("DESCRIPTION", |view| view.description.clone()),
        ("REVISION", |view| view.revision.to_string()),
    ];
}

/// A limit as people write it: `2` or `20%`.
pub fn parse_limit(of: fn(Amount) -> Limit, text: &str) -> Result<v1::disruption_budget::Limit, String> {
    let wrong = || format!("`{text}` is neither a number as `2` nor a share as `20%`");
    let amount = match text.strip_suffix('%') {
        Some(percent) => Amount::Percent(percent.parse().map_err(|_| wrong())?),
        None => Amount::Count(text.parse().map_err(|_| wrong())?),
    };
    Ok(to_proto::budget_limit(of(amount)))
}
