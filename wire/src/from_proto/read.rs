//! Reading that never fails: what cannot be read becomes [`Change::Unreadable`], with those of its facts that can be read
//! all the same. The facts of a record are looked for only once it turned out to be unreadable.

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    change::Change,
    queue_spec::DEFAULT_QUEUE,
    records::{RecordKey, RecordKind, StoredKey},
    unreadable::{AffectedNodes, Unreadable},
};
use godel_proto::{
    kinds::{self, Key, KeyForm, KindInfo},
    raw, v1,
};
use prost::Message as _;

use super::{BadField, LoadedRecord};
use crate::ops::record_key;

/// Fields of `Op` that change rows.
const BIND: u32 = 20;
const REQUEUE: u32 = 23;

/// One encoded operation of a commit, as [`super::op`].
pub fn read_op(encoded: &Bytes) -> Change {
    super::op(encoded).unwrap_or_else(|bad| unreadable_op(encoded, bad))
}

/// A listed record, as [`super::record`].
pub fn read_record(pb: v1::Record) -> LoadedRecord {
    let (created, revision, time_ms) = (pb.create_revision, pb.revision, pb.create_time_ms);
    let facts = pb.record.clone();
    super::record(pb).unwrap_or_else(|bad| loaded(created, revision, time_ms, unreadable_record(facts, bad)))
}

/// An encoded listed record; rows stay as they are, since their parts are joined before they are read.
pub fn read_encoded(encoded: &Bytes) -> Result<LoadedRecord, Box<v1::Record>> {
    let decode = || v1::Record::decode(encoded.clone());
    match decode() {
        Ok(pb) if matches!(pb.record, Some(v1::record::Record::Rows(_))) => Err(Box::new(pb)),
        Ok(pb) => {
            let (created, revision, time_ms) = (pb.create_revision, pb.revision, pb.create_time_ms);
            Ok(super::record(pb).unwrap_or_else(|bad| {
                let facts = decode().ok().and_then(|pb| pb.record);
                loaded(created, revision, time_ms, unreadable_record(facts, bad))
            }))
        }
        Err(error) => Ok(undecodable_record(encoded, BadField::new("record", error.to_string()))),
    }
}

/// Listed rows of a unit, whole.
pub fn read_rows(pb: v1::Record) -> LoadedRecord {
    let (created, revision, time_ms) = (pb.create_revision, pb.revision, pb.create_time_ms);
    let facts = match &pb.record {
        Some(v1::record::Record::Rows(rows)) => (rows.unit_id, nodes_of(rows)),
        Some(_) | None => (0, Vec::new()),
    };
    super::record(pb).unwrap_or_else(|bad| {
        let key = if facts.0 == 0 { RecordKey::Unknown } else { RecordKey::Rows(UnitId(facts.0)) };
        let nodes = AffectedNodes::Of(facts.1);
        let unreadable = Unreadable { nodes, ..Unreadable::new(key, bad.path, bad.description) };
        loaded(created, revision, time_ms, unreadable)
    })
}

fn loaded(created: u64, revision: u64, create_time_ms: i64, unreadable: Unreadable) -> LoadedRecord {
    LoadedRecord {
        revision: Revision(revision),
        create_revision: Revision(created),
        create_time_ms,
        change: Change::Unreadable(Box::new(unreadable)),
    }
}

/// Nodes that rows name.
fn nodes_of(rows: &v1::UnitRows) -> Vec<NodeId> {
    let nodes = rows.blocks.iter().flat_map(|block| &block.node_ids);
    nodes.filter(|node| **node != 0).map(|node| NodeId(*node)).collect()
}

fn unreadable_record(record: Option<v1::record::Record>, bad: BadField) -> Unreadable {
    use v1::record::Record;
    let unknown = |bad: BadField| Unreadable::new(RecordKey::Unknown, bad.path, bad.description);
    match record {
        None => unknown(bad),
        Some(Record::Rows(rows)) if rows.unit_id == 0 => unknown(bad),
        Some(record) => about(kinds::kind_of(&record), &kinds::encode(&record), bad),
    }
}

/// A record that does not even decode.
fn undecodable_record(encoded: &Bytes, bad: BadField) -> LoadedRecord {
    let record = raw::record(encoded).unwrap_or_default();
    let unreadable = match record.value {
        None => Unreadable::new(RecordKey::Unknown, bad.path, bad.description),
        Some((kind, value)) => about(kind, &value, bad),
    };
    loaded(record.create_revision, record.revision, record.create_time_ms, unreadable)
}

