//! Disruption budgets in the search: nobody leaves whom a budget keeps.

use godel_domain::{
    budget_spec::{Amount, BudgetSpec, Limit},
    running_units::{Phase, Statuses},
    unit::OnEviction,
};
use godel_rules::budget::{Spent, UnitIdentity, WantedOrdinals};

use super::*;

/// All that was bound of a unit runs.
fn started(cluster: &mut Cluster, unit: &Running) {
    let ordinals: Vec<u32> = (0..u32::try_from(unit.nodes.len()).unwrap()).collect();
    let phases = vec![Phase::Running; ordinals.len()];
    let statuses = Statuses { ordinals, phases, ..Statuses::default() };
    cluster.apply_rows(UnitId(unit.id), &RunChange::Statuses(statuses), Revision(4), NOW_MS);
    let name = format!("u{}", unit.id);
    let identity = UnitIdentity::new(
        "default",
        &name,
        [("tier", if unit.id.is_multiple_of(2) { "even" } else { "odd" })].into_iter(),
    );
    let n = u32::try_from(unit.nodes.len()).unwrap();
    cluster
        .units_mut()
        .offer(UnitId(unit.id), &identity, || WantedOrdinals::new([(0, n)], OnEviction::Requeue));
}

fn of_unit(id: u64, limit: Limit) -> BudgetSpec {
    let (name, unit) = (format!("of-{id}"), format!("u{id}"));
    BudgetSpec { name, unit, namespace: "default".to_owned(), limit, ..BudgetSpec::default() }
}

fn of_tier(tier: &str, limit: Limit) -> BudgetSpec {
    let selector = [("tier".to_owned(), tier.to_owned())].into();
    BudgetSpec {
        name: format!("all-{tier}"),
        namespace: "default".to_owned(),
        selector,
        limit,
        ..BudgetSpec::default()
    }
}

fn put(cluster: &mut Cluster, budget: BudgetSpec) {
    cluster.taken_mut().put_budget(Arc::new(budget), Revision(1));
}

const fn most(n: u32) -> Limit {
    Limit::MaxUnavailable(Amount::Count(n))
}

#[test]
fn no_more_leave_than_a_budget_allows() {
    let mut cluster = cluster(3);
    let web = running(1, 5, 8_000, &[1, 2, 3]);
    put(&mut cluster, of_unit(1, most(2)));
    run(&mut cluster, &web);
    started(&mut cluster, &web);
    let ask = demand(8_000, 1, 0);
    assert_eq!(seek(&mut cluster, &ask, 2).places.len(), 2);
    let found = seek(&mut cluster, &ask, 3);
    assert_eq!((found.places.len(), victims(&found).len()), (2, 2));
    assert!(found.is_kept);
    // What leaves already is used up.
    cluster.taken_mut().depart([(UnitId(1), 0)]);
    let (shape, claimed) = (cluster.shape(&ask, Pool::Guaranteed), [(UnitId(1), 0)].into_iter().collect());
    let found = search(&mut cluster, &SEEKER, &claimed, None, shape, 1..4, 3);
    assert_eq!((found.places.len(), found.is_kept), (1, true));
    cluster.taken_mut().arrive([(UnitId(1), 0)]);
    assert_eq!(seek(&mut cluster, &ask, 3).places.len(), 2);
    cluster.taken_mut().remove_budget("of-1");
    let found = seek(&mut cluster, &ask, 3);
    assert_eq!((found.places.len(), found.is_kept), (3, false));
}

#[test]
fn what_does_not_run_yet_is_nobodys_loss() {
    let mut cluster = cluster(1);
    put(&mut cluster, of_unit(1, most(0)));
    let web = running(1, 5, 8_000, &[1]);
    run(&mut cluster, &web);
    let identity = UnitIdentity::new("default", "u1", std::iter::empty());
    cluster.units_mut().offer(UnitId(1), &identity, || WantedOrdinals::new([(0, 1)], OnEviction::Requeue));
    let ask = demand(8_000, 1, 0);
    assert_eq!(seek(&mut cluster, &ask, 1).places.len(), 1);
    started(&mut cluster, &web);
    assert!(seek(&mut cluster, &ask, 1).places.is_empty());
}

