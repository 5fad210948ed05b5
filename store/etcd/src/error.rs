//! Why a call returned no answer.

use tonic::{Code, Status};

/// Why a call returned no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call was surely not executed. It may succeed later.
    #[error("{0}")]
    NotDone(String),
    /// The call may have been executed, may be executed later, or never.
    #[error("etcd may have executed the call, or not: {0}")]
    Unknown(String),
    /// The call was surely not executed: the database has reached its quota, and etcd refuses the writes of all clients until its
    /// alarm is disarmed.
    #[error(
        "etcd has no space left and has raised its alarm NOSPACE: run `etcdctl defrag` for each member, then \
         `etcdctl alarm disarm`; a larger quota is etcd's flag `--quota-backend-bytes`"
    )]
    NoSpace,
    /// The requested revision was compacted.
    #[error("etcd has compacted this revision")]
    Compacted,
    /// The call was surely not executed, and will not be with these settings: an operator must change something.
    #[error("{0}")]
    Refused(String),
}

impl CallError {
    /// Whether the call was surely not executed.
    pub fn is_surely_not_done(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// Why a client cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No endpoint is given.
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    /// The endpoint is malformed.
    #[error(
        "`{0}` is not an endpoint of etcd: write it as `http://10.0.0.7:2379` or `https://etcd.example:2379`"
    )]
    Malformed(String),
    /// An `https` endpoint is given without root certificates.
    #[error("`{0}` needs the file of the roots of etcd's certificates")]
    NoRoots(String),
    /// No thread could be started.
    #[error("starting the thread of the client of etcd")]
    Thread(#[source] std::io::Error),
}

/// How the client reacts to an error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The call ends with this error, and the connection is kept.
    Answered(CallError),
    /// The connection or its member may have failed: the client closes it and tries another one.
    Broken(CallError),
    /// The call was not executed because the token has expired: the client fetches another one.
    StaleToken(String),
}

/// Classifies the error of a call to `endpoint`. Errors of etcd itself are recognised by their text, because one code stands for several errors.
pub(crate) fn judge(endpoint: &str, status: &Status) -> Verdict {
    let said = status.message();
    let words = || format!("{endpoint}: {said}");
    let Some(own) = said.strip_prefix("etcdserver: ").or_else(|| said.strip_prefix("auth: ")) else {
        return judge_code(endpoint, status);
    };
    match own {
        "mvcc: database space exceeded" => Verdict::Answered(CallError::NoSpace),
        "mvcc: required revision has been compacted" => Verdict::Answered(CallError::Compacted),
        // etcd checks these before it proposes the transaction.
        "too many requests" => Verdict::Answered(CallError::NotDone(words())),
        "invalid auth token" | "revision of auth store is old" => Verdict::StaleToken(words()),
        "user name is empty" => Verdict::Answered(CallError::Refused(format!(
            "{endpoint}: etcd requires authentication: set a user and the file of its password"
        ))),
        "permission denied"
        | "authentication failed, invalid user ID or password"
        | "authentication is not enabled"
        | "request is too large"
        | "too many operations in txn request"
        | "key is not provided"
        | "duplicate key given in txn request" => Verdict::Answered(CallError::Refused(words())),
        // When there is no leader, a new leader, a stopping member or a timeout, the transaction may already be proposed.
        _ => Verdict::Broken(CallError::Unknown(words())),
    }
}

/// Classifies an error of a connection, a proxy, or gRPC itself.
fn judge_code(endpoint: &str, status: &Status) -> Verdict {
    let said = format!("{endpoint}: {}", chain(status));
    match status.code() {
        Code::Unimplemented => Verdict::Broken(CallError::Refused(format!("{said}; this is no etcd"))),
        // The answer to a read exceeds the size limit.
        Code::OutOfRange => Verdict::Answered(CallError::Unknown(said)),
        _ => Verdict::Broken(CallError::Unknown(said)),
    }
}

/// Formats an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many errors say their cause already.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_known_only_where_etcd_says_so() {
        // (code, text, is surely not done)
        let table = [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", true),
            (Code::ResourceExhausted, "etcdserver: too many requests", true),
            (Code::PermissionDenied, "etcdserver: permission denied", true),
            (Code::InvalidArgument, "etcdserver: request is too large", true),
            (Code::Unavailable, "etcdserver: no leader", false),
            (Code::Unavailable, "etcdserver: leader changed", false),
            (Code::Unavailable, "etcdserver: request timed out", false),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                false,
            ),
            (Code::Unavailable, "etcdserver: server stopped", false),
            (Code::Unknown, "something new", false),
            (Code::Unavailable, "transport error", false),
            (Code::DeadlineExceeded, "context deadline exceeded", false),
            (Code::Cancelled, "the client has given up", false),
            (Code::Internal, "h2 protocol error", false),
        ];
        for (code, text, is_known) in table {
            let error = match judge("e", &Status::new(code, text)) {
                Verdict::Answered(error) | Verdict::Broken(error) => error,
                Verdict::StaleToken(text) => panic!("{text}"),
            };
            assert_eq!(error.is_surely_not_done(), is_known, "{text}: {error}");
        }
        for text in ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old"] {
            assert!(matches!(judge("e", &Status::unauthenticated(text)), Verdict::StaleToken(_)));
        }
        let full = judge("e", &Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert_eq!(full, Verdict::Answered(CallError::NoSpace));
        assert!(CallError::NoSpace.to_string().contains("etcdctl defrag"));
    }
}
