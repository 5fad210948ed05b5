//! Every decision of godel, as plain functions and owned state.
//!
//! No tokio, no clock, no input or output, no globals, no generated type: a decision is a function of owned
//! state, its input, `now` and a seed. Services convert at their edge and move bytes.

pub mod admission;
pub mod binder;
pub mod budget;
pub mod change;
pub mod cluster;
pub mod decision;
pub mod demand;
pub mod dispatcher;
pub mod drain;
pub mod duration;
pub mod explain;
pub mod framework;
pub(crate) mod gang;
pub mod hold;
pub mod ids;
pub mod invariants;
pub mod leases;
pub mod lifecycle;
pub mod losses;
#[cfg(test)]
mod model;
pub mod node;
pub mod overload;
pub mod partition;
pub mod pause;
pub mod place;
pub mod plugins;
pub mod preempt;
pub mod quantity;
pub mod quarantine;
pub mod queue;
pub mod recheck;
pub mod reservation;
pub mod resources;
pub mod rows;
pub mod scenarios;
pub mod scheduler;
pub mod shuffle;
pub mod squeeze;
pub mod sub_cluster;
pub mod time;
pub mod unit;
pub mod unreadable;
pub mod usage;
pub mod words;
