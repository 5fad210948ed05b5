//! Submissions as clients write them: lenient, so that admission can name every wrong field at once.

use godel_domain::{
    node::TaintEffect,
    submission::{
        AskedCpuMode, DeviceSubmission, ExpressionSubmission, Given, GroupChanges, GroupSubmission,
        NodeAffinitySubmission, SpreadSubmission, Submission, TolerationSubmission, UnitAffinitySubmission,
        UnitTermSubmission, ZoneSubmission,
    },
};
use godel_proto::v1;
use prost::Message as _;

use crate::{BadField, zones};

/// A unit as a client wrote it, for the checks of admission: nothing is refused here.
pub fn submission(unit: v1::UnitSpec) -> Submission {
    let encoded_len = unit.encoded_len();
    let meta = unit.meta.unwrap_or_default();
    Submission {
        encoded_len,
        namespace: meta.namespace,
        name: meta.name,
        generate_name: unit.generate_name,
        uid: meta.uid,
        labels: meta.labels.into_iter().collect(),
        owner: meta.owner,
        class: given(unit.workload_class, super::workload_class),
        task_groups: unit.task_groups.into_iter().map(group).collect(),
        min_member: unit.min_member,
        queue: unit.queue,
        priority: unit.priority,
        priority_class: unit.priority_class,
        pool: match unit.pool {
            0 => Given::Absent,
            number => given(number, |number| super::pool(number).map(Some)),
        },
        restart_policy: given(unit.restart_policy, super::restart_policy),
        profile: unit.profile,
        ttl_after_finished_ms: unit.ttl_after_finished_ms,
        max_restarts: unit.max_restarts,
        on_eviction: given(unit.on_eviction, super::on_eviction),
        on_below_min: given(unit.on_below_min, super::on_below_min),
        on_failure: given(unit.on_failure, super::on_failure),
        preemptible: unit.preemptible,
        min_run_ms: unit.min_run_ms,
        scheduling_timeout_ms: unit.scheduling_timeout_ms,
        active_deadline_ms: unit.active_deadline_ms,
        affinity: unit_affinity(unit.affinity.unwrap_or_default()),
        topology: super::unit::unit_topology(unit.topology.unwrap_or_default()),
        max_surge: unit.max_surge,
        movable: unit.movable,
    }
}

fn given<T>(number: i32, convert: impl Fn(i32) -> Result<Option<T>, BadField>) -> Given<T> {
    match convert(number) {
        Ok(Some(value)) => Given::Value(value),
        Ok(None) => Given::Absent,
        Err(_) => Given::Unknown(number),
    }
}

/// Changes of the task groups of a unit, as a client wrote them: nothing is refused here.
pub fn group_changes(pb: v1::TaskGroupChanges) -> GroupChanges {
    let v1::TaskGroupChanges { namespace: _, name: _, added, sizes, released_ordinals } = pb;
    GroupChanges {
        added: added.into_iter().map(group).collect(),
        sizes: sizes.into_iter().map(|size| (size.task_group, size.replicas)).collect(),
        released: released_ordinals,
    }
}

fn group(group: v1::TaskGroup) -> GroupSubmission {
    let template = group.template.unwrap_or_default();
    let demand = template.demand.unwrap_or_default();
    GroupSubmission {
        name: group.name,
        replicas: group.replicas,
        min_member: group.min_member,
        topology: super::unit::group_topology(group.topology),
        requests: demand.requests.unwrap_or_default().amounts.into_iter().collect(),
        devices: demand.devices.into_iter().map(devices).collect(),
        host_ports: demand.host_ports.into_iter().map(|port| (port.port, port.protocol)).collect(),
        zones: asked_zones(demand.zones.unwrap_or_default()),
        node_selector: template.node_selector.into_iter().collect(),
        tolerations: template.tolerations.into_iter().map(toleration).collect(),
        node_affinity: node_affinity(template.node_affinity.unwrap_or_default()),
        max_load: template.max_load.map(super::unit::max_load).unwrap_or_default(),
        run: super::run_spec(template.run.unwrap_or_default()),
    }
}

