//! What callers hear of requests that came to nothing.

use std::time::Duration;

use godel_base::words::{count, one_or};
use godel_core_dispatcher::{
    DeleteRefusal, EndedView, Unresolved,
    leader::{ChangeFailure, NameHolder, NotSubmitted, TxnFailure},
};
use godel_domain::{txn::TxnRefusalReason, unit::UnitSpec};
use godel_kit::status;
use godel_rules::admission::retry::RetryRefusal;
use tonic::{Code, Status};

use crate::{convert, leader_client::term_over};

pub(super) fn overloaded(message: &str) -> Status {
    status::resource_exhausted(status::reason::OVERLOADED, message, Duration::from_millis(100))
}

/// What a client hears of a failed transaction.
pub(super) fn refused(failure: &TxnFailure) -> Status {
    let TxnFailure::Refused(refusal) = failure else { return term_over() };
    match refusal.reason {
        TxnRefusalReason::StoreFull => status::resource_exhausted(
            status::reason::STORE_FULL,
            "the store's disk is full",
            Duration::from_secs(1),
        ),
        TxnRefusalReason::StaleEpoch | TxnRefusalReason::StoreChanged => term_over(),
        TxnRefusalReason::Precondition | TxnRefusalReason::FutureRevision => status::with_info(
            Code::Aborted,
            status::reason::REVISION_MISMATCH,
            "the record changed meanwhile",
            [("revision", refusal.revision.to_string())],
        ),
        TxnRefusalReason::Forbidden
        | TxnRefusalReason::Invalid
        | TxnRefusalReason::RowConflict
        | TxnRefusalReason::NodeChanged => {
            tracing::error!(reason = ?refusal.reason, why = refusal.message, "the store refused a transaction");
            Status::internal("the store refused the transaction")
        }
    }
}

/// Why a change came to nothing.
pub(super) fn failed(failure: ChangeFailure) -> Status {
    match failure {
        ChangeFailure::Overloaded(message) => overloaded(message),
        ChangeFailure::Unresolved { namespace, name, why } => unresolved(&namespace, &name, &why),
        ChangeFailure::UnitGone => Status::not_found("the unit is gone"),
        ChangeFailure::Revision { current, expected } => status::with_info(
            Code::Aborted,
            status::reason::REVISION_MISMATCH,
            format!("the unit is at revision {current}, not {expected}"),
            [("revision", current.to_string())],
        ),
        ChangeFailure::UnitOver(unit, phase) => {
            let description = format!("the unit is over: {}", phase.name());
            status::failed_precondition("PHASE", unit, description)
        }
        ChangeFailure::Invalid(violations) => status::invalid_argument(convert::bad_fields(violations)),
        ChangeFailure::OrdinalsUsedUp(unit) => status::failed_precondition(
            "ORDINALS",
            unit,
            "all ordinals of the unit were used up: submit it again as a new unit",
        ),
        ChangeFailure::NotOwn(unit, submitter) => {
            let whose = if submitter.is_empty() { "a caller in plain text" } else { &submitter };
            Status::permission_denied(format!(
                "unit {unit} was submitted by {whose}: a service changes the units of services of its role alone, a person changes all"
            ))
        }
        ChangeFailure::NotDeleted(unit, refusal) => not_deleted(unit, refusal),
        ChangeFailure::Unwelcome(wrong) => status::unwelcome(wrong),
        ChangeFailure::NoRoomToMove(why) => {
            let unit = why.unit.clone();
            status::failed_precondition("QUEUE", unit, why.to_string())
        }
        ChangeFailure::NotEnded(unit, phase) => {
            let description = format!(
                "unit {unit} is {}: only a unit that has ended is retried; cancel it first, or wait for its end",
                phase.name()
            );
            status::failed_precondition("PHASE", unit, description)
        }
        ChangeFailure::NotRetried(unit, refusal) => not_retried(unit, refusal),
        ChangeFailure::UnknownQueue(path) => {
            let message = format!("no queue `{path}`");
            status::with_info(Code::NotFound, status::reason::UNKNOWN_NAME, message, [("queue", path)])
        }
        ChangeFailure::NoSubClusters(scope) => {
            let why = "there are no sub-clusters: `dispatcher.sub_cluster_key` is empty";
            status::failed_precondition("PAUSE", scope.to_string(), why)
        }
        ChangeFailure::Txn(failure) => refused(&failure),
    }
}

fn not_retried(unit: String, refusal: RetryRefusal) -> Status {
    let description = match refusal {
        RetryRefusal::Invalid(violation) => {
            return status::invalid_argument(convert::bad_fields(vec![violation]));
        }
        RetryRefusal::NotEnded(ordinal) => {
            format!("replica {ordinal} of unit {unit} has not ended: stop it first, or wait for its end")
        }
        RetryRefusal::NotWanted => format!(
            "unit {unit} is cancelled, ended, suspended, or starts again as a whole: retry all of it, or resume it"
        ),
        RetryRefusal::Leaving(n) => {
            let (running, have) = (count(n, "running unit"), one_or(n, "has", "have"));
            format!("unit {unit} has ended, and {running} {have} yet to leave: wait for that")
        }
        RetryRefusal::AllSucceeded => {
            format!("every replica of unit {unit} has succeeded: ask for all replicas to run them again")
        }
    };
    status::failed_precondition("PHASE", unit, description)
}

