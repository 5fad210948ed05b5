//! Managers for tests of the faces.
//!
//! # Modules
//!
//! - `canned`: one that shows what the test says, for what faces make of reports.
//! - `fake`: the adapter's applications over a cluster with room for everything, for whole lives of them.

pub(crate) mod canned;
pub(crate) mod fake;
