//! Whether readers can read what is about to be written.
//!
//! The same functions that followers read with judge here, so nothing is taken that they would have to leave out. On top of
//! that names are checked that are only shown: whoever writes a record says them once, and everybody reads them for ever. What can be
//! read and makes no sense is refused as well, see [`sense`].

use std::collections::BTreeMap;

use bytes::Bytes;
use godel_base::{ids::NodeId, resources::Resources};
use godel_domain::{
    change::Change,
    demand::Demand,
    names::{self, NAME_LEN_MAX},
    node::NodeAllocatable,
    records::{ForeignKey, Record, StoredKey},
    unit::TaskGroup,
};
use godel_proto::{
    kinds::{self, KINDS, KindInfo},
    raw, v1,
};

use prost::Message as _;

use super::{BadField, Result};

mod known;
mod sense;
mod values;

/// Field of `Op` that puts a unit: one for each submission.
const PUT_UNIT: u32 = 4;
/// First field of `Op` that changes rows. All from here on do, but for [`WHOLE_ABOVE`].
const FIRST_OF_ROWS: u32 = 20;
/// Fields of `Op` above that put whole records: an application of YARN, a movement, and when a unit was moved.
const WHOLE_ABOVE: [u32; 3] = [27, 29, 30];

/// Whether an encoded operation changes rows. The store checks the columns of these as it parses them, with the functions
/// that readers use.
pub fn changes_rows(encoded: &Bytes) -> bool {
    raw::op_field(encoded).is_some_and(|field| field >= FIRST_OF_ROWS && !WHOLE_ABOVE.contains(&field))
}

/// Checks an encoded operation, whole.
///
/// # Errors
/// The field that readers cannot read, as `put_queue.policy`.
pub fn check_op(encoded: &Bytes) -> Result<()> {
    let name = raw::op_field(encoded).and_then(raw::op_name);
    let Some(name) = name else {
        return Err(BadField::new("op", "not an operation that this version knows"));
    };
    let unit = raw::op_payload(encoded).filter(|(field, _)| *field == PUT_UNIT).map(|(_, unit)| unit);
    if unit.as_ref().is_some_and(known::is_fine) {
        return Ok(());
    }
    let op = v1::Op::decode(encoded.clone()).map_err(|error| BadField::new(name, error.to_string()))?.op;
    let op = op.ok_or_else(|| BadField::new(name, "missing"))?;
    // Whether it makes sense is asked of what can be read.
    let makes_sense = sense::check(&op);
    let change = super::change(op).map_err(|bad| match bad.path.as_str() {
        // It does not decode.
        "op" => BadField::new(name, bad.description),
        _ => bad.under(name),
    })?;
    check_change(&change).map_err(|bad| bad.under(name))?;
    if let Some((field, payload)) = raw::op_payload(encoded) {
        values::check(field, &payload).map_err(|bad| bad.under(name))?;
    }
    makes_sense.map_err(|bad| bad.under(name))?;
    unit.iter().for_each(known::remember);
    Ok(())
}

/// Checks an encoded operation on rows for what makes no sense: what it says otherwise the store checks, which parses it.
///
/// # Errors
/// The field that makes no sense, as `evict.preemptor_id`.
pub fn check_rows_op(encoded: &Bytes) -> Result<()> {
    let Some((field, payload)) = raw::op_payload(encoded) else { return Ok(()) };
    let checked = match field {
        FIRST_OF_ROWS => raw::Binding::decode(payload).map_or(Ok(()), |binding| sense::bind(&binding)),
        _ => match v1::Op::decode(encoded.clone()) {
            Ok(v1::Op { op: Some(op) }) => sense::check(&op),
            Ok(v1::Op { op: None }) | Err(_) => Ok(()),
        },
    };
    checked.map_err(|bad| bad.under(raw::op_name(field).unwrap_or("op")))
}

/// Checks a listed record.
///
/// # Errors
/// The field that readers cannot read, as `queue.policy`.
pub fn check_record(record: &v1::Record) -> Result<()> {
    let Some(inner) = &record.record else { return Err(BadField::new("record", "missing")) };
    let name = kind_name(kinds::kind_of(inner));
    let renamed = |bad: BadField| match bad.path.strip_prefix("record.") {
        Some(path) => BadField::new(format!("{name}.{path}"), bad.description),
        None => bad.under(name),
    };
    let loaded = super::record(record.clone()).map_err(renamed)?;
    check_change(&loaded.change).map_err(|bad| bad.under(name))
}

/// Checks a record as the store keeps it: its kind and its encoding.
///
/// # Errors
/// As [`check_record`].
pub fn check_value(kind: v1::Kind, value: &Bytes) -> Result<()> {
    let name = kind_name(kind);
    let wrong = |error: prost::DecodeError| BadField::new(name, error.to_string());
    let record = kinds::decode(kind, value.clone()).map_err(wrong)?;
    let record = record.ok_or_else(|| BadField::new("kind", "missing"))?;
    check_record(&v1::Record { record: Some(record), ..v1::Record::default() })
}

