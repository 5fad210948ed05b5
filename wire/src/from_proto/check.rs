//! Whether readers can read what is about to be written.
//!
//! The same functions that followers read with judge here, so nothing is taken that they would have to leave out. On top of
//! that names are checked that are only shown: whoever writes a record says them once, and everybody reads them for ever. What can be
//! read and makes no sense is refused as well, see [`sense`].

use bytes::Bytes;
use godel_domain::change::Change;
use godel_proto::{
    kinds::{self, KindInfo, PutOrOther},
    raw, v1,
};
use prost::Message as _;

use super::{BadField, Result};
use crate::records;

mod known;
pub(crate) mod names;
pub(crate) mod sense;
mod values;

/// Field of `Op` that puts a unit: one for each submission.
const PUT_UNIT: u32 = 4;
/// First field of `Op` that changes rows. All from here on do, but for those that put whole records.
const FIRST_OF_ROWS: u32 = 20;

/// Whether an encoded operation changes rows. The store checks the columns of these as it parses them, with the functions
/// that readers use.
pub fn changes_rows(encoded: &Bytes) -> bool {
    raw::op_field(encoded).is_some_and(|field| field >= FIRST_OF_ROWS && !kinds::puts_whole(field))
}

/// Checks an encoded operation, whole.
///
/// # Errors
/// The field that readers cannot read, as `put_queue.policy`.
pub fn check_op(encoded: &Bytes) -> Result<()> {
    let name = raw::op_field(encoded).and_then(raw::op_name);
    let Some(name) = name else {
        return Err(BadField::new("op", "not an operation that this version knows"));
    };
    let unit = raw::op_payload(encoded).filter(|(field, _)| *field == PUT_UNIT).map(|(_, unit)| unit);
    if unit.as_ref().is_some_and(known::is_fine) {
        return Ok(());
    }
    let op = v1::Op::decode(encoded.clone()).map_err(|error| BadField::new(name, error.to_string()))?.op;
    let op = op.ok_or_else(|| BadField::new(name, "missing"))?;
    // Whether it makes sense is asked of what can be read.
    let (makes_sense, change) = match kinds::put_or_other(op) {
        PutOrOther::Put(record) => (records::check_sense(&record), records::read(record).map(Change::Put)),
        PutOrOther::Other(op) => (sense::check(&op), super::change(op)),
    };
    let change = change.map_err(|bad| match bad.path.as_str() {
        // It does not decode.
        "op" => BadField::new(name, bad.description),
        _ => bad.under(name),
    })?;
    check_change(&change).map_err(|bad| bad.under(name))?;
    if let Some((field, payload)) = raw::op_payload(encoded) {
        values::check(field, &payload).map_err(|bad| bad.under(name))?;
    }
    makes_sense.map_err(|bad| bad.under(name))?;
    unit.iter().for_each(known::remember);
    Ok(())
}

/// Checks an encoded operation on rows for what makes no sense: what it says otherwise the store checks, which parses it.
///
/// # Errors
/// The field that makes no sense, as `evict.preemptor_id`.
pub fn check_rows_op(encoded: &Bytes) -> Result<()> {
    let Some((field, payload)) = raw::op_payload(encoded) else { return Ok(()) };
    let checked = match field {
        FIRST_OF_ROWS => raw::Binding::decode(payload).map_or(Ok(()), |binding| sense::bind(&binding)),
        _ => match v1::Op::decode(encoded.clone()) {
            Ok(v1::Op { op: Some(op) }) => sense::check(&op),
            Ok(v1::Op { op: None }) | Err(_) => Ok(()),
        },
    };
    checked.map_err(|bad| bad.under(raw::op_name(field).unwrap_or("op")))
}

/// Checks a listed record.
///
/// # Errors
/// The field that readers cannot read, as `queue.policy`.
pub fn check_record(record: &v1::Record) -> Result<()> {
    let Some(inner) = &record.record else { return Err(BadField::new("record", "missing")) };
    let name = kind_name(kinds::kind_of(inner));
    let renamed = |bad: BadField| match bad.path.strip_prefix("record.") {
        Some(path) => BadField::new(format!("{name}.{path}"), bad.description),
        None => bad.under(name),
    };
    let loaded = super::record(record.clone()).map_err(renamed)?;
    check_change(&loaded.change).map_err(|bad| bad.under(name))
}

/// Checks a record as the store keeps it: its kind and its encoding.
///
/// # Errors
/// As [`check_record`].
pub fn check_value(kind: v1::Kind, value: &Bytes) -> Result<()> {
    let name = kind_name(kind);
    let wrong = |error: prost::DecodeError| BadField::new(name, error.to_string());
    let record = kinds::decode(kind, value.clone()).map_err(wrong)?;
    let record = record.ok_or_else(|| BadField::new("kind", "missing"))?;
    check_record(&v1::Record { record: Some(record), ..v1::Record::default() })
}

/// The field of `Record` that a kind has.
fn kind_name(kind: v1::Kind) -> &'static str {
    KindInfo::of(kind).map_or("record", |entry| entry.name)
}

/// Names of what a change writes. What is deleted may be called anything: it has to go.
fn check_change(change: &Change) -> Result<()> {
    match change {
        Change::Put(record) => records::check_names(record),
        Change::Gone(_) | Change::Rows(..) | Change::RowsLoaded(..) | Change::Unreadable(_) => Ok(()),
    }
}
