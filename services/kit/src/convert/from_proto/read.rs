//! Reading that never fails: what cannot be read becomes [`Change::Unreadable`], with those of its facts that can be read
//! all the same. The facts of a record are looked for only once it turned out to be unreadable.

use bytes::Bytes;
use godel_domain::{
    change::Change,
    ids::{HoldId, NodeId, Revision, UnitId},
    queue_spec::DEFAULT_QUEUE,
    unreadable::{Nodes, Subject, Unreadable},
};
use godel_proto::{raw, v1};
use godel_store::{Key, ops::record_key};
use prost::Message as _;

use super::{BadField, LoadedRecord};

/// Fields of `Op` that change rows.
const BIND: u32 = 20;
const REQUEUE: u32 = 23;

/// One encoded operation of a commit, as [`super::op`].
pub fn read_op(encoded: &Bytes) -> Change {
    super::op(encoded).unwrap_or_else(|bad| unreadable_op(encoded, bad))
}

/// A listed record, as [`super::record`].
pub fn read_record(pb: v1::Record) -> LoadedRecord {
    let times = (pb.create_revision, pb.revision, pb.create_time_ms);
    let facts = pb.record.clone();
    super::record(pb).unwrap_or_else(|bad| unreadable_record(times, facts, bad))
}

/// An encoded listed record; rows stay as they are, since their parts are joined before they are read.
pub(crate) fn read_encoded(encoded: &Bytes) -> Result<LoadedRecord, Box<v1::Record>> {
    let decode = || v1::Record::decode(encoded.clone());
    match decode() {
        Ok(pb) if matches!(pb.record, Some(v1::record::Record::Rows(_))) => Err(Box::new(pb)),
        Ok(pb) => {
            let times = (pb.create_revision, pb.revision, pb.create_time_ms);
            let read = super::record(pb);
            Ok(read
                .unwrap_or_else(|bad| unreadable_record(times, decode().ok().and_then(|pb| pb.record), bad)))
        }
        Err(error) => Ok(undecodable_record(encoded, BadField::new("record", error.to_string()))),
    }
}

/// Listed rows of a unit, whole.
pub(crate) fn read_rows(pb: v1::Record) -> LoadedRecord {
    let times = (pb.create_revision, pb.revision, pb.create_time_ms);
    let facts = match &pb.record {
        Some(v1::record::Record::Rows(rows)) => (rows.unit_id, nodes_of(rows)),
        Some(_) | None => (0, Vec::new()),
    };
    super::record(pb).unwrap_or_else(|bad| {
        let subject = if facts.0 == 0 { Subject::Unknown } else { Subject::Rows(UnitId(facts.0)) };
        loaded(
            times,
            Unreadable { nodes: Nodes::Of(facts.1), ..Unreadable::new(subject, bad.path, bad.description) },
        )
    })
}

fn loaded((created, revision, create_time_ms): (u64, u64, i64), unreadable: Unreadable) -> LoadedRecord {
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

fn unreadable_record(
    times: (u64, u64, i64),
    record: Option<v1::record::Record>,
    bad: BadField,
) -> LoadedRecord {
    use v1::record::Record;
    let unknown = |bad: BadField| Unreadable::new(Subject::Unknown, bad.path, bad.description);
    let of = |kind: v1::Kind, value: Bytes, bad: BadField| about(kind, &value, bad);
    let unreadable = match record {
        None => unknown(bad),
        Some(Record::NodeSpec(pb)) => of(v1::Kind::NodeSpec, pb.encode_to_vec().into(), bad),
        Some(Record::NodeReport(pb)) => of(v1::Kind::NodeReport, pb.encode_to_vec().into(), bad),
        Some(Record::NodeGrant(pb)) => of(v1::Kind::NodeGrant, pb.encode_to_vec().into(), bad),
        Some(Record::NodeUsage(pb)) => of(v1::Kind::NodeUsage, pb.encode_to_vec().into(), bad),
        Some(Record::UnitSpec(pb)) => of(v1::Kind::UnitSpec, pb.encode_to_vec().into(), bad),
        Some(Record::Lease(pb)) => of(v1::Kind::Lease, pb.encode_to_vec().into(), bad),
        Some(Record::Partition(pb)) => of(v1::Kind::Partition, pb.encode_to_vec().into(), bad),
        Some(Record::PartitionBlock(pb)) => of(v1::Kind::PartitionBlock, pb.encode_to_vec().into(), bad),
        Some(Record::Queue(pb)) => of(v1::Kind::Queue, pb.encode_to_vec().into(), bad),
        Some(Record::PriorityClass(pb)) => of(v1::Kind::PriorityClass, pb.encode_to_vec().into(), bad),
        Some(Record::DisruptionBudget(pb)) => of(v1::Kind::DisruptionBudget, pb.encode_to_vec().into(), bad),
        Some(Record::Reservation(pb)) => of(v1::Kind::Reservation, pb.encode_to_vec().into(), bad),
        Some(Record::Pause(pb)) => of(v1::Kind::Pause, pb.encode_to_vec().into(), bad),
        Some(Record::Hold(pb)) => of(v1::Kind::Hold, pb.encode_to_vec().into(), bad),
        Some(Record::Rows(rows)) if rows.unit_id != 0 => {
            let nodes = Nodes::Of(nodes_of(&rows));
            let subject = Subject::Rows(UnitId(rows.unit_id));
            Unreadable { nodes, ..Unreadable::new(subject, bad.path, bad.description) }
        }
        Some(Record::Rows(_)) => unknown(bad),
    };
    loaded(times, unreadable)
}

/// `godel.v1.Record` with its record encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(uint64, tag = "1")]
    create_revision: u64,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(int64, tag = "3")]
    create_time_ms: i64,
    #[prost(oneof = "Encoded", tags = "11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 25, 30")]
    record: Option<Encoded>,
}

