//! Records of nodes: those of administrators and agents.

use godel_domain::node::{Device, Drain, NodeReport, NodeRuntime, NodeSpec, Notice, Quarantine};
use godel_proto::v1;

/// An administrator's record of a node.
pub fn node_spec(spec: &NodeSpec) -> v1::NodeSpec {
    let NodeSpec {
        id,
        name,
        uid,
        labels,
        cordoned,
        taints,
        drain,
        quarantine,
        notice,
        identity_expired_since_ms,
    } = spec;
    v1::NodeSpec {
        node_id: id.0,
        meta: Some(v1::ObjectMeta {
            name: name.clone(),
            uid: uid.clone(),
            labels: super::map(labels),
            ..v1::ObjectMeta::default()
        }),
        cordoned: *cordoned,
        taints: taints.iter().map(super::taint).collect(),
        drain: drain.as_ref().map(node_drain),
        quarantine: quarantine.as_ref().map(node_quarantine),
        notice: notice.as_ref().map(node_notice),
        identity_expired_since_ms: *identity_expired_since_ms,
    }
}

/// Why and when the machine of a node goes away.
fn node_notice(notice: &Notice) -> v1::NodeNotice {
    let Notice { since_ms, deadline_ms, reason } = notice;
    v1::NodeNotice { since_ms: *since_ms, deadline_ms: *deadline_ms, reason: reason.clone() }
}

/// Why and how long a node gets nothing new.
pub fn node_quarantine(quarantine: &Quarantine) -> v1::NodeQuarantine {
    let Quarantine { since_ms, until_ms, reason } = quarantine;
    v1::NodeQuarantine { since_ms: *since_ms, until_ms: *until_ms, reason: reason.clone() }
}

fn node_drain(drain: &Drain) -> v1::NodeDrain {
    let Drain { since_ms, deadline_ms, running_units } = *drain;
    v1::NodeDrain { since_ms, deadline_ms: deadline_ms.unwrap_or(0), running_units }
}

/// An agent's record of a node.
pub fn node_report(report: &NodeReport) -> v1::NodeReport {
    let NodeReport {
        id,
        capacity,
        devices,
        zones,
        profiles,
        ready,
        attributes,
        max_running_units,
        runtime,
        trouble,
    } = report;
    v1::NodeReport {
        node_id: id.0,
        capacity: Some(super::resources(capacity)),
        devices: devices.iter().map(device).collect(),
        zones: zones.iter().map(super::zone).collect(),
        profiles: profiles.iter().map(super::profile).collect(),
        ready: *ready,
        attributes: super::map(attributes),
        max_running_units: Some(*max_running_units),
        runtime: node_runtime(*runtime).into(),
        trouble: trouble.clone(),
        // Who decides does not know these; state writes these records as agents send them.
        address: String::new(),
        images_trouble: String::new(),
    }
}

/// What an agent does with running units.
pub fn node_runtime(runtime: NodeRuntime) -> v1::NodeRuntime {
    match runtime {
        NodeRuntime::Unknown => v1::NodeRuntime::Unspecified,
        NodeRuntime::Simulated => v1::NodeRuntime::Simulated,
        NodeRuntime::Processes => v1::NodeRuntime::Processes,
        NodeRuntime::Containers => v1::NodeRuntime::Containers,
    }
}

/// One device of a node.
pub fn device(device: &Device) -> v1::Device {
    let Device { kind, model, numa_zone, details } = device;
    v1::Device {
        kind: kind.clone(),
        model: model.clone(),
        numa_zone: *numa_zone,
        details: crate::zones::device_details_to_proto(details.as_deref()),
    }
}
