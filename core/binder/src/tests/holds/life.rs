//! Holds across leaders and lists, and what makes a hold, or a claim for one, groundless.

use godel_domain::{
    records::{Record, RecordKey},
    unit::WorkloadClass,
};

use super::*;

#[test]
fn holds_of_two_leaders_differ_in_id_and_expiry() {
    let mut ids = Vec::new();
    for (epoch, hold_ms) in [(1, 5_000), (2, 7_000)] {
        let (mut world, high, revision) = filled();
        world.binder.lead(Epoch(epoch), hold_ms, 0);
        let accepted = world.hold(&high, revision, 1);
        let hold = &accepted.holds[0];
        assert_eq!(hold.expires_ms, world.time_ms + i64::try_from(hold_ms).unwrap());
        ids.push(hold.id);
    }
    assert_ne!(ids[0], ids[1], "who reads a hold of the one does not take it for one of the other");
}

#[test]
fn a_claim_of_which_some_are_bound_meanwhile_has_nobody_leave() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let high = unit(2, 2, 1, demand(600, 0)).priority(9);
    let revision = world.unit(high.clone());
    let claim = claims(&world.binder, &high, revision, &[(0, 0), (1, 0)]).expect("there are victims");
    world.change(Change::Put(Record::NodeSpec(node(3))));
    world.change(Change::Put(Record::NodeReport(report(3, 1000, 0))));
    let accepted = world.accept(&place(2, revision, &[(0, 3)]));
    world.commit(&accepted);
    assert_eq!(
        world.refuse(&claim),
        [(RejectionReason::AlreadyBound, vec![0]), (RejectionReason::MinMember, vec![1])]
    );
    assert_eq!(world.binder.n_holds(), 0);
}

#[test]
fn a_hold_ends_when_its_running_unit_is_bound_or_replaced() {
    for comes_back in [false, true] {
        let (mut world, high, revision) = filled();
        let accepted = world.hold(&high, revision, 1);
        world.commit_hold(&accepted);
        world.change(Change::Put(Record::NodeSpec(node(2))));
        world.change(Change::Put(Record::NodeReport(report(2, 1000, 0))));
        // Written by a leader that had not read of the hold.
        let mut other = World::new(2);
        let same = other.unit(high.clone());
        let elsewhere = other.accept(&place(2, same, &[(0, 2)]));
        world.change(Change::Rows(UnitId(2), RunChange::Bind(elsewhere.binds[0].clone())));
        if comes_back {
            world.evict(2, &[0], EvictionReason::Drained);
            world.statuses(2, &[0], Phase::Stopped);
            let requeue = Requeue { ordinals: vec![0], incarnations: vec![1], anew: false };
            world.change(Change::Rows(UnitId(2), RunChange::Requeue(requeue)));
        }
        assert!(world.binder.has_hold_work());
        assert_eq!(world.dropped(), ["changed"], "comes back: {comes_back}");
        assert_eq!(world.binder.n_holds(), 0);
    }
}

#[test]
fn who_leaves_is_promised_across_a_list() {
    let mut world = World::new(1);
    let low = unit(1, 4, 1, demand(250, 0));
    let revision = lender(&mut world, 500, low.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1), (3, 1)]));
    world.commit(&accepted);
    let high = unit(2, 1, 1, demand(250, 0)).priority(9);
    let revision = world.unit(high.clone());
    let accepted = world.hold(&high, revision, 1);
    assert_eq!(borrowed(&world), 250);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    world.binder.reset();
    lender(&mut world, 500, low);
    world.change(Change::RowsLoaded(UnitId(1), rows));
    assert_eq!(borrowed(&world), 250, "its transaction is still under way");
    world.binder.take_back(accepted.ticket);
    assert_eq!(borrowed(&world), 500, "refused");
}

#[test]
fn what_is_committed_stays_held_when_the_lease_is_lost() {
    let (mut world, high, revision) = filled();
    let accepted = world.hold(&high, revision, 1);
    world.binder.commit(accepted.ticket, Revision(world.revision + 1));
    world.binder.take_back_all();
    assert_eq!(world.binder.n_holds(), 1, "its record is not read yet");
    let (mut world, high, revision) = filled();
    world.hold(&high, revision, 1);
    world.binder.take_back_all();
    assert_eq!(world.binder.n_holds(), 0, "nobody knows what becomes of it");
}

