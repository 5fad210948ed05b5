mod violations;

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::DeviceSet,
    limits::{ACTIVE_DEADLINE_MS_MAX, AMOUNT_MAX, MIN_RUN_MS_MAX, TTL_MS_MAX},
    node::{Device, NodeReport, NodeRuntime},
    running_units::{Bind, RunChange, RunningUnits},
    submission::{DeviceSubmission, SpreadSubmission},
    unit::{RestartPolicy, RunSpec, UnitRecord},
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};

use super::{
    feasibility::Capacities,
    scale::{N_RANGES_MAX, ScaleRefusal, scale},
    *,
};

const UID: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

fn group(replicas: u32) -> GroupSubmission {
    GroupSubmission { replicas, requests: vec![("cpu".to_owned(), 500)], ..GroupSubmission::default() }
}

fn submission() -> Submission {
    Submission {
        name: "web".to_owned(),
        uid: UID.to_owned(),
        task_groups: vec![group(2)],
        ..Submission::default()
    }
}

fn devices(count: u32, milli: u32) -> Vec<DeviceSubmission> {
    vec![DeviceSubmission {
        kind: "gpu".to_owned(),
        count,
        milli: (milli > 0).then_some(milli),
        models: Vec::new(),
        ..DeviceSubmission::default()
    }]
}

#[test]
fn all_violations_are_named_at_once_up_to_a_bound() {
    let mut given = submission();
    given.name.clear();
    given.queue = "/".into();
    given.task_groups[0].replicas = 0;
    let fields: Vec<String> =
        admit(given).unwrap_err().into_iter().map(|violation| violation.field).collect();
    assert_eq!(fields, ["meta.name", "task_groups[0].replicas", "queue"]);
    let mut given = submission();
    given.task_groups[0].requests = (0..500).map(|i| (format!("r{i}"), -1)).collect();
    assert_eq!(admit(given).unwrap_err().len(), VIOLATIONS_MAX);
}

#[test]
fn a_daemon_leaves_to_the_nodes_what_follows_from_them() {
    let daemon = || Submission {
        class: Given::Value(WorkloadClass::Daemon),
        task_groups: vec![group(0)],
        ..submission()
    };
    let spec = admit(daemon()).unwrap().spec;
    assert_eq!((spec.replicas(), spec.min_member, spec.max_restarts), (0, 1, 1_000));
    let record = UnitRecord::new(UnitId(1), spec);
    assert!(matches!(scale(&record, &RunningUnits::default(), "", 2), Err(ScaleRefusal::Invalid(_))));
    let mut given = daemon();
    given.task_groups.extend([GroupSubmission { name: "b".to_owned(), ..group(3) }]);
    given.min_member = Some(2);
    given.restart_policy = Given::Value(RestartPolicy::Never);
    given.topology.required = "rack".to_owned();
    let violations = admit(given).unwrap_err();
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        ["min_member", "task_groups", "task_groups[1].replicas", "restart_policy", "topology"]
    );
}

#[test]
fn defaults_follow_the_class_and_are_listed() {
    let admitted = admit(submission()).unwrap();
    let listed: Vec<String> = admitted.defaults.iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        [
            "workload_class = batch",
            "task_groups[0].name = main",
            "min_member = 1",
            "queue = default",
            "priority = 0",
            "pool = guaranteed",
            "restart_policy = on-failure",
            "ttl_after_finished_ms = 3600000",
            "max_restarts = 3",
            "on_eviction = requeue",
            "on_below_min = keep",
            "on_failure = keep",
            "preemptible = true",
        ]
    );
    let spec = admitted.spec;
    assert_eq!((spec.namespace.as_str(), spec.task_groups[0].replicas), ("default", 2));
    for class in defaults::TABLE.map(|line| line.class) {
        let is_daemon = class == WorkloadClass::Daemon;
        let task_groups = vec![group(if is_daemon { 0 } else { 2 })];
        let given = Submission { class: Given::Value(class), task_groups, ..submission() };
        let line = defaults::of(class);
        let spec = admit(given).unwrap().spec;
        let all = line.min_member == defaults::MinMember::Replicas;
        assert_eq!(spec.min_member, if all { 2 } else { 1 }, "{class:?}");
        assert_eq!(
            (spec.priority, spec.restart_policy, spec.profile.as_str()),
            (line.priority, line.restart_policy, "")
        );
    }
}