/// The field of `Record` that a kind has.
fn kind_name(kind: v1::Kind) -> &'static str {
    KindInfo::of(kind).map_or("record", |entry| entry.name)
}

/// Names of what a change writes. What is deleted may be called anything: it has to go.
fn check_change(change: &Change) -> Result<()> {
    match change {
        Change::Put(record) => check_names(record),
        Change::Gone(_) | Change::Rows(..) | Change::RowsLoaded(..) | Change::Unreadable(_) => Ok(()),
    }
}

fn check_names(record: &Record) -> Result<()> {
    match record {
        Record::NodeSpec(spec) => {
            each([("meta.name", &*spec.name), ("meta.uid", &spec.uid)])?;
            pairs("meta.labels", &spec.labels)?;
            spec.taints.iter().try_for_each(|taint| each([("taints", &*taint.key), ("taints", &taint.value)]))
        }
        Record::NodeReport(report) => {
            amounts("capacity.amounts", &report.capacity)?;
            let texts = report.devices.iter().flat_map(|device| [&device.kind, &device.model]);
            texts.into_iter().try_for_each(|one| text("devices", one))?;
            pairs("attributes", &report.attributes)
        }
        Record::NodeAllocatable(NodeAllocatable { id: NodeId(_), amounts: allocatable }) => {
            amounts("allocatable.amounts", allocatable)
        }
        Record::NodeUsage(usage) => amounts("reserved.amounts", &usage.reserved),
        Record::Unit(record) => unit(&record.spec).map_err(|bad| bad.under("spec")),
        Record::TaskGroup(record) => task_group(&record.group).map_err(|bad| bad.under("group")),
        Record::UnitHistory(kept) => each([
            ("namespace", &*kept.namespace),
            ("name", &kept.name),
            ("uid", &kept.uid),
            ("owner", &kept.owner),
            ("queue", &kept.queue),
        ]),
        Record::Lease(lease) => {
            each([("lease", &*lease.name), ("holder", &lease.holder), ("address", &lease.address)])
        }
        Record::Partition(partition) => {
            partition.schedulers.iter().try_for_each(|name| text("schedulers", name))
        }
        Record::Queue(spec) => {
            each([("meta.name", &*spec.name), ("meta.uid", &spec.uid), ("meta.owner", &spec.owner)])?;
            pairs("meta.labels", &spec.labels)?;
            spec.min.keys().try_for_each(|name| text("min.amounts", name))?;
            spec.max.keys().try_for_each(|name| text("max.amounts", name))?;
            spec.owner_weights.keys().try_for_each(|owner| text("owner_weights", owner))?;
            spec.submit_owners.iter().try_for_each(|owner| text("submit_owners", owner))
        }
        Record::PriorityClass(class) => text("name", &class.name),
        Record::Budget(spec) => {
            each([("name", &*spec.name), ("namespace", &spec.namespace), ("unit", &spec.unit)])?;
            pairs("selector", &spec.selector)
        }
        Record::Reservation(spec) => {
            each([("name", &*spec.name), ("namespace", &spec.namespace)])?;
            pairs("selector", &spec.selector)?;
            pairs("node_selector", &spec.node_selector)?;
            demand(&spec.demand)
        }
        Record::Hold(hold) => {
            text("queue", hold.queue.as_deref().unwrap_or_default())?;
            let slot = hold.slot.as_ref().map(|slot| &*slot.reservation);
            text("slot.reservation", slot.unwrap_or_default())?;
            let turn = hold.turn.as_ref().and_then(|turn| turn.sub_cluster.as_deref());
            text("turn.sub_cluster", turn.unwrap_or_default())?;
            let movement = hold.movement.as_ref().map(|target| &*target.movement);
            text("movement.movement", movement.unwrap_or_default())?;
            demand(&hold.demand)
        }
        Record::YarnKeys(keys) => text("name", &keys.name),
        Record::Pause(pause) => {
            text("scope", &pause.scope.to_string())?;
            text("sub_cluster_key", &pause.sub_cluster_key)
        }
        Record::PartitionBlock(_) | Record::Foreign(ForeignKey { key: StoredKey::Id(_), .. }) => Ok(()),
        Record::Foreign(ForeignKey { kind, key: StoredKey::Name(key) }) => {
            let info = KINDS.iter().find(|info| info.kind as i32 == *kind as i32);
            text(info.map_or("key", |info| info.key_field), key)
        }
    }
}

fn unit(spec: &godel_domain::unit::UnitSpec) -> Result<()> {
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
        task_group(group).map_err(|bad| bad.under(&format!("task_groups[{idx}]")))?;
    }
    Ok(())
}

fn task_group(group: &TaskGroup) -> Result<()> {
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
fn is_text(text: &str) -> bool {
    names::text(text, NAME_LEN_MAX).is_ok()
}

/// No control characters, and not longer than names may be. Whether there has to be one its reader says.
fn text(path: &str, text: &str) -> Result<()> {
    names::text(text, NAME_LEN_MAX).map_err(|bad| BadField::new(path, bad.to_string()))
}
