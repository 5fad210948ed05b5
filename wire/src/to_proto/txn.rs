//! Transactions: a change as the operation that makes it, and what a transaction rests on.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_domain::{
    change::Change,
    records::{Record, RecordKey, StoredKey},
    txn::RecordRef,
};
use godel_proto::{kinds, raw, v1};

use super::{delete, delete_named, precondition, precondition_named, put_unit, row_op};
use crate::records;

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
    if record.is_gone() {
        return delete_key(&record.key());
    }
    if let Record::Unit(record) = record {
        return Some(put_unit(record));
    }
    // The adapter and the rescheduler write their records themselves: the content is not in the change.
    kinds::put_op(records::write(record)?).map(raw::encode_op)
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
