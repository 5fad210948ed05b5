//! Holds that go as their unit fits elsewhere, and those that a unit of higher rank takes over.

use super::*;
use godel_domain::records::{Record, RecordKey};

/// A unit has the node's running units leave for it; then another node is there.
fn held_beside_a_free_node() -> (World, UnitRecord, u64, Accepted) {
    let (mut world, high, revision) = filled();
    let accepted = world.hold(&high, revision, 1);
    world.commit_hold(&accepted);
    world.change(Change::Put(Record::NodeSpec(node(2))));
    world.change(Change::Put(Record::NodeReport(report(2, 1000, 0))));
    (world, high, revision, accepted)
}

/// A decision to take holds over on a node.
fn take(world: &World, (unit, revision): (u64, u64), places: &[(u32, u32)], holds: &[HoldId]) -> Decision {
    let on = NodeId(places[0].1);
    let claim = NodeVictims { group: 0, node: on, victims: Vec::new(), holds: holds.to_vec() };
    let preemption = Preemption { nodes: vec![claim], ..Preemption::default() };
    Decision {
        claim: preemption.into(),
        nodes_as_of: world.binder.revision(),
        ..place(unit, revision, places)
    }
}

#[test]
fn a_unit_is_bound_elsewhere_and_its_hold_goes() {
    let (mut world, _, revision, held) = held_beside_a_free_node();
    let id = held.holds[0].id;
    let accepted = world.accept(&place(2, revision, &[(0, 2)]));
    assert_eq!(
        (accepted.binds[0].nodes.as_slice(), accepted.gone.as_slice()),
        (&[NodeId(2)][..], &[(id, "elsewhere")][..])
    );
    // Both count until it is known what becomes of that.
    let small = world.unit(unit(3, 1, 1, demand(500, 0)));
    assert_eq!(
        world.refuse(&place(3, small, &[(0, 2)])),
        [(RejectionReason::InsufficientResources, vec![0])]
    );
    assert!(!world.binder.has_hold_work() || world.binder.take_hold_work().is_empty());
    world.commit(&accepted);
    world.change(Change::Gone(RecordKey::Hold(id)));
    assert_eq!(world.binder.n_holds(), 0);
    world.statuses(1, &[0, 1], Phase::Stopped);
    assert!(world.binder.take_hold_work().is_empty());
    assert_eq!(world.accept(&place(3, small, &[(0, 1)])).binds.len(), 1, "the room is anybody's");
}

#[test]
fn a_refused_binding_elsewhere_leaves_the_hold_as_it_was() {
    let (mut world, _, revision, held) = held_beside_a_free_node();
    let accepted = world.accept(&place(2, revision, &[(0, 2)]));
    world.binder.take_back(accepted.ticket);
    assert_eq!(world.binder.n_holds(), 1);
    let victims: Vec<u32> = held.holds[0].victims.iter().map(|victim| victim.replica.ordinal).collect();
    world.statuses(1, &victims, Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!(bound.binds[0].nodes, [NodeId(1)]);
}

#[test]
fn nobody_else_leaves_for_what_some_leave_for_already() {
    let (mut world, high, revision, _) = held_beside_a_free_node();
    let other = world.unit(unit(4, 1, 1, demand(1000, 0)));
    let accepted = world.accept(&place(4, other, &[(0, 2)]));
    world.commit(&accepted);
    let again = claims(&world.binder, &high, revision, &[(0, 0)]).expect("there are victims");
    assert_eq!(world.refuse(&again), [(RejectionReason::AlreadyHeld, vec![0])]);
}

#[test]
fn a_unit_of_higher_rank_takes_a_hold_over_with_its_victims() {
    let (mut world, high, revision) = filled();
    let held = world.hold(&high, revision, 1);
    world.commit_hold(&held);
    let id = held.holds[0].id;
    let asks =
        |world: &mut World, id, priority| world.unit(unit(id, 1, 1, demand(600, 0)).priority(priority));
    let equal = asks(&mut world, 3, 9);
    assert_eq!(
        world.refuse(&take(&world, (3, equal), &[(0, 1)], &[id])),
        [(RejectionReason::VictimGone, vec![0])]
    );
    let higher = asks(&mut world, 4, 10);
    let decision = take(&world, (4, higher), &[(0, 1)], &[id]);
    let accepted = world.accept(&decision);
    assert_eq!((accepted.evictions.len(), accepted.gone.as_slice()), (0, &[(id, "taken-over")][..]));
    let hold = Arc::clone(&accepted.holds[0]);
    assert_eq!((hold.unit, &hold.victims), (UnitId(4), &held.holds[0].victims));
    assert_eq!((hold.priority, hold.taken_from.as_slice()), (Some(10), &[UnitId(2)][..]));
    // The first wins, and what is refused leaves all as it was.
    let third = asks(&mut world, 5, 11);
    assert_eq!(world.refuse(&take(&world, (5, third), &[(0, 1)], &[id]))[0].0, RejectionReason::VictimGone);
    world.binder.take_back(accepted.ticket);
    let accepted = world.accept(&decision);
    world.commit_hold(&accepted);
    assert_eq!(world.binder.n_holds(), 1);
    let victims: Vec<u32> = hold.victims.iter().map(|victim| victim.replica.ordinal).collect();
    world.statuses(1, &victims, Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((bound.unit, bound.binds[0].nodes.as_slice()), (UnitId(4), &[NodeId(1)][..]));
}

#[test]
fn what_is_taken_over_at_a_maximum_is_held_at_a_maximum() {
    let mut world = World::new(1);
    let in_queue = |unit: UnitRecord| unit.queue("a");
    let low = world.unit(in_queue(unit(1, 2, 1, demand(300, 0))));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    let max = [(CPU.to_owned(), 800)].into();
    world.change(Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new("a") }))));
    let high = in_queue(unit(2, 1, 1, demand(500, 0)).priority(9));
    let revision = world.unit(high.clone());
    let held = world.hold(&high, revision, 1);
    world.commit_hold(&held);
    assert!(held.holds[0].at_maximum);
    let id = held.holds[0].id;
    // Those who leave for it have yet to leave the queue.
    let higher = in_queue(unit(3, 1, 1, demand(400, 0)).priority(10));
    let revision = world.unit(higher);
    let accepted = world.accept(&take(&world, (3, revision), &[(0, 1)], &[id]));
    assert!(accepted.holds[0].at_maximum);
    assert_eq!(accepted.holds[0].victims, held.holds[0].victims);
    world.commit_hold(&accepted);
    let victims: Vec<u32> = accepted.holds[0].victims.iter().map(|victim| victim.replica.ordinal).collect();
    let more = world.unit(in_queue(unit(4, 1, 1, demand(101, 0)).priority(10)));
    assert_eq!(world.refuse(&place(4, more, &[(0, 1)])), [(RejectionReason::QueueFull, vec![0])]);
    world.statuses(1, &victims, Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!(bound.unit, UnitId(3));
}

