//! The life of an attempt, as YARN's ResourceManager has it (RMAppAttempt), and which failed attempts count.
//!
//! [`AttemptState::after`] is the whole table: a pair of state and event that it does not know is refused, and changes nothing.

use crate::{application::EndTarget, exit_status::YarnExitStatus};

/// Where an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptState {
    /// Known, nothing more.
    New,
    /// Its application has started it.
    Submitted,
    /// Its master waits for a place.
    Scheduled,
    /// Its master has a place, which is being recorded.
    AllocatedSaving,
    /// Its master has a place and is to be started there.
    Allocated,
    /// Its master runs elsewhere; that is being recorded.
    LaunchedUnmanagedSaving,
    /// Its master was started and has not registered.
    Launched,
    /// Its master has registered.
    Running,
    /// Its last record is being written.
    FinalSaving {
        /// Where it is afterwards.
        target: EndTarget,
    },
    /// Its master has said goodbye and still runs.
    Finishing,
    /// Over: its master has said goodbye and ended.
    Finished,
    /// Over: its master ended without a goodbye, or never came.
    Failed,
    /// Over: somebody ended it.
    Killed,
}

/// What happens to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptEvent {
    /// Its application starts it.
    Start,
    /// The scheduler knows it.
    Added {
        /// Its master runs elsewhere.
        is_unmanaged: bool,
    },
    /// A container has a place: that of its master, as long as there is none.
    ContainerAllocated,
    /// What was to be recorded is.
    NewSaved,
    /// Its master was started.
    Launched,
    /// Its master could not be started.
    LaunchFailed,
    /// Its master registers.
    Registered,
    /// Its master calls `allocate`.
    StatusUpdate,
    /// Its master says goodbye.
    Unregistered {
        /// Its master runs elsewhere, and has no container that could end.
        is_unmanaged: bool,
    },
    /// The container of its master ended.
    MasterEnded,
    /// Another one of its containers ended.
    ContainerEnded,
    /// Its master has not been heard of for too long.
    Expire,
    /// Somebody ends it.
    Kill,
    /// Somebody has it fail.
    Fail,
    /// Its last record is written.
    UpdateSaved,
    /// The adapter has started again; the record says how the attempt ended, if it did.
    Recover(Option<EndTarget>),
}

/// What an attempt has done when its state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptEffect {
    /// Have the scheduler know it.
    AddToScheduler,
    /// Ask for a place for its master.
    AskForMaster,
    /// Record that it has one.
    SaveNew,
    /// Start its master.
    Launch,
    /// Stop its master and give its place back.
    StopMaster,
    /// Write its last record.
    SaveFinal,
    /// Tell its application that its master has registered.
    TellRegistered,
    /// Tell its application that its master has said goodbye.
    TellUnregistered,
    /// Tell its application that it ended well.
    TellFinished,
    /// Tell its application that it failed.
    TellFailed,
    /// Tell its application that it was killed.
    TellKilled,
    /// Tell its master, or the one of the next attempt, that a container ended.
    KeepEnded,
}

impl AttemptState {
    /// Returns whether its master may register, or has: before, a call of the master is refused, whatever token it has.
    pub fn is_launched(self) -> bool {
        matches!(self, Self::Launched | Self::Running)
    }

    /// Where an event leads to, and what is to be done. `None`: the event does not happen in this state.
    pub fn after(self, event: AttemptEvent) -> Option<(Self, &'static [AttemptEffect])> {
        if let Some(ended) = self.ended_by(event) {
            return Some(ended);
        }
        use AttemptEffect as Do;
        use AttemptEvent as On;
        let next = match (self, event) {
            (Self::New, On::Start) => (Self::Submitted, &[Do::AddToScheduler][..]),
            (Self::New, On::Recover(None)) => (Self::Launched, &[][..]),
            (Self::New, On::Recover(Some(target))) => target.of_attempt(),
            (Self::Submitted, On::Added { is_unmanaged: false }) => {
                (Self::Scheduled, &[Do::AskForMaster][..])
            }
            (Self::Submitted, On::Added { is_unmanaged: true }) => {
                (Self::LaunchedUnmanagedSaving, &[Do::SaveNew][..])
            }
            (Self::Scheduled, On::ContainerAllocated) => (Self::AllocatedSaving, &[Do::SaveNew][..]),
            (Self::AllocatedSaving, On::NewSaved) => (Self::Allocated, &[Do::Launch][..]),
            (Self::LaunchedUnmanagedSaving, On::NewSaved) | (Self::Allocated, On::Launched) => {
                (Self::Launched, &[][..])
            }
            (Self::Launched, On::Registered) => (Self::Running, &[Do::TellRegistered][..]),
            (Self::Running, On::StatusUpdate | On::ContainerAllocated) => (self, &[][..]),
            (Self::Launched | Self::Running | Self::Finishing, On::ContainerEnded) => {
                (self, &[Do::KeepEnded][..])
            }
            (Self::FinalSaving { target }, On::UpdateSaved) => target.of_attempt(),
            // It is over as soon as that is recorded.
            (Self::FinalSaving { target: EndTarget::Finishing }, On::MasterEnded | On::Expire) => {
                (Self::FinalSaving { target: EndTarget::Finished }, &[][..])
            }
            (Self::Finishing, On::MasterEnded | On::Expire) => (Self::Finished, &[Do::TellFinished][..]),
            (over, late) if over.ignores(late) => (self, &[][..]),
            (Self::FinalSaving { .. } | Self::Failed | Self::Finished | Self::Killed, On::ContainerEnded) => {
                (self, &[Do::KeepEnded][..])
            }
            _ => return None,
        };
        Some(next)
    }

