//! Records, page by page.
//!
//! A page is read in slices, so that a large one never keeps the store's writer waiting for long. Later pages
//! show the state as it is then: every record carries its revision, and who watches from the revision of the
//! first page applies what is newer.

use bytes::{Bytes, BytesMut};
use godel_core::ids::{Revision, UnitId};
use godel_kit::convert::BadField;
use godel_proto::v1;
use godel_store::{Key, Record, State, Store, ops::rows_to_proto, record::encode_record};
use prost::Message as _;
use tonic::Status;

use super::kinds;
use crate::paging::{self, Token};

/// A page ends once it is over this.
const PAGE_BYTES: usize = 1 << 20;
/// A slice under the store's lock ends once it is over this.
const SLICE_BYTES: usize = 128 << 10;
/// Records in one slice.
const SLICE_RECORDS: usize = 512;
/// About what a row takes on the wire.
const ROW_BYTES: usize = 24;

/// `godel.v1.ListRecordsResponse` with encoded records.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawPage {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    records: Vec<Bytes>,
    #[prost(string, tag = "2")]
    next_page_token: String,
    #[prost(uint64, tag = "3")]
    revision: u64,
}

/// One slice of one kind.
enum Slice {
    Records(Vec<(Key, Record)>),
    Rows(Vec<(UnitId, Revision, v1::UnitRows)>),
}

/// The page that `request` asks for.
pub(super) fn page(store: &Store, request: &v1::ListRecordsRequest) -> Result<RawPage, Status> {
    let wanted = kinds(&request.kinds)?;
    if wanted.is_empty() {
        return Err(BadField::new("kinds", "at least one is required").into());
    }
    let bad = || BadField::new("page_token", "is not a token of an earlier page of this list");
    let size = paging::size(request.page_size, 1_000, 10_000)?;
    let token = Token::parse(&request.page_token).map_err(|_| bad())?;
    let (mut kind_idx, mut after, revision) = match token {
        None => (0, None, store.read(State::revision).0),
        Some(Token { revision, kind, last }) => {
            let kind_idx = wanted.iter().position(|wanted| *wanted as i32 == kind).ok_or_else(bad)?;
            let after =
                if last.is_empty() { None } else { Some(key(wanted[kind_idx], &last).ok_or_else(bad)?) };
            (kind_idx, after, revision)
        }
    };
    let mut page = RawPage { revision, ..RawPage::default() };
    let mut bytes = 0;
    while let Some(&kind) = wanted.get(kind_idx) {
        if page.records.len() >= size || bytes >= PAGE_BYTES {
            let last = after.as_ref().map(ToString::to_string).unwrap_or_default();
            page.next_page_token = Token { revision, kind: kind as i32, last }.to_string();
            break;
        }
        let limit = (size - page.records.len()).min(SLICE_RECORDS);
        let slice = store.read(|state| slice(state, kind, after.as_ref(), limit));
        let n_before = page.records.len();
        match slice {
            Slice::Records(records) => {
                for (key, record) in records {
                    push(&mut page, &mut bytes, kind, &record);
                    after = Some(key);
                }
            }
            Slice::Rows(units) => {
                for (unit, revision, rows) in units {
                    let value = Bytes::from(rows.encode_to_vec());
                    let record = Record { create_revision: Revision(0), revision, create_time_ms: 0, value };
                    push(&mut page, &mut bytes, kind, &record);
                    after = Some(Key::Id(unit.0));
                }
            }
        }
        if page.records.len() == n_before {
            (kind_idx, after) = (kind_idx + 1, None);
        }
    }
    Ok(page)
}

fn slice(state: &State, kind: v1::Kind, after: Option<&Key>, limit: usize) -> Slice {
    let mut bytes = 0;
    if kind != v1::Kind::Rows {
        let records = state.records(kind, after).take(limit).take_while(|(_, record)| {
            let within = bytes < SLICE_BYTES;
            bytes += record.value.len();
            within
        });
        return Slice::Records(records.map(|(key, record)| (key.clone(), record.clone())).collect());
    }
    let after = match after {
        Some(Key::Id(id)) => Some(UnitId(*id)),
        Some(Key::Name(_)) | None => None,
    };
    let units = state.units_with_rows(after).take(limit).take_while(|(_, _, rows)| {
        let within = bytes < SLICE_BYTES;
        bytes += rows.rows.len() * ROW_BYTES;
        within
    });
    Slice::Rows(units.map(|(unit, revision, rows)| (unit, revision, rows_to_proto(unit, rows))).collect())
}

fn key(kind: v1::Kind, text: &str) -> Option<Key> {
    match kind {
        v1::Kind::Lease | v1::Kind::Partition => Some(Key::Name(text.to_owned())),
        v1::Kind::NodeSpec
        | v1::Kind::NodeReport
        | v1::Kind::NodeGrant
        | v1::Kind::UnitSpec
        | v1::Kind::Rows
        | v1::Kind::Unspecified => text.parse().ok().map(Key::Id),
    }
}

fn push(page: &mut RawPage, bytes: &mut usize, kind: v1::Kind, record: &Record) {
    let mut encoded = BytesMut::with_capacity(record.value.len() + 48);
    encode_record(kind, record, &mut encoded);
    *bytes += encoded.len();
    page.records.push(encoded.freeze());
}
