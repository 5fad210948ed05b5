//! Documents of disruption budgets.

use godel_domain::budget_spec::Limit;
use godel_proto::v1;

use super::read::Fields;
use crate::views::parse_limit;

pub(super) fn budget(fields: &mut Fields<'_, '_>) -> v1::DisruptionBudget {
    fields.text("kind");
    let name = fields.text("name");
    let name = fields.required("name", name);
    let namespace = fields.text("namespace").unwrap_or_default();
    let unit = fields.text("unit").unwrap_or_default();
    let selector = fields.text_map("selector");
    let most = fields.scalar("max_unavailable", |text| parse_limit(Limit::MaxUnavailable, text));
    let least = fields.scalar("min_available", |text| parse_limit(Limit::MinAvailable, text));
    if most.is_some() && least.is_some() {
        fields
            .report
            .rule("min_available", "`max_unavailable` and `min_available`: give only one of the two");
    }
    let description = fields.text("description").unwrap_or_default();
    v1::DisruptionBudget {
        name: name.unwrap_or_default(),
        namespace,
        unit,
        selector,
        limit: most.or(least),
        description,
    }
}

#[cfg(test)]
mod tests {
    use godel_domain::budget_spec::Amount;
    use godel_wire::to_proto::budget_limit;

    use super::*;
    use crate::unit_file::{Document, parse_manifest};

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
                "kind: disruption-budget\nname: a\nunit: b\nmax_unavailable: few\n",
                "4:18: max_unavailable: `few` is neither",
            ),
            ("kind: disruption-budget\nname: a\nunits: b\nselector: {a: b}\n", "did you mean `unit`?"),
            (
                "kind: disruption-budget\nname: a\nmax_unavailable: 1\nmin_available: 1\n",
                "give only one of the two",
            ),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
