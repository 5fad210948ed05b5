//! Histories that do not begin at the beginning: judged from the state on which they rest, and not judged without it.

use super::*;
use godel_domain::{
    node::NodeAllocatable,
    records::{Record, RecordKey},
};
/// The same evidence, its history from `floor` on, with the state there.
pub(super) fn cut(evidence: &Evidence, floor: u64) -> Evidence {
    cut_wide(evidence, floor, floor - 1)
}

/// The same, the records of that state read one after the other while commits went on up to `complete`: nodes at first, as
/// they were at the beginning, units and the rest at last.
pub(super) fn cut_wide(evidence: &Evidence, floor: u64, complete: u64) -> Evidence {
    let at = |revision: u64| {
        let mut world = World::default();
        for commit in evidence.history.commits.iter().filter(|commit| commit.revision.0 <= revision) {
            world.apply(commit, |_, _| {});
        }
        world
    };
    let (early, late) = (at(floor - 1), at(complete));
    // What a history alone shows is not in a record.
    let drains =
        |node: &world::WorldNode| node.spec.as_ref().is_some_and(|record| record.value.drain.is_some());
    let is_suspended =
        |unit: &world::WorldUnit| unit.record.as_ref().is_some_and(|record| record.value.status.suspended);
    let world = World {
        revision: Revision(complete),
        drained: early.nodes.iter().filter(|(_, node)| drains(node)).map(|(id, _)| *id).collect(),
        suspended: late.units.iter().filter(|(_, unit)| is_suspended(unit)).map(|(id, _)| *id).collect(),
        nodes: early.nodes,
        shrunk: Default::default(),
        ..late
    };
    let mut evidence = evidence.clone();
    evidence.history.floor = Revision(floor);
    evidence.history.start = Start::Kept(Box::new(world));
    evidence.history.commits.retain(|commit| commit.revision.0 >= floor);
    evidence
}

fn without_start(evidence: &Evidence, floor: u64) -> Evidence {
    let mut evidence = cut(evidence, floor);
    evidence.history.start = Start::Unknown("it was thrown away".to_owned());
    evidence
}

fn report(evidence: &Evidence, invariant: Invariant) -> InvariantReport {
    check_all(evidence).into_iter().find(|report| report.invariant == invariant).unwrap()
}

fn busy_story() -> Story {
    let (story, gang) = Story::healthy();
    let requeue = Change::Rows(
        gang.id,
        RunChange::Requeue(Requeue { ordinals: vec![1], incarnations: vec![1], anew: false }),
    );
    let other = spec(2, 1, 1, demand(500, None));
    story
        .then(vec![status(&gang, 1, 0, Phase::Stopped)])
        .then(vec![requeue, unit(&other)])
        .then(vec![bind(&gang, &[(1, 1, 0b10)], 1)])
        .then(vec![bind(&other, &[(0, 2, 0)], 0)])
        .then(vec![status(&other, 0, 0, Phase::Succeeded)])
        .then(vec![Change::Gone(RecordKey::Unit(other.id))])
        .then(vec![status(&gang, 1, 1, Phase::Running)])
}

#[test]
fn a_history_is_judged_from_the_state_at_its_beginning() {
    let evidence = busy_story().evidence();
    let last = evidence.history.up_to.0;
    for floor in 2..=last {
        for complete in floor - 1..=last {
            for report in check_all(&cut_wide(&evidence, floor, complete)) {
                assert!(report.holds(), "from {floor}, complete at {complete}: {report}");
            }
        }
    }
    let line = report(&cut(&evidence, 5), Invariant::I6).to_string();
    assert!(line.contains("from revision 5 on, where the kept history begins"), "{line}");
}

#[test]
fn without_the_state_it_rests_on_a_history_is_not_judged() {
    let evidence = without_start(&busy_story().evidence(), 5);
    for report in check_all(&evidence) {
        assert!(!report.has_failed(), "{report}");
        let is_of_the_moment = matches!(report.invariant, Invariant::I2 | Invariant::I8 | Invariant::I9);
        assert_eq!(report.holds(), is_of_the_moment, "{report}");
        if let InvariantVerdict::NotJudged(why) = report.verdict() {
            assert!(why.contains("revision 5, where the history begins, is not known: it was thrown away"));
        }
    }
}

#[test]
fn a_node_full_before_the_history_may_have_shrunk() {
    let (story, gang) = Story::healthy();
    let [_, less] = node(1, 1000, &["A10", "A10"]);
    let evidence = story.then(vec![less]).then(vec![status(&gang, 1, 0, Phase::Succeeded)]).evidence();
    // Seen in the history it is known.
    assert!(report(&cut(&evidence, 7), Invariant::I1).holds());
    for (late, words) in [
        (cut(&evidence, 8), "1 nodes had more bound than they have when the history begins, as n1"),
        (without_start(&evidence, 8), "1 nodes had more bound than they have when the history begins, as n1"),
    ] {
        let report = report(&late, Invariant::I1);
        assert!(!report.has_failed() && report.to_string().contains(words), "{report}");
    }
    // What is bound there since is too much all the same.
    let small = spec(2, 1, 1, demand(100, None));
    let mut story = Story(evidence.history.commits.iter().map(|commit| commit.changes.clone()).collect());
    story = story.then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]);
    fails(&cut(&story.evidence(), 8), Invariant::I1, "guaranteed cpu 2100 of 1000 (revision 10)");
}

