//! The gRPC faces of the dispatcher.

pub(crate) mod budgets;
pub(crate) mod dispatch;
pub(crate) mod history;
pub(crate) mod queues;
mod records;
pub(crate) mod reservations;
mod submit;
pub(crate) mod units;
