//! From the wire: each function validates its message once and names the wrong field.

use std::sync::Arc;

use bytes::Bytes;
use godel_base::{
    ids::{Epoch, HoldId, NODE_ID_MAX, NodeId, Revision, RunningUnitId, UnitId},
    quantity::MILLI_WHOLE,
    resources::{N_NAMES_MAX, Resources},
};
use godel_domain::{
    allocation::DeviceSet,
    change::{Block, Change, Lease, Partition, PartitionMode},
    demand::{Demand, DeviceRequest, N_DEVICE_REQUESTS_MAX, N_DEVICES_MAX},
    hold::{GangTurn, Hold, MovementTarget, Slot},
    host_port::{HostPort, N_HOST_PORTS_MAX},
    pause::Scope,
    records::StoredKey,
    yarn_keys::{YARN_SECRET_LEN, YarnKey, YarnKeys},
};
use godel_proto::{
    kinds::{self, Key, KeyForm, KindInfo, PutOrOther},
    raw, v1,
};
use prost::Message as _;

use super::{BadField, ops, records, to_proto, zones};

/// Keys of one name: the one before the current one, the current one, and the next one.
const N_YARN_KEYS_MAX: usize = 3;
/// Most moves of one unit that are remembered.
const N_MOVE_TIMES_MAX: usize = 1_024;

mod budget;
pub(crate) mod check;
mod decision;
mod history;
mod moves;
mod node;
mod queue;
mod read;
mod reservation;
mod rows;
mod submission;
mod txn;
mod unit;

pub use crate::records::{change::read as change_line, principal::read as principal};
pub use budget::{budget, given_budget};
pub use check::{changes_rows, check_op, check_record, check_rows_op, check_value};
pub use decision::{decision, outcome};
pub use history::unit_history;
pub use moves::{move_refusal, requested_move};
pub use node::{
    device, node_allocatable, node_load, node_report, node_spec, node_usage, taint, taints, toleration,
    zone_loads,
};
pub use queue::{given_priority_class, given_queue, priority_class, queue, queue_policy};
pub use read::{read_encoded, read_rows};
pub use read::{read_op, read_record};
pub use reservation::{given_reservation, reservation};
pub use rows::{bind, compaction, evict, eviction_reason, phase, pool, requeue, statuses, terms, unit_rows};
pub use submission::{group_changes, preferred_nodes, submission};
pub use txn::txn_refusal;
pub use unit::{
    label_expression, on_below_min, on_eviction, on_failure, restart_policy, run_spec, task_group_record,
    template, unit_record, workload_class,
};

/// Field of `Op` that binds: most of what followers read.
const BIND: u32 = 20;

type Result<T> = std::result::Result<T, BadField>;

/// A record as listed, in domain types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedRecord {
    /// Store revision of its last change.
    pub revision: Revision,
    /// Store revision of its creation.
    pub create_revision: Revision,
    /// Commit time of its creation, Unix milliseconds.
    pub create_time_ms: i64,
    /// The record.
    pub change: Change,
}

/// One encoded operation of a commit.
///
/// # Errors
/// It is malformed, or a field of it is.
pub fn op(encoded: &Bytes) -> Result<Change> {
    if let Some((BIND, binding)) = raw::op_payload(encoded) {
        let pb = raw::Binding::decode(binding).map_err(|error| BadField::new("op", error.to_string()))?;
        return bind(pb).map(|(unit, change)| Change::Rows(unit, change));
    }
    let op = v1::Op::decode(encoded.clone()).map_err(|error| BadField::new("op", error.to_string()))?.op;
    change(op.ok_or_else(|| BadField::new("op", "missing"))?)
}

/// One operation of a commit.
///
/// # Errors
/// A field is wrong.
pub fn change(op: v1::op::Op) -> Result<Change> {
    use v1::op::Op;
    let other = match kinds::put_or_other(op) {
        PutOrOther::Put(record) => return records::read(record).map(Change::Put),
        PutOrOther::Other(other) => other,
    };
    let rows = match other {
        Op::Delete(pb) => return delete(pb),
        Op::Bind(pb) => bind(pb.into()),
        Op::Evict(pb) => evict(pb),
        Op::RunStatus(pb) => statuses(pb),
        Op::Requeue(pb) => requeue(pb),
        Op::ChangeTerms(pb) => terms(pb),
        Op::Compact(pb) => compaction(pb),
        _ => return Err(BadField::new("op", "puts no record")),
    };
    rows.map(|(unit, change)| Change::Rows(unit, change))
}

