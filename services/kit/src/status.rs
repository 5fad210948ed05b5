//! Errors on the wire: `google.rpc` details in `grpc-status-details-bin`, built and read here.
//!
//! Every `ErrorInfo` has the domain `godel` and one of the constants in [`reason`].

use std::{collections::HashMap, time::Duration};

use godel_base::ids::{Revision, StoreId};
use godel_domain::{
    records::RecordKind,
    unwelcome::{NotAdmitted, Unwelcome},
};
use godel_identity::{
    caller::{BadHeader, Caller},
    needs::CallerRefusal,
};
use godel_pki::person_tokens::BadToken;
use godel_wire::BadField;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, PreconditionViolation, StatusExt as _};

pub use godel_wire::invalid_argument;

use crate::server::FORWARDED;

/// Domain of every `ErrorInfo`.
pub const DOMAIN: &str = "godel";

/// Constant reasons of `ErrorInfo`.
pub mod reason {
    /// This server is a standby; `address` names the leader if it is known.
    pub const NOT_LEADER: &str = "NOT_LEADER";
    /// The writer's lease is not in force any more.
    pub const STALE_EPOCH: &str = "STALE_EPOCH";
    /// What the caller has read, or the lease that it holds, is of another store: this one was restored or truncated.
    pub const STORE_CHANGED: &str = "STORE_CHANGED";
    /// A revision was named that there is not yet.
    pub const FUTURE_REVISION: &str = "FUTURE_REVISION";
    /// The watched history no longer reaches so far back.
    pub const COMPACTED: &str = "COMPACTED";
    /// The watcher did not keep up; resume from the last revision seen.
    pub const SLOW_WATCHER: &str = "SLOW_WATCHER";
    /// Somebody else holds the lease.
    pub const LEASE_HELD: &str = "LEASE_HELD";
    /// The server is at its limit.
    pub const OVERLOADED: &str = "OVERLOADED";
    /// The store's disk is full; reads go on.
    pub const STORE_FULL: &str = "STORE_FULL";
    /// A record of this name exists.
    pub const DUPLICATE_NAME: &str = "DUPLICATE_NAME";
    /// Running units are bound to the node, or room is held there.
    pub const NODE_IN_USE: &str = "NODE_IN_USE";
    /// Another instance of this agent has taken over its node, and lives.
    pub const NODE_DISPLACED: &str = "NODE_DISPLACED";
    /// The record of the node is gone by the wish of its administrator: the agent ends.
    pub const NODE_LEFT: &str = "NODE_LEFT";
    /// The uid of a submission is that of another unit.
    pub const DUPLICATE_UID: &str = "DUPLICATE_UID";
    /// A revision precondition failed.
    pub const REVISION_MISMATCH: &str = "REVISION_MISMATCH";
    /// The named object does not exist.
    pub const UNKNOWN_NAME: &str = "UNKNOWN_NAME";
    /// A prefix matches several objects.
    pub const AMBIGUOUS_NAME: &str = "AMBIGUOUS_NAME";
    /// The role may not write that record.
    pub const FORBIDDEN: &str = "FORBIDDEN";
    /// Nobody holds the lease (`lease`) of the part that answers this call; state cannot forward it.
    pub const NO_LEADER: &str = "NO_LEADER";
    /// State cannot reach the member that answers this call, at `address`. If the member may have done what was asked for,
    /// `outcome` is `unknown`.
    pub const UNREACHABLE: &str = "UNREACHABLE";
    /// The agent of the node `node` is not connected, or does not answer.
    pub const AGENT_AWAY: &str = "AGENT_AWAY";
    /// The join token is unknown, expired, used up, or of another cluster, role or name.
    pub const JOIN_REFUSED: &str = "JOIN_REFUSED";
    /// Somebody has the name: `taken` is the identity.
    pub const NAME_IN_USE: &str = "NAME_IN_USE";
    /// The identity was revoked, or its name was joined again since.
    pub const IDENTITY_REVOKED: &str = "IDENTITY_REVOKED";
    /// An older root is leaving still.
    pub const ROTATION_UNDER_WAY: &str = "ROTATION_UNDER_WAY";
    /// The service is stopping.
    pub const STOPPING: &str = "STOPPING";
    /// The port speaks TLS, and the call came in plain text.
    pub const TLS_REQUIRED: &str = "TLS_REQUIRED";
    /// The call needs a certificate or a token, and came with neither.
    pub const NO_IDENTITY: &str = "NO_IDENTITY";
    /// The certificate has expired, and the call needs one that has not.
    pub const IDENTITY_EXPIRED: &str = "IDENTITY_EXPIRED";
    /// The certificate does not count, as one whose name was revoked.
    pub const IDENTITY_REFUSED: &str = "IDENTITY_REFUSED";
    /// Who calls may not make this call.
    pub const NOT_ALLOWED: &str = "NOT_ALLOWED";
    /// The token does not count, as one that has expired.
    pub const BAD_TOKEN: &str = "BAD_TOKEN";
    /// A header says that the call is somebody else's, or was forwarded, and did not come from state.
    pub const FORGED_CALLER: &str = "FORGED_CALLER";
    /// A member has not heard of state for a minute, and takes no calls of persons until it has.
    pub const STATE_SILENT: &str = "STATE_SILENT";
    /// The token that opened the stream counts no more, or what its principal may do has changed.
    pub const TOKEN_ENDED: &str = "TOKEN_ENDED";
}