#[test]
fn a_ledger_knows_before_the_history_only_its_first_records() {
    let entry = |uid: &str, revision| Acknowledged {
        uid: uid.to_owned(),
        name: "unit-1".to_owned(),
        revision: Revision(revision),
    };
    let mut evidence = cut(&busy_story().evidence(), 6);
    evidence.ledger = Some(vec![entry("uid-1", 4)]);
    assert!(report(&evidence, Invariant::I2).holds());
    evidence.ledger = Some(vec![entry("uid-1", 4), entry("uid-0", 3)]);
    let InvariantVerdict::NotJudged(why) = report(&evidence, Invariant::I2).verdict() else {
        panic!("judged")
    };
    assert!(why.contains("1 acknowledged submissions are not there, and the history begins at revision 6"));
    evidence.ledger = Some(vec![entry("uid-0", 6)]);
    fails(&evidence, Invariant::I2, "acknowledged at revision 6, not there");
}

#[test]
fn a_drain_before_the_history_explains_evictions_for_a_minute() {
    use godel_domain::node::Drain;
    let (story, gang) = Story::healthy();
    let [Change::Put(Record::NodeSpec(record)), _] = node(1, 4000, &[]) else { unreachable!() };
    let drain = Drain { since_ms: 1, deadline_ms: None, running_units: 2 };
    let mut drained = story
        .then(vec![Change::Put(Record::NodeSpec(NodeSpec { drain: Some(drain), ..record.clone() }))])
        .then(vec![Change::Put(Record::NodeSpec(record))])
        .then(vec![])
        .then(vec![evict(&gang, 0, EvictionReason::Drained)])
        .evidence();
    assert!(report(&drained, Invariant::I6).holds());
    let late = report(&cut(&drained, 9), Invariant::I6);
    assert!(late.holds() && late.checked.contains("1 judgements rest on what was read before"), "{late}");
    drained.history.commits.last_mut().unwrap().time_ms += 60_000;
    fails(&cut(&drained, 9), Invariant::I6, "its node is not drained");
}

#[test]
fn an_excess_older_than_the_history_dates_from_its_beginning() {
    let offline = spec(2, 1, 1, demand(1500, None)).pool(Pool::BestEffort);
    let usage = Change::Put(Record::NodeUsage(godel_domain::node::NodeUsage {
        id: NodeId(1),
        reserved: Resources::new([(CPU, 2000)]).unwrap(),
        as_of_ms: 90,
        ..godel_domain::node::NodeUsage::default()
    }));
    let (story, gang) = Story::healthy();
    let story = story
        .then(vec![unit(&offline)])
        .then(vec![bind(&offline, &[(0, 1, 0)], 0)])
        .then(vec![
            Change::Put(Record::NodeAllocatable(NodeAllocatable {
                id: NodeId(1),
                amounts: Resources::new([(CPU, 3000)]).unwrap(),
            })),
            usage,
        ])
        .then(vec![status(&gang, 1, 0, Phase::Succeeded)])
        .then(vec![]);
    let mut late = cut(&story.evidence(), 10);
    let first = report(&late, Invariant::I1);
    assert!(!first.has_failed(), "{first}");
    late.history.commits.last_mut().unwrap().time_ms += 100_000;
    fails(&late, Invariant::I1, "best-effort cpu 1500 of 1000 for 100010 ms");
}

#[test]
fn agents_that_are_not_connected_leave_their_nodes_unjudged() {
    let mut evidence = Story::healthy().0.evidence();
    evidence.agents[1].connected = false;
    evidence.agents[1].running.clear();
    let InvariantVerdict::NotJudged(why) = report(&evidence, Invariant::I3).verdict() else {
        panic!("judged")
    };
    assert_eq!(why, "what runs on 1 nodes whose agents are not connected: n2");
    // Of the others it is judged all the same.
    evidence.agents[0].running.clear();
    fails(&evidence, Invariant::I3, "is Running on n1, but its agent does not have it");
}

#[test]
fn what_waits_is_not_judged_while_something_is_under_way() {
    let small = spec(2, 1, 1, demand(1000, None));
    let mut evidence = Story::healthy().0.then(vec![unit(&small)]).evidence();
    fails(&evidence, Invariant::I8, "unit unit-2");
    evidence.busy = Some("no dispatcher answers".to_owned());
    let InvariantVerdict::NotJudged(why) = report(&evidence, Invariant::I8).verdict() else {
        panic!("judged")
    };
    assert_eq!(why, "whether any of 1 units that wait could be placed: no dispatcher answers");
}
