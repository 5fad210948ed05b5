//! To the wire. Every domain struct is taken apart without `..`.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use godel_base::{
    ids::{Revision, RunningUnitId, UnitId},
    resources::Resources,
};
use godel_domain::{
    change::{Block, Lease, Partition, PartitionMode},
    node::{NodeAllocatable, NodeUsage, Taint, TaintEffect},
    node_load::{LoadAmounts, NodeLoad, ZoneLoad},
    running_units::{Bind, RunChange},
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, UnitEnd, WorkloadClass},
    yarn_keys::{YarnKey, YarnKeys},
};
use godel_proto::{raw, v1};

use crate::zones;
pub use crate::zones::{profile_to_proto as profile, zone_to_proto as zone};

mod budget;
mod decision;
mod history;
mod hold;
mod moves;
mod node;
mod queue;
mod reports;
mod reservation;
mod txn;
mod unit;

pub use crate::records::{
    change::write as change_line, pause::write as pause, principal::write as principal,
};
pub use budget::{budget, budget_limit};
pub use decision::{decision, fresh_node, outcome, refusals, rejection_reason};
pub use history::unit_history;
pub use hold::hold;
pub use moves::{move_refusal, requested_move};
pub use node::{device, node_quarantine, node_report, node_runtime, node_spec};
pub use queue::{priority_class, queue, queue_policy};
pub use reports::{compaction, evict, requeue, statuses, terms};
pub use reservation::reservation;
pub use txn::{op, requirement};
pub use unit::{
    demand, encoded_unit, host_port, label_expression, label_operator, put_unit, run_spec, task_group_record,
    toleration, unit_record, unit_spec, unit_status,
};
// Columns are the store's own: see `from_proto`.
pub use crate::ops::{
    eviction_reason_to_proto as eviction_reason, phase_to_proto as phase, pool_to_proto as pool,
    rows_to_proto as unit_rows,
};

/// An operation that changes rows, encoded for a transaction.
pub fn row_op(unit: UnitId, change: &RunChange) -> Bytes {
    raw::encode_op(match change {
        RunChange::Bind(change) => v1::op::Op::Bind(bind(unit, change)),
        RunChange::Evict(change) => v1::op::Op::Evict(evict(unit, change)),
        RunChange::Statuses(change) => v1::op::Op::RunStatus(statuses(unit, change)),
        RunChange::Requeue(change) => v1::op::Op::Requeue(requeue(unit, change)),
        RunChange::Terms(change) => v1::op::Op::ChangeTerms(terms(unit, change)),
        RunChange::Compact(change) => v1::op::Op::Compact(compaction(unit, change)),
    })
}

/// Keys of the tokens of YARN.
pub fn yarn_keys(YarnKeys { name, keys }: &YarnKeys) -> v1::YarnKeys {
    let key = |YarnKey { id, secret, from_ms }: &YarnKey| v1::YarnKey {
        key_id: *id,
        secret: secret.to_vec(),
        from_ms: *from_ms,
    };
    v1::YarnKeys { name: name.clone(), keys: keys.iter().map(key).collect() }
}

/// An operation that deletes a record with a numeric key, encoded for a transaction.
pub fn delete(kind: v1::Kind, id: u64) -> Bytes {
    let key = v1::Key { id, name: String::new() };
    raw::encode_op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key: Some(key) }))
}

/// An operation that deletes a record with a name as its key, encoded for a transaction.
pub fn delete_named(kind: v1::Kind, name: &str) -> Bytes {
    let key = v1::Key { id: 0, name: name.to_owned() };
    raw::encode_op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key: Some(key) }))
}

/// The condition that a record with a numeric key still has this revision; 0: that there is none.
pub fn precondition(kind: v1::Kind, id: u64, revision: Revision) -> v1::Precondition {
    let key = v1::Key { id, name: String::new() };
    v1::Precondition { kind: kind.into(), key: Some(key), revision: revision.0 }
}