    /// What ends an attempt, wherever it is.
    fn ended_by(self, event: AttemptEvent) -> Option<(Self, &'static [AttemptEffect])> {
        use AttemptEffect as Do;
        use AttemptEvent as On;
        let target = match (self, event) {
            (_, On::Kill) => EndTarget::Killed,
            (_, On::Fail) => EndTarget::Failed,
            // Nobody has started it.
            (Self::New | Self::Submitted | Self::LaunchedUnmanagedSaving, On::Registered) => {
                EndTarget::Failed
            }
            (Self::Scheduled | Self::AllocatedSaving | Self::Allocated, On::MasterEnded) => EndTarget::Failed,
            (Self::Allocated, On::LaunchFailed) => EndTarget::Failed,
            (Self::Launched | Self::Running, On::MasterEnded | On::Expire) => EndTarget::Failed,
            (Self::Running, On::Unregistered { is_unmanaged: false }) => EndTarget::Finishing,
            (Self::Running, On::Unregistered { is_unmanaged: true }) => EndTarget::Finished,
            _ => return None,
        };
        let effects = match (self, event) {
            (
                Self::FinalSaving { .. } | Self::Finishing | Self::Finished | Self::Failed | Self::Killed,
                _,
            ) => return None,
            (Self::Running, On::Unregistered { .. }) => &[Do::TellUnregistered, Do::SaveFinal][..],
            (
                Self::AllocatedSaving | Self::Allocated | Self::Launched | Self::Running,
                On::Kill | On::Fail | On::Expire,
            )
            // Its place waits for a command that does not come.
            | (Self::Allocated, On::LaunchFailed) => &[Do::StopMaster, Do::SaveFinal],
            _ => &[Do::SaveFinal],
        };
        Some((Self::FinalSaving { target }, effects))
    }

    /// What comes too late to change anything.
    fn ignores(self, event: AttemptEvent) -> bool {
        use AttemptEvent as On;
        let is_common = matches!(
            event,
            On::Unregistered { .. } | On::StatusUpdate | On::ContainerAllocated | On::Kill | On::Fail
        );
        match self {
            Self::FinalSaving { .. } => {
                is_common
                    || matches!(
                        event,
                        On::Launched | On::LaunchFailed | On::NewSaved | On::Expire | On::MasterEnded
                    )
            }
            Self::Finishing => is_common,
            Self::Failed => is_common || matches!(event, On::Expire | On::MasterEnded),
            Self::Finished => {
                (is_common && event != On::StatusUpdate) || matches!(event, On::Expire | On::MasterEnded)
            }
            Self::Killed => {
                is_common
                    || matches!(
                        event,
                        On::Added { .. }
                            | On::Launched
                            | On::LaunchFailed
                            | On::Expire
                            | On::Registered
                            | On::MasterEnded
                    )
            }
            Self::New
            | Self::Submitted
            | Self::Scheduled
            | Self::AllocatedSaving
            | Self::Allocated
            | Self::LaunchedUnmanagedSaving
            | Self::Launched
            | Self::Running => false,
        }
    }

    /// Nothing more becomes of it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Killed)
    }
}

impl EndTarget {
    /// An attempt that is there, with its application told; a goodbye was told when it came.
    fn of_attempt(self) -> (AttemptState, &'static [AttemptEffect]) {
        match self {
            Self::Finishing => (AttemptState::Finishing, &[][..]),
            Self::Finished => (AttemptState::Finished, &[AttemptEffect::TellFinished][..]),
            Self::Failed => (AttemptState::Failed, &[AttemptEffect::TellFailed][..]),
            Self::Killed => (AttemptState::Killed, &[AttemptEffect::TellKilled][..]),
        }
    }
}

/// What becomes of an application of which an attempt has failed whose master no node has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnstartedFate {
    /// The next attempt goes to another node. This one does not count, since nothing has run.
    Elsewhere,
    /// No node starts its master: no other attempt follows.
    Nowhere,
}

/// A failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// When it ended, Unix milliseconds.
    pub ended_ms: i64,
    /// How its master ended.
    pub exit: YarnExitStatus,
}

/// How often an application may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptTerms {
    /// What the application wants; what is not in 1 to `max_of_cluster` means that.
    pub max_of_application: i32,
    /// What the cluster allows (`yarn.resourcemanager.am.max-attempts`).
    pub max_of_cluster: u32,
    /// Older failures do not count, milliseconds; 0 and less: all count.
    pub validity_interval_ms: i64,
    /// Its master runs elsewhere: nobody can start another one.
    pub is_unmanaged: bool,
}

impl AttemptTerms {
    /// Attempts that may fail.
    pub fn max_attempts(&self) -> u32 {
        let wanted = u32::try_from(self.max_of_application).unwrap_or(0);
        if (1..=self.max_of_cluster).contains(&wanted) { wanted } else { self.max_of_cluster }
    }

    /// Failures that count now, Unix milliseconds.
    pub fn n_failures(&self, failed: &[FailedAttempt], now_ms: i64) -> usize {
        let counts = |attempt: &&FailedAttempt| {
            let is_recent = self.validity_interval_ms <= 0
                || now_ms.saturating_sub(attempt.ended_ms) < self.validity_interval_ms;
            is_recent && attempt.exit.counts_as_failure()
        };
        failed.iter().filter(counts).count()
    }

    /// Whether another attempt may follow these.
    pub fn may_retry(&self, failed: &[FailedAttempt], now_ms: i64) -> bool {
        let max = usize::try_from(self.max_attempts()).unwrap_or(usize::MAX);
        !self.is_unmanaged && self.n_failures(failed, now_ms) < max
    }
}

#[cfg(test)]
mod tests;
