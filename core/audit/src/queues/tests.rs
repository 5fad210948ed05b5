//! Maxima of queues at every commit.

use std::sync::Arc;

use godel_base::ids::NodeId;
use godel_domain::{
    demand::DeviceRequest,
    records::{Record, RecordKey},
    running_units::{Bind, Phase, Statuses},
};
use godel_testkit::BuildUnit as _;

use super::*;
use crate::{Commit, Invariant};

fn unit(id: u64, queue: &str) -> Change {
    Change::Put(Record::Unit(Arc::new(
        godel_testkit::unit(format!("unit-{id}")).id(UnitId(id)).task_groups(Vec::new()).queue(queue),
    )))
}

fn bind(id: u64, ordinals: std::ops::Range<u32>) -> Change {
    let devices =
        DeviceRequest { kind: "gpu".to_owned(), count: 1, milli: 500, models: Vec::new(), terms: None };
    let requests = Resources::new([("cpu", 10)]).unwrap();
    let bind = Bind {
        demand: Arc::new(Demand { requests, devices: vec![devices], host_ports: Vec::new(), zones: None }),
        nodes: vec![NodeId(1); ordinals.len()],
        ordinals: ordinals.collect(),
        ..Bind::default()
    };
    Change::Rows(UnitId(id), RunChange::Bind(bind))
}

fn bind_cpu(id: u64) -> Change {
    let requests = Resources::new([("cpu", 10)]).unwrap();
    let demand = Arc::new(Demand { requests, devices: Vec::new(), host_ports: Vec::new(), zones: None });
    let bind = Bind { demand, nodes: vec![NodeId(1)], ordinals: vec![0], ..Bind::default() };
    Change::Rows(UnitId(id), RunChange::Bind(bind))
}

fn ended(id: u64, ordinal: u32) -> Change {
    let (ordinals, phases) = (vec![ordinal], vec![Phase::Succeeded]);
    Change::Rows(UnitId(id), RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }))
}

fn queue(path: &str, max: &[(&str, i64)], max_running_units: u32) -> Change {
    let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    Change::Put(Record::Queue(Arc::new(QueueSpec { max, max_running_units, ..QueueSpec::new(path) })))
}

fn violations(changes: Vec<Change>) -> Vec<String> {
    violations_since(1, changes)
}

/// With a history that begins at a revision.
fn violations_since(floor: u64, changes: Vec<Change>) -> Vec<String> {
    let floor = Revision(floor);
    let mut evidence = Evidence { history: History { floor, ..History::default() }, ..Evidence::default() };
    for (revision, change) in (1u64..).zip(changes) {
        let commit = Commit { revision: Revision(revision), time_ms: 0, changes: vec![change] };
        evidence.listed.apply(&commit, |_, _| {});
        evidence.history.commits.extend((commit.revision >= floor).then_some(commit));
    }
    check(&evidence).report(Invariant::I5).violations
}

