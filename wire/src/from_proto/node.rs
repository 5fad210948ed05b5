//! Records of nodes: those of administrators and agents, allocatable and usage, taints and tolerations.

use godel_base::ids::NodeId;
use godel_domain::{
    allocation::N_ZONES_MAX,
    demand::N_DEVICES_MAX,
    node::{
        Device, Drain, MAX_RUNNING_UNITS, NodeAllocatable, NodeReport, NodeRuntime, NodeSpec, NodeUsage,
        Notice, Quarantine, Taint, TaintEffect, Toleration,
    },
    node_load::{LoadAmounts, NodeLoad, ZoneLoad},
};
use godel_proto::v1;

use super::{BadField, Result, each, node_id, resources, unknown, value};
use crate::{to_proto, zones};

/// An administrator's record of a node.
///
/// # Errors
/// The id is 0 or a taint is wrong.
pub fn node_spec(pb: v1::NodeSpec) -> Result<NodeSpec> {
    let meta = pb.meta.unwrap_or_default();
    Ok(NodeSpec {
        id: node_id(pb.node_id, "node_id")?,
        name: meta.name,
        uid: meta.uid,
        labels: meta.labels.into_iter().collect(),
        cordoned: pb.cordoned,
        taints: taints(pb.taints)?,
        drain: pb.drain.map(node_drain),
        quarantine: pb.quarantine.map(node_quarantine),
        notice: pb.notice.map(node_notice),
        identity_expired_since_ms: pb.identity_expired_since_ms,
    })
}

fn node_quarantine(pb: v1::NodeQuarantine) -> Quarantine {
    let v1::NodeQuarantine { since_ms, until_ms, reason } = pb;
    Quarantine { since_ms, until_ms, reason }
}

fn node_notice(pb: v1::NodeNotice) -> Notice {
    let v1::NodeNotice { since_ms, deadline_ms, reason } = pb;
    Notice { since_ms, deadline_ms, reason }
}

fn node_drain(pb: v1::NodeDrain) -> Drain {
    let v1::NodeDrain { since_ms, deadline_ms, running_units } = pb;
    Drain { since_ms, deadline_ms: (deadline_ms != 0).then_some(deadline_ms), running_units }
}

/// An agent's record of a node. The id is 0 before registration.
///
/// # Errors
/// An amount is negative, there are more than 64 devices, or its zones do not nest.
pub fn node_report(pb: v1::NodeReport) -> Result<NodeReport> {
    if pb.devices.len() > N_DEVICES_MAX {
        return Err(BadField::new(
            "devices",
            format!("{} devices, at most {N_DEVICES_MAX}", pb.devices.len()),
        ));
    }
    Ok(NodeReport {
        id: NodeId(pb.node_id),
        capacity: resources(pb.capacity.unwrap_or_default()).map_err(|bad| bad.under("capacity"))?,
        devices: pb.devices.into_iter().map(device).collect(),
        zones: zones::zones(pb.zones)?,
        profiles: zones::profiles(pb.profiles)?,
        ready: pb.ready,
        attributes: pb.attributes.into_iter().collect(),
        max_running_units: pb.max_running_units.unwrap_or(MAX_RUNNING_UNITS),
        runtime: node_runtime(pb.runtime)?,
        trouble: pb.trouble,
    })
}

fn node_runtime(runtime: i32) -> Result<NodeRuntime> {
    match v1::NodeRuntime::try_from(runtime) {
        Ok(v1::NodeRuntime::Unspecified) => Ok(NodeRuntime::Unknown),
        Ok(v1::NodeRuntime::Simulated) => Ok(NodeRuntime::Simulated),
        Ok(v1::NodeRuntime::Processes) => Ok(NodeRuntime::Processes),
        Ok(v1::NodeRuntime::Containers) => Ok(NodeRuntime::Containers),
        Err(_) => Err(unknown("runtime", runtime)),
    }
}

/// One device of a node.
pub fn device(pb: v1::Device) -> Device {
    let details = zones::device_details(pb.details);
    Device { kind: pb.kind, model: pb.model, numa_zone: pb.numa_zone, details }
}

