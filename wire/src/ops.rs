//! Encoded operations to what they change: `godel.v1.Op` to keys, bytes and core row changes.
//!
//! An operation is decoded once, when it is validated; the visible state and every watcher use the result.

mod convert;
mod demand;
mod ends;
mod evictions;

use std::sync::Arc;

use bytes::Bytes;
use godel_base::ids::UnitId;
use godel_domain::{running_units::RunChange, task_group_record::TASK_GROUPS_MAX};
use godel_proto::kinds::Key;
use godel_proto::{
    kinds::{self, KeyForm, KindInfo},
    raw, v1,
};

pub use convert::{
    bind_from_proto, compaction_from_proto, evict_from_proto, eviction_reason_from_proto,
    eviction_reason_to_proto, phase_from_proto, phase_to_proto, pool_from_proto, pool_to_proto,
    requeue_from_proto, rows_from_proto, rows_part_to_proto, rows_to_proto, standing_to_proto,
    statuses_from_proto, terms_from_proto,
};
pub use demand::{demand_from_proto, host_port};
pub use ends::{ends_to_proto, run_end_reason_from_proto, run_end_reason_to_proto};
pub use evictions::last_eviction_to_proto;

/// Ordinals are at most this: they are never reused, and what ended long ago of a unit that grows takes no room.
pub const N_ORDINALS_MAX: u32 = 1 << 30;
/// Task groups of a unit.
pub const N_TASK_GROUPS_MAX: usize = TASK_GROUPS_MAX;
/// Ordinals that one listed record of rows covers. A row takes 87 bytes at most (22 mostly), and the demands of
/// all groups of a unit are part of its record of 64 KiB and of the 192 KiB of groups that were added: 704 KiB of the 1 MiB
/// that a message may have. It may have 128 KiB of last evictions in addition.
pub const N_ROWS_PER_RECORD: usize = 5_200;
/// Longest name of a record.
pub const NAME_LEN_MAX: usize = 253;

/// What one operation changes.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedOp {
    /// Replaces a record.
    Put {
        /// Kind of the record.
        kind: v1::Kind,
        /// Which one.
        key: Key,
        /// The encoded record.
        value: Bytes,
    },
    /// Removes a record and what hangs on it.
    Delete {
        /// Kind of the record.
        kind: v1::Kind,
        /// Which one.
        key: Key,
    },
    /// Changes rows of a unit.
    Rows {
        /// Whose rows.
        unit: UnitId,
        /// What changes.
        change: Arc<RunChange>,
    },
}

/// An operation that can never be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Not the encoding of an operation that this version knows.
    #[error("not an operation that this version knows")]
    Unknown,
    /// Its message does not decode.
    #[error("{message} does not decode")]
    Malformed {
        /// Name of the message.
        message: &'static str,
    },
    /// A field has a value that it may not have.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
}

