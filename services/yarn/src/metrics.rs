//! Counters of the YARN adapter.

use godel_kit::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

/// Labels of applications.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct StateLabel {
    pub(crate) state: &'static str,
}

/// Counters of the YARN adapter; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct YarnMetrics {
    pub(crate) submitted: Counter,
    pub(crate) allocated: Counter,
    pub(crate) completed: Counter,
    pub(crate) records: Counter,
    pub(crate) records_refused: Counter,
    pub(crate) records_unread: Counter,
    pub(crate) calls_retried: Counter,
    pub(crate) calls_refused: Counter,
    pub(crate) launched: Counter,
    pub(crate) launches_failed: Counter,
    pub(crate) applications: Family<StateLabel, Gauge>,
    pub(crate) containers: Gauge,
    pub(crate) leader: Gauge,
    pub(crate) revision: Gauge,
}

impl YarnMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            submitted: metrics.counter("yarn_submitted", "Applications submitted"),
            allocated: metrics.counter("yarn_allocated", "Containers that masters were given"),
            completed: metrics.counter("yarn_completed", "Ends of containers that masters were told"),
            records: metrics.counter("yarn_records", "Records of applications written"),
            records_refused: metrics
                .counter("yarn_records_refused", "Transactions with records refused by the store"),
            records_unread: metrics
                .counter("yarn_records_unread", "Records of applications that could not be read"),
            calls_retried: metrics.counter("yarn_calls_retried", "Calls of the dispatcher made again"),
            calls_refused: metrics.counter("yarn_calls_refused", "Calls that the dispatcher refused"),
            launched: metrics.counter("yarn_launched", "Application masters started"),
            launches_failed: metrics
                .counter("yarn_launches_failed", "Application masters that could not be started"),
            applications: metrics.register(
                "yarn_applications",
                "Applications now, by their state in YARN",
                Family::default(),
            ),
            containers: metrics.gauge("yarn_containers", "Running units of applications that have a place"),
            leader: metrics.gauge("yarn_leader", "1 while this adapter leads"),
            revision: metrics.gauge("yarn_revision", "Store revision up to which the adapter has read"),
        }
    }
}
