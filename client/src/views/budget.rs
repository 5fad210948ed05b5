//! Disruption budgets as shown.

use std::collections::BTreeMap;

use godel_domain::budget_spec::{Amount, Limit};
use godel_proto::v1;
use godel_wire::{from_proto, to_proto};
use serde::Serialize;

use super::pairs;
use crate::output::View;

/// A disruption budget and what it allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BudgetView {
    /// Unique.
    pub name: String,
    /// Of the units that it is about.
    pub namespace: String,
    /// The one unit that it is about; empty: those that the selector says.
    pub unit: String,
    /// Labels of the units that it is about.
    pub selector: BTreeMap<String, String>,
    /// As `1` or `20%`; empty: the other one is set.
    pub max_unavailable: String,
    /// As `3` or `80%`; empty: the other one is set.
    pub min_available: String,
    /// Free text.
    pub description: String,
    /// Units that it selects.
    pub units: u64,
    /// Running units that these want and that have not ended by themselves.
    pub expected: u64,
    /// Of these, running and not told to leave.
    pub available: u64,
    /// So many must be left.
    pub required: u64,
    /// So many may leave now.
    pub allowed: u64,
    /// Of its record.
    pub revision: u64,
    /// Of its record, Unix milliseconds.
    pub create_time_ms: i64,
}

impl From<&v1::DisruptionBudgetStatus> for BudgetView {
    fn from(status: &v1::DisruptionBudgetStatus) -> Self {
        let (spec, _) = from_proto::given_budget(status.budget.clone().unwrap_or_default());
        let (max_unavailable, min_available) = match spec.limit {
            Limit::MaxUnavailable(amount) => (amount.to_string(), String::new()),
            Limit::MinAvailable(amount) => (String::new(), amount.to_string()),
        };
        Self {
            name: spec.name,
            namespace: spec.namespace,
            unit: spec.unit,
            selector: spec.selector,
            max_unavailable,
            min_available,
            description: spec.description,
            units: status.units,
            expected: status.expected,
            available: status.available,
            required: status.required,
            allowed: status.allowed,
            revision: status.revision,
            create_time_ms: status.create_time_ms,
        }
    }
}

impl View for BudgetView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "UNITS", "LIMIT", "EXPECTED", "AVAILABLE", "REQUIRED", "ALLOWED"];
    const WIDE: &'static [&'static str] = &["NAMESPACE", "SELECTS", "DESCRIPTION", "REVISION"];

    fn row(&self) -> Vec<String> {
        let limit = if self.min_available.is_empty() {
            format!("max-unavailable={}", self.max_unavailable)
        } else {
            format!("min-available={}", self.min_available)
        };
        let counts = [self.expected, self.available, self.required, self.allowed];
        let head = [self.name.clone(), self.units.to_string(), limit];
        head.into_iter().chain(counts.map(|n| n.to_string())).collect()
    }

    fn wide(&self) -> Vec<String> {
        let selects = if self.unit.is_empty() { pairs(&self.selector) } else { self.unit.clone() };
        vec![self.namespace.clone(), selects, self.description.clone(), self.revision.to_string()]
    }
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
