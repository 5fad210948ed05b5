//! Maxima of queues.

use godel_domain::{
    allocation::DeviceSet,
    priority_classes::PriorityClasses,
    queue_spec::PriorityClass,
    records::{Record, RecordKey},
    running_units::PreemptionTerms,
    unit::{Template, WorkloadClass},
};

use super::*;

pub(super) fn queue(path: &str, max: &[(&str, i64)], max_running_units: u32) -> Change {
    let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    Change::Put(Record::Queue(Arc::new(QueueSpec { max, max_running_units, ..QueueSpec::new(path) })))
}

pub(super) fn in_queue(path: &str, record: UnitRecord) -> UnitRecord {
    record.queue(path)
}

#[test]
fn a_maximum_holds_for_all_that_is_below_it() {
    let mut world = World::new(4);
    let b = world.unit(in_queue("a.b", unit(1, 4, 1, demand(300, 0))));
    let c = world.unit(in_queue("a.c", unit(2, 4, 1, demand(200, 500))));
    world.change(queue("a", &[(CPU, 1_000), ("gpu", 700)], 0));
    let first = world.accept(&place(1, b, &[(0, 1), (1, 2)]));
    // Under way, committed, read: 600 of 1,000 are taken all along.
    let mut second = place(2, c, &[(0, 3), (1, 4)]);
    second.groups[0].devices = vec![DeviceSet(1), DeviceSet(1)];
    let accepted = world.accept(&second);
    assert_eq!(accepted.binds[0].ordinals, [0]);
    let refused = &accepted.rejections[0];
    assert_eq!((refused.reason, &refused.ordinals[..]), (RejectionReason::QueueFull, &[1][..]));
    assert_eq!((refused.detail.as_str(), refused.node), ("queue a is at its maximum of gpu", NodeId(0)));
    assert_eq!(world.binder.cluster().free().node_state(NodeId(4)).unwrap().0, Resources::default());
    world.commit(&first);
    world.commit(&accepted);
    assert_eq!(world.refuse(&place(1, b, &[(2, 4)])), [(RejectionReason::QueueFull, vec![2])]);
    // What was taken back or has ended makes room.
    world.statuses(1, &[0], Phase::Succeeded);
    let third = world.accept(&place(1, b, &[(2, 4)]));
    world.binder.take_back(third.ticket);
    let _ = world.accept(&place(1, b, &[(3, 4)]));
}

/// A queue of 1,000 milli-cores with limits of owners and of masters.
fn shared_queue(path: &str, per_owner: i64, am_share_milli: u32) -> Change {
    let cpu = |amount| [(CPU.to_owned(), amount)].into();
    let max_per_owner = cpu(per_owner);
    Change::Put(Record::Queue(Arc::new(QueueSpec {
        max: cpu(1_000),
        max_per_owner,
        am_share_milli,
        ..QueueSpec::new(path)
    })))
}

#[test]
fn an_owner_takes_no_more_than_one_owner_may() {
    let mut world = World::new(4);
    let of = |owner: &str, path: &str, id| in_queue(path, unit(id, 4, 1, demand(200, 0))).owner(owner);
    let first = world.unit(of("ann", "a.b", 1));
    let second = world.unit(of("ann", "a.c", 2));
    let other = world.unit(of("bob", "a.b", 3));
    // What is under way before the limit comes counts as well.
    let accepted = world.accept(&place(1, first, &[(0, 1)]));
    world.change(shared_queue("a", 400, 0));
    let more = world.accept(&place(2, second, &[(0, 2), (1, 3)]));
    let refused = &more.rejections[0];
    assert_eq!((refused.reason, &refused.ordinals[..]), (RejectionReason::QueueFull, &[1][..]));
    assert_eq!(
        refused.detail,
        "running units of owner `ann` take 400m of the 400m cpu that one owner may take in queue a (max_per_owner): more \
         start when some of them end"
    );
    let _ = world.accept(&place(3, other, &[(0, 4)]));
    world.commit(&accepted);
    world.commit(&more);
    assert_eq!(world.refuse(&place(2, second, &[(1, 3)])), [(RejectionReason::QueueFull, vec![1])]);
    // A unit that moves away takes along what it takes.
    world.unit(of("ann", "other", 1));
    let _ = world.accept(&place(2, second, &[(1, 3)]));
    let usage = world.binder.picture.quotas.quota().usage();
    let a = world.binder.picture.quotas.quota().tree().find("a").unwrap();
    assert_eq!(usage.used_by_owner(a, "ann", CPU), Some(400));
    world.binder.reset();
    assert_eq!(world.binder.picture.quotas.quota().usage().used(a, CPU), 400, "only what is under way");
}