fn node_affinity(given_one: v1::NodeAffinity) -> NodeAffinitySubmission {
    NodeAffinitySubmission {
        required: given_one.required.into_iter().map(node_term).collect(),
        ..preferred_nodes(given_one.preferred)
    }
}

/// Nodes that are preferred, and none that are required.
pub fn preferred_nodes(given: Vec<v1::PreferredNodes>) -> NodeAffinitySubmission {
    let preferred = given.into_iter().map(|one| (one.weight, node_term(one.nodes.unwrap_or_default())));
    NodeAffinitySubmission { preferred: preferred.collect(), ..NodeAffinitySubmission::default() }
}

fn node_term(term: v1::NodeTerm) -> Vec<ExpressionSubmission> {
    term.all_of.into_iter().map(expression).collect()
}

fn unit_affinity(given_one: v1::UnitAffinity) -> UnitAffinitySubmission {
    let spread = |term: v1::SpreadTerm| SpreadSubmission {
        units: term.units.into_iter().map(expression).collect(),
        topology: term.topology,
        max_skew: term.max_skew,
        weight: term.weight,
    };
    UnitAffinitySubmission {
        near: given_one.near.into_iter().map(unit_term).collect(),
        apart: given_one.apart.into_iter().map(unit_term).collect(),
        spread: given_one.spread.into_iter().map(spread).collect(),
    }
}

fn unit_term(term: v1::UnitTerm) -> UnitTermSubmission {
    UnitTermSubmission {
        units: term.units.into_iter().map(expression).collect(),
        topology: term.topology,
        weight: term.weight,
    }
}

fn expression(one: v1::LabelExpression) -> ExpressionSubmission {
    ExpressionSubmission {
        key: one.key,
        operator: match super::unit::label_operator(one.operator) {
            Some(operator) => Given::Value(operator),
            None if one.operator == 0 => Given::Absent,
            None => Given::Unknown(one.operator),
        },
        values: one.values,
    }
}

fn devices(devices: v1::DeviceRequest) -> DeviceSubmission {
    DeviceSubmission {
        kind: devices.kind,
        count: devices.count,
        milli: devices.milli_per_device,
        models: devices.models,
        terms: zones::device_terms(devices.terms).map(|terms| *terms).unwrap_or_default(),
    }
}

fn asked_zones(given_one: v1::ZoneRequest) -> ZoneSubmission {
    let v1::ZoneRequest { policy, cpu_mode } = given_one;
    ZoneSubmission {
        policy: match v1::ZonePolicy::try_from(policy) {
            Ok(v1::ZonePolicy::Unspecified) => Given::Absent,
            Ok(_) => zones::policy(policy).map_or(Given::Unknown(policy), Given::Value),
            Err(_) => Given::Unknown(policy),
        },
        cpu_mode: match v1::CpuMode::try_from(cpu_mode) {
            Ok(v1::CpuMode::Unspecified) => Given::Absent,
            Ok(v1::CpuMode::Shared) => Given::Value(AskedCpuMode::Shared),
            Ok(v1::CpuMode::Dedicated) => Given::Value(AskedCpuMode::Dedicated),
            Ok(v1::CpuMode::Reclaimed) => Given::Value(AskedCpuMode::Reclaimed),
            Err(_) => Given::Unknown(cpu_mode),
        },
    }
}

fn toleration(given_one: v1::Toleration) -> TolerationSubmission {
    TolerationSubmission {
        key: given_one.key,
        value: given_one.value,
        any_value: given_one.any_value,
        effect: match v1::TaintEffect::try_from(given_one.effect) {
            Ok(v1::TaintEffect::Unspecified) => Given::Absent,
            Ok(v1::TaintEffect::NoSchedule) => Given::Value(TaintEffect::NoSchedule),
            Ok(v1::TaintEffect::PreferNoSchedule) => Given::Value(TaintEffect::PreferNoSchedule),
            Ok(v1::TaintEffect::NoExecute) => Given::Value(TaintEffect::NoExecute),
            Err(_) => Given::Unknown(given_one.effect),
        },
        tolerated_s: given_one.tolerated_seconds,
    }
}