#[test]
fn whom_a_budget_keeps_others_leave_for() {
    let mut cluster = cluster(1);
    put(&mut cluster, of_tier("odd", most(1)));
    let units = [running(1, 5, 2_000, &[1]), running(3, 5, 2_000, &[1]), running(2, 20, 4_000, &[1])];
    for unit in &units {
        run(&mut cluster, unit);
        started(&mut cluster, unit);
    }
    // Both of the lower rank would do; one of them may, and with it the other unit.
    let found = seek(&mut cluster, &demand(4_000, 1, 0), 1);
    assert_eq!(victims(&found), [(2, 0)]);
    let found = seek(&mut cluster, &demand(6_000, 1, 0), 1);
    let left = victims(&found);
    assert_eq!((found.places.len(), left.len()), (1, 2));
    assert!(left.contains(&(2, 0)));
    assert!(seek(&mut cluster, &demand(8_000, 1, 0), 1).places.is_empty());
}

#[test]
fn of_a_unit_that_a_budget_keeps_in_part_the_rest_may_leave() {
    let mut cluster = cluster(2);
    put(&mut cluster, of_unit(1, most(1)));
    let fixed = |id, cpu, node| Running { preemptible: false, ..running(id, 5, cpu, &[node]) };
    let units = [
        running(1, 5, 2_000, &[1, 1, 2]),
        running(2, 20, 2_000, &[1]),
        fixed(4, 2_000, 1),
        fixed(6, 6_000, 2),
    ];
    for unit in &units {
        run(&mut cluster, unit);
        started(&mut cluster, unit);
    }
    let found = seek(&mut cluster, &demand(4_000, 1, 0), 1);
    assert_eq!((victims(&found), found.is_kept), (vec![(1, 1), (2, 0)], true));
}

#[test]
fn a_gang_counts_with_all_its_members() {
    let mut cluster = cluster(3);
    let gang = Running { min_member: 3, ..running(1, 5, 8_000, &[1, 2, 3]) };
    run(&mut cluster, &gang);
    started(&mut cluster, &gang);
    let ask = demand(8_000, 1, 0);
    for (n, n_victims) in [(2, 0), (3, 3)] {
        put(&mut cluster, of_unit(1, most(n)));
        started(&mut cluster, &gang);
        assert_eq!(victims(&seek(&mut cluster, &ask, 1)).len(), n_victims, "{n} may leave");
    }
}

fn limit() -> impl Strategy<Value = Limit> {
    let amount = prop_oneof![(0u32..4).prop_map(Amount::Count), (0u32..=100).prop_map(Amount::Percent)];
    (any::<bool>(), amount).prop_map(|(is_most, amount)| {
        if is_most { Limit::MaxUnavailable(amount) } else { Limit::MinAvailable(amount) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_plan_stays_within_every_budget(
        units in proptest::collection::vec(any_running(), 1..8),
        limits in proptest::collection::vec(proptest::option::of(limit()), 10),
        (cpu, wanted) in (1i64..9, 1usize..6),
    ) {
        let mut cluster = cluster(4);
        let mut ids: Vec<u64> = Vec::new();
        for (idx, limit) in limits.iter().enumerate() {
            let id = u64::try_from(idx).unwrap();
            match (id, limit) {
                (_, None) => {}
                (8, Some(limit)) => put(&mut cluster, of_tier("even", *limit)),
                (9, Some(limit)) => put(&mut cluster, of_tier("odd", *limit)),
                (_, Some(limit)) => put(&mut cluster, of_unit(id, *limit)),
            }
        }
        for (id, unit) in (1u64..).zip(units) {
            let unit = Running { id, ..unit };
            run(&mut cluster, &unit);
            started(&mut cluster, &unit);
            ids.push(id);
        }
        let ask = demand(cpu * 1_000, 1, 0);
        let found = seek(&mut cluster, &ask, wanted);
        let mut spent = Spent::default();
        for (unit, ordinal) in victims(&found) {
            let row = cluster.rows().of(UnitId(unit)).unwrap().row(ordinal);
            cluster.taken().budgets().spend(UnitId(unit), ordinal, &row, &mut spent);
        }
        prop_assert_eq!(cluster.taken().budgets().exceeded(&spent), None);
        if !found.is_kept {
            // Where nobody was kept budgets change nothing.
            let names: Vec<String> = cluster.taken().budgets().iter().map(|one| one.spec.name.clone()).collect();
            names.iter().for_each(|name| cluster.taken_mut().remove_budget(name));
            prop_assert_eq!(seek(&mut cluster, &ask, wanted), found);
        }
    }
}