/// Allocatable in force on a node.
///
/// # Errors
/// The id is 0 or an amount is negative.
pub fn node_allocatable(pb: v1::NodeAllocatable) -> Result<NodeAllocatable> {
    let amounts = resources(pb.allocatable.unwrap_or_default()).map_err(|bad| bad.under("allocatable"))?;
    Ok(NodeAllocatable { id: node_id(pb.node_id, "node_id")?, amounts })
}

/// The usage of guaranteed running units that is withheld from best-effort ones on a node.
///
/// # Errors
/// The id is 0 or an amount is negative.
pub fn node_usage(pb: v1::NodeUsage) -> Result<NodeUsage> {
    Ok(NodeUsage {
        id: node_id(pb.node_id, "node_id")?,
        reserved: resources(pb.reserved.unwrap_or_default()).map_err(|bad| bad.under("reserved"))?,
        as_of_ms: pb.as_of_ms,
        load: pb.load.map(|load| node_load(load).map_err(|bad| bad.under("load"))).transpose()?,
        zone_loads: zone_loads(pb.zone_loads)?,
    })
}

/// Measured usage of the zones of a node.
///
/// # Errors
/// There are too many, one is out of order, or an amount is negative.
pub fn zone_loads(pbs: Vec<v1::ZoneLoad>) -> Result<Vec<ZoneLoad>> {
    const FIELD: &str = "zone_loads";
    let mut found: Vec<ZoneLoad> = Vec::new();
    for v1::ZoneLoad { zone, load } in pbs {
        let is_next = found.last().is_none_or(|last| u32::from(last.zone) < zone);
        let at = usize::try_from(zone).unwrap_or(usize::MAX);
        let (Ok(zone), true, true) = (u8::try_from(zone), is_next, at < N_ZONES_MAX) else {
            return Err(BadField::new(
                FIELD,
                format!("zone {zone} is out of order, or there is no such zone"),
            ));
        };
        let load = node_load(load.unwrap_or_default()).map_err(|bad| bad.under(FIELD))?;
        found.push(ZoneLoad { zone, load });
    }
    Ok(found)
}

/// Measured usage of a node.
///
/// # Errors
/// An amount is negative.
pub fn node_load(pb: v1::NodeLoad) -> Result<NodeLoad> {
    let v1::NodeLoad { p50, p95 } = pb;
    Ok(NodeLoad {
        p50: load_amounts(p50.unwrap_or_default()).map_err(|bad| bad.under("p50"))?,
        p95: load_amounts(p95.unwrap_or_default()).map_err(|bad| bad.under("p95"))?,
    })
}

fn load_amounts(pb: v1::LoadAmounts) -> Result<LoadAmounts> {
    let v1::LoadAmounts { cpu, memory, network } = pb;
    match [("cpu", cpu), ("memory", memory), ("network", network)].into_iter().find(|(_, amount)| *amount < 0)
    {
        Some((name, amount)) => Err(BadField::new(name, format!("{amount} is negative"))),
        None => Ok(LoadAmounts { cpu, memory, network }),
    }
}

/// Taints of a node.
///
/// # Errors
/// A key is empty or an effect is missing.
pub fn taints(pbs: Vec<v1::Taint>) -> Result<Vec<Taint>> {
    each("taints", pbs, taint)
}

/// A taint.
///
/// # Errors
/// The key is empty or the effect is missing.
pub fn taint(pb: v1::Taint) -> Result<Taint> {
    if pb.key.is_empty() {
        return Err(BadField::new("key", "missing"));
    }
    let effect = taint_effect(pb.effect)?.ok_or_else(|| BadField::new("effect", "missing"))?;
    Ok(Taint { key: pb.key, value: pb.value, effect, added_ms: pb.added_time_ms })
}

/// A toleration.
///
/// # Errors
/// An unknown effect.
pub fn toleration(pb: v1::Toleration) -> Result<Toleration> {
    let value = if pb.any_value { None } else { Some(pb.value) };
    let effect = taint_effect(pb.effect)?;
    Ok(Toleration { key: pb.key, value, effect, tolerated_s: pb.tolerated_seconds })
}

fn taint_effect(number: i32) -> Result<Option<TaintEffect>> {
    value("effect", number, &TaintEffect::ALL, |effect| to_proto::taint_effect(Some(effect)))
}
