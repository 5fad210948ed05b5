//! The change log: who changed what, and who was refused.
//!
//! A change is a record that the store writes in the transaction of what was changed (`Txn.changes`). Calls without a transaction, mostly refused ones, are
//! noted in memory and written by `writer`, ten lines a second at most; it also removes lines that are too old or too many. Submissions are no records: `list`
//! and `watch` show them from the records of their units and from what is kept of deleted ones. What of a line is shown to whom, `godel_identity::change_log`
//! decides.

mod list;
mod rpc;
mod submissions;
mod watch;
mod writer;

use godel_domain::change_line::ChangeLine;
use godel_proto::v1;
use godel_store::{Key, Record};
use godel_wire::{from_proto, to_proto};
use prost::Message as _;

pub(crate) use self::{rpc::ChangeRpc, writer::ChangeLog};

/// A record or a unit that a reader has come to, with what is shown of it.
#[derive(Clone, Debug, PartialEq)]
struct ScannedLine {
    /// Its key in the store.
    key: u64,
    /// Commit time, Unix milliseconds.
    time_ms: i64,
    shown: Option<v1::LoggedChange>,
}

/// A stored line; `None`: it cannot be read.
fn stored_line(record: &Record) -> Option<ChangeLine> {
    from_proto::change_line(v1::ChangeRecord::decode(record.value.clone()).ok()?).ok()
}

fn logged(key: u64, time_ms: i64, line: &ChangeLine) -> v1::LoggedChange {
    let change = v1::ChangeRecord { change_id: key, ..to_proto::change_line(line) };
    v1::LoggedChange { time_ms, change: Some(change) }
}

/// The number in the key of a record.
fn number(key: &Key) -> u64 {
    match key {
        Key::Id(id) => *id,
        Key::Name(_) => 0,
    }
}
