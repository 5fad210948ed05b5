//! The invariants I1–I9 as predicates over plain lists.
//!
//! They share no arithmetic with the parts that they judge: rooms are summed from the rows alone, histories are
//! replayed by the few lines of [`world`], a unit is tried on every node in turn. `godel audit` calls them on a
//! live system, tests call them on what they recorded. Nothing here decides anything.

mod agents;
mod budgets;
mod history;
mod ledger;
mod pending;
mod preemptions;
mod queues;
mod room;
mod same;
#[cfg(test)]
mod tests;
mod turns;
pub mod world;

use std::fmt;

use crate::{
    ids::{NodeId, Revision, UnitId},
    rows::Phase,
};

pub use self::{
    pending::{Before, Misfit, Scan, Witness, held_up},
    room::Usage,
    world::{Commit, World},
};

/// Most violations that one report names; the rest is counted.
const N_NAMED_MAX: usize = 20;

/// An invariant of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// No node or device is over-committed, at any revision.
    I1,
    /// What was acknowledged is never lost.
    I2,
    /// One current incarnation per ordinal, placed at most once; agents run only those.
    I3,
    /// The first binding of a unit has at least `min_member` running units.
    I4,
    /// Queue usage is the sum of what is bound.
    I5,
    /// Every eviction has a legal reason.
    I6,
    /// Revisions strictly rise; a watch misses nothing and shows nothing twice.
    I7,
    /// What could be placed is placed in the end.
    I8,
    /// Same events, same state.
    I9,
}

impl Invariant {
    /// All of them, in order.
    pub const ALL: [Self; 9] =
        [Self::I1, Self::I2, Self::I3, Self::I4, Self::I5, Self::I6, Self::I7, Self::I8, Self::I9];

    /// What it says, in one line.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::I1 => "no node and no device is over-committed, at any revision",
            Self::I2 => "what was acknowledged is never lost",
            Self::I3 => {
                "each ordinal has one current incarnation, placed at most once; agents run only those"
            }
            Self::I4 => "a unit's first binding has at least min_member running units, or there is none",
            Self::I5 => "usage of a queue is the sum of its bound running units and below its maximum",
            Self::I6 => "every eviction has a legal reason",
            Self::I7 => "revisions strictly rise; a watch misses nothing and shows nothing twice",
            Self::I8 => "a pending unit that could be placed is placed in the end",
            Self::I9 => "the same events give the same state",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Everything that an audit looked at.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// A list, brought to `revision` by the changes committed after it.
    pub listed: World,
    /// A second, independent list, brought to the same revision.
    pub listed_again: World,
    /// Earlier looks. What has moved since is no fault of I3 or I8; `None` judges the moment.
    pub before: Option<Before>,
    /// The watch from its floor to the same revision.
    pub history: History,
    /// Acknowledgements that a submitter wrote down; `None` when there is no ledger.
    pub ledger: Option<Vec<Acknowledged>>,
    /// What agents say.
    pub agents: Vec<AgentReport>,
    /// Why pending units cannot be judged now; `None` when nothing is in flight.
    pub busy: Option<String>,
}

/// What a watch delivered.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// First revision that could be asked for.
    pub floor: Revision,
    /// Commits as they came.
    pub commits: Vec<Commit>,
    /// The watch said that everything up to here was delivered.
    pub up_to: Revision,
}

impl History {
    /// Whether nothing happened before the first commit of this history.
    pub fn is_complete(&self) -> bool {
        self.floor.0 <= 1
    }
}

/// An acknowledged submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Of the unit.
    pub uid: String,
    /// `name` or `namespace/name`.
    pub name: String,
    /// Revision that the acknowledgement named.
    pub revision: Revision,
}

/// What the agent of one node says.
#[derive(Clone, Debug, Default)]
pub struct AgentReport {
    /// Its node.
    pub node: NodeId,
    /// Name of the node.
    pub name: String,
    /// Its session is open.
    pub connected: bool,
    /// Running units that it has.
    pub running: Vec<AgentRun>,
}

/// A running unit as its agent sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRun {
    /// The unit.
    pub unit: UnitId,
    /// Which replica.
    pub ordinal: u32,
    /// Which life of it.
    pub incarnation: u32,
    /// Where it is in this life.
    pub phase: Phase,
}

/// What became of checking one invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which.
    pub invariant: Invariant,
    /// What was looked at, and what could not be.
    pub checked: String,
    /// Violations by name, the first ones only.
    pub violations: Vec<String>,
    /// All violations, those not named included.
    pub n_violations: usize,
}

impl Report {
    /// It holds.
    pub fn holds(&self) -> bool {
        self.n_violations == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, checked, violations, n_violations } = self;
        if self.holds() {
            return write!(f, "{invariant} ok  {checked}");
        }
        write!(f, "{invariant} FAILED  {n_violations} violations ({})", invariant.sentence())?;
        for violation in violations {
            write!(f, "\n   {violation}")?;
        }
        if *n_violations > violations.len() {
            write!(f, "\n   and {} more", n_violations - violations.len())?;
        }
        Ok(())
    }
}

/// Checks every invariant. Pure; linear in the rows and commits, I8 linear in shapes × nodes.
pub fn check_all(evidence: &Evidence) -> Vec<Report> {
    let replay = history::replay(&evidence.history, &evidence.listed);
    vec![
        room::check(&evidence.listed, &evidence.history, &replay),
        ledger::check(&evidence.listed, &evidence.history, evidence.ledger.as_deref()),
        agents::check(evidence, &replay),
        replay.first_bindings.report(Invariant::I4),
        queues::check(evidence),
        history::check_evictions(&evidence.listed, &replay),
        same::check_watch(evidence, &replay),
        pending::check(evidence),
        same::check_same_state(&evidence.listed, &evidence.listed_again),
    ]
}

/// Collects violations of one invariant, bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    checked: String,
    named: Vec<String>,
    n: usize,
}

impl Findings {
    pub(crate) fn add(&mut self, violation: impl FnOnce() -> String) {
        if self.named.len() < N_NAMED_MAX {
            self.named.push(violation());
        }
        self.n += 1;
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        for violation in &other.named {
            self.add(|| violation.clone());
        }
        self.n += other.n - other.named.len();
    }

    pub(crate) fn checked(&mut self, text: String) {
        self.checked = text;
    }

    pub(crate) fn report(&self, invariant: Invariant) -> Report {
        Report {
            invariant,
            checked: self.checked.clone(),
            violations: self.named.clone(),
            n_violations: self.n,
        }
    }
}