/// By the number of its field, which is 10 more than that of its kind.
#[derive(Clone, PartialEq, prost::Oneof)]
enum Encoded {
    #[prost(bytes = "bytes", tag = "11")]
    NodeSpec(Bytes),
    #[prost(bytes = "bytes", tag = "12")]
    NodeReport(Bytes),
    #[prost(bytes = "bytes", tag = "13")]
    NodeGrant(Bytes),
    #[prost(bytes = "bytes", tag = "14")]
    UnitSpec(Bytes),
    #[prost(bytes = "bytes", tag = "15")]
    Lease(Bytes),
    #[prost(bytes = "bytes", tag = "16")]
    Partition(Bytes),
    #[prost(bytes = "bytes", tag = "17")]
    Queue(Bytes),
    #[prost(bytes = "bytes", tag = "18")]
    PriorityClass(Bytes),
    #[prost(bytes = "bytes", tag = "19")]
    Hold(Bytes),
    #[prost(bytes = "bytes", tag = "20")]
    Pause(Bytes),
    #[prost(bytes = "bytes", tag = "22")]
    NodeUsage(Bytes),
    #[prost(bytes = "bytes", tag = "23")]
    DisruptionBudget(Bytes),
    #[prost(bytes = "bytes", tag = "24")]
    Reservation(Bytes),
    #[prost(bytes = "bytes", tag = "25")]
    PartitionBlock(Bytes),
    #[prost(bytes = "bytes", tag = "30")]
    Rows(Bytes),
}

/// A record that does not even decode.
fn undecodable_record(encoded: &Bytes, bad: BadField) -> LoadedRecord {
    let envelope = Envelope::decode(encoded.clone()).unwrap_or_default();
    let times = (envelope.create_revision, envelope.revision, envelope.create_time_ms);
    let (kind, value) = match envelope.record {
        None => {
            return loaded(times, Unreadable::new(Subject::Unknown, bad.path, bad.description));
        }
        Some(Encoded::NodeSpec(value)) => (v1::Kind::NodeSpec, value),
        Some(Encoded::NodeReport(value)) => (v1::Kind::NodeReport, value),
        Some(Encoded::NodeGrant(value)) => (v1::Kind::NodeGrant, value),
        Some(Encoded::UnitSpec(value)) => (v1::Kind::UnitSpec, value),
        Some(Encoded::Lease(value)) => (v1::Kind::Lease, value),
        Some(Encoded::Partition(value)) => (v1::Kind::Partition, value),
        Some(Encoded::Queue(value)) => (v1::Kind::Queue, value),
        Some(Encoded::PriorityClass(value)) => (v1::Kind::PriorityClass, value),
        Some(Encoded::Hold(value)) => (v1::Kind::Hold, value),
        Some(Encoded::Pause(value)) => (v1::Kind::Pause, value),
        Some(Encoded::NodeUsage(value)) => (v1::Kind::NodeUsage, value),
        Some(Encoded::DisruptionBudget(value)) => (v1::Kind::DisruptionBudget, value),
        Some(Encoded::Reservation(value)) => (v1::Kind::Reservation, value),
        Some(Encoded::PartitionBlock(value)) => (v1::Kind::PartitionBlock, value),
        Some(Encoded::Rows(value)) => (v1::Kind::Rows, value),
    };
    loaded(times, about(kind, &value, bad))
}

