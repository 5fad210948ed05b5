//! The one binary of godel, as a library so that tests can use its modules.
//!
//! `godel up` runs the whole control plane in one process, still over gRPC; `godel serve` runs one part; every
//! other verb is a client that knows one address. Tables go to standard output, talk to standard error, and
//! exit codes are those of [`godel_client::exit`].
//!
//! # Modules
//!
//! - `args`: verbs and flags.
//! - `command`: the implementation of each verb.
//! - `config`: one configuration for all services.
//! - `local`: the control plane in this process, for `godel up`.

pub mod args;
pub mod command;
pub mod config;
pub mod local;
