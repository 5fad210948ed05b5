//! The changes of phase that there are, and why.

use super::Phase;

/// One line of the transition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Phases that it leaves.
    pub from: &'static [Phase],
    /// Phase that it enters.
    pub to: Phase,
    /// What makes it happen.
    pub when: &'static str,
}

/// Every transition of a unit's phase; the property tests follow random lives along it.
pub const TRANSITIONS: &[Transition] = &[
    Transition {
        from: &[Phase::Queued, Phase::Unschedulable],
        to: Phase::Scheduling,
        when: "a scheduler works on it",
    },
    Transition {
        from: &[Phase::Scheduling, Phase::Queued],
        to: Phase::Unschedulable,
        when: "a try found no place, no node could ever hold it, or it has waited for scheduling_timeout; it is tried on",
    },
    Transition {
        from: &[Phase::Scheduling, Phase::Unschedulable],
        to: Phase::Queued,
        when: "its scheduler was lost or gave it back",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Running],
        to: Phase::Scheduled,
        when: "at least min_member are bound",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled],
        to: Phase::Running,
        when: "at least min_member have started",
    },
    Transition {
        from: &[Phase::Scheduled, Phase::Running],
        to: Phase::Queued,
        when: "broken below min_member; the missing go to the head of the queue, with on_below_min: restart all",
    },
    Transition {
        from: &[Phase::Scheduled, Phase::Running],
        to: Phase::Scheduling,
        when: "broken below min_member while a scheduler has the missing",
    },
    Transition {
        from: &[Phase::Scheduled, Phase::Running],
        to: Phase::Unschedulable,
        when: "broken below min_member, and the missing found no place",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Completed,
        when: "every replica ended with exit code 0",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Failed,
        when: "every replica ended, at least one with another exit code or evicted with on_eviction: fail",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Failed,
        when: "broken below min_member with on_below_min: stop",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Failed,
        when: "a replica failed for good with on_failure: stop, or with restart after max_restarts of the whole",
    },
    Transition {
        from: &[Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running, Phase::Suspended],
        to: Phase::Queued,
        when: "a replica failed for good with on_failure: restart; all of it comes back",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Failed,
        when: "a replica that is there, or has ended, was bound active_deadline ago",
    },
    Transition {
        from: &[Phase::Queued, Phase::Scheduling, Phase::Unschedulable, Phase::Scheduled, Phase::Running],
        to: Phase::Suspended,
        when: "suspended",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Queued,
        when: "resumed; its replicas come back as their next incarnations, min_member of them together",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Unschedulable,
        when: "resumed, and no node could ever hold it",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Scheduled,
        when: "resumed before min_member had left",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Running,
        when: "resumed before those that run had left",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Completed,
        when: "every replica had ended with exit code 0 before it was told to leave",
    },
    Transition {
        from: &[Phase::Suspended],
        to: Phase::Failed,
        when: "every replica had ended, at least one with another exit code",
    },
    Transition {
        from: &[
            Phase::Queued,
            Phase::Scheduling,
            Phase::Unschedulable,
            Phase::Scheduled,
            Phase::Running,
            Phase::Completed,
            Phase::Failed,
            Phase::Suspended,
        ],
        to: Phase::Cancelled,
        when: "cancelled",
    },
];

/// Whether the table has a line from `from` to `to`; staying is always allowed.
pub fn may_become(from: Phase, to: Phase) -> bool {
    from == to || TRANSITIONS.iter().any(|line| line.to == to && line.from.contains(&from))
}

/// The transition table as Markdown, for the docs.
pub fn render_transitions() -> String {
    let mut out = "| from | to | when |\n|---|---|---|\n".to_owned();
    for line in TRANSITIONS {
        let from = line.from.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(", ");
        out += &format!("| {from} | {} | {} |\n", line.to.name(), line.when);
    }
    out
}
