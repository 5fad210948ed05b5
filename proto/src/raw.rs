//! Transactions and commits whose operations stay encoded, assignments whose units do, and bindings whose demands do.
//!
//! On the wire they are `godel.v1.TxnRequest`, `Commit`, `UnitAssignment` and `Binding`: messages and `bytes` have the
//! same encoding. In memory each operation is one slice of the buffer it arrived in, which state logs and sends on
//! without encoding it again, and the dispatcher hands a unit out as the bytes that it committed. Millions of bindings
//! carry a few demands: whoever has seen the bytes need not decode them again.

use std::ops::Range;

use bytes::Bytes;
use prost::Message as _;

use crate::{kinds::KINDS, v1};

/// `godel.v1.TxnRequest` with encoded operations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxnRequest {
    /// Who writes.
    #[prost(message, optional, tag = "1")]
    pub writer: Option<v1::Writer>,
    /// What must hold.
    #[prost(message, repeated, tag = "2")]
    pub preconditions: Vec<v1::Precondition>,
    /// Encoded `godel.v1.Op`s.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub ops: Vec<Bytes>,
    /// No node that an operation binds to may have a NodeSpec changed after this revision; 0: not looked at.
    #[prost(uint64, tag = "4")]
    pub nodes_as_of: u64,
    /// Store in which the writer's lease was granted; 0: not said.
    #[prost(uint64, tag = "5")]
    pub store_id: u64,
    /// On whose behalf it is made: lines of the change log.
    #[prost(message, repeated, tag = "6")]
    pub changes: Vec<v1::ChangeRecord>,
}

/// `godel.v1.Commit` with encoded operations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Commit {
    /// Store revision of the transaction.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Unix milliseconds, strictly rising.
    #[prost(int64, tag = "2")]
    pub commit_time_ms: i64,
    /// Who wrote.
    #[prost(message, optional, tag = "3")]
    pub writer: Option<v1::Writer>,
    /// Encoded `godel.v1.Op`s.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub ops: Vec<Bytes>,
    /// Of the first commit of a store its id; else 0.
    #[prost(uint64, tag = "5")]
    pub store_id: u64,
}

/// `godel.v1.UnitAssignment` with an encoded unit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnitAssignment {
    /// Encoded `godel.v1.UnitRecord`: the bytes that were committed, mostly.
    #[prost(bytes = "bytes", tag = "1")]
    pub record: Bytes,
    /// Revision of `record`.
    #[prost(uint64, tag = "2")]
    pub spec_revision: u64,
    /// What is to be placed.
    #[prost(uint32, repeated, tag = "3")]
    pub ordinals: Vec<u32>,
    /// Of each; empty: all 0.
    #[prost(uint32, repeated, tag = "4")]
    pub incarnations: Vec<u32>,
    /// Bound and not evicting.
    #[prost(uint32, tag = "5")]
    pub bound: u32,
    /// Whose nodes may be used.
    #[prost(enumeration = "crate::v1::AssignmentScope", tag = "16")]
    pub scope: i32,
    /// A queue of it is at a maximum: others there have to leave first.
    #[prost(bool, tag = "17")]
    pub at_maximum: bool,
    /// Should the unit find no place it is its turn to gather room.
    #[prost(bool, tag = "30")]
    pub turn: bool,
    /// There is room for it, and it is its turn.
    #[prost(bool, tag = "31")]
    pub called: bool,
    /// Most that are placed before the unit is parked again; absent: no limit.
    #[prost(uint32, optional, tag = "32")]
    pub places_max: Option<u32>,
    /// Up to where the scheduler must have read before it decides.
    #[prost(uint64, tag = "33")]
    pub read_revision: u64,
}

