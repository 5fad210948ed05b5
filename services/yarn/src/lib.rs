//! The YARN adapter: unmodified YARN clients submit applications, and godel schedules them.
//!
//! Clients reach it by Hadoop RPC, by the REST API of YARN's ResourceManager and by gRPC. All three are faces of one
//! [`ResourceManager`]. One of several adapters leads (lease `yarn`): it has every application in memory and in state, and runs it as a
//! scheduling unit through the dispatcher. A standby follows the store and answers with the address of the leader. What it decides, the leader of
//! `core/yarn-leader` decides without waiting.
//!
//! # Modules
//!
//! - `callers`: who calls the faces.
//! - `config`: configuration of the YARN adapter.
//! - `engine`: the adapter at work: what faces call, what is followed, and how what the leader wants done is carried out.
//! - `grpc`: YarnService, for the command line and for tools of our own.
//! - `hadoop`: the Hadoop RPC faces: what unmodified clients, masters and administrators call.
//! - `keys`: the keys that sign YARN's tokens.
//! - `launcher`: how masters are started and stopped on their nodes.
//! - `manager`: what every face asks of the adapter.
//! - `metrics`: counters of the YARN adapter.
//! - `record`: applications as records.
//! - `rest`: `/ws/v1/cluster`, as YARN's ResourceManager serves it.
//! - `rules`: what the adapter reads of YARN's own configuration: who may do what, and which queues users go to.
//! - `service`: the service: its lease, its engine and its faces.
//! - `unit`: applications as messages of scheduling units.

mod callers;
mod config;
mod engine;
pub mod grpc;
pub mod hadoop;
mod keys;
pub mod launcher;
pub mod manager;
mod metrics;
mod record;
pub mod rest;
mod rules;
mod service;
mod unit;

pub use callers::YarnCallers;
pub use config::Config;
pub use engine::Manager;
pub use godel_hadoop::person_token::PersonTokenFile;
pub use godel_kit::{Deps, service::Error};
pub use keys::KeyRing;
pub use manager::{ResourceManager, YarnCaller};
pub use service::{FaceContext, LEASE, serve, serve_with};

#[cfg(test)]
mod tests;
