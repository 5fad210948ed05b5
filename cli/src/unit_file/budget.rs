//! Documents of disruption budgets.

use std::collections::BTreeMap;

use godel_core::budget::spec::Limit;
use godel_proto::v1;
use serde::{Deserialize, Deserializer, de};

use super::{Scalar, Text, manifest::Kind, texts};
use crate::views::parse_limit;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Budget {
    #[serde(rename = "kind")]
    _kind: Kind,
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    selector: BTreeMap<String, Text>,
    #[serde(default, deserialize_with = "amount")]
    max_unavailable: Option<String>,
    #[serde(default, deserialize_with = "amount")]
    min_available: Option<String>,
    #[serde(default)]
    description: String,
}

/// A number, or a share as `20%`; told with its line and column if it is neither.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let read = |text: &str| parse_limit(Limit::MaxUnavailable, text).map(|_| Some(text.to_owned()));
    deserializer.deserialize_any(Scalar("a number or a share", read))
}

impl Budget {
    /// # Errors
    /// Two limits.
    pub(super) fn into_api<E: de::Error>(self) -> Result<v1::DisruptionBudget, E> {
        let limit = match (&self.max_unavailable, &self.min_available) {
            (None, None) => None,
            (Some(most), None) => Some(parse_limit(Limit::MaxUnavailable, most)),
            (None, Some(least)) => Some(parse_limit(Limit::MinAvailable, least)),
            (Some(_), Some(_)) => {
                return Err(E::custom("`max_unavailable` and `min_available`: name one of the two"));
            }
        };
        Ok(v1::DisruptionBudget {
            name: self.name,
            namespace: self.namespace,
            unit: self.unit,
            selector: texts(self.selector),
            limit: limit.transpose().map_err(E::custom)?,
            description: self.description,
        })
    }
}

#[cfg(test)]
mod tests {
    use godel_kit::to_proto::budget_limit;

    use super::*;
    use crate::unit_file::{Document, parse_manifest};
    use godel_core::budget::spec::Amount;

    #[test]
    fn documents_are_read_and_mistakes_told() {
        let text = "\
kind: disruption-budget
name: web
selector: {app: web}
max_unavailable: 20%
---
{kind: disruption-budget, name: db, namespace: prod, unit: db, min_available: 2}
---
{kind: disruption-budget, name: one, unit: one}
";
        let documents = parse_manifest(text).unwrap();
        let limits: Vec<_> = documents
            .iter()
            .map(|(_, document)| match document {
                Document::Budget(budget) => (budget.unit.as_str(), budget.limit),
                other => panic!("{other:?}"),
            })
            .collect();
        let percent = budget_limit(Limit::MaxUnavailable(Amount::Percent(20)));
        let count = budget_limit(Limit::MinAvailable(Amount::Count(2)));
        assert_eq!(limits, [("", Some(percent)), ("db", Some(count)), ("one", None)]);
        for (text, expected) in [
            (
                "kind: disruption-budget\nname: a\nmax_unavailable: few\n",
                "3:18: max_unavailable: `few` is neither",
            ),
            ("kind: disruption-budget\nname: a\nunits: b\n", "did you mean `unit`?"),
            (
                "kind: disruption-budget\nname: a\nmax_unavailable: 1\nmin_available: 1\n",
                "name one of the two",
            ),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
