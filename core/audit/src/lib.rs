//! The invariants I1–I10 as predicates over plain lists.
//!
//! They share no arithmetic with the parts that they judge: rooms are summed from the rows alone, histories are
//! replayed by the few lines of [`world`], a unit is tried on every node in turn. `godel audit` calls them on a
//! live system, tests call them on what they recorded. Nothing here decides anything.
//!
//! # Modules
//!
//! - `agents`: I3, what agents run.
//! - `budgets`: I6, disruption budgets.
//! - `compaction`: I3, what is compacted.
//! - `history`: I4 and I6, and what I1 and I3 say of the past.
//! - `ledger`: I2, what clients were told.
//! - `local`: I3, what runs on the machine of the audit.
//! - `moved`: I6, what becomes of moves.
//! - `movements`: I6, running units that move to other nodes.
//! - `movers`: I5, what replicas that move count for in their queue.
//! - `moves`: units that change their queue.
//! - `order`: I10, the order of queues on full nodes.
//! - `owners`: I5, what owners and application masters take of queues.
//! - `pending`: I8, units that could be placed.
//! - `preemptions`: I6, victims.
//! - `processes`: I3, what really runs.
//! - `queues`: I5, usage and maxima of queues.
//! - `room`: I1, room on nodes.
//! - `same`: I7 and I9, equal histories.
//! - `surges`: I3, replicas that start before those stop that they replace.
//! - `targets`: I6, what is bound where others move to.
//! - `terms`: what units keep apart from, and together with.
//! - `turns`: turns of gangs.
//! - `unreadable`: records that could not be read, and what they leave unjudged.
//! - `verdict`: what became of checking one invariant.
//! - `world`: all records as plain maps, and the plainest way to apply commits to them.

mod agents;
mod budgets;
mod compaction;
mod history;
mod ledger;
mod local;
mod moved;
mod movements;
mod movers;
mod moves;
mod order;
mod owners;
mod pending;
mod preemptions;
mod processes;
mod queues;
mod room;
mod same;
mod surges;
mod targets;
mod terms;
#[cfg(test)]
mod tests;
mod turns;
mod unreadable;
mod verdict;
pub mod world;

use std::fmt;

use godel_base::ids::{NodeId, Revision, RunningUnitId};
use godel_domain::running_units::Phase;

pub use self::{
    local::LocalProcess,
    order::{HandedOut, Service},
    pending::{Before, Misfit, Scan, Witness, held_up},
    processes::{NodeProcesses, Orphan, OrphanUnit, RunProcesses},
    room::NodeSums,
    unreadable::UnreadableRecord,
    verdict::{InvariantReport, InvariantVerdict},
    world::{Commit, World, follows},
};

/// An invariant of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// No node or device is over-committed, and no domain holds what a unit keeps out of it, at any revision.
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
    /// What comes free goes to queues by their order.
    I10,
}

impl Invariant {
    /// All of them, in order.
    pub const ALL: [Self; 10] =
        [Self::I1, Self::I2, Self::I3, Self::I4, Self::I5, Self::I6, Self::I7, Self::I8, Self::I9, Self::I10];

    /// What it says, in one line.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::I1 => {
                "no node and no device is over-committed, and no domain holds what a unit keeps out of it, at any revision"
            }
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
            Self::I10 => "what comes free goes to queues by their order",
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
    /// What really runs on the nodes that run processes.
    pub processes: Vec<NodeProcesses>,
    /// What runs on the machine of the audit, whoever has started it.
    pub local: Vec<LocalProcess>,
    /// Why pending units cannot be judged now; `None` when nothing is in flight.
    pub busy: Option<String>,
    /// How the dispatcher serves queues, as far as that is known.
    pub service: Service,
    /// Records and operations that could not be read, and are in none of the above.
    pub unreadable: Vec<UnreadableRecord>,
}

/// What a watch delivered, and the state on which it rests.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// First revision that could be asked for.
    pub floor: Revision,
    /// What was there before it.
    pub start: Start,
    /// Commits as they came.
    pub commits: Vec<Commit>,
    /// The watch said that everything up to here was delivered.
    pub up_to: Revision,
}

/// The state on which a history rests.
#[derive(Clone, Debug, Default)]
pub enum Start {
    /// No records: the store began with revision 1.
    #[default]
    Empty,
    /// Records as they were at some revisions from `floor - 1` on. With the commits up to the world's revision they are the
    /// state at that revision.
    Kept(Box<World>),
    /// It could not be read: why.
    Unknown(String),
}

impl History {
    /// Whether the state on which it rests is known, so that each commit can be judged.
    pub fn has_start(&self) -> bool {
        match self.start {
            Start::Empty => self.floor.0 <= 1,
            Start::Kept(_) => true,
            Start::Unknown(_) => false,
        }
    }

    /// Commits up to here make the state from which on each commit is judged.
    pub(crate) fn judged_after(&self) -> Revision {
        match &self.start {
            Start::Kept(world) => world.revision,
            Start::Empty | Start::Unknown(_) => Revision(self.floor.0.max(1) - 1),
        }
    }

    /// From when on commits were judged, in words; nothing where that is from the first one on.
    pub fn since(&self) -> String {
        match self.judged_after() {
            Revision(0) => String::new(),
            after => format!(" from revision {} on, where the kept history begins", after.0 + 1),
        }
    }

    /// Why commits could not be judged one by one; `None` if they were.
    pub fn gap(&self) -> Option<String> {
        let why = match &self.start {
            _ if self.has_start() => return None,
            Start::Unknown(why) => why,
            Start::Empty | Start::Kept(_) => "it was not asked for",
        };
        Some(format!("the state at revision {}, where the history begins, is not known: {why}", self.floor))
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
    /// The running unit.
    pub id: RunningUnitId,
    /// Its phase.
    pub phase: Phase,
}

/// Checks every invariant. Pure; linear in the rows and commits, I8 linear in shapes × nodes.
pub fn check_all(evidence: &Evidence) -> Vec<InvariantReport> {
    let left = unreadable::left_out(evidence);
    let evidence = &*left.evidence;
    let replay = history::replay(&evidence.history, &evidence.listed, &left.nodes, &evidence.service);
    let findings = [
        room::check(&evidence.listed, &evidence.history, &replay, &left),
        ledger::check(evidence),
        agents::check(evidence, &replay, &left),
        history::check_first_bindings(&evidence.history, &replay),
        queues::check(evidence),
        history::check_evictions(&evidence.listed, &evidence.history, &replay),
        same::check_watch(evidence, &replay),
        pending::check(evidence),
        same::check_same_state(&evidence.listed, &evidence.listed_again),
        order::check(&evidence.history, &evidence.service, &replay),
    ];
    let reports = Invariant::ALL.into_iter().zip(findings);
    reports.map(|(invariant, findings)| left.report(invariant, findings)).collect()
}
