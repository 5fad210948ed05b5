//! Random clusters, and what holds of every policy.

pub(crate) mod clusters;
mod gangs;
mod plans;
mod policies;
mod referee;
mod safety;
