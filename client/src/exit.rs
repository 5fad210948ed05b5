//! How commands end: exit codes, and failures that say what to do next.

use std::{fmt, process::ExitCode};

use godel_kit::status as rpc;
use godel_wire::BadField;
use tonic::{Code as RpcCode, Status};

use crate::output::shown;

/// Text for `--help`.
pub const EXIT_CODES: &str = "Exit codes:
  0  done, or the condition holds
  1  failed, or the condition does not hold (audit, doctor, wait for a unit that failed or was cancelled)
  2  wrong usage or invalid input
  3  the server cannot be reached, or is the wrong server
  4  not found: the named object, or a queue or priority class that it names
  5  conflict: the object exists already, or has changed
  6  timeout
  7  the server is overloaded: try again later
  8  not permitted
  9  nothing failed, but not everything could be judged (audit)
With several names, each is processed and has its own line; the exit code is the worst one:
3, then 1, 2, 8, 6, 7, 5, 4.";

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
    /// The caller may not do it.
    Denied = 8,
    /// An audit could not judge everything, and what it could holds.
    NotJudged = 9,
}

impl Code {
    /// The number.
    pub fn number(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            Self::Conflict => 5,
            Self::Timeout => 6,
            Self::Busy => 7,
            Self::Denied => 8,
            Self::NotJudged => 9,
        }
    }

    /// How bad it is among others: the higher, the worse.
    fn weight(self) -> usize {
        let from_least = [
            Self::NotJudged,
            Self::NotFound,
            Self::Conflict,
            Self::Busy,
            Self::Timeout,
            Self::Denied,
            Self::Usage,
            Self::Failed,
            Self::Unreachable,
        ];
        from_least.into_iter().position(|code| code == self).unwrap_or_default()
    }

    /// The worst of several; `None` if there is none.
    pub fn worst(codes: impl IntoIterator<Item = Self>) -> Option<Self> {
        codes.into_iter().max_by_key(|code| code.weight())
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
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
        // Whatever the answer quotes is shown as it is.
        let message = shown(status.message()).into_owned();
        let message = message.as_str();
        match status.code() {
            RpcCode::InvalidArgument => {
                let violations = rpc::violations_of(&status);
                if violations.is_empty() {
                    return Self::usage(message);
                }
                Self::usage(format!("invalid input\n{}", lines(&violations)))
            }
            RpcCode::NotFound => Self::new(Code::NotFound, message),
            RpcCode::AlreadyExists => Self::new(Code::Conflict, message),
            RpcCode::Aborted => {
                Self::new(Code::Conflict, message).hint("it has changed: read it again and retry")
            }
            RpcCode::FailedPrecondition => {
                let grounds = rpc::preconditions_of(&status);
                // Something else that it names is not there.
                let is_absent = rpc::precondition_kinds(&status).iter().any(|kind| kind == rpc::ABSENT);
                let code = if is_absent { Code::NotFound } else { Code::Failed };
                match grounds.as_slice() {
                    [] | [_] => Self::new(code, message),
                    several => Self::new(code, format!("the state forbids it now\n{}", lines(several))),
                }
            }
            RpcCode::Unauthenticated if rpc::has_reason(&status, rpc::reason::TLS_REQUIRED) => {
                Self::new(Code::Denied, message).hint(LOGIN)
            }
            RpcCode::PermissionDenied | RpcCode::Unauthenticated => Self::new(Code::Denied, message),
            RpcCode::Unimplemented => {
                let message = if message.is_empty() { "it does not support this call" } else { message };
                Self::new(Code::Unreachable, message).hint(OTHER_SERVER)
            }
            // The transport met something that does not speak gRPC.
            RpcCode::Unknown | RpcCode::Internal if std::error::Error::source(&status).is_some() => {
                Self::new(Code::Unreachable, unavailable(&status)).hint(OTHER_SERVER)
            }
            RpcCode::Unavailable => Self::new(Code::Unreachable, unavailable(&status)).hint(START),
            RpcCode::DeadlineExceeded => Self::new(Code::Timeout, format!("timeout: {message}")),
            RpcCode::ResourceExhausted => {
                let wait = rpc::retry_after(&status)
                    .map_or_else(String::new, |wait| format!(" in {}", humantime::format_duration(wait)));
                Self::new(Code::Busy, format!("the server is overloaded: {message}"))
                    .hint(format!("try again{wait}"))
            }
            RpcCode::OutOfRange
            | RpcCode::Ok
            | RpcCode::Cancelled
            | RpcCode::Unknown
            | RpcCode::Internal
            | RpcCode::DataLoss => Self::failed(format!("{}: {message}", status.code())),
        }
    }
}

const START: &str = "start everything on this machine with `godel up`, or set the address of state: \
                     GODEL_ADDR=https://HOST:7700 or --address";

const LOGIN: &str = "run `godel context login` on the machine of state: commands then use TLS and a token";

const OTHER_SERVER: &str =
    "is this the address of godel's state service? Set it with GODEL_ADDR or --address";

/// A line for each thing that is wrong.
fn lines(wrong: &[BadField]) -> String {
    let line = |bad: &BadField| format!("  {}: {}", shown(&bad.path), shown(&bad.description));
    wrong.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn unavailable(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        // Only the last cause says why; those above it repeat each other.
        text = cause.to_string();
        source = cause.source();
    }
    shown(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_its_exit_code_and_says_what_to_do() {
        for (status, code, words) in [
            (Status::not_found("no unit `x`"), Code::NotFound, "no unit `x`"),
            (Status::already_exists("x exists"), Code::Conflict, "x exists"),
            (Status::aborted("revision 4, not 3"), Code::Conflict, "read it again"),
            (Status::unavailable("refused"), Code::Unreachable, "godel up"),
            (Status::deadline_exceeded("slow"), Code::Timeout, "timeout"),
            (Status::resource_exhausted("queue"), Code::Busy, "try again"),
            (Status::failed_precondition("it runs"), Code::Failed, "it runs"),
            (
                rpc::failed_preconditions("UNIT", [BadField::new("a", "gone"), BadField::new("b", "full")]),
                Code::Failed,
                "  a: gone\n  b: full",
            ),
            (Status::internal("bug"), Code::Failed, "bug"),
            (Status::permission_denied("of queue `a`"), Code::Denied, "of queue `a`"),
            (Status::unimplemented(""), Code::Unreachable, "GODEL_ADDR"),
            (
                rpc::failed_preconditions(rpc::ABSENT, [BadField::new("queue", "no queue `a`")]),
                Code::NotFound,
                "no queue `a`",
            ),
            (Status::not_found("no `\u{1b}[2J\n`"), Code::NotFound, "no `\\u{1b}[2J\\u{a}`"),
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
    fn the_worst_of_several_counts() {
        let worst = |codes: &[Code]| Code::worst(codes.iter().copied());
        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&[Code::NotFound, Code::Failed, Code::Conflict]), Some(Code::Failed));
        assert_eq!(worst(&[Code::Unreachable, Code::Failed]), Some(Code::Unreachable));
        assert_eq!(worst(&[Code::NotFound, Code::Conflict]), Some(Code::Conflict));
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
