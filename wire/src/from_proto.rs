//! From the wire: each function validates its message once and names the wrong field.

use std::sync::Arc;

use bytes::Bytes;
use godel_domain::{
    change::{Block, Change, Lease, Partition, PartitionMode},
    demand::{Demand, DeviceRequest, MILLI_WHOLE, N_DEVICES_MAX},
    hold::{GangTurn, Hold, Member, Slot},
    ids::{Epoch, HoldId, NODE_ID_MAX, NodeId, Revision, UnitId},
    node::{
        Device, Drain, MAX_RUNNING_UNITS, NodeReport, NodeSpec, NodeUsage, Quarantine, Taint, TaintEffect,
        Toleration,
    },
    pause::{Pause, Scope},
    resources::{N_NAMES_MAX, Resources},
    unit::{
        OnBelowMin, OnEviction, OnFailure, RestartPolicy, RunSpec, ScoringProfile, SubmittedSize, TaskGroup,
        Template, UnitEnd, UnitSpec, WorkloadClass,
    },
    unreadable::Subject,
};
use godel_proto::{raw, v1};
use prost::Message as _;

use super::BadField;

mod budget;
mod check;
mod decision;
mod queue;
mod read;
mod reservation;
mod rows;
mod submission;

pub use budget::{budget, given_budget};
pub use check::{changes_rows, check_op, check_record, check_value};
pub use decision::{decision, outcome};
pub use queue::{given_priority_class, given_queue, priority_class, queue, queue_policy};
pub use read::{read_encoded, read_rows};
pub use read::{read_op, read_record};
pub use reservation::{given_reservation, reservation};
pub use rows::{bind, evict, eviction_reason, phase, pool, requeue, statuses, unit_rows};
pub use submission::submission;

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
    match op {
        Op::PutNodeSpec(pb) => node_spec(pb).map(Change::NodeSpec),
        Op::PutNodeReport(pb) => node_report(pb).map(Change::NodeReport),
        Op::PutNodeGrant(pb) => {
            node_grant(pb).map(|(node, allocatable)| Change::NodeGrant(node, allocatable))
        }
        Op::PutNodeUsage(pb) => node_usage(pb).map(Change::NodeUsage),
        Op::PutUnitSpec(pb) => unit_spec(pb).map(|spec| Change::UnitSpec(Arc::new(spec))),
        Op::PutLease(pb) => lease(pb).map(Change::Lease),
        Op::PutPartition(pb) => partition(pb).map(Change::Partition),
        Op::PutPartitionBlock(pb) => partition_block(pb).map(Change::PartitionBlock),
        Op::PutQueue(pb) => queue(pb).map(|spec| Change::Queue(Arc::new(spec))),
        Op::PutPriorityClass(pb) => priority_class(pb).map(Change::PriorityClass),
        Op::PutDisruptionBudget(pb) => budget(pb).map(|spec| Change::Budget(Arc::new(spec))),
        Op::PutReservation(pb) => reservation(pb).map(|spec| Change::Reservation(Arc::new(spec))),
        Op::PutPause(pb) => pause(pb).map(Change::Pause),
        Op::PutHold(pb) => hold(pb).map(|hold| Change::Hold(Arc::new(hold))),
        Op::Delete(pb) => delete(pb),
        Op::Bind(pb) => bind(pb.into()).map(|(unit, change)| Change::Rows(unit, change)),
        Op::Evict(pb) => evict(pb).map(|(unit, change)| Change::Rows(unit, change)),
        Op::RunStatus(pb) => statuses(pb).map(|(unit, change)| Change::Rows(unit, change)),
        Op::Requeue(pb) => requeue(pb).map(|(unit, change)| Change::Rows(unit, change)),
    }
}

