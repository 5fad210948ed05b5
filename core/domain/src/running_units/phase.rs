//! Where a running unit is in its life, and what the reports of agents make of that.

use std::{collections::BTreeMap, fmt};

/// Where a running unit is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Without a node.
    #[default]
    Pending,
    /// On a node, nothing heard from its agent yet.
    Bound,
    /// Being started.
    Starting,
    /// Running.
    Running,
    /// Ended with exit code 0.
    Succeeded,
    /// Ended with another exit code.
    Failed,
    /// Ended because it was told to.
    Stopped,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Bound,
        Self::Starting,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Stopped,
    ];

    /// Holds room on a node.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Bound | Self::Starting | Self::Running)
    }

    /// Over, for this incarnation.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Stopped)
    }

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Bound => "Bound",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Stopped => "Stopped",
        }
    }
}

/// How far a running unit is within its incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Where it is in its life.
    pub phase: Phase,
    /// Times that it was started again in place.
    pub restarts: u32,
}

impl Progress {
    /// [`TRANSITIONS`] as a rule: forward only unless it was started again, an end is final, and what comes
    /// twice or late changes nothing.
    pub fn may_become(self, next: Self) -> bool {
        if !self.phase.is_live() || next.phase <= Phase::Bound {
            return false;
        }
        // An end counts whatever the counter says: an agent that has lost its memory counts from 0.
        next.phase.is_ended()
            || next.restarts > self.restarts
            || (next.restarts == self.restarts && next.phase > self.phase)
    }

    /// What it is after a report that may follow: the counter never goes back.
    #[inline]
    pub fn followed_by(self, next: Self) -> Self {
        Self { phase: next.phase, restarts: self.restarts.max(next.restarts) }
    }
}

/// One line of the transition table of agent reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Phases that it leaves.
    pub from: &'static [Phase],
    /// Phases that it enters.
    pub to: &'static [Phase],
    /// What the report's count of restarts must be, compared with the row's.
    pub restarts: Restarts,
    /// What makes it happen.
    pub when: &'static str,
}

/// A report's count of restarts compared with the row's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarts {
    /// The same.
    Same,
    /// A higher one.
    Higher,
    /// Whatever it is.
    Any,
}

/// Every change that an agent's report of the current incarnation makes to a row; all others change nothing.
pub const TRANSITIONS: &[Transition] = &[
    Transition {
        from: &[Phase::Bound],
        to: &[Phase::Starting],
        restarts: Restarts::Same,
        when: "its agent has it",
    },
    Transition {
        from: &[Phase::Bound, Phase::Starting],
        to: &[Phase::Running],
        restarts: Restarts::Same,
        when: "it runs",
    },
    Transition {
        from: &[Phase::Bound, Phase::Starting, Phase::Running],
        to: &[Phase::Starting, Phase::Running],
        restarts: Restarts::Higher,
        when: "it ended by itself and is started again in place, same incarnation",
    },
    Transition {
        from: &[Phase::Bound, Phase::Starting, Phase::Running],
        to: &[Phase::Succeeded, Phase::Failed],
        restarts: Restarts::Any,
        when: "it ended by itself and is not started again",
    },
    Transition {
        from: &[Phase::Bound, Phase::Starting, Phase::Running],
        to: &[Phase::Stopped],
        restarts: Restarts::Any,
        when: "it ended because it was told to, because its node was without contact for too long, or for the sake of its node nothing of it was started",
    },
];

/// A change of a running unit's phase, as the coverage of tests names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhaseChange {
    /// The phase that it leaves.
    pub from: Phase,
    /// The phase that it enters.
    pub to: Phase,
    /// It was started again in place: the count of restarts has risen.
    pub again: bool,
}

impl PhaseChange {
    /// Returns every change that there is, with what makes it happen: the binding, [`TRANSITIONS`], and the return as the next
    /// incarnation.
    pub fn all() -> BTreeMap<Self, &'static str> {
        let bind = Self { from: Phase::Pending, to: Phase::Bound, again: false };
        let mut all = BTreeMap::from([(bind, "the binder gives it a node")]);
        for line in TRANSITIONS {
            let again = line.restarts == Restarts::Higher;
            let pairs = line.from.iter().flat_map(|from| line.to.iter().map(move |to| (*from, *to)));
            all.extend(pairs.map(|(from, to)| (Self { from, to, again }, line.when)));
        }
        let ended = Phase::ALL.into_iter().filter(|phase| phase.is_ended());
        let requeue = |from| Self { from, to: Phase::Pending, again: false };
        all.extend(ended.map(|from| (requeue(from), "it comes back as its next incarnation")));
        all
    }

    /// Returns the change between two states of a running unit; `None` if its phase and its restarts stay.
    pub fn between(before: Progress, after: Progress) -> Option<Self> {
        let again = after.phase.is_live() && after.restarts > before.restarts;
        let is_change = again || before.phase != after.phase;
        is_change.then_some(Self { from: before.phase, to: after.phase, again })
    }
}

/// `running-succeeded`, or `running-starting-again`.
impl fmt::Display for PhaseChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, again } = self;
        let pair = format!("{}-{}", from.name(), to.name()).to_lowercase();
        write!(f, "{pair}{}", if *again { "-again" } else { "" })
    }
}

/// The transition table as Markdown, for the docs.
pub fn render_transitions() -> String {
    let names = |phases: &[Phase]| phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(", ");
    let mut out = "| from | to | restarts | when |\n|---|---|---|---|\n".to_owned();
    for line in TRANSITIONS {
        let restarts = match line.restarts {
            Restarts::Same => "same",
            Restarts::Higher => "higher",
            Restarts::Any => "any",
        };
        out += &format!("| {} | {} | {restarts} | {} |\n", names(line.from), names(line.to), line.when);
    }
    out
}
