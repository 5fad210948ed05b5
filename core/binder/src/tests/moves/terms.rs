//! A replica that moves counts on its target for the terms of units, from the move on.

use godel_domain::{
    label_expression::parse,
    records::{Record, RecordKey},
    unit_affinity::{NODE, SpreadTerm, UnitAffinity},
};

use super::*;

fn term(units: &str, topology: &str) -> UnitTerm {
    let units = if units.is_empty() { Vec::new() } else { parse(units).unwrap() };
    UnitTerm { units, topology: topology.to_owned(), weight: 0 }
}

fn apart(units: &str, topology: &str) -> UnitAffinity {
    UnitAffinity { apart: vec![term(units, topology)], ..UnitAffinity::default() }
}

fn app(record: UnitRecord, app: &str) -> UnitRecord {
    record.labels([("app".to_owned(), app.to_owned())].into())
}

/// Nodes 1 and 2 are in rack `a`, 3 and 4 in rack `b`.
fn racks() -> World {
    let mut world = World::new(4);
    for id in 1..=4 {
        let rack = if id <= 2 { "a" } else { "b" };
        let labels = [("rack".to_owned(), rack.to_owned())].into();
        world.change(Change::Put(Record::NodeSpec(NodeSpec { labels, ..node(id) })));
    }
    world
}

const AFFINITY: RejectionReason = RejectionReason::UnitAffinity;

/// Judges the same while the move is under way, while the old one leaves, and once it has left.
fn at_each_step(world: &mut World, accepted: &AcceptedMove, mut check: impl FnMut(&mut World)) {
    check(world);
    world.show(accepted);
    check(world);
    world.left(accepted.unit.0, accepted.hold.ordinals[0]);
    check(world);
}

#[test]
fn who_is_kept_away_stays_away_from_the_target_until_the_hold_goes() {
    for by_mover in [true, false] {
        let mut world = racks();
        let (mover, other) = match by_mover {
            true => (unit(1, 1, 1, demand(10, 0)).affinity(apart("app = db", "rack")), "db"),
            false => (app(unit(1, 1, 1, demand(10, 0)), "db"), "web"),
        };
        let revision = world.running(mover, &[(0, 1)]);
        let mut waiting = app(unit(2, 2, 1, demand(10, 0)), other);
        if !by_mover {
            waiting = waiting.affinity(apart("app = db", "rack"));
        }
        let waits = world.unit(waiting);
        let accepted = world.moves(asked(1, 0, 0, 3));
        at_each_step(&mut world, &accepted, |world| {
            assert_eq!(world.refuse(&place(2, waits, &[(0, 4)])), [(AFFINITY, vec![0])], "{by_mover}");
        });
        // Where it was there is nobody any more.
        let home = world.accept(&place(2, waits, &[(0, 1)]));
        assert!(home.rejections.is_empty(), "{:?}", home.rejections);
        world.binder.take_back(home.ticket);
        // It comes, and goes on to keep them away.
        let placed = world.accept(&next(1, revision, 0, 3));
        assert!(placed.rejections.is_empty(), "{:?}", placed.rejections);
        assert_eq!(world.refuse(&place(2, waits, &[(0, 4)])), [(AFFINITY, vec![0])]);
        world.binder.take_back(placed.ticket);
        assert_eq!(world.refuse(&place(2, waits, &[(0, 4)])), [(AFFINITY, vec![0])]);
        // Its hold goes without it: nobody is kept away there.
        world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
        assert!(world.accept(&place(2, waits, &[(0, 4)])).rejections.is_empty());
    }
}

#[test]
fn waiting_replicas_go_where_the_one_that_moves_goes() {
    for key in ["required", "homogeneous"] {
        let mut world = racks();
        let rack = "rack".to_owned();
        let topology = match key {
            "required" => UnitTopology { required: rack, ..UnitTopology::default() },
            _ => UnitTopology { homogeneous: rack, ..UnitTopology::default() },
        };
        let record = unit(1, 3, 1, demand(10, 0)).topology(topology);
        let revision = world.running(record, &[(0, 1)]);
        let accepted = world.moves(asked(1, 0, 0, 3));
        at_each_step(&mut world, &accepted, |world| {
            assert_eq!(world.refuse(&place(1, revision, &[(1, 2)])), [(AFFINITY, vec![1])], "{key}");
            let there = world.accept(&place(1, revision, &[(1, 4)]));
            world.binder.take_back(there.ticket);
        });
        // The one that moves may go elsewhere, but not away from those that have followed it.
        let there = world.accept(&place(1, revision, &[(1, 4)]));
        world.commit(&there);
        assert_eq!(world.refuse(&next(1, revision, 0, 2)), [(AFFINITY, vec![0])]);
        let placed = world.accept(&next(1, revision, 0, 3));
        assert!(placed.rejections.is_empty(), "{:?}", placed.rejections);
    }
}