fn unreadable_op(encoded: &Bytes, bad: BadField) -> Change {
    let unknown = |bad: BadField| Unreadable::new(RecordKey::Unknown, bad.path, bad.description);
    let unreadable = match raw::op_payload(encoded) {
        None => unknown(bad),
        Some((field @ BIND..=REQUEUE, payload)) => match unit_of(&payload) {
            None => unknown(bad),
            Some(unit) => {
                // Only a binding takes room anew; what leaves, or has ended, is known to be where it is.
                let nodes = match field {
                    BIND => raw::Binding::decode(payload).map_or(AffectedNodes::Any, |binding| {
                        AffectedNodes::Of(binding.node_ids.into_iter().map(NodeId).collect())
                    }),
                    _ => AffectedNodes::default(),
                };
                Unreadable { nodes, ..Unreadable::new(RecordKey::Rows(unit), bad.path, bad.description) }
            }
        },
        Some((field, payload)) => {
            let kind = i32::try_from(field).ok().and_then(|field| v1::Kind::try_from(field).ok());
            match kind {
                Some(kind) => about(kind, &payload, bad),
                // A deletion of an unknown kind, or an operation that this version does not know.
                None => unknown(bad),
            }
        }
    };
    Change::Unreadable(Box::new(unreadable))
}

/// The unit is the first field of all that changes rows.
#[derive(Clone, PartialEq, prost::Message)]
struct UnitRecordKey {
    #[prost(uint64, tag = "1")]
    unit_id: u64,
}

fn unit_of(payload: &Bytes) -> Option<UnitId> {
    let key = UnitRecordKey::decode(payload.clone()).ok()?;
    (key.unit_id != 0).then_some(UnitId(key.unit_id))
}

/// What can be said of an encoded record of a kind that cannot be read.
fn about(kind: v1::Kind, value: &Bytes, bad: BadField) -> Unreadable {
    let key = key_of_value(kind, value).unwrap_or(RecordKey::Unknown);
    let mut unreadable = Unreadable::new(key, bad.path, bad.description);
    match unreadable.key.kind() {
        Some(RecordKind::Hold) => {
            if let Ok(hold) = v1::Hold::decode(value.clone()) {
                unreadable.queue = Some(hold.queue).filter(|queue| !queue.is_empty());
                unreadable.queue.get_or_insert_with(|| DEFAULT_QUEUE.to_owned());
                if hold.node_id != 0 {
                    unreadable.nodes = AffectedNodes::Of(vec![NodeId(hold.node_id)]);
                }
                if hold.slot.is_none() && hold.unit_id != 0 {
                    unreadable.unit = Some(UnitId(hold.unit_id));
                }
            }
        }
        Some(RecordKind::Unit) => {
            let record = v1::UnitRecord::decode(value.clone()).ok();
            let meta = record.and_then(|record| record.spec?.meta);
            unreadable.name = meta.map(|meta| (meta.namespace, meta.name));
        }
        Some(RecordKind::Rows) => {
            if let Ok(rows) = v1::UnitRows::decode(value.clone()) {
                unreadable.nodes = AffectedNodes::Of(nodes_of(&rows));
            }
        }
        _ => {}
    }
    unreadable
}

/// Which record it is, by the key that the store files it under.
fn key_of_value(kind: v1::Kind, value: &Bytes) -> Option<RecordKey> {
    if kind == v1::Kind::Rows {
        return unit_of(value).map(RecordKey::Rows);
    }
    let has_first = || KindInfo::of(kind).is_some_and(|entry| entry.key != KeyForm::Name);
    // The key of these is their first field: the others need not decode.
    let first = || unit_of(value).filter(|_| has_first()).map(|id| Key::Id(id.0));
    key_of(kind, record_key(kind, value).ok().or_else(first)?)
}

/// Which record a key names.
pub(super) fn key_of(kind: v1::Kind, key: Key) -> Option<RecordKey> {
    let stored = match key {
        Key::Id(id) => StoredKey::Id(id),
        Key::Name(name) => StoredKey::Name(name),
    };
    RecordKey::read(RecordKind::of_number(kind as i32)?, stored)
}