/// A listed record.
///
/// # Errors
/// It is empty, or a field of it is wrong.
pub fn record(pb: v1::Record) -> Result<LoadedRecord> {
    use v1::record::Record;
    let change = match pb.record.ok_or_else(|| BadField::new("record", "missing"))? {
        Record::NodeSpec(pb) => node_spec(pb).map(Change::NodeSpec),
        Record::NodeReport(pb) => node_report(pb).map(Change::NodeReport),
        Record::NodeGrant(pb) => {
            node_grant(pb).map(|(node, allocatable)| Change::NodeGrant(node, allocatable))
        }
        Record::NodeUsage(pb) => node_usage(pb).map(Change::NodeUsage),
        Record::UnitSpec(pb) => unit_spec(pb).map(|spec| Change::UnitSpec(Arc::new(spec))),
        Record::Lease(pb) => lease(pb).map(Change::Lease),
        Record::Partition(pb) => partition(pb).map(Change::Partition),
        Record::PartitionBlock(pb) => partition_block(pb).map(Change::PartitionBlock),
        Record::Queue(pb) => queue(pb).map(|spec| Change::Queue(Arc::new(spec))),
        Record::PriorityClass(pb) => priority_class(pb).map(Change::PriorityClass),
        Record::DisruptionBudget(pb) => budget(pb).map(|spec| Change::Budget(Arc::new(spec))),
        Record::Reservation(pb) => reservation(pb).map(|spec| Change::Reservation(Arc::new(spec))),
        Record::Pause(pb) => pause(pb).map(Change::Pause),
        Record::Hold(pb) => hold(pb).map(|hold| Change::Hold(Arc::new(hold))),
        Record::Rows(pb) => unit_rows(pb).map(|(unit, rows)| Change::RowsLoaded(unit, rows)),
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
    let key = pb.key.unwrap_or_default();
    match kind {
        v1::Kind::Unspecified => Err(BadField::new("kind", "missing")),
        v1::Kind::NodeSpec | v1::Kind::NodeReport | v1::Kind::NodeGrant | v1::Kind::NodeUsage => {
            let id = u32::try_from(key.id).map_err(|_| BadField::new("key.id", "not a node id"))?;
            node_id(id, "key.id").map(Change::NodeDeleted)
        }
        v1::Kind::UnitSpec | v1::Kind::Rows => unit_id(key.id, "key.id").map(Change::UnitDeleted),
        // Without a record nobody holds it and nothing is split.
        v1::Kind::Lease => Ok(Change::Lease(Lease { name: key.name, ..Lease::default() })),
        v1::Kind::Partition => Ok(Change::Partition(Partition::default())),
        v1::Kind::PartitionBlock => {
            let number = block_number(key.id, "key.id")?;
            Ok(Change::PartitionBlock(Block { number, slots: Vec::new() }))
        }
        v1::Kind::Queue => name(key.name).map(Change::QueueDeleted),
        v1::Kind::PriorityClass => name(key.name).map(Change::PriorityClassDeleted),
        v1::Kind::DisruptionBudget => name(key.name).map(Change::BudgetDeleted),
        v1::Kind::Reservation => name(key.name).map(Change::ReservationDeleted),
        // One that cannot be read can go all the same.
        v1::Kind::Pause => Ok(pause_scope(&key.name)
            .map_or_else(|_| Change::UnreadableGone(Subject::Pause(key.name)), Change::PauseDeleted)),
        v1::Kind::Hold => Ok(Change::HoldDeleted(HoldId(key.id))),
    }
}

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
    })
}

fn node_quarantine(pb: v1::NodeQuarantine) -> Quarantine {
    let v1::NodeQuarantine { since_ms, until_ms, reason } = pb;
    Quarantine { since_ms, until_ms, reason }
}

fn node_drain(pb: v1::NodeDrain) -> Drain {
    let v1::NodeDrain { since_ms, deadline_ms, running_units } = pb;
    Drain { since_ms, deadline_ms: (deadline_ms != 0).then_some(deadline_ms), running_units }
}

/// An agent's record of a node. The id may be 0: before registration there is none.
///
/// # Errors
/// An amount is negative, or there are more than 64 devices.
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
        ready: pb.ready,
        attributes: pb.attributes.into_iter().collect(),
        max_running_units: pb.max_running_units.unwrap_or(MAX_RUNNING_UNITS),
    })
}

