//! The common parts of every godel service: configuration, telemetry, metrics, one stack for servers and one for
//! clients, leases, transactions as a pipeline, informers, conversions between wire and domain.
//!
//! Wire types stop here: services convert at their edge with [`godel_wire`], and `core` never names a generated
//! type. Nothing in this crate decides anything about units or nodes.
//!
//! # Modules
//!
//! - `address`: addresses of services.
//! - `client`: clients of services, with deadlines and retries.
//! - `clock`: the clocks of services.
//! - `config`: one loader of configuration for every service.
//! - `deps`: the dependencies of every service, which tests and `godel up` inject.
//! - `guests`: connections of listeners that do not speak gRPC, and which of them go first.
//! - `idle`: which connections go first, of all listeners.
//! - `informer`: follows the store: lists, watches, resumes.
//! - `leader`: the terms of a leader: its grant, and what it begins with.
//! - `lease`: leases, held and renewed.
//! - `member`: the identity of a process: how it joins, what it keeps, and how it stays known.
//! - `message`: the size limit of messages, and splitting larger ones.
//! - `metrics`: Prometheus metrics and their listener.
//! - `quiet`: rate limits of log lines that clients can cause.
//! - `room`: room for bytes that a server holds, shared over its clients.
//! - `security`: who is at the other end of a connection, and by whom a call is judged.
//! - `server`: the gRPC server: connections, limits, request ids.
//! - `service`: the skeleton of a service: start, serve, stop cleanly.
//! - `shutdown`: the stop token of the process.
//! - `status`: errors as gRPC statuses with details.
//! - `task`: named tasks whose panic ends the process.
//! - `telemetry`: logs and spans.
//! - `tls`: byte streams of connections: TCP, unix sockets, TLS.
//! - `txn`: transactions as a pipeline, several in flight.

// The section! macro names this crate by its outer name, also in here.
extern crate self as godel_kit;

pub mod address;
pub mod client;
pub mod clock;
pub mod config;
pub mod deps;
pub mod guests;
mod idle;
pub mod informer;
pub mod leader;
pub mod lease;
pub mod member;
pub mod message;
pub mod metrics;
pub mod quiet;
pub mod room;
pub mod security;
pub mod server;
pub mod service;
pub mod shutdown;
pub mod status;
pub mod task;
pub mod telemetry;
pub mod tls;
pub mod txn;

#[cfg(test)]
mod tests;

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use deps::Deps;
pub use tokio_util::sync::CancellationToken;