#[test]
fn masters_take_no_more_than_their_share() {
    let mut world = World::new(4);
    let application = |id| {
        let mut record = in_queue("a", unit(id, 1, 1, demand(200, 0))).class(WorkloadClass::Yarn);
        record.spec.task_groups.push(godel_testkit::group(
            "c",
            2,
            Template { demand: demand(200, 0), ..Template::default() },
        ));
        record.status.ordinals = vec![vec![(0, 1)], vec![(1, 3)]].into();
        record
    };
    let (first, second) = (world.unit(application(1)), world.unit(application(2)));
    world.change(shared_queue("a", 1_000, 300));
    let master = world.accept(&place(1, first, &[(0, 1)]));
    world.commit(&master);
    let refused = world.binder.check(&place(2, second, &[(0, 2)]));
    let Verdict::Reject(rejections) = refused else { panic!("{refused:?}") };
    assert_eq!(
        rejections[0].detail,
        "application masters take 200m of the 300m cpu that they may take in queue a (am_share): the application starts when \
         others end"
    );
    let mut containers = place(1, first, &[(1, 2), (2, 3)]);
    containers.groups[0].group = 1;
    let containers = world.accept(&containers);
    world.commit(&containers);
    world.statuses(1, &[0], Phase::Succeeded);
    let _ = world.accept(&place(2, second, &[(0, 2)]));
}

#[test]
fn a_gang_that_its_queue_has_no_room_for_is_refused_whole() {
    let mut world = World::new(4);
    world.change(queue("a", &[], 2));
    let revision = world.unit(in_queue("a", unit(1, 3, 3, demand(10, 0))));
    let refused = world.binder.check(&place(1, revision, &[(0, 1), (1, 2), (2, 3)]));
    let Verdict::Reject(rejections) = refused else { panic!("{refused:?}") };
    assert_eq!(short(&rejections), [(RejectionReason::QueueFull, vec![2, 0, 1])]);
    assert_eq!(rejections[0].detail, "queue a is at its maximum of running units");
    let a = world.binder.picture.quotas.quota().tree().find("a").unwrap();
    assert_eq!(world.binder.picture.quotas.quota().usage().running_units(a), 0);
    assert_eq!(world.binder.cluster().free().node_state(NodeId(1)).unwrap().0, Resources::default());
    world.change(queue("a", &[], 3));
    let _ = world.accept(&place(1, revision, &[(0, 1), (1, 2), (2, 3)]));
}

#[test]
fn a_maximum_of_zero_stops_only_what_asks_for_the_resource() {
    let mut world = World::new(1);
    world.change(queue("default", &[("gpu", 0)], 0));
    let gpu = world.unit(unit(1, 1, 1, demand(10, 500)));
    let mut decision = place(1, gpu, &[(0, 1)]);
    decision.groups[0].devices = vec![DeviceSet(1)];
    assert_eq!(world.refuse(&decision), [(RejectionReason::QueueFull, vec![0])]);
    let cpu = world.unit(unit(2, 1, 1, demand(10, 0)));
    let _ = world.accept(&place(2, cpu, &[(0, 1)]));
    world.change(Change::Gone(RecordKey::Queue("default".to_owned())));
    let _ = world.accept(&decision);
}

#[test]
fn a_binding_rests_on_the_records_of_its_queue_and_those_above() {
    let mut world = World::new(1);
    let a = world.change(queue("a", &[], 0));
    let revision = world.unit(in_queue("a.b", unit(1, 2, 1, demand(10, 0))));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    let records = |world: &World| -> Vec<(String, u64)> {
        let records = world.binder.picture.quotas.records(accepted.queue);
        records.map(|(_, path, revision)| (path.to_owned(), revision.0)).collect()
    };
    assert_eq!(records(&world), [("a.b".to_owned(), 0), ("a".to_owned(), a)]);
    let b = world.change(queue("a.b", &[(CPU, 5)], 0));
    world.change(Change::Gone(RecordKey::Queue("a".to_owned())));
    assert_eq!(records(&world), [("a.b".to_owned(), b), ("a".to_owned(), 0)]);
    world.binder.reset();
    assert_eq!(records(&world), [("a.b".to_owned(), 0), ("a".to_owned(), 0)]);
}

#[test]
fn a_unit_that_moves_takes_its_usage_along() {
    let mut world = World::new(1);
    let revision = world.unit(in_queue("a", unit(1, 2, 1, demand(10, 0))));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    world.unit(in_queue("b", unit(1, 2, 1, demand(10, 0))));
    let used = |world: &World, path: &str| {
        let quota = world.binder.picture.quotas.quota();
        quota.tree().find(path).map_or(0, |queue| quota.usage().used(queue, CPU))
    };
    assert_eq!((used(&world, "a"), used(&world, "b")), (0, 20));
    world.change(Change::Gone(RecordKey::Unit(UnitId(1))));
    assert_eq!(used(&world, "b"), 0);
}

#[test]
fn rows_that_are_listed_again_count_once() {
    let mut world = World::new(1);
    let revision = world.unit(in_queue("a", unit(1, 2, 1, demand(10, 0))));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    world.change(Change::RowsLoaded(UnitId(1), rows));
    let quota = world.binder.picture.quotas.quota();
    assert_eq!(quota.usage().used(quota.tree().find("a").unwrap(), CPU), 20);
}

