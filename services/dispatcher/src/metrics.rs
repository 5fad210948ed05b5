//! Counters of the dispatcher.

use godel_core::dispatcher::read::Summary;
use godel_kit::metrics::Metrics;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

/// Counters of the dispatcher; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct DispatcherMetrics {
    pub(crate) rejected: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) overloaded: Counter,
    pub(crate) assigned: Counter,
    pub(crate) txns: Counter,
    pub(crate) txns_refused: Counter,
    pub(crate) evictions_asked: Counter,
    pub(crate) streams_cut: Counter,
    pub(crate) submit_seconds: Histogram,
    submitted: Counter,
    redispatched: Counter,
    repairs: Counter,
    pub(crate) leader: Gauge,
    pub(crate) units: Gauge,
    pub(crate) queued: Gauge,
    dispatched: Gauge,
    parked: Gauge,
    ended: Gauge,
    pub(crate) watches: Gauge,
    pub(crate) in_hand: Gauge,
    pub(crate) in_hand_max: Gauge,
    pub(crate) streams_paused: Gauge,
    nodes_not_ready: Gauge,
    nodes_draining: Gauge,
    gangs_waiting: Gauge,
    evictions_paused: Gauge,
    revision: Gauge,
}

impl DispatcherMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            rejected: metrics.counter("dispatcher_rejected", "Submissions with wrong fields or a taken name"),
            duplicates: metrics.counter("dispatcher_duplicates", "Submissions of a known uid"),
            overloaded: metrics.counter(
                "dispatcher_overloaded",
                "Submissions refused because the control plane is behind or a queue is full",
            ),
            assigned: metrics.counter("dispatcher_assigned", "Units handed to schedulers, repeats included"),
            txns: metrics.counter("dispatcher_txns", "Transactions committed"),
            txns_refused: metrics.counter("dispatcher_txns_refused", "Transactions refused by the store"),
            evictions_asked: metrics.counter("dispatcher_evictions_asked", "Evictions asked of the binder"),
            streams_cut: metrics
                .counter("dispatcher_streams_cut", "Scheduler streams cut because nobody read them"),
            submit_seconds: metrics
                .durations("dispatcher_submit_seconds", "From the admission of a unit to its durability"),
            submitted: metrics.counter("dispatcher_submitted", "Units that became durable"),
            redispatched: metrics
                .counter("dispatcher_redispatched", "Units queued again after a scheduler had them"),
            repairs: metrics.counter("dispatcher_repairs", "What the reconciler had to put right"),
            leader: metrics.gauge("dispatcher_leader", "1 while this dispatcher leads"),
            units: metrics.gauge("dispatcher_units", "Units known"),
            queued: metrics.gauge("dispatcher_queued", "Units that wait for a scheduler"),
            dispatched: metrics.gauge("dispatcher_dispatched", "Units that a scheduler has"),
            parked: metrics.gauge("dispatcher_parked", "Units for which a scheduler found no place"),
            ended: metrics.gauge("dispatcher_ended", "Ended units kept"),
            watches: metrics.gauge("dispatcher_watches", "Watches of units open now"),
            in_hand: metrics.gauge(
                "dispatcher_in_hand",
                "Units submitted by calls, neither bound nor known to have to wait",
            ),
            in_hand_max: metrics
                .gauge("dispatcher_in_hand_max", "How many of these there may be; lower in an overload"),
            streams_paused: metrics.gauge(
                "dispatcher_streams_paused",
                "1 while streams of submissions are not read because schedulers are behind",
            ),
            nodes_not_ready: metrics.gauge("dispatcher_nodes_not_ready", "Nodes that are not ready"),
            nodes_draining: metrics
                .gauge("dispatcher_nodes_draining", "Drained nodes that are not empty yet"),
            gangs_waiting: metrics.gauge(
                "dispatcher_gangs_waiting",
                "Gangs that have waited for room for so long that they gather it in turn",
            ),
            evictions_paused: metrics.gauge(
                "dispatcher_evictions_paused",
                "1 while so many nodes were lost at once that nothing is evicted from them",
            ),
            revision: metrics
                .gauge("dispatcher_revision", "Store revision up to which the dispatcher has read"),
        }
    }

    /// Follows the core's lengths and counters; `before` is what the last call saw in this term.
    pub(crate) fn follow(&self, before: &Summary, now: &Summary) {
        self.submitted.inc_by(now.counters.submitted - before.counters.submitted);
        self.redispatched.inc_by(now.counters.redispatched - before.counters.redispatched);
        self.repairs.inc_by(now.counters.repairs - before.counters.repairs);
        for (gauge, value) in [
            (&self.units, now.units),
            (&self.queued, now.queued_units),
            (&self.dispatched, now.dispatched_units),
            (&self.parked, now.parked_units),
            (&self.ended, now.ended as u64),
            (&self.nodes_not_ready, now.nodes_not_ready as u64),
            (&self.nodes_draining, now.nodes_draining as u64),
            (&self.gangs_waiting, now.gangs_waiting as u64),
            (&self.evictions_paused, u64::from(now.evictions_paused)),
            (&self.revision, now.revision.0),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}
