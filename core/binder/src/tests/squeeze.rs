//! Best-effort running units: what they get, and when they have to leave.

use godel_domain::{allocation::DeviceSet, node::NodeUsage, records::Record};

use super::*;

/// Who squeezes, besides units.
const BY_USAGE: &str = "use of guaranteed running units on the node";
const BY_NODE: &str = "less room on the node";

/// For many running units.
fn roomy(report: NodeReport) -> NodeReport {
    NodeReport { max_running_units: 10_000, ..report }
}

fn best_effort(id: u64, priority: i32, cpu: i64) -> UnitRecord {
    unit(id, 4, 1, demand(cpu, 0)).pool(Pool::BestEffort).priority(priority)
}

impl World {
    fn usage(&mut self, cpu: i64, as_of_ms: i64) {
        let reserved = Resources::new([(CPU, cpu)]).unwrap();
        self.change(Change::Put(Record::NodeUsage(NodeUsage {
            id: NodeId(1),
            reserved,
            as_of_ms,
            ..NodeUsage::default()
        })));
    }

    /// Binds ordinals of a unit to node 1.
    fn bind(&mut self, unit: u64, revision: u64, ordinals: std::ops::Range<u32>) {
        let places: Vec<(u32, u32)> = ordinals.map(|ordinal| (ordinal, 1)).collect();
        let accepted = self.accept(&place(unit, revision, &places));
        assert!(accepted.rejections.is_empty(), "{:?}", accepted.rejections);
        self.commit(&accepted);
    }

    fn squeezed(&mut self, now_ms: i64) -> Vec<(u64, Vec<u32>, String)> {
        self.binder.on_wall(now_ms);
        let evictions = self.binder.take_squeezes();
        for (unit, evict) in &evictions {
            assert_eq!(evict.reason, EvictionReason::Squeezed);
            self.change(Change::Rows(*unit, RunChange::Evict(evict.clone())));
        }
        evictions.into_iter().map(|(unit, evict)| (unit.0, evict.ordinals, evict.by)).collect()
    }
}

/// A node of 1,000 on which guaranteed unit 1 has 800 and uses 100, and best-effort unit 2 runs with 2 × 300.
fn overcommitted() -> World {
    let mut world = World::new(1);
    let online = world.unit(unit(1, 4, 1, demand(400, 0)));
    let offline = world.unit(best_effort(2, 0, 300));
    world.bind(1, online, 0..2);
    world.usage(100, 1);
    world.bind(2, offline, 0..2);
    world
}

#[test]
fn best_effort_gets_what_is_not_used() {
    let mut world = World::new(1);
    let online = world.unit(unit(1, 4, 1, demand(400, 0)));
    let offline = world.unit(best_effort(2, 0, 300));
    world.bind(1, online, 0..2);
    // Without a known use requests count.
    let reason = |world: &mut World, unit, revision, ordinal| match world.binder.check(&place(
        unit,
        revision,
        &[(ordinal, 1)],
    )) {
        Verdict::Reject(rejections) => Some(rejections[0].reason),
        Verdict::Bind(accepted) => {
            world.binder.take_back(accepted.ticket);
            None
        }
        Verdict::Wait(wait) => panic!("{wait:?}"),
    };
    assert_eq!(reason(&mut world, 2, offline, 0), Some(RejectionReason::InsufficientResources));
    // A use of a time before the binding says nothing of it.
    world.usage(100, 0);
    assert_eq!(reason(&mut world, 2, offline, 0), Some(RejectionReason::InsufficientResources));
    world.usage(100, 1);
    world.bind(2, offline, 0..3);
    assert_eq!(reason(&mut world, 2, offline, 3), Some(RejectionReason::InsufficientResources));
    // The guaranteed room does not see them: 200 of 1,000 are left of it, and not 400.
    assert_eq!(reason(&mut world, 1, online, 2), Some(RejectionReason::InsufficientResources));
    let small = world.unit(unit(3, 1, 1, demand(200, 0)));
    assert_eq!(reason(&mut world, 3, small, 0), None);
}

