//! Counters of a scheduler, from what its core counts.

use godel_core_scheduler::Stats;
use godel_kit::metrics::Metrics;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

/// Counters of a scheduler.
#[derive(Debug)]
pub(crate) struct SchedulerMetrics {
    shown: Stats,
    placed: Counter,
    conflicts: Counter,
    cache_hits: Counter,
    cache_misses: Counter,
    preemptions_tried: Counter,
    victims: Counter,
    loops_refused: Counter,
    pub(crate) decisions: Counter,
    pub(crate) reconnects: Counter,
    units: Gauge,
    parked: Gauge,
    running_units: Gauge,
    in_flight: Gauge,
    nodes: Gauge,
    revision: Gauge,
}

impl SchedulerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            shown: Stats::default(),
            placed: metrics.counter("scheduler_placed", "Running units bound by this scheduler's decisions"),
            conflicts: metrics
                .counter("scheduler_conflicts", "Running units rejected because another party was faster"),
            cache_hits: metrics
                .counter("scheduler_cache_hits", "Replicas placed from a cached candidate list"),
            cache_misses: metrics.counter("scheduler_cache_misses", "Scans made"),
            preemptions_tried: metrics.counter("scheduler_preemptions_tried", "Searches for victims"),
            victims: metrics.counter("scheduler_victims", "Running units named as victims in decisions"),
            loops_refused: metrics.counter(
                "scheduler_preemption_loops_refused",
                "Units spared because they had preempted the searching unit",
            ),
            decisions: metrics.counter("scheduler_decisions", "Decisions sent, repeated ones included"),
            reconnects: metrics.counter("scheduler_reconnects", "Streams opened"),
            units: metrics.gauge("scheduler_units", "Units held"),
            parked: metrics.gauge("scheduler_parked_units", "Units without a place"),
            running_units: metrics
                .gauge("scheduler_running_units", "Running units ready, in backoff and in flight"),
            in_flight: metrics.gauge("scheduler_in_flight", "Decisions without an outcome"),
            nodes: metrics.gauge("scheduler_nodes", "Nodes of this scheduler's partition"),
            revision: metrics.gauge("scheduler_revision", "Store revision up to which it has read"),
        }
    }

    pub(crate) fn show(&mut self, stats: Stats, revision: u64) {
        self.placed.inc_by(stats.placed.saturating_sub(self.shown.placed));
        self.conflicts.inc_by(stats.conflicts.saturating_sub(self.shown.conflicts));
        self.cache_hits.inc_by(stats.cache_hits.saturating_sub(self.shown.cache_hits));
        self.cache_misses.inc_by(stats.cache_misses.saturating_sub(self.shown.cache_misses));
        let tried = stats.preemptions_tried.saturating_sub(self.shown.preemptions_tried);
        self.preemptions_tried.inc_by(tried);
        self.victims.inc_by(stats.victims.saturating_sub(self.shown.victims));
        self.loops_refused.inc_by(stats.loops_refused.saturating_sub(self.shown.loops_refused));
        self.units.set(i64::from(stats.units));
        self.parked.set(i64::from(stats.parked_units));
        self.running_units.set(i64::from(stats.running_units));
        self.in_flight.set(i64::from(stats.in_flight));
        self.nodes.set(i64::from(stats.nodes));
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
        self.shown = stats;
    }
}
