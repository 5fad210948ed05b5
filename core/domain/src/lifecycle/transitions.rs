//! The changes of phase that there are, and why.

use super::UnitPhase;

/// One line of the transition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTransition {
    /// Phases that it leaves.
    pub from: &'static [UnitPhase],
    /// Phase that it enters.
    pub to: UnitPhase,
    /// What makes it happen.
    pub when: &'static str,
}

/// Phases of units that are to run and have not ended.
const WANTED: &[UnitPhase] = &[
    UnitPhase::Queued,
    UnitPhase::Scheduling,
    UnitPhase::Unschedulable,
    UnitPhase::Scheduled,
    UnitPhase::Running,
];
/// Phases of units that have ended.
const ENDED: &[UnitPhase] = &[UnitPhase::Completed, UnitPhase::Failed, UnitPhase::Cancelled];

/// Every transition of a unit's phase; the property tests follow random lives along it.
pub const TRANSITIONS: &[UnitTransition] = &[
    UnitTransition {
        from: &[UnitPhase::Queued, UnitPhase::Unschedulable],
        to: UnitPhase::Scheduling,
        when: "a scheduler works on it",
    },
    UnitTransition {
        from: &[UnitPhase::Scheduling, UnitPhase::Queued],
        to: UnitPhase::Unschedulable,
        when: "a try found no place, no node could ever hold it, or it has waited for scheduling_timeout; it is tried on",
    },
    UnitTransition {
        from: &[UnitPhase::Scheduling, UnitPhase::Unschedulable],
        to: UnitPhase::Queued,
        when: "its scheduler was lost or gave it back",
    },
    UnitTransition {
        from: &[UnitPhase::Queued, UnitPhase::Scheduling, UnitPhase::Unschedulable, UnitPhase::Running],
        to: UnitPhase::Scheduled,
        when: "at least min_member are bound",
    },
    UnitTransition {
        from: &[UnitPhase::Queued, UnitPhase::Scheduling, UnitPhase::Unschedulable, UnitPhase::Running],
        to: UnitPhase::Scheduled,
        when: "a service is scaled to zero replicas",
    },
    UnitTransition {
        from: &[UnitPhase::Queued, UnitPhase::Scheduling, UnitPhase::Unschedulable, UnitPhase::Scheduled],
        to: UnitPhase::Running,
        when: "at least min_member have started",
    },
    UnitTransition {
        from: &[UnitPhase::Scheduled, UnitPhase::Running],
        to: UnitPhase::Queued,
        when: "broken below min_member, or scaled up from zero; the missing go to the head of the queue, together if nobody is left, with on_below_min: restart all",
    },
    UnitTransition {
        from: &[UnitPhase::Scheduled, UnitPhase::Running],
        to: UnitPhase::Scheduling,
        when: "broken below min_member while a scheduler has the missing",
    },
    UnitTransition {
        from: &[UnitPhase::Scheduled, UnitPhase::Running],
        to: UnitPhase::Unschedulable,
        when: "broken below min_member, and the missing found no place",
    },
    UnitTransition { from: WANTED, to: UnitPhase::Completed, when: "every replica ended with exit code 0" },
    UnitTransition {
        from: WANTED,
        to: UnitPhase::Failed,
        when: "every replica ended, at least one with another exit code or evicted with on_eviction: fail",
    },
    UnitTransition {
        from: WANTED,
        to: UnitPhase::Failed,
        when: "broken below min_member with on_below_min: stop",
    },
    UnitTransition {
        from: WANTED,
        to: UnitPhase::Failed,
        when: "a replica failed for good with on_failure: stop, or with restart after max_restarts of the whole",
    },
    UnitTransition {
        from: &[
            UnitPhase::Scheduling,
            UnitPhase::Unschedulable,
            UnitPhase::Scheduled,
            UnitPhase::Running,
            UnitPhase::Suspended,
        ],
        to: UnitPhase::Queued,
        when: "a replica failed for good with on_failure: restart; all of it comes back",
    },
    UnitTransition {
        from: WANTED,
        to: UnitPhase::Failed,
        when: "a replica that is there, or has ended, was bound active_deadline ago",
    },
    UnitTransition { from: WANTED, to: UnitPhase::Suspended, when: "suspended" },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Queued,
        when: "resumed; its replicas come back as their next incarnations, min_member of them together",
    },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Unschedulable,
        when: "resumed, and no node could ever hold it",
    },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Scheduled,
        when: "resumed before min_member had left",
    },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Running,
        when: "resumed before those that run had left",
    },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Completed,
        when: "every replica had ended with exit code 0 before it was told to leave",
    },
    UnitTransition {
        from: &[UnitPhase::Suspended],
        to: UnitPhase::Failed,
        when: "every replica had ended, at least one with another exit code",
    },
    UnitTransition {
        from: ENDED,
        to: UnitPhase::Queued,
        when: "retried; what has failed, or all of it, comes back as its next incarnations",
    },
    UnitTransition {
        from: ENDED,
        to: UnitPhase::Unschedulable,
        when: "retried, and no node could ever hold it",
    },
    UnitTransition {
        from: &[
            UnitPhase::Queued,
            UnitPhase::Scheduling,
            UnitPhase::Unschedulable,
            UnitPhase::Scheduled,
            UnitPhase::Running,
            UnitPhase::Completed,
            UnitPhase::Failed,
            UnitPhase::Suspended,
        ],
        to: UnitPhase::Cancelled,
        when: "cancelled",
    },
];

/// Whether the table has a line from `from` to `to`; staying is always allowed.
pub fn may_become(from: UnitPhase, to: UnitPhase) -> bool {
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
