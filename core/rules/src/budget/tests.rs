use godel_domain::budget_spec::{Amount, Limit};

use super::*;

fn budget(name: &str, labels: &[(&str, &str)], limit: Limit) -> Arc<BudgetSpec> {
    let selector = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Arc::new(BudgetSpec {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        selector,
        limit,
        ..BudgetSpec::default()
    })
}

fn rows(phases: &[Phase]) -> RunningUnits {
    let rows = phases.iter().map(|phase| RunningUnit { phase: *phase, ..RunningUnit::default() }).collect();
    RunningUnits { rows, ..RunningUnits::default() }
}

fn offer(budgets: &mut Budgets, id: u64, labels: &[(&str, &str)], n: u32, rows: &RunningUnits) {
    let identity = UnitIdentity::new("default", &format!("u{id}"), labels.iter().copied());
    let wanted = || WantedOrdinals::new([(0, n)], OnEviction::Requeue);
    budgets.offer(UnitId(id), &identity, wanted, Some(rows));
}

fn shown(budgets: &Budgets, name: &str) -> (u64, u64, u64, u64) {
    let budget = budgets.get(name).unwrap();
    (budget.n_units, budget.used.expected, budget.used.available, budget.allowed())
}

#[test]
fn all_labels_or_the_name_select() {
    let mut budgets = Budgets::default();
    let none = Limit::MaxUnavailable(Amount::Count(0));
    budgets.put(budget("one", &[("app", "web")], none), Revision(1));
    budgets.put(budget("two", &[("app", "web"), ("tier", "front")], none), Revision(1));
    let named = BudgetSpec { unit: "u3".to_owned(), ..(*budget("named", &[], none)).clone() };
    budgets.put(Arc::new(named.clone()), Revision(1));
    let elsewhere = BudgetSpec { name: "other".to_owned(), namespace: "prod".to_owned(), ..named };
    budgets.put(Arc::new(elsewhere), Revision(1));
    let bound = rows(&[Phase::Running]);
    offer(&mut budgets, 1, &[("app", "web")], 1, &bound);
    offer(&mut budgets, 2, &[("app", "web"), ("tier", "front")], 1, &bound);
    offer(&mut budgets, 3, &[("app", "db"), ("web", "app")], 1, &bound);
    for (name, n_units) in [("one", 2), ("two", 1), ("named", 1), ("other", 0)] {
        assert_eq!(budgets.get(name).unwrap().n_units, n_units, "{name}");
    }
    budgets.remove("one");
    assert!(!budgets.selects(UnitId(1)) && budgets.selects(UnitId(2)));
    budgets.forget(UnitId(2));
    assert_eq!(shown(&budgets, "two"), (0, 0, 0, 0));
}

#[test]
fn its_use_follows_from_records_and_rows() {
    let mut budgets = Budgets::default();
    budgets.put(budget("b", &[("app", "web")], Limit::MinAvailable(Amount::Count(1))), Revision(1));
    let labels = [("app", "web")];
    let mut of_one = rows(&[
        Phase::Running,
        Phase::Running,
        Phase::Starting,
        Phase::Succeeded,
        Phase::Stopped,
        Phase::Running,
    ]);
    // Ordinal 5 is not wanted, 6 was never bound.
    let identity = UnitIdentity::new("default", "u1", labels.into_iter());
    let wanted = || WantedOrdinals::new([(0, 5), (6, 7)], OnEviction::Requeue);
    budgets.offer(UnitId(1), &identity, wanted, Some(&of_one));
    assert_eq!(shown(&budgets, "b"), (1, 5, 2, 1));
    offer(&mut budgets, 2, &labels, 1, &rows(&[Phase::Running]));
    assert_eq!(shown(&budgets, "b"), (2, 6, 3, 2));
    // Told to leave, twice over.
    budgets.depart(UnitId(1), &[(UnitId(1), 0)], Some(&of_one));
    assert_eq!(shown(&budgets, "b").2, 2);
    let row = of_one.row(0);
    assert!(budgets.counting(UnitId(1), 0, &row).is_empty());
    of_one.rows.get_mut(0).unwrap().eviction = Some(godel_domain::running_units::EvictionReason::Preempted);
    budgets.recount(UnitId(1), Some(&of_one));
    budgets.arrive(UnitId(1), &[(UnitId(1), 0)], Some(&of_one));
    assert_eq!(shown(&budgets, "b").2, 2);
    // Its unit is cancelled: what it has left is nobody's loss.
    budgets.offer(UnitId(1), &identity, || WantedOrdinals::new([], OnEviction::Requeue), Some(&of_one));
    assert_eq!(shown(&budgets, "b"), (2, 1, 1, 0));
    assert!(budgets.counting(UnitId(1), 1, of_one.rows.get_mut(1).unwrap()).is_empty());
}

