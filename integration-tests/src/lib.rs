//! The harness of the whole-system tests: a cluster of real processes of the one binary on loopback
//! addresses of its own, with faults on demand.
//!
//! The tests themselves are in `scenarios`, and in `tests/it` where only Rust can say them. What this crate keeps apart on purpose: [`check`] and [`api`]
//! share no code with the services they judge.
#![allow(
    clippy::missing_panics_doc,
    reason = "a harness of tests panics when something is not as it must be"
)]

pub mod api;
pub mod check;
pub mod cluster;
pub mod engine;
pub mod flood;
pub mod load;
pub mod machine;
pub mod process;
pub mod proxy;
pub mod reflect;
pub mod scenario;
pub mod secured;
pub mod session;
pub mod settings;
pub mod strict;
pub mod submit;
pub mod trace;
pub mod wait;
