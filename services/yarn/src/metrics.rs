//! Counters of the YARN adapter.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

/// Labels of applications.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct StateLabel {
    pub(crate) state: &'static str,
}

godel_kit::metrics! {
    /// Counters of the YARN adapter; clones share them.
    pub(crate) struct YarnMetrics {
        pub(crate) submitted: Counter = "yarn_submitted", "Applications submitted";
        pub(crate) allocated: Counter = "yarn_allocated", "Containers that masters were given";
        pub(crate) completed: Counter = "yarn_completed", "Ends of containers that masters were told";
        pub(crate) records: Counter = "yarn_records", "Records of applications written";
        pub(crate) records_refused: Counter = "yarn_records_refused",
            "Transactions with records refused by the store";
        pub(crate) records_unread: Counter = "yarn_records_unread", "Records of applications that could not be read";
        pub(crate) calls_retried: Counter = "yarn_calls_retried", "Calls of the dispatcher made again";
        pub(crate) calls_refused: Counter = "yarn_calls_refused", "Calls that the dispatcher refused";
        pub(crate) launched: Counter = "yarn_launched", "Application masters started";
        pub(crate) launches_failed: Counter = "yarn_launches_failed", "Application masters that could not be started";
        pub(crate) applications: Family<StateLabel, Gauge> = "yarn_applications",
            "Applications now, by their state in YARN";
        pub(crate) containers: Gauge = "yarn_containers", "Running units of applications that have a place";
        pub(crate) leader: Gauge = "yarn_leader", "1 while this adapter leads";
        pub(crate) revision: Gauge = "yarn_revision", "Store revision up to which the adapter has read";
    }
}
