//! Submissions, read from the records of units and from what is kept of deleted ones: whoever submits is in there already.

use std::iter::Peekable;

use godel_domain::{
    change_line::{CallCause, ChangeLine},
    names,
};
use godel_proto::v1;
use godel_store::{Key, Record, State};
use prost::Message as _;

use super::number;

/// Units come by this method, or by its stream.
const SUBMIT: &str = "/godel.v1.UnitService/SubmitUnit";
/// Applications of YARN come by this method, or by what Hadoop RPC and REST have for it.
const SUBMIT_APPLICATION: &str = "/godel.v1.YarnService/SubmitApplication";

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
    #[prost(string, tag = "5")]
    owner: String,
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

/// Who has submitted a unit, for the change log; `None`: no person. An adapter of YARN submits for the owner of an application, whom it has judged.
fn submitter(principal: &str, owner: &str, namespace: &str, name: &str) -> Option<CallCause> {
    let (role, person) = principal.split_once('/')?;
    let unit = format!("unit/{namespace}/{name}");
    match role {
        "person" => Some(CallCause::new(person, SUBMIT, "").about(namespace, [unit])),
        "yarn" if !owner.is_empty() => {
            let application = format!("application/{}", names::yarn_application(name)?);
            Some(CallCause::new(owner, SUBMIT_APPLICATION, "").about(namespace, [application, unit]))
        }
        _ => None,
    }
}

impl Submission {
    /// Of a unit that is there.
    fn of_unit(key: &Key, record: &Record) -> Self {
        let SubmittedUnit { spec, status } = SubmittedUnit::decode(record.value.clone()).unwrap_or_default();
        let meta = spec.and_then(|spec| spec.meta).unwrap_or_default();
        let principal = status.unwrap_or_default().principal;
        let call = submitter(&principal, &meta.owner, &meta.namespace, &meta.name);
        Self { unit: number(key), time_ms: record.create_time_ms, line: call.map(ChangeLine::done) }
    }

    /// Of a unit that was deleted.
    fn of_deleted(key: &Key, record: &Record) -> Self {
        let unit = DeletedUnit::decode(record.value.clone()).unwrap_or_default();
        let call = submitter(&unit.principal, &unit.owner, &unit.namespace, &unit.name);
        Self { unit: number(key), time_ms: unit.create_time_ms, line: call.map(ChangeLine::done) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_name_whoever_has_submitted_them() {
        for (principal, owner, name, expected) in [
            ("person/ann", "etl", "web", Some(("ann", SUBMIT, &["unit/n/web"][..]))),
            (
                "yarn/y1",
                "yarn-simple:bob",
                "application-7-0001",
                Some((
                    "yarn-simple:bob",
                    SUBMIT_APPLICATION,
                    &["application/application_7_0001", "unit/n/application-7-0001"][..],
                )),
            ),
            // The adapter submits that one when the master asks for such containers.
            ("yarn/y1", "bob", "application-7-0001-opportunistic", None),
            ("yarn/y1", "", "application-7-0001", None),
            ("rescheduler/r1", "ann", "web", None),
            ("", "ann", "application-7-0001", None),
        ] {
            let call = submitter(principal, owner, "n", name);
            let call = call.as_ref();
            let shown = call.map(|call| (call.principal.as_str(), call.method.as_str(), &call.objects[..]));
            let expected = expected.map(|(who, method, objects)| {
                (who, method, objects.iter().map(|object| (*object).to_owned()).collect::<Vec<_>>())
            });
            let expected = expected.as_ref().map(|(who, method, objects)| (*who, *method, &objects[..]));
            assert_eq!(shown, expected, "{principal} {owner} {name}");
        }
    }
}
