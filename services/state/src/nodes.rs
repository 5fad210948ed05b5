//! Node records: registration, inventory, readiness, administration, and how nodes are shown.

pub(crate) mod expiry;
pub(crate) mod names;
pub(crate) mod round;
pub(crate) mod service;
pub(crate) mod validate;
pub(crate) mod view;
pub(crate) mod writer;