fn not_deleted(unit: String, refusal: DeleteRefusal) -> Status {
    let description = match refusal {
        DeleteRefusal::Unknown => return Status::not_found("the unit is gone"),
        DeleteRefusal::Phase(phase) => {
            format!("unit {unit} is {}: cancel it first, or wait until it has ended", phase.name())
        }
        DeleteRefusal::Leaving(n) => {
            let (running, have) = (count(n, "running unit"), one_or(n, "has", "have"));
            format!("unit {unit} has ended, and {running} {have} yet to leave: wait for that")
        }
    };
    status::failed_precondition("PHASE", unit, description)
}

/// The name that a call gives is not that of one unit.
pub(crate) fn unresolved(namespace: &str, name: &str, why: &Unresolved) -> Status {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let info = |some: &[String]| {
        [("namespace", namespace.to_owned()), ("name", name.to_owned()), ("some", some.join(","))]
    };
    match why {
        Unresolved::NotFound(near) => {
            let near_names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
            let hint = match near.len() {
                0 => String::new(),
                _ => format!("; did you mean {}?", near_names.join(", ")),
            };
            status::with_info(
                Code::NotFound,
                status::reason::UNKNOWN_NAME,
                format!("no unit `{name}` in namespace `{namespace}`{hint}"),
                info(near),
            )
        }
        Unresolved::Ambiguous(names) => status::with_info(
            Code::InvalidArgument,
            status::reason::AMBIGUOUS_NAME,
            format!("`{name}` may be any of several units: {}", names.join(", ")),
            info(names),
        ),
    }
}

/// Why a submission was not taken.
pub(super) fn not_submitted(spec: &UnitSpec, why: NotSubmitted) -> Status {
    match why {
        NotSubmitted::TooManyUnits => overloaded("as many units are known as the dispatcher takes"),
        NotSubmitted::Unwelcome(wrong) => status::unwelcome(wrong),
        NotSubmitted::NameTaken(holder) => name_taken(&holder, spec),
        // Who submits may not see units of other namespaces.
        NotSubmitted::UidTaken { known: (namespace, _), .. } if namespace != spec.namespace => {
            let uid = &spec.uid;
            let message = format!(
                "uid {uid} is that of a unit of another namespace: leave the uid out, or give a new one"
            );
            duplicate_uid(message, uid)
        }
        NotSubmitted::UidTaken { known: (namespace, name), differences } => {
            let uid = &spec.uid;
            let message = format!(
                "uid {uid} is that of unit {namespace}/{name}; this one differs in {differences}: leave the uid out, or give a new one"
            );
            duplicate_uid(message, uid)
        }
        NotSubmitted::UidUsed(unit) => {
            let uid = &spec.uid;
            let message = format!(
                "uid {uid} was that of another unit, which is over and deleted (id {unit}): leave the uid out, or give a new one"
            );
            duplicate_uid(message, uid)
        }
        NotSubmitted::Txn(failure) => refused(&failure),
    }
}

/// Another unit has the name: what can be done about it.
fn name_taken(holder: &NameHolder, spec: &UnitSpec) -> Status {
    let (namespace, name) = (spec.namespace.as_str(), spec.name.as_str());
    let shown = if namespace == "default" { name.to_owned() } else { format!("{namespace}/{name}") };
    let message = match holder {
        NameHolder::Ended(EndedView { phase, ago_ms, left_ms }) => {
            let ago = ago_ms.map_or_else(|| "has ended".to_owned(), |ms| format!("ended {} ago", about(ms)));
            let phase = phase.name().to_lowercase();
            format!(
                "unit {shown} {ago} ({phase}); its name is free again in {}, or now: godel unit delete {shown}",
                about(*left_ms)
            )
        }
        NameHolder::Leaving(phase) => {
            let phase = phase.name().to_lowercase();
            format!(
                "unit {shown} has ended ({phase}) and has yet to leave its nodes; then its name is free: \
                 godel unit delete --wait {shown}"
            )
        }
        NameHolder::Present(phase) => {
            let phase = phase.name().to_lowercase();
            format!("unit {shown} exists with another uid ({phase}): cancel it, or take another name")
        }
        NameHolder::Coming => format!("unit {shown} exists with another uid: it is being submitted"),
    };
    let info = [("namespace", namespace), ("name", name)];
    status::with_info(Code::AlreadyExists, status::reason::DUPLICATE_NAME, message, info)
}

fn duplicate_uid(message: String, uid: &str) -> Status {
    status::with_info(Code::AlreadyExists, status::reason::DUPLICATE_UID, message, [("uid", uid)])
}

/// A span of time as people say it: `3 min`, `2 h`.
fn about(ms: u64) -> String {
    match ms / 1_000 {
        s @ ..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}
