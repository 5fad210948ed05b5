//! The dispatcher over gRPC, with the real state service on the memory engine. Schedulers, binder and agents
//! are played by the tests.

#![allow(clippy::unwrap_used, reason = "tests")]

mod changes;
mod dispatch;
mod overload;
mod preempt;
mod queue_records;
mod queue_usage;
mod submit;
mod world;