/// The same of a record with a name as its key.
pub fn precondition_named(kind: v1::Kind, name: &str, revision: Revision) -> v1::Precondition {
    let key = v1::Key { id: 0, name: name.to_owned() };
    v1::Precondition { kind: kind.into(), key: Some(key), revision: revision.0 }
}

/// Allocatable in force on a node.
pub fn node_allocatable(NodeAllocatable { id, amounts }: &NodeAllocatable) -> v1::NodeAllocatable {
    v1::NodeAllocatable { node_id: id.0, allocatable: Some(resources(amounts)) }
}

/// What the use of a node's guaranteed running units leaves to best-effort ones.
pub fn node_usage(usage: &NodeUsage) -> v1::NodeUsage {
    let NodeUsage { id, reserved, as_of_ms, load, zone_loads } = usage;
    v1::NodeUsage {
        node_id: id.0,
        reserved: Some(resources(reserved)),
        as_of_ms: *as_of_ms,
        load: load.as_ref().map(node_load),
        zone_loads: zone_loads.iter().map(zone_load).collect(),
    }
}

/// Measured usage of a zone.
pub fn zone_load(zone_load: &ZoneLoad) -> v1::ZoneLoad {
    let ZoneLoad { zone, load } = zone_load;
    v1::ZoneLoad { zone: u32::from(*zone), load: Some(node_load(load)) }
}

/// Measured usage of a node.
pub fn node_load(load: &NodeLoad) -> v1::NodeLoad {
    let NodeLoad { p50, p95 } = load;
    v1::NodeLoad { p50: Some(load_amounts(p50)), p95: Some(load_amounts(p95)) }
}

fn load_amounts(amounts: &LoadAmounts) -> v1::LoadAmounts {
    let LoadAmounts { cpu, memory, network } = *amounts;
    v1::LoadAmounts { cpu, memory, network }
}

/// Amounts by name.
pub fn resources(amounts: &Resources) -> v1::Resources {
    v1::Resources { amounts: amounts.iter().map(|(name, amount)| (name.to_owned(), amount)).collect() }
}

/// A taint.
pub fn taint(taint: &Taint) -> v1::Taint {
    let Taint { key, value, effect, added_ms } = taint;
    let effect = taint_effect(Some(*effect)).into();
    v1::Taint { key: key.clone(), value: value.clone(), effect, added_time_ms: *added_ms }
}

pub(crate) fn taint_effect(effect: Option<TaintEffect>) -> v1::TaintEffect {
    match effect {
        None => v1::TaintEffect::Unspecified,
        Some(TaintEffect::NoSchedule) => v1::TaintEffect::NoSchedule,
        Some(TaintEffect::PreferNoSchedule) => v1::TaintEffect::PreferNoSchedule,
        Some(TaintEffect::NoExecute) => v1::TaintEffect::NoExecute,
    }
}

/// Kind of work.
pub fn workload_class(class: WorkloadClass) -> v1::WorkloadClass {
    match class {
        WorkloadClass::Service => v1::WorkloadClass::Service,
        WorkloadClass::Stateful => v1::WorkloadClass::Stateful,
        WorkloadClass::Batch => v1::WorkloadClass::Batch,
        WorkloadClass::Gang => v1::WorkloadClass::Gang,
        WorkloadClass::Stream => v1::WorkloadClass::Stream,
        WorkloadClass::Training => v1::WorkloadClass::Training,
        WorkloadClass::Yarn => v1::WorkloadClass::Yarn,
        WorkloadClass::Daemon => v1::WorkloadClass::Daemon,
    }
}

/// Restart policy.
pub fn restart_policy(policy: RestartPolicy) -> v1::RestartPolicy {
    match policy {
        RestartPolicy::Never => v1::RestartPolicy::Never,
        RestartPolicy::OnFailure => v1::RestartPolicy::OnFailure,
        RestartPolicy::Always => v1::RestartPolicy::Always,
    }
}

/// What becomes of an evicted running unit.
pub fn on_eviction(what: OnEviction) -> v1::OnEviction {
    match what {
        OnEviction::Requeue => v1::OnEviction::Requeue,
        OnEviction::Fail => v1::OnEviction::Fail,
    }
}

