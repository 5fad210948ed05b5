use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    change::Change,
    records::{Record, RecordKey},
    running_units::{Bind, RunChange},
    task_group_record::TaskGroupKey,
    task_group_record::UnitJoin,
    unit::{Template, WorkloadClass},
    unit_topology::{Segments, UnitTopology},
    unreadable::Unreadable,
};
use godel_testkit::{BuildUnit as _, unit};
use proptest::prelude::*;

use super::*;
use crate::admission::{scale::scale, stop::stop};

fn group(name: &str, replicas: u32) -> GroupSubmission {
    let requests = vec![("cpu".to_owned(), 100)];
    GroupSubmission { name: name.to_owned(), replicas, requests, ..GroupSubmission::default() }
}

fn adding(groups: &[(&str, u32)]) -> GroupChanges {
    let added = groups.iter().map(|(name, replicas)| group(name, *replicas)).collect();
    GroupChanges { added, ..GroupChanges::default() }
}

fn sizing(name: &str, replicas: u32) -> GroupChanges {
    GroupChanges { sizes: vec![(name.to_owned(), replicas)], ..GroupChanges::default() }
}

fn releasing(ordinals: &[u32]) -> GroupChanges {
    GroupChanges { released: ordinals.to_vec(), ..GroupChanges::default() }
}

/// An application whose master runs.
fn application() -> (UnitRecord, RunningUnits) {
    let mut rows = RunningUnits::default();
    let bind = Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    rows.apply(&RunChange::Bind(bind), Revision(1), 1, |_, _, _| {});
    (unit("app").class(WorkloadClass::Yarn), rows)
}

fn grown(record: &UnitRecord, rows: &RunningUnits, changes: &GroupChanges) -> UnitRecord {
    grow(record, rows, changes).unwrap().unwrap().record
}

