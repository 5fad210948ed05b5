//! Pure rules over who is part of a cluster: which member leads and answers, which agent speaks for a node, what an agent
//! starts, and how a node fares.
//!
//! A rule is a function of what is reported, `now` and its configuration; it knows no queue, no cluster, and does no input or output.
//!
//! # Modules
//!
//! - `agent_admission`: what an agent checks of an assignment before it starts it.
//! - `front_door`: which member answers a call that comes to state.
//! - `leases`: leases in force, judged on one monotonic clock.
//! - `load_window`: percentiles of a node's use, as its agent measures them.
//! - `node_absence`: when the record of a node goes by itself.
//! - `node_failures`: when it is a node's fault that what is placed there fails.
//! - `node_identity`: who speaks for a node when several agents claim it.
//! - `node_usage`: smoothed use of a node's guaranteed running units.
//! - `quarantine`: when a node whose agent refuses assignments gets nothing more for a while.
//! - `state_choice`: which of several states a client calls.
//! - `succession`: when a state that follows takes the place of the one that leads.

pub mod agent_admission;
pub mod front_door;
pub mod leases;
pub mod load_window;
pub mod node_absence;
pub mod node_failures;
pub mod node_identity;
pub mod node_usage;
pub mod quarantine;
pub mod state_choice;
pub mod succession;