#[test]
fn every_level_keeps_its_maximum_at_every_commit() {
    let before = |change: Change| vec![change, unit(1, "a.b"), bind(1, 0..3)];
    let cases: [(Vec<Change>, &[&str]); 9] = [
        (before(queue("a.b", &[("cpu", 30), ("gpu", 1_500)], 3)), &[]),
        (before(queue("a.b", &[("cpu", 29)], 0)), &["queue a.b: cpu 30 of 29 (revision 3)"]),
        (before(queue("a", &[("gpu", 1_499)], 0)), &["queue a: gpu 1500 of 1499 (revision 3)"]),
        (before(queue("a", &[], 2)), &["queue a: running units 3 of 2 (revision 3)"]),
        (before(queue("a", &[("gpu", 0), ("memory", 0)], 0)), &["queue a: gpu 1500 of 0 (revision 3)"]),
        (before(Change::Gone(RecordKey::Queue("a".to_owned()))), &[]),
        // Above a maximum since before, of what the binding does not ask for.
        (vec![unit(1, "a"), bind(1, 0..3), queue("a", &[("gpu", 0)], 0), unit(2, "a"), bind_cpu(2)], &[]),
        // Lowered later: stands, but nothing more may come.
        (vec![unit(1, "a"), bind(1, 0..3), queue("a", &[("cpu", 10)], 0), ended(1, 0)], &[]),
        (
            vec![
                unit(1, "a"),
                bind(1, 0..3),
                queue("a", &[("cpu", 20)], 0),
                ended(1, 0),
                ended(1, 1),
                bind(1, 3..5),
            ],
            &["queue a: cpu 30 of 20 (revision 6)"],
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(violations(changes.clone()), expected, "{changes:?}");
    }
}

#[test]
fn what_moves_counts_in_the_queue_that_it_moved_to() {
    let story = |max_of_b: i64| {
        let max = queue("b", &[("cpu", max_of_b)], 0);
        vec![queue("a", &[("cpu", 30)], 0), max, unit(1, "a"), bind(1, 0..3), unit(2, "a"), unit(3, "b")]
    };
    let then = |max_of_b: i64, more: Vec<Change>| violations([story(max_of_b), more].concat());
    let moves = || unit(1, "b");
    assert_eq!(then(40, vec![bind_cpu(2)]), ["queue a: cpu 40 of 30 (revision 7)"]);
    assert_eq!(then(40, vec![moves(), bind_cpu(2), bind_cpu(3)]), Vec::<String>::new());
    assert_eq!(then(39, vec![moves(), bind_cpu(3)]), ["queue b: cpu 40 of 39 (revision 8)"]);
    assert_eq!(then(9, vec![moves()]), Vec::<String>::new(), "what moves was let in by what was known");
    assert_eq!(then(40, vec![moves(), ended(1, 0), unit(1, "a"), bind_cpu(3)]), Vec::<String>::new());
}

/// Room for unit 2 in queue `a`, 10 CPUs for each ordinal, once unit 1 has left it.
fn hold(id: u64, ordinals: std::ops::Range<u32>, at_maximum: bool) -> Change {
    let demand = Demand {
        requests: Resources::new([("cpu", 10)]).unwrap(),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    };
    Change::Put(Record::Hold(Arc::new(Hold {
        id: godel_base::ids::HoldId(id),
        node: NodeId(2),
        unit: UnitId(2),
        demand: Arc::new(demand),
        ordinals: ordinals.collect(),
        at_maximum,
        queue_victims: vec![godel_base::ids::RunningUnitId::new(UnitId(1), 0, 0)],
        ..Hold::default()
    })))
}

#[test]
fn what_a_victim_takes_counts_for_what_it_backs_and_once() {
    let max = |cpu| queue("a", &[("cpu", cpu)], 0);
    let full = |other: &str| vec![max(10), unit(1, "a.x"), bind(1, 0..1), unit(2, other)];
    let then = |mut changes: Vec<Change>, more: Vec<Change>| {
        changes.extend(more);
        violations(changes)
    };
    let gone = || Change::Gone(RecordKey::Hold(godel_base::ids::HoldId(1)));
    assert_eq!(then(full("a.y"), vec![hold(1, 0..1, true), ended(1, 0)]), [""; 0]);
    let above = ["queue a: cpu 20 of 10 (revision 5)"];
    assert_eq!(then(full("a.y"), vec![hold(1, 0..1, false)]), above, "it counts beside its victim");
    assert_eq!(then(full("a.y"), vec![hold(1, 0..2, true)]), above, "it asks for more than that gives up");
    let twice = vec![hold(1, 0..1, true), hold(2, 1..2, true)];
    assert_eq!(then(full("a.y"), twice.clone()), ["queue a: cpu 20 of 10 (revision 6)"]);
    let bound = vec![hold(1, 0..1, true), bind_cpu(2)];
    assert_eq!(then(full("a.y"), bound), ["queue a: cpu 20 of 10 (revision 6)"]);
    let elsewhere = vec![max(10), unit(1, "b"), bind(1, 0..1), unit(3, "a"), bind_cpu(3), unit(2, "a.y")];
    assert_eq!(then(elsewhere, vec![hold(1, 0..1, true)]), ["queue a: cpu 20 of 10 (revision 7)"]);
    let mut roomy = full("a.y");
    roomy[0] = max(20);
    let parted = then(roomy, [twice, vec![gone()]].concat());
    assert_eq!(parted, ["unit id 2: some of what is held at a maximum ends without the rest (revision 7)"]);
}

#[test]
fn what_ended_or_was_deleted_makes_room() {
    let max = || queue("a", &[("cpu", 20)], 0);
    assert_eq!(violations(vec![max(), unit(1, "a"), bind(1, 0..2), ended(1, 0), bind(1, 2..3)]), [""; 0]);
    let deleted = vec![
        max(),
        unit(1, "a"),
        bind(1, 0..2),
        Change::Gone(RecordKey::Unit(UnitId(1))),
        unit(2, "a"),
        bind(2, 0..2),
    ];
    assert_eq!(violations(deleted), [""; 0]);
}

#[test]
fn a_late_history_tells_broken_from_lowered_maxima() {
    let max = |cpu| queue("a", &[("cpu", cpu)], 0);
    let broken = vec![max(20), unit(1, "a.b"), bind(1, 0..2), bind(1, 2..3)];
    assert_eq!(violations_since(4, broken.clone()), ["queue a: cpu 30 of 20 (revision 4)"]);
    // The binding that broke it is not in the history any more.
    assert_eq!(violations_since(5, broken), [""; 0]);
    let lowered = vec![unit(1, "a.b"), bind(1, 0..2), bind(1, 2..3), max(20)];
    assert_eq!(violations_since(3, lowered), [""; 0]);
    let other = vec![unit(1, "a"), bind(1, 0..3), queue("a", &[("gpu", 0)], 0), unit(2, "a"), bind_cpu(2)];
    assert_eq!(violations_since(2, other), [""; 0]);
}

/// What is found of commits of several changes each.
fn found(commits: Vec<Vec<Change>>) -> Vec<String> {
    let mut evidence =
        Evidence { history: History { floor: Revision(1), ..History::default() }, ..Evidence::default() };
    for (revision, changes) in (1u64..).zip(commits) {
        let commit = Commit { revision: Revision(revision), time_ms: 0, changes };
        evidence.listed.apply(&commit, |_, _| {});
        evidence.history.commits.push(commit);
    }
    check(&evidence).report(Invariant::I5).violations
}

#[test]
fn what_is_bound_takes_no_place_of_a_replica_that_moves() {
    use godel_base::ids::{HoldId, RunningUnitId};
    use godel_domain::{
        hold::MovementTarget,
        running_units::{Evict, Requeue},
    };
    let cpus = || Demand { requests: Resources::new([("cpu", 10)]).unwrap(), ..Demand::default() };
    let target = |ordinal: u32, incarnation: u32| {
        let from = RunningUnitId::new(UnitId(1), 0, 0);
        Change::Put(Record::Hold(Arc::new(Hold {
            id: HoldId(1),
            node: NodeId(2),
            unit: UnitId(1),
            demand: Arc::new(cpus()),
            ordinals: vec![ordinal],
            incarnations: vec![incarnation],
            movement: Some(MovementTarget { movement: Arc::from("m"), from }),
            ..Hold::default()
        })))
    };
    let rows = |change: RunChange| Change::Rows(UnitId(1), change);
    let leaves = || {
        let evict = Evict {
            ordinals: vec![0],
            incarnations: vec![0],
            reason: godel_domain::running_units::EvictionReason::Rescheduled,
            by: String::new(),
            preemptor: UnitId(0),
        };
        rows(RunChange::Evict(evict))
    };
    let stopped = || {
        let statuses = Statuses { ordinals: vec![0], phases: vec![Phase::Stopped], ..Statuses::default() };
        rows(RunChange::Statuses(statuses))
    };
    let again = || {
        rows(RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], ..Requeue::default() }))
    };
    let placed = || {
        let bind = Bind {
            demand: Arc::new(cpus()),
            nodes: vec![NodeId(2)],
            ordinals: vec![0],
            incarnations: vec![1],
            ..Bind::default()
        };
        vec![rows(RunChange::Bind(bind)), Change::Gone(RecordKey::Hold(HoldId(1)))]
    };
    let max = |cpu| vec![queue("a", &[("cpu", cpu)], 0)];
    let others = || vec![unit(2, "a.y")];
    let start = |cpu| vec![max(cpu), vec![unit(1, "a.x")], vec![bind_cpu(1)], others()];
    let moves = || vec![leaves(), target(0, 1)];
    let then = |cpu: i64, more: Vec<Vec<Change>>| found([start(cpu), more].concat());
    let of_other = || vec![bind_cpu(2)];
    let none = [""; 0];
    assert_eq!(then(10, vec![moves(), vec![stopped()], vec![again()], placed()]), none, "counted once");
    assert_eq!(then(20, vec![moves(), vec![stopped()], vec![again()], of_other(), placed()]), none);
    let taken = |revision: u64, kept: &str| [format!("queue a: cpu 20 of 10{kept} (revision {revision})")];
    let kept = ", 1 of what counts kept for what moves";
    assert_eq!(then(10, vec![moves(), of_other()]), taken(6, ""), "while it leaves");
    assert_eq!(then(10, vec![moves(), vec![stopped()], of_other()]), taken(7, kept));
    assert_eq!(then(10, vec![moves(), vec![stopped()], vec![again()], of_other()]), taken(8, kept));
    let given_up = || vec![Change::Gone(RecordKey::Hold(HoldId(1)))];
    assert_eq!(then(10, vec![moves(), vec![stopped()], given_up(), of_other()]), none, "its hold is gone");
    let lowered = vec![moves(), vec![stopped()], vec![again()], max(5), placed()];
    assert_eq!(then(10, lowered), none, "a maximum that is lowered keeps out nobody who is there");
    let goes_along = vec![moves(), vec![stopped()], vec![unit(1, "b")], of_other(), vec![again()], placed()];
    assert_eq!(then(10, goes_along), none, "it counts in the queue that its unit has gone to");
    // A replacement that starts first counts beside the one that it replaces, from its hold on.
    assert_eq!(
        then(20, vec![vec![target(1, 0)], of_other()]),
        ["queue a: cpu 30 of 20, 1 of what counts kept for what moves (revision 6)"]
    );
    assert_eq!(
        then(19, vec![vec![target(1, 0)]]),
        ["queue a: cpu 20 of 19, 1 of what counts kept for what moves (revision 5)"]
    );
}