/// A status with an `ErrorInfo`.
pub fn with_info<K: Into<String>, V: Into<String>>(
    code: Code,
    reason: &str,
    message: impl Into<String>,
    metadata: impl IntoIterator<Item = (K, V)>,
) -> Status {
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, metadata))
}

const NO_METADATA: [(&str, &str); 0] = [];

/// UNAVAILABLE from a standby, with the leader's address if it is known.
pub fn not_leader(leader: Option<&str>) -> Status {
    with_info(
        Code::Unavailable,
        reason::NOT_LEADER,
        "this server is a standby",
        leader.map(|address| ("address", address)),
    )
}

/// FAILED_PRECONDITION: the lease is not in force any more.
pub fn stale_epoch(lease: &str, epoch: u64) -> Status {
    let message = format!("epoch {epoch} of lease {lease} is not in force");
    with_info(Code::FailedPrecondition, reason::STALE_EPOCH, message, [("lease", lease)])
}

/// OUT_OF_RANGE: the history begins at `floor` only.
pub fn compacted(floor: u64) -> Status {
    let message = format!("the history begins at revision {floor}: list again");
    with_info(Code::OutOfRange, reason::COMPACTED, message, [("floor", floor.to_string())])
}

/// OUT_OF_RANGE: what the caller has read is of store `asked`, and this is store `id`.
pub fn store_changed(asked: StoreId, id: StoreId) -> Status {
    let message = format!("this is store {id}, not {asked}: the store was restored or truncated, list again");
    with_info(Code::OutOfRange, reason::STORE_CHANGED, message, [("store_id", id.to_string())])
}

/// FAILED_PRECONDITION: the lease was granted in store `asked`, and this is store `id`.
pub fn lease_of_other_store(lease: &str, asked: StoreId, id: StoreId) -> Status {
    let message = format!(
        "lease {lease} was granted in store {asked}, and this is store {id}: acquire the lease again"
    );
    let metadata = [("lease", lease.to_owned()), ("store_id", id.to_string())];
    with_info(Code::FailedPrecondition, reason::STORE_CHANGED, message, metadata)
}

/// OUT_OF_RANGE: `asked` is beyond the last revision.
pub fn future_revision(asked: Revision, last: Revision) -> Status {
    let message = format!("revision {asked} does not exist yet, the last one is {last}: list again");
    with_info(Code::OutOfRange, reason::FUTURE_REVISION, message, [("revision", last.to_string())])
}

/// Whether a lease is lost: it is over, or was granted in another store.
pub fn is_lease_lost(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition
        && reason_of(status)
            .is_some_and(|reason| reason == reason::STALE_EPOCH || reason == reason::STORE_CHANGED)
}

/// UNAVAILABLE: the service is stopping.
pub fn stopping() -> Status {
    with_info(Code::Unavailable, reason::STOPPING, "the service is stopping", NO_METADATA)
}

/// UNAVAILABLE from state: nobody holds the lease of the part that answers a call.
pub fn no_leader(lease: &str) -> Status {
    let message = format!("nobody holds lease {lease}");
    with_info(Code::Unavailable, reason::NO_LEADER, message, [("lease", lease)])
}

/// The address of a member that state could not reach, or that stands by.
pub fn unreachable_member(status: &Status) -> Option<String> {
    let is_named = has_reason(status, reason::UNREACHABLE) || has_reason(status, reason::NOT_LEADER);
    is_named.then(|| metadata_of(status, "address"))?.filter(|address| !address.is_empty())
}

