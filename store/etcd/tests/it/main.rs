//! The client with a real etcd.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod operator;
mod secured;