/// One device of a node.
pub fn device(pb: v1::Device) -> Device {
    Device { kind: pb.kind, model: pb.model, numa_zone: pb.numa_zone }
}

/// Allocatable in force on a node.
///
/// # Errors
/// The id is 0 or an amount is negative.
pub fn node_grant(pb: v1::NodeGrant) -> Result<(NodeId, Resources)> {
    let allocatable =
        resources(pb.allocatable.unwrap_or_default()).map_err(|bad| bad.under("allocatable"))?;
    Ok((node_id(pb.node_id, "node_id")?, allocatable))
}

/// What the use of a node's guaranteed running units leaves to best-effort ones.
///
/// # Errors
/// The id is 0 or an amount is negative.
pub fn node_usage(pb: v1::NodeUsage) -> Result<NodeUsage> {
    Ok(NodeUsage {
        id: node_id(pb.node_id, "node_id")?,
        reserved: resources(pb.reserved.unwrap_or_default()).map_err(|bad| bad.under("reserved"))?,
        as_of_ms: pb.as_of_ms,
    })
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
        devices: pb.devices.map(device_request).transpose().map_err(|bad| bad.under("devices"))?,
    })
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
        return Err(BadField::new("milli_per_device", "a share of one device only: count must be 1"));
    }
    Ok(DeviceRequest { kind: pb.kind, count: pb.count, milli, models: pb.models })
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
    Ok(match v1::TaintEffect::try_from(number).map_err(|_| unknown("effect", number))? {
        v1::TaintEffect::Unspecified => None,
        v1::TaintEffect::NoSchedule => Some(TaintEffect::NoSchedule),
        v1::TaintEffect::PreferNoSchedule => Some(TaintEffect::PreferNoSchedule),
        v1::TaintEffect::NoExecute => Some(TaintEffect::NoExecute),
    })
}

/// Room kept for someone.
///
/// # Errors
/// An id is 0, or columns differ in length.
pub fn hold(pb: v1::Hold) -> Result<Hold> {
    let len = pb.ordinals.len();
    for (field, column) in [("incarnations", pb.incarnations.len()), ("device_masks", pb.device_masks.len())]
    {
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
        device_masks: pb.device_masks,
        victims: pb.victims.into_iter().map(member).collect(),
        at_maximum: pb.at_maximum,
        queue_victims: pb.queue_victims.into_iter().map(member).collect(),
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
    })
}

fn slot(pb: v1::ReservationSlot) -> Slot {
    let v1::ReservationSlot { reservation, occupant } = pb;
    Slot { reservation: Arc::from(reservation), occupant: occupant.map(member) }
}

