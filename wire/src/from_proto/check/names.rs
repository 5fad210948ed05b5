//! Names in records that are only shown: no control characters, and none is longer than names may be.

use std::collections::BTreeMap;

use godel_base::resources::Resources;
use godel_domain::{
    budget_spec::BudgetSpec,
    change::{Block, Lease, Partition},
    demand::Demand,
    hold::Hold,
    names::{self, NAME_LEN_MAX},
    node::{NodeAllocatable, NodeReport, NodeSpec, NodeUsage},
    queue_spec::{PriorityClass, QueueSpec},
    records::{ForeignKey, StoredKey},
    reservation_spec::ReservationSpec,
    task_group_record::TaskGroupRecord,
    unit::{TaskGroup, UnitRecord, UnitSpec},
    unit_history::UnitHistory,
    yarn_keys::YarnKeys,
};
use godel_proto::kinds::KINDS;

use super::super::{BadField, Result};

pub(crate) fn node_spec(spec: &NodeSpec) -> Result<()> {
    each([("meta.name", &*spec.name), ("meta.uid", &spec.uid)])?;
    pairs("meta.labels", &spec.labels)?;
    spec.taints.iter().try_for_each(|taint| each([("taints", &*taint.key), ("taints", &taint.value)]))
}

pub(crate) fn node_report(report: &NodeReport) -> Result<()> {
    amounts("capacity.amounts", &report.capacity)?;
    let texts = report.devices.iter().flat_map(|device| [&device.kind, &device.model]);
    texts.into_iter().try_for_each(|one| text("devices", one))?;
    pairs("attributes", &report.attributes)
}

pub(crate) fn node_allocatable(
    NodeAllocatable { id: _, amounts: allocatable }: &NodeAllocatable,
) -> Result<()> {
    amounts("allocatable.amounts", allocatable)
}

pub(crate) fn node_usage(usage: &NodeUsage) -> Result<()> {
    amounts("reserved.amounts", &usage.reserved)
}

pub(crate) fn unit(record: &UnitRecord) -> Result<()> {
    unit_spec(&record.spec).map_err(|bad| bad.under("spec"))
}

pub(crate) fn task_group(record: &TaskGroupRecord) -> Result<()> {
    group(&record.group).map_err(|bad| bad.under("group"))
}

pub(crate) fn unit_history(kept: &UnitHistory) -> Result<()> {
    each([
        ("namespace", &*kept.namespace),
        ("name", &kept.name),
        ("uid", &kept.uid),
        ("owner", &kept.owner),
        ("queue", &kept.queue),
        ("principal", &kept.principal),
    ])
}

pub(crate) fn lease(lease: &Lease) -> Result<()> {
    each([("lease", &*lease.name), ("holder", &lease.holder), ("address", &lease.address)])
}

pub(crate) fn partition(partition: &Partition) -> Result<()> {
    partition.schedulers.iter().try_for_each(|name| text("schedulers", name))
}

pub(crate) fn queue(spec: &QueueSpec) -> Result<()> {
    each([("meta.name", &*spec.name), ("meta.uid", &spec.uid), ("meta.owner", &spec.owner)])?;
    pairs("meta.labels", &spec.labels)?;
    spec.min.keys().try_for_each(|name| text("min.amounts", name))?;
    spec.max.keys().try_for_each(|name| text("max.amounts", name))?;
    spec.owner_weights.keys().try_for_each(|owner| text("owner_weights", owner))?;
    spec.submit_owners.iter().try_for_each(|owner| text("submit_owners", owner))
}

pub(crate) fn priority_class(class: &PriorityClass) -> Result<()> {
    text("name", &class.name)
}

pub(crate) fn budget(spec: &BudgetSpec) -> Result<()> {
    each([("name", &*spec.name), ("namespace", &spec.namespace), ("unit", &spec.unit)])?;
    pairs("selector", &spec.selector)
}

pub(crate) fn reservation(spec: &ReservationSpec) -> Result<()> {
    each([("name", &*spec.name), ("namespace", &spec.namespace)])?;
    pairs("selector", &spec.selector)?;
    pairs("node_selector", &spec.node_selector)?;
    demand(&spec.demand)
}

pub(crate) fn hold(hold: &Hold) -> Result<()> {
    text("queue", hold.queue.as_deref().unwrap_or_default())?;
    let slot = hold.slot.as_ref().map(|slot| &*slot.reservation);
    text("slot.reservation", slot.unwrap_or_default())?;
    let turn = hold.turn.as_ref().and_then(|turn| turn.sub_cluster.as_deref());
    text("turn.sub_cluster", turn.unwrap_or_default())?;
    let movement = hold.movement.as_ref().map(|target| &*target.movement);
    text("movement.movement", movement.unwrap_or_default())?;
    demand(&hold.demand)
}

pub(crate) fn yarn_keys(keys: &YarnKeys) -> Result<()> {
    text("name", &keys.name)
}

/// There is none in it.
pub(crate) fn none(_: &Block) -> Result<()> {
    Ok(())
}

pub(crate) fn foreign(ForeignKey { kind, key }: &ForeignKey) -> Result<()> {
    let StoredKey::Name(key) = key else { return Ok(()) };
    let info = KINDS.iter().find(|info| info.kind as i32 == *kind as i32);
    text(info.map_or("key", |info| info.key_field), key)
}

fn unit_spec(spec: &UnitSpec) -> Result<()> {
    each([
        ("meta.namespace", &*spec.namespace),
        ("meta.name", &spec.name),
        ("meta.uid", &spec.uid),
        ("meta.owner", &spec.owner),
        ("queue", &spec.queue),
        ("priority_class", &spec.priority_class),
    ])?;
    pairs("meta.labels", &spec.labels)?;
    for (idx, group) in spec.task_groups.iter().enumerate() {
        self::group(group).map_err(|bad| bad.under(&format!("task_groups[{idx}]")))?;
    }
    Ok(())
}

fn group(group: &TaskGroup) -> Result<()> {
    let template = &group.template;
    text("name", &group.name)?;
    demand(&template.demand).map_err(|bad| bad.under("template"))?;
    pairs("template.node_selector", &template.node_selector)
}

fn demand(demand: &Demand) -> Result<()> {
    amounts("demand.requests.amounts", &demand.requests)?;
    demand.devices.iter().try_for_each(|devices| {
        text("demand.devices.kind", &devices.kind)?;
        devices.models.iter().try_for_each(|model| text("demand.devices.models", model))
    })
}

fn amounts(path: &str, amounts: &Resources) -> Result<()> {
    amounts.iter().try_for_each(|(name, _)| text(path, name))
}

fn pairs(path: &str, pairs: &BTreeMap<String, String>) -> Result<()> {
    pairs.iter().try_for_each(|(key, value)| text(path, key).and_then(|()| text(path, value)))
}

fn each<const N: usize>(texts: [(&str, &str); N]) -> Result<()> {
    texts.into_iter().try_for_each(|(path, one)| text(path, one))
}

/// As [`text`].
pub(super) fn is_text(text: &str) -> bool {
    names::text(text, NAME_LEN_MAX).is_ok()
}

/// No control characters, and not longer than names may be. Whether there has to be one its reader says.
pub(crate) fn text(path: &str, text: &str) -> Result<()> {
    names::text(text, NAME_LEN_MAX).map_err(|bad| BadField::new(path, bad.to_string()))
}
