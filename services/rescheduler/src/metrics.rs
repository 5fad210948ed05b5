//! Counters of the rescheduler.

use godel_kit::metrics::Metrics;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

/// Counters of the rescheduler; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RescheduleMetrics {
    pub(crate) plans: Counter,
    pub(crate) planning: Histogram,
    pub(crate) movements: Counter,
    pub(crate) asked: Counter,
    pub(crate) moved: Counter,
    pub(crate) mismatched: Counter,
    pub(crate) failed: Counter,
    pub(crate) records: Counter,
    pub(crate) records_refused: Counter,
    pub(crate) records_unread: Counter,
    pub(crate) pending: Gauge,
    pub(crate) leader: Gauge,
    pub(crate) revision: Gauge,
}

impl RescheduleMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            plans: metrics.counter("rescheduler_plans", "Plans made"),
            planning: metrics
                .durations("rescheduler_planning_seconds", "Time to make a plan, with its snapshot"),
            movements: metrics.counter("rescheduler_movements", "Movements that have ended"),
            asked: metrics
                .counter("rescheduler_moves_asked", "Moves that the binder was asked for, again included"),
            moved: metrics
                .counter("rescheduler_moved", "Running units that run on the recommended node after a move"),
            mismatched: metrics
                .counter("rescheduler_mismatched", "Running units that run on another node after a move"),
            failed: metrics.counter("rescheduler_failed", "Moves that were refused or took too long"),
            records: metrics.counter("rescheduler_records", "Records of movements written"),
            records_refused: metrics
                .counter("rescheduler_records_refused", "Transactions with records refused by the store"),
            records_unread: metrics
                .counter("rescheduler_records_unread", "Records of movements that could not be read"),
            pending: metrics.gauge("rescheduler_pending_units", "Units that wait for a place"),
            leader: metrics.gauge("rescheduler_leader", "1 while this rescheduler leads"),
            revision: metrics
                .gauge("rescheduler_revision", "Store revision up to which the rescheduler has read"),
        }
    }
}