/// What an administrator has paused.
///
/// # Errors
/// The scope is none of ours.
pub fn pause(pb: v1::Pause) -> Result<Pause> {
    let v1::Pause { scope, since_ms, reason, sub_cluster_key } = pb;
    Ok(Pause { scope: pause_scope(&scope)?, since_ms, reason, sub_cluster_key })
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
pub fn member(pb: v1::Victim) -> Member {
    Member { unit: UnitId(pb.unit_id), ordinal: pb.ordinal, incarnation: pb.incarnation }
}

/// A unit as stored: with its defaults filled in.
///
/// # Errors
/// Something that the dispatcher fills in is missing, or a field is out of range.
pub fn unit_spec(pb: v1::UnitSpec) -> Result<UnitSpec> {
    let meta = pb.meta.unwrap_or_default();
    let missing = |path: &str| BadField::new(path, "missing");
    Ok(UnitSpec {
        id: unit_id(pb.unit_id, "unit_id")?,
        namespace: meta.namespace,
        name: meta.name,
        uid: meta.uid,
        labels: meta.labels.into_iter().collect(),
        owner: meta.owner,
        class: workload_class(pb.workload_class)?.ok_or_else(|| missing("workload_class"))?,
        task_groups: each("task_groups", pb.task_groups, task_group)?,
        min_member: pb.min_member.unwrap_or(0),
        queue: pb.queue,
        priority: pb.priority.unwrap_or(0),
        priority_class: pb.priority_class,
        pool: pool(pb.pool)?,
        restart_policy: restart_policy(pb.restart_policy)?.ok_or_else(|| missing("restart_policy"))?,
        scoring: scoring_profile(pb.scoring_profile)?.ok_or_else(|| missing("scoring_profile"))?,
        ttl_after_finished_ms: pb.ttl_after_finished_ms.unwrap_or(0),
        cancelled: pb.cancelled,
        max_restarts: pb.max_restarts.unwrap_or(0),
        on_eviction: on_eviction(pb.on_eviction)?.unwrap_or_default(),
        on_below_min: on_below_min(pb.on_below_min)?.unwrap_or_default(),
        on_failure: on_failure(pb.on_failure)?.unwrap_or_default(),
        whole_restarts: pb.whole_restarts,
        restarting: pb.restarting,
        ended: unit_end(pb.ended)?,
        suspended: pb.suspended,
        scheduling_timeout_ms: pb.scheduling_timeout_ms.unwrap_or(0),
        active_deadline_ms: pb.active_deadline_ms.unwrap_or(0),
        // One committed before there was preemption is left alone.
        preemptible: pb.preemptible.unwrap_or(false),
        min_run_ms: pb.min_run_ms,
        submitted: pb.submitted.map(|size| {
            let v1::SubmittedSize { min_member, replicas } = size;
            Box::new(SubmittedSize { min_member, replicas })
        }),
    })
}

/// Replicas of one template, with their ordinals as given.
///
/// # Errors
/// The template is wrong, or an ordinal range is out of order.
pub fn task_group(pb: v1::TaskGroup) -> Result<TaskGroup> {
    let mut ordinals = Vec::with_capacity(pb.ordinals.len());
    let mut last_end = 0;
    for (idx, range) in pb.ordinals.iter().enumerate() {
        // An empty one says where new ordinals begin.
        if range.start > range.end || range.start < last_end {
            return Err(BadField::new(format!("ordinals[{idx}]"), "out of order"));
        }
        last_end = range.end;
        ordinals.push((range.start, range.end));
    }
    Ok(TaskGroup {
        name: pb.name,
        replicas: pb.replicas,
        template: template(pb.template.unwrap_or_default()).map_err(|bad| bad.under("template"))?,
        ordinals,
    })
}

/// One replica.
///
/// # Errors
/// Its demand or a toleration is wrong.
pub fn template(pb: v1::Template) -> Result<Template> {
    Ok(Template {
        demand: demand(pb.demand.unwrap_or_default()).map_err(|bad| bad.under("demand"))?,
        node_selector: pb.node_selector.into_iter().collect(),
        tolerations: each("tolerations", pb.tolerations, toleration)?,
        run: run_spec(pb.run.unwrap_or_default()),
    })
}

/// What an agent runs.
pub fn run_spec(pb: v1::RunSpec) -> RunSpec {
    RunSpec {
        command: pb.command,
        env: pb.env.into_iter().collect(),
        simulated_duration_ms: pb.simulated_duration_ms,
        simulated_exit_code: pb.simulated_exit_code,
        stop_grace_ms: pb.stop_grace_ms,
    }
}

/// Kind of work; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn workload_class(number: i32) -> Result<Option<WorkloadClass>> {
    Ok(match v1::WorkloadClass::try_from(number).map_err(|_| unknown("workload_class", number))? {
        v1::WorkloadClass::Unspecified => None,
        v1::WorkloadClass::Service => Some(WorkloadClass::Service),
        v1::WorkloadClass::Stateful => Some(WorkloadClass::Stateful),
        v1::WorkloadClass::Batch => Some(WorkloadClass::Batch),
        v1::WorkloadClass::Gang => Some(WorkloadClass::Gang),
        v1::WorkloadClass::Stream => Some(WorkloadClass::Stream),
        v1::WorkloadClass::Training => Some(WorkloadClass::Training),
        v1::WorkloadClass::Yarn => Some(WorkloadClass::Yarn),
        v1::WorkloadClass::Daemon => Some(WorkloadClass::Daemon),
    })
}

