//! Whole-system tests: real processes of the binary `godel`, real sled, real gRPC, real signals.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod addresses;
mod agents;
mod bad_input;
mod budgets;
mod containers;
mod contended;
mod coverage;
mod crashes;
mod duplicates;
mod evictions;
mod fencing;
mod floods;
mod front_door;
mod gangs;
mod keepers;
mod kills;
mod logs;
mod machines;
mod overload;
mod processes;
mod quarantine;
mod queues;
mod reconnects;
mod reflection;
mod reservations;
mod restores;
mod schedulers;
mod sessions;
mod telemetry;
mod tidy;
mod trace;
mod unreadable;
mod usage;
mod verbs;
mod volumes;
