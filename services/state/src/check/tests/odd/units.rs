//! Forms of units that make no sense.
#![allow(clippy::too_many_lines, reason = "tables")]

use super::*;

fn term() -> v1::LabelExpression {
    let operator = v1::LabelOperator::In.into();
    v1::LabelExpression { key: "zone".to_owned(), operator, values: vec!["a".to_owned()] }
}

fn group(it: &mut v1::UnitRecord) -> &mut v1::TaskGroup {
    &mut spec(it).task_groups[0]
}

fn spec(it: &mut v1::UnitRecord) -> &mut v1::UnitSpec {
    it.spec.as_mut().unwrap()
}

fn status(it: &mut v1::UnitRecord) -> &mut v1::UnitStatus {
    it.status.as_mut().unwrap()
}

fn template(it: &mut v1::UnitRecord) -> &mut v1::Template {
    group(it).template.as_mut().unwrap()
}

fn run(it: &mut v1::UnitRecord) -> &mut v1::RunSpec {
    template(it).run.as_mut().unwrap()
}

fn meta(it: &mut v1::UnitRecord) -> &mut v1::ObjectMeta {
    spec(it).meta.as_mut().unwrap()
}

/// Names, sizes, durations and states.
pub(super) fn units() -> Vec<Odd> {
    let surge = |ordinal, replaces| v1::Surge { ordinal, replaces, ..v1::Surge::default() };
    odd! { PutUnit:
        "put_unit.unit_id" => |it| it.unit_id = 0;
        "put_unit.spec.meta.namespace" => |it| meta(&mut it).namespace.clear();
        "put_unit.spec.meta.name" => |it| meta(&mut it).name.clear();
        "put_unit.spec.meta.name" => |it| meta(&mut it).name = long();
        "put_unit.spec.meta.labels[\"\"]" => |it| meta(&mut it).labels = [(String::new(), String::new())].into();
        "put_unit.spec.workload_class" => |it| spec(&mut it).workload_class = 0;
        "put_unit.spec.task_groups" => |it| {
            spec(&mut it).task_groups.clear();
            status(&mut it).ordinals.clear();
        };
        "put_unit.spec.task_groups[1]" => |it| {
            let again = group(&mut it).clone();
            spec(&mut it).task_groups.push(again);
            let ranges = vec![v1::OrdinalRange { start: 7, end: 9 }];
            status(&mut it).ordinals.push(v1::OrdinalRanges { ranges });
        };
        "put_unit.spec.task_groups[0].name" => |it| group(&mut it).name.clear();
        "put_unit.spec.task_groups[0].replicas" => |it| group(&mut it).replicas = 1_000_000;
        "put_unit.spec.task_groups[0].replicas" => |it| group(&mut it).replicas = 3;
        "put_unit.spec.task_groups[0].min_member" => |it| group(&mut it).min_member = Some(3);
        "put_unit.spec.min_member" => |it| spec(&mut it).min_member = Some(3);
        "put_unit.spec.priority" => |it| spec(&mut it).priority = Some(i32::MIN);
        "put_unit.spec.profile" => |it| spec(&mut it).profile = long();
        "put_unit.spec.queue" => |it| spec(&mut it).queue = long();
        "put_unit.spec.ttl_after_finished_ms" => |it| spec(&mut it).ttl_after_finished_ms = Some(u64::MAX);
        "put_unit.spec.min_run_ms" => |it| spec(&mut it).min_run_ms = u64::MAX;
        "put_unit.spec.scheduling_timeout_ms" => |it| spec(&mut it).scheduling_timeout_ms = Some(u64::MAX);
        "put_unit.spec.active_deadline_ms" => |it| spec(&mut it).active_deadline_ms = Some(u64::MAX);
        "put_unit.spec.max_restarts" => |it| spec(&mut it).max_restarts = Some(u32::MAX);
        "put_unit.spec.max_surge" => |it| spec(&mut it).max_surge = 101;
        "put_unit.spec.restart_policy" => |it| spec(&mut it).restart_policy = 99;
        "put_unit.status.ordinals[0].ranges[1]" => |it| status(&mut it).ordinals[0].ranges[1].start = 0;
        "put_unit.status.ordinals[0].ranges[1]" => |it| status(&mut it).ordinals[0].ranges[1].end = u32::MAX;
        "put_unit.status.ordinals[1].ranges[0]" => |it| {
            let other = v1::TaskGroup { name: "other".to_owned(), replicas: 1, ..group(&mut it).clone() };
            spec(&mut it).task_groups.push(other);
            let ranges = vec![v1::OrdinalRange { start: 3, end: 4 }];
            status(&mut it).ordinals.push(v1::OrdinalRanges { ranges });
        };
        "put_unit.status.whole_restarts" => |it| status(&mut it).whole_restarts = u32::MAX;
        "put_unit.status.principal" => |it| status(&mut it).principal = long();
        "put_unit.status.retried_time_ms" => |it| status(&mut it).retried_time_ms = -1;
        "put_unit.status.ended" => |it| status(&mut it).ended = 99;
        "put_unit.status.own_groups" => |it| status(&mut it).own_groups = 2;
        "put_unit.status.next_incarnations[0].incarnation" => |it| {
            status(&mut it).next_incarnations = vec![v1::NextIncarnation { ordinal: 0, incarnation: 0 }];
        };
        "put_unit.status.next_incarnations[1]" => |it| {
            status(&mut it).next_incarnations = vec![v1::NextIncarnation { ordinal: 0, incarnation: 1 }; 2];
        };
        "put_unit.status.surges[0].replaces" => |it| status(&mut it).surges = vec![surge(3, 3)];
        "put_unit.status.surges[1]" => |it| status(&mut it).surges = vec![surge(3, 0), surge(3, 1)];
        "put_unit.status.compacted.replicas" => |it| {
            status(&mut it).compacted = Some(v1::CompactedRuns { replicas: 1, succeeded: 1, failed: 1, ..v1::CompactedRuns::default() });
        };
    }
    .to_vec()
}

