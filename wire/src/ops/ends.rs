//! How running units ended, as columns and as single values.

use godel_domain::run_end::{RunEnd, RunEndReason};
use godel_proto::v1;

/// Why a command is over; a reason of a later version is none.
pub fn run_end_reason_from_proto(reason: i32) -> Option<RunEndReason> {
    match v1::RunEndReason::try_from(reason) {
        Ok(v1::RunEndReason::Unspecified) | Err(_) => None,
        Ok(v1::RunEndReason::Exited) => Some(RunEndReason::Exited),
        Ok(v1::RunEndReason::Signalled) => Some(RunEndReason::Signalled),
        Ok(v1::RunEndReason::OutOfMemory) => Some(RunEndReason::OutOfMemory),
        Ok(v1::RunEndReason::Told) => Some(RunEndReason::Told),
        Ok(v1::RunEndReason::AgentStopped) => Some(RunEndReason::AgentStopped),
        Ok(v1::RunEndReason::NoContact) => Some(RunEndReason::NoContact),
        Ok(v1::RunEndReason::Lost) => Some(RunEndReason::Lost),
        Ok(v1::RunEndReason::Rebooted) => Some(RunEndReason::Rebooted),
        Ok(v1::RunEndReason::CommandNotFound) => Some(RunEndReason::CommandNotFound),
        Ok(v1::RunEndReason::CommandNotExecutable) => Some(RunEndReason::CommandNotExecutable),
        Ok(v1::RunEndReason::NoDirectory) => Some(RunEndReason::NoDirectory),
        Ok(v1::RunEndReason::NoUser) => Some(RunEndReason::NoUser),
        Ok(v1::RunEndReason::UserNotPermitted) => Some(RunEndReason::UserNotPermitted),
        Ok(v1::RunEndReason::CannotStart) => Some(RunEndReason::CannotStart),
        Ok(v1::RunEndReason::Squeezed) => Some(RunEndReason::Squeezed),
        Ok(v1::RunEndReason::PrincipalNotPermitted) => Some(RunEndReason::PrincipalNotPermitted),
    }
}

/// The inverse of [`run_end_reason_from_proto`].
pub fn run_end_reason_to_proto(reason: Option<RunEndReason>) -> v1::RunEndReason {
    match reason {
        None => v1::RunEndReason::Unspecified,
        Some(RunEndReason::Exited) => v1::RunEndReason::Exited,
        Some(RunEndReason::Signalled) => v1::RunEndReason::Signalled,
        Some(RunEndReason::OutOfMemory) => v1::RunEndReason::OutOfMemory,
        Some(RunEndReason::Told) => v1::RunEndReason::Told,
        Some(RunEndReason::AgentStopped) => v1::RunEndReason::AgentStopped,
        Some(RunEndReason::NoContact) => v1::RunEndReason::NoContact,
        Some(RunEndReason::Lost) => v1::RunEndReason::Lost,
        Some(RunEndReason::Rebooted) => v1::RunEndReason::Rebooted,
        Some(RunEndReason::CommandNotFound) => v1::RunEndReason::CommandNotFound,
        Some(RunEndReason::CommandNotExecutable) => v1::RunEndReason::CommandNotExecutable,
        Some(RunEndReason::NoDirectory) => v1::RunEndReason::NoDirectory,
        Some(RunEndReason::NoUser) => v1::RunEndReason::NoUser,
        Some(RunEndReason::UserNotPermitted) => v1::RunEndReason::UserNotPermitted,
        Some(RunEndReason::CannotStart) => v1::RunEndReason::CannotStart,
        Some(RunEndReason::Squeezed) => v1::RunEndReason::Squeezed,
        Some(RunEndReason::PrincipalNotPermitted) => v1::RunEndReason::PrincipalNotPermitted,
    }
}

/// Columns of reasons, starts and ends; one that says nothing is empty.
pub fn ends_to_proto(ends: &[RunEnd]) -> (Vec<i32>, Vec<i64>, Vec<i64>) {
    let reason = |end: &RunEnd| i32::from(run_end_reason_to_proto(end.reason));
    (column(ends, reason), column(ends, |end| end.started_ms), column(ends, |end| end.ended_ms))
}

fn column<T: Copy + Default + PartialEq>(ends: &[RunEnd], of: impl Fn(&RunEnd) -> T) -> Vec<T> {
    if ends.iter().all(|end| of(end) == T::default()) { Vec::new() } else { ends.iter().map(of).collect() }
}

/// The inverse of [`ends_to_proto`], of columns that have `len` values or none; empty if all of them say nothing.
pub(super) fn ends_from_proto(len: usize, reasons: &[i32], started: &[i64], ended: &[i64]) -> Vec<RunEnd> {
    if reasons.is_empty() && started.is_empty() && ended.is_empty() {
        return Vec::new();
    }
    (0..len).map(|idx| end_at(reasons, started, ended, idx)).collect()
}

/// What columns say of the running unit at `idx`.
pub(super) fn end_at(reasons: &[i32], started: &[i64], ended: &[i64], idx: usize) -> RunEnd {
    RunEnd {
        reason: reasons.get(idx).and_then(|reason| run_end_reason_from_proto(*reason)),
        started_ms: started.get(idx).copied().unwrap_or_default(),
        ended_ms: ended.get(idx).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_go_there_and_back_and_unknown_ones_are_none() {
        for reason in RunEndReason::ALL {
            let number = i32::from(run_end_reason_to_proto(Some(reason)));
            assert_eq!(run_end_reason_from_proto(number), Some(reason));
        }
        assert_eq!((run_end_reason_from_proto(0), run_end_reason_from_proto(9_999)), (None, None));
    }

    #[test]
    fn columns_that_say_nothing_are_left_out() {
        let end = RunEnd { reason: None, started_ms: 7, ended_ms: 0 };
        let ends = [RunEnd::default(), end];
        let (reasons, started, ended) = ends_to_proto(&ends);
        assert_eq!((reasons.len(), &started[..], ended.len()), (0, &[0, 7][..], 0));
        assert_eq!(ends_from_proto(2, &reasons, &started, &ended), ends);
        assert!(ends_from_proto(2, &[], &[], &[]).is_empty());
    }
}
