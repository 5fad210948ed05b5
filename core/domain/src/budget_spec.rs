//! What people write: disruption budgets, and what of one is wrong by itself.

use std::{collections::BTreeMap, fmt};

use crate::{
    names::{self, BadName, ENTRIES_MAX, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
    record_change::{DESCRIPTION_LEN_MAX, Ground, Report},
};

/// Namespace of a budget that names none.
pub const NAMESPACE_DEFAULT: &str = "default";

/// A budget as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetSpec {
    /// A label, unique.
    pub name: String,
    /// Of the units that it is about.
    pub namespace: String,
    /// The one unit that it is about; empty: those that `selector` says.
    pub unit: String,
    /// Labels that a unit must have, all of them; empty: `unit` says which.
    pub selector: BTreeMap<String, String>,
    /// What it allows.
    pub limit: Limit,
    /// Free text.
    pub description: String,
}

impl BudgetSpec {
    /// Whether it selects the same units as another one.
    pub fn selects_as(&self, other: &Self) -> bool {
        (&self.namespace, &self.unit, &self.selector) == (&other.namespace, &other.unit, &other.selector)
    }

    /// Reports each field that is wrong whatever other budgets there are.
    pub fn check_fields(&self, report: &mut Report) {
        report.named("name", names::label(&self.name));
        report.named("namespace", names::name(&self.namespace, NAMESPACE_LEN_MAX));
        match (self.unit.is_empty(), self.selector.is_empty()) {
            (true, true) => {
                let description = "neither a unit nor labels of units: say which running units it is about";
                report.add(Ground::Invalid, "unit", description.to_owned());
            }
            (false, false) => {
                report.add(
                    Ground::Invalid,
                    "unit",
                    "a unit and labels of units: name one of the two".to_owned(),
                );
            }
            (false, true) => report.named("unit", names::name(&self.unit, NAME_LEN_MAX)),
            (true, false) => {}
        }
        if self.selector.len() > ENTRIES_MAX {
            let n = self.selector.len();
            report.add(Ground::Invalid, "selector", format!("{n} entries; at most {ENTRIES_MAX}"));
        }
        for (key, value) in &self.selector {
            let value: Result<(), BadName> = names::text(value, NAME_LEN_MAX);
            for checked in [names::label_key(key), value] {
                report.named(&format!("selector[{key:?}]"), checked);
            }
        }
        let (field, amount) = match self.limit {
            Limit::MaxUnavailable(amount) => ("max_unavailable", amount),
            Limit::MinAvailable(amount) => ("min_available", amount),
        };
        if let Amount::Percent(percent) = amount
            && percent > 100
        {
            report.add(Ground::Invalid, field, format!("{percent}% is not in 0%..=100%"));
        }
        report.named("description", names::text(&self.description, DESCRIPTION_LEN_MAX));
    }
}

/// How much disruption is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many may be missing.
    MaxUnavailable(Amount),
    /// So many must be left.
    MinAvailable(Amount),
}

/// Running units, as a number or as a share of those that are to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// Of a hundred.
    Percent(u32),
}

impl Default for Limit {
    /// One may be missing.
    fn default() -> Self {
        Self::MaxUnavailable(Amount::Count(1))
    }
}

impl Limit {
    /// How many of `expected` must be left. A share is rounded in favour of those that run.
    pub fn floor(self, expected: u64) -> u64 {
        match self {
            Self::MaxUnavailable(Amount::Count(n)) => expected.saturating_sub(u64::from(n)),
            Self::MaxUnavailable(Amount::Percent(percent)) => {
                expected.saturating_sub(expected.saturating_mul(u64::from(percent)) / 100)
            }
            Self::MinAvailable(Amount::Count(n)) => u64::from(n),
            Self::MinAvailable(Amount::Percent(percent)) => {
                expected.saturating_mul(u64::from(percent)).div_ceil(100)
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxUnavailable(amount) => write!(f, "max_unavailable {amount}"),
            Self::MinAvailable(amount) => write!(f, "min_available {amount}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::budget_spec::*;

    #[test]
    fn shares_are_rounded_for_those_that_run() {
        use Amount::{Count, Percent};
        use Limit::{MaxUnavailable, MinAvailable};
        for (limit, expected, floor) in [
            (Limit::default(), 3, 2),
            (Limit::default(), 0, 0),
            (MaxUnavailable(Count(0)), 4, 4),
            (MaxUnavailable(Count(9)), 4, 0),
            (MaxUnavailable(Percent(25)), 8, 6),
            (MaxUnavailable(Percent(25)), 7, 6),
            (MaxUnavailable(Percent(10)), 5, 5),
            (MaxUnavailable(Percent(100)), 5, 0),
            (MinAvailable(Count(3)), 2, 3),
            (MinAvailable(Percent(50)), 7, 4),
            (MinAvailable(Percent(0)), 7, 0),
            (MinAvailable(Percent(100)), 7, 7),
        ] {
            assert_eq!(limit.floor(expected), floor, "{limit} of {expected}");
        }
    }
}
