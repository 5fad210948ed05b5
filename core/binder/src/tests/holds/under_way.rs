//! Claims beside others whose transactions are under way.

use godel_domain::records::Record;
use godel_placement::preempt::{Lent, Preference, SoFar, VictimQuery};

use super::*;

#[test]
fn a_queue_does_not_borrow_what_is_only_being_held() {
    let mut world = World::new(2);
    let owed = lender(&mut world, 1_000, unit(1, 1, 1, demand(1000, 0)));
    let other = world.unit(unit(4, 1, 1, demand(1000, 0)));
    for (id, revision, node) in [(1, owed, 1), (4, other, 2)] {
        let accepted = world.accept(&place(id, revision, &[(0, node)]));
        world.commit(&accepted);
    }
    let high = |id| unit(id, 1, 1, demand(1000, 0)).priority(9);
    let (more, seeker) = (lender(&mut world, 1_000, high(3)), world.unit(high(2)));
    let claim = |id, revision, node, victim| {
        let victims = vec![RunningUnitId::new(UnitId(victim), 0, 0)];
        let claims = vec![NodeVictims { group: 0, node: NodeId(node), victims, holds: Vec::new() }];
        let preemption = Preemption { nodes: claims, others: Vec::new() };
        Decision { claim: preemption.into(), ..place(id, revision, &[(0, node)]) }
    };
    let (of_owed, of_other) = (claim(2, seeker, 1, 1), claim(3, more, 2, 4));
    assert_eq!(world.refuse(&of_owed), [(RejectionReason::VictimGone, vec![0])], "within its guarantee");
    let held = world.accept(&of_other);
    assert_eq!(world.refuse(&of_owed), [(RejectionReason::VictimGone, vec![0])], "that may be refused yet");
    world.commit_hold(&held);
    assert_eq!(world.accept(&of_owed).evictions[0].0, UnitId(1));
}

#[test]
fn a_claim_does_not_wait_where_enough_of_the_unit_stays() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 4, 2, demand(500, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1), (2, 2), (3, 2)]));
    world.commit(&accepted);
    for (id, node, ordinals) in [(2, 1, [0, 1]), (3, 2, [2, 3])] {
        let revision = world.unit(unit(id, 1, 1, demand(1000, 0)).priority(9));
        let victims = ordinals.map(|ordinal| RunningUnitId::new(UnitId(1), ordinal, 0)).to_vec();
        let claims = vec![NodeVictims { group: 0, node: NodeId(node), victims, holds: Vec::new() }];
        let preemption = Preemption { nodes: claims, others: Vec::new() };
        let claim = Decision { claim: preemption.into(), ..place(id, revision, &[(0, node)]) };
        assert_eq!(world.accept(&claim).evictions[0].1.ordinals, ordinals, "two stay, or none");
    }
}

#[test]
fn a_claim_for_all_that_is_left_of_a_unit_waits_for_no_other() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 4, 2, demand(500, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1), (2, 2), (3, 2)]));
    world.commit(&accepted);
    let mut claim = |id, node, ordinals: [u32; 2]| {
        let revision = world.unit(unit(id, 1, 1, demand(1000, 0)).priority(9));
        let victims = ordinals.map(|ordinal| RunningUnitId::new(UnitId(1), ordinal, 0)).to_vec();
        let claims = vec![NodeVictims { group: 0, node: NodeId(node), victims, holds: Vec::new() }];
        let preemption = Preemption { nodes: claims, others: Vec::new() };
        Decision { claim: preemption.into(), ..place(id, revision, &[(0, node)]) }
    };
    let (first, second) = (claim(2, 1, [0, 1]), claim(3, 2, [2, 3]));
    let _ = world.accept(&first);
    // They end by themselves: whatever becomes of the first, nobody is left of the unit.
    world.statuses(1, &[0, 1], Phase::Succeeded);
    assert_eq!(world.accept(&second).evictions[0].1.ordinals, [2, 3]);
}

#[test]
fn nobody_leaves_twice_for_decisions_under_way() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 2, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let member = |ordinal| RunningUnitId::new(UnitId(1), ordinal, 0);
    let mut claim = |id, node, victim, others| {
        let revision = world.unit(unit(id, 1, 1, demand(1000, 0)).priority(9));
        let claims = vec![NodeVictims {
            group: 0,
            node: NodeId(node),
            victims: vec![member(victim)],
            holds: Vec::new(),
        }];
        let preemption = Preemption { nodes: claims, others };
        Decision { claim: preemption.into(), ..place(id, revision, &[(0, node)]) }
    };
    let whole = claim(2, 1, 0, vec![member(1)]);
    let (of_victim, of_other) = (claim(3, 1, 0, vec![member(1)]), claim(4, 2, 1, Vec::new()));
    let gone = [(RejectionReason::VictimGone, vec![0])];
    let held = world.accept(&whole);
    assert_eq!((world.refuse(&of_victim), world.refuse(&of_other)), (gone.to_vec(), gone.to_vec()));
    world.commit_hold(&held);
    assert_eq!((world.refuse(&of_victim), world.refuse(&of_other)), (gone.to_vec(), gone.to_vec()));
}

#[test]
fn a_device_is_in_use_until_its_victim_has_left() {
    let mut world = World::new(1);
    world.change(Change::Put(Record::NodeReport(report(1, 1000, 2))));
    let mut both = demand(100, 1_000);
    both.devices[0].count = 2;
    let low = world.unit(unit(1, 1, 1, both));
    let bind = |id, revision, mask| {
        let mut decision = place(id, revision, &[(0, 1)]);
        decision.groups[0].devices = vec![DeviceSet(mask)];
        decision
    };
    let accepted = world.accept(&bind(1, low, 0b11));
    world.commit(&accepted);
    let high = |id| unit(id, 1, 1, demand(100, 1_000)).priority(9);
    let (first, other) = (world.unit(high(2)), world.unit(high(3)));
    let held = world.hold(&high(2), first, 1);
    let nobody = Preemption {
        nodes: vec![NodeVictims { group: 0, node: NodeId(1), victims: Vec::new(), holds: Vec::new() }],
        others: Vec::new(),
    };
    let claim = Decision { claim: nobody.into(), ..bind(3, other, 0b10) };
    let in_use = [(RejectionReason::DeviceTaken, vec![0])];
    assert_eq!(
        (world.refuse(&bind(3, other, 0b10)), world.refuse(&claim)),
        (in_use.to_vec(), in_use.to_vec())
    );
    // A search beside the decision for unit 2 says no better.
    let mut cluster = world.binder.cluster().clone();
    let shape = cluster.shape(&demand(100, 1_000), Pool::Guaranteed);
    let (priority, pool) = (9, Pool::Guaranteed);
    let seeker = Seeker { unit: UnitId(3), priority, pool, now_ms: 1, spares_masters: false };
    let claimed = &[(UnitId(1), 0)].into_iter().collect();
    let (so_far, lent) = (&SoFar::default(), &Lent::default());
    let query = VictimQuery { seeker: &seeker, shape, rights: None, claimed, so_far, lent };
    assert!(preempt::search_lent(&mut cluster, &query, [1], 1, &Preference::default()).places.is_empty());
    world.commit_hold(&held);
    assert_eq!(
        (world.refuse(&bind(3, other, 0b10)), world.refuse(&claim)),
        (in_use.to_vec(), in_use.to_vec())
    );
    world.statuses(1, &[0], Phase::Stopped);
    world.accept(&bind(3, other, 0b10));
}
