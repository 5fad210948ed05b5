//! What tests of this crate share.

pub(crate) mod fake;
