//! How containers end, in YARN's numbers.

use godel_domain::{run_end::RunEndReason, running_units::EvictionReason};

/// An exit status as YARN tells it: that of the process, or one of YARN's own below 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YarnExitStatus(pub i32);

impl YarnExitStatus {
    /// It has not ended, or was never started.
    pub const INVALID: Self = Self(-1_000);
    /// It ended with its node, or before it was started.
    pub const ABORTED: Self = Self(-100);
    /// The disks of its node are bad.
    pub const DISKS_FAILED: Self = Self(-101);
    /// Another one has its place.
    pub const PREEMPTED: Self = Self(-102);
    /// It had more memory than it asked for.
    pub const KILLED_EXCEEDED_PMEM: Self = Self(-104);
    /// Its master ended it.
    pub const KILLED_BY_APPMASTER: Self = Self(-105);
    /// The ResourceManager ended it.
    pub const KILLED_BY_RESOURCEMANAGER: Self = Self(-106);
    /// Its application was over.
    pub const KILLED_AFTER_APP_COMPLETION: Self = Self(-107);

    /// Of a running unit that ended: evicted for `eviction`, or by itself for `end` with the `code` of its process.
    pub fn of_run(eviction: Option<EvictionReason>, end: RunEndReason, code: i32) -> Self {
        match eviction {
            Some(EvictionReason::Preempted | EvictionReason::Squeezed) => Self::PREEMPTED,
            Some(
                EvictionReason::NodeLost
                | EvictionReason::Drained
                | EvictionReason::Tainted
                | EvictionReason::Rescheduled,
            ) => Self::ABORTED,
            Some(EvictionReason::Cancelled) => Self::KILLED_AFTER_APP_COMPLETION,
            Some(EvictionReason::ScaledIn) => Self::KILLED_BY_APPMASTER,
            Some(
                EvictionReason::Suspended
                | EvictionReason::BelowMin
                | EvictionReason::Deadline
                | EvictionReason::Failure,
            ) => Self::KILLED_BY_RESOURCEMANAGER,
            None => match end {
                RunEndReason::OutOfMemory => Self::KILLED_EXCEEDED_PMEM,
                RunEndReason::Squeezed => Self::PREEMPTED,
                RunEndReason::AgentStopped
                | RunEndReason::NoContact
                | RunEndReason::Lost
                | RunEndReason::Rebooted => Self::ABORTED,
                // Nobody evicted it: its node was told by its master.
                RunEndReason::Told => Self::KILLED_BY_APPMASTER,
                RunEndReason::Exited | RunEndReason::Signalled => Self(code),
                // Nothing has run, as its node says it.
                RunEndReason::CommandNotFound
                | RunEndReason::CommandNotExecutable
                | RunEndReason::NoDirectory
                | RunEndReason::NoUser
                | RunEndReason::UserNotPermitted
                | RunEndReason::PrincipalNotPermitted
                | RunEndReason::CannotStart => Self::INVALID,
            },
        }
    }

    /// Whether an attempt whose master ended so has failed by itself.
    pub fn counts_as_failure(self) -> bool {
        let excused = [Self::PREEMPTED, Self::ABORTED, Self::DISKS_FAILED, Self::KILLED_BY_RESOURCEMANAGER];
        !excused.contains(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_the_numbers_of_yarn() {
        let evicted = |reason| YarnExitStatus::of_run(Some(reason), RunEndReason::Told, 143).0;
        let ended = |reason, code| YarnExitStatus::of_run(None, reason, code).0;
        assert_eq!(evicted(EvictionReason::Preempted), -102);
        assert_eq!(evicted(EvictionReason::NodeLost), -100);
        assert_eq!(evicted(EvictionReason::ScaledIn), -105);
        assert_eq!(evicted(EvictionReason::Cancelled), -107);
        assert_eq!(ended(RunEndReason::Told, 143), -105, "by its master, as its node says it");
        assert_eq!(ended(RunEndReason::Exited, 0), 0);
        assert_eq!(ended(RunEndReason::Signalled, 137), 137);
        assert_eq!(ended(RunEndReason::OutOfMemory, 137), -104);
        assert_eq!(ended(RunEndReason::Rebooted, 0), -100);
        assert_eq!(ended(RunEndReason::CannotStart, 127), -1_000);
    }

    #[test]
    fn what_an_application_cannot_help_does_not_count() {
        let does_not_count: Vec<EvictionReason> = EvictionReason::ALL
            .into_iter()
            .filter(|reason| {
                !YarnExitStatus::of_run(Some(*reason), RunEndReason::Told, 143).counts_as_failure()
            })
            .collect();
        assert!(does_not_count.contains(&EvictionReason::Preempted));
        assert!(!does_not_count.contains(&EvictionReason::ScaledIn));
        assert!(
            YarnExitStatus(1).counts_as_failure() && YarnExitStatus::KILLED_EXCEEDED_PMEM.counts_as_failure()
        );
    }
}
