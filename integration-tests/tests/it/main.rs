//! Whole-system tests: real processes of the binary `godel`, real sled, real gRPC, real signals.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod agents;
mod bad_input;
mod best_effort;
mod contended;
mod crashes;
mod drains;
mod duplicates;
mod fencing;
mod kills;
mod life;
mod limits;
mod lost_nodes;
mod pauses;
mod preemption;
mod queues;
mod reconnects;
mod reflection;
mod schedulers;
mod shrunk_nodes;
mod suspension;
mod tidy;
mod trace;
