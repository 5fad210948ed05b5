//! How a call ended that brought no answer.

use tonic::{Code, Status};

/// Why a call brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Surely nothing was done; it may work later.
    #[error("{0}")]
    NotDone(String),
    /// It may have been done, may be done later, or never.
    #[error("it is not known whether etcd did it: {0}")]
    Unknown(String),
    /// Surely nothing was done: the database is as large as its quota allows, and etcd refuses the writes of all clients until its
    /// alarm is disarmed.
    #[error(
        "etcd has no space left and has raised its alarm NOSPACE: run `etcdctl defrag` for each member, then \
         `etcdctl alarm disarm`; a larger quota is etcd's flag `--quota-backend-bytes`"
    )]
    NoSpace,
    /// What was asked for was compacted.
    #[error("etcd has compacted this revision")]
    Compacted,
    /// Surely nothing was done, and nothing will be with these settings: an operator must change something.
    #[error("{0}")]
    Refused(String),
}

impl CallError {
    /// Nothing was done.
    pub fn is_surely_not_done(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// None is given.
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    /// It cannot be read.
    #[error(
        "`{0}` is not an endpoint of etcd: write it as `http://10.0.0.7:2379` or `https://etcd.example:2379`"
    )]
    Malformed(String),
    /// TLS needs roots.
    #[error("`{0}` needs the file of the roots of etcd's certificates")]
    NoRoots(String),
    /// No thread could be started.
    #[error("starting the thread of the client of etcd")]
    Thread(#[source] std::io::Error),
}

/// What to do with an error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The call ends with it. The connection is good.
    Answered(CallError),
    /// The connection, or the member behind it, may be bad: another one is tried.
    Broken(CallError),
    /// Nothing was done: the token is too old, and another one must be fetched.
    StaleToken(String),
}

/// Judges what a call of `endpoint` ended with. etcd's own errors are known by their text: their codes mean several things.
pub(crate) fn judge(endpoint: &str, status: &Status) -> Verdict {
    let said = status.message();
    let words = || format!("{endpoint}: {said}");
    let Some(own) = said.strip_prefix("etcdserver: ").or_else(|| said.strip_prefix("auth: ")) else {
        return judge_code(endpoint, status);
    };
    match own {
        "mvcc: database space exceeded" => Verdict::Answered(CallError::NoSpace),
        "mvcc: required revision has been compacted" => Verdict::Answered(CallError::Compacted),
        // Judged before anything is proposed.
        "too many requests" => Verdict::Answered(CallError::NotDone(words())),
        "invalid auth token" | "revision of auth store is old" => Verdict::StaleToken(words()),
        "user name is empty" => Verdict::Answered(CallError::Refused(format!(
            "{endpoint}: etcd wants to know its users: set a user and the file of its password"
        ))),
        "permission denied"
        | "authentication failed, invalid user ID or password"
        | "authentication is not enabled"
        | "request is too large"
        | "too many operations in txn request"
        | "key is not provided"
        | "duplicate key given in txn request" => Verdict::Answered(CallError::Refused(words())),
        // No leader, a leader that changed, a member that stops, a time-out: by then it may have been proposed.
        _ => Verdict::Broken(CallError::Unknown(words())),
    }
}

/// Of a connection, a proxy, or gRPC itself.
fn judge_code(endpoint: &str, status: &Status) -> Verdict {
    let said = format!("{endpoint}: {}", chain(status));
    match status.code() {
        Code::Unimplemented => Verdict::Broken(CallError::Refused(format!("{said}; this is no etcd"))),
        // The answer was too large for us: a read.
        Code::OutOfRange => Verdict::Answered(CallError::Unknown(said)),
        _ => Verdict::Broken(CallError::Unknown(said)),
    }
}

/// An error with its causes.
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
