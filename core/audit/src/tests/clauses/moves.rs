//! What is in the way of replicas that move, on their targets.

use godel_domain::{
    label_expression::parse,
    records::Record,
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
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
        let Change::Put(Record::Hold(hold)) = target(1, gang, 1, i64::MAX) else { unreachable!() };
        let hold = Hold { node: NodeId(3), demand: Arc::new(demand), ..Hold::clone(&hold) };
        healthy().then(node(3, 4000, &[]).into()).then(vec![unit(gang)]).then(vec![
            evict(gang, 1, EvictionReason::Rescheduled),
            Change::Put(Record::Hold(Arc::new(hold))),
        ])
    };
    let beside = |gang: UnitRecord, demand: Demand, other: UnitRecord, to: u32| {
        moving(&gang, demand).then(vec![unit(&other)]).then(vec![bind(&other, &[(0, to, 0)], 0)])
    };
    let small = || spec(2, 1, 1, demand(10, None));
    let together = UnitTopology { required: NODE.to_owned(), ..UnitTopology::default() };
    let alone = spec(3, 2, 1, demand(10, None)).topology(together);
    let lone = |to: u32| {
        let Change::Put(Record::Hold(hold)) = target(1, &alone, 0, i64::MAX) else { unreachable!() };
        let hold = Hold { node: NodeId(2), unit: alone.id, ..Hold::clone(&hold) };
        let runs = healthy().then(vec![unit(&alone)]).then(vec![bind(&alone, &[(0, 1, 0)], 0)]);
        let moves =
            vec![evict(&alone, 0, EvictionReason::Rescheduled), Change::Put(Record::Hold(Arc::new(hold)))];
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

/// What is bound where a spread is uneven, or where it is not near, while the first replica of a unit moves from node 1 to node 2.
pub(super) fn astray() -> Vec<Clause> {
    use Invariant::I6;
    let spread = SpreadTerm { units: Vec::new(), topology: NODE.to_owned(), max_skew: 1, weight: 0 };
    let even = UnitAffinity { spread: vec![spread], ..UnitAffinity::default() };
    let spread_out = || spec(3, 4, 1, demand(10, None)).affinity(even.clone());
    let near = UnitTerm { units: parse("app = db").unwrap(), topology: NODE.to_owned(), weight: 0 };
    let near = UnitAffinity { near: vec![near], ..UnitAffinity::default() };
    let db = || spec(3, 1, 1, demand(10, None)).labels([("app".to_owned(), "db".to_owned())].into());
    let client = || spec(4, 1, 1, demand(10, None)).affinity(near.clone());
    let segments = UnitTopology {
        segments: Some(Segments { size: 2, within: NODE.to_owned() }),
        ..UnitTopology::default()
    };
    let segmented = || spec(3, 4, 1, demand(10, None)).topology(segments.clone());
    let of_group = || {
        let mut record = spec(3, 4, 1, demand(10, None));
        record.spec.task_groups[0].topology = Some(Box::new(segments.clone()));
        record
    };
    let moving = |of: UnitRecord| {
        let Change::Put(Record::Hold(hold)) = target(1, &of, 0, i64::MAX) else { unreachable!() };
        let hold = Hold { node: NodeId(2), unit: of.id, ..Hold::clone(&hold) };
        let runs = healthy().then(vec![unit(&of)]).then(vec![bind(&of, &[(0, 1, 0)], 0)]);
        runs.then(vec![evict(&of, 0, EvictionReason::Rescheduled), Change::Put(Record::Hold(Arc::new(hold)))])
    };
    let own = |of: UnitRecord, ordinal: u32, to: u32| {
        known_at_once(moving(of.clone()).then(vec![bind(&of, &[(ordinal, to, 0)], 0)]))
    };
    let beside = |to: u32| {
        let story = moving(db()).then(vec![unit(&client())]);
        known_at_once(story.then(vec![bind(&client(), &[(0, to, 0)], 0)]))
    };
    let good = [
        own(spread_out(), 1, 1),
        own(segmented(), 1, 2),
        own(segmented(), 2, 1),
        own(of_group(), 1, 2),
        own(of_group(), 2, 1),
        beside(2),
    ];
    for evidence in &good {
        let report = &check_all(evidence)[5];
        assert!(report.holds(), "{report}");
    }
    // Whom the one that leaves was near to a moment ago is not known to everybody at once, nor is where it made a spread even.
    for mut evidence in [own(spread_out(), 1, 2), beside(1)] {
        evidence.service.known_after_ms = 1_000;
        let report = &check_all(&evidence)[5];
        assert!(report.holds(), "{report}");
    }
    let clause = |words, evidence| Clause { invariant: I6, words, evidence, by_commit: true };
    vec![
        clause(
            "node 2 has 2 of a spread, and 1 has 0, where unit unit-3, 0 moves to n2",
            own(spread_out(), 1, 2),
        ),
        clause(
            "running unit 0 is in a node without what it is to be near, and unit unit-3, 0 moves to n2",
            beside(1),
        ),
        clause(
            "running unit 1 of its segment is in another node than where unit unit-3, 0 moves to",
            own(segmented(), 1, 1),
        ),
        clause(
            "running unit 1 of its segment is in another node than where unit unit-3, 0 moves to",
            own(of_group(), 1, 1),
        ),
    ]
}

/// Evidence of a cluster in which each commit is known to everybody at once.
fn known_at_once(story: Story) -> Evidence {
    let mut evidence = story.evidence();
    evidence.service.known_after_ms = 0;
    evidence
}