/// A listed record.
///
/// # Errors
/// It is empty, or a field of it is wrong.
pub fn record(pb: v1::Record) -> Result<LoadedRecord> {
    let change = match pb.record.ok_or_else(|| BadField::new("record", "missing"))? {
        v1::record::Record::Rows(pb) => unit_rows(pb).map(|(unit, rows)| Change::RowsLoaded(unit, rows)),
        record => records::read(record).map(Change::Put),
    }
    .map_err(|bad| bad.under("record"))?;
    Ok(LoadedRecord {
        revision: Revision(pb.revision),
        create_revision: Revision(pb.create_revision),
        create_time_ms: pb.create_time_ms,
        change,
    })
}

fn delete(pb: v1::Delete) -> Result<Change> {
    let kind = v1::Kind::try_from(pb.kind).map_err(|_| unknown("kind", pb.kind))?;
    let info = KindInfo::of(kind).ok_or_else(|| BadField::new("kind", "missing"))?;
    let v1::Key { id, name } = pb.key.unwrap_or_default();
    let (field, key) = match info.key {
        KeyForm::Name => ("key.name", Key::Name(name)),
        KeyForm::Node | KeyForm::Id => ("key.id", Key::Id(id)),
    };
    let kind = match kind {
        // With one record of a node all of them go, and with its rows the unit.
        _ if info.of_node => v1::Kind::NodeSpec,
        v1::Kind::Rows => v1::Kind::Unit,
        kind => kind,
    };
    let may_be_empty =
        matches!(kind, v1::Kind::Lease | v1::Kind::Partition | v1::Kind::Pause | v1::Kind::Hold);
    if !may_be_empty && (key == Key::Id(0) || key == Key::Name(String::new())) {
        return Err(BadField::new(field, "missing"));
    }
    let gone = read::key_of(kind, key)
        .ok_or_else(|| BadField::new(field, format!("not the key of a {}", info.name)))?;
    Ok(gone.gone())
}

/// Amounts by name.
///
/// # Errors
/// An amount is negative, a name is empty, or there are more than 32.
pub fn resources(pb: v1::Resources) -> Result<Resources> {
    if pb.amounts.len() > N_NAMES_MAX {
        return Err(BadField::new("amounts", format!("{} names, at most {N_NAMES_MAX}", pb.amounts.len())));
    }
    if pb.amounts.contains_key("") {
        return Err(BadField::new("amounts", "an empty name"));
    }
    Resources::new(pb.amounts).map_err(|name| BadField::new(format!("amounts[{name}]"), "negative"))
}

/// What one running unit takes.
///
/// # Errors
/// An amount is negative or the device request is impossible.
pub fn demand(pb: v1::Demand) -> Result<Demand> {
    Ok(Demand {
        requests: resources(pb.requests.unwrap_or_default()).map_err(|bad| bad.under("requests"))?,
        devices: device_requests(pb.devices)?,
        host_ports: host_ports(&pb.host_ports)?,
        zones: zones::request(pb.zones.unwrap_or_default()).map_err(|bad| BadField::new("zones", bad))?,
    })
}

fn host_ports(pb: &[v1::HostPort]) -> Result<Vec<HostPort>> {
    if pb.len() > N_HOST_PORTS_MAX {
        return Err(BadField::new("host_ports", format!("{} ports, at most {N_HOST_PORTS_MAX}", pb.len())));
    }
    let ports = pb.iter().enumerate().map(|(at, port)| {
        let wrong = || format!("port {} of protocol {} stands for nothing", port.port, port.protocol);
        ops::host_port(port).ok_or_else(|| BadField::new(format!("host_ports[{at}]"), wrong()))
    });
    ports.collect()
}