#[test]
fn what_is_given_stays_and_ordinals_follow_on() {
    let given = Submission {
        class: Given::Value(WorkloadClass::Gang),
        task_groups: vec![
            GroupSubmission { name: "ps".into(), ..group(3) },
            GroupSubmission { name: "worker".into(), devices: devices(1, 0), ..group(5) },
        ],
        min_member: Some(4),
        queue: "org.ml".into(),
        priority: Some(-7),
        uid: UID.to_uppercase(),
        ttl_after_finished_ms: Some(5),
        max_restarts: Some(1),
        on_eviction: Given::Value(OnEviction::Fail),
        on_below_min: Given::Value(OnBelowMin::Stop),
        ..submission()
    };
    let spec = admit(given).unwrap().spec;
    assert_eq!(
        (spec.min_member, spec.priority, spec.queue.as_str(), spec.uid.as_str()),
        (4, -7, "org.ml", UID)
    );
    assert_eq!((spec.ttl_after_finished_ms, spec.max_restarts), (5, 1));
    assert_eq!((spec.on_eviction, spec.on_below_min), (OnEviction::Fail, OnBelowMin::Stop));
    assert_eq!(record(spec.clone()).status.ordinals[..], [vec![(0, 3)], vec![(3, 8)]]);
    assert_eq!(spec.task_groups[1].template.demand.devices[0].milli, 1000);
}

fn spread(max_skew: Option<u32>) -> SpreadSubmission {
    SpreadSubmission { topology: "rack".to_owned(), max_skew, ..SpreadSubmission::default() }
}

/// A zero that is written holds or is refused; it never becomes the default.
#[test]
fn a_zero_is_not_absent() {
    let honoured = Submission {
        class: Given::Value(WorkloadClass::Service),
        priority: Some(0),
        ttl_after_finished_ms: Some(0),
        max_restarts: Some(0),
        ..submission()
    };
    let Admitted { spec, defaults } = admit(honoured).unwrap();
    assert_eq!((spec.priority, spec.ttl_after_finished_ms, spec.max_restarts), (0, 0, 0));
    let filled = |field: &str| defaults.iter().any(|default| default.field == field);
    assert!(!filled("priority") && !filled("ttl_after_finished_ms") && !filled("max_restarts"));
    type Case = (fn(&mut Submission), &'static str, &'static str);
    let refused: [Case; 7] = [
        (|s| s.min_member = Some(0), "min_member", "0 is not in 1..=10000; leave it out"),
        (|s| s.scheduling_timeout_ms = Some(0), "scheduling_timeout_ms", "0s is too short; leave it out"),
        (|s| s.active_deadline_ms = Some(0), "active_deadline_ms", "0s is too short; leave it out"),
        (|s| s.task_groups[0].replicas = 0, "task_groups[0].replicas", "0 is not in 1..=100000"),
        (
            |s| {
                let devices = DeviceSubmission { count: 1, milli: Some(0), ..DeviceSubmission::default() };
                s.task_groups[0].devices = vec![devices];
            },
            "task_groups[0].template.demand.devices[0].milli_per_device",
            "0 is not in 1..=1000",
        ),
        (
            |s| {
                s.priority_class = "online".into();
                s.priority = Some(0);
            },
            "priority",
            "leave it out to have the priority of the class",
        ),
        (
            |s| s.affinity.spread = vec![spread(Some(0))],
            "affinity.spread[0].max_skew",
            "0 is not in 1..=10000",
        ),
    ];
    for (change, field, expected) in refused {
        let mut given = submission();
        change(&mut given);
        let wrong = admit(given).unwrap_err();
        assert_eq!((wrong.len(), wrong[0].field.as_str()), (1, field));
        assert!(wrong[0].description.contains(expected), "{}", wrong[0].description);
    }
}

