//! Records, page by page.
//!
//! A page is read in slices, so that a large one never keeps the store's writer waiting for long. Later pages
//! show the state as it is then: every record carries its revision, and who watches from the revision of the
//! first page applies what is newer. The rows of a unit go in parts, each a record of its own and perhaps read
//! at another revision: there it is every row that carries its revision.

use bytes::{Bytes, BytesMut};
use godel_base::ids::{Revision, UnitId};
use godel_identity::caller::Caller;
use godel_kit::message::{MESSAGE_BYTES_MAX, field_len};
use godel_proto::{
    kinds::{KeyForm, KindInfo},
    v1,
};
use godel_store::{Key, Record, State, record::encode_record};
use godel_wire::BadField;
use godel_wire::ops::rows_part_to_proto;
use prost::Message as _;
use tonic::Status;

use super::{is_shown, kinds};
use crate::{
    paging::{self, Token},
    sessions::NodeSessions,
};

/// Records of a page have this together at most; the rest of a message is for the page's token and revision.
/// A single record is smaller: a transaction has written it, and rows go in parts.
const PAGE_BYTES: usize = MESSAGE_BYTES_MAX - 1024;
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
    #[prost(uint64, tag = "4")]
    store_id: u64,
}

/// Where a kind goes on.
#[derive(Clone, Debug, PartialEq)]
enum ListCursor {
    /// Behind this record.
    Records(Option<Key>),
    /// At this unit or the next one that has rows, from an ordinal of this unit on.
    Rows(UnitId, u32),
}

/// What one record of a list is made of.
enum Listed {
    Record(Record),
    Rows(Revision, v1::UnitRows),
}

/// The page that `request` asks for. What `caller` is not shown is left out.
pub(super) fn page(
    hub: &NodeSessions,
    request: &v1::ListRecordsRequest,
    caller: &Caller,
) -> Result<RawPage, Status> {
    let store = &hub.store;
    let mut wanted = kinds(&request.kinds)?;
    if wanted.is_empty() {
        return Err(BadField::new("kinds", "at least one is required").into());
    }
    wanted.retain(|kind| is_shown(*kind, caller));
    let bad = || BadField::new("page_token", "is not a token of a previous page of this list");
    let size = paging::size(request.page_size, 1_000, 10_000)?;
    let token = Token::parse(&request.page_token).map_err(|_| bad())?;
    let store_id = paging::of_this_store(token.as_ref(), hub.store_id())?;
    let (mut kind_idx, mut cursor, revision) = match token {
        None => {
            let start = wanted.first().map_or(ListCursor::Records(None), |kind| ListCursor::start(*kind));
            (0, start, store.read(State::revision).0)
        }
        Some(Token { revision, kind, last, .. }) => {
            let kind_idx = wanted.iter().position(|wanted| *wanted as i32 == kind).ok_or_else(bad)?;
            (kind_idx, ListCursor::parse(wanted[kind_idx], &last).ok_or_else(bad)?, revision)
        }
    };
    let mut page = RawPage { revision, store_id: store_id.0, ..RawPage::default() };
    let (mut bytes, mut full) = (0, false);
    while let Some(&kind) = wanted.get(kind_idx) {
        full = full || page.records.len() >= size;
        if full {
            page.next_page_token =
                Token { store: store_id, revision, kind: kind as i32, last: cursor.to_string() }.to_string();
            break;
        }
        let limit = (size - page.records.len()).min(SLICE_RECORDS);
        let slice = store.read(|state| slice(state, kind, &cursor, limit));
        if slice.is_empty() {
            kind_idx += 1;
            cursor = wanted.get(kind_idx).map_or(ListCursor::Records(None), |kind| ListCursor::start(*kind));
        }
        for (listed, next) in slice {
            let record = encoded(kind, listed);
            bytes += field_len(record.len());
            full = bytes > PAGE_BYTES && !page.records.is_empty();
            if full {
                break;
            }
            page.records.push(record);
            cursor = next;
        }
    }
    Ok(page)
}