#[test]
fn in_one_decision_each_replica_is_judged_with_the_targets_of_the_others() {
    let mut world = racks();
    let topology = UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() };
    let revision = world.running(unit(1, 3, 1, demand(10, 0)).topology(topology), &[(1, 1)]);
    let accepted = world.moves(asked(1, 1, 0, 3));
    world.show(&accepted);
    world.left(1, 1);
    // The first one would go back to where the second one was.
    let mut decision = place(1, revision, &[(0, 1), (1, 3)]);
    decision.groups[0].incarnations = vec![0, 1];
    let placed = world.accept(&decision);
    assert_eq!(short(&placed.rejections), [(AFFINITY, vec![0])]);
    assert_eq!(placed.gone, [(accepted.hold.id, "placed")]);
}

#[test]
fn waiting_replicas_of_a_segment_follow_too() {
    let mut world = racks();
    let segments = Some(Segments { size: 2, within: "rack".to_owned() });
    let topology = UnitTopology { segments, ..UnitTopology::default() };
    let revision = world.running(unit(1, 4, 1, demand(10, 0)).topology(topology), &[(0, 1)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    at_each_step(&mut world, &accepted, |world| {
        assert_eq!(world.refuse(&place(1, revision, &[(1, 2)])), [(AFFINITY, vec![1])]);
        // Another segment goes anywhere.
        for place_of in [place(1, revision, &[(1, 4)]), place(1, revision, &[(2, 2)])] {
            let there = world.accept(&place_of);
            assert!(there.rejections.is_empty(), "{:?}", there.rejections);
            world.binder.take_back(there.ticket);
        }
    });
}

#[test]
fn what_is_near_to_a_replica_that_moves_goes_to_its_target() {
    let mut world = racks();
    world.running(app(unit(1, 1, 1, demand(10, 0)), "db"), &[(0, 1)]);
    let near = UnitAffinity { near: vec![term("app = db", "rack")], ..UnitAffinity::default() };
    let waits = world.unit(unit(2, 2, 1, demand(10, 0)).affinity(near));
    let accepted = world.moves(asked(1, 0, 0, 3));
    at_each_step(&mut world, &accepted, |world| {
        assert_eq!(world.refuse(&place(2, waits, &[(0, 2)])), [(AFFINITY, vec![0])]);
        let there = world.accept(&place(2, waits, &[(0, 4)]));
        world.binder.take_back(there.ticket);
    });
}

#[test]
fn spreads_count_a_replica_that_moves_where_it_will_be() {
    let mut world = racks();
    let spread = SpreadTerm { units: Vec::new(), topology: "rack".to_owned(), max_skew: 1, weight: 0 };
    let even = UnitAffinity { spread: vec![spread], ..UnitAffinity::default() };
    let revision = world.running(unit(1, 4, 1, demand(10, 0)).affinity(even), &[(0, 1)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    at_each_step(&mut world, &accepted, |world| {
        let there = world.accept(&place(1, revision, &[(1, 4), (2, 2)]));
        let refused = short(&there.rejections);
        assert_eq!(refused, [(RejectionReason::TopologySpread, vec![1])], "one is there as good as already");
        world.binder.take_back(there.ticket);
    });
    // Both racks have one, whoever comes first.
    let home = world.accept(&place(1, revision, &[(1, 2)]));
    world.commit(&home);
    assert!(world.accept(&next(1, revision, 0, 3)).rejections.is_empty());
}

#[test]
fn a_target_keeps_its_ports() {
    let mut world = World::new(3);
    let listens = || Demand { host_ports: vec!["80".parse().unwrap()], ..demand(10, 0) };
    let revision = world.running(unit(1, 1, 1, listens()), &[(0, 1)]);
    let waits = world.unit(unit(2, 2, 1, listens()));
    let accepted = world.moves(asked(1, 0, 0, 3));
    at_each_step(&mut world, &accepted, |world| {
        assert_eq!(world.refuse(&place(2, waits, &[(0, 3)])), [(RejectionReason::HostPort, vec![0])]);
    });
    assert!(world.accept(&next(1, revision, 0, 3)).rejections.is_empty());
}

#[test]
fn two_that_move_to_one_node_are_bound_there_one_after_the_other() {
    // The node has room for both, and for nobody else.
    let mut world = World::new(3);
    let one = world.running(unit(1, 1, 1, demand(500, 0)), &[(0, 1)]);
    let two = world.running(unit(2, 1, 1, demand(500, 0)), &[(0, 1)]);
    let moves = [1, 2].map(|unit| world.moves(asked(unit, 0, 0, 3)));
    for (unit, accepted) in (1..).zip(&moves) {
        world.show(accepted);
        world.left(unit, 0);
    }
    let first = world.accept(&next(1, one, 0, 3));
    assert!(first.rejections.is_empty(), "{:?}", first.rejections);
    // What the first one took is not read yet: what was held for it counts beside it.
    let second = world.accept(&next(2, two, 0, 3));
    assert!(second.rejections.is_empty(), "{:?}", second.rejections);
    let other = world.unit(unit(3, 1, 1, demand(100, 0)));
    assert_eq!(
        world.refuse(&place(3, other, &[(0, 3)])),
        [(RejectionReason::InsufficientResources, vec![0])]
    );
    world.binder.take_back(first.ticket);
    assert_eq!(
        world.refuse(&place(3, other, &[(0, 3)])),
        [(RejectionReason::InsufficientResources, vec![0])]
    );
    world.commit(&second);
    world.change(Change::Gone(RecordKey::Hold(moves[1].hold.id)));
    assert!(world.accept(&next(1, one, 0, 3)).rejections.is_empty(), "its own room is there yet");
}

#[test]
fn one_more_moves_to_a_node_on_which_another_one_is_being_bound() {
    let mut world = World::new(3);
    let one = world.running(unit(1, 1, 1, demand(500, 0)), &[(0, 1)]);
    world.running(unit(2, 1, 1, demand(500, 0)), &[(0, 1)]);
    let first = world.moves(asked(1, 0, 0, 3));
    world.show(&first);
    world.left(1, 0);
    assert!(world.accept(&next(1, one, 0, 3)).rejections.is_empty());
    world.moves(asked(2, 0, 0, 3));
}

#[test]
fn another_binder_judges_by_the_records_of_holds() {
    let mut world = racks();
    let mover = unit(1, 1, 1, demand(10, 0)).affinity(apart("app = db", "rack"));
    world.running(mover.clone(), &[(0, 1)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    for hold_first in [true, false] {
        let mut later = racks();
        let hold = Change::Put(Record::Hold(Arc::clone(&accepted.hold)));
        if hold_first {
            later.change(hold.clone());
        }
        later.unit(mover.clone());
        later.change(Change::RowsLoaded(UnitId(1), rows.clone()));
        if !hold_first {
            later.change(hold);
        }
        let waits = later.unit(app(unit(2, 1, 1, demand(10, 0)), "db"));
        assert_eq!(later.refuse(&place(2, waits, &[(0, 4)])), [(AFFINITY, vec![0])], "{hold_first}");
        assert!(later.accept(&place(2, waits, &[(0, 2)])).rejections.is_empty());
    }
}

#[test]
fn replicas_that_keep_apart_from_one_another_move_side_by_side() {
    let mut world = World::new(4);
    let record = unit(1, 3, 1, demand(10, 0)).affinity(apart("", NODE));
    let revision = world.running(record, &[(0, 1), (1, 2)]);
    let first = world.moves(asked(1, 0, 0, 3));
    assert_eq!(world.stays(asked(1, 1, 0, 3)).reason, AFFINITY);
    world.show(&first);
    world.left(1, 0);
    assert_eq!(world.refuse(&place(1, revision, &[(2, 3)])), [(AFFINITY, vec![2])]);
    // One that is placed elsewhere is not kept from the node of its own target.
    let elsewhere = world.accept(&next(1, revision, 0, 4));
    assert_eq!(world.refuse(&place(1, revision, &[(2, 3)])), [(AFFINITY, vec![2])], "its hold is there yet");
    world.commit(&elsewhere);
    world.change(Change::Gone(RecordKey::Hold(first.hold.id)));
    assert!(world.accept(&place(1, revision, &[(2, 3)])).rejections.is_empty());
}
