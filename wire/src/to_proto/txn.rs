//! Transactions: a change as the operation that makes it, and what a transaction rests on.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_domain::{
    change::{Block, Change},
    records::{Record, RecordKey, StoredKey},
    txn::RecordRef,
    yarn_keys::YarnKeys,
};
use godel_proto::{raw, v1};

use super::{
    delete, delete_named, lease, node_report, node_spec, partition_block, precondition, precondition_named,
    put_budget, put_hold, put_node_allocatable, put_node_usage, put_partition, put_pause, put_priority_class,
    put_queue, put_reservation, put_unit, row_op,
};

/// The operation that makes a change, encoded for a transaction; `None` for what no transaction writes: whole rows of a
/// unit, notes on records that cannot be read, and records of which the change has the key alone.
pub fn op(change: &Change) -> Option<Bytes> {
    match change {
        Change::Put(record) => put(record),
        Change::Gone(key) => delete_key(key),
        Change::Rows(unit, rows) => Some(row_op(*unit, rows)),
        Change::RowsLoaded(..) | Change::Unreadable(_) => None,
    }
}

fn put(record: &Record) -> Option<Bytes> {
    use v1::op::Op;
    Some(match record {
        Record::NodeSpec(spec) => raw::encode_op(Op::PutNodeSpec(node_spec(spec))),
        Record::NodeReport(report) => raw::encode_op(Op::PutNodeReport(node_report(report))),
        Record::NodeAllocatable(allocatable) => put_node_allocatable(allocatable.id, &allocatable.amounts),
        Record::NodeUsage(usage) => put_node_usage(usage),
        Record::Unit(record) => put_unit(record),
        Record::TaskGroup(record) => raw::encode_op(Op::PutTaskGroup(super::task_group_record(record))),
        Record::UnitHistory(kept) => raw::encode_op(Op::PutUnitHistory(super::unit_history(kept))),
        Record::Lease(record) => raw::encode_op(Op::PutLease(lease(record))),
        Record::Partition(partition) => put_partition(partition),
        Record::PartitionBlock(Block { slots, .. }) if slots.is_empty() => return delete_key(&record.key()),
        Record::PartitionBlock(block) => raw::encode_op(Op::PutPartitionBlock(partition_block(block))),
        Record::Queue(spec) => put_queue(spec),
        Record::PriorityClass(class) => put_priority_class(class),
        Record::Budget(spec) => put_budget(spec),
        Record::Reservation(spec) => put_reservation(spec),
        Record::Hold(hold) => put_hold(hold),
        Record::YarnKeys(YarnKeys { keys, .. }) if keys.is_empty() => return delete_key(&record.key()),
        Record::YarnKeys(keys) => raw::encode_op(Op::PutYarnKeys(super::yarn_keys(keys))),
        Record::Pause(pause) => put_pause(pause),
        // The adapter and the rescheduler write their records themselves: the content is not in the change.
        Record::Foreign(_) => return None,
    })
}

fn delete_key(key: &RecordKey) -> Option<Bytes> {
    let kind = v1::Kind::try_from(key.kind()? as i32).ok()?;
    Some(match key.stored()? {
        StoredKey::Id(id) => delete(kind, id),
        StoredKey::Name(name) => delete_named(kind, &name),
    })
}

/// The condition that a record still has this revision; 0: that there is none.
pub fn requirement(record: RecordRef<'_>, revision: Revision) -> v1::Precondition {
    match record {
        RecordRef::Unit(unit) => precondition(v1::Kind::Unit, unit.0, revision),
        RecordRef::Rows(unit) => precondition(v1::Kind::Rows, unit.0, revision),
        RecordRef::Queue(path) => precondition_named(v1::Kind::Queue, path, revision),
        RecordRef::PriorityClass(name) => precondition_named(v1::Kind::PriorityClass, name, revision),
        RecordRef::Budget(name) => precondition_named(v1::Kind::DisruptionBudget, name, revision),
        RecordRef::Reservation(name) => precondition_named(v1::Kind::Reservation, name, revision),
    }
}