#[test]
fn a_spread_allows_one_more_unless_it_says_how_many() {
    let mut given = submission();
    given.affinity.spread = vec![spread(None), spread(Some(2))];
    let Admitted { spec, defaults } = admit(given).unwrap();
    let listed: Vec<String> = defaults.iter().map(ToString::to_string).collect();
    let skews: Vec<&String> = listed.iter().filter(|line| line.contains("affinity")).collect();
    assert_eq!(skews, ["affinity.spread[0].max_skew = 1"]);
    assert_eq!(spec.affinity.spread.iter().map(|term| term.max_skew).collect::<Vec<_>>(), [1, 2]);
    assert!(admit(submission()).unwrap().spec.affinity.is_empty());
}

#[test]
fn bounds_are_said_as_people_write_them() {
    let long = Submission {
        ttl_after_finished_ms: Some(TTL_MS_MAX + 1),
        active_deadline_ms: Some(ACTIVE_DEADLINE_MS_MAX + 3_600_000),
        min_run_ms: MIN_RUN_MS_MAX * 2,
        ..submission()
    };
    let told: Vec<String> = admit(long).unwrap_err().into_iter().map(|wrong| wrong.description).collect();
    assert_eq!(
        told,
        ["365d 6h 1ms is longer than 1y", "60d is longer than 30d", "365d 7h is longer than 1y"]
    );
    let mut much = submission();
    much.active_deadline_ms = Some(ACTIVE_DEADLINE_MS_MAX);
    much.task_groups[0].requests =
        vec![("cpu".into(), AMOUNT_MAX + 1), ("memory".into(), 2 * AMOUNT_MAX), ("mem".into(), 1)];
    let told: Vec<String> = admit(much).unwrap_err().into_iter().map(|wrong| wrong.description).collect();
    assert_eq!(
        told,
        [
            "1125899906842.625 is more than 1125899906842.624",
            "2Pi is more than 1Pi",
            "did you mean `memory`?"
        ]
    );
}

#[test]
fn a_priority_class_leaves_the_priority_to_itself() {
    let class = |priority| Submission { priority_class: "online".into(), priority, ..submission() };
    let Admitted { spec, defaults } = admit(class(None)).unwrap();
    assert_eq!((spec.priority_class.as_str(), spec.priority), ("online", 0));
    assert!(defaults.iter().all(|default| default.field != "priority"), "{defaults:?}");
    assert_eq!(admit(class(Some(7))).unwrap().spec.priority, 7);
    let service = Submission { class: Given::Value(WorkloadClass::Service), ..class(None) };
    assert_eq!(admit(service).unwrap().spec.priority, 0);
}

fn record(spec: UnitSpec) -> UnitRecord {
    UnitRecord::new(UnitId(1), spec)
}

fn bound_up_to(n_rows: u32) -> RunningUnits {
    let mut rows = RunningUnits::default();
    if n_rows > 0 {
        let bind = Bind { ordinals: vec![n_rows - 1], nodes: vec![NodeId(1)], ..Bind::default() };
        rows.apply(&RunChange::Bind(bind), Revision(1), 0, |_, _, _| {});
    }
    rows
}

#[test]
fn scaling_in_drops_the_highest_ordinals_for_ever() {
    let first = record(admit(submission()).unwrap().spec);
    let up = scale(&first, &bound_up_to(2), "", 5).unwrap().unwrap();
    assert_eq!(up.status.ordinals[0], [(0, 5)]);
    let down = scale(&up, &bound_up_to(5), "main", 1).unwrap().unwrap();
    assert_eq!((down.status.ordinals[0].as_slice(), down.spec.replicas()), (&[(0, 1)][..], 1));
    let again = scale(&down, &bound_up_to(5), "main", 3).unwrap().unwrap();
    assert_eq!(again.status.ordinals[0], [(0, 1), (5, 7)]);
    let one_range_less = scale(&again, &bound_up_to(5), "main", 1).unwrap().unwrap();
    assert_eq!(one_range_less.status.ordinals[0], [(0, 1)]);
    // Ordinals that were never bound may be given again.
    let unbound = scale(&down, &bound_up_to(0), "main", 3).unwrap().unwrap();
    assert_eq!(unbound.status.ordinals[0], [(0, 3)]);
    assert_eq!(scale(&first, &bound_up_to(0), "", 2), Ok(None));
}

