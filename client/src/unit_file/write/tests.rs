use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;
use crate::unit_file::{parse, words};

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,4}"
}

/// Text as somebody may give it: words, what looks like a number or a truth value, and everything else.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,5}",
        "[0-9]{1,4}(\\.[0-9]{1,2})?",
        "true|no|null|0x1F|~|<<",
        "[ -~]{1,8}",
        "\\PC{1,5}"
    ]
}

fn texts() -> impl Strategy<Value = std::collections::HashMap<String, String>> {
    proptest::collection::hash_map("[a-zA-Z0-9_./-]{1,6}", text(), 0..3)
}

fn words(known: &[(&'static str, i32)]) -> impl Strategy<Value = i32> + use<> {
    let numbers: Vec<i32> = known.iter().map(|(_, number)| *number).chain([0]).collect();
    select(numbers)
}

fn term() -> impl Strategy<Value = Vec<v1::LabelExpression>> {
    let texts =
        ["app = db", "zone in (a, b), !canary", "cores > 64, disk", "rack notin (1), app != x", "mail = x.y"];
    select(texts.to_vec()).prop_map(|text| {
        let conditions = godel_domain::label_expression::parse(text).unwrap();
        conditions.iter().map(godel_wire::to_proto::label_expression).collect()
    })
}

/// A device request: count, thousandths, models, and a kind of links with a speed.
type Drawn = (u32, Option<u32>, Vec<String>, Option<(String, u32)>);

fn demand() -> impl Strategy<Value = v1::Demand> {
    let amounts = (option::of(0i64..100_000), option::of(0i64..1 << 45), option::of(0i64..9));
    let device =
        (1u32..5, option::of(1u32..=1_000), vec("[A-Z0-9]{1,4}", 0..3), option::of((name(), 1u32..9)));
    let devices = vec(device, 0..3).prop_map(|devices| {
        let kinds = ["gpu", "nic", "npu"].into_iter();
        let device = |(kind, (count, milli, models, terms)): (&str, Drawn)| v1::DeviceRequest {
            kind: kind.to_owned(),
            count: if milli.is_some_and(|milli| milli < 1_000) { 1 } else { count },
            milli_per_device: milli,
            models,
            terms: terms.map(|(link, gbps)| v1::DeviceTerms {
                link,
                gbps,
                memory: i64::from(gbps) << 30,
                ..v1::DeviceTerms::default()
            }),
        };
        kinds.zip(devices).map(device).collect::<Vec<_>>()
    });
    let ports = proptest::collection::btree_set((1u32..=65_535, 1i32..=2), 0..3);
    let zones = option::of((words(&words::ZONE_POLICY), 0i32..2));
    (amounts, devices, ports, zones).prop_map(|((cpu, memory, fpga), devices, ports, zones)| {
        let amounts = [("cpu", cpu), ("memory", memory), ("fpga", fpga)].into_iter();
        let amounts = amounts.filter_map(|(name, amount)| Some((name.to_owned(), amount?))).collect();
        v1::Demand {
            requests: Some(v1::Resources { amounts }),
            devices,
            host_ports: ports.into_iter().map(|(port, protocol)| v1::HostPort { port, protocol }).collect(),
            zones: zones.map(|(policy, cpu_mode)| v1::ZoneRequest { policy, cpu_mode }),
        }
    })
}

fn run_spec() -> impl Strategy<Value = v1::RunSpec> {
    let place = (option::of("/[a-z ]{1,5}"), option::of("[a-z]{1,5}"), option::of(0u32..0o1000));
    let simulated = (option::of(0u64..100_000), -3i32..3);
    let times = (0u32..100_000, 0u32..100_000, option::of(1_000u64..100_000));
    (vec(text(), 0..3), texts(), place, simulated, times).prop_map(
        |(command, env, (directory, user, umask), (duration, exit_code), times)| {
            let (stop_grace_ms, eviction_notice_ms, checkpoint_every_ms) = times;
            v1::RunSpec {
                command,
                env,
                simulated_duration_ms: duration,
                simulated_exit_code: exit_code,
                stop_grace_ms,
                eviction_notice_ms,
                checkpoint_every_ms,
                working_directory: directory.unwrap_or_default(),
                user: user.unwrap_or_default(),
                umask,
                ..v1::RunSpec::default()
            }
        },
    )
}

fn template() -> impl Strategy<Value = v1::Template> {
    let toleration = (name(), option::of(text()), words(&words::EFFECT), 0u32..9).prop_map(
        |(key, value, effect, seconds)| v1::Toleration {
            key,
            any_value: value.is_none(),
            value: value.unwrap_or_default(),
            effect,
            tolerated_seconds: (effect == v1::TaintEffect::NoExecute as i32).then_some(seconds),
        },
    );
    let preferred = (1u32..=100, term())
        .prop_map(|(weight, all_of)| v1::PreferredNodes { weight, nodes: Some(v1::NodeTerm { all_of }) });
    let affinity = (vec(term(), 0..3), vec(preferred, 0..3)).prop_map(|(required, preferred)| {
        let required = required.into_iter().map(|all_of| v1::NodeTerm { all_of }).collect();
        v1::NodeAffinity { required, preferred }
    });
    let load = (option::of(1u32..=100), option::of(1u32..=100))
        .prop_map(|(cpu, memory)| v1::MaxLoad { cpu, memory });
    (demand(), texts(), vec(toleration, 0..3), option::of(affinity), option::of(load), run_spec()).prop_map(
        |(demand, node_selector, tolerations, node_affinity, max_load, run)| v1::Template {
            demand: Some(demand),
            node_selector,
            tolerations,
            node_affinity,
            max_load,
            run: Some(run),
        },
    )
}

fn spec() -> impl Strategy<Value = v1::UnitSpec> {
    let unit_term = || {
        (option::of(term()), name(), 0u32..=100).prop_map(|(units, topology, weight)| v1::UnitTerm {
            units: units.unwrap_or_default(),
            topology,
            weight,
        })
    };
    let spread = (option::of(term()), name(), option::of(1u32..9), 0u32..=100).prop_map(
        |(units, topology, max_skew, weight)| v1::SpreadTerm {
            units: units.unwrap_or_default(),
            topology,
            max_skew,
            weight,
        },
    );
    let affinity = (vec(unit_term(), 0..3), vec(unit_term(), 0..3), vec(spread, 0..3))
        .prop_map(|(near, apart, spread)| v1::UnitAffinity { near, apart, spread });
    let topology = (option::of(name()), vec(name(), 0..3), option::of((1u32..9, name()))).prop_map(
        |(required, preferred, segments)| v1::UnitTopology {
            required: required.unwrap_or_default(),
            preferred,
            homogeneous: String::new(),
            segments: segments.map(|(size, within)| v1::Segments { size, within }),
        },
    );
    let groups = prop_oneof![
        (Just(String::new()), 0u32..9, template()).prop_map(|one| vec![one]),
        (name(), 0u32..9, template()).prop_map(|one| vec![one]),
        (0u32..9, template(), template())
            .prop_map(|(n, a, b)| vec![("a".to_owned(), n, a), ("b".to_owned(), n, b)]),
    ];
    let choices = (
        words(&words::CLASS[..7]),
        words(&words::POOL[..1]),
        words(&words::RESTART),
        words(&words::ON_EVICTION),
        words(&words::ON_BELOW_MIN),
        words(&words::ON_FAILURE),
    );
    let numbers = (
        option::of(-9i32..9),
        option::of(Just(1u32)),
        option::of(0u32..9),
        option::of(any::<bool>()),
        option::of(1u64..1_000_000),
        option::of(0u64..1_000_000),
    );
    let meta = (name(), option::of(name()), texts(), option::of(text()), option::of(name()));
    (meta, groups, choices, numbers, option::of(affinity), option::of(topology)).prop_map(
        |((name, namespace, labels, owner, class_name), groups, choices, numbers, affinity, topology)| {
            let (class, pool, restart, eviction, below_min, failure) = choices;
            let (priority, min_member, max_restarts, preemptible, deadline, ttl) = numbers;
            let meta = v1::ObjectMeta {
                name,
                namespace: namespace.unwrap_or_default(),
                labels,
                owner: owner.unwrap_or_default(),
                ..v1::ObjectMeta::default()
            };
            let of_group = topology.clone().filter(|_| min_member.is_some_and(|n| n % 3 == 0));
            let group = |(name, replicas, template)| v1::TaskGroup {
                name,
                replicas,
                template: Some(template),
                min_member: min_member.filter(|n| *n % 2 == 0),
                topology: of_group.clone(),
            };
            v1::UnitSpec {
                meta: Some(meta),
                workload_class: class,
                task_groups: groups.into_iter().map(group).collect(),
                min_member,
                queue: if priority == Some(1) { "prod.search".to_owned() } else { String::new() },
                priority: priority.filter(|priority| class_name.is_none() || *priority != 0),
                priority_class: class_name.clone().unwrap_or_default(),
                pool,
                restart_policy: restart,
                profile: class_name.unwrap_or_default(),
                ttl_after_finished_ms: ttl,
                max_restarts,
                preemptible,
                min_run_ms: ttl.unwrap_or_default() / 2,
                on_eviction: eviction,
                on_below_min: below_min,
                on_failure: failure,
                scheduling_timeout_ms: deadline,
                active_deadline_ms: deadline,
                affinity,
                topology,
                generate_name: String::new(),
                max_surge: if class == v1::WorkloadClass::Service as i32 { 3 } else { 0 },
                movable: preemptible.filter(|_| min_member.is_none()),
            }
        },
    )
}

/// As a record has it: with all defaults.
fn recorded(spec: &v1::UnitSpec) -> Option<v1::UnitSpec> {
    admitted(spec).map(|spec| godel_wire::to_proto::unit_spec(&spec))
}

proptest! {
    /// What a unit is comes back from its file, as it was submitted and as the record has it; and the file of that is the
    /// same again.
    #[test]
    fn a_unit_comes_back_from_its_file(spec in spec()) {
        let Some(record) = recorded(&spec) else {
            return Err(TestCaseError::reject("no unit that is admitted"));
        };
        for unit in [&spec, &record] {
            let text = to_file(unit).map_err(|no_file| TestCaseError::fail(format!("{no_file} {unit:?}")))?;
            let read = parse(&text).unwrap().remove(0).spec;
            let read = recorded(&read);
            prop_assert_eq!(read.as_ref(), Some(&record), "{}", text);
        }
        let text = to_file(&record).unwrap();
        prop_assert_eq!(to_file(&parse(&text).unwrap().remove(0).spec).unwrap(), text);
    }
}

#[test]
fn a_file_reads_as_people_write_it() {
    let text = "\
name: web
namespace: shop
labels:
  app: web
  version: \"1.10\"
owner: alice
class: service
queue: default
priority: 7
pool: guaranteed
min_member: 1
restart_policy: always
max_restarts: 3
on_eviction: requeue
on_below_min: keep
on_failure: keep
preemptible: true
ttl_after_finished: 10m
affinity:
  near:
    - units: app = db, !canary
      topology: rack
replicas: 3
template:
  requests:
    cpu: 500m
    memory: 1Gi
  devices:
    - kind: gpu
      count: 1
      milli: 250
      models:
        - A10
        - T4
  command:
    - sleep
    - \"10\"
  umask: 0o27
";
    let spec = parse(text).unwrap().remove(0).spec;
    let file = to_file(&recorded(&spec).unwrap()).unwrap();
    assert_eq!(file.replace("\"app = db, !canary\"", "app = db, !canary"), text);
    let daemon = parse("name: d\nclass: daemon\ntemplate: {}\n").unwrap().remove(0).spec;
    let mut record = recorded(&daemon).unwrap();
    record.task_groups[0].replicas = 7;
    let file = to_file(&record).unwrap();
    assert!(!file.contains("replicas") && file.ends_with("template: {}\n"), "{file}");
}

#[test]
fn what_no_file_can_say_is_told() {
    let mut spec = parse("name: a\ntemplate: {}\n").unwrap().remove(0).spec;
    let all_of = vec![v1::LabelExpression {
        key: "app".to_owned(),
        operator: v1::LabelOperator::In.into(),
        values: vec!["a,b".to_owned()],
    }];
    let required = vec![v1::NodeTerm { all_of }];
    let affinity = v1::NodeAffinity { required, preferred: Vec::new() };
    spec.task_groups[0].template.as_mut().unwrap().node_affinity = Some(affinity);
    assert!(to_file(&spec).is_err());
}
