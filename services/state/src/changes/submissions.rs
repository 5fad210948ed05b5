//! Submissions, read from the records of units and from what is kept of deleted ones: whoever submits is in there already.

use std::iter::Peekable;

use godel_domain::change_line::{CallCause, ChangeLine};
use godel_proto::v1;
use godel_store::{Key, Record, State};
use prost::Message as _;

use super::number;

/// What is before the name of a person in the principal of a unit.
const PERSON: &str = "person/";
/// Units come by this method, or by its stream.
const METHOD: &str = "/godel.v1.UnitService/SubmitUnit";

/// A unit's record, of which no more is decoded: the template can be long, and its environment may have secrets.
#[derive(Clone, PartialEq, prost::Message)]
struct SubmittedUnit {
    #[prost(message, optional, tag = "2")]
    spec: Option<SubmittedSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<SubmittedStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SubmittedSpec {
    #[prost(message, optional, tag = "1")]
    meta: Option<v1::ObjectMeta>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SubmittedStatus {
    #[prost(string, tag = "15")]
    principal: String,
}

/// What is kept of a deleted unit, of which no more is decoded.
#[derive(Clone, PartialEq, prost::Message)]
struct DeletedUnit {
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(int64, tag = "10")]
    create_time_ms: i64,
    #[prost(string, tag = "21")]
    principal: String,
}

/// A unit, with who submitted it if that was a person.
pub(super) struct Submission {
    pub(super) unit: u64,
    pub(super) time_ms: i64,
    pub(super) line: Option<ChangeLine>,
}

impl Submission {
    fn new(unit: u64, time_ms: i64, principal: &str, namespace: &str, name: &str) -> Self {
        let call = |person| {
            CallCause::new(person, METHOD, "").about(namespace, [format!("unit/{namespace}/{name}")])
        };
        let line = principal.strip_prefix(PERSON).map(|person| ChangeLine::done(call(person)));
        Self { unit, time_ms, line }
    }

    /// Of a unit that is there.
    fn of_unit(key: &Key, record: &Record) -> Self {
        let SubmittedUnit { spec, status } = SubmittedUnit::decode(record.value.clone()).unwrap_or_default();
        let meta = spec.and_then(|spec| spec.meta).unwrap_or_default();
        let principal = status.unwrap_or_default().principal;
        Self::new(number(key), record.create_time_ms, &principal, &meta.namespace, &meta.name)
    }

    /// Of a unit that was deleted.
    fn of_deleted(key: &Key, record: &Record) -> Self {
        let unit = DeletedUnit::decode(record.value.clone()).unwrap_or_default();
        Self::new(number(key), unit.create_time_ms, &unit.principal, &unit.namespace, &unit.name)
    }
}

/// Up to `n_max` submissions before that of unit `before`, the newest first.
pub(super) fn back(state: &State, before: Option<u64>, n_max: usize) -> Vec<Submission> {
    let before = before.map(Key::Id);
    let mut units = state.records_back(v1::Kind::Unit, before.as_ref()).peekable();
    let mut deleted = state.records_back(v1::Kind::UnitHistory, before.as_ref()).peekable();
    let next = std::iter::from_fn(|| {
        let is_unit = last_key(&mut units) >= last_key(&mut deleted);
        if is_unit {
            units.next().map(|(key, record)| Submission::of_unit(key, record))
        } else {
            deleted.next().map(|(key, record)| Submission::of_deleted(key, record))
        }
    });
    next.take(n_max).collect()
}

/// Units have ids from 1 on: 0 is behind all of them.
fn last_key<'a>(records: &mut Peekable<impl Iterator<Item = (&'a Key, &'a Record)>>) -> u64 {
    records.peek().map_or(0, |(key, _)| number(key))
}

/// Up to `n_max` submissions of units that are there behind that of unit `after`, the oldest first.
pub(super) fn forward(state: &State, after: u64, n_max: usize) -> Vec<Submission> {
    let units = state.records(v1::Kind::Unit, Some(&Key::Id(after)));
    units.take(n_max).map(|(key, record)| Submission::of_unit(key, record)).collect()
}
