//! Agents: what speaks for a node.
//!
//! One process hosts one real node ([`process`]: commands as child processes) or any number of simulated ones.
//! Each node has its own identity and its own gRPC session; the sessions are spread over a few connections, and
//! one task per connection drives all nodes of it: no task and no timer per node. The life of running units is
//! a pure state machine ([`life`]). Terminal statuses stay in an append-only journal ([`journal`]) until state
//! has acknowledged them as durable; everything else is rebuilt from the assignments after a restart.

pub mod config;
pub mod detect;
pub mod inventory;
pub mod journal;
pub mod life;
mod outbound;
pub mod process;
mod service;
mod session;
mod shard;
pub mod timers;
pub mod use_model;

pub use config::Config;
pub use inventory::NodeDef;
pub use service::{Deps, Error, Mode, Stats, serve};
