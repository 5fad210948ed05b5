//! Counters of a scheduler, from what its core counts.

use godel_core_scheduler::Stats;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

godel_kit::metrics! {
    /// Counters of a scheduler.
    pub(crate) struct SchedulerMetrics {
        placed: Counter = "scheduler_placed", "Running units bound by this scheduler's decisions";
        conflicts: Counter = "scheduler_conflicts", "Running units rejected because another party was faster";
        cache_hits: Counter = "scheduler_cache_hits", "Replicas placed from a cached candidate list";
        cache_misses: Counter = "scheduler_cache_misses", "Scans made";
        preemptions_tried: Counter = "scheduler_preemptions_tried", "Searches for victims";
        victims: Counter = "scheduler_victims", "Running units named as victims in decisions";
        loops_refused: Counter = "scheduler_preemption_loops_refused",
            "Units spared because they had preempted the searching unit";
        pub(crate) decisions: Counter = "scheduler_decisions", "Decisions sent, repeated ones included";
        pub(crate) reconnects: Counter = "scheduler_reconnects", "Streams opened";
        units: Gauge = "scheduler_units", "Units held";
        parked: Gauge = "scheduler_parked_units", "Units without a place";
        running_units: Gauge = "scheduler_running_units", "Running units ready, in backoff and in flight";
        in_flight: Gauge = "scheduler_in_flight", "Decisions without an outcome";
        nodes: Gauge = "scheduler_nodes", "Nodes of this scheduler's partition";
        revision: Gauge = "scheduler_revision", "Store revision up to which it has read";
    }
}

impl SchedulerMetrics {
    /// Follows what the core counts; `before` is what the last call saw.
    pub(crate) fn follow(&self, before: &Stats, now: &Stats, revision: u64) {
        self.placed.inc_by(now.placed.saturating_sub(before.placed));
        self.conflicts.inc_by(now.conflicts.saturating_sub(before.conflicts));
        self.cache_hits.inc_by(now.cache_hits.saturating_sub(before.cache_hits));
        self.cache_misses.inc_by(now.cache_misses.saturating_sub(before.cache_misses));
        self.preemptions_tried.inc_by(now.preemptions_tried.saturating_sub(before.preemptions_tried));
        self.victims.inc_by(now.victims.saturating_sub(before.victims));
        self.loops_refused.inc_by(now.loops_refused.saturating_sub(before.loops_refused));
        self.units.set(i64::from(now.units));
        self.parked.set(i64::from(now.parked_units));
        self.running_units.set(i64::from(now.running_units));
        self.in_flight.set(i64::from(now.in_flight));
        self.nodes.set(i64::from(now.nodes));
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
    }
}
