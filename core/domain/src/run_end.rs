//! How a running unit ended, and when it ran, as its agent saw it.

/// Why a running unit is over, beside its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunEndReason {
    /// Its command ended by itself.
    Exited,
    /// A signal ended its command.
    Signalled,
    /// The kernel ended it because it needed more memory than its limit.
    OutOfMemory,
    /// It was told to stop. Who wanted it is in its eviction.
    Told,
    /// Its agent was stopped and is configured to end what it runs.
    AgentStopped,
    /// Nobody could reach the control plane for too long, and it must not run twice.
    NoContact,
    /// The process that kept it was killed: what was left of it was ended.
    Lost,
    /// Its machine was started again.
    Rebooted,
    /// There is no such program.
    CommandNotFound,
    /// The program is not executable.
    CommandNotExecutable,
    /// Its working directory does not exist, or is no directory.
    NoDirectory,
    /// Its user does not exist on the node.
    NoUser,
    /// The agent may not run commands as another user.
    UserNotPermitted,
    /// It could not be started for another reason.
    CannotStart,
    /// Best-effort work gave way because the node had no memory left.
    Squeezed,
    /// The agent runs without root, and only what one principal has submitted, who is another one.
    PrincipalNotPermitted,
}

impl RunEndReason {
    /// Every reason, in order.
    pub const ALL: [Self; 16] = [
        Self::Exited,
        Self::Signalled,
        Self::OutOfMemory,
        Self::Told,
        Self::AgentStopped,
        Self::NoContact,
        Self::Lost,
        Self::Rebooted,
        Self::CommandNotFound,
        Self::CommandNotExecutable,
        Self::NoDirectory,
        Self::NoUser,
        Self::UserNotPermitted,
        Self::CannotStart,
        Self::Squeezed,
        Self::PrincipalNotPermitted,
    ];

    /// As files and people's output name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signalled => "signalled",
            Self::OutOfMemory => "out-of-memory",
            Self::Told => "told",
            Self::AgentStopped => "agent-stopped",
            Self::NoContact => "no-contact",
            Self::Lost => "lost",
            Self::Rebooted => "rebooted",
            Self::CommandNotFound => "command-not-found",
            Self::CommandNotExecutable => "command-not-executable",
            Self::NoDirectory => "no-directory",
            Self::NoUser => "no-user",
            Self::UserNotPermitted => "user-not-permitted",
            Self::CannotStart => "cannot-start",
            Self::Squeezed => "squeezed",
            Self::PrincipalNotPermitted => "principal-not-permitted",
        }
    }

    /// What to do about it, where that is more than to look at the log of the replica.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::UserNotPermitted => Some(
                "the node does not run units as the wanted user: name a user of the node's `agent.users` in the unit, or add a row for the \
                 user there; the log of the replica says which user it was, and why",
            ),
            Self::NoUser => Some(
                "the node, or the image, does not have the user: make it, or name another one; the log of the replica says which",
            ),
            Self::PrincipalNotPermitted => Some(
                "the agent of the node does not run as root, and runs only units of its own principal: submit the unit as that one, choose other \
                 nodes with `node_selector`, run the agent as root with `agent.users`, or set its `agent.principal`",
            ),
            Self::Exited
            | Self::Signalled
            | Self::OutOfMemory
            | Self::Told
            | Self::AgentStopped
            | Self::NoContact
            | Self::Lost
            | Self::Rebooted
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::NoDirectory
            | Self::CannotStart
            | Self::Squeezed => None,
        }
    }

    /// The reason of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// What an agent says of a run beside its phase and exit code. All of it is absent of what was only simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunEnd {
    /// Why it is over; `None` while it runs, or if it is not known.
    pub reason: Option<RunEndReason>,
    /// When its command was started, Unix milliseconds by the clock of its node; 0: not known.
    pub started_ms: i64,
    /// When it was over; 0 before, or if it is not known.
    pub ended_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_by_their_names() {
        for reason in RunEndReason::ALL {
            assert_eq!(RunEndReason::of_name(reason.name()), Some(reason));
        }
        assert_eq!(RunEndReason::of_name("tired"), None);
    }
}
