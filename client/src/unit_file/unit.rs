//! Documents of units.

use godel_base::quantity;
use godel_proto::v1;
use godel_wire::to_proto::host_port;

use super::{
    node_selector,
    read::{Fields, inside},
    unit_affinity, unit_topology, words, zones,
};

pub(super) fn unit(fields: &mut Fields<'_, '_>) -> v1::UnitSpec {
    fields.text("kind");
    let name = fields.text("name");
    let generate_name = fields.text("generate_name");
    let name = if generate_name.is_some() { name } else { fields.required("name", name) };
    let meta = v1::ObjectMeta {
        name: name.unwrap_or_default(),
        namespace: fields.text("namespace").unwrap_or_default(),
        uid: fields.text("uid").unwrap_or_default(),
        labels: fields.text_map("labels"),
        owner: fields.text("owner").unwrap_or_default(),
        ..v1::ObjectMeta::default()
    };
    let is_short = is_short(fields);
    let spec = v1::UnitSpec {
        meta: Some(meta),
        workload_class: fields.word("class", &words::CLASS),
        queue: fields.text("queue").unwrap_or_default(),
        priority: fields.number("priority"),
        priority_class: fields.text("priority_class").unwrap_or_default(),
        pool: fields.word("pool", &words::POOL),
        min_member: fields.number("min_member"),
        restart_policy: fields.word("restart_policy", &words::RESTART),
        profile: fields.text("profile").unwrap_or_default(),
        ttl_after_finished_ms: fields.duration("ttl_after_finished"),
        max_restarts: fields.number("max_restarts"),
        on_eviction: fields.word("on_eviction", &words::ON_EVICTION),
        on_below_min: fields.word("on_below_min", &words::ON_BELOW_MIN),
        on_failure: fields.word("on_failure", &words::ON_FAILURE),
        preemptible: fields.boolean("preemptible"),
        min_run_ms: fields.duration("min_run").unwrap_or_default(),
        max_surge: fields.number("max_surge").unwrap_or_default(),
        movable: fields.boolean("movable"),
        scheduling_timeout_ms: fields.duration("scheduling_timeout"),
        active_deadline_ms: fields.duration("active_deadline"),
        affinity: unit_affinity::read(fields),
        topology: unit_topology::read(fields),
        generate_name: generate_name.unwrap_or_default(),
        ..v1::UnitSpec::default()
    };
    // The short form: one group without a name.
    let replicas = fields.number("replicas");
    let template = fields.inside("template", template);
    let default = default_replicas(spec.workload_class);
    let short = v1::TaskGroup { replicas: replicas.unwrap_or(default), template, ..v1::TaskGroup::default() };
    let mut task_groups: Vec<v1::TaskGroup> = is_short.then_some(short).into_iter().collect();
    for (node, path) in fields.list("task_groups") {
        task_groups.extend(inside(node, path, fields.report, |fields| group(fields, default)));
    }
    v1::UnitSpec { task_groups, ..spec }
}

/// Replicas of a task group that does not say how many: the nodes say how many a daemon has.
pub(super) fn default_replicas(class: i32) -> u32 {
    u32::from(class != v1::WorkloadClass::Daemon as i32)
}

/// Whether the unit says its only group, or its first one, without `task_groups`.
pub(super) fn is_short(fields: &Fields<'_, '_>) -> bool {
    fields.has("template") || fields.has("replicas")
}

fn group(fields: &mut Fields<'_, '_>, default: u32) -> v1::TaskGroup {
    let name = fields.text("name").unwrap_or_default();
    let replicas = fields.number("replicas").unwrap_or(default);
    let min_member = fields.number("min_member");
    let template = fields.inside("template", template);
    let template = fields.required("template", template);
    let topology = unit_topology::read(fields);
    v1::TaskGroup { name, replicas, template, min_member, topology }
}

