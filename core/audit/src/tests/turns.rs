//! Turns of gangs.

use super::*;
use godel_base::ids::HoldId;
use godel_domain::{
    hold::{GangTurn, Hold},
    records::{Record, RecordKey},
};

fn hold(id: u64, of: &UnitRecord, node: u32, expires_ms: i64) -> Change {
    hold_in(None, id, of, node, expires_ms)
}

fn hold_in(sub_cluster: Option<&str>, id: u64, of: &UnitRecord, node: u32, expires_ms: i64) -> Change {
    Change::Put(Record::Hold(Arc::new(Hold {
        id: HoldId(id),
        node: NodeId(node),
        unit: of.id,
        demand: Arc::new(of.spec.task_groups[0].template.demand.clone()),
        pool: of.spec.pool,
        ordinals: vec![0, 1],
        expires_ms,
        turn: Some(GangTurn { since_ms: 0, priority: 0, sub_cluster: sub_cluster.map(Arc::from) }),
        ..Hold::default()
    })))
}

fn gone(id: u64) -> Change {
    Change::Gone(RecordKey::Hold(HoldId(id)))
}

const LATER_MS: i64 = 1_000_000_000;

/// Two gangs that are larger than what is left beside a third.
fn story() -> (Story, UnitRecord, UnitRecord) {
    let (story, _) = Story::healthy();
    let (first, second) = (spec(2, 2, 2, demand(3000, None)), spec(3, 2, 2, demand(3000, None)));
    (story.then(vec![unit(&first)]).then(vec![unit(&second)]), first, second)
}

#[test]
fn one_after_the_other_and_more_than_there_is_are_right() {
    let (story, first, second) = story();
    let story = story.then(vec![hold(1, &first, 1, LATER_MS), hold(2, &first, 2, LATER_MS)]).then(vec![
        gone(1),
        gone(2),
        hold(3, &second, 1, LATER_MS),
    ]);
    for report in check_all(&story.evidence()) {
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn two_turns_in_one_pool_need_two_sub_clusters() {
    let (story, first, second) = story();
    let at_once =
        Story(story.0.clone()).then(vec![hold(1, &first, 1, LATER_MS), hold(2, &second, 2, LATER_MS)]);
    only(&at_once.evidence(), Invariant::I4, "units 2 and 3 gather room on the same nodes");
    let before_the_end = story
        .then(vec![hold(1, &first, 1, LATER_MS)])
        .then(vec![hold(2, &second, 2, LATER_MS)])
        .then(vec![gone(1)]);
    only(&before_the_end.evidence(), Invariant::I4, "units 2 and 3 gather room on the same nodes");
    for (of, is_right) in [("b", true), ("a", false)] {
        let (story, first, second) = self::story();
        let told = story.then(vec![hold_in(Some("a"), 1, &first, 1, LATER_MS)]).then(vec![hold_in(
            Some(of),
            2,
            &second,
            2,
            LATER_MS,
        )]);
        assert_eq!(check_all(&told.evidence()).iter().all(InvariantReport::holds), is_right, "a and {of}");
    }
    let (story, first, second) = self::story();
    let any = story
        .then(vec![hold_in(Some("a"), 1, &first, 1, LATER_MS)])
        .then(vec![hold(2, &second, 2, LATER_MS)]);
    only(&any.evidence(), Invariant::I4, "units 2 and 3 gather room on the same nodes");
}

#[test]
fn a_turn_does_not_outlive_its_expiry() {
    let (story, first, _) = story();
    let left = Story(story.0.clone()).then(vec![hold(1, &first, 1, -60_001)]);
    only(&left.evidence(), Invariant::I4, "ms after its expiry");
    let late = story.then(vec![hold(1, &first, 1, -60_001)]).then(vec![gone(1)]);
    only(&late.evidence(), Invariant::I4, "ms after its expiry");
}

#[test]
fn what_others_gather_is_no_room_for_a_pending_unit() {
    let (story, first, _) = story();
    let small = spec(4, 1, 1, demand(1000, None));
    let story = story.then(vec![unit(&small)]);
    fails(&story.evidence(), Invariant::I8, "unit-4");
    let gathered = story.then(vec![hold(1, &first, 1, LATER_MS), hold(2, &first, 2, LATER_MS)]);
    assert!(check_all(&gathered.evidence()).iter().all(InvariantReport::holds));
}

#[test]
fn units_gather_room_for_one_replica_each_side_by_side_on_nodes_of_their_own() {
    let (story, first, second) = story();
    let of_one = |id, of: &UnitRecord, node| match hold(id, of, node, LATER_MS) {
        Change::Put(Record::Hold(hold)) => {
            Change::Put(Record::Hold(Arc::new(Hold { ordinals: vec![0], ..Hold::clone(&hold) })))
        }
        other => other,
    };
    let beside = |change| Story(story.0.clone()).then(vec![of_one(1, &first, 1)]).then(vec![change]);
    for report in check_all(&beside(of_one(2, &second, 2)).evidence()) {
        assert!(!report.to_string().contains("gather room on the same nodes"), "{report}");
    }
    let what = "units 2 and 3 gather room on the same nodes";
    only(&beside(of_one(2, &second, 1)).evidence(), Invariant::I4, what);
    only(&beside(hold(2, &second, 2, LATER_MS)).evidence(), Invariant::I4, what);
}
