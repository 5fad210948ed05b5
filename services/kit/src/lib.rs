//! What every godel service needs once: configuration, telemetry, metrics, one stack for servers and one for
//! clients, leases, transactions as a pipeline, followers of the watch, conversions between wire and domain.
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
//! - `crash`: named places where a test may kill the process.
//! - `deps`: what every service gets from outside, so that tests and `godel up` choose it.
//! - `fake`: a double of the state service for tests.
//! - `informer`: a follower of the store: lists, watches, resumes.
//! - `lease`: leases, held and renewed.
//! - `message`: how large a message may be, and cutting what is larger.
//! - `metrics`: Prometheus metrics and their listener.
//! - `quiet`: log lines that strangers can cause, limited in rate.
//! - `server`: the gRPC server: connections, limits, request ids.
//! - `service`: the skeleton of a service: start, serve, end in order.
//! - `shutdown`: the stop token of the process.
//! - `status`: errors as gRPC statuses with details.
//! - `task`: named tasks whose panic ends the process.
//! - `telemetry`: logs and spans.
//! - `txn`: transactions as a pipeline, several under way.

// The section! macro names this crate by its outer name, also in here.
extern crate self as godel_kit;

pub mod address;
pub mod client;
pub mod clock;
pub mod config;
pub mod crash;
pub mod deps;
#[cfg(test)]
mod fake;
pub mod informer;
pub mod lease;
pub mod message;
pub mod metrics;
pub mod quiet;
pub mod server;
pub mod service;
pub mod shutdown;
pub mod status;
pub mod task;
pub mod telemetry;
pub mod txn;

pub use deps::Deps;
pub use tokio_util::sync::CancellationToken;
