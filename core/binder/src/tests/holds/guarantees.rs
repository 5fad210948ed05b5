//! Claims on queues that have a guarantee, and for them, and what is promised of what they borrow.

use super::*;
use godel_domain::records::Record;

#[test]
fn a_queue_does_not_borrow_what_is_only_being_bound() {
    let mut world = World::new(2);
    let spec = QueueSpec { min: [(CPU.to_owned(), 1_000)].into(), ..QueueSpec::new("lender") };
    world.change(Change::Put(Record::Queue(Arc::new(spec))));
    let of_lender = |id, n| unit(id, n, 1, demand(1000, 0)).queue("lender");
    let low = world.unit(of_lender(1, 2));
    let accepted = world.accept(&place(1, low, &[(0, 1)]));
    world.commit(&accepted);
    let high = unit(2, 1, 1, demand(1000, 0)).priority(9);
    let revision = world.unit(high);
    let claim = Decision {
        claim: Claim::from(Preemption {
            nodes: vec![NodeVictims {
                group: 0,
                node: NodeId(1),
                victims: vec![RunningUnitId::new(UnitId(1), 0, 0)],
                holds: Vec::new(),
            }],
            others: Vec::new(),
        }),
        ..place(2, revision, &[(0, 1)])
    };
    assert_eq!(world.refuse(&claim), [(RejectionReason::VictimGone, vec![0])], "within its guarantee");
    let more = world.accept(&place(1, low, &[(1, 2)]));
    assert_eq!(world.refuse(&claim), [(RejectionReason::VictimGone, vec![0])], "that may be refused yet");
    world.commit(&more);
    assert_eq!(world.accept(&claim).evictions[0].0, UnitId(1));
}

#[test]
fn a_gang_that_borrows_in_part_leaves_at_once() {
    for min_member in [1, 2] {
        let mut world = World::new(2);
        let low = lender(&mut world, 1_000, unit(1, 2, min_member, demand(1000, 0)));
        let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
        world.commit(&accepted);
        let high = world.unit(unit(2, 1, 1, demand(1000, 0)).priority(9));
        let member = |ordinal| RunningUnitId::new(UnitId(1), ordinal, 0);
        let claim = NodeVictims { group: 0, node: NodeId(1), victims: vec![member(0)], holds: Vec::new() };
        let preemption = Preemption { nodes: vec![claim], others: vec![member(1)] };
        let claim = Decision { claim: preemption.into(), ..place(2, high, &[(0, 1)]) };
        if min_member == 2 {
            assert_eq!(world.accept(&claim).evictions[0].1.ordinals, [0, 1]);
        } else {
            assert_eq!(world.refuse(&claim), [(RejectionReason::VictimGone, vec![0])], "the last is owed");
        }
    }
}

#[test]
fn groups_are_held_for_apart_and_claim_together() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)).priority(9));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let two = unit(2, 1, 1, demand(700, 0));
    let mut other = two.spec.task_groups[0].clone();
    other.name = "other".to_owned();
    other.template.demand = demand(300, 0);
    // Just what it asks for.
    let revision = lender(&mut world, 1_000, two.group(other));
    let victim = |ordinal| vec![RunningUnitId::new(UnitId(1), ordinal, 0)];
    let claims = vec![
        NodeVictims { group: 0, node: NodeId(1), victims: victim(0), holds: Vec::new() },
        NodeVictims { group: 1, node: NodeId(2), victims: victim(1), holds: Vec::new() },
    ];
    let preemption = Preemption { nodes: claims, others: Vec::new() };
    let mut claim = Decision { claim: preemption.into(), ..place(2, revision, &[(0, 1)]) };
    claim.groups.push(GroupPlacement { group: 1, ..place(2, revision, &[(1, 2)]).groups[0].clone() });
    let accepted = world.accept(&claim);
    let held: Vec<_> = accepted.holds.iter().map(|hold| (hold.group, hold.node, &hold.victims)).collect();
    assert_eq!(held, [(0, NodeId(1), &victim(0)), (1, NodeId(2), &victim(1))]);
    world.commit_hold(&accepted);
    world.statuses(1, &[0, 1], Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    let of_groups: Vec<_> = bound.binds.iter().map(|bind| (bind.group, &bind.ordinals[..])).collect();
    assert_eq!(of_groups, [(0, &[0][..]), (1, &[1][..])]);
}

#[test]
fn who_leaves_is_promised_until_the_rows_say_it_and_counts_once() {
    let mut world = World::new(1);
    let low = lender(&mut world, 500, unit(1, 4, 1, demand(250, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1), (2, 1), (3, 1)]));
    world.commit(&accepted);
    let high = unit(2, 1, 1, demand(250, 0)).priority(9);
    let revision = world.unit(high.clone());
    assert_eq!(borrowed(&world), 500);
    let accepted = world.hold(&high, revision, 1);
    assert_eq!(borrowed(&world), 250, "promised");
    world.binder.take_back(accepted.ticket);
    assert_eq!(borrowed(&world), 500, "refused");
    let accepted = world.hold(&high, revision, 1);
    let (victim, evict) = accepted.evictions[0].clone();
    world.change(Change::Rows(victim, RunChange::Evict(evict)));
    assert_eq!(borrowed(&world), 250, "told, before the answer says so");
    world.commit_hold(&accepted);
    assert_eq!(borrowed(&world), 250, "told");
    world.statuses(1, &accepted.evictions[0].1.ordinals, Phase::Stopped);
    assert_eq!(borrowed(&world), 250, "gone");
}