impl OpError {
    pub(crate) fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// Bit of `kind` in a mask of kinds.
pub fn kind_bit(kind: v1::Kind) -> u64 {
    1 << (kind as i32).unsigned_abs()
}

impl ParsedOp {
    /// The kinds of records that it changes, as [`kind_bit`]s: a deletion changes what hangs on the record too.
    pub fn kinds(&self) -> u64 {
        match self {
            Self::Put { kind, .. } => kind_bit(*kind),
            Self::Delete { kind: v1::Kind::Unit, .. } => {
                [v1::Kind::Unit, v1::Kind::TaskGroup, v1::Kind::Rows].map(kind_bit).iter().sum()
            }
            Self::Delete { kind: v1::Kind::NodeSpec, .. } => {
                kinds::of_node().fold(0, |bits, kind| bits | kind_bit(kind))
            }
            Self::Delete { kind, .. } => kind_bit(*kind),
            Self::Rows { .. } => kind_bit(v1::Kind::Rows),
        }
    }
}

/// Decodes an encoded `godel.v1.Op`; record values stay slices of it.
///
/// Every record is decoded whole but a UnitRecord, the largest, which is only walked at its top level: the
/// dispatcher, its one writer, has validated it.
///
/// # Errors
/// What is wrong with it.
pub fn parse(op: &Bytes) -> Result<ParsedOp, OpError> {
    let (field, payload) = raw::op_payload(op).ok_or(OpError::Unknown)?;
    match field {
        16 => parse_delete(payload),
        20 => {
            let (unit, bind) = bind_from_proto(decode("Binding", payload)?)?;
            Ok(rows(unit, RunChange::Bind(bind)))
        }
        21 => {
            let (unit, evict) = evict_from_proto(decode("Eviction", payload)?)?;
            Ok(rows(unit, RunChange::Evict(evict)))
        }
        22 => {
            let (unit, statuses) = statuses_from_proto(decode("RunStatuses", payload)?)?;
            Ok(rows(unit, RunChange::Statuses(statuses)))
        }
        23 => {
            let (unit, requeue) = requeue_from_proto(decode("Requeue", payload)?)?;
            Ok(rows(unit, RunChange::Requeue(requeue)))
        }
        26 => {
            let (unit, terms) = terms_from_proto(decode("TermsChange", payload)?)?;
            Ok(rows(unit, RunChange::Terms(terms)))
        }
        28 => {
            let (unit, compaction) = compaction_from_proto(decode("Compaction", payload)?)?;
            Ok(rows(unit, RunChange::Compact(compaction)))
        }
        _ => {
            let kind = i32::try_from(field)
                .ok()
                .and_then(|field| v1::Kind::try_from(field).ok())
                .ok_or(OpError::Unknown)?;
            let key = record_key(kind, &payload)?;
            Ok(ParsedOp::Put { kind, key, value: payload })
        }
    }
}

/// The key of an encoded record of `kind`: its first field, or the name in it.
///
/// # Errors
/// It does not decode, or has no key.
pub fn record_key(kind: v1::Kind, value: &Bytes) -> Result<Key, OpError> {
    let entry = KindInfo::of(kind).filter(|entry| entry.is_whole()).ok_or(OpError::Unknown)?;
    let malformed = |_| OpError::Malformed { message: entry.message };
    let key = kinds::key_of(kind, value.clone()).map_err(malformed)?.ok_or(OpError::Unknown)?;
    checked_key(entry.key_field, key)
}

/// The key that a `godel.v1.Key` names for a record of `kind`.
///
/// # Errors
/// The key is missing or of the wrong form for the kind.
pub fn key_from_proto(kind: v1::Kind, key: Option<&v1::Key>) -> Result<Key, OpError> {
    let key = key.ok_or_else(|| OpError::field("key", "is required"))?;
    let entry = KindInfo::of(kind).ok_or_else(|| OpError::field("kind", "is required"))?;
    match entry.key {
        KeyForm::Node => {
            let node = u32::try_from(key.id).map_err(|_| OpError::field("key.id", "is not a node id"))?;
            checked_key("node_id", node.into())
        }
        KeyForm::Id => checked_key("key.id", key.id.into()),
        KeyForm::Name => checked_key("key.name", key.name.clone().into()),
    }
}

fn parse_delete(payload: Bytes) -> Result<ParsedOp, OpError> {
    let delete: v1::Delete = decode("Delete", payload)?;
    let kind = delete.kind();
    if kind == v1::Kind::Rows {
        return Err(OpError::field("kind", "rows are removed with their unit"));
    }
    let key = key_from_proto(kind, delete.key.as_ref())?;
    Ok(ParsedOp::Delete { kind, key })
}

fn rows(unit: UnitId, change: RunChange) -> ParsedOp {
    ParsedOp::Rows { unit, change: Arc::new(change) }
}

fn decode<M: prost::Message + Default>(message: &'static str, payload: Bytes) -> Result<M, OpError> {
    M::decode(payload).map_err(|_| OpError::Malformed { message })
}

/// A key that may be one: not 0, not empty, not too long.
fn checked_key(field: &'static str, key: Key) -> Result<Key, OpError> {
    match &key {
        Key::Id(0) => Err(OpError::field(field, "is required")),
        Key::Name(name) if name.is_empty() => Err(OpError::field(field, "is required")),
        Key::Name(name) if name.len() > NAME_LEN_MAX => {
            Err(OpError::field(field, format!("is longer than {NAME_LEN_MAX} bytes")))
        }
        Key::Id(_) | Key::Name(_) => Ok(key),
    }
}

#[cfg(test)]
mod tests;