/// UNAUTHENTICATED or PERMISSION_DENIED: a call that its caller may not make.
pub fn refused_call(refusal: &CallerRefusal) -> Status {
    let (code, reason) = match refusal {
        CallerRefusal::Unknown { .. } => (Code::Unauthenticated, reason::NO_IDENTITY),
        CallerRefusal::Expired { .. } => (Code::Unauthenticated, reason::IDENTITY_EXPIRED),
        CallerRefusal::Refused { .. } => (Code::Unauthenticated, reason::IDENTITY_REFUSED),
        CallerRefusal::NoPrincipal { .. } => (Code::Unauthenticated, reason::BAD_TOKEN),
        CallerRefusal::NotAllowed { .. } | CallerRefusal::Permission(_) => {
            (Code::PermissionDenied, reason::NOT_ALLOWED)
        }
    };
    match refusal {
        CallerRefusal::Refused { caller, .. } | CallerRefusal::Expired { caller } => {
            with_info(code, reason, refusal.to_string(), [(IDENTITY, caller.to_string())])
        }
        CallerRefusal::Unknown { .. }
        | CallerRefusal::NotAllowed { .. }
        | CallerRefusal::NoPrincipal { .. }
        | CallerRefusal::Permission(_) => with_info(code, reason, refusal.to_string(), NO_METADATA),
    }
}

/// Key of the refused identity, `<role>/<name>`, in the details of `IDENTITY_REFUSED` and `IDENTITY_EXPIRED`.
pub(crate) const IDENTITY: &str = "identity";

/// UNAUTHENTICATED: the local answer of a client whose certificate the server has refused. `retry_after` is the time until the server is asked again.
pub(crate) fn refused_identity(identity: String, words: String, retry_after: Duration) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(retry_after));
    let metadata = HashMap::from([(IDENTITY.to_owned(), identity)]);
    details.set_error_info(reason::IDENTITY_REFUSED, DOMAIN, metadata);
    Status::with_error_details(Code::Unauthenticated, words, details)
}

/// UNAUTHENTICATED: a token does not count.
pub fn bad_token(why: impl Into<String>) -> Status {
    with_info(Code::Unauthenticated, reason::BAD_TOKEN, why, NO_METADATA)
}

/// UNAVAILABLE: a member does not know who is refused, as state has not said it for that time.
pub(crate) fn state_silent(silence: Duration) -> Status {
    let message = format!(
        "state was last heard {} s ago, and who may call is not known for sure; the call may be made again",
        silence.as_secs()
    );
    with_info(Code::Unavailable, reason::STATE_SILENT, message, NO_METADATA)
}

/// PERMISSION_DENIED: a header speaks for somebody else, and may not.
pub fn forged_caller(bad: &BadHeader) -> Status {
    with_info(Code::PermissionDenied, reason::FORGED_CALLER, bad.to_string(), NO_METADATA)
}

/// PERMISSION_DENIED: a header says that the call was forwarded, and state has not sent it.
pub fn forged_forwarding(caller: &Caller) -> Status {
    let message = format!("{caller} may not forward calls; leave out the header `{FORWARDED}`");
    with_info(Code::PermissionDenied, reason::FORGED_CALLER, message, NO_METADATA)
}

/// UNAUTHENTICATED: a person's stream ends with the token that has opened it.
pub fn token_ended(why: &BadToken) -> Status {
    let next = match why {
        BadToken::ChangedPrincipal(_) => "open it again",
        _ => "log in again with `godel login`",
    };
    let message = format!("the stream has ended: {why} ({next})");
    with_info(Code::Unauthenticated, reason::TOKEN_ENDED, message, NO_METADATA)
}

/// UNAUTHENTICATED: the call came in plain text, and the port speaks TLS.
pub fn tls_required(message: impl Into<String>) -> Status {
    with_info(Code::Unauthenticated, reason::TLS_REQUIRED, message, NO_METADATA)
}

/// RESOURCE_EXHAUSTED with a hint when to come back.
pub fn resource_exhausted(reason: &str, message: impl Into<String>, retry_after: Duration) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(retry_after));
    details.set_error_info(reason, DOMAIN, HashMap::new());
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// FAILED_PRECONDITION with a `PreconditionFailure`: what (`subject`) forbids it and why.
pub fn failed_precondition(kind: &str, subject: impl Into<String>, description: impl Into<String>) -> Status {
    failed_preconditions(kind, [BadField::new(subject, description)])
}

