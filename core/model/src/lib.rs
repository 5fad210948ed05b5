//! For tests and measurements: the model of the whole control plane in one thread, running the real deciders, and fixed
//! scenarios of work.
//!
//! # Modules
//!
//! - `mixed`: units of any size on nodes that are full all the time.
//! - `model`: the whole control plane in one thread, with a played store, random requests and faults.
//! - `reached`: what the model reaches and no scenario provokes from outside.
//! - `scenarios`: fixed pieces of work for measuring the decisions.
//! - `shares`: what queues get of nodes that are full all the time.
//! - `simulation`: the deciders in simulated time, with any number of schedulers.

#[cfg(test)]
mod mixed;
#[cfg(test)]
mod model;
pub mod reached;
pub mod scenarios;
#[cfg(test)]
mod shares;
pub mod simulation;
