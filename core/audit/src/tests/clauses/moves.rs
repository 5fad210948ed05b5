//! What is in the way of replicas that move, on their targets.

use godel_domain::{
    label_expression::parse,
    unit_affinity::{NODE, UnitAffinity, UnitTerm},
    unit_topology::UnitTopology,
};

use super::*;

/// What is bound where one moves to that has to be apart from it, or together with it.
pub(super) fn in_the_way() -> Vec<Clause> {
    use Invariant::I6;
    let apart = |app: &str, topology: &str| {
        let units = parse(&format!("app = {app}")).unwrap();
        let term = UnitTerm { units, topology: topology.to_owned(), weight: 0 };
        UnitAffinity { apart: vec![term], ..UnitAffinity::default() }
    };
    let app = |record: UnitRecord, app: &str| record.labels([("app".to_owned(), app.to_owned())].into());
    let ports = || Demand { host_ports: vec!["80/tcp".parse().unwrap()], ..demand(10, None) };
    // One of the gang leaves node 2 for node 3, on which nothing runs.
    let moving = |gang: &UnitRecord, demand: Demand| {
        let Change::Hold(hold) = target(1, gang, 1, i64::MAX) else { unreachable!() };
        let hold = Hold { node: NodeId(3), demand: Arc::new(demand), ..Hold::clone(&hold) };
        healthy()
            .then(node(3, 4000, &[]).into())
            .then(vec![unit(gang)])
            .then(vec![evict(gang, 1, EvictionReason::Rescheduled), Change::Hold(Arc::new(hold))])
    };
    let beside = |gang: UnitRecord, demand: Demand, other: UnitRecord, to: u32| {
        moving(&gang, demand).then(vec![unit(&other)]).then(vec![bind(&other, &[(0, to, 0)], 0)])
    };
    let small = || spec(2, 1, 1, demand(10, None));
    let together = UnitTopology { required: NODE.to_owned(), ..UnitTopology::default() };
    let alone = spec(3, 2, 1, demand(10, None)).topology(together);
    let lone = |to: u32| {
        let Change::Hold(hold) = target(1, &alone, 0, i64::MAX) else { unreachable!() };
        let hold = Hold { node: NodeId(2), unit: alone.id, ..Hold::clone(&hold) };
        let runs = healthy().then(vec![unit(&alone)]).then(vec![bind(&alone, &[(0, 1, 0)], 0)]);
        let moves = vec![evict(&alone, 0, EvictionReason::Rescheduled), Change::Hold(Arc::new(hold))];
        runs.then(moves).then(vec![bind(&alone, &[(1, to, 0)], 0)])
    };
    let found = |story: Story| {
        let reports = check_all(&story.evidence());
        let of_i6 = reports.into_iter().find(|report| report.invariant == I6).unwrap();
        of_i6.violations
    };
    assert_eq!(found(lone(2)), [] as [String; 0], "it follows the one that moves");
    assert_eq!(
        found(beside(gang().affinity(apart("web", NODE)), demand(10, None), small(), 3)),
        [] as [String; 0]
    );
    vec![
        commit(
            I6,
            "running unit 0 is where unit unit-1, 1 moves to, which keeps it away",
            beside(gang().affinity(apart("web", NODE)), demand(10, None), app(small(), "web"), 3),
        ),
        commit(
            I6,
            "running unit 0 is not apart from where unit unit-1, 1 moves to",
            beside(app(gang(), "db"), demand(10, None), small().affinity(apart("db", NODE)), 3),
        ),
        commit(
            I6,
            "running unit 0 has a port where unit unit-1, 1 moves to",
            beside(gang(), ports(), spec(2, 1, 1, ports()), 3),
        ),
        commit(I6, "running unit 1 is in another node than where unit unit-3, 0 moves to", lone(1)),
    ]
}
