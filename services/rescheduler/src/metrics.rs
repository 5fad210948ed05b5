//! Counters of the rescheduler.

use godel_kit::metrics::duration_histogram;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

godel_kit::metrics! {
    /// Counters of the rescheduler; clones share them.
    pub(crate) struct RescheduleMetrics {
        pub(crate) plans: Counter = "rescheduler_plans", "Plans made";
        pub(crate) planning: Histogram = "rescheduler_planning_seconds",
            "Time to make a plan, with its snapshot", duration_histogram();
        pub(crate) movements: Counter = "rescheduler_movements", "Movements that have ended";
        pub(crate) asked: Counter = "rescheduler_moves_asked", "Moves that the binder was asked for, again included";
        pub(crate) moved: Counter = "rescheduler_moved",
            "Running units that run on the recommended node after a move";
        pub(crate) mismatched: Counter = "rescheduler_mismatched",
            "Running units that run on another node after a move";
        pub(crate) failed: Counter = "rescheduler_failed", "Moves that were refused or took too long";
        pub(crate) records: Counter = "rescheduler_records", "Records of movements written";
        pub(crate) records_refused: Counter = "rescheduler_records_refused",
            "Transactions with records refused by the store";
        pub(crate) records_unread: Counter = "rescheduler_records_unread",
            "Records of movements that could not be read";
        pub(crate) pending: Gauge = "rescheduler_pending_units", "Units that wait for a place";
        pub(crate) leader: Gauge = "rescheduler_leader", "1 while this rescheduler leads";
        pub(crate) revision: Gauge = "rescheduler_revision", "Store revision up to which the rescheduler has read";
    }
}
