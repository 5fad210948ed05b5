//! The gRPC faces of the dispatcher.

pub(crate) mod dispatch;
mod submit;
pub(crate) mod units;