fn device_requests(pb: Vec<v1::DeviceRequest>) -> Result<Vec<DeviceRequest>> {
    if pb.len() > N_DEVICE_REQUESTS_MAX {
        return Err(BadField::new(
            "devices",
            format!("{} requests, at most {N_DEVICE_REQUESTS_MAX}", pb.len()),
        ));
    }
    let mut requests: Vec<DeviceRequest> = Vec::with_capacity(pb.len());
    for (at, pb) in pb.into_iter().enumerate() {
        let request = device_request(pb).map_err(|bad| bad.under(&format!("devices[{at}]")))?;
        if requests.iter().any(|other| other.kind == request.kind) {
            return Err(BadField::new(
                format!("devices[{at}].kind"),
                format!("duplicate kind `{}`", request.kind),
            ));
        }
        requests.push(request);
    }
    Ok(requests)
}

/// Devices of one kind on one node.
///
/// # Errors
/// Kind, count or share are out of range, or a share of several devices is asked for.
pub fn device_request(pb: v1::DeviceRequest) -> Result<DeviceRequest> {
    if pb.kind.is_empty() {
        return Err(BadField::new("kind", "missing"));
    }
    if pb.count == 0 || usize::try_from(pb.count).is_ok_and(|count| count > N_DEVICES_MAX) {
        return Err(BadField::new("count", format!("{} is not in 1 to {N_DEVICES_MAX}", pb.count)));
    }
    let milli = pb.milli_per_device.unwrap_or(MILLI_WHOLE);
    if !(1..=MILLI_WHOLE).contains(&milli) {
        let description = format!("{milli} is not in 1 to {MILLI_WHOLE}");
        return Err(BadField::new("milli_per_device", description));
    }
    if pb.count > 1 && milli < MILLI_WHOLE {
        return Err(BadField::new(
            "milli_per_device",
            "a share is possible of one device only: count must be 1",
        ));
    }
    let terms = zones::device_terms(pb.terms);
    Ok(DeviceRequest { kind: pb.kind, count: pb.count, milli, models: pb.models, terms })
}

/// Room kept for someone.
///
/// # Errors
/// An id is 0, or columns differ in length.
pub fn hold(pb: v1::Hold) -> Result<Hold> {
    let len = pb.ordinals.len();
    for (field, column) in [
        ("incarnations", pb.incarnations.len()),
        ("device_masks", pb.device_masks.len()),
        ("zone_masks", pb.zone_masks.len()),
        ("core_masks", pb.core_masks.len()),
    ] {
        if column != 0 && column != len {
            return Err(BadField::new(field, "as long as ordinals, or empty"));
        }
    }
    if pb.hold_id == 0 {
        return Err(BadField::new("hold_id", "missing"));
    }
    Ok(Hold {
        id: HoldId(pb.hold_id),
        node: node_id(pb.node_id, "node_id")?,
        unit: match pb.slot {
            Some(_) => UnitId(0),
            None => unit_id(pb.unit_id, "unit_id")?,
        },
        spec_revision: Revision(pb.spec_revision),
        group: u16::try_from(pb.task_group).map_err(|_| BadField::new("task_group", "out of range"))?,
        demand: Arc::new(demand(pb.demand.unwrap_or_default()).map_err(|bad| bad.under("demand"))?),
        pool: pool(pb.pool)?,
        ordinals: pb.ordinals,
        incarnations: pb.incarnations,
        devices: pb.device_masks.into_iter().map(DeviceSet).collect(),
        zones: zones::given(pb.zone_masks, &pb.core_masks),
        victims: pb.victims.into_iter().map(running_unit_id).collect(),
        at_maximum: pb.at_maximum,
        queue_victims: pb.queue_victims.into_iter().map(running_unit_id).collect(),
        expires_ms: pb.expires_ms,
        queue: (!pb.queue.is_empty()).then(|| Arc::from(pb.queue)),
        judged: Revision(pb.judged_revision),
        priority: pb.priority,
        taken_from: pb.taken_from.into_iter().map(UnitId).collect(),
        turn: pb.turn.map(|turn| GangTurn {
            since_ms: turn.since_ms,
            priority: turn.priority,
            sub_cluster: (!turn.sub_cluster.is_empty()).then(|| Arc::from(turn.sub_cluster)),
        }),
        slot: pb.slot.map(slot),
        movement: pb.movement.map(movement_target).transpose()?,
    })
}

fn movement_target(pb: v1::MovementTarget) -> Result<MovementTarget> {
    let v1::MovementTarget { movement, from } = pb;
    let from = from.ok_or_else(|| BadField::new("movement.from", "missing"))?;
    Ok(MovementTarget { movement: Arc::from(movement), from: running_unit_id(from) })
}

