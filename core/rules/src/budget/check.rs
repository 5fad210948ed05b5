//! Whether disruption budgets may be changed as asked: pure, all that is wrong at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use godel_domain::{
    budget_spec::BudgetSpec,
    record_change::{Ground, RecordChange, Report, Violation, existence},
};

use super::Budgets;

/// Most budgets.
pub const N_BUDGETS_MAX: usize = 16_384;

/// A change of a budget.
pub type BudgetChange = RecordChange<Arc<BudgetSpec>>;

/// Checks changes of budgets, made together.
///
/// # Errors
/// Everything wrong, in order of the changes.
pub fn budgets(known: &Budgets, changes: &[BudgetChange]) -> Result<(), Vec<Violation>> {
    let mut report = Report::default();
    let mut seen = BTreeSet::new();
    let mut n_budgets = known.len();
    for (idx, change) in changes.iter().enumerate() {
        report.change = idx;
        let (name, spec) = match change {
            RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => {
                (spec.name.as_str(), Some(spec))
            }
            RecordChange::Delete(name) => (name.as_str(), None),
        };
        if !seen.insert(name) {
            report.add(Ground::Invalid, "name", format!("`{name}` stands twice"));
        }
        let exists = known.get(name).is_some();
        existence(change, exists, "disruption budget", name, "name", &mut report);
        if let Some(spec) = spec {
            spec.check_fields(&mut report);
            n_budgets += usize::from(!exists);
        }
    }
    if n_budgets > N_BUDGETS_MAX {
        report.add(Ground::State, "name", format!("there are {N_BUDGETS_MAX} budgets; no more are kept"));
    }
    report.finish()
}

#[cfg(test)]
mod tests {
    use godel_base::ids::Revision;
    use godel_domain::{
        budget_spec::{Amount, Limit},
        names::ENTRIES_MAX,
    };

    use super::*;

    fn budget(name: &str) -> BudgetSpec {
        BudgetSpec {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            unit: "web".to_owned(),
            ..BudgetSpec::default()
        }
    }

    fn wrong(change: BudgetChange) -> Vec<(Ground, String)> {
        let mut known = Budgets::default();
        known.put(Arc::new(budget("there")), Revision(1));
        let violations = budgets(&known, &[change]).err().unwrap_or_default();
        violations.into_iter().map(|violation| (violation.ground, violation.field)).collect()
    }

    #[test]
    fn there_are_so_many_at_most() {
        let mut known = Budgets::default();
        for number in 1..N_BUDGETS_MAX {
            known.put(Arc::new(budget(&format!("b{number}"))), Revision(1));
        }
        let create = |name: &str| RecordChange::Create(Arc::new(budget(name)));
        assert!(budgets(&known, &[create("last")]).is_ok());
        let violations = budgets(&known, &[create("last"), create("more")]).unwrap_err();
        assert_eq!(violations[0].ground, Ground::State);
    }

    #[test]
    fn everything_wrong_is_named() {
        let create = |spec: BudgetSpec| wrong(RecordChange::Create(Arc::new(spec)));
        assert_eq!(create(budget("new")), []);
        let labels = [("app".to_owned(), "web".to_owned())];
        let bad = BudgetSpec {
            name: "No".to_owned(),
            namespace: String::new(),
            selector: labels.into(),
            limit: Limit::MinAvailable(Amount::Percent(101)),
            ..budget("x")
        };
        let fields: Vec<String> = create(bad).into_iter().map(|(_, field)| field).collect();
        assert_eq!(fields, ["name", "namespace", "unit", "min_available"]);
        let nobody = BudgetSpec { unit: String::new(), ..budget("new") };
        assert_eq!(create(nobody), [(Ground::Invalid, "unit".to_owned())]);
        let key = BudgetSpec {
            unit: String::new(),
            selector: [("a b".to_owned(), "x".to_owned())].into(),
            ..budget("new")
        };
        assert_eq!(create(key), [(Ground::Invalid, "selector[\"a b\"]".to_owned())]);
    }

    #[test]
    fn limits_may_be_reached_and_not_passed() {
        let create = |spec: BudgetSpec| wrong(RecordChange::Create(Arc::new(spec)));
        let invalid = |field: &str| vec![(Ground::Invalid, field.to_owned())];
        let selecting = |n: usize| BudgetSpec {
            unit: String::new(),
            selector: (0..n).map(|number| (format!("key{number}"), String::new())).collect(),
            ..budget("new")
        };
        assert_eq!(create(selecting(ENTRIES_MAX)), []);
        for n in [ENTRIES_MAX + 1, ENTRIES_MAX + 2] {
            assert_eq!(create(selecting(n)), invalid("selector"), "{n} entries");
        }
        let percent = |n| BudgetSpec { limit: Limit::MaxUnavailable(Amount::Percent(n)), ..budget("new") };
        assert_eq!(create(percent(100)), []);
        assert_eq!(create(percent(101)), invalid("max_unavailable"));
    }

    #[test]
    fn names_are_there_or_not() {
        let spec = |name| Arc::new(budget(name));
        let name = || "name".to_owned();
        assert_eq!(wrong(RecordChange::Create(spec("there"))), [(Ground::AlreadyExists, name())]);
        assert_eq!(wrong(RecordChange::Update(spec("new"))), [(Ground::NotFound, name())]);
        assert_eq!(wrong(RecordChange::Delete("new".to_owned())), [(Ground::NotFound, name())]);
        for fine in [
            RecordChange::Put(spec("there")),
            RecordChange::Put(spec("new")),
            RecordChange::Update(spec("there")),
            RecordChange::Delete("there".to_owned()),
        ] {
            assert_eq!(wrong(fine), []);
        }
    }
}