/// Restart policy; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn restart_policy(number: i32) -> Result<Option<RestartPolicy>> {
    Ok(match v1::RestartPolicy::try_from(number).map_err(|_| unknown("restart_policy", number))? {
        v1::RestartPolicy::Unspecified => None,
        v1::RestartPolicy::Never => Some(RestartPolicy::Never),
        v1::RestartPolicy::OnFailure => Some(RestartPolicy::OnFailure),
        v1::RestartPolicy::Always => Some(RestartPolicy::Always),
    })
}

/// What becomes of an evicted running unit; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn on_eviction(number: i32) -> Result<Option<OnEviction>> {
    Ok(match v1::OnEviction::try_from(number).map_err(|_| unknown("on_eviction", number))? {
        v1::OnEviction::Unspecified => None,
        v1::OnEviction::Requeue => Some(OnEviction::Requeue),
        v1::OnEviction::Fail => Some(OnEviction::Fail),
    })
}

/// What becomes of a unit after a failure.
///
/// # Errors
/// An unknown number.
pub fn on_failure(number: i32) -> Result<Option<OnFailure>> {
    Ok(match v1::OnFailure::try_from(number).map_err(|_| unknown("on_failure", number))? {
        v1::OnFailure::Unspecified => None,
        v1::OnFailure::Keep => Some(OnFailure::Keep),
        v1::OnFailure::Restart => Some(OnFailure::Restart),
        v1::OnFailure::Stop => Some(OnFailure::Stop),
    })
}

/// What becomes of a unit below `min_member`; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn on_below_min(number: i32) -> Result<Option<OnBelowMin>> {
    Ok(match v1::OnBelowMin::try_from(number).map_err(|_| unknown("on_below_min", number))? {
        v1::OnBelowMin::Unspecified => None,
        v1::OnBelowMin::Keep => Some(OnBelowMin::Keep),
        v1::OnBelowMin::Restart => Some(OnBelowMin::Restart),
        v1::OnBelowMin::Stop => Some(OnBelowMin::Stop),
    })
}

fn unit_end(number: i32) -> Result<Option<UnitEnd>> {
    Ok(match v1::UnitEnd::try_from(number).map_err(|_| unknown("ended", number))? {
        v1::UnitEnd::Unspecified => None,
        v1::UnitEnd::BelowMin => Some(UnitEnd::BelowMin),
        v1::UnitEnd::Failure => Some(UnitEnd::Failure),
        v1::UnitEnd::Deadline => Some(UnitEnd::Deadline),
    })
}

/// Scoring profile; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn scoring_profile(number: i32) -> Result<Option<ScoringProfile>> {
    Ok(match v1::ScoringProfile::try_from(number).map_err(|_| unknown("scoring_profile", number))? {
        v1::ScoringProfile::Unspecified => None,
        v1::ScoringProfile::LeastAllocated => Some(ScoringProfile::LeastAllocated),
        v1::ScoringProfile::MostAllocated => Some(ScoringProfile::MostAllocated),
    })
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
    Ok(match v1::PartitionMode::try_from(number).map_err(|_| unknown("mode", number))? {
        v1::PartitionMode::Unspecified => None,
        v1::PartitionMode::Global => Some(PartitionMode::Global),
        v1::PartitionMode::Preferred => Some(PartitionMode::Preferred),
        v1::PartitionMode::Strict => Some(PartitionMode::Strict),
    })
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

fn name(name: String) -> Result<String> {
    if name.is_empty() { Err(BadField::new("key.name", "missing")) } else { Ok(name) }
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

fn unknown(path: &str, number: i32) -> BadField {
    BadField::new(path, format!("{number} is not a value of this enum"))
}