#[test]
fn scaling_is_refused_for_a_reason() {
    let mut unit = record(admit(submission()).unwrap().spec);
    let field = |refusal: Result<Option<UnitRecord>, ScaleRefusal>| match refusal {
        Err(ScaleRefusal::Invalid(violations)) => violations[0].field.clone(),
        other => panic!("{other:?}"),
    };
    let rows = RunningUnits::default();
    assert_eq!(field(scale(&unit, &rows, "nope", 3)), "task_group");
    assert_eq!(field(scale(&unit, &rows, "", 0)), "replicas");
    assert_eq!(field(scale(&unit, &rows, "", 100_001)), "replicas");
    assert_eq!(scale(&unit, &bound_up_to(1_000_000), "", 3), Err(ScaleRefusal::OrdinalsUsedUp));
    let mut worn = unit.clone();
    worn.status.ordinals[0] =
        (0u32..).step_by(3).map(|start| (start, start + 2)).take(N_RANGES_MAX).collect();
    worn.spec.task_groups[0].replicas = 8_192;
    let end = 3 * 4_096;
    assert_eq!(scale(&worn, &bound_up_to(end + 1), "", 8_193), Err(ScaleRefusal::OrdinalsUsedUp));
    worn.status.ordinals[0].pop();
    worn.spec.task_groups[0].replicas = 8_190;
    assert!(scale(&worn, &bound_up_to(end + 1), "", 8_191).is_ok());
    unit.status.cancelled = true;
    assert_eq!(scale(&unit, &rows, "", 3), Err(ScaleRefusal::Cancelled));
    // A gang that shrinks keeps all or nothing of what is left.
    let gang = Submission { class: Given::Value(WorkloadClass::Gang), ..submission() };
    let gang = record(admit(gang).unwrap().spec);
    assert_eq!(scale(&gang, &rows, "", 1).unwrap().unwrap().spec.min_member, 1);
    assert_eq!(scale(&gang, &rows, "", 9).unwrap().unwrap().spec.min_member, 2);
    let two = Submission {
        task_groups: vec![
            GroupSubmission { name: "a".into(), ..group(1) },
            GroupSubmission { name: "b".into(), ..group(1) },
        ],
        ..submission()
    };
    let two = record(admit(two).unwrap().spec);
    assert_eq!(field(scale(&two, &rows, "", 3)), "task_group");
    assert_eq!(scale(&two, &rows, "a", 0).unwrap().unwrap().spec.replicas(), 1);
}

fn node(id: u32, cpu: i64, models: &[&str]) -> NodeReport {
    let device =
        |model: &&str| Device { kind: "gpu".into(), model: (*model).to_owned(), numa_zone: 0, details: None };
    NodeReport {
        id: NodeId(id),
        capacity: Resources::new([("cpu", cpu)]).unwrap(),
        devices: models.iter().map(device).collect(),
        ..NodeReport::default()
    }
}

#[test]
fn what_has_no_command_needs_a_node_that_simulates() {
    let unit = |run: RunSpec| {
        let group = GroupSubmission { requests: vec![("cpu".to_owned(), 1_000)], ..group(1) };
        let mut spec = admit(Submission { task_groups: vec![group], ..submission() }).unwrap().spec;
        spec.task_groups[0].template.run = run;
        spec
    };
    let idle = unit(RunSpec::default());
    let command = unit(RunSpec { command: vec!["sleep".to_owned()], ..RunSpec::default() });
    let simulated = unit(RunSpec { simulated_duration_ms: Some(1), ..RunSpec::default() });
    let of = |id, cpu, runtime| NodeReport { runtime, ..node(id, cpu, &[]) };
    let mut capacities = Capacities::default();
    capacities.put(&of(1, 1_000, NodeRuntime::Processes));
    let no_command =
        "task group `main`: it has no command, and every node that is large enough runs processes";
    assert!(capacities.infeasible(&idle).unwrap().starts_with(no_command));
    let warning = "task group `main` has no command: it goes to simulated nodes only (0 of 1 node); ";
    assert!(capacities.warnings(&idle)[0].starts_with(warning), "{:?}", capacities.warnings(&idle));
    for spec in [&command, &simulated] {
        assert_eq!((capacities.infeasible(spec), capacities.warnings(spec).len()), (None, 0));
    }
    let image = unit(RunSpec { image: Some("web:1".to_owned()), ..RunSpec::default() });
    let words = "task group `main`: it has an image, and no node that is large enough runs images";
    assert_eq!(capacities.infeasible(&image).as_deref(), Some(words));
    let warning = "task group `main` has an image: it goes to nodes that run images only (0 of 1 node)";
    assert_eq!(capacities.warnings(&image), [warning]);
    // A simulated one that is too small, and one that is not.
    capacities.put(&of(2, 999, NodeRuntime::Simulated));
    assert!(capacities.infeasible(&idle).unwrap().starts_with(no_command));
    assert!(capacities.put(&of(3, 1_000, NodeRuntime::Simulated)), "a shape of its own");
    assert_eq!(capacities.infeasible(&idle), None);
    assert!(capacities.warnings(&idle)[0].contains("(2 of 3 nodes)"));
    capacities.put(&of(4, 1_000, NodeRuntime::Containers));
    assert_eq!(capacities.infeasible(&image), None);
    assert!(capacities.warnings(&image)[0].contains("(3 of 4 nodes)"));
    assert!(capacities.warnings(&idle)[0].contains("(2 of 4 nodes)"));
    capacities.remove(NodeId(4));
    // Nobody warns where nothing is real, and an agent that does not say takes everything.
    capacities.remove(NodeId(1));
    assert!(capacities.warnings(&idle).is_empty());
    let mut unknown = Capacities::default();
    unknown.put(&of(1, 1_000, NodeRuntime::Unknown));
    assert_eq!((unknown.infeasible(&idle), unknown.warnings(&idle).len()), (None, 0));
}

