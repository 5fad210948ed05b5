//! Documents of disruption budgets.

use godel_domain::budget_spec::Limit;
use godel_proto::v1;

use super::{
    notation::{InFile, Notation},
    yaml_out::Yaml,
};
use crate::views::parse_limit;

impl InFile for v1::DisruptionBudget {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { name, namespace, unit, selector, limit, description } = self;
        file.text("kind", &mut "disruption-budget".to_owned());
        file.required_text("name", name);
        file.text("namespace", namespace);
        file.text("unit", unit);
        file.texts_by_key("selector", selector);
        let (mut most, mut least) = (None, None);
        let show = |_: &_| Yaml::map();
        file.scalar("max_unavailable", &mut most, |text| parse_limit(Limit::MaxUnavailable, text), show);
        file.scalar("min_available", &mut least, |text| parse_limit(Limit::MinAvailable, text), show);
        if most.is_some() && least.is_some() {
            file.note("min_available", "`max_unavailable` and `min_available`: give only one of the two");
        }
        *limit = most.or(least);
        file.text("description", description);
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
