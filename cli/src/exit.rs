//! How commands end: exit codes, and failures that say what to do next.

use std::{fmt, process::ExitCode};

use godel_kit::status as rpc;
use tonic::{Code as RpcCode, Status};

/// Text for `--help`.
pub const EXIT_CODES: &str = "Exit codes:
  0  done, or the condition holds
  1  failed, or the condition does not hold (audit, wait on a unit that ended otherwise)
  2  wrong usage or invalid input
  3  the server cannot be reached
  4  not found
  5  conflict: it exists already, or has changed meanwhile
  6  not in time
  7  the server is full: try again later
  9  nothing failed, and not everything could be judged (audit)";

/// Exit codes of the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Something failed, or a condition does not hold.
    Failed = 1,
    /// The input is wrong.
    Usage = 2,
    /// No server answers.
    Unreachable = 3,
    /// The named object does not exist.
    NotFound = 4,
    /// It exists already, or it changed meanwhile.
    Conflict = 5,
    /// The time is over.
    Timeout = 6,
    /// The server refuses for lack of room.
    Busy = 7,
    /// An audit could not judge everything, and what it could holds.
    NotJudged = 9,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        match code {
            Code::Failed => Self::from(1),
            Code::Usage => Self::from(2),
            Code::Unreachable => Self::from(3),
            Code::NotFound => Self::from(4),
            Code::Conflict => Self::from(5),
            Code::Timeout => Self::from(6),
            Code::Busy => Self::from(7),
            Code::NotJudged => Self::from(9),
        }
    }
}

/// Why a command ends without success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Failure {
    /// How the process ends.
    pub code: Code,
    /// What went wrong, one line or several.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{hint}"))
    }
}

impl Failure {
    /// With a code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// Something failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Code::Failed, message)
    }

    /// The input is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// An error and its causes in one line.
    pub fn chain(code: Code, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Self::new(code, message)
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what was being done.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let message = status.message();
        match status.code() {
            RpcCode::InvalidArgument => {
                let violations = rpc::violations_of(&status);
                if violations.is_empty() {
                    return Self::usage(message);
                }
                let lines: Vec<String> =
                    violations.iter().map(|bad| format!("  {}: {}", bad.path, bad.description)).collect();
                Self::usage(format!("invalid input\n{}", lines.join("\n")))
            }
            RpcCode::NotFound => Self::new(Code::NotFound, message),
            RpcCode::AlreadyExists => Self::new(Code::Conflict, message),
            RpcCode::Aborted => Self::new(Code::Conflict, message)
                .hint("it has changed meanwhile: look at it again, then repeat"),
            RpcCode::FailedPrecondition => match rpc::preconditions_of(&status).as_slice() {
                [] | [_] => Self::failed(message),
                several => {
                    let lines: Vec<String> =
                        several.iter().map(|one| format!("  {}: {}", one.path, one.description)).collect();
                    Self::failed(format!("it cannot be done now\n{}", lines.join("\n")))
                }
            },
            RpcCode::Unavailable => Self::new(Code::Unreachable, unavailable(&status)).hint(START),
            RpcCode::DeadlineExceeded => Self::new(Code::Timeout, format!("no answer in time: {message}")),
            RpcCode::ResourceExhausted => {
                let wait = rpc::retry_after(&status)
                    .map_or_else(String::new, |wait| format!(" in {}", humantime::format_duration(wait)));
                Self::new(Code::Busy, format!("the server is full: {message}"))
                    .hint(format!("try again{wait}"))
            }
            RpcCode::OutOfRange
            | RpcCode::Ok
            | RpcCode::Cancelled
            | RpcCode::Unknown
            | RpcCode::PermissionDenied
            | RpcCode::Unimplemented
            | RpcCode::Internal
            | RpcCode::DataLoss
            | RpcCode::Unauthenticated => Self::failed(format!("{}: {message}", status.code())),
        }
    }
}

const START: &str = "start everything on this machine with `godel up`, or say where it runs: \
                     GODEL_ADDR=http://HOST:7700 or --address";

fn unavailable(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        // Only the last cause says why; those above it repeat each other.
        text = cause.to_string();
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use godel_kit::convert::BadField;

    #[test]
    fn every_answer_has_its_exit_code_and_says_what_to_do() {
        for (status, code, words) in [
            (Status::not_found("no unit `x`"), Code::NotFound, "no unit `x`"),
            (Status::already_exists("x exists"), Code::Conflict, "x exists"),
            (Status::aborted("revision 4, not 3"), Code::Conflict, "look at it again"),
            (Status::unavailable("refused"), Code::Unreachable, "godel up"),
            (Status::deadline_exceeded("slow"), Code::Timeout, "no answer in time"),
            (Status::resource_exhausted("queue"), Code::Busy, "try again"),
            (Status::failed_precondition("it runs"), Code::Failed, "it runs"),
            (
                rpc::failed_preconditions("UNIT", [BadField::new("a", "gone"), BadField::new("b", "full")]),
                Code::Failed,
                "  a: gone\n  b: full",
            ),
            (Status::internal("bug"), Code::Failed, "bug"),
            (
                rpc::invalid_argument([BadField::new("a", "is empty"), BadField::new("b[1]", "is bad")]),
                Code::Usage,
                "  a: is empty\n  b[1]: is bad",
            ),
        ] {
            let failure = Failure::from(status);
            assert_eq!(failure.code, code, "{failure}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read it")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("no such file"));
        assert_eq!(Failure::chain(Code::Usage, &error).message, "cannot read it: no such file");
    }
}
