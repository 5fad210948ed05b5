//! What comes back, how much of it at a time, and after a list.

use super::*;

#[test]
fn what_was_sent_away_again_before_a_list_comes_back_again() {
    let sent_away = || {
        let mut world = World::new(1);
        let revision = world.unit(unit(1, 1, 1, demand(100, 0)));
        let accepted = world.accept(&place(1, revision, &[(0, 1)]));
        world.commit(&accepted);
        world.evict(1, &[0], EvictionReason::Drained);
        world.statuses(1, &[0], Phase::Stopped);
        let work = world.binder.take_requeues(10).remove(0);
        (world, revision, work)
    };
    let (mut world, revision, work) = sent_away();
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(work.requeue)));
    let mut next = place(1, revision, &[(0, 1)]);
    next.groups[0].incarnations = vec![1];
    let accepted = world.accept(&next);
    world.commit(&accepted);
    let again = Evict { incarnations: vec![1], ..eviction(&[0], EvictionReason::Drained) };
    world.change(Change::Rows(UnitId(1), RunChange::Evict(again)));
    let stopped = Statuses {
        ordinals: vec![0],
        incarnations: vec![1],
        phases: vec![Phase::Stopped],
        ..Statuses::default()
    };
    world.change(Change::Rows(UnitId(1), RunChange::Statuses(stopped)));
    let rows = world.binder.cluster().rows(UnitId(1)).unwrap().clone();
    // One that asked for the first time, and then lists.
    let (mut other, ..) = sent_away();
    other.change(Change::RowsLoaded(UnitId(1), rows));
    assert_eq!(other.binder.take_requeues(10)[0].requeue.incarnations, [2]);
}

#[test]
fn as_many_come_back_at_a_time_as_are_asked_for() {
    let mut world = World::new(1);
    for (id, n) in [(1, 3), (2, 2)] {
        let revision = world.unit(unit(id, n, 1, demand(100, 0)));
        let places: Vec<(u32, u32)> = (0..n).map(|ordinal| (ordinal, 1)).collect();
        let accepted = world.accept(&place(id, revision, &places));
        world.commit(&accepted);
        let ordinals: Vec<u32> = (0..n).collect();
        world.evict(id, &ordinals, EvictionReason::Drained);
        world.statuses(id, &ordinals, Phase::Stopped);
    }
    let mut taken = |max| {
        let work = world.binder.take_requeues(max).into_iter();
        work.map(|work| (work.unit.0, work.requeue.ordinals)).collect::<Vec<_>>()
    };
    assert_eq!(taken(0), []);
    assert_eq!(taken(2), [(1, vec![0, 1])]);
    assert_eq!(taken(2), [(1, vec![2]), (2, vec![0])]);
    assert_eq!(taken(1), [(2, vec![1])]);
    assert_eq!(taken(1), []);
}

#[test]
fn nothing_comes_back_of_a_unit_that_is_gone() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 1, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&accepted);
    world.evict(1, &[0], EvictionReason::Drained);
    world.statuses(1, &[0], Phase::Stopped);
    assert!(world.binder.has_requeues());
    world.change(Change::UnitDeleted(UnitId(1)));
    assert!(!world.binder.has_requeues());
}

#[test]
fn all_that_has_ended_comes_back_when_a_unit_starts_again() {
    let mut world = World::new(1);
    let whole = unit(1, 3, 1, demand(100, 0));
    let revision = world.unit(whole.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1)]));
    world.commit(&accepted);
    world.statuses(1, &[0], Phase::Failed);
    world.statuses(1, &[1], Phase::Succeeded);
    assert!(!world.binder.has_requeues());
    world.unit(UnitSpec { restarting: true, ..whole });
    assert_eq!(world.binder.take_requeues(10)[0].requeue.ordinals, [0, 1]);
    world.evict(1, &[2], EvictionReason::Failure);
    world.statuses(1, &[2], Phase::Stopped);
    assert_eq!(world.binder.take_requeues(10)[0].requeue.ordinals, [2]);
}
