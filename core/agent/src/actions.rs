//! What the agent of a node says: statuses for state, and what is to be done for real.

use godel_base::time::Millis;
use godel_domain::{
    run_end::{RunEnd, RunEndReason},
    running_units::Phase,
};
use godel_membership::agent_admission::AssignmentRefusal;

use crate::RunKey;

/// What is to be said of one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunStatus {
    /// Which running unit.
    pub key: RunKey,
    /// Which life of it.
    pub incarnation: u32,
    /// Starting, running, or an end.
    pub phase: Phase,
    /// Of an end.
    pub exit_code: i32,
    /// Times that it was started again in place.
    pub restarts: u32,
    /// It was not started here, and why.
    pub refused: Option<AssignmentRefusal>,
    /// When its command ran, and why it is over.
    pub end: RunEnd,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HowEnded {
    /// As shells have it.
    pub exit_code: i32,
    /// Why and when, if it was a command.
    pub end: RunEnd,
    /// Nothing of it has run, for the sake of the node.
    pub refused: Option<AssignmentRefusal>,
}

/// What is to be done for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// Start it; answer with [`NodeLife::started`](crate::NodeLife::started) and, in the end,
    /// [`NodeLife::ended`](crate::NodeLife::ended).
    Start(RunKey, u32),
    /// Call [`NodeLife::restart`](crate::NodeLife::restart) later.
    Wait {
        /// Which running unit.
        key: RunKey,
        /// Which life of it.
        incarnation: u32,
        /// Which start of it.
        restarts: u32,
        /// How much later.
        after_ms: u64,
    },
    /// Stop it politely, by force after the grace; answer with [`NodeLife::ended`](crate::NodeLife::ended).
    Stop {
        /// Which running unit.
        key: RunKey,
        /// Which life of it.
        incarnation: u32,
        /// Between the polite and the forced end.
        grace_ms: u32,
        /// Why, for its end.
        reason: RunEndReason,
    },
    /// Call [`NodeLife::stop_noticed`](crate::NodeLife::stop_noticed) later.
    StopLater(StopOrder),
    /// Write it down: it must not be reported before it is safe.
    Keep(RunStatus),
    /// State has it on its disk: it need not be kept any longer.
    Forget(RunStatus),
    /// Write down that what is kept of the node is of this store from now on.
    KeepStore(u64),
    /// Call [`NodeAgent::check_contact`](crate::NodeAgent::check_contact) then, before anything else that happens then.
    LookAt(Millis),
}

/// What is to be done, in order. It is done after each event, and what comes of it are further events.
pub type AgentOutbox = Vec<AgentAction>;

/// What state says of a running unit that has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Which running unit.
    pub key: RunKey,
    /// Which life of it.
    pub incarnation: u32,
    /// Between its polite and its forced end.
    pub grace_ms: u32,
    /// It goes on for so long; 0: it is stopped at once.
    pub notice_ms: u32,
}
