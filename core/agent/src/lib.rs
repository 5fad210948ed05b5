//! What the agent of a node decides: what starts, what stops, and what state is told of it. No I/O, no clock.
//!
//! A [`NodeAgent`] is one node: the life of its running units ([`NodeLife`]), its session with state ([`AgentSession`]), and how long it has been
//! without contact. Whoever drives it (the agents' service, the model of the whole control plane) hands it what state says and what happens on
//! the node, each with `now`, and does what it puts into the [`AgentOutbox`], in order. It is small and owns no thread, timer or buffer: thousands
//! live in one process. An agent that begins knows its journal ([`JournalKept`]) and what an earlier one has left running, and nothing else.
//!
//! # Modules
//!
//! - `actions`: what the agent says: statuses for state, and what is to be done for real.
//! - `agent`: the agent of one node: what its sessions with state mean for what runs there.
//! - `backoff`: the pause before a running unit is started again in place.
//! - `contact`: contact with state: what has to stop before state gives it away stops here.
//! - `ended_runs`: the newest running units that have ended and that state knows to have.
//! - `journal`: what an agent has to keep over its own end.
//! - `life`: the life of the running units of one node.
//! - `local_users`: as whom units may run on a node.
//! - `orders`: what state asks of a node.
//! - `principals`: whose units an agent runs that is not root.
//! - `reports`: what a node says to state, until state has it on its disk.
//! - `run`: one running unit on a node.
//! - `session`: the sessions of a node with state, and the store that they are of.
//! - `squeeze`: what gives way on a node without memory.
//! - `weights`: what the running units of a node ask of it.

mod actions;
mod agent;
mod backoff;
mod contact;
mod ended_runs;
mod journal;
mod life;
mod local_users;
mod orders;
mod principals;
mod reports;
mod run;
mod session;
mod squeeze;
mod weights;

pub use self::{
    actions::{AgentAction, AgentOutbox, HowEnded, RunStatus, StopOrder},
    agent::{AssignedRun, MayWait, NodeAgent, SessionBegins, SessionWelcomed},
    backoff::RestartBackoff,
    journal::{JournalEntry, JournalKept},
    life::{NodeLife, NotAwaiting},
    local_users::{
        AdministersBy, Administrator, AskedUser, LocalUser, LocalUserRefusal, LocalUserRow, UnitOwner,
        choose_user, container_user, user_table,
    },
    orders::{LeftRunning, RunKey, RunOrders, RunWeight, RunWork},
    principals::{ADMINISTRATOR, judge_principal},
    reports::{StatusReport, StatusReports},
    run::LocalRun,
    session::{AgentSession, SessionTerms, StoreChange},
    squeeze::{MemoryUse, to_squeeze},
    weights::{LiveWeights, PoolWeights},
};