#[test]
fn a_hold_is_not_taken_back_by_whom_it_was_taken_from() {
    let (mut world, high, revision) = filled();
    let held = world.hold(&high, revision, 1);
    world.commit_hold(&held);
    let higher = world.unit(unit(3, 1, 1, demand(600, 0)).priority(10));
    let accepted = world.accept(&take(&world, (3, higher), &[(0, 1)], &[held.holds[0].id]));
    world.commit_hold(&accepted);
    let risen = world.unit(high.priority(20));
    let back = take(&world, (2, risen), &[(0, 1)], &[accepted.holds[0].id]);
    assert_eq!(world.refuse(&back), [(RejectionReason::PreemptionLoop, vec![0])]);
}

#[test]
fn of_a_gang_that_was_never_bound_all_holds_are_taken() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let gang = unit(2, 2, 2, demand(1000, 0)).priority(5);
    let revision = world.unit(gang.clone());
    let held = world.hold(&gang, revision, 2);
    world.commit_hold(&held);
    let on_first = held.holds.iter().find(|hold| hold.node == NodeId(1)).unwrap().id;
    let higher = world.unit(unit(3, 1, 1, demand(1000, 0)).priority(9));
    let accepted = world.accept(&take(&world, (3, higher), &[(0, 1)], &[on_first]));
    assert_eq!(accepted.gone.len(), 2, "one alone is worth nothing");
    world.commit_hold(&accepted);
    let unit_of = |hold: &Hold| hold.unit;
    assert_eq!(
        world.binder.cluster().holds().all().iter().map(|hold| unit_of(hold)).collect::<Vec<_>>(),
        [UnitId(3)]
    );
}

#[test]
fn a_gang_that_gathers_may_have_others_leave_instead() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let gang = unit(2, 2, 2, demand(800, 0)).priority(5);
    let revision = world.unit(gang.clone());
    let turn = Decision { claim: Claim::Gathering, ..place(2, revision, &[(0, 1), (1, 2)]) };
    let accepted = world.accept(&turn);
    world.commit_hold(&accepted);
    assert_eq!(world.binder.picture().gathering().len(), 1);
    let decision = claims(&world.binder, &gang, revision, &[(0, 0), (1, 0)]).expect("there are victims");
    let accepted = world.accept(&decision);
    assert_eq!((accepted.evictions[0].1.ordinals.len(), accepted.gone.len()), (2, 2));
    world.commit_hold(&accepted);
    assert!(world.binder.picture().gathering().is_empty());
    world.statuses(1, &[0, 1], Phase::Stopped);
    let work = world.binder.take_hold_work();
    assert!(matches!(work.as_slice(), [HoldWork::Bind(_)]), "{work:?}");
}
