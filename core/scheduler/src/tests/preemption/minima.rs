//! Gangs of task groups with minima of their own, with the real binder behind the scheduler.

use godel_domain::unit::TaskGroup;

use super::*;

/// A unit of groups of so many replicas, with their minima and the cpu of a replica.
fn of_groups(id: u64, priority: i32, groups: &[(u32, u32, i64)]) -> UnitRecord {
    let group = |(idx, (replicas, min_member, amount)): (usize, &(u32, u32, i64))| {
        let template = Template { demand: cpu(*amount), ..Template::default() };
        TaskGroup { min_member: *min_member, ..godel_testkit::group(&format!("g{idx}"), *replicas, template) }
    };
    let groups: Vec<TaskGroup> = groups.iter().enumerate().map(group).collect();
    let least: u32 = groups.iter().map(|group| group.min_member).sum();
    ranked(id, priority, 1, 1, cpu(1)).task_groups(groups).min_member(least.max(1))
}

/// Ordinals of a unit that are live: those that stay, and those that are to leave.
fn ordinals(pair: &Pair, unit: u64) -> (Vec<u32>, Vec<u32>) {
    let rows = pair.binder.cluster().rows().of(UnitId(unit)).cloned().unwrap_or_default();
    let (staying, leaving): (Vec<_>, Vec<_>) = rows.live().partition(|(_, row)| row.eviction.is_none());
    let of = |rows: Vec<(u32, &godel_domain::running_units::RunningUnit)>| {
        rows.into_iter().map(|(ordinal, _)| ordinal).collect()
    };
    (of(staying), of(leaving))
}

#[test]
fn the_minimum_of_each_group_comes_before_all_others() {
    // Six places: as many of the first group as fit would leave one for the second.
    let mut pair = Pair::new(6);
    let gang = of_groups(1, 0, &[(5, 2, 1000), (4, 3, 1000)]);
    pair.assign(&gang);
    pair.steps();
    assert_eq!(ordinals(&pair, 1).0, [0, 1, 2, 5, 6, 7]);
}

#[test]
fn nothing_is_bound_while_one_group_lacks_its_minimum() {
    let mut pair = Pair::new(6);
    // Seven are needed, and six places are there.
    let gang = of_groups(1, 0, &[(5, 4, 1000), (4, 3, 1000)]);
    pair.assign(&gang);
    let states = pair.steps();
    assert!(pair.live(1).is_empty() && states.contains(&(1, ReportState::Parked)), "{states:?}");
    // One of the same templates that needs fewer of each is not kept by what is known of the first.
    let small = of_groups(2, 0, &[(5, 1, 1000), (4, 3, 1000)]);
    pair.assign(&small);
    pair.steps();
    assert_eq!(pair.live(2).len(), 6);
}

#[test]
fn victims_make_room_for_the_minimum_of_each_group() {
    let mut pair = Pair::new(4);
    let low = ranked(1, 1, 4, 1, cpu(1000));
    pair.assign(&low);
    pair.steps();
    let gang = of_groups(2, 9, &[(3, 1, 1000), (2, 2, 1000)]);
    pair.assign(&gang);
    pair.step();
    assert_eq!(pair.leaving().len(), 3, "no more than the minima need");
    pair.leave();
    assert_eq!(ordinals(&pair, 2).0, [0, 3, 4]);
}

#[test]
fn a_victim_breaks_its_unit_by_its_group_alone() {
    // One of the second group is all that it needs, of the first two may leave.
    let mut pair = Pair::new(4);
    let victim = of_groups(1, 1, &[(3, 1, 1000), (1, 1, 1000)]);
    pair.assign(&victim);
    pair.steps();
    assert_eq!(pair.live(1).len(), 4);
    pair.assign(&ranked(2, 9, 2, 2, cpu(1000)));
    pair.steps();
    let (staying, leaving) = ordinals(&pair, 1);
    assert!(leaving.len() == 2 && staying.len() == 2 && staying.contains(&3), "{staying:?} {leaving:?}");
    pair.leave();
    // The next one breaks it, so all of it leaves.
    pair.assign(&ranked(3, 9, 1, 1, cpu(1000)));
    pair.steps();
    let (staying, leaving) = ordinals(&pair, 1);
    assert_eq!((staying, leaving.len()), (Vec::new(), 2));
}