fn template(fields: &mut Fields<'_, '_>) -> v1::Template {
    let requests = requests(fields);
    let (devices, zones) = devices_in_zones(fields);
    let host_ports = fields.parsed_texts("host_ports", |text| text.parse().map(host_port));
    let mut template = v1::Template::default();
    node_selector::read(fields, &mut template);
    let mut tolerations = Vec::new();
    for (node, path) in fields.list("tolerations") {
        tolerations.extend(inside(node, path, fields.report, toleration));
    }
    let max_load = fields.inside("max_load", |fields| v1::MaxLoad {
        cpu: fields.number("cpu"),
        memory: fields.number("memory"),
    });
    let command = fields.texts("command");
    let env = fields.text_map("env");
    let stop_grace_ms = fields.duration("stop_grace").unwrap_or_default();
    let eviction_notice_ms = fields.duration("eviction_notice").unwrap_or_default();
    let checkpoint_every_ms = fields.duration("checkpoint_every");
    let await_command_ms = fields.duration("await_command");
    let working_directory = fields.text("working_directory").unwrap_or_default();
    let user = fields.text("user").unwrap_or_default();
    let umask = fields.octal("umask");
    let image = fields.text("image").unwrap_or_default();
    let mut volumes = Vec::new();
    for (node, path) in fields.list("volumes") {
        volumes.extend(inside(node, path, fields.report, volume));
    }
    let simulated = fields.inside("simulated", |fields| {
        (fields.duration("duration"), fields.number("exit_code").unwrap_or_default())
    });
    let (simulated_duration_ms, simulated_exit_code) = simulated.unwrap_or_default();
    let run = v1::RunSpec {
        command,
        env,
        simulated_duration_ms,
        simulated_exit_code,
        // What is too long for the field is too long for the rule as well.
        stop_grace_ms: u32::try_from(stop_grace_ms).unwrap_or(u32::MAX),
        eviction_notice_ms: u32::try_from(eviction_notice_ms).unwrap_or(u32::MAX),
        checkpoint_every_ms,
        await_command_ms,
        working_directory,
        user,
        umask,
        image,
        volumes,
    };
    v1::Template {
        demand: Some(v1::Demand { requests: Some(requests), devices, host_ports, zones }),
        tolerations,
        max_load,
        run: Some(run),
        ..template
    }
}

fn volume(fields: &mut Fields<'_, '_>) -> v1::Volume {
    v1::Volume {
        name: fields.text("name").unwrap_or_default(),
        bytes: fields.bytes("size").unwrap_or_default(),
        path: fields.text("path").unwrap_or_default(),
    }
}

/// What one replica, or one slot of a reservation, takes.
pub(super) fn requests(fields: &mut Fields<'_, '_>) -> v1::Resources {
    let mut amounts = fields.amounts("requests", quantity::parse);
    if amounts.remove(quantity::GPU).is_some() {
        let path = format!("{}[\"gpu\"]", fields.at("requests"));
        fields.report.rule(&path, "use the key `gpu` beside `requests`: `gpu: {count: 1}`");
    }
    v1::Resources { amounts: amounts.into_iter().collect() }
}

/// Devices of one replica, or of one slot of a reservation: one request or several as `devices`, or GPUs as `gpu`.
fn devices(fields: &mut Fields<'_, '_>) -> Vec<v1::DeviceRequest> {
    let gpus = fields.inside("gpu", |fields| device_request(fields, quantity::GPU.to_owned()));
    let devices = device_list(fields);
    if gpus.is_some() && !devices.is_empty() {
        fields.report.rule(&fields.at("gpu"), "add it to `devices`: `devices: [{kind: gpu}, ...]`");
    }
    gpus.into_iter().chain(devices).collect()
}

/// Reads devices, from `topology` too, and what is asked of zones.
pub(super) fn devices_in_zones(
    fields: &mut Fields<'_, '_>,
) -> (Vec<v1::DeviceRequest>, Option<v1::ZoneRequest>) {
    let mut devices = devices(fields);
    let (zones, in_topology) = zones::read(fields);
    if !devices.is_empty() && !in_topology.is_empty() {
        fields.report.rule(
            &fields.at("topology"),
            "devices are given in `devices` or in `topology.devices`, not in both",
        );
    }
    devices.extend(in_topology);
    (devices, zones)
}

/// One request or several as `devices`.
pub(super) fn device_list(fields: &mut Fields<'_, '_>) -> Vec<v1::DeviceRequest> {
    fields.one_or_more("devices", |fields| {
        let kind = fields.text("kind");
        let kind = fields.required("kind", kind).unwrap_or_default();
        device_request(fields, kind)
    })
}

fn device_request(fields: &mut Fields<'_, '_>, kind: String) -> v1::DeviceRequest {
    let mut models = fields.texts("models");
    models.extend(fields.text("model"));
    v1::DeviceRequest {
        kind,
        count: fields.number("count").unwrap_or(1),
        milli_per_device: fields.number("milli"),
        models,
        terms: zones::device_terms(fields),
    }
}

fn toleration(fields: &mut Fields<'_, '_>) -> v1::Toleration {
    let key = fields.text("key").unwrap_or_default();
    let any_value = !fields.has("value");
    let value = fields.text("value").unwrap_or_default();
    let effect = fields.word("effect", &words::EFFECT);
    v1::Toleration { key, any_value, value, effect, tolerated_seconds: fields.number("tolerated_seconds") }
}
