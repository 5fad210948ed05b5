//! Every kind of violation, and the field that it names.

use godel_domain::{
    demand::DeviceTerms,
    label_expression::LabelOperator,
    limits::SPEC_BYTES_MAX,
    node::TaintEffect,
    node_load::MaxLoad,
    submission::{
        AskedCpuMode, DeviceSubmission, ExpressionSubmission, NodeAffinitySubmission, SpreadSubmission,
        TolerationSubmission, UnitTermSubmission, ZoneSubmission,
    },
    unit::{Volume, WorkloadClass},
    unit_topology::Segments,
    zone::ZonePolicy,
};

use super::*;

/// Every violation kind: what is changed in a good submission, and the fields that are named for it.
#[test]
#[allow(clippy::too_many_lines, reason = "one table of all kinds")]
fn every_violation_names_its_field() {
    type Case = (&'static str, fn(&mut Submission), &'static [&'static str]);
    const REQUESTS: &str = "task_groups[0].template.demand.requests";
    let cases: &[Case] = &[
        ("good", |_| {}, &[]),
        ("size", |s| s.encoded_len = SPEC_BYTES_MAX + 1, &["unit"]),
        ("namespace", |s| s.namespace = "Prod".into(), &["meta.namespace"]),
        ("long namespace", |s| s.namespace = "n".repeat(64), &["meta.namespace"]),
        ("no name", |s| s.name.clear(), &["meta.name"]),
        ("name", |s| s.name = "web_1".into(), &["meta.name"]),
        ("long name", |s| s.name = "n".repeat(254), &["meta.name"]),
        ("uid", |s| s.uid = "7".into(), &["meta.uid"]),
        ("label key", |s| drop(s.labels.insert("a b".into(), "x".into())), &["meta.labels[\"a b\"]"]),
        ("label value", |s| drop(s.labels.insert("a".into(), "\n".into())), &["meta.labels[\"a\"]"]),
        (
            "host ports",
            |s| s.task_groups[0].host_ports = vec![(80, 0), (80, 1), (80, 2), (0, 1), (65_536, 1), (8, 3)],
            &[
                "task_groups[0].template.demand.host_ports[1]",
                "task_groups[0].template.demand.host_ports[3].port",
                "task_groups[0].template.demand.host_ports[4].port",
                "task_groups[0].template.demand.host_ports[5].protocol",
            ],
        ),
        (
            "load limits",
            |s| s.task_groups[0].max_load = MaxLoad { cpu: Some(0), memory: Some(101) },
            &["task_groups[0].template.max_load.cpu", "task_groups[0].template.max_load.memory"],
        ),
        (
            "node affinity",
            |s| {
                let one = |operator, values: &[&str]| ExpressionSubmission {
                    key: "zone".into(),
                    operator,
                    values: values.iter().map(|value| (*value).into()).collect(),
                };
                let good = one(Given::Value(LabelOperator::In), &["a"]);
                s.task_groups[0].node_affinity = NodeAffinitySubmission {
                    required: vec![
                        vec![good.clone()],
                        Vec::new(),
                        vec![good.clone(), one(Given::Value(LabelOperator::Gt), &["many"])],
                        vec![one(Given::Absent, &[]), one(Given::Unknown(9), &[])],
                    ],
                    preferred: vec![(100, vec![good.clone()]), (0, vec![good.clone()]), (101, vec![good])],
                };
            },
            &[
                "task_groups[0].template.node_affinity.required[1]",
                "task_groups[0].template.node_affinity.required[2].all_of[1]",
                "task_groups[0].template.node_affinity.required[3].all_of[0].operator",
                "task_groups[0].template.node_affinity.required[3].all_of[1].operator",
                "task_groups[0].template.node_affinity.preferred[1].weight",
                "task_groups[0].template.node_affinity.preferred[2].weight",
            ],
        ),
        (
            "labels",
            |s| s.labels = (0..65).map(|i| (format!("k{i}"), String::new())).collect(),
            &["meta.labels"],
        ),
        ("owner", |s| s.owner = "o".repeat(254), &["meta.owner"]),
        ("class", |s| s.class = Given::Unknown(99), &["workload_class"]),
        ("no group", |s| s.task_groups.clear(), &["task_groups"]),
        (
            "groups",
            |s| {
                s.task_groups =
                    (0..1_025).map(|i| GroupSubmission { name: format!("g{i}"), ..group(1) }).collect()
            },
            &["task_groups"],
        ),
        ("twice", |s| s.task_groups.push(group(1)), &["task_groups[1].name"]),
        ("group name", |s| s.task_groups[0].name = "A".into(), &["task_groups[0].name"]),
        ("no replicas", |s| s.task_groups[0].replicas = 0, &["task_groups[0].replicas"]),
        ("replicas", |s| s.task_groups[0].replicas = 100_001, &["task_groups[0].replicas", "task_groups"]),
        (
            "replicas over all",
            |s| s.task_groups = vec![group(99_999), GroupSubmission { name: "b".into(), ..group(2) }],
            &["task_groups"],
        ),
        (
            "group minima",
            |s| {
                let one = |name: &str, replicas, min_member| GroupSubmission {
                    name: name.into(),
                    min_member: Some(min_member),
                    ..group(replicas)
                };
                s.task_groups = vec![one("a", 2, 0), one("b", 2, 3), one("c", 2, 2)];
                s.min_member = Some(1);
            },
            &["task_groups[0].min_member", "task_groups[1].min_member", "min_member"],
        ),
        (
            "names",
            |s| s.task_groups[0].requests = (0..33).map(|i| (format!("r{i}"), 1)).collect(),
            &[REQUESTS],
        ),
        (
            "resource name",
            |s| s.task_groups[0].requests[0].0 = "a b".into(),
            &["task_groups[0].template.demand.requests[\"a b\"]"],
        ),
        (
            "negative",
            |s| s.task_groups[0].requests[0].1 = -1,
            &["task_groups[0].template.demand.requests[\"cpu\"]"],
        ),
        (
            "huge",
            |s| s.task_groups[0].requests[0].1 = i64::MAX,
            &["task_groups[0].template.demand.requests[\"cpu\"]"],
        ),
        (
            "device kind",
            |s| {
                s.task_groups[0].devices =
                    vec![DeviceSubmission { kind: "cpu".into(), ..devices(1, 0)[0].clone() }]
            },
            &["task_groups[0].template.demand.devices[0].kind"],
        ),
        (
            "the same kind of device twice",
            |s| s.task_groups[0].devices = [devices(1, 0), devices(2, 0)].concat(),
            &["task_groups[0].template.demand.devices[1].kind"],
        ),
        (
            "too many kinds of devices",
            |s| {
                let of = |n: u32| DeviceSubmission { kind: format!("kind-{n}"), ..devices(1, 0)[0].clone() };
                s.task_groups[0].devices = (0..5).map(of).collect();
            },
            &["task_groups[0].template.demand.devices"],
        ),
        (
            "reclaimed CPUs of a guaranteed unit",
            |s| s.task_groups[0].zones.cpu_mode = Given::Value(AskedCpuMode::Reclaimed),
            &["task_groups[0].template.demand.zones.cpu_mode"],
        ),
        (
            "dedicated CPUs that are no whole ones, in no zones",
            |s| {
                s.task_groups[0].requests = vec![("cpu".to_owned(), 1_500)];
                s.task_groups[0].zones = ZoneSubmission {
                    policy: Given::Value(None),
                    cpu_mode: Given::Value(AskedCpuMode::Dedicated),
                };
            },
            &["task_groups[0].template.demand.zones.cpu_mode", "task_groups[0].template.demand.zones.policy"],
        ),
        (
            "zones of a best-effort unit",
            |s| {
                s.pool = Given::Value(Pool::BestEffort);
                s.task_groups[0].zones.policy = Given::Value(Some(ZonePolicy::Exclusive));
                s.task_groups[0].zones.cpu_mode = Given::Value(AskedCpuMode::Shared);
            },
            &["task_groups[0].template.demand.zones.cpu_mode", "task_groups[0].template.demand.zones.policy"],
        ),
        (
            "words of zones that stand for nothing",
            |s| {
                s.task_groups[0].zones =
                    ZoneSubmission { policy: Given::Unknown(9), cpu_mode: Given::Unknown(9) };
            },
            &["task_groups[0].template.demand.zones.cpu_mode", "task_groups[0].template.demand.zones.policy"],
        ),
        (
            "devices beside none",
            |s| {
                let beside = |kind: &str, other: &str| DeviceSubmission {
                    kind: kind.into(),
                    terms: DeviceTerms { same_zone_as: other.into(), ..DeviceTerms::default() },
                    ..devices(1, 1_000)[0].clone()
                };
                s.task_groups[0].devices =
                    vec![beside("gpu", "npu"), beside("nic", "gpu"), beside("fpga", "fpga")];
            },
            &[
                "task_groups[0].template.demand.devices[0].terms.same_zone_as",
                "task_groups[0].template.demand.devices[1].terms.same_zone_as",
                "task_groups[0].template.demand.devices[2].terms.same_zone_as",
            ],
        ),
        (
            "a profile of several devices, linked, too fast and too large",
            |s| {
                let terms = DeviceTerms {
                    link: "nvlink".into(),
                    gbps: 2_000_000,
                    memory: -1,
                    same_zone_as: String::new(),
                    profile: "3g".into(),
                };
                s.task_groups[0].devices = vec![DeviceSubmission { terms, ..devices(2, 1_000)[0].clone() }];
            },
            &[
                "task_groups[0].template.demand.devices[0].terms.gbps",
                "task_groups[0].template.demand.devices[0].terms.memory",
                "task_groups[0].template.demand.devices[0].terms.profile",
                "task_groups[0].template.demand.devices[0].terms.profile",
            ],
        ),
        (
            "no devices",
            |s| s.task_groups[0].devices = devices(0, 0),
            &["task_groups[0].template.demand.devices[0].count"],
        ),
        (
            "devices",
            |s| s.task_groups[0].devices = devices(65, 0),
            &["task_groups[0].template.demand.devices[0].count"],
        ),
        (
            "share",
            |s| s.task_groups[0].devices = devices(1, 1001),
            &["task_groups[0].template.demand.devices[0].milli_per_device"],
        ),
        (
            "share of several",
            |s| s.task_groups[0].devices = devices(2, 500),
            &["task_groups[0].template.demand.devices[0].milli_per_device"],
        ),
        (
            "model",
            |s| {
                s.task_groups[0].devices =
                    vec![DeviceSubmission { models: vec![String::new()], ..devices(1, 0)[0].clone() }]
            },
            &["task_groups[0].template.demand.devices[0].models[0]"],
        ),
        (
            "selector",
            |s| drop(s.task_groups[0].node_selector.insert("a b".into(), String::new())),
            &["task_groups[0].template.node_selector[\"a b\"]"],
        ),
        (
            "toleration value",
            |s| {
                s.task_groups[0].tolerations = vec![TolerationSubmission {
                    value: "x".into(),
                    any_value: true,
                    ..TolerationSubmission::default()
                }];
            },
            &["task_groups[0].template.tolerations[0].value"],
        ),
        (
            "toleration effect",
            |s| {
                s.task_groups[0].tolerations = vec![TolerationSubmission {
                    effect: Given::Unknown(9),
                    ..TolerationSubmission::default()
                }];
            },
            &["task_groups[0].template.tolerations[0].effect"],
        ),
        (
            "tolerated time",
            |s| {
                let given = |effect| TolerationSubmission {
                    effect,
                    tolerated_s: Some(0),
                    ..TolerationSubmission::default()
                };
                s.task_groups[0].tolerations = vec![
                    given(Given::Value(TaintEffect::NoExecute)),
                    given(Given::Absent),
                    given(Given::Value(TaintEffect::NoSchedule)),
                ];
            },
            &[
                "task_groups[0].template.tolerations[1].tolerated_seconds",
                "task_groups[0].template.tolerations[2].tolerated_seconds",
            ],
        ),
        (
            "what is counted by itself",
            |s| s.task_groups[0].requests.push(("running-units".into(), 1)),
            &["task_groups[0].template.demand.requests[\"running-units\"]"],
        ),
        (
            "environment",
            |s| drop(s.task_groups[0].run.env.insert("A=B".into(), String::new())),
            &["task_groups[0].template.run.env[\"A=B\"]"],
        ),
        (
            "no program",
            |s| s.task_groups[0].run.command = vec![String::new()],
            &["task_groups[0].template.run.command[0]"],
        ),
        (
            "grace",
            |s| s.task_groups[0].run.stop_grace_ms = u32::MAX,
            &["task_groups[0].template.run.stop_grace_ms"],
        ),
        (
            "notice",
            |s| s.task_groups[0].run.eviction_notice_ms = 300_001,
            &["task_groups[0].template.run.eviction_notice_ms"],
        ),
        (
            "checkpoints all the time",
            |s| s.task_groups[0].run.checkpoint_every_ms = Some(999),
            &["task_groups[0].template.run.checkpoint_every_ms"],
        ),
        (
            "checkpoints hardly ever",
            |s| s.task_groups[0].run.checkpoint_every_ms = Some(2_592_000_001),
            &["task_groups[0].template.run.checkpoint_every_ms"],
        ),
        (
            "a command that never may come",
            |s| s.task_groups[0].run.await_command_ms = Some(0),
            &["task_groups[0].template.run.await_command_ms"],
        ),
        (
            "a command that comes at once and later",
            |s| {
                s.task_groups[0].run.command = vec!["true".into()];
                s.task_groups[0].run.await_command_ms = Some(1);
            },
            &["task_groups[0].template.run.await_command_ms"],
        ),
        (
            "an image and a command that comes later",
            |s| {
                s.task_groups[0].run.image = Some("web:1".into());
                s.task_groups[0].run.await_command_ms = Some(1);
            },
            &["task_groups[0].template.run.await_command_ms"],
        ),
        (
            "an image that is none",
            |s| s.task_groups[0].run.image = Some("web\n:1".into()),
            &["task_groups[0].template.run.image"],
        ),
        (
            "an image that leaves its path",
            |s| s.task_groups[0].run.image = Some("web/../x:1".into()),
            &["task_groups[0].template.run.image"],
        ),
        (
            "a long image",
            |s| s.task_groups[0].run.image = Some("i".repeat(513)),
            &["task_groups[0].template.run.image"],
        ),
        (
            "an image that looks like a flag",
            |s| s.task_groups[0].run.image = Some("--web".into()),
            &["task_groups[0].template.run.image"],
        ),
        (
            "an image with a umask",
            |s| {
                s.task_groups[0].run.image = Some("web:1".into());
                s.task_groups[0].run.umask = Some(0o22);
            },
            &["task_groups[0].template.run.image"],
        ),
        (
            "volumes that are not sound",
            |s| {
                let volume = |name: &str, bytes, path: &str| Volume {
                    name: name.to_owned(),
                    bytes,
                    path: Some(path.to_owned()).filter(|path| !path.is_empty()),
                };
                s.task_groups[0].run.volumes = vec![
                    volume("Data", 1, ""),
                    volume("a", 0, "relative"),
                    volume("a", 1, "/x/../y"),
                    volume("b", 1, "/x:y"),
                    volume("c", 1, "/"),
                    volume("d", 1, "/z"),
                    volume("e", u64::MAX, "/z"),
                ];
            },
            &[
                "task_groups[0].template.run.volumes[0].name",
                "task_groups[0].template.run.volumes[1].bytes",
                "task_groups[0].template.run.volumes[1].path",
                "task_groups[0].template.run.volumes[2].name",
                "task_groups[0].template.run.volumes[2].path",
                "task_groups[0].template.run.volumes[3].path",
                "task_groups[0].template.run.volumes[4].path",
                "task_groups[0].template.run.volumes[6].bytes",
                "task_groups[0].template.run.volumes[6].path",
            ],
        ),
        (
            "a volume that a container finds nowhere",
            |s| {
                s.task_groups[0].run.image = Some("web:1".into());
                s.task_groups[0].run.volumes = vec![Volume { name: "a".into(), bytes: 1, path: None }];
            },
            &["task_groups[0].template.run.volumes[0].path"],
        ),
        (
            "too many volumes",
            |s| {
                let volume = |n: u32| Volume { name: format!("v{n}"), bytes: 1, path: None };
                s.task_groups[0].run.volumes = (0..17).map(volume).collect();
            },
            &["task_groups[0].template.run.volumes"],
        ),
        ("min_member above replicas", |s| s.min_member = Some(3), &["min_member"]),
        (
            "min_member",
            |s| {
                s.task_groups[0].replicas = 20_000;
                s.min_member = Some(10_001);
            },
            &["min_member"],
        ),
        (
            "a gang too large",
            |s| {
                s.task_groups[0].replicas = 20_000;
                s.class = Given::Value(WorkloadClass::Gang);
            },
            &["min_member"],
        ),
        ("queue", |s| s.queue = "a..b".into(), &["queue"]),
        ("queue of another grammar", |s| s.queue = "org/ml".into(), &["queue"]),
        ("deep queue", |s| s.queue = "a.b.c.d.e.f.g.h.i".into(), &["queue"]),
        ("priority class", |s| s.priority_class = "Gold".into(), &["priority_class"]),
        ("long priority class", |s| s.priority_class = "c".repeat(64), &["priority_class"]),
        ("priority", |s| s.priority = Some(i32::MAX), &["priority"]),
        ("the band of the system by hand", |s| s.priority = Some(1_000_000_000), &["priority"]),
        ("pool", |s| s.pool = Given::Unknown(7), &["pool"]),
        ("on_eviction", |s| s.on_eviction = Given::Unknown(7), &["on_eviction"]),
        ("on_below_min", |s| s.on_below_min = Given::Unknown(7), &["on_below_min"]),
        ("restart", |s| s.restart_policy = Given::Unknown(7), &["restart_policy"]),
        ("profile", |s| s.profile = "Least_Allocated".into(), &["profile"]),
        ("ttl", |s| s.ttl_after_finished_ms = Some(u64::MAX), &["ttl_after_finished_ms"]),
        ("restarts", |s| s.max_restarts = Some(1_001), &["max_restarts"]),
        (
            "moved, though its class never is",
            |s| (s.class, s.movable) = (Given::Value(WorkloadClass::Yarn), Some(true)),
            &["movable"],
        ),
        (
            "replacements first",
            |s| (s.class, s.max_surge) = (Given::Value(WorkloadClass::Service), 101),
            &["max_surge"],
        ),
        (
            "replacements first of another class",
            |s| (s.class, s.max_surge) = (Given::Value(WorkloadClass::Stateful), 1),
            &["max_surge"],
        ),
        (
            "replacements first beside segments",
            |s| {
                (s.class, s.max_surge) = (Given::Value(WorkloadClass::Service), 100);
                s.topology.segments = Some(Segments { size: 2, within: "rack".into() });
            },
            &["max_surge"],
        ),
        (
            "terms of units",
            |s| {
                let near = |units, topology: &str, weight| UnitTermSubmission {
                    units,
                    topology: topology.into(),
                    weight,
                };
                let one =
                    |operator| ExpressionSubmission { key: "app".into(), operator, ..Default::default() };
                let exists = one(Given::Value(LabelOperator::Exists));
                s.affinity.near = vec![
                    near(vec![one(Given::Absent), exists.clone()], "rack", 100),
                    near(vec![exists.clone(), one(Given::Value(LabelOperator::In))], "", 0),
                    near(vec![exists; 65], "a b", 101),
                ];
                s.affinity.apart = vec![near(Vec::new(), "node", 0); 9];
            },
            &[
                "affinity.near[0].units[0].operator",
                "affinity.near[1].units[1]",
                "affinity.near[1].topology",
                "affinity.near[2].units",
                "affinity.near[2].topology",
                "affinity.near[2].weight",
                "affinity.apart",
            ],
        ),
        (
            "spread",
            |s| {
                let spread = |max_skew, weight| SpreadSubmission {
                    topology: "rack".into(),
                    max_skew,
                    weight,
                    ..SpreadSubmission::default()
                };
                s.affinity.spread = vec![
                    spread(None, 0),
                    spread(Some(10_000), 100),
                    spread(Some(0), 0),
                    spread(Some(10_001), 0),
                    SpreadSubmission { units: vec![ExpressionSubmission::default()], ..spread(None, 101) },
                    SpreadSubmission { topology: String::new(), ..spread(None, 0) },
                ];
            },
            &[
                "affinity.spread[2].max_skew",
                "affinity.spread[3].max_skew",
                "affinity.spread[4].units[0].operator",
                "affinity.spread[4].weight",
                "affinity.spread[5].topology",
            ],
        ),
    ];
    for (name, change, fields) in cases {
        let mut given = submission();
        change(&mut given);
        let found = admit(given).err().unwrap_or_default();
        let found: Vec<&str> = found.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(&found, fields, "{name}");
    }
}

#[test]
fn topologies_of_task_groups_are_checked_like_that_of_the_unit() {
    use godel_domain::unit_topology::{Segments, UnitTopology};

    let topology = UnitTopology {
        required: "a b".to_owned(),
        preferred: vec!["rack".to_owned(), "rack".to_owned()],
        segments: Some(Segments { size: 0, within: "rack".to_owned() }),
        ..UnitTopology::default()
    };
    let mut wrong = submission();
    wrong.task_groups[0].topology = Some(Box::new(topology.clone()));
    let fields = |submission| -> Vec<String> {
        let refused = admit(submission).unwrap_err();
        refused.into_iter().map(|one| one.field).filter(|field| field.contains("topology")).collect()
    };
    assert_eq!(
        fields(wrong),
        [
            "task_groups[0].topology.required",
            "task_groups[0].topology.preferred[1]",
            "task_groups[0].topology.segments.size"
        ]
    );
    // Segments are of one level only, and a daemon is on every node.
    let in_rack = || Some(Box::new(UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() }));
    let mut both = submission();
    both.task_groups[0].topology = in_rack();
    both.topology.segments = Some(Segments { size: 2, within: "rack".to_owned() });
    assert_eq!(fields(both), ["task_groups[0].topology"]);
    let mut fine = submission();
    fine.task_groups[0].topology = in_rack();
    fine.topology = UnitTopology { required: "zone".to_owned(), ..UnitTopology::default() };
    assert_eq!(admit(fine).unwrap().spec.task_groups[0].topology, in_rack());
    // What says nothing is not kept.
    let mut nothing = submission();
    nothing.task_groups[0].topology = Some(Box::default());
    assert_eq!(admit(nothing).unwrap().spec.task_groups[0].topology, None);
}
