//! The one binary of godel, as a library so that tests can use its modules.
//!
//! `godel up` runs the whole control plane in one process, still over gRPC; `godel serve` runs one part; every
//! other verb is a client that knows one address. Tables go to standard output, talk to standard error, and
//! exit codes are those of [`exit`].
//!
//! # Modules
//!
//! - `args`: verbs and flags.
//! - `audit`: `godel audit`: the invariants on a live system.
//! - `bench`: `godel bench`: measurements.
//! - `bulk`: submission of many units on one stream.
//! - `client`: clients of the API, with deadlines and retries.
//! - `command`: what each verb does.
//! - `config`: one configuration for all parts.
//! - `exit`: exit codes, and how commands end.
//! - `local`: the control plane in this process, for `godel up`.
//! - `output`: tables, JSON and colours.
//! - `replay`: replays a trace through the API.
//! - `trace`: traces of tasks.
//! - `unit_file`: unit files, and files of queues, classes, budgets and reservations.
//! - `usage`: what processes of this machine have used.
//! - `views`: what commands show of units, nodes and queues.

pub mod args;
pub mod audit;
pub mod bench;
mod bulk;
pub mod client;
pub mod command;
pub mod config;
pub mod exit;
pub mod local;
pub mod output;
pub mod replay;
pub mod trace;
pub mod unit_file;
pub mod usage;
pub mod views;
