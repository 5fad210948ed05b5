//! Replicas that start before those stop that they replace.

use godel_domain::{records::Record, surge::Surge, unit::WorkloadClass};

use super::*;

/// A service of two that runs on node 1, of which one replacement may start first.
fn service() -> UnitRecord {
    spec(2, 2, 1, demand(10, None)).class(WorkloadClass::Service).max_surge(1)
}

/// The service with replica 2 in addition, which is to replace replica 0.
fn surging() -> UnitRecord {
    let surge = |ordinal| Surge { ordinal, replaces: 0, movement: "m".to_owned(), expires_ms: i64::MAX };
    sized(service(), &[(0, 3)]).edit(|unit| unit.status.surges.push(surge(2)))
}

fn sized(unit: UnitRecord, ranges: &[(u32, u32)]) -> UnitRecord {
    unit.edit(|unit| {
        unit.spec.task_groups[0].replicas = ranges.iter().map(|(start, end)| end - start).sum();
        unit.status.ordinals[0] = ranges.to_vec();
    })
}

pub(super) fn clauses() -> Vec<Clause> {
    use Invariant::{I3, I6};
    let runs = || {
        let bound =
            healthy().then(vec![unit(&service())]).then(vec![bind(&service(), &[(0, 1, 0), (1, 1, 0)], 0)]);
        bound.then([0, 1].map(|ordinal| status(&service(), ordinal, 0, Phase::Running)).to_vec())
    };
    let begun = || runs().then(vec![unit(&surging())]);
    let room = |ordinal: u32, replaces: u32| {
        let from = RunningUnitId::new(service().id, replaces, 0);
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        let ordinals = vec![ordinal];
        Change::Put(Record::Hold(Arc::new(Hold {
            ordinals,
            movement,
            expires_ms: i64::MAX,
            ..hold(1, service().id, 10)
        })))
    };
    let done = sized(service(), &[(1, 3)]);
    vec![
        commit(I3, "2 is to replace 0, and was there before", {
            let wide = sized(service(), &[(0, 3)]);
            runs().then(vec![unit(&wide)]).then(vec![unit(&surging())])
        }),
        commit(I3, "2 is to replace 0, which is not wanted", {
            let without = sized(service(), &[(1, 2)]);
            let leaving = runs().then(vec![unit(&without)]);
            leaving.then(vec![unit(&surging())])
        }),
        commit(I3, "2 replacements start at once, max_surge is 1", {
            let two = sized(surging(), &[(0, 4)]).edit(|unit| {
                let second = Surge { ordinal: 3, replaces: 1, ..unit.status.surges[0].clone() };
                unit.status.surges.push(second);
            });
            runs().then(vec![unit(&two)])
        }),
        commit(I3, "2 replaces 0 no more, and both are wanted", {
            begun().then(vec![unit(&sized(service(), &[(0, 3)]))])
        }),
        commit(I3, "0 is to stop, and 2, which replaces it, does not run", {
            let bound = begun().then(vec![bind(&surging(), &[(2, 1, 0)], 0)]);
            bound.then(vec![unit(&done)])
        }),
        commit(I6, "hold 1: nobody is there whom it replaces", runs().then(vec![room(2, 5)])),
        commit(I6, "hold 1: it is for 1, which its unit has had before", runs().then(vec![room(1, 0)])),
        commit(I6, "hold 1: its unit lets no replacement start first", {
            runs().then(vec![unit(&service().max_surge(0))]).then(vec![room(2, 0)])
        }),
    ]
}

#[test]
fn a_replacement_that_runs_may_take_the_place() {
    let bound = |story: Story| story.then(vec![bind(&surging(), &[(2, 1, 0)], 0)]);
    let first =
        healthy().then(vec![unit(&service())]).then(vec![bind(&service(), &[(0, 1, 0), (1, 1, 0)], 0)]);
    let runs = first.then([0, 1].map(|ordinal| status(&service(), ordinal, 0, Phase::Running)).to_vec());
    let begun = bound(runs.then(vec![unit(&surging())])).then(vec![status(&surging(), 2, 0, Phase::Running)]);
    let done = sized(service(), &[(1, 3)]);
    let evidence =
        begun.then(vec![unit(&done)]).then(vec![evict(&done, 0, EvictionReason::ScaledIn)]).evidence();
    let failed: Vec<_> = check_all(&evidence).into_iter().filter(InvariantReport::has_failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
