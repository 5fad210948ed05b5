//! Whole-system tests: real processes of the binary `godel`, real sled, real gRPC, real signals.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod addresses;
mod agents;
mod bad_input;
mod containers;
mod contended;
mod coverage;
mod crashes;
mod duplicates;
mod fencing;
mod floods;
mod front_door;
mod keepers;
mod kills;
mod logs;
mod machines;
mod overload;
mod plain;
mod processes;
mod queues;
mod readme;
mod reconnects;
mod reflection;
mod rescheduler;
mod restores;
mod schedulers;
mod sessions;
mod task_groups;
mod telemetry;
mod tidy;
mod trace;
mod unreadable;
mod usage;
mod verbs;
mod volumes;
