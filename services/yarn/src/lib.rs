//! The YARN adapter: unmodified YARN clients submit applications, and godel schedules them.
//!
//! Clients reach it by Hadoop RPC, by the REST API of YARN's ResourceManager and by gRPC. All three are faces of one
//! [`ResourceManager`].
//!
//! # Modules
//!
//! - `fake`: a manager for tests of the faces.
//! - `hadoop`: the Hadoop RPC faces: what unmodified clients, masters and administrators call.
//! - `launcher`: how masters are started and stopped on their nodes.
//! - `manager`: what every face asks of the adapter, and why it refuses.
//! - `reports`: what is shown of applications, attempts, containers, nodes and queues.

#[cfg(test)]
mod fake;
pub mod hadoop;
pub mod launcher;
pub mod manager;
pub mod reports;

pub use manager::ResourceManager;
