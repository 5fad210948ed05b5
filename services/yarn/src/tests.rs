//! The manager for tests of the faces.
//!
//! # Modules
//!
//! - `fake`: the adapter's applications over a cluster with room for everything.
//! - `samples`: what tests start with.

pub(crate) mod fake;
pub(crate) mod samples;
