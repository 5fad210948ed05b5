//! The state service over real gRPC: every server is on port 0, every wait has a predicate and a time-out.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "tests")]

mod changes;
mod etcd;
mod expiry;
mod failures;
mod harness;
mod hidden;
mod holders;
mod identity;
mod joining;
mod kept;
mod large;
mod leader_watch;
mod leases;
mod many;
mod nodes;
mod permissions;
mod processes;
mod records;
mod restores;
mod rights;
mod sessions;
mod standbys;
mod tls;
mod usage;
mod watches;
