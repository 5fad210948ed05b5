//! The gRPC faces of the dispatcher.

pub(crate) mod budgets;
pub(crate) mod dispatch;
pub(crate) mod queues;
mod submit;
pub(crate) mod units;
