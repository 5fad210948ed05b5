//! What plans know of that the binder would refuse: places for running units, slots, terms between moves, refusals of late; what units say of
//! moves; how members of gangs stand to one another.

use godel_core_rescheduler::{OrderedPlan, PlanTerms, RescheduleConfig, plan_room};
use godel_domain::{
    decision::RejectionReason,
    host_port::HostPort,
    node::MAX_RUNNING_UNITS,
    queue_spec::QueueSpec,
    records::Record,
    running_units::PreemptionTerms,
    unit::{OnBelowMin, OnEviction},
};

use super::*;

/// Says what keeps replica 0 of a unit, bound at 1 ms, where it is at a time.
fn kept(record: UnitRecord, nodes: &[u32], standing: PreemptionTerms, now_ms: i64) -> Option<KeptReason> {
    let mut picture = picture(record, &[]);
    bind(&mut picture, UNIT, nodes, Some(standing));
    let PlanInput { snapshot, .. } = take(&picture, &Traffic::default(), &config(), now_ms);
    let one = snapshot.running.iter().find(|one| one.id.replica.ordinal == 0).unwrap();
    one.kept
}

fn bind(picture: &mut ClusterPicture, unit: UnitId, nodes: &[u32], standing: Option<PreemptionTerms>) {
    let record = Arc::clone(&picture.units[&unit]);
    let demand = Arc::new(record.spec.task_groups[0].template.demand.clone());
    let ordinals: Vec<u32> = (0..).take(nodes.len()).collect();
    let nodes = nodes.iter().copied().map(NodeId).collect();
    let standing = standing.map(Arc::new);
    let bound = Bind { demand, ordinals: ordinals.clone(), nodes, standing, ..Bind::default() };
    picture.load(&Change::Rows(unit, RunChange::Bind(bound)), Revision(1), 1);
    let phases = vec![Phase::Running; ordinals.len()];
    let statuses = Statuses { ordinals, phases, ..Statuses::default() };
    picture.load(&Change::Rows(unit, RunChange::Statuses(statuses)), Revision(1), 1);
}

#[test]
fn what_may_not_be_preempted_stays_unless_its_unit_says_otherwise() {
    let may = PreemptionTerms { preemptible: true, ..PreemptionTerms::default() };
    let never = PreemptionTerms { preemptible: false, ..PreemptionTerms::default() };
    let young = PreemptionTerms { min_run_ms: 10_000, ..may.clone() };
    let says = |movable| unit("u").cpu(100).movable(movable);
    for (what, record, standing, now_ms, expected) in [
        ("nothing is said", says(None), &may, 5, None),
        ("not preemptible", says(None), &never, 5, Some(KeptReason::NotPreemptible)),
        ("not preemptible, but movable", says(Some(true)), &never, 5, None),
        ("min_run", says(None), &young, 10_000, Some(KeptReason::MinRun)),
        ("min_run is over", says(None), &young, 10_001, None),
        ("min_run, but movable", says(Some(true)), &young, 5, None),
        ("never", says(Some(false)), &may, 5, Some(KeptReason::NotMovable)),
        ("never, and not preemptible", says(Some(false)), &never, 5, Some(KeptReason::NotMovable)),
    ] {
        assert_eq!(kept(record, &[1], standing.clone(), now_ms), expected, "{what}");
    }
}

#[test]
fn what_the_binder_never_moves_stays() {
    let may = || PreemptionTerms { preemptible: true, ..PreemptionTerms::default() };
    let restart = OnBelowMin::Restart;
    for (what, record, nodes, expected) in [
        (
            "one of two that are needed",
            unit("u").cpu(1).replicas(2).gang(2).on_below_min(restart),
            &[1, 2][..],
            Some(KeptReason::BreaksUnit),
        ),
        (
            "one of three, two are needed",
            unit("u").cpu(1).replicas(3).gang(2).on_below_min(restart),
            &[1, 2, 3],
            None,
        ),
        ("the only one", unit("u").cpu(1).on_below_min(restart), &[1], Some(KeptReason::BreaksUnit)),
        (
            "it would fail",
            unit("u").cpu(1).on_eviction(OnEviction::Fail),
            &[1],
            Some(KeptReason::FailsOnEviction),
        ),
        ("a daemon", unit("u").cpu(1).class(WorkloadClass::Daemon), &[1], Some(KeptReason::Class)),
        (
            "of yarn",
            unit("u").cpu(1).class(WorkloadClass::Yarn).movable(Some(true)),
            &[1],
            Some(KeptReason::Class),
        ),
        ("suspended", unit("u").cpu(1).suspended(true), &[1], Some(KeptReason::Unsettled)),
    ] {
        assert_eq!(kept(record, nodes, may(), 5), expected, "{what}");
    }
}