/// What one replica is, and where replicas go.
pub(super) fn templates() -> Vec<Odd> {
    let expression = |operator: v1::LabelOperator, n: usize| v1::LabelExpression {
        operator: operator.into(),
        values: vec!["1".to_owned(); n],
        ..term()
    };
    let requires = |expression| v1::NodeAffinity {
        required: vec![v1::NodeTerm { all_of: vec![expression] }],
        preferred: Vec::new(),
    };
    let near = |topology: &str, weight| v1::UnitAffinity {
        near: vec![v1::UnitTerm { units: vec![term()], topology: topology.to_owned(), weight }],
        ..v1::UnitAffinity::default()
    };
    let spread = |max_skew| v1::UnitAffinity {
        spread: vec![v1::SpreadTerm {
            units: Vec::new(),
            topology: "zone".to_owned(),
            max_skew: Some(max_skew),
            weight: 0,
        }],
        ..v1::UnitAffinity::default()
    };
    let volume = |name: &str| v1::Volume { name: name.to_owned(), bytes: 1, path: "/x".to_owned() };
    odd! { PutUnit:
        "put_unit.spec.task_groups[0].template.demand.requests.amounts[cpu]" => |it| template(&mut it).demand.as_mut().unwrap().requests = amounts("cpu", -1);
        "put_unit.spec.task_groups[0].template.demand.requests.amounts[\"cpu\"]" => |it| template(&mut it).demand.as_mut().unwrap().requests = amounts("cpu", i64::MAX);
        "put_unit.spec.task_groups[0].template.demand.devices[0].count" => |it| template(&mut it).demand.as_mut().unwrap().devices[0].count = 0;
        "put_unit.spec.task_groups[0].template.demand.devices[0].milli_per_device" => |it| template(&mut it).demand.as_mut().unwrap().devices[0].milli_per_device = Some(1_001);
        "put_unit.spec.task_groups[0].template.demand.host_ports[1]" => |it| {
            let port = v1::HostPort { port: 80, protocol: v1::Protocol::Tcp.into() };
            template(&mut it).demand.as_mut().unwrap().host_ports = vec![port; 2];
        };
        "put_unit.spec.task_groups[0].template.node_selector[\"\"]" => |it| template(&mut it).node_selector = [(String::new(), String::new())].into();
        "put_unit.spec.task_groups[0].template.max_load.cpu" => |it| template(&mut it).max_load = Some(v1::MaxLoad { cpu: Some(101), memory: None });
        "put_unit.spec.task_groups[0].template.max_load.memory" => |it| template(&mut it).max_load = Some(v1::MaxLoad { cpu: None, memory: Some(0) });
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of" => |it| {
            template(&mut it).node_affinity = Some(v1::NodeAffinity { required: vec![v1::NodeTerm::default()], preferred: Vec::new() });
        };
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of[0].key" => |it| {
            template(&mut it).node_affinity = Some(requires(v1::LabelExpression { key: String::new(), ..term() }));
        };
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of[0].operator" => |it| {
            template(&mut it).node_affinity = Some(requires(v1::LabelExpression { operator: 99, ..term() }));
        };
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of[0].values" => |it| {
            template(&mut it).node_affinity = Some(requires(expression(v1::LabelOperator::In, 0)));
        };
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of[0].values" => |it| {
            template(&mut it).node_affinity = Some(requires(expression(v1::LabelOperator::Exists, 1)));
        };
        "put_unit.spec.task_groups[0].template.node_affinity.required[0].all_of[0].values" => |it| {
            template(&mut it).node_affinity = Some(requires(expression(v1::LabelOperator::Gt, 2)));
        };
        "put_unit.spec.task_groups[0].template.node_affinity.preferred[0].weight" => |it| {
            let nodes = Some(v1::NodeTerm { all_of: vec![term()] });
            let preferred = vec![v1::PreferredNodes { weight: 101, nodes }];
            template(&mut it).node_affinity = Some(v1::NodeAffinity { required: Vec::new(), preferred });
        };
        "put_unit.spec.task_groups[0].template.run.env[\"\"]" => |it| run(&mut it).env = [(String::new(), String::new())].into();
        "put_unit.spec.task_groups[0].template.run.stop_grace_ms" => |it| run(&mut it).stop_grace_ms = u32::MAX;
        "put_unit.spec.task_groups[0].template.run.eviction_notice_ms" => |it| run(&mut it).eviction_notice_ms = u32::MAX;
        "put_unit.spec.task_groups[0].template.run.await_command_ms" => |it| run(&mut it).await_command_ms = Some(0);
        "put_unit.spec.task_groups[0].template.run.checkpoint_every_ms" => |it| run(&mut it).checkpoint_every_ms = Some(1);
        "put_unit.spec.task_groups[0].template.run.umask" => |it| run(&mut it).umask = Some(0o1000);
        "put_unit.spec.task_groups[0].template.run.volumes[0].name" => |it| run(&mut it).volumes = vec![volume("")];
        "put_unit.spec.task_groups[0].template.run.volumes[1]" => |it| run(&mut it).volumes = vec![volume("a"), volume("a")];
        "put_unit.spec.affinity.near[0].topology" => |it| spec(&mut it).affinity = Some(near("", 0));
        "put_unit.spec.affinity.near[0].weight" => |it| spec(&mut it).affinity = Some(near("zone", 101));
        "put_unit.spec.affinity.spread[0].max_skew" => |it| spec(&mut it).affinity = Some(spread(0));
        "put_unit.spec.topology.preferred[0]" => |it| spec(&mut it).topology = Some(v1::UnitTopology { preferred: vec![String::new()], ..v1::UnitTopology::default() });
        "put_unit.spec.topology.segments.size" => |it| {
            let segments = Some(v1::Segments { size: 0, within: "rack".to_owned() });
            spec(&mut it).topology = Some(v1::UnitTopology { segments, ..v1::UnitTopology::default() });
        };
        "put_unit.spec.task_groups[0].topology.segments.within" => |it| {
            let segments = Some(v1::Segments { size: 2, within: String::new() });
            group(&mut it).topology = Some(v1::UnitTopology { segments, ..v1::UnitTopology::default() });
        };
    }
    .to_vec()
}
