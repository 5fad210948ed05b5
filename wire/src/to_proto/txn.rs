//! Transactions: a change as the operation that makes it, and what a transaction rests on.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_domain::{
    change::{Block, Change},
    txn::RecordRef,
    yarn_keys::YarnKeys,
};
use godel_proto::{kinds::task_group_key, raw, v1};

use super::{
    delete, delete_named, lease, node_report, node_spec, partition_block, precondition, precondition_named,
    put_budget, put_hold, put_node_allocatable, put_node_usage, put_partition, put_pause, put_priority_class,
    put_queue, put_reservation, put_unit, row_op,
};

/// The operation that makes a change, encoded for a transaction; `None` for what no transaction writes: whole rows of a
/// unit, and notes on records that cannot be read.
pub fn op(change: &Change) -> Option<Bytes> {
    Some(match change {
        Change::NodeSpec(spec) => raw::encode_op(v1::op::Op::PutNodeSpec(node_spec(spec))),
        Change::NodeReport(report) => raw::encode_op(v1::op::Op::PutNodeReport(node_report(report))),
        Change::NodeAllocatable(node, allocatable) => put_node_allocatable(*node, allocatable),
        Change::NodeUsage(usage) => put_node_usage(usage),
        Change::NodeDeleted(node) => delete(v1::Kind::NodeSpec, u64::from(node.0)),
        Change::Unit(record) => put_unit(record),
        Change::TaskGroup(record) => {
            raw::encode_op(v1::op::Op::PutTaskGroup(super::task_group_record(record)))
        }
        Change::TaskGroupDeleted(unit, idx) => {
            delete_named(v1::Kind::TaskGroup, &task_group_key(unit.0, u32::from(*idx)))
        }
        Change::UnitHistory(kept) => raw::encode_op(v1::op::Op::PutUnitHistory(super::unit_history(kept))),
        Change::UnitHistoryDeleted(unit) => delete(v1::Kind::UnitHistory, unit.0),
        Change::UnitDeleted(unit) => delete(v1::Kind::Unit, unit.0),
        Change::Rows(unit, rows) => row_op(*unit, rows),
        Change::Lease(record) => raw::encode_op(v1::op::Op::PutLease(lease(record))),
        Change::Partition(partition) => put_partition(partition),
        Change::PartitionBlock(Block { number, slots }) if slots.is_empty() => {
            delete(v1::Kind::PartitionBlock, u64::from(*number) + 1)
        }
        Change::PartitionBlock(block) => {
            raw::encode_op(v1::op::Op::PutPartitionBlock(partition_block(block)))
        }
        Change::Queue(spec) => put_queue(spec),
        Change::QueueDeleted(path) => delete_named(v1::Kind::Queue, path),
        Change::PriorityClass(class) => put_priority_class(class),
        Change::PriorityClassDeleted(name) => delete_named(v1::Kind::PriorityClass, name),
        Change::Budget(spec) => put_budget(spec),
        Change::BudgetDeleted(name) => delete_named(v1::Kind::DisruptionBudget, name),
        Change::Reservation(spec) => put_reservation(spec),
        Change::ReservationDeleted(name) => delete_named(v1::Kind::Reservation, name),
        Change::Hold(hold) => put_hold(hold),
        Change::HoldDeleted(id) => delete(v1::Kind::Hold, id.0),
        Change::YarnKeys(YarnKeys { name, keys }) if keys.is_empty() => {
            delete_named(v1::Kind::YarnKeys, name)
        }
        Change::YarnKeys(keys) => raw::encode_op(v1::op::Op::PutYarnKeys(super::yarn_keys(keys))),
        Change::YarnApplicationDeleted(id) => delete_named(v1::Kind::YarnApplication, id),
        Change::MovementDeleted(name) => delete_named(v1::Kind::Movement, name),
        Change::MoveRateDeleted(unit) => delete(v1::Kind::MoveRate, unit.0),
        Change::Pause(pause) => put_pause(pause),
        Change::PauseDeleted(scope) => delete_named(v1::Kind::Pause, &scope.to_string()),
        // The adapter and the rescheduler write their records themselves: the content is not in the change.
        Change::YarnApplication(_)
        | Change::Movement(_)
        | Change::MoveRate(_)
        | Change::RowsLoaded(..)
        | Change::Unreadable(_)
        | Change::UnreadableGone(_) => return None,
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