#[test]
fn an_end_whose_fate_is_unknown_is_asked_for_again() {
    let (mut world, high, revision) = filled();
    let accepted = world.hold(&high, revision, 1);
    world.commit_hold(&accepted);
    world.unit(high.cancelled(true));
    let ended = world.binder.take_hold_work();
    let [HoldWork::Drop { holds, .. }] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(world.binder.take_hold_work(), [], "given out once");
    world.binder.take_back_all();
    assert!(world.binder.has_hold_work());
    assert_eq!(world.binder.take_hold_work(), ended);
    world.binder.keep_holds(holds);
    assert!(world.binder.has_hold_work());
    assert_eq!(world.binder.take_hold_work(), ended);
}

#[test]
fn a_hold_goes_with_its_ground() {
    type Change1 = fn(&mut World, &UnitRecord);
    let cases: [(&str, Change1); 5] = [
        ("changed", |world, high| {
            world.unit(high.clone().cancelled(true));
        }),
        ("changed", |world, high| {
            world.unit(high.clone().priority(8));
        }),
        ("node-lost", |world, _| {
            world.change(Change::Put(Record::NodeReport(NodeReport { ready: false, ..report(1, 1000, 1) })));
        }),
        ("node-lost", |world, _| {
            world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..super::node(1) })));
        }),
        ("expired", |world, _| world.binder.on_wall(1 + 600_000)),
    ];
    for (why, change) in cases {
        let (mut world, high, revision) = filled();
        let accepted = world.hold(&high, revision, 1);
        world.commit_hold(&accepted);
        change(&mut world, &high);
        assert!(world.binder.has_hold_work());
        assert_eq!(world.dropped(), [why]);
        assert_eq!(world.binder.n_holds(), 0);
        assert!(!world.binder.cluster().holds().is_any());
    }
}

#[test]
fn an_ended_hold_ends_the_others_until_enough_are_bound() {
    for (n_bound, n_left) in [(0, 0), (1, 1)] {
        let mut world = World::new(3);
        let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
        let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
        world.commit(&accepted);
        let high = unit(2, 3, 2 - n_bound, demand(1000, 0)).priority(9);
        let revision = world.unit(high.clone());
        if n_bound > 0 {
            let accepted = world.accept(&place(2, revision, &[(2, 3)]));
            world.commit(&accepted);
        } else {
            world.change(Change::Gone(RecordKey::NodeSpec(NodeId(3))));
        }
        let accepted = world.hold(&high, revision, 2);
        world.commit_hold(&accepted);
        world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..super::node(2) })));
        assert_eq!(world.dropped(), ["node-lost"]);
        assert_eq!(world.binder.n_holds(), n_left, "{n_bound} bound");
    }
}

#[test]
fn a_hold_that_is_read_before_its_unit_counts_in_its_queue() {
    let (mut world, high, _) = filled();
    let high = high.queue("a");
    let revision = world.unit(high.clone());
    let accepted = world.hold(&high, revision, 1);
    let mut other = World::new(1);
    other.change(Change::Put(Record::Hold(Arc::clone(&accepted.holds[0]))));
    other.unit(high);
    let quota = other.binder.picture.quotas.quota();
    let used = |path: &str| quota.usage().used(quota.tree().find(path).unwrap(), CPU);
    assert_eq!((used("a"), used("default")), (600, 0));
}

#[test]
fn a_hold_in_order_ends_once_its_predecessor_is_lost() {
    for is_lost in [false, true] {
        let mut world = World::new(2);
        let low = world.unit(unit(1, 1, 1, demand(1000, 0)));
        let accepted = world.accept(&place(1, low, &[(0, 2)]));
        world.commit(&accepted);
        let ordered = unit(2, 2, 1, demand(600, 0)).priority(9).class(WorkloadClass::Stateful);
        let revision = world.unit(ordered.clone());
        let accepted = world.accept(&place(2, revision, &[(0, 1)]));
        world.commit(&accepted);
        world.statuses(2, &[0], Phase::Running);
        let claim = claims(&world.binder, &ordered, revision, &[(1, 0)]).expect("there are victims");
        let accepted = world.accept(&claim);
        world.commit_hold(&accepted);
        if is_lost {
            world.evict(2, &[0], EvictionReason::NodeLost);
            world.statuses(2, &[0], Phase::Stopped);
        }
        world.statuses(1, &[0], Phase::Stopped);
        if is_lost {
            assert_eq!(world.dropped(), ["changed"], "it comes after the one that is lost");
        } else {
            let work = world.binder.take_hold_work();
            assert!(matches!(work.as_slice(), [HoldWork::Bind(_)]), "{work:?}");
        }
    }
}
