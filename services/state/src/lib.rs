//! The state service: every object, one revision counter, watches, leases, nodes and their agents' sessions.
//!
//! It decides nothing about placement. Everything durable is in the store; what lives here only, and does not
//! survive a restart, is soft: lease deadlines (full TTLs after a start), sessions and what agents reported in
//! them, measured use. Each kind of record that state itself writes has one writer task that puts whatever
//! waits into one commit: leases (`members`), node records (`nodes`), run status (`sessions`), and lines of the change log (`changes`).
//!
//! # Modules
//!
//! - `changes`: the change log: who changed what, and who was refused.
//! - `check`: refuses operations that readers of a record could not read.
//! - `config`: configuration of the state service.
//! - `error`: refusals as gRPC statuses.
//! - `feed`: passes commits of the store to agents' sessions.
//! - `freshness`: how fresh reads are, and whether this state may answer as the one that leads.
//! - `holders`: whether the holder of a lease whose connection has ended still listens.
//! - `identities`: the CA, who joined, who is revoked, and state's own leaf.
//! - `leader_watch`: says which state leads, as that changes.
//! - `logs`: passes the output of running units from agents to readers.
//! - `members`: leases of services.
//! - `metrics`: metrics of the state service.
//! - `nodes`: node records and registration.
//! - `paging`: page tokens.
//! - `processes`: asks agents which processes really run.
//! - `rights`: whether a caller may speak for what its call is about.
//! - `routes`: three methods that do not go through the generated servers.
//! - `serve`: starts the tasks of the service and stops them in order.
//! - `sessions`: agents' sessions: assignments, reports, heartbeats.
//! - `standby`: a state that follows, until it leads.
//! - `state_service`: the RPCs of the state service.
//! - `turns`: the turns of a state that shares its store with others.

mod changes;
mod check;
mod config;
mod error;
mod feed;
mod freshness;
mod holders;
mod identities;
mod leader_watch;
mod logs;
mod members;
mod metrics;
mod nodes;
mod paging;
mod processes;
mod rights;
mod routes;
mod serve;
mod sessions;
mod standby;
mod state_service;
mod turns;

pub use config::{Config, EngineKind, EtcdSection, PORT, TlsMode};
pub use error::Error;
pub use identities::{CaError, NewCa, OwnLeafError, make_new_ca};
pub use serve::{Deps, serve};