#[test]
fn a_snapshot_has_the_places_for_running_units_and_what_can_be_spared() {
    let record = unit("u").replicas(3).cpu(100).class(WorkloadClass::Service);
    let mut picture = picture(record, &[1, 2, 3]);
    let mut known = node(1).cpu(1_000).label("rack", "a");
    known.report.max_running_units = 1;
    picture.load(&Change::Put(Record::NodeReport(known.report)), Revision(2), 2);
    let PlanInput { snapshot, .. } = take(&picture, &Traffic::default(), &config(), 10_000);
    let most: Vec<Option<u32>> = snapshot.nodes.iter().take(2).map(|node| node.n_running_max).collect();
    assert_eq!(most, [Some(1), Some(MAX_RUNNING_UNITS)]);
    assert_eq!(snapshot.units[0].spare, 1, "of a service one may be missing");
    let layout = Layout::new(&snapshot).unwrap();
    let other = layout.running().find(|run| layout.home(*run) == NodeIdx(1)).unwrap();
    assert!(!layout.has_room(other, NodeIdx(0)) && layout.has_room(other, NodeIdx(2)));
}

/// Moves a replica in a layout.
fn relocate(layout: &mut Layout<'_>, ordinal: u32, node: u32) {
    let run = layout.running().find(|run| layout.facts(*run).id.replica.ordinal == ordinal).unwrap();
    assert!(layout.relocate(run, NodeIdx(node - 1)));
}

#[test]
fn terms_are_judged_with_the_other_moves_of_a_plan() {
    let picture = picture(unit("u").replicas(2).cpu(100).affinity(apart("rack")), &[1, 3]);
    let PlanInput { snapshot, filters } = take(&picture, &Traffic::default(), &config(), 10_000);
    let mut layout = Layout::new(&snapshot).unwrap();
    let admitted = |layout: &Layout<'_>, ordinal: u32| -> Vec<u32> {
        let run = layout.running().find(|run| layout.facts(*run).id.replica.ordinal == ordinal).unwrap();
        let nodes = layout.nodes().filter(|node| filters.admits(layout, run, *node));
        nodes.map(|node| layout.node(node).id.0).collect()
    };
    let mark = layout.mark();
    relocate(&mut layout, 0, 5);
    assert_eq!(admitted(&layout, 1), [3, 4], "rack c is taken, and rack a is not free yet when it leaves");
    assert_eq!(admitted(&layout, 0), [1, 2, 5, 6], "its own move is not in its way");
    layout.undo_to(mark);
    assert_eq!(admitted(&layout, 1), [3, 4, 5, 6], "as before");
}

#[test]
fn a_replacement_that_starts_first_is_apart_from_what_it_replaces() {
    let record = unit("u").replicas(1).cpu(100).class(WorkloadClass::Service).affinity(apart("rack"));
    assert_eq!(targets(&picture(record.clone(), &[1]), 0), [1, 2, 3, 4, 5, 6]);
    assert_eq!(targets(&picture(record.max_surge(1), &[1]), 0), [3, 4, 5, 6]);
}