fn field(record: &UnitRecord, changes: &GroupChanges) -> String {
    match grow(record, &RunningUnits::default(), changes) {
        Err(ScaleRefusal::Invalid(violations)) => violations[0].field.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_added_group_follows_and_costs_its_own_record() {
    let (record, rows) = application();
    let update = grow(&record, &rows, &adding(&[("map", 2), ("reduce", 0)])).unwrap().unwrap();
    assert!(
        update.is_moved && !update.rests_on_rows,
        "its queue has to take it, and where it runs is all the same"
    );
    let first = update.record;
    assert_eq!(first.status.ordinals[..], [vec![(0, 1)], vec![(1, 3)], vec![]]);
    assert_eq!((first.status.own_groups, first.status.updated, first.spec.min_member), (1, true, 1));
    let names = |record: &UnitRecord, before: &UnitRecord| -> Vec<String> {
        record.added_since(before).map(|added| format!("{}:{}", added.idx, added.group.name)).collect()
    };
    assert_eq!(names(&first, &record), ["1:map", "2:reduce"]);
    assert_eq!(first.own().spec.task_groups, record.spec.task_groups);

    let second = grown(&first, &rows, &sizing("reduce", 3));
    assert_eq!(second.status.ordinals[..], [vec![(0, 1)], vec![(1, 3)], vec![(3, 6)]]);
    assert_eq!(names(&second, &first), ["2:reduce"], "what did not change is not written again");
    let third = grown(&second, &rows, &adding(&[("late", 1)]));
    assert_eq!((third.own(), names(&third, &second)), (second.own(), vec!["3:late".to_owned()]));
}

#[test]
fn released_ordinals_stop_for_good_and_nothing_comes_instead() {
    let (record, rows) = application();
    let record = grown(&record, &rows, &adding(&[("map", 5)]));
    let left = grown(&record, &rows, &releasing(&[2, 4]));
    assert_eq!(left.status.ordinals[1], [(1, 2), (3, 4), (5, 6), (6, 6)]);
    assert_eq!((left.spec.task_groups[1].replicas, left.group_of(2)), (3, None));
    assert_eq!(grow(&left, &rows, &releasing(&[2, 4])), Ok(None), "asked for again");
    // A size is what is left, with new ordinals instead of released ones.
    let both = GroupChanges { released: vec![3], ..sizing("map", 3) };
    let next = grown(&left, &rows, &both);
    assert_eq!(next.status.ordinals[1], [(1, 2), (5, 6), (6, 6), (6, 7)]);
    assert_eq!(grow(&next, &rows, &both), Ok(None), "asked for again");
}

#[test]
fn wrong_changes_of_groups_are_named() {
    let (record, rows) = application();
    assert_eq!(field(&record, &GroupChanges::default()), "groups");
    assert_eq!(field(&record, &adding(&[("main", 1)])), "groups.added[0].name", "another template");
    assert_eq!(field(&record, &adding(&[("a", 1), ("a", 1)])), "groups.added[1].name");
    assert_eq!(field(&record, &adding(&[("a", REPLICAS_MAX + 1)])), "groups.added[0].replicas");
    assert_eq!(field(&record, &adding(&[("a", REPLICAS_MAX)])), "groups");
    assert_eq!(field(&record, &sizing("none", 1)), "groups.sizes[0].task_group");
    let twice = GroupChanges { sizes: vec![("main".to_owned(), 1); 2], ..GroupChanges::default() };
    assert_eq!(field(&record, &twice), "groups.sizes");
    assert_eq!(field(&record, &releasing(&[7])), "ordinals[0]");
    assert_eq!(field(&record, &sizing("main", 0)), "groups", "no replica would be left");
    assert_eq!(field(&record.clone().class(WorkloadClass::Daemon), &adding(&[("a", 1)])), "groups");
    let cancelled = record.clone().cancelled(true);
    assert_eq!(grow(&cancelled, &rows, &adding(&[("a", 1)])), Err(ScaleRefusal::Cancelled));
    let moved = GroupChanges { sizes: vec![("main".to_owned(), 0)], ..adding(&[("a", 1)]) };
    assert_eq!(grown(&record, &rows, &moved).status.ordinals[..], [vec![], vec![(1, 2)]], "0 was bound");
}

#[test]
fn an_added_group_begins_with_a_whole_segment() {
    let (record, rows) = application();
    let with_segments = |name: &str, replicas, size| {
        let mut changes = adding(&[(name, replicas)]);
        let segments = Some(Segments { size, within: "rack".to_owned() });
        changes.added[0].topology = Some(Box::new(UnitTopology { segments, ..UnitTopology::default() }));
        changes
    };
    let first = grown(&record, &rows, &with_segments("map", 6, 4));
    assert_eq!(first.status.ordinals[..], [vec![(0, 1)], vec![(4, 10)]]);
    let topologies = |record: &UnitRecord| -> Vec<(u16, u32)> {
        record.group_topologies().iter().map(|of| (of.group, of.first)).collect()
    };
    assert_eq!(topologies(&first), [(1, 0)], "its segments are counted from 0");
    assert_eq!(grow(&first, &rows, &with_segments("map", 6, 4)), Ok(None), "asked for again");
    assert_eq!(field(&first, &with_segments("map", 6, 3)), "groups.added[0].name", "another topology");
    // What grows on goes on with its segment, and begins another one where others are between.
    let second = grown(&first, &rows, &sizing("map", 8));
    assert_eq!(second.status.ordinals[1], [(4, 12)]);
    let third = grown(&grown(&second, &rows, &adding(&[("late", 1)])), &rows, &sizing("map", 9));
    assert_eq!(third.status.ordinals[1..], [vec![(4, 12), (16, 17)], vec![(12, 13)]]);
    assert_eq!(topologies(&third), [(1, 0)]);
    // Not beside segments of the unit.
    let mut of_unit = record.clone();
    of_unit.spec.topology.segments = Some(Segments { size: 2, within: "rack".to_owned() });
    assert_eq!(field(&of_unit, &with_segments("map", 6, 4)), "groups.added[0].topology");
}

#[test]
fn groups_are_limited_by_their_number_and_their_bytes() {
    let (mut record, rows) = application();
    for idx in 1..TASK_GROUPS_MAX {
        let group = TaskGroup { name: format!("g{idx}"), ..godel_testkit::group("", 0, Template::default()) };
        add_group(&mut record, &rows, group).unwrap();
    }
    assert_eq!(field(&record, &adding(&[("more", 1)])), "task_groups");
    let (record, rows) = application();
    let large = |name: &str| {
        let mut changes = adding(&[(name, 1)]);
        changes.added[0].run.command = vec!["x".repeat(100 * 1024)];
        changes
    };
    let record = grown(&record, &rows, &large("a"));
    assert_eq!(field(&record, &large("b")), "task_groups");
}

#[test]
fn a_unit_is_whole_once_every_record_of_it_can_be_read() {
    let (own, rows) = application();
    let whole = Arc::new(grown(&own, &rows, &adding(&[("a", 1), ("b", 1)])));
    let own = Change::Put(Record::Unit(Arc::new(whole.own())));
    let groups: Vec<Change> = whole
        .added_since(&own_of(&whole))
        .map(|group| Change::Put(Record::TaskGroup(Arc::new(group))))
        .collect();
    let mut join = UnitJoin::default();
    assert_eq!(join.join(vec![groups[0].clone()]), [], "of a unit that was not seen yet");
    assert_eq!(join.join(groups[1..].to_vec()), []);
    assert_eq!(join.join(vec![own.clone()]), [Change::Put(Record::Unit(Arc::clone(&whole)))]);
    let with_groups = [vec![own.clone()], groups.clone()].concat();
    assert_eq!(
        UnitJoin::default().join(with_groups),
        [Change::Put(Record::Unit(Arc::clone(&whole)))],
        "once for a commit"
    );

    let bad = |subject| Change::Unreadable(Box::new(Unreadable::new(subject, "group", "wrong")));
    let is_frozen = |changes: &[Change]| matches!(changes, [Change::Unreadable(one)] if one.key == RecordKey::Unit(UnitId(1)));
    assert!(is_frozen(&join.join(vec![bad(RecordKey::TaskGroup(TaskGroupKey { unit: UnitId(1), idx: 2 }))])));
    assert!(is_frozen(&join.join(vec![groups[0].clone()])), "the other group cannot be read yet");
    assert_eq!(join.join(vec![groups[1].clone()]), [Change::Put(Record::Unit(Arc::clone(&whole)))]);
    assert!(is_frozen(&join.join(vec![bad(RecordKey::Unit(UnitId(1)))])));
    assert!(is_frozen(&join.join(vec![groups[0].clone()])), "its own record cannot be read yet");
    assert_eq!(join.join(vec![own.clone()]), [Change::Put(Record::Unit(Arc::clone(&whole)))]);
    assert!(
        is_frozen(
            &join.join(vec![Change::Gone(RecordKey::TaskGroup(TaskGroupKey { unit: UnitId(1), idx: 1 }))])
        ),
        "there is a gap"
    );
    assert_eq!(
        join.join(vec![Change::Gone(RecordKey::Unit(UnitId(1)))]),
        [Change::Gone(RecordKey::Unit(UnitId(1)))]
    );
    assert_eq!(join.join(groups), [], "the deleted unit is forgotten");
}

fn own_of(record: &UnitRecord) -> UnitRecord {
    record.own()
}

proptest! {
    /// Whatever is added, sized, released, scaled and stopped in turn: the records make the unit, an ordinal has one group,
    /// and one that was given back is never given again.
    #[test]
    fn records_make_the_unit_and_ordinals_are_given_once(
        steps in prop::collection::vec((0u8..5, 0u32..14, 0u32..6), 1..40),
    ) {
        let (submitted, rows) = application();
        let mut record = grown(&submitted, &rows, &adding(&[("g", 1)]));
        let mut join = UnitJoin::default();
        join.join(vec![Change::Put(Record::Unit(Arc::new(record.own())))]);
        let added = record.added_since(&submitted).map(|group| Change::Put(Record::TaskGroup(Arc::new(group))));
        prop_assert_eq!(join.join(added.collect()), [Change::Put(Record::Unit(Arc::new(record.clone())))]);
        let mut groups: BTreeMap<u32, usize> =
            record.iter_ordinals().filter_map(|ordinal| Some((ordinal, record.group_of(ordinal)?))).collect();
        for (step, at, size) in steps {
            let name = record.spec.task_groups[at as usize % record.spec.task_groups.len()].name.clone();
            let next = match step {
                0 => grow(&record, &rows, &adding(&[(&format!("g{}", record.spec.task_groups.len()), size)])),
                1 => grow(&record, &rows, &sizing(&name, size)),
                2 => grow(&record, &rows, &releasing(&[at])),
                3 => scale(&record, &rows, &name, size).map(|next| next.map(as_update)),
                _ => stop(&record, &rows, &[at]).map(|next| next.map(as_update)),
            };
            let Ok(Some(UnitUpdate { record: next, .. })) = next else { continue };
            let mut ops: Vec<Change> =
                next.added_since(&record).map(|group| Change::Put(Record::TaskGroup(Arc::new(group)))).collect();
            if next.own() != record.own() {
                ops.insert(0, Change::Put(Record::Unit(Arc::new(next.own()))));
            }
            prop_assert!(!ops.is_empty());
            prop_assert_eq!(join.join(ops), [Change::Put(Record::Unit(Arc::new(next.clone())))]);
            for (idx, group) in next.spec.task_groups.iter().enumerate() {
                let ordinals = next.iter_ordinals().filter(|ordinal| next.group_of(*ordinal) == Some(idx));
                prop_assert_eq!(ordinals.count(), group.replicas as usize);
            }
            for ordinal in next.iter_ordinals() {
                let group = next.group_of(ordinal).unwrap();
                prop_assert_eq!(*groups.entry(ordinal).or_insert(group), group, "of one group for ever");
                let is_fresh = record.group_of(ordinal).is_some() || record.ranges().all(|range| range.1 <= ordinal);
                prop_assert!(is_fresh, "{ordinal} was given back");
            }
            record = next;
        }
    }
}

fn as_update(record: UnitRecord) -> UnitUpdate {
    UnitUpdate { record, rests_on_rows: false, is_moved: false, takes_rows_along: false }
}
