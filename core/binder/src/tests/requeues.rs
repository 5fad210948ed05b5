//! What comes back, how much of it at a time, and after a list.

use godel_domain::{
    records::{Record, RecordKey},
    unit::{OnBelowMin, OnEviction, UnitEnd},
};

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
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
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
    assert!(world.binder.requeues.has_ready());
    world.change(Change::Gone(RecordKey::Unit(UnitId(1))));
    assert!(!world.binder.requeues.has_ready());
}

#[test]
fn a_replica_that_was_asked_for_comes_back_however_it_ended() {
    let mut world = World::new(1);
    let whole = unit(1, 3, 1, demand(100, 0));
    let revision = world.unit(whole.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1)]));
    world.commit(&accepted);
    world.statuses(1, &[0], Phase::Failed);
    world.statuses(1, &[1], Phase::Succeeded);
    let asked = |next: Vec<(u32, u32)>| whole.clone().edit(|unit| unit.status.next_incarnations = next);
    world.unit(asked(vec![(0, 1), (2, 1)]));
    let work = world.binder.take_requeues(10).remove(0);
    assert_eq!((&work.requeue.ordinals[..], &work.requeue.incarnations[..]), (&[0][..], &[1][..]));
    assert!(!work.requeue.anew);
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(work.requeue)));
    // One that still runs comes back once it has ended, and one that came back is not awaited again.
    assert!(!world.binder.requeues.has_ready());
    world.statuses(1, &[2], Phase::Succeeded);
    assert_eq!(world.binder.take_requeues(10)[0].requeue.ordinals, [2]);
    world.unit(asked(vec![(1, 1)]).suspended(true));
    assert!(world.binder.take_requeues(10).is_empty(), "nothing of it is to run");
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
    assert!(!world.binder.requeues.has_ready());
    world.unit(whole.restarting(true));
    assert_eq!(world.binder.take_requeues(10)[0].requeue.ordinals, [0, 1]);
    world.evict(1, &[2], EvictionReason::Failure);
    world.statuses(1, &[2], Phase::Stopped);
    assert_eq!(world.binder.take_requeues(10)[0].requeue.ordinals, [2]);
}

#[test]
fn evicted_and_ended_ones_come_back_if_still_wanted() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 4, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1), (3, 1)]));
    world.commit(&accepted);
    world.evict(1, &[0, 1], EvictionReason::Drained);
    world.evict(1, &[2], EvictionReason::ScaledIn);
    assert!(!world.binder.requeues.has_ready(), "they have not ended");
    world.statuses(1, &[0, 2], Phase::Stopped);
    world.statuses(1, &[1, 3], Phase::Succeeded);
    let expected = RequeueWork {
        unit: UnitId(1),
        unit_revision: Revision(revision),
        requeue: Requeue { ordinals: vec![0], incarnations: vec![1], anew: false },
    };
    assert_eq!(world.binder.take_requeues(10), vec![expected.clone()]);
    assert_eq!(world.binder.take_requeues(10), [], "given out once");
    for _ in 0..2 {
        world.statuses(1, &[0], Phase::Stopped);
        assert_eq!(world.binder.take_requeues(10), [], "and not again for what is known");
    }
    world.binder.requeue_refused(&expected);
    assert_eq!(world.binder.take_requeues(10), vec![expected.clone()]);
    world.binder.take_back_all();
    assert_eq!(world.binder.take_requeues(10), vec![expected.clone()], "another leader asks again");

    // The next incarnation may be decided on before we have read that it is pending.
    let mut next = place(1, revision, &[(0, 1)]);
    next.groups[0].incarnations = vec![1];
    assert_eq!(world.binder.check(&next), Verdict::Wait(Wait::Revision(Revision(world.revision + 1))));
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(expected.requeue)));
    assert_eq!(world.accept(&next).binds[0].incarnations, [1]);
    assert!(!world.binder.requeues.has_ready());
}

#[test]
fn a_new_binder_finds_what_has_to_come_back_in_the_records() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 1, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&accepted);
    world.evict(1, &[0], EvictionReason::NodeLost);
    world.statuses(1, &[0], Phase::Stopped);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();

    let mut other = World::new(1);
    other.change(Change::RowsLoaded(UnitId(1), rows.clone()));
    other.unit(unit(1, 1, 1, demand(100, 0)));
    assert_eq!(other.binder.take_requeues(10)[0].requeue.incarnations, [1]);

    let mut cancelled = World::new(1);
    cancelled.change(Change::RowsLoaded(UnitId(1), rows));
    cancelled.unit(unit(1, 1, 1, demand(100, 0)).cancelled(true));
    assert_eq!(cancelled.binder.take_requeues(10), []);
}