fn slot(pb: v1::ReservationSlot) -> Slot {
    let v1::ReservationSlot { reservation, occupant } = pb;
    Slot { reservation: Arc::from(reservation), occupant: occupant.map(running_unit_id) }
}

/// Keys of the tokens of YARN.
///
/// # Errors
/// There is no name or no key, a key is no key, or they are not in order.
pub fn yarn_keys(pb: v1::YarnKeys) -> Result<YarnKeys> {
    if pb.name.is_empty() {
        return Err(BadField::new("name", "missing"));
    }
    if pb.keys.is_empty() || pb.keys.len() > N_YARN_KEYS_MAX {
        return Err(BadField::new("keys", format!("there must be 1 to {N_YARN_KEYS_MAX}")));
    }
    let mut keys: Vec<YarnKey> = Vec::new();
    for v1::YarnKey { key_id, secret, from_ms } in pb.keys {
        let secret = secret
            .try_into()
            .map_err(|_| BadField::new("keys.secret", format!("not of {YARN_SECRET_LEN} bytes")))?;
        let known = keys.iter().any(|key| key.id == key_id);
        if key_id <= 0 || known || keys.last().is_some_and(|last| last.from_ms > from_ms) {
            return Err(BadField::new(
                "keys.key_id",
                "not above 0, or twice, or not in the order of from_ms",
            ));
        }
        keys.push(YarnKey { id: key_id, secret, from_ms });
    }
    Ok(YarnKeys { name: pb.name, keys })
}

/// An application of YARN: its id. What else its record says is read by the YARN adapter alone.
///
/// # Errors
/// It is not said which one.
pub(crate) fn yarn_application(pb: &v1::YarnApplication) -> Result<StoredKey> {
    if pb.application.is_empty() {
        return Err(BadField::new("application", "missing"));
    }
    Ok(StoredKey::Name(pb.application.clone()))
}

/// A movement of the rescheduler: its name. What else its record says is read by the rescheduler alone.
///
/// # Errors
/// It has no name or no phase, or a number in it is none.
pub(crate) fn movement(pb: &v1::Movement) -> Result<StoredKey> {
    if pb.name.is_empty() {
        return Err(BadField::new("name", "missing"));
    }
    if pb.phase() == v1::MovementPhase::Unspecified {
        return Err(unknown("phase", pb.phase));
    }
    let objectives = [("objective_before", pb.objective_before), ("objective_after", pb.objective_after)];
    for (field, objective) in objectives {
        if !objective.is_finite() {
            return Err(BadField::new(field, format!("{objective} is no finite number")));
        }
    }
    for (idx, one) in pb.moves.iter().enumerate() {
        let under = |bad: BadField| bad.under(&format!("moves[{idx}]"));
        unit_id(one.unit_id, "unit_id").map_err(under)?;
        node_id(one.from_node_id, "from_node_id").map_err(under)?;
        node_id(one.to_node_id, "to_node_id").map_err(under)?;
        if one.phase() == v1::MovePhase::Unspecified {
            return Err(under(unknown("phase", one.phase)));
        }
    }
    Ok(StoredKey::Name(pb.name.clone()))
}

/// When replicas of a unit were moved: the unit.
///
/// # Errors
/// It is not said which one, or there are too many times, or they are in no order.
pub(crate) fn move_rate(pb: &v1::MoveRate) -> Result<StoredKey> {
    if pb.times_ms.len() > N_MOVE_TIMES_MAX {
        return Err(BadField::new("times_ms", format!("there must be at most {N_MOVE_TIMES_MAX}")));
    }
    if !pb.times_ms.is_sorted() {
        return Err(BadField::new("times_ms", "not ascending"));
    }
    unit_id(pb.unit_id, "unit_id").map(|unit| StoredKey::Id(unit.0))
}

/// What a pause is about.
///
/// # Errors
/// It is none of ours.
pub fn pause_scope(text: &str) -> Result<Scope> {
    let wrong = || {
        let hint = "pause `all`, `preemption`, `queue/<path>` or `sub-cluster/<name>`";
        BadField::new("scope", format!("`{text}`: {hint}"))
    };
    Scope::parse(text).ok_or_else(wrong)
}