#[test]
fn a_refused_target_is_not_planned_again_while_nothing_changes_there() {
    let mut picture = picture(unit("u").replicas(2).cpu(100), &[1, 2]);
    let note = |picture: &mut ClusterPicture| {
        let (record, generation) =
            (Arc::clone(&picture.units[&UNIT]), picture.cluster.free().generations().of(NodeId(3)));
        let refused = Arc::make_mut(&mut picture.refused);
        let (one, reason) = (RunningUnitId::new(UNIT, 0, 0), RejectionReason::InsufficientResources);
        refused.note(one, &record, NodeId(3), generation, reason, Millis(1));
    };
    let forget = |picture: &mut ClusterPicture| {
        let ClusterPicture { refused, units, cluster, .. } = picture;
        let generation = |node| cluster.free().generations().of(node);
        Arc::make_mut(refused).forget_changed(|unit| units.get(&unit), generation, Millis(2));
    };
    note(&mut picture);
    forget(&mut picture);
    assert_eq!(targets(&picture, 1), [1, 2, 4, 5, 6], "whichever replica it is");
    picture.load(
        &Change::Put(Record::NodeReport(node(3).cpu(2_000).label("rack", "b").report)),
        Revision(3),
        3,
    );
    forget(&mut picture);
    assert_eq!(targets(&picture, 1), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_movement_waits_for_what_a_drain_would_wait_for() {
    use godel_core_rescheduler::MovementWorld as _;
    let picture = picture(unit("u").replicas(3).cpu(100).class(WorkloadClass::Service), &[1, 2, 3]);
    let one = |ordinal| RunningUnitId::new(UNIT, ordinal, 0);
    assert_eq!(picture.may_leave(one(0), &[]), Ok(()));
    let why = picture.may_leave(one(0), &[2]).unwrap_err();
    assert_eq!(why, "2 of 3 replicas are available, one may be missing at a time");
    let surges =
        self::picture(unit("u").replicas(3).cpu(100).class(WorkloadClass::Service).max_surge(2), &[1, 2, 3]);
    assert_eq!(surges.may_leave(one(0), &[2]), Ok(()), "what replaces it starts first");
}

/// The plan that makes room for a gang, which is unit 2, where `u` has a replica on each of some nodes; every node has 1,000 thousandths.
fn room(gang: UnitRecord, nodes: &[u32], u_cpu: i64) -> Result<OrderedPlan, String> {
    let replicas = u32::try_from(nodes.len()).unwrap();
    let mut picture = picture(unit("u").replicas(replicas).cpu(u_cpu), nodes);
    let gang = Arc::new(gang.id(UnitId(2)));
    picture.load(&Change::Put(Record::Unit(Arc::clone(&gang))), Revision(2), 2);
    let mut input = take(&picture, &Traffic::default(), &config(), 10_000);
    let ask = waiting_gang(&mut input, &gang, &picture)?;
    let config = RescheduleConfig::default();
    let log = godel_core_rescheduler::MoveLog::default();
    let terms = PlanTerms { log: &log, fixed: &[], n_moves_max: 100, seed: 1, bound_within: None };
    let plan = plan_room(&config, &ask.gang, &input.snapshot, &input.filters, terms).unwrap();
    Ok(ask.check(&mut input, &gang, &picture, plan))
}

#[test]
fn room_is_made_for_members_as_they_stand_to_one_another() {
    let gang = || unit("g").replicas(2).gang(2).cpu(900);
    // Node 1 is free, the others are half full: two members of 900 need one more node.
    let half = [2, 3, 4, 5, 6];
    let moved = |plan: OrderedPlan| plan.moves.len();
    let made = |gang: UnitRecord| room(gang, &half, 300).map(moved);
    assert_eq!(made(gang()), Ok(1));
    assert_eq!(made(gang().affinity(apart(NODE))), Ok(1), "on node 1 and one that is cleared");
    assert_eq!(made(gang().affinity(apart("rack"))), Ok(1), "not in the rack of node 1");
    assert_eq!(made(gang().affinity(even("rack"))), Ok(1));
    let ports = |unit: &mut UnitRecord| {
        unit.spec.task_groups[0].template.demand.host_ports = vec!["80/tcp".parse::<HostPort>().unwrap()];
    };
    let small = || unit("g").replicas(7).gang(7).cpu(400).edit(ports);
    // Two of them have room on node 1, and one on each other: seven stand apart on six nodes nowhere.
    let none = room(small(), &half, 300).unwrap();
    assert!(none.moves.is_empty(), "{none:?}");
    let two_apart = unit("g").replicas(4).gang(4).cpu(300).affinity(apart("rack"));
    let none = room(two_apart, &[1, 2, 3, 4, 5, 6], 800).unwrap();
    assert!(none.moves.is_empty(), "four members in three racks");
    let mut both = apart("rack");
    both.spread = even("zone").spread;
    let refused = room(gang().affinity(both), &half, 300).unwrap_err();
    assert!(refused.contains("several required `apart` or `spread` terms"), "{refused}");
    // Near one another: both in one rack, which takes two moves in any rack but that of node 1.
    let near = UnitAffinity { near: apart("rack").apart, ..UnitAffinity::default() };
    let plan = room(gang().affinity(near), &half, 300).unwrap();
    assert_eq!(plan.moves.iter().map(|one| one.from.0.0).collect::<Vec<_>>(), [2], "{plan:?}");
}

#[test]
fn a_unit_of_one_replica_asks_for_room_as_a_gang_does() {
    let mut picture = picture(unit("u").replicas(2).cpu(100), &[1, 2]);
    let mut submit = |id: u64, record: UnitRecord| {
        picture.load(&Change::Put(Record::Unit(Arc::new(record.id(UnitId(id))))), Revision(2), 2);
    };
    submit(2, unit("whole").cpu(1_000));
    submit(3, unit("many").replicas(3).cpu(1_000));
    submit(4, unit("gang").replicas(3).gang(3).cpu(1_000));
    submit(5, unit("daemon").class(WorkloadClass::Daemon).cpu(1_000));
    submit(6, unit("filler").cpu(1_000).pool(Pool::BestEffort));
    picture.count_waiting();
    assert_eq!(picture.waiting_gangs(), [UnitId(2), UnitId(4)].into());
    let plan = room(unit("whole").cpu(1_000), &[1, 2, 3, 4, 5, 6], 300).unwrap();
    assert_eq!(plan.moves.len(), 1);
}

#[test]
fn what_others_use_of_a_node_is_what_is_measured_beside_its_running_units() {
    let with_use = |cpu_milli| MeasuredUse { cpu_milli, network_bps: 0 };
    let mut picture = picture(unit("u").replicas(2).cpu(100), &[1, 2]);
    let other = |picture: &ClusterPicture, config: &SnapshotConfig| {
        let PlanInput { snapshot, .. } = take(picture, &Traffic::default(), config, 10_000);
        snapshot.nodes.iter().take(2).map(|node| node.other_use.cpu_milli).collect::<Vec<_>>()
    };
    assert_eq!(other(&picture, &config()), [0, 0], "nobody has looked");
    picture.other_use = Arc::new([("n1".to_owned(), with_use(700))].into());
    // What runs there and is not measured by itself is in it.
    assert_eq!(other(&picture, &config()), [600, 0]);
    let measured = |ordinal| (ordinal, with_use(50));
    picture.usage = Arc::new([(UNIT, [measured(0), measured(1)].into())].into_iter().collect());
    assert_eq!(other(&picture, &config()), [700, 0]);
    assert_eq!(other(&picture, &SnapshotConfig { other_load: false, ..config() }), [0, 0]);
}

/// What keeps replica 0 of `u`, of which three run and replacements start first, where queues are as these are and another unit of the
/// owner runs in `a.other`; `None`: nothing. With it how many replicas of `u` may move at a time.
fn kept_by_queues(queues: &[QueueSpec], max_surge: u32) -> (Option<KeptReason>, u32) {
    let record = unit("u").replicas(3).cpu(100).class(WorkloadClass::Service).queue("a.own").owner("ann");
    let mut picture = picture(record.max_surge(max_surge), &[1, 2, 3]);
    let mut load = |change: Change| picture.load(&change, Revision(2), 1);
    queues.iter().for_each(|queue| load(Change::Put(Record::Queue(Arc::new(queue.clone())))));
    let other = unit("v").id(UnitId(2)).cpu(100).queue("a.other").owner("ann");
    let demand = Arc::new(other.spec.task_groups[0].template.demand.clone());
    load(Change::Put(Record::Unit(Arc::new(other))));
    let bind = Bind { demand, ordinals: vec![0], nodes: vec![NodeId(4)], ..Bind::default() };
    load(Change::Rows(UnitId(2), RunChange::Bind(bind)));
    let snapshot = take(&picture, &Traffic::default(), &config(), 10_000).snapshot;
    let one = snapshot.running.iter().find(|one| one.id == RunningUnitId::new(UNIT, 0, 0)).unwrap();
    (one.kept, snapshot.units.iter().find(|known| known.id == UNIT).unwrap().spare)
}

#[test]
fn a_replacement_that_starts_first_is_planned_where_its_queue_has_room_for_it() {
    let max =
        |path: &str, cpu: i64| QueueSpec { max: [("cpu".to_owned(), cpu)].into(), ..QueueSpec::new(path) };
    let n_max = |max_running_units| QueueSpec { max_running_units, ..QueueSpec::new("a.own") };
    let per_owner =
        |cpu| QueueSpec { max_per_owner: [("cpu".to_owned(), cpu)].into(), ..QueueSpec::new("a") };
    let full = (Some(KeptReason::QueueFull), 0);
    for (queue, expected) in [
        (QueueSpec::new("a.own"), (None, 2)),
        (max("a.own", 399), full),
        (max("a.own", 400), (None, 1)),
        (max("a.own", 500), (None, 2)),
        (max("a", 499), full),
        (max("a", 500), (None, 1)),
        (max("b", 0), (None, 2)),
        (n_max(3), full),
        (n_max(4), (None, 1)),
        (per_owner(499), full),
        (per_owner(500), (None, 1)),
    ] {
        assert_eq!(kept_by_queues(std::slice::from_ref(&queue), 2), expected, "{queue:?}");
    }
    assert_eq!(kept_by_queues(&[max("a.own", 0)], 0).0, None, "who leaves first needs no more than it has");
}
