//! Agents: they register nodes, report on them and run what is bound to them.
//!
//! One process hosts one real node ([`runtime`]: commands and containers, each with a [`keeper`] of its own) or any number of simulated ones.
//! Each node has its own identity and its own gRPC session; the sessions are spread over a few connections, and
//! one task per connection drives all nodes of it: no task and no timer per node. What the agent of a node decides, it decides in
//! `core/agent`, without waiting ([`godel_core_agent`]). Terminal statuses stay in an append-only journal ([`journal`]) until state
//! has acknowledged them as durable. Commands go on without the agent, and the next one finds them by the directories of their
//! runs; everything else is rebuilt from the assignments after a restart.
//!
//! # Modules
//!
//! - `bandwidth`: what running units use of network and memory bandwidth, and what they are kept to.
//! - `cgroup`: control groups of running units, of version 1 or 2.
//! - `claim`: the state directory and the node that are one agent's alone.
//! - `condition`: what keeps a real node from starting anything.
//! - `config`: configuration of an agent process.
//! - `detect`: the hardware of this machine, from procfs, sysfs and NVIDIA's library.
//! - `docker`: the Engine API of Docker, for running units that have an image.
//! - `identity`: the uid of a node, made once for each installation.
//! - `inventory`: the nodes that the process hosts.
//! - `journal`: statuses of ended running units, on disk until state has acknowledged them.
//! - `keeper`: the process that keeps one running command, with or without an agent.
//! - `logs`: what running units write: files of bounded size, written and read.
//! - `measure`: what a real machine and its running units use.
//! - `outbound`: the send queue of a node's stream.
//! - `procfs`: processes of this machine, as `/proc` shows them.
//! - `runtime`: runs running units: simulated, or as processes and containers of this machine.
//! - `service`: starts the tasks of an agent process.
//! - `session`: the messages of a node to state, and opening its session.
//! - `shard`: one connection and all nodes that share it.
//! - `timers`: one queue of timers for a connection's task.
//! - `use_model`: modelled usage of a simulated node.
//! - `volumes`: directories that a node keeps for replicas.
//! - `yarn`: YARN containers, which masters start on the node.

pub mod bandwidth;
pub mod cgroup;
pub mod claim;
mod condition;
pub mod config;
pub mod detect;
mod docker;
pub mod identity;
pub mod inventory;
pub mod journal;
pub mod keeper;
pub mod logs;
mod measure;
mod outbound;
mod procfs;
pub mod runtime;
mod service;
mod session;
mod shard;
pub mod timers;
pub mod use_model;
pub mod volumes;
mod yarn;

pub use config::{Config, LocalUserConfig, UnitsAtStop, UseDocker, YarnConfig};
pub use inventory::NodeDef;
pub use runtime::process::strays::{StartedHere, started_here};
pub use service::{Deps, Error, Mode, Stats, own_keeper, serve};