#[test]
fn one_that_starts_and_one_that_is_over_let_others_leave() {
    let mut budgets = Budgets::default();
    budgets.put(budget("b", &[("app", "web")], Limit::MinAvailable(Amount::Count(1))), Revision(1));
    offer(&mut budgets, 1, &[("app", "web")], 2, &rows(&[Phase::Starting, Phase::Running]));
    let mut gains = |phases: &[Phase]| {
        let before = budgets.n_gains();
        budgets.recount(UnitId(1), Some(&rows(phases)));
        budgets.n_gains() - before
    };
    assert_eq!(gains(&[Phase::Running, Phase::Running]), 1, "more are available");
    assert_eq!(gains(&[Phase::Running, Phase::Starting]), 0);
    assert_eq!(gains(&[Phase::Running, Phase::Starting]), 0, "nothing is new");
    assert_eq!(gains(&[Phase::Running, Phase::Succeeded]), 1, "fewer are expected");
}

#[test]
fn a_unit_and_a_budget_that_go_let_others_leave() {
    let mut budgets = Budgets::default();
    let labels = [("app", "web")];
    budgets.put(budget("b", &labels, Limit::MaxUnavailable(Amount::Count(1))), Revision(1));
    offer(&mut budgets, 1, &labels, 1, &rows(&[Phase::Running]));
    offer(&mut budgets, 2, &labels, 1, &rows(&[Phase::Starting]));
    assert_eq!(shown(&budgets, "b").3, 0);
    let before = budgets.n_gains();
    budgets.forget(UnitId(2));
    assert_eq!(shown(&budgets, "b").3, 1);
    assert!(budgets.n_gains() > before);
    let before = budgets.n_gains();
    budgets.remove("b");
    assert!(budgets.n_gains() > before);
}

#[test]
fn only_another_selection_asks_for_all_units() {
    let mut budgets = Budgets::default();
    let labels = [("app", "web")];
    assert!(budgets.put(budget("b", &labels, Limit::default()), Revision(3)));
    offer(&mut budgets, 1, &labels, 2, &rows(&[Phase::Running, Phase::Running]));
    assert_eq!(shown(&budgets, "b").3, 1);
    assert!(!budgets.put(budget("b", &labels, Limit::MaxUnavailable(Amount::Count(2))), Revision(4)));
    assert_eq!(shown(&budgets, "b").3, 2);
    assert!(!budgets.put(budget("b", &labels, Limit::default()), Revision(3)), "older");
    assert_eq!(shown(&budgets, "b").3, 2);
    assert!(budgets.put(budget("b", &[("app", "db")], Limit::default()), Revision(5)));
    assert_eq!(shown(&budgets, "b"), (0, 0, 0, 0));
    // A list follows: what is told to leave stays told.
    budgets.put(budget("b", &labels, Limit::default()), Revision(6));
    budgets.depart(UnitId(1), &[(UnitId(1), 0)], None);
    let mut budgets = budgets.reset();
    assert!(budgets.is_empty());
    budgets.put(budget("b", &labels, Limit::default()), Revision(6));
    offer(&mut budgets, 1, &labels, 2, &rows(&[Phase::Running, Phase::Running]));
    assert_eq!(shown(&budgets, "b"), (1, 2, 1, 0));
}
