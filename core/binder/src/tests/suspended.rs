//! Suspended units.

use super::*;

#[test]
fn a_suspended_unit_binds_nothing_and_returns_whole() {
    let mut world = World::new(1);
    let gang = unit(1, 2, 2, demand(100, 0));
    let revision = world.unit(gang.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    let suspended = world.unit(gang.clone().suspended(true));
    world.evict(1, &[0, 1], EvictionReason::Suspended);
    world.statuses(1, &[0, 1], Phase::Stopped);
    assert_eq!(world.binder.take_requeues(10), [], "nobody wants them");
    let again = |revision: u64, places: &[(u32, u32)]| {
        let mut decision = place(1, revision, places);
        decision.groups[0].incarnations = vec![1; places.len()];
        decision
    };
    let all = [(0, 1), (1, 1)];
    let changed = |ordinals: Vec<u32>| [(RejectionReason::UnitChanged, ordinals)];
    assert_eq!(world.refuse(&again(suspended, &all)), changed(vec![0, 1]), "suspended");

    let resumed = world.unit(gang);
    let work = world.binder.take_requeues(10);
    assert_eq!(work[0].requeue, Requeue { ordinals: vec![0, 1], incarnations: vec![1, 1], anew: false });
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(work[0].requeue.clone())));
    assert_eq!(world.refuse(&again(resumed, &[(0, 1)])), [(RejectionReason::MinMember, vec![0])]);
    let accepted = world.accept(&again(resumed, &all));
    world.commit(&accepted);
    let stopped = Statuses {
        ordinals: vec![1],
        incarnations: vec![1],
        phases: vec![Phase::Stopped],
        ..Statuses::default()
    };
    world.change(Change::Rows(UnitId(1), RunChange::Statuses(stopped)));
    let work = world.binder.take_requeues(10);
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(work[0].requeue.clone())));
    let mut decision = place(1, resumed, &[(1, 1)]);
    decision.groups[0].incarnations = vec![2];
    assert_eq!(world.accept(&decision).binds[0].ordinals, [1], "one by one, as before");
}
