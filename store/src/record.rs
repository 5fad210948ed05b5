//! Records and their keys, and their encoding as `godel.v1.Record` without decoding the value.

use bytes::{BufMut as _, Bytes, BytesMut};
use godel_domain::ids::Revision;
use godel_proto::v1;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// Key of a record within its kind: ids before names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Of nodes, units and holds.
    Id(u64),
    /// Of everything else.
    Name(String),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of the transaction that created it.
    pub create_revision: Revision,
    /// Of its last change.
    pub revision: Revision,
    /// Commit time of its creation, Unix milliseconds.
    pub create_time_ms: i64,
    /// The encoded record, as it was written.
    pub value: Bytes,
}

/// Field number of records of `kind` in `godel.v1.Record`.
fn record_field(kind: v1::Kind) -> u32 {
    (kind as i32).unsigned_abs() + 10
}

/// Appends the encoded `godel.v1.Record` of `record`; its value is copied, not decoded. For rows the value is
/// an encoded `godel.v1.UnitRows`.
pub fn encode_record(kind: v1::Kind, record: &Record, out: &mut BytesMut) {
    let Record { create_revision, revision, create_time_ms, value } = record;
    prost::encoding::uint64::encode(1, &create_revision.0, out);
    prost::encoding::uint64::encode(2, &revision.0, out);
    prost::encoding::int64::encode(3, create_time_ms, out);
    encode_key(record_field(kind), WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

/// Appends a record with its length before it.
pub(crate) fn encode_delimited(kind: v1::Kind, record: &Record, out: &mut BytesMut) {
    let mut body = BytesMut::with_capacity(record.value.len() + 40);
    encode_record(kind, record, &mut body);
    encode_varint(body.len() as u64, out);
    out.put_slice(&body);
}

/// `godel.v1.Record` with its value encoded.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawRecord {
    #[prost(uint64, tag = "1")]
    create_revision: u64,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(int64, tag = "3")]
    create_time_ms: i64,
    #[prost(bytes = "bytes", optional, tag = "11")]
    node_spec: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "12")]
    node_report: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "13")]
    node_grant: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    unit_spec: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "15")]
    lease: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "16")]
    partition: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "17")]
    queue: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "18")]
    priority_class: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "19")]
    hold: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "20")]
    pause: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    node_usage: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "23")]
    disruption_budget: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "24")]
    reservation: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "25")]
    partition_block: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "30")]
    rows: Option<Bytes>,
}

impl RawRecord {
    /// Its kind and record; `None` if no value is set.
    pub(crate) fn into_record(self) -> Option<(v1::Kind, Record)> {
        let (kind, value) = [
            (v1::Kind::NodeSpec, self.node_spec),
            (v1::Kind::NodeReport, self.node_report),
            (v1::Kind::NodeGrant, self.node_grant),
            (v1::Kind::UnitSpec, self.unit_spec),
            (v1::Kind::Lease, self.lease),
            (v1::Kind::Partition, self.partition),
            (v1::Kind::Queue, self.queue),
            (v1::Kind::PriorityClass, self.priority_class),
            (v1::Kind::Hold, self.hold),
            (v1::Kind::Pause, self.pause),
            (v1::Kind::NodeUsage, self.node_usage),
            (v1::Kind::DisruptionBudget, self.disruption_budget),
            (v1::Kind::Reservation, self.reservation),
            (v1::Kind::PartitionBlock, self.partition_block),
            (v1::Kind::Rows, self.rows),
        ]
        .into_iter()
        .find_map(|(kind, value)| value.map(|value| (kind, value)))?;
        let record = Record {
            create_revision: Revision(self.create_revision),
            revision: Revision(self.revision),
            create_time_ms: self.create_time_ms,
            value,
        };
        Some((kind, record))
    }
}

/// Takes one length-delimited message off the front of `buffer`; `None` if it is not there whole.
pub(crate) fn split_delimited(buffer: &mut Bytes) -> Option<Bytes> {
    let mut peek = &buffer[..];
    let len = usize::try_from(prost::encoding::decode_varint(&mut peek).ok()?).ok()?;
    let start = encoded_len_varint(len as u64);
    let end = start.checked_add(len)?;
    if end > buffer.len() {
        return None;
    }
    let message = buffer.slice(start..end);
    *buffer = buffer.slice(end..);
    Some(message)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::state::RECORD_KINDS;

    #[test]
    fn records_of_every_kind_come_back_with_their_kind() {
        for kind in RECORD_KINDS.into_iter().chain([v1::Kind::Rows]) {
            let (create_revision, revision) = (Revision(3), Revision(7));
            let record =
                Record { create_revision, revision, create_time_ms: 9, value: Bytes::from_static(b"x") };
            let mut encoded = BytesMut::new();
            encode_record(kind, &record, &mut encoded);
            let read = RawRecord::decode(encoded.freeze()).unwrap().into_record();
            assert_eq!(read, Some((kind, record)));
        }
    }
}
