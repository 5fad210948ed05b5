//! The common parts of all clients of the control plane: `godel`, its benchmarks, and tests of the whole system.
//!
//! A client knows one address, that of state; the other services are found there. Tables go to standard output, talk to
//! standard error, and exit codes are those of [`exit`].
//!
//! # Modules
//!
//! - `access`: how a client reaches a cluster.
//! - `administrator`: whoever runs state on this machine.
//! - `audit`: `godel audit`: the invariants on a live system.
//! - `bulk`: submission of many units on one stream.
//! - `changes`: the change log, page by page and as it grows.
//! - `client`: clients of the API, with deadlines and retries.
//! - `context`: the clusters that a person uses, and how each is reached.
//! - `doctor`: `godel doctor`: who can reach a cluster, and how callers prove their identity.
//! - `exit`: exit codes, and how commands end.
//! - `history`: pages of ended units.
//! - `output`: tables, JSON and colours.
//! - `pages`: lists that servers give out page by page.
//! - `process`: start and end of a program.
//! - `renewal`: keeps the token and the roots of a context from growing old.
//! - `replay`: replays a trace through the API.
//! - `reschedule`: policies, plans and movements of the rescheduler, and files of traffic between units.
//! - `trace`: traces of tasks.
//! - `unit_file`: unit files, and files of queues, classes, budgets and reservations.
//! - `usage`: CPU time and memory of processes on this machine.
//! - `user`: who runs this process.
//! - `views`: views of units, nodes and queues for commands.
//! - `yarn`: applications and queues of the YARN adapter.

pub mod access;
pub mod administrator;
pub mod audit;
pub mod bulk;
pub mod changes;
pub mod client;
pub mod context;
pub mod doctor;
pub mod exit;
pub mod history;
pub mod output;
pub mod pages;
pub mod process;
pub mod renewal;
pub mod replay;
pub mod reschedule;
pub mod trace;
pub mod unit_file;
pub mod usage;
pub mod user;
pub mod views;
pub mod yarn;