/// What becomes of a unit after a failure.
pub fn on_failure(what: OnFailure) -> v1::OnFailure {
    match what {
        OnFailure::Keep => v1::OnFailure::Keep,
        OnFailure::Restart => v1::OnFailure::Restart,
        OnFailure::Stop => v1::OnFailure::Stop,
    }
}

/// What becomes of a unit below `min_member`.
pub fn on_below_min(what: OnBelowMin) -> v1::OnBelowMin {
    match what {
        OnBelowMin::Keep => v1::OnBelowMin::Keep,
        OnBelowMin::Restart => v1::OnBelowMin::Restart,
        OnBelowMin::Stop => v1::OnBelowMin::Stop,
    }
}

/// Why the dispatcher ended a unit.
pub fn unit_end(end: Option<UnitEnd>) -> v1::UnitEnd {
    match end {
        None => v1::UnitEnd::Unspecified,
        Some(UnitEnd::BelowMin) => v1::UnitEnd::BelowMin,
        Some(UnitEnd::Failure) => v1::UnitEnd::Failure,
        Some(UnitEnd::Deadline) => v1::UnitEnd::Deadline,
    }
}

/// Places for running units of one task group.
pub fn bind(unit: UnitId, bind: &Bind) -> v1::Binding {
    let Bind { group, demand: takes, pool: pays, ordinals, incarnations, nodes, devices, zones, standing } =
        bind;
    v1::Binding {
        unit_id: unit.0,
        task_group: u32::from(*group),
        demand: Some(demand(takes)),
        pool: pool(*pays).into(),
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        node_ids: nodes.iter().map(|node| node.0).collect(),
        device_masks: devices.iter().map(|devices| devices.0).collect(),
        zone_masks: zones::zone_masks(zones),
        core_masks: zones::core_masks(zones),
        standing: standing.as_deref().map(crate::ops::standing_to_proto),
    }
}

/// A running unit in one incarnation.
pub fn running_unit_id(id: &RunningUnitId) -> v1::Victim {
    let RunningUnitId { unit, replica } = id;
    v1::Victim { unit_id: unit.0, ordinal: replica.ordinal, incarnation: replica.incarnation }
}

/// A lease as granted.
pub fn lease(lease: &Lease) -> v1::LeaseRecord {
    let Lease { name, holder, address, epoch, ttl_ms } = lease;
    v1::LeaseRecord {
        lease: name.clone(),
        holder: holder.clone(),
        address: address.clone(),
        epoch: epoch.0,
        ttl_ms: *ttl_ms,
    }
}

/// Whose the nodes of a block are.
pub fn partition_block(block: &Block) -> v1::PartitionBlock {
    v1::PartitionBlock { block_id: block.number.saturating_add(1), slots: block.slots.clone() }
}

/// Key of the one partition record.
pub const PARTITION_NAME: &str = "default";

/// How nodes are split.
pub fn partition(partition: &Partition) -> v1::Partition {
    let Partition { mode, generation, schedulers, slots, by_hand, reason, changed_ms } = partition;
    v1::Partition {
        name: PARTITION_NAME.to_owned(),
        mode: partition_mode(*mode).into(),
        generation: *generation,
        schedulers: schedulers.clone(),
        node_ids: slots.iter().map(|(node, _)| node.0).collect(),
        slots: slots.iter().map(|(_, slot)| *slot).collect(),
        by_hand: *by_hand,
        reason: reason.clone(),
        change_time_ms: *changed_ms,
    }
}

/// Meaning of a split.
pub fn partition_mode(mode: PartitionMode) -> v1::PartitionMode {
    match mode {
        PartitionMode::Global => v1::PartitionMode::Global,
        PartitionMode::Preferred => v1::PartitionMode::Preferred,
        PartitionMode::Strict => v1::PartitionMode::Strict,
    }
}

fn map(pairs: &BTreeMap<String, String>) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
