//! What every godel service needs once: configuration, telemetry, metrics, one stack for servers and one for
//! clients, leases, transactions as a pipeline, followers of the watch, conversions between wire and domain.
//!
//! Wire types stop here: services convert at their edge with [`convert`], and `core` never names a generated
//! type. Nothing in this crate decides anything about units or nodes.

// The section! macro names this crate by its outer name, also in here.
extern crate self as godel_kit;

pub mod address;
pub mod client;
pub mod clock;
pub mod config;
pub mod convert;
pub mod crash;
pub mod deps;
#[cfg(test)]
mod fake;
pub mod follow;
pub mod lease;
pub mod message;
pub mod metrics;
pub mod quiet;
pub mod server;
pub mod shutdown;
pub mod status;
pub mod task;
pub mod telemetry;
pub mod txn;

pub use convert::{from_proto, to_proto};
pub use deps::Deps;
pub use tokio_util::sync::CancellationToken;
