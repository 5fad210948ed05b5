//! Random clusters, and what holds of every policy.

pub(crate) mod clusters;
mod policies;
mod referee;