/// FAILED_PRECONDITION that names everything in the way at once, each by its path.
pub fn failed_preconditions(kind: &str, violations: impl IntoIterator<Item = BadField>) -> Status {
    let violations = violations.into_iter();
    failed(violations.map(|bad| PreconditionViolation::new(kind, bad.path, bad.description)).collect())
}

fn failed(violations: Vec<PreconditionViolation>) -> Status {
    let message = match violations.as_slice() {
        [] => "a precondition failed".to_owned(),
        [one] => one.description.clone(),
        [first, rest @ ..] => format!("{}: {} (and {} more)", first.subject, first.description, rest.len()),
    };
    let details = ErrorDetails::with_precondition_failure(violations);
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

/// Reason of the status's `ErrorInfo`, if it is one of ours.
pub fn reason_of(status: &Status) -> Option<String> {
    status.get_details_error_info().filter(|info| info.domain == DOMAIN).map(|info| info.reason)
}

/// Whether the status has an `ErrorInfo` of ours with `reason`.
pub fn has_reason(status: &Status, reason: &str) -> bool {
    reason_of(status).is_some_and(|found| found == reason)
}

/// A value from the metadata of the status's `ErrorInfo`.
pub fn metadata_of(status: &Status, key: &str) -> Option<String> {
    status.get_details_error_info()?.metadata.remove(key)
}

/// The leader's address in a NOT_LEADER answer.
pub fn leader_of(status: &Status) -> Option<String> {
    if !has_reason(status, reason::NOT_LEADER) {
        return None;
    }
    metadata_of(status, "address").filter(|address| !address.is_empty())
}

/// The delay that the server asked for.
pub fn retry_after(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// The wrong fields of an INVALID_ARGUMENT.
pub fn violations_of(status: &Status) -> Vec<BadField> {
    let Some(bad) = status.get_details_bad_request() else {
        return Vec::new();
    };
    bad.field_violations.into_iter().map(|one| BadField::new(one.field, one.description)).collect()
}

/// What is in the way of a FAILED_PRECONDITION, by its path.
pub fn preconditions_of(status: &Status) -> Vec<BadField> {
    let Some(failure) = status.get_details_precondition_failure() else {
        return Vec::new();
    };
    failure.violations.into_iter().map(|one| BadField::new(one.subject, one.description)).collect()
}

/// Kind of what is in the way where something that is named is not there.
pub const ABSENT: &str = "ABSENT";

/// The kinds of what is in the way of a FAILED_PRECONDITION.
pub fn precondition_kinds(status: &Status) -> Vec<String> {
    let failure = status.get_details_precondition_failure();
    failure.map(|failure| failure.violations.into_iter().map(|one| one.r#type).collect()).unwrap_or_default()
}

/// FAILED_PRECONDITION that names everything in the way at once: its kind, and where and what.
pub fn failed_by_kind(violations: impl IntoIterator<Item = (&'static str, BadField)>) -> Status {
    let violations: Vec<PreconditionViolation> = violations
        .into_iter()
        .map(|(kind, bad)| PreconditionViolation::new(kind, bad.path, bad.description))
        .collect();
    failed(violations)
}

/// Why a unit may not be submitted where it wants to go.
pub fn unwelcome(wrong: Vec<Unwelcome>) -> Status {
    // Whatever changes about queues and classes, this stays wrong.
    if let Some(bad) = wrong.iter().find(|one| matches!(one, Unwelcome::SubClusters(_))) {
        return invalid_argument([BadField::new("task_groups", bad.to_string())]);
    }
    for one in &wrong {
        if let Unwelcome::Queue(denied @ NotAdmitted::Denied { owner: _, queue, by }) = one {
            let info = [("queue", queue), ("by", by)];
            return with_info(Code::PermissionDenied, reason::FORBIDDEN, denied.to_string(), info);
        }
    }
    failed_by_kind(wrong.into_iter().map(|one| {
        let (field, kind) = match &one {
            Unwelcome::Queue(NotAdmitted::Unknown(_)) => ("queue", ABSENT),
            Unwelcome::Queue(_) => ("queue", "UNIT"),
            Unwelcome::UnknownClass(_) => ("priority_class", ABSENT),
            Unwelcome::SubClusters(_) => ("task_groups", "UNIT"),
            Unwelcome::Unreadable(why) if why.key.kind() == Some(RecordKind::PriorityClass) => {
                ("priority_class", "UNIT")
            }
            Unwelcome::Unreadable(_) => ("queue", "UNIT"),
        };
        (kind, BadField::new(field, one.to_string()))
    }))
}

/// Key of what is known of the outcome of a call, in the details of an error.
pub const OUTCOME: &str = "outcome";
/// The call may have been carried out.
pub const OUTCOME_UNKNOWN: &str = "unknown";

/// Whether the same call may simply be made again: UNAVAILABLE, or RESOURCE_EXHAUSTED with a retry hint.
///
/// DEADLINE_EXCEEDED, CANCELLED and UNKNOWN leave the outcome open, as UNAVAILABLE does if its details say so; callers whose
/// call is idempotent use [`is_retryable_idempotent`].
pub fn is_retryable(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => metadata_of(status, OUTCOME).as_deref() != Some(OUTCOME_UNKNOWN),
        Code::ResourceExhausted => retry_after(status).is_some(),
        _ => false,
    }
}

/// Like [`is_retryable`], for a call that may be made twice without harm. A stream that ended with the token of its caller is one: the next try shows
/// the token that there is by then, and is refused if it is the same.
pub fn is_retryable_idempotent(status: &Status) -> bool {
    let open = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
    is_retryable(status) || open.contains(&status.code()) || has_reason(status, reason::TOKEN_ENDED)
}

/// UNAVAILABLE: the agent of a node cannot be asked now.
pub fn agent_away(node: &str, message: impl Into<String>) -> Status {
    with_info(Code::Unavailable, reason::AGENT_AWAY, message, [("node", node)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::{lease_held, slow_watcher};

    /// As a client sees it: through headers and back.
    fn over_the_wire(status: Status) -> Status {
        let response = status.into_http::<tonic::body::Body>();
        Status::from_header_map(response.headers()).unwrap()
    }

    #[test]
    fn details_survive_the_wire() {
        let status =
            over_the_wire(invalid_argument([BadField::new("a.b", "empty"), BadField::new("c", "bad")]));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "a.b: empty (and 1 more)");
        assert_eq!(violations_of(&status), [BadField::new("a.b", "empty"), BadField::new("c", "bad")]);

        let status = over_the_wire(not_leader(Some("http://127.0.0.1:7701")));
        assert!(is_retryable(&status));
        assert_eq!(leader_of(&status).as_deref(), Some("http://127.0.0.1:7701"));
        assert_eq!(leader_of(&over_the_wire(not_leader(None))), None);

        let several = [BadField::new("queue", "gone"), BadField::new("priority_class", "gone, too")];
        let status = over_the_wire(failed_preconditions("UNIT", several.clone()));
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "queue: gone (and 1 more)"));
        assert_eq!(preconditions_of(&status), several);
        let status = over_the_wire(failed_precondition("PHASE", "default/web", "the unit is over"));
        assert_eq!(status.message(), "the unit is over");

        let status =
            over_the_wire(resource_exhausted(reason::OVERLOADED, "full", Duration::from_millis(250)));
        assert_eq!(retry_after(&status), Some(Duration::from_millis(250)));
        assert!(has_reason(&status, reason::OVERLOADED) && is_retryable(&status));

        let status = over_the_wire(lease_held("binder", "h1", "http://x"));
        assert_eq!(metadata_of(&status, "address").as_deref(), Some("http://x"));
        assert!(!is_retryable(&status));
        assert!(has_reason(&over_the_wire(compacted(9)), reason::COMPACTED));
        assert!(has_reason(&over_the_wire(stale_epoch("binder", 4)), reason::STALE_EPOCH));
        assert!(!is_retryable(&slow_watcher()) && is_retryable(&stopping()));
    }

    #[test]
    fn statuses_without_details_have_none() {
        let status = Status::resource_exhausted("no hint");
        assert!(!is_retryable(&status) && reason_of(&status).is_none() && violations_of(&status).is_empty());
        assert!(is_retryable_idempotent(&Status::deadline_exceeded("late")));
    }

    #[test]
    fn a_failed_precondition_names_its_subject() {
        let status = over_the_wire(failed_precondition("NODE", "n1", "running units are bound to it"));
        let failure = status.get_details_precondition_failure().unwrap();
        assert_eq!(failure.violations[0].subject, "n1");
    }
}