/// `godel.v1.Binding` with an encoded demand.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Binding {
    /// Whose.
    #[prost(uint64, tag = "1")]
    pub unit_id: u64,
    /// Index into the unit's task groups.
    #[prost(uint32, tag = "2")]
    pub task_group: u32,
    /// Encoded `godel.v1.Demand`; empty: nothing.
    #[prost(bytes = "bytes", tag = "3")]
    pub demand: Bytes,
    /// `godel.v1.Pool`.
    #[prost(int32, tag = "4")]
    pub pool: i32,
    /// Which.
    #[prost(uint32, repeated, tag = "5")]
    pub ordinals: Vec<u32>,
    /// Of each; empty: all 0.
    #[prost(uint32, repeated, tag = "6")]
    pub incarnations: Vec<u32>,
    /// Where.
    #[prost(uint32, repeated, tag = "7")]
    pub node_ids: Vec<u32>,
    /// Bit i: device i of the node. Empty: no devices.
    #[prost(uint64, repeated, tag = "8")]
    pub device_masks: Vec<u64>,
    /// Encoded `godel.v1.Standing`.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub standing: Option<Bytes>,
    /// Bit i: zone i of the node. Empty: no zones.
    #[prost(uint64, repeated, tag = "10")]
    pub zone_masks: Vec<u64>,
    /// Bit i: core i of the only zone. Empty: none.
    #[prost(uint64, repeated, tag = "11")]
    pub core_masks: Vec<u64>,
}

/// `godel.v1.Record` with an encoded record, whatever its kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Of the transaction that created it.
    pub create_revision: u64,
    /// Of its last change.
    pub revision: u64,
    /// Commit time of its creation, Unix milliseconds.
    pub create_time_ms: i64,
    /// Its kind and its encoded value; `None` if there is none, or of a kind that this version does not know.
    pub value: Option<(v1::Kind, Bytes)>,
}

/// The field of `godel.v1.Record` that has records of a kind.
pub fn record_field(kind: v1::Kind) -> u32 {
    (kind as i32).unsigned_abs() + RECORD_FIELDS
}

/// Fields of `godel.v1.Record` above this one have records, each by the number of its kind.
const RECORD_FIELDS: u32 = 10;

/// Takes an encoded `godel.v1.Record` apart without decoding its value, which stays a slice of it.
///
/// # Errors
/// It is not the encoding of a message.
pub fn record(encoded: &Bytes) -> Result<Record, prost::DecodeError> {
    use prost::encoding::{DecodeContext, WireType, bytes, decode_key, int64, skip_field, uint64};
    let mut rest = encoded.clone();
    let mut record = Record::default();
    while !rest.is_empty() {
        let (tag, wire) = decode_key(&mut rest)?;
        let context = DecodeContext::default();
        let kind = tag.checked_sub(RECORD_FIELDS).and_then(|number| i32::try_from(number).ok());
        let kind = kind.filter(|number| *number > 0).and_then(|number| v1::Kind::try_from(number).ok());
        match (tag, kind, wire) {
            (1, ..) => uint64::merge(wire, &mut record.create_revision, &mut rest, context)?,
            (2, ..) => uint64::merge(wire, &mut record.revision, &mut rest, context)?,
            (3, ..) => int64::merge(wire, &mut record.create_time_ms, &mut rest, context)?,
            (_, Some(kind), WireType::LengthDelimited) => {
                let mut value = Bytes::new();
                bytes::merge(wire, &mut value, &mut rest, context)?;
                record.value = Some((kind, value));
            }
            _ => skip_field(wire, tag, &mut rest, context)?,
        }
    }
    Ok(record)
}

impl From<v1::Binding> for Binding {
    fn from(binding: v1::Binding) -> Self {
        Self {
            unit_id: binding.unit_id,
            task_group: binding.task_group,
            demand: binding.demand.unwrap_or_default().encode_to_vec().into(),
            pool: binding.pool,
            ordinals: binding.ordinals,
            incarnations: binding.incarnations,
            node_ids: binding.node_ids,
            device_masks: binding.device_masks,
            standing: binding.standing.map(|standing| standing.encode_to_vec().into()),
            zone_masks: binding.zone_masks,
            core_masks: binding.core_masks,
        }
    }
}

impl prost::Name for UnitAssignment {
    const NAME: &'static str = "UnitAssignment";
    const PACKAGE: &'static str = "godel.v1";
}

impl prost::Name for TxnRequest {
    const NAME: &'static str = "TxnRequest";
    const PACKAGE: &'static str = "godel.v1";
}

