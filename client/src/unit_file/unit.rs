//! Units in files; what their replicas run is in [`super::run`].
//!
//! Every value is written, also where it is a default: what the unit is does not depend on the version that reads the
//! file. Left out are the uid, which is this unit's own, and how many replicas a daemon has, which the nodes say.

use std::mem;

use godel_base::quantity;
use godel_proto::v1;
use godel_wire::{ops, to_proto};

use super::{
    node_selector,
    notation::{InFile, Notation, own},
    words,
    yaml_out::Yaml,
    zones::{self, ZoneKeys},
};

/// The number of replicas of a daemon, which no file says: the nodes do.
pub(super) const OF_DAEMON: u32 = u32::MAX;

/// Replicas of a task group that does not say how many: the nodes say how many a daemon has.
pub(super) fn default_replicas(class: i32) -> u32 {
    u32::from(class != v1::WorkloadClass::Daemon as i32)
}

/// Whether a unit is written in the short form, with the template of its only task group at the top.
pub(super) fn is_short(task_groups: &[v1::TaskGroup]) -> bool {
    matches!(task_groups, [one] if matches!(one.name.as_str(), "" | "main") && one.min_member.is_none() && one.topology.is_none())
}

/// Whether the unit of a file says its only group, or its first one, without `task_groups`.
pub(super) fn has_short_form(file: &impl Notation) -> bool {
    file.has("template") || file.has("replicas")
}

impl InFile for v1::UnitSpec {
    fn visit(&mut self, file: &mut impl Notation) {
        // A new field breaks the build here: say how a file has it.
        let Self {
            meta,
            workload_class,
            task_groups,
            min_member,
            queue,
            priority,
            priority_class,
            pool,
            restart_policy,
            profile,
            ttl_after_finished_ms,
            max_restarts,
            preemptible,
            min_run_ms,
            on_eviction,
            on_below_min,
            on_failure,
            scheduling_timeout_ms,
            active_deadline_ms,
            affinity,
            topology,
            generate_name,
            max_surge,
            movable,
        } = self;
        let meta = meta.get_or_insert_default();
        if file.is_read() {
            file.text("kind", &mut String::new());
        }
        file.text("name", &mut meta.name);
        file.text("generate_name", generate_name);
        if !file.has("generate_name") {
            file.require("name");
        }
        file.text("namespace", &mut meta.namespace);
        if file.is_read() {
            file.text("uid", &mut meta.uid);
        }
        file.texts_by_key("labels", &mut meta.labels);
        file.text("owner", &mut meta.owner);
        file.word("class", workload_class, &words::CLASS);
        file.text("queue", queue);
        file.optional("priority", priority);
        file.text("priority_class", priority_class);
        file.word("pool", pool, &words::POOL);
        file.optional("min_member", min_member);
        file.word("restart_policy", restart_policy, &words::RESTART);
        file.optional("max_restarts", max_restarts);
        file.word("on_eviction", on_eviction, &words::ON_EVICTION);
        file.word("on_below_min", on_below_min, &words::ON_BELOW_MIN);
        file.word("on_failure", on_failure, &words::ON_FAILURE);
        file.boolean("preemptible", preemptible);
        file.above_zero("max_surge", max_surge);
        file.boolean("movable", movable);
        file.duration_above_zero("min_run", min_run_ms, u64::MAX);
        file.duration("scheduling_timeout", scheduling_timeout_ms);
        file.duration("active_deadline", active_deadline_ms);
        file.duration("ttl_after_finished", ttl_after_finished_ms);
        file.text("profile", profile);
        file.inside_unless_empty("affinity", affinity);
        file.inside_unless_empty("topology", topology);
        visit_groups(*workload_class, task_groups, file);
    }
}

/// In the short form the first group is a part of the unit and has no name.
fn visit_groups(class: i32, groups: &mut Vec<v1::TaskGroup>, file: &mut impl Notation) {
    let before = v1::TaskGroup { replicas: default_replicas(class), ..v1::TaskGroup::default() };
    let is_short = if file.is_read() { has_short_form(file) } else { is_short(groups) };
    let mut first = if is_short { groups.pop() } else { None }.unwrap_or_else(|| before.clone());
    if is_short || file.is_read() {
        visit_replicas(&mut first.replicas, file);
        file.inside("template", &mut first.template);
    }
    file.messages("task_groups", groups, &before);
    if is_short {
        groups.insert(0, first);
    }
}

/// The number of replicas, 0 too; that of a daemon is not in files.
fn visit_replicas(replicas: &mut u32, file: &mut impl Notation) {
    let mut said = Some(*replicas).filter(|n| *n != OF_DAEMON);
    file.optional("replicas", &mut said);
    *replicas = said.unwrap_or(*replicas);
}

impl InFile for v1::TaskGroup {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { name, replicas, template, min_member, topology } = self;
        file.text("name", name);
        visit_replicas(replicas, file);
        file.optional("min_member", min_member);
        file.inside_unless_empty("topology", topology);
        file.inside("template", template);
        file.require("template");
    }
}

