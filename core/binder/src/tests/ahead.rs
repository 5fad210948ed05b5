//! Decisions of schedulers that have read more than the binder.

use super::*;
use godel_domain::records::Record;

/// A full node, and a decision that rests on what its scheduler has read to leave next.
fn full() -> (World, Decision, Revision) {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 1, 1, demand(1000, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&first);
    let revision = world.unit(unit(2, 3, 1, demand(400, 0)));
    let ahead = Revision(world.revision + 1);
    (world, Decision { nodes_as_of: ahead, ..place(2, revision, &[(0, 1)]) }, ahead)
}

#[test]
fn a_decision_waits_for_room_that_its_scheduler_saw_freed() {
    let (mut world, decision, ahead) = full();
    let before = world.binder.cluster().free().node_state(NodeId(1));
    assert_eq!(world.binder.check(&decision), Verdict::Wait(Wait::Revision(ahead)));
    assert_eq!((world.binder.cluster().free().node_state(NodeId(1)), world.binder.n_open()), (before, 0));
    world.statuses(1, &[0], Phase::Stopped);
    assert_eq!(world.accept(&decision).binds[0].nodes, [NodeId(1)]);
}

#[test]
fn with_as_much_read_it_is_refused_at_once() {
    let (mut world, mut decision, _) = full();
    decision.nodes_as_of = world.binder.revision();
    assert_eq!(world.refuse(&decision), [(RejectionReason::InsufficientResources, vec![0])]);
}

#[test]
fn what_fits_waits_for_nothing() {
    let (mut world, decision, _) = full();
    let elsewhere = Decision { groups: place(2, 0, &[(0, 2), (1, 2)]).groups, ..decision };
    assert_eq!(world.accept(&elsewhere).binds[0].ordinals, [0, 1]);
}

#[test]
fn a_decision_that_fits_in_part_takes_nothing_while_it_waits() {
    let (mut world, decision, ahead) = full();
    let half = Decision { groups: place(2, 0, &[(0, 1), (1, 2)]).groups, ..decision };
    let before = world.binder.cluster().free().node_state(NodeId(2));
    assert_eq!(world.binder.check(&half), Verdict::Wait(Wait::Revision(ahead)));
    assert_eq!((world.binder.cluster().free().node_state(NodeId(2)), world.binder.n_open()), (before, 0));
    world.change(Change::Put(Record::NodeUsage(godel_domain::node::NodeUsage {
        id: NodeId(2),
        ..godel_domain::node::NodeUsage::default()
    })));
    let accepted = world.accept(&half);
    assert_eq!(accepted.binds[0].ordinals, [1], "nothing had left after all");
    assert_eq!(short(&accepted.rejections), [(RejectionReason::InsufficientResources, vec![0])]);
}

#[test]
fn a_decision_waits_for_a_node_that_its_scheduler_saw_come_back() {
    let (mut world, decision, ahead) = full();
    world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(2) })));
    let ahead = Revision(ahead.0 + 1);
    let there = Decision { nodes_as_of: ahead, groups: place(2, 0, &[(0, 2)]).groups, ..decision };
    assert_eq!(world.binder.check(&there), Verdict::Wait(Wait::Revision(ahead)));
    world.change(Change::Put(Record::NodeSpec(node(2))));
    assert_eq!(world.accept(&there).binds[0].nodes, [NodeId(2)]);
}

#[test]
fn a_gang_waits_for_room_that_its_scheduler_saw_freed() {
    let (mut world, _, _) = full();
    let revision = world.unit(unit(3, 2, 2, demand(600, 0)));
    let ahead = Revision(world.revision + 1);
    let gang = Decision { nodes_as_of: ahead, ..place(3, revision, &[(0, 1), (1, 2)]) };
    assert_eq!(world.binder.check(&gang), Verdict::Wait(Wait::Revision(ahead)));
    world.statuses(1, &[0], Phase::Stopped);
    assert_eq!(world.accept(&gang).binds[0].ordinals, [0, 1]);
}

#[test]
fn a_decision_waits_for_what_left_its_queue() {
    let mut world = World::new(2);
    world.change(queues::queue("default", &[], 1));
    let revision = world.unit(unit(1, 1, 1, demand(100, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&first);
    let revision = world.unit(unit(2, 1, 1, demand(100, 0)));
    let ahead = Revision(world.revision + 1);
    let next = Decision { nodes_as_of: ahead, ..place(2, revision, &[(0, 2)]) };
    assert_eq!(world.binder.check(&next), Verdict::Wait(Wait::Revision(ahead)));
    world.statuses(1, &[0], Phase::Stopped);
    assert_eq!(world.accept(&next).binds[0].nodes, [NodeId(2)]);
}

#[test]
fn what_no_reading_ends_is_refused_at_once() {
    let (mut world, decision, _) = full();
    let invalid = Decision { groups: place(2, 0, &[]).groups, ..decision.clone() };
    assert_eq!(world.refuse(&invalid), [(RejectionReason::Invalid, vec![])]);
    let unwanted = Decision { groups: place(2, 0, &[(7, 2)]).groups, ..decision };
    assert_eq!(world.refuse(&unwanted), [(RejectionReason::UnitChanged, vec![7])]);
}