/// A running unit in one incarnation.
pub fn running_unit_id(pb: v1::Victim) -> RunningUnitId {
    RunningUnitId::new(UnitId(pb.unit_id), pb.ordinal, pb.incarnation)
}

/// A lease as granted.
///
/// # Errors
/// It has no name.
pub fn lease(pb: v1::LeaseRecord) -> Result<Lease> {
    if pb.lease.is_empty() {
        return Err(BadField::new("lease", "missing"));
    }
    Ok(Lease {
        name: pb.lease,
        holder: pb.holder,
        address: pb.address,
        epoch: Epoch(pb.epoch),
        ttl_ms: pb.ttl_ms,
    })
}

/// How nodes are split.
///
/// # Errors
/// Columns differ in length, or a slot has no scheduler.
pub fn partition(pb: v1::Partition) -> Result<Partition> {
    if pb.node_ids.len() != pb.slots.len() {
        return Err(BadField::new("slots", "columns differ in length"));
    }
    for (idx, slot) in pb.slots.iter().enumerate() {
        if usize::try_from(*slot).map_or(true, |slot| slot >= pb.schedulers.len()) {
            return Err(BadField::new(format!("slots[{idx}]"), "no such scheduler"));
        }
    }
    let mut slots: Vec<(NodeId, u32)> = pb.node_ids.into_iter().map(NodeId).zip(pb.slots).collect();
    slots.sort_unstable();
    Ok(Partition {
        mode: partition_mode(pb.mode)?.unwrap_or_default(),
        generation: pb.generation,
        schedulers: pb.schedulers,
        slots,
        by_hand: pb.by_hand,
        reason: pb.reason,
        changed_ms: pb.change_time_ms,
    })
}

/// Whose the nodes of a block are.
///
/// # Errors
/// No node is in such a block, or it lists more nodes than it has.
pub fn partition_block(pb: v1::PartitionBlock) -> Result<Block> {
    let number = block_number(pb.block_id.into(), "block_id")?;
    if pb.slots.len() > Block::N_NODES as usize {
        return Err(BadField::new("slots", format!("more than {} nodes", Block::N_NODES)));
    }
    Ok(Block { number, slots: pb.slots })
}

fn block_number(id: u64, path: &str) -> Result<u32> {
    let number = id.checked_sub(1).and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| *number <= Block::of(NodeId(NODE_ID_MAX)));
    number.ok_or_else(|| BadField::new(path, "no such block"))
}

/// Meaning of a split; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn partition_mode(number: i32) -> Result<Option<PartitionMode>> {
    value("mode", number, &PartitionMode::ALL, to_proto::partition_mode)
}

/// A node id.
///
/// # Errors
/// It is 0.
pub fn node_id(id: u32, path: &str) -> Result<NodeId> {
    if id == 0 { Err(BadField::new(path, "missing")) } else { Ok(NodeId(id)) }
}

/// A unit id.
///
/// # Errors
/// It is 0.
pub fn unit_id(id: u64, path: &str) -> Result<UnitId> {
    if id == 0 { Err(BadField::new(path, "missing")) } else { Ok(UnitId(id)) }
}

/// Converts each message of a list; an error names its index.
///
/// # Errors
/// The first that cannot be converted.
pub fn each<P, T>(path: &str, pbs: Vec<P>, convert: impl Fn(P) -> Result<T>) -> Result<Vec<T>> {
    pbs.into_iter()
        .enumerate()
        .map(|(idx, pb)| convert(pb).map_err(|bad| bad.under(&format!("{path}[{idx}]"))))
        .collect()
}

/// The value that a number of an enum stands for; `None` for 0, which is unspecified.
///
/// # Errors
/// An unknown number.
fn value<V: Copy, P: Into<i32>>(
    path: &str,
    number: i32,
    all: &[V],
    to_proto: impl Fn(V) -> P,
) -> Result<Option<V>> {
    let found = all.iter().find(|value| to_proto(**value).into() == number);
    if found.is_none() && number != 0 { Err(unknown(path, number)) } else { Ok(found.copied()) }
}

fn unknown(path: &str, number: i32) -> BadField {
    BadField::new(path, format!("{number} is not a value of this enum"))
}