#[test]
fn a_master_is_squeezed_after_all_others() {
    let mut world = World::new(1);
    let online = world.unit(unit(1, 4, 1, demand(400, 0)));
    // The application has the lowest priority, and came last.
    let other = world.unit(best_effort(2, 9, 300));
    let app = world.unit(best_effort(3, 0, 300).class(godel_domain::unit::WorkloadClass::Yarn));
    world.usage(100, 1);
    world.bind(2, other, 0..1);
    world.bind(3, app, 0..2);
    world.binder.lead(Epoch(1), 60_000, 0);
    world.bind(1, online, 0..2);
    world.usage(100, 2);
    let squeezed = |squeezed: Vec<(u64, Vec<u32>, String)>| {
        squeezed.into_iter().map(|(unit, ordinals, _)| (unit, ordinals)).collect::<Vec<_>>()
    };
    world.usage(200, 3);
    assert_eq!(squeezed(world.squeezed(5_000)), [(3, vec![1])]);
    world.usage(600, 4);
    assert_eq!(squeezed(world.squeezed(9_000)), [(2, vec![0])]);
    world.usage(900, 5);
    assert_eq!(squeezed(world.squeezed(15_000)), [(3, vec![0])]);
}

#[test]
fn devices_are_not_overcommitted() {
    let mut world = World::new(1);
    let online = world.unit(unit(1, 1, 1, demand(100, 600)));
    let offline = world.unit(unit(2, 2, 1, demand(0, 400)).pool(Pool::BestEffort));
    let on_device = |unit, revision, ordinal| {
        let mut decision = place(unit, revision, &[(ordinal, 1)]);
        decision.groups[0].devices = vec![DeviceSet(1)];
        decision
    };
    let accepted = world.accept(&on_device(1, online, 0));
    world.commit(&accepted);
    world.usage(0, 1);
    let accepted = world.accept(&on_device(2, offline, 0));
    world.commit(&accepted);
    let Verdict::Reject(rejections) = world.binder.check(&on_device(2, offline, 1)) else {
        panic!("a device taken twice")
    };
    assert_eq!(rejections[0].reason, RejectionReason::DeviceTaken);
}

#[test]
fn a_binding_squeezes_after_the_grace_and_names_itself() {
    let mut world = overcommitted();
    world.binder.lead(Epoch(1), 60_000, 500);
    let urgent = world.unit(unit(3, 1, 1, demand(200, 0)));
    world.binder.on_wall(1_000);
    assert_eq!((world.binder.n_over(), world.binder.has_squeezes()), (0, false));
    // 100 + 2 × 300 are taken, and the request of the new one on top, which is not in the use yet.
    world.time_ms = 2;
    world.bind(3, urgent, 0..1);
    assert_eq!(world.binder.n_over(), 0);
    world.usage(250, 1);
    assert_eq!((world.binder.n_over(), world.squeezed(1_499)), (1, vec![]));
    world.usage(150, 1);
    assert_eq!(world.squeezed(1_500), vec![], "it fits again");
    assert_eq!(world.binder.n_over(), 0);
    world.usage(350, 1);
    assert_eq!(world.squeezed(1_999), vec![]);
    assert_eq!(world.squeezed(2_000), [(2, vec![0], BY_USAGE.to_owned())], "equal ones in order");
    assert_eq!(world.squeezed(10_000), vec![], "whoever leaves counts no longer");
    assert_eq!(world.binder.n_over(), 0);
}