fn unreadable_op(encoded: &Bytes, bad: BadField) -> Change {
    let unknown = |bad: BadField| Unreadable::new(Subject::Unknown, bad.path, bad.description);
    let unreadable = match raw::op_payload(encoded) {
        None => unknown(bad),
        Some((field @ BIND..=REQUEUE, payload)) => match unit_of(&payload) {
            None => unknown(bad),
            Some(unit) => {
                // Only a binding takes room anew; what leaves, or has ended, is known to be where it is.
                let nodes = match field {
                    BIND => raw::Binding::decode(payload).map_or(Nodes::Any, |binding| {
                        Nodes::Of(binding.node_ids.into_iter().map(NodeId).collect())
                    }),
                    _ => Nodes::default(),
                };
                Unreadable { nodes, ..Unreadable::new(Subject::Rows(unit), bad.path, bad.description) }
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
struct UnitKey {
    #[prost(uint64, tag = "1")]
    unit_id: u64,
}

fn unit_of(payload: &Bytes) -> Option<UnitId> {
    let key = UnitKey::decode(payload.clone()).ok()?;
    (key.unit_id != 0).then_some(UnitId(key.unit_id))
}

/// What can be said of an encoded record of a kind that cannot be read.
fn about(kind: v1::Kind, value: &Bytes, bad: BadField) -> Unreadable {
    let subject = subject(kind, value).unwrap_or(Subject::Unknown);
    let mut unreadable = Unreadable::new(subject, bad.path, bad.description);
    match &unreadable.subject {
        Subject::Hold(_) => {
            if let Ok(hold) = v1::Hold::decode(value.clone()) {
                unreadable.queue = Some(hold.queue).filter(|queue| !queue.is_empty());
                unreadable.queue.get_or_insert_with(|| DEFAULT_QUEUE.to_owned());
                if hold.node_id != 0 {
                    unreadable.nodes = Nodes::Of(vec![NodeId(hold.node_id)]);
                }
                if hold.slot.is_none() && hold.unit_id != 0 {
                    unreadable.unit = Some(UnitId(hold.unit_id));
                }
            }
        }
        Subject::Unit(_) => {
            let meta = v1::UnitSpec::decode(value.clone()).ok().and_then(|spec| spec.meta);
            unreadable.name = meta.map(|meta| (meta.namespace, meta.name));
        }
        Subject::Rows(_) => {
            if let Ok(rows) = v1::UnitRows::decode(value.clone()) {
                unreadable.nodes = Nodes::Of(nodes_of(&rows));
            }
        }
        Subject::NodeSpec(_)
        | Subject::NodeReport(_)
        | Subject::NodeGrant(_)
        | Subject::NodeUsage(_)
        | Subject::Queue(_)
        | Subject::PriorityClass(_)
        | Subject::Budget(_)
        | Subject::Reservation(_)
        | Subject::Pause(_)
        | Subject::Lease(_)
        | Subject::Partition
        | Subject::PartitionBlock(_)
        | Subject::Unknown => {}
    }
    unreadable
}

/// Which record it is, by the key that the store files it under.
fn subject(kind: v1::Kind, value: &Bytes) -> Option<Subject> {
    if kind == v1::Kind::Rows {
        return unit_of(value).map(Subject::Rows);
    }
    let key = record_key(kind, value).ok().or_else(|| match kind {
        // The first field of these is their key: the others need not decode.
        v1::Kind::NodeSpec
        | v1::Kind::NodeReport
        | v1::Kind::NodeGrant
        | v1::Kind::NodeUsage
        | v1::Kind::Hold
        | v1::Kind::PartitionBlock => unit_of(value).map(|id| Key::Id(id.0)),
        _ => None,
    });
    subject_of_key(kind, key?)
}

/// Which record a key names.
pub(super) fn subject_of_key(kind: v1::Kind, key: Key) -> Option<Subject> {
    let node = |id: u64| u32::try_from(id).ok().map(NodeId);
    Some(match (kind, key) {
        (v1::Kind::NodeSpec, Key::Id(id)) => Subject::NodeSpec(node(id)?),
        (v1::Kind::NodeReport, Key::Id(id)) => Subject::NodeReport(node(id)?),
        (v1::Kind::NodeGrant, Key::Id(id)) => Subject::NodeGrant(node(id)?),
        (v1::Kind::NodeUsage, Key::Id(id)) => Subject::NodeUsage(node(id)?),
        (v1::Kind::UnitSpec, Key::Id(id)) => Subject::Unit(UnitId(id)),
        (v1::Kind::Rows, Key::Id(id)) => Subject::Rows(UnitId(id)),
        (v1::Kind::Hold, Key::Id(id)) => Subject::Hold(HoldId(id)),
        (v1::Kind::Lease, Key::Name(name)) => Subject::Lease(name),
        (v1::Kind::Partition, Key::Name(_)) => Subject::Partition,
        (v1::Kind::PartitionBlock, Key::Id(id)) => {
            Subject::PartitionBlock(u32::try_from(id.checked_sub(1)?).ok()?)
        }
        (v1::Kind::Queue, Key::Name(name)) => Subject::Queue(name),
        (v1::Kind::PriorityClass, Key::Name(name)) => Subject::PriorityClass(name),
        (v1::Kind::DisruptionBudget, Key::Name(name)) => Subject::Budget(name),
        (v1::Kind::Reservation, Key::Name(name)) => Subject::Reservation(name),
        (v1::Kind::Pause, Key::Name(scope)) => Subject::Pause(scope),
        (_, Key::Id(_) | Key::Name(_)) => return None,
    })
}