/// Some records from `cursor` on, each with where to go on behind it; none at the end of the kind.
fn slice(state: &State, kind: v1::Kind, cursor: &ListCursor, limit: usize) -> Vec<(Listed, ListCursor)> {
    let mut slice = Vec::new();
    let mut bytes = 0;
    match cursor {
        ListCursor::Records(after) => {
            for (key, record) in state.records(kind, after.as_ref()).take(limit) {
                bytes += record.value.len();
                slice.push((Listed::Record(record.clone()), ListCursor::Records(Some(key.clone()))));
                if bytes >= SLICE_BYTES {
                    break;
                }
            }
        }
        ListCursor::Rows(first, ordinal) => {
            // Ids begin at 1: behind the one before is at this one.
            let before = first.0.checked_sub(1).map(UnitId);
            for (unit, revision, rows) in state.rows().iter(before) {
                let mut from = Some(if unit == *first { *ordinal } else { 0 });
                while let Some(start) = from {
                    if slice.len() >= limit || bytes >= SLICE_BYTES {
                        return slice;
                    }
                    let (part, next) = rows_part_to_proto(unit, rows, start);
                    bytes += part.blocks.iter().map(|block| block.ordinals.len() * ROW_BYTES).sum::<usize>();
                    let cursor = match next {
                        Some(next) => ListCursor::Rows(unit, next),
                        None => ListCursor::Rows(UnitId(unit.0.saturating_add(1)), 0),
                    };
                    slice.push((Listed::Rows(revision, part), cursor));
                    from = next;
                }
            }
        }
    }
    slice
}

fn encoded(kind: v1::Kind, listed: Listed) -> Bytes {
    let record = match listed {
        Listed::Record(record) => record,
        Listed::Rows(revision, rows) => {
            let value = Bytes::from(rows.encode_to_vec());
            Record { create_revision: Revision(0), revision, create_time_ms: 0, value }
        }
    };
    let mut encoded = BytesMut::with_capacity(record.value.len() + 48);
    encode_record(kind, &record, &mut encoded);
    encoded.freeze()
}

impl ListCursor {
    fn start(kind: v1::Kind) -> Self {
        if kind == v1::Kind::Rows { Self::Rows(UnitId(0), 0) } else { Self::Records(None) }
    }

    /// From a page token; `None` if it was not written by `fmt` for this kind.
    fn parse(kind: v1::Kind, text: &str) -> Option<Self> {
        Some(match kind {
            v1::Kind::Rows => {
                let (unit, ordinal) = text.split_once('/')?;
                Self::Rows(UnitId(unit.parse().ok()?), ordinal.parse().ok()?)
            }
            _ if text.is_empty() => Self::Records(None),
            _ => Self::Records(Some(match KindInfo::of(kind)?.key {
                KeyForm::Name => Key::Name(text.to_owned()),
                KeyForm::Node | KeyForm::Id => Key::Id(text.parse().ok()?),
            })),
        })
    }
}

impl std::fmt::Display for ListCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Records(None) => Ok(()),
            Self::Records(Some(key)) => key.fmt(f),
            Self::Rows(unit, ordinal) => write!(f, "{unit}/{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_were() {
        for (kind, cursor) in [
            (v1::Kind::Unit, ListCursor::Records(None)),
            (v1::Kind::Unit, ListCursor::Records(Some(Key::Id(7)))),
            (v1::Kind::Lease, ListCursor::Records(Some(Key::Name("scheduler/s1".to_owned())))),
            (v1::Kind::Queue, ListCursor::Records(Some(Key::Name("prod.search".to_owned())))),
            (v1::Kind::PriorityClass, ListCursor::Records(Some(Key::Name("best-effort".to_owned())))),
            (v1::Kind::Rows, ListCursor::start(v1::Kind::Rows)),
            (v1::Kind::Rows, ListCursor::Rows(UnitId(7), 8_192)),
        ] {
            assert_eq!(ListCursor::parse(kind, &cursor.to_string()), Some(cursor));
        }
        for (kind, text) in [
            (v1::Kind::Unit, "x"),
            (v1::Kind::Unit, "7/1"),
            (v1::Kind::Rows, ""),
            (v1::Kind::Rows, "7"),
            (v1::Kind::Rows, "7/x"),
            (v1::Kind::Rows, "/1"),
            (v1::Kind::Rows, "7/-1"),
        ] {
            assert_eq!(ListCursor::parse(kind, text), None, "{text}");
        }
    }
}