#[test]
fn a_binding_that_came_and_went_before_a_list_counts_no_longer() {
    let mut world = World::new(1);
    let spec = in_queue("a", unit(1, 1, 1, demand(10, 0)));
    let revision = world.unit(spec.clone());
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    let stopped = Statuses { ordinals: vec![0], phases: vec![Phase::Stopped], ..Statuses::default() };
    let changes = [
        RunChange::Bind(accepted.binds[0].clone()),
        RunChange::Evict(eviction(&[0], EvictionReason::Drained)),
        RunChange::Statuses(stopped),
        RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }),
    ];
    let mut rows = RunningUnits::default();
    for change in &changes {
        world.revision += 1;
        rows.apply(change, Revision(world.revision), 1, |_, _, _| {});
    }
    // The answer to its transaction is still to come.
    world.binder.reset();
    world.binder.on_change(Change::Put(Record::Unit(Arc::new(spec))), Revision(revision), 1);
    world.binder.on_change(Change::RowsLoaded(UnitId(1), rows), Revision(world.revision), 1);
    world.binder.on_revision(Revision(world.revision));
    let quota = world.binder.picture.quotas.quota();
    assert_eq!(quota.usage().used(quota.tree().find("a").unwrap(), CPU), 0);
}

#[test]
fn a_unit_without_a_priority_follows_its_class() {
    let mut world = World::new(1);
    let gold = |value| {
        let (name, description) = ("gold".to_owned(), String::new());
        Change::Put(Record::PriorityClass(PriorityClass { name, value, preemptible: true, description }))
    };
    let of =
        |id, priority, class: &str| unit(id, 1, 1, demand(10, 0)).priority(priority).priority_class(class);
    for spec in [of(1, 0, "gold"), of(2, 3, "gold"), of(3, 0, "online"), of(4, 0, "")] {
        world.unit(spec);
    }
    let priorities = |world: &World| [1, 2, 3, 4].map(|id| world.binder.picture.priority(UnitId(id)));
    assert_eq!(priorities(&world), [0, 3, 1_000_000, 0]);
    world.change(gold(7));
    assert_eq!(priorities(&world), [7, 3, 1_000_000, 0]);
    world.change(Change::Gone(RecordKey::PriorityClass("gold".to_owned())));
    assert_eq!(priorities(&world), [0, 3, 1_000_000, 0]);
    // A list without it says the same.
    world.change(gold(7));
    world.binder.reset();
    for spec in [of(1, 0, "gold"), of(2, 3, "gold"), of(3, 0, "online"), of(4, 0, "")] {
        world.unit(spec);
    }
    assert_eq!(priorities(&world), [0, 3, 1_000_000, 0]);
}

#[test]
fn a_unit_that_moves_takes_what_it_has_along() {
    let mut world = World::new(4);
    for name in ["a", "b"] {
        world.change(queue(name, &[(CPU, 600)], 0));
    }
    let runs = unit(1, 2, 1, demand(300, 0));
    let revision = world.unit(in_queue("a", runs.clone()));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let waits = world.unit(in_queue("a", unit(2, 1, 1, demand(300, 0))));
    assert_eq!(world.refuse(&place(2, waits, &[(0, 3)])), [(RejectionReason::QueueFull, vec![0])]);
    let moved = in_queue("b", runs);
    let terms = PreemptionTerms::of(&moved.spec, &PriorityClasses::default());
    let changes = vec![
        Change::Put(Record::Unit(Arc::new(moved))),
        Change::Rows(UnitId(1), RunChange::Terms(Arc::new(terms.into()))),
    ];
    world.revision += 1;
    world.binder.apply(&Commit { revision: Revision(world.revision), time_ms: 1, changes });
    let _ = world.accept(&place(2, waits, &[(0, 3)]));
    let late = world.unit(in_queue("b", unit(3, 1, 1, demand(300, 0))));
    assert_eq!(world.refuse(&place(3, late, &[(0, 4)])), [(RejectionReason::QueueFull, vec![0])]);
}

#[test]
fn what_is_bound_has_the_terms_that_its_record_says() {
    let gold =
        PriorityClass { name: "gold".to_owned(), value: 7, preemptible: false, description: String::new() };
    let mut classes = PriorityClasses::default();
    classes.put(gold.clone());
    let mut world = World::new(9);
    world.change(Change::Put(Record::PriorityClass(gold)));
    let changes: [fn(&mut UnitRecord); 8] = [
        |_| {},
        |unit| unit.spec.queue = "a.b".to_owned(),
        |unit| unit.spec.priority = 5,
        |unit| unit.spec.priority = 2_000_000_000,
        |unit| unit.spec.priority_class = "gold".to_owned(),
        |unit| unit.spec.priority_class = "system-critical".to_owned(),
        |unit| (unit.spec.preemptible, unit.spec.min_run_ms) = (false, 9),
        |unit| unit.spec.active_deadline_ms = 9,
    ];
    for (id, change) in (1u64..).zip(changes) {
        let mut record = unit(id, 1, 1, demand(1, 0));
        change(&mut record);
        let revision = world.unit(record.clone());
        let accepted = world.accept(&place(id, revision, &[(0, 1)]));
        let bound = accepted.binds[0].standing.as_deref();
        assert_eq!(bound, Some(&PreemptionTerms::of(&record.spec, &classes)), "{record:?}");
    }
}