#[test]
fn infeasible_says_why_and_ends_when_a_node_joins() {
    let unit = |cpu: i64, devices: Vec<DeviceSubmission>| {
        let group = GroupSubmission { requests: vec![("cpu".to_owned(), cpu)], devices, ..group(1) };
        admit(Submission { task_groups: vec![group], ..submission() }).unwrap().spec
    };
    let mut capacities = Capacities::default();
    let why = |capacities: &Capacities, spec: &UnitSpec| capacities.infeasible(spec).unwrap_or_default();
    assert_eq!(why(&capacities, &unit(1, Vec::new())), "task group `main`: no node is registered");
    assert!(capacities.put(&node(1, 1000, &["T4", "T4"])));
    assert!(!capacities.put(&node(2, 1000, &["T4", "T4"])), "no new shape");
    assert_eq!(capacities.infeasible(&unit(1000, devices(2, 0))), None);
    assert_eq!(
        why(&capacities, &unit(1001, Vec::new())),
        "task group `main`: asks for 1.001 cpu; the largest node has 1"
    );
    let a10 = vec![DeviceSubmission { models: vec!["A10".into()], ..devices(1, 0)[0].clone() }];
    assert_eq!(
        why(&capacities, &unit(1, a10.clone())),
        "task group `main`: asks for 1 gpu of model A10 on one node; no node has more than 0"
    );
    assert!(capacities.put(&node(3, 10, &["A10"])));
    assert_eq!(capacities.infeasible(&unit(1, a10.clone())), None);
    assert!(why(&capacities, &unit(1000, a10.clone())).contains("no single one of 3 nodes"));
    let single = |cpu: i64| {
        let mut spec = unit(cpu, Vec::new());
        let zones = ZoneRequest { policy: ZonePolicy::SingleZone, cpu_mode: CpuMode::Shared };
        spec.task_groups[0].template.demand.zones = Some(zones);
        spec
    };
    let none =
        "task group `main`: asks for the zone policy single-zone; no node has zones that are large enough";
    assert_eq!(why(&capacities, &single(1)), none);
    let zone = Zone { capacity: Resources::new([("cpu", 500)]).unwrap(), ..Zone::default() };
    assert!(capacities.put(&NodeReport { zones: vec![zone.clone(), zone], ..node(4, 1000, &[]) }));
    assert_eq!(
        (why(&capacities, &single(500)).as_str(), why(&capacities, &single(501)).as_str()),
        ("", none)
    );
    capacities.remove(NodeId(4));
    capacities.remove(NodeId(3));
    assert!(!why(&capacities, &unit(1, a10)).is_empty());
    assert_eq!(
        (
            capacities.len(),
            capacities.model(NodeId(1), DeviceSet(0b10)),
            capacities.model(NodeId(3), DeviceSet(0b1))
        ),
        (2, "T4", "")
    );
}
