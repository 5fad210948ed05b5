//! The whole control plane in one thread, against the invariants.
//!
//! The deciders are the real ones: a dispatcher, one to four schedulers, the binder, and in some cases the rescheduler, each with a
//! picture of its own, and the agent of each node. What their services do around them is played plainly: a store with revisions, conditions and
//! fences, a watch, streams, leases, sessions, and machines that run what agents start. A case is drawn from a seed: a small cluster, a few queues and units that meet there, and steps that
//! submit, cancel, scale, suspend, move, cordon, drain and shrink, and faults: messages are late or lost with their connection,
//! parts die and come back knowing nothing, lose their leases, or list everything anew; nodes are lost and return; certificates of agents
//! expire, and agents are revoked.
//!
//! Whatever the parts wrote is judged twice: at each commit by plain sums ([`naive`]), at the end by `godel audit`'s own
//! predicates over the whole history. When nothing happens any more nothing may be left that could go on ([`check`]).
//!
//! In cases of their own, principals submit and change units, each as it may ([`people`]).
//!
//! Beside the cases, [`week`] is a week of a larger cluster that is rescheduled.
//!
//! `GODEL_SEED=n` runs one case and tells what happened; `GODEL_TEST_LONG=1` runs a million.

mod agents;
mod binder;
mod cases;
mod check;
mod dispatcher;
mod identities;
mod lives;
mod movements;
mod naive;
mod net;
mod numbers;
mod people;
mod reach;
mod rescheduler;
mod scheduler;
mod sessions;
mod steps;
mod store;
mod units;
mod week;
mod world;
