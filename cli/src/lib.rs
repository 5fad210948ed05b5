//! The one binary of godel, as a library so that tests can use its modules.
//!
//! `godel up` runs the whole control plane in one process, still over gRPC; `godel serve` runs one part; every
//! other verb is a client that knows one address. Tables go to standard output, talk to standard error, and
//! exit codes are those of [`exit`].

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