impl prost::Name for Commit {
    const NAME: &'static str = "Commit";
    const PACKAGE: &'static str = "godel.v1";
}

/// Encodes one operation.
pub fn encode_op(op: v1::op::Op) -> Bytes {
    v1::Op { op: Some(op) }.encode_to_vec().into()
}

/// Field number of an encoded operation: the kind of what it changes, without decoding it. `None` for an
/// empty or malformed one.
pub fn op_field(op: &[u8]) -> Option<u32> {
    let (tag, _) = varint(op)?;
    u32::try_from(tag >> 3).ok()
}

/// The field of `Op` with a number.
pub fn op_name(field: u32) -> Option<&'static str> {
    Some(match field {
        16 => "delete",
        20 => "bind",
        21 => "evict",
        22 => "run_status",
        23 => "requeue",
        26 => "change_terms",
        28 => "compact",
        _ => KINDS.iter().find(|info| info.is_whole() && info.kind as u32 == field)?.put,
    })
}

/// The encoded message inside an encoded operation, and its field number.
pub fn op_payload(op: &Bytes) -> Option<(u32, Bytes)> {
    let (tag, tag_len) = varint(op)?;
    let (len, len_len) = varint(op.get(tag_len..)?)?;
    let start = tag_len + len_len;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    if tag & 7 != 2 || end != op.len() {
        return None;
    }
    Some((u32::try_from(tag >> 3).ok()?, op.slice(start..end)))
}

/// Id of the unit that an encoded operation puts, without decoding it. `None` where it puts none, or the id is not
/// its first field.
pub fn put_unit_id(op: &Bytes) -> Option<u64> {
    const PUT_UNIT: u32 = 4;
    if op_field(op) != Some(PUT_UNIT) {
        return None;
    }
    let (_, unit) = op_payload(op)?;
    unit_id(&unit)
}

/// Id of an encoded `godel.v1.UnitRecord`, without decoding it. `None` where it is not the first field.
pub fn unit_id(unit: &[u8]) -> Option<u64> {
    const UNIT_ID: u8 = 1 << 3;
    let (id, _) = varint(unit.strip_prefix(&[UNIT_ID])?)?;
    Some(id)
}

/// An encoded `godel.v1.UnitRecord` in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitParts {
    /// The id of the unit.
    pub id: u64,
    /// The encoded `meta` of its `spec`.
    pub meta: Bytes,
    /// All that comes after `meta`.
    pub rest: Bytes,
    /// How many bytes of `rest` belong to the `spec`.
    pub n_spec: usize,
}

/// Takes an encoded `godel.v1.UnitRecord` apart, without decoding it. `None` where it does not begin with its id and its
/// `spec`, and that with its `meta`.
pub fn unit_parts(unit: &Bytes) -> Option<UnitParts> {
    const UNIT_ID: u8 = 1 << 3;
    const SPEC: u8 = 2 << 3 | 2;
    const META: u8 = 1 << 3 | 2;
    let (id, id_len) = varint(unit.strip_prefix(&[UNIT_ID])?)?;
    let spec = message(unit, 1 + id_len, SPEC)?;
    let meta = message(unit, spec.start, META)?;
    let n_spec = spec.end.checked_sub(meta.end)?;
    Some(UnitParts { id, rest: unit.slice(meta.end..), meta: unit.slice(meta), n_spec })
}