impl InFile for v1::Template {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { demand, node_selector: selector, tolerations, run, node_affinity, max_load } = self;
        let demand = demand.get_or_insert_default();
        requests(demand.requests.get_or_insert_default(), file);
        devices_in_zones(&mut demand.devices, &mut demand.zones, file);
        file.scalars(
            "host_ports",
            &mut demand.host_ports,
            |text| text.parse().map(to_proto::host_port),
            |port| ops::host_port(port).map_or_else(|| Yaml::plain(port.port), Yaml::plain),
        );
        node_selector::visit(selector, node_affinity, file);
        file.messages("tolerations", tolerations, &v1::Toleration::default());
        file.inside_unless_empty("max_load", max_load);
        run.get_or_insert_default().visit(file);
    }
}

impl InFile for v1::MaxLoad {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { cpu, memory } = self;
        file.optional("cpu", cpu);
        file.optional("memory", memory);
    }
}

/// What one replica, or one slot of a reservation, takes.
pub(super) fn requests(requests: &mut v1::Resources, file: &mut impl Notation) {
    let amounts = &mut requests.amounts;
    file.by_key("requests", amounts, quantity::parse, |name, amount| {
        Yaml::plain(quantity::show(name, *amount))
    });
    if file.is_read() && amounts.remove(quantity::GPU).is_some() {
        file.note("requests[\"gpu\"]", "use the key `gpu` beside `requests`: `gpu: {count: 1}`");
    }
}

/// Devices of one replica, or of one slot of a reservation, and what is asked of zones: one request or several as `devices`, GPUs as
/// `gpu` too, and all of them as `topology.devices` too.
pub(super) fn devices_in_zones(
    devices: &mut Vec<v1::DeviceRequest>,
    zones: &mut Option<v1::ZoneRequest>,
    file: &mut impl Notation,
) {
    if file.is_read() {
        let one =
            || v1::DeviceRequest { kind: quantity::GPU.to_owned(), count: 1, ..v1::DeviceRequest::default() };
        let mut gpus = file.has("gpu").then(|| GpuRequest(one()));
        file.inside("gpu", &mut gpus);
        let gpus = gpus.map(|GpuRequest(request)| request);
        visit_devices(devices, file);
        if gpus.is_some() && !devices.is_empty() {
            file.note("gpu", "add it to `devices`: `devices: [{kind: gpu}, ...]`");
        }
        if let Some(gpus) = gpus {
            devices.insert(0, gpus);
        }
    } else {
        visit_devices(devices, file);
    }
    let zone_keys = ZoneKeys { request: zones.take().unwrap_or_default(), devices: Vec::new() };
    let mut zone_keys = Some(zone_keys);
    file.inside_unless_empty("topology", &mut zone_keys);
    let ZoneKeys { request, devices: in_topology } = zone_keys.unwrap_or_default();
    *zones = (request != v1::ZoneRequest::default()).then_some(request);
    if !devices.is_empty() && !in_topology.is_empty() {
        file.note("topology", "devices are given in `devices` or in `topology.devices`, not in both");
    }
    devices.extend(in_topology);
}

/// One request or several as `devices`.
pub(super) fn visit_devices(devices: &mut Vec<v1::DeviceRequest>, file: &mut impl Notation) {
    let before = v1::DeviceRequest { count: 1, ..v1::DeviceRequest::default() };
    if file.has("devices") && !file.has_list("devices") {
        let mut one = Some(before);
        file.inside("devices", &mut one);
        devices.extend(one);
    } else {
        file.messages("devices", devices, &before);
    }
}

impl InFile for v1::DeviceRequest {
    fn visit(&mut self, file: &mut impl Notation) {
        if !file.is_read() && self.kind.is_empty() {
            self.kind = quantity::GPU.to_owned();
        }
        file.required_text("kind", &mut self.kind);
        visit_device(self, file);
    }
}

/// A request for devices that does not say their kind.
#[derive(Clone, Default, PartialEq)]
struct GpuRequest(v1::DeviceRequest);

impl InFile for GpuRequest {
    fn visit(&mut self, file: &mut impl Notation) {
        visit_device(&mut self.0, file);
    }
}

fn visit_device(request: &mut v1::DeviceRequest, file: &mut impl Notation) {
    let v1::DeviceRequest { kind: _, count, milli_per_device, models, terms } = request;
    file.number("count", count);
    file.optional("milli", milli_per_device);
    file.texts("models", models);
    if file.is_read() {
        let mut model = None;
        file.scalar("model", &mut model, own, |model| Yaml::text_of(model));
        models.extend(model);
    }
    let mut said = mem::take(terms).unwrap_or_default();
    zones::visit_terms(&mut said, file);
    *terms = (said != v1::DeviceTerms::default()).then_some(said);
}

impl InFile for v1::Toleration {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { key, value, any_value, effect, tolerated_seconds } = self;
        file.text("key", key);
        let mut given = (!file.is_read() && !*any_value).then(|| mem::take(value));
        file.scalar("value", &mut given, own, |value| Yaml::text_of(value));
        *any_value = given.is_none();
        *value = given.unwrap_or_default();
        file.word("effect", effect, &words::EFFECT);
        file.optional("tolerated_seconds", tolerated_seconds);
    }
}