#[test]
fn a_binding_is_named_also_after_an_earlier_usage_report() {
    let mut world = overcommitted();
    world.binder.lead(Epoch(1), 60_000, 500);
    let urgent = world.unit(unit(3, 1, 1, demand(200, 0)));
    world.binder.on_wall(1_000);
    world.time_ms = 2;
    let accepted = world.accept(&place(3, urgent, &[(0, 1)]));
    world.usage(250, 1);
    assert_eq!(world.binder.n_over(), 1, "what is not committed yet counts");
    world.commit(&accepted);
    assert_eq!(world.squeezed(1_500), [(2, vec![0], "unit 3".to_owned())]);
}

#[test]
fn the_lowest_rank_leaves_first_and_then_the_latest() {
    let mut world = World::new(1);
    world.binder.lead(Epoch(1), 60_000, 0);
    let low = world.unit(best_effort(2, -5, 200));
    let high = world.unit(best_effort(3, 5, 200));
    let kept = world.unit(best_effort(4, -9, 200).preemptible(false));
    world.bind(4, kept, 0..1);
    world.bind(3, high, 0..1);
    world.bind(2, low, 0..2);
    let online = world.unit(unit(1, 3, 1, demand(300, 0)));
    world.bind(1, online, 0..1);
    assert_eq!(world.squeezed(1), [(2, vec![0], "unit 1".to_owned())]);
    world.bind(1, online, 1..2);
    assert_eq!(world.squeezed(2_000), [(2, vec![1], "unit 1".to_owned())]);
    world.bind(1, online, 2..3);
    let both = [(3, vec![0], "unit 1".to_owned()), (4, vec![0], "unit 1".to_owned())];
    assert_eq!(world.squeezed(4_000), both, "who is not preemptible goes last");
}

#[test]
fn a_new_leader_finds_who_is_over() {
    let mut world = overcommitted();
    world.usage(500, 1);
    world.binder.take_back_all();
    world.binder.lead(Epoch(2), 60_000, 100);
    world.binder.on_wall(1_000);
    assert!(world.binder.has_squeezes());
    assert_eq!(world.squeezed(1_000), vec![], "its grace begins anew");
    assert_eq!(world.squeezed(1_100), [(2, vec![0], BY_USAGE.to_owned())]);
}

#[test]
fn a_new_leader_finds_excess_though_asked_before_it_has_read() {
    let world = overcommitted();
    let mut other = World::new(1);
    other.usage(500, 1);
    other.binder.take_back_all();
    other.binder.lead(Epoch(2), 60_000, 100);
    assert_eq!(other.squeezed(1_000), vec![], "nobody runs");
    for id in [1, 2] {
        let rows = world.binder.cluster().rows().of(UnitId(id)).unwrap().clone();
        other.change(Change::RowsLoaded(UnitId(id), rows));
    }
    assert!(other.binder.has_squeezes());
    assert_eq!(other.squeezed(1_000), vec![], "its grace begins then");
    assert_eq!(other.squeezed(1_100), [(2, vec![0], BY_USAGE.to_owned())]);
}

#[test]
fn not_all_leave_in_one_go_and_the_rest_follows() {
    let mut world = World::new(2);
    world.binder.lead(Epoch(1), 60_000, 0);
    for (id, node, n) in [(1, 1, 4_096), (2, 2, 1)] {
        world.change(Change::Put(Record::NodeReport(roomy(report(node, 5_000, 0)))));
        let spec = unit(id, n, 1, demand(1, 0)).pool(Pool::BestEffort);
        let revision = world.unit(spec);
        let places: Vec<(u32, u32)> = (0..n).map(|ordinal| (ordinal, node)).collect();
        let accepted = world.accept(&place(id, revision, &places));
        world.commit(&accepted);
    }
    for node in [1, 2] {
        world.change(Change::Put(Record::NodeReport(roomy(report(node, 0, 0)))));
    }
    assert_eq!(world.squeezed(1), [(1, (0..4_096).collect(), BY_NODE.to_owned())]);
    assert!(world.binder.has_squeezes());
    assert_eq!(world.squeezed(1), [(2, vec![0], BY_NODE.to_owned())]);
}