/// Where the message with a one-byte tag is that begins at `at`.
fn message(bytes: &Bytes, at: usize, tag: u8) -> Option<Range<usize>> {
    let (len, len_len) = varint(bytes.get(at..)?.strip_prefix(&[tag])?)?;
    let start = at + 1 + len_len;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (idx, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * idx);
        if byte & 0x80 == 0 {
            return Some((value, idx + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_is_wire_compatible_with_typed_ops() {
        let key =
            v1::Delete { kind: v1::Kind::Unit.into(), key: Some(v1::Key { id: 7, name: String::new() }) };
        let op = encode_op(v1::op::Op::Delete(key.clone()));
        assert_eq!(op_field(&op), Some(16));
        assert_eq!((op_name(16), op_name(7), op_name(11)), (Some("delete"), Some("put_queue"), None));
        let (field, payload) = op_payload(&op).unwrap();
        assert_eq!((field, v1::Delete::decode(payload).unwrap()), (16, key));
    }

    #[test]
    fn the_id_of_a_put_unit_is_its_first_field() {
        let put = |unit_id| {
            let spec = Some(v1::UnitSpec { queue: "q".to_owned(), ..v1::UnitSpec::default() });
            encode_op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id, spec, ..v1::UnitRecord::default() }))
        };
        assert_eq!(put_unit_id(&put(7)), Some(7));
        assert_eq!(put_unit_id(&put(1 << 40)), Some(1 << 40));
        assert_eq!(put_unit_id(&put(0)), None);
        assert_eq!(put_unit_id(&encode_op(v1::op::Op::PutNodeSpec(v1::NodeSpec::default()))), None);
        assert_eq!(put_unit_id(&Bytes::new()), None);
    }

    #[test]
    fn a_unit_comes_apart_behind_its_meta() {
        let meta = v1::ObjectMeta { name: "web".to_owned(), ..v1::ObjectMeta::default() };
        let spec = v1::UnitSpec { meta: Some(meta.clone()), queue: "q".to_owned(), ..Default::default() };
        let status = v1::UnitStatus { whole_restarts: 3, ..Default::default() };
        let unit = v1::UnitRecord { unit_id: 300, spec: Some(spec), status: Some(status.clone()) };
        let encoded = Bytes::from(unit.encode_to_vec());
        let parts = unit_parts(&encoded).unwrap();
        assert_eq!((parts.id, v1::ObjectMeta::decode(parts.meta)), (300, Ok(meta)));
        assert_eq!(v1::UnitSpec::decode(parts.rest.slice(..parts.n_spec)).unwrap().queue, "q");
        assert_eq!(v1::UnitRecord::decode(parts.rest.slice(parts.n_spec..)).unwrap().status, Some(status));
        let bare = v1::UnitSpec { queue: "q".to_owned(), ..Default::default() };
        let bare = v1::UnitRecord { unit_id: 3, spec: Some(bare), ..Default::default() };
        assert_eq!(unit_parts(&bare.encode_to_vec().into()), None);
        assert_eq!(unit_parts(&encoded.slice(..6)), None);
        assert_eq!(unit_parts(&Bytes::new()), None);
        // A `meta` that reaches beyond its `spec`.
        assert_eq!(unit_parts(&Bytes::from_static(&[8, 1, 18, 2, 10, 3, 0, 0, 0])), None);
    }

    #[test]
    fn a_binding_is_wire_compatible_with_a_typed_one() {
        let amounts = [("cpu".to_owned(), 500)].into();
        let demand = v1::Demand {
            requests: Some(v1::Resources { amounts }),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        };
        let typed = v1::Binding {
            unit_id: 7,
            task_group: 1,
            demand: Some(demand.clone()),
            pool: v1::Pool::BestEffort.into(),
            ordinals: vec![3, 4],
            incarnations: vec![0, 1],
            node_ids: vec![300, 2],
            device_masks: vec![1, 1 << 63],
            zone_masks: vec![0b10, 0b11],
            core_masks: vec![0b110, 0],
            standing: Some(v1::Standing { priority: -7, min_member: 3, ..v1::Standing::default() }),
        };
        let binding = Binding::decode(Bytes::from(typed.encode_to_vec())).unwrap();
        assert_eq!(v1::Demand::decode(binding.demand.clone()), Ok(demand));
        assert_eq!(v1::Binding::decode(binding.encode_to_vec().as_slice()), Ok(typed.clone()));
        assert_eq!(Binding::from(typed), binding);
    }

    #[test]
    fn malformed_ops_have_no_payload() {
        for bytes in [&b""[..], &[0x82], &[0x82, 0x01, 0x05, 0x00], &[0x08, 0x01]] {
            assert_eq!(op_payload(&Bytes::copy_from_slice(bytes)), None, "{bytes:?}");
        }
    }
}
