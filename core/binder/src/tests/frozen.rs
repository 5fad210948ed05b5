//! Records that cannot be read: what they are about is neither bound nor given away, and thaws.

use godel_domain::{
    node::NodeAllocatable,
    queue_spec::PriorityClass,
    records::{Record, RecordKey},
    unreadable::{AffectedNodes, Unreadable},
};
use godel_testkit::BuildUnit as _;

use super::{
    budgets,
    holds::filled,
    queues::{in_queue, queue},
    reservations::{owner, reservation},
    *,
};

impl World {
    fn unreadable(&mut self, subject: RecordKey) {
        self.change(Change::Unreadable(Box::new(Unreadable::new(subject, "field", "problem"))));
    }

    /// Of a decision that binds nothing: each reason, and what it says.
    fn why(&mut self, decision: &Decision) -> Vec<(RejectionReason, String)> {
        match self.binder.check(decision) {
            Verdict::Reject(rejections) => {
                rejections.into_iter().map(|rejection| (rejection.reason, rejection.detail)).collect()
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    fn evictable(&self, unit: u64, reason: EvictionReason) -> bool {
        !self.binder.evictions(&[(UnitId(unit), eviction(&[0], reason))]).is_empty()
    }
}

fn frozen_queue(what: &str) -> Vec<(RejectionReason, String)> {
    vec![(RejectionReason::QueueFull, format!("{what} cannot be read: field: problem"))]
}

#[test]
fn a_node_with_an_unreadable_record_keeps_what_runs_there() {
    let node = NodeId(1);
    for subject in [
        RecordKey::NodeReport(node),
        RecordKey::NodeSpec(node),
        RecordKey::NodeAllocatable(node),
        RecordKey::NodeUsage(node),
    ] {
        let mut world = World::new(2);
        let revision = world.unit(unit(1, 3, 1, demand(400, 0)));
        let accepted = world.accept(&place(1, revision, &[(0, 1)]));
        world.commit(&accepted);
        let is_report = matches!(subject, RecordKey::NodeReport(_));
        world.unreadable(subject.clone());
        let refused = [(RejectionReason::NodeNotReady, "a record of the node cannot be read".to_owned())];
        assert_eq!(world.why(&place(1, revision, &[(1, 1)])), refused, "{subject}");
        let elsewhere = world.accept(&place(1, revision, &[(2, 2)]));
        world.binder.take_back(elsewhere.ticket);
        assert!(
            !world.evictable(1, EvictionReason::Drained) && !world.evictable(1, EvictionReason::Squeezed)
        );
        if is_report {
            assert!(!world.evictable(1, EvictionReason::NodeLost), "whether it is there nobody knows");
        }
        match subject {
            RecordKey::NodeReport(_) => world.change(Change::Put(Record::NodeReport(report(1, 1000, 1)))),
            RecordKey::NodeSpec(_) => world.change(Change::Put(Record::NodeSpec(super::node(1)))),
            RecordKey::NodeAllocatable(_) => {
                world.change(Change::Put(Record::NodeAllocatable(NodeAllocatable {
                    id: node,
                    amounts: Resources::new([(CPU, 900)]).unwrap(),
                })))
            }
            _ => world.change(Change::Gone(subject)),
        };
        let _ = world.accept(&place(1, revision, &[(1, 1)]));
    }
}

#[test]
fn an_unreadable_unit_keeps_what_runs_and_places_no_more() {
    let mut world = World::new(3);
    world.change(queue("a", &[(CPU, 1_000)], 0));
    let spec = in_queue("a", unit(1, 2, 1, demand(600, 0)));
    let revision = world.unit(spec.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&accepted);
    let other = world.unit(in_queue("a", unit(2, 1, 1, demand(600, 0))));
    for is_listed in [false, true] {
        if is_listed {
            // A new binder never read it: its rows say whose queue pays.
            let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
            world.binder.reset();
            for id in 1..=3 {
                world.change(Change::Put(Record::NodeSpec(node(id))));
                world.change(Change::Put(Record::NodeReport(report(id, 1000, 1))));
            }
            world.change(queue("a", &[(CPU, 1_000)], 0));
            world.unreadable(RecordKey::Unit(UnitId(1)));
            world.change(Change::RowsLoaded(UnitId(1), rows));
        } else {
            world.unreadable(RecordKey::Unit(UnitId(1)));
        }
        assert_eq!(world.why(&place(1, revision, &[(1, 2)])), frozen_queue("unit 1"));
        for reason in [EvictionReason::Drained, EvictionReason::Squeezed, EvictionReason::ScaledIn] {
            assert!(!world.evictable(1, reason), "{reason:?}");
        }
        let other = if is_listed { world.unit(in_queue("a", unit(2, 1, 1, demand(600, 0)))) } else { other };
        let full = world.why(&place(2, other, &[(0, 2)]));
        assert_eq!(full, [(RejectionReason::QueueFull, "queue a is at its maximum of cpu".to_owned())]);
    }
    // It comes back, and what was sent away meanwhile with it.
    world.evict(1, &[0], EvictionReason::NodeLost);
    assert!(world.binder.take_requeues(9).is_empty());
    let again = world.unit(spec);
    assert_eq!(world.binder.take_requeues(9).len(), 1);
    let _ = world.accept(&place(1, again, &[(1, 2)]));
}

#[test]
fn unreadable_queues_and_classes_bind_and_preempt_nothing() {
    let (name, description) = ("gold".to_owned(), String::new());
    let gold = PriorityClass { name, value: 9, preemptible: true, description };
    for (subject, thaw, what) in [
        (RecordKey::Queue("a".to_owned()), queue("a", &[], 0), "queue a"),
        (
            RecordKey::PriorityClass("gold".to_owned()),
            Change::Put(Record::PriorityClass(gold.clone())),
            "priority class gold",
        ),
    ] {
        let (mut world, high, seeks) = filled();
        let claim = super::holds::claims(&world.binder, &high, seeks, &[(0, 0)]).expect("there are victims");
        world.change(Change::Put(Record::NodeSpec(node(2))));
        world.change(Change::Put(Record::NodeReport(report(2, 1000, 1))));
        let concerned = unit(3, 1, 1, demand(10, 0)).priority_class("gold");
        let concerned = world.unit(in_queue("a.b", concerned));
        let other = world.unit(unit(4, 1, 1, demand(10, 0)));
        world.unreadable(subject);
        assert_eq!(world.why(&place(3, concerned, &[(0, 2)])), frozen_queue(what));
        let served = world.accept(&place(4, other, &[(0, 2)]));
        world.binder.take_back(served.ticket);
        let kept = vec![(RejectionReason::VictimGone, format!("{what} cannot be read: field: problem"))];
        assert_eq!(world.why(&claim), kept);
        world.change(thaw);
        let _ = world.accept(&place(3, concerned, &[(0, 2)]));
    }
}

#[test]
fn while_a_budget_cannot_be_read_nobody_is_preempted_or_drained() {
    let (mut world, seekers) = budgets::filled(1);
    let decision = budgets::decide(&world, &seekers[0]).unwrap();
    let budget = world.binder.cluster().taken().budgets().get("web").unwrap().spec.clone();
    world.unreadable(RecordKey::Budget("web".to_owned()));
    let kept =
        (RejectionReason::VictimGone, "disruption budget web cannot be read: field: problem".to_owned());
    assert_eq!(world.why(&decision), [kept]);
    assert!(budgets::drained(&mut world, 2, &[0]).is_none());
    // Other reasons are no business of budgets.
    assert!(world.evictable(2, EvictionReason::ScaledIn));
    world.change(Change::Put(Record::Budget(budget)));
    let _ = world.accept(&decision);
    assert!(budgets::drained(&mut world, 2, &[0]).is_none(), "one of two may leave");
}

#[test]
fn slots_of_an_unreadable_reservation_stay_and_stay_closed() {
    let mut world = World::new(1);
    world.reserve(reservation(1, demand(600, 0)));
    assert_eq!(world.slots(), [(1, None)]);
    let revision = world.unit(owner(1, 1, demand(600, 0)));
    world.unreadable(RecordKey::Reservation("kept".to_owned()));
    assert_eq!((world.work(), world.slots()), (vec![], vec![(1, None)]));
    let short = [(RejectionReason::InsufficientResources, vec![0])];
    assert_eq!(world.refuse(&place(1, revision, &[(0, 1)])), short);
    world.change(Change::Put(Record::Reservation(Arc::new(reservation(1, demand(600, 0))))));
    assert_eq!((world.work(), world.slots()), (vec![], vec![(1, None)]));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.binder.take_back(accepted.ticket);
    // Gone it gives its slots back, as ever.
    world.unreadable(RecordKey::Reservation("kept".to_owned()));
    world.change(Change::Gone(RecordKey::Reservation("kept".to_owned())));
    assert_eq!((world.work(), world.slots()), (vec!["changed"], vec![]));
}

#[test]
fn an_unreadable_hold_closes_its_node_unit_and_queue() {
    let (mut world, high, revision) = filled();
    let accepted = world.hold(&high, revision, 1);
    world.commit_hold(&accepted);
    world.statuses(1, &[0, 1], Phase::Stopped);
    let hold = Arc::clone(&accepted.holds[0]);
    let unreadable = Unreadable {
        nodes: AffectedNodes::Of(vec![hold.node]),
        unit: Some(hold.unit),
        queue: Some("default".to_owned()),
        ..Unreadable::new(RecordKey::Hold(hold.id), "pool", "9")
    };
    world.change(Change::Unreadable(Box::new(unreadable)));
    assert!(world.binder.take_hold_work().is_empty(), "its victims have left, and still it is not bound");
    world.change(Change::Put(Record::NodeSpec(node(2))));
    world.change(Change::Put(Record::NodeReport(report(2, 1000, 1))));
    let third = world.unit(unit(3, 2, 1, demand(10, 0)));
    let refused = [(RejectionReason::NodeNotReady, vec![0])];
    assert_eq!(world.refuse(&place(3, third, &[(0, 1)])), refused);
    assert_eq!(world.refuse(&place(2, revision, &[(0, 2)])), [(RejectionReason::QueueFull, vec![0])]);
    let elsewhere = world.accept(&place(3, third, &[(1, 2)]));
    world.binder.take_back(elsewhere.ticket);
    // Under a maximum what is held counts, and nobody knows how much that is.
    world.change(queue("default", &[(CPU, 5_000)], 0));
    assert_eq!(world.refuse(&place(3, third, &[(1, 2)])), [(RejectionReason::QueueFull, vec![1])]);
    world.change(Change::Put(Record::Hold(hold)));
    assert!(matches!(world.binder.take_hold_work().as_slice(), [HoldWork::Bind(_)]));
}

#[test]
fn an_unreadable_binding_closes_its_nodes_and_its_unit() {
    let mut world = World::new(3);
    let revision = world.unit(unit(1, 4, 1, demand(100, 0)));
    let other = world.unit(unit(2, 4, 1, demand(100, 0)));
    let missed = Unreadable {
        nodes: AffectedNodes::Of(vec![NodeId(2)]),
        ..Unreadable::new(RecordKey::Rows(UnitId(1)), "pool", "9")
    };
    world.change(Change::Unreadable(Box::new(missed)));
    assert_eq!(world.refuse(&place(1, revision, &[(0, 1)])), [(RejectionReason::QueueFull, vec![0])]);
    assert_eq!(world.refuse(&place(2, other, &[(0, 2)])), [(RejectionReason::NodeNotReady, vec![0])]);
    let accepted = world.accept(&place(2, other, &[(0, 1)]));
    world.commit(&accepted);
    // What follows on it is not applied, and its nodes are closed as well.
    let bind = Bind { ordinals: vec![1], nodes: vec![NodeId(3)], ..Bind::default() };
    world.change(Change::Rows(UnitId(1), RunChange::Bind(bind)));
    assert!(world.binder.cluster().rows().of(UnitId(1)).is_none());
    assert_eq!(world.refuse(&place(2, other, &[(1, 3)])), [(RejectionReason::NodeNotReady, vec![1])]);
    world.change(Change::RowsLoaded(UnitId(1), RunningUnits::default()));
    let _ = world.accept(&place(2, other, &[(1, 3)]));
}

#[test]
fn a_change_without_a_key_stops_decisions_until_the_next_list() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 2, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&accepted);
    world.unreadable(RecordKey::Unknown);
    assert_eq!(world.why(&place(1, revision, &[(1, 2)])), frozen_queue("unknown record"));
    for reason in [EvictionReason::Drained, EvictionReason::NodeLost, EvictionReason::ScaledIn] {
        assert!(!world.evictable(1, reason));
    }
    world.binder.reset();
    assert!(world.binder.cluster().nodes().frozen().is_empty());
}
