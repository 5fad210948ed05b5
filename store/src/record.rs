//! Records and their keys, and their encoding as `godel.v1.Record` without decoding the value.

use bytes::{BufMut as _, Bytes, BytesMut};
use godel_base::ids::Revision;
use godel_proto::{raw, v1};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

pub use godel_proto::kinds::Key;

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

/// Appends the encoded `godel.v1.Record` of `record`; its value is copied, not decoded. For rows the value is
/// an encoded `godel.v1.RunningUnits`.
pub fn encode_record(kind: v1::Kind, record: &Record, out: &mut BytesMut) {
    let Record { create_revision, revision, create_time_ms, value } = record;
    prost::encoding::uint64::encode(1, &create_revision.0, out);
    prost::encoding::uint64::encode(2, &revision.0, out);
    prost::encoding::int64::encode(3, create_time_ms, out);
    encode_key(raw::record_field(kind), WireType::LengthDelimited, out);
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

/// Reads what [`encode_record`] has written; `None` if it is no record of a kind that this version knows.
pub(crate) fn decode_record(encoded: &Bytes) -> Option<(v1::Kind, Record)> {
    let raw = raw::record(encoded).ok()?;
    let (kind, value) = raw.value?;
    let record = Record {
        create_revision: Revision(raw.create_revision),
        revision: Revision(raw.revision),
        create_time_ms: raw.create_time_ms,
        value,
    };
    Some((kind, record))
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
    use godel_proto::kinds::KINDS;

    use super::*;

    #[test]
    fn records_of_every_kind_come_back_with_their_kind() {
        for kind in KINDS.map(|entry| entry.kind) {
            let (create_revision, revision) = (Revision(3), Revision(7));
            let record =
                Record { create_revision, revision, create_time_ms: 9, value: Bytes::from_static(b"x") };
            let mut encoded = BytesMut::new();
            encode_record(kind, &record, &mut encoded);
            assert_eq!(decode_record(&encoded.freeze()), Some((kind, record)));
        }
    }
}