#[test]
fn what_had_to_come_back_before_a_list_the_list_says_again() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 1, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&accepted);
    world.evict(1, &[0], EvictionReason::Drained);
    world.statuses(1, &[0], Phase::Stopped);
    assert!(world.binder.requeues.has_ready());
    world.binder.reset();
    assert!(!world.binder.requeues.has_ready());
}

#[test]
fn runs_stopped_by_the_agent_return_and_ended_ones_do_not() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    world.statuses(1, &[0], Phase::Stopped);
    world.statuses(1, &[1], Phase::Failed);
    let requeue = Requeue { ordinals: vec![0], incarnations: vec![1], anew: false };
    assert_eq!(world.binder.take_requeues(10)[0].requeue, requeue);
    assert!(!world.binder.requeues.has_ready());
}

#[test]
fn lost_running_units_return_elsewhere_unless_the_node_is_ready() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 3, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 2)]));
    world.commit(&accepted);
    world.evict(1, &[1], EvictionReason::Drained);
    let asked = [(UnitId(1), eviction(&[0, 1, 2], EvictionReason::NodeLost))];
    assert_eq!(world.binder.evictions(&asked), [], "both nodes are ready");
    world.change(Change::Put(Record::NodeReport(NodeReport { ready: false, ..report(1, 1000, 1) })));
    let left = world.binder.evictions(&asked);
    assert_eq!(left[0].1.ordinals, [0, 1], "those that are leaving as well");
    world.evict(1, &[0, 1], EvictionReason::NodeLost);
    let requeue = Requeue { ordinals: vec![0, 1], incarnations: vec![1, 1], anew: false };
    assert_eq!(world.binder.take_requeues(10)[0].requeue, requeue);
    assert_eq!(world.binder.evictions(&asked), []);
}

#[test]
fn a_gang_that_left_whole_or_restarts_is_bound_as_a_whole_again() {
    let mut world = World::new(1);
    let all: &[u32] = &[0, 1];
    for (id, on_below_min, gone) in
        [(1, OnBelowMin::Keep, all), (2, OnBelowMin::Restart, all), (3, OnBelowMin::Keep, &all[..1])]
    {
        let spec = unit(id, 2, 2, demand(100, 0)).on_below_min(on_below_min);
        let revision = world.unit(spec);
        let accepted = world.accept(&place(id, revision, &[(0, 1), (1, 1)]));
        world.commit(&accepted);
        world.evict(id, gone, EvictionReason::BelowMin);
        world.statuses(id, gone, Phase::Stopped);
        for work in world.binder.take_requeues(10) {
            world.change(Change::Rows(UnitId(id), RunChange::Requeue(work.requeue)));
        }
        let again = |places: &[(u32, u32)]| {
            let mut decision = place(id, revision, places);
            decision.groups[0].incarnations = vec![1; places.len()];
            decision
        };
        if gone == all {
            assert_eq!(world.refuse(&again(&[(0, 1)])), [(RejectionReason::MinMember, vec![0])]);
            let accepted = world.accept(&again(&[(0, 1), (1, 1)]));
            assert_eq!(accepted.binds[0].incarnations, [1, 1]);
        } else {
            assert_eq!(world.accept(&again(&[(0, 1)])).binds[0].ordinals, [0], "one by one");
        }
    }
}

#[test]
fn what_fails_by_an_eviction_or_has_ended_does_not_come_back() {
    let mut world = World::new(1);
    let ended = Some(UnitEnd::BelowMin);
    for (id, on_eviction, ended) in [(1, OnEviction::Fail, None), (2, OnEviction::Requeue, ended)] {
        let spec = unit(id, 1, 1, demand(100, 0)).on_eviction(on_eviction);
        let revision = world.unit(spec.clone());
        let accepted = world.accept(&place(id, revision, &[(0, 1)]));
        world.commit(&accepted);
        world.evict(id, &[0], EvictionReason::Drained);
        world.unit(spec.ended(ended));
        world.statuses(id, &[0], Phase::Stopped);
        assert_eq!(world.binder.take_requeues(10), [], "{id}");
    }
}
