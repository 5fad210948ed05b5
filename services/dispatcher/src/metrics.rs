//! Counters of the dispatcher.

use godel_core_dispatcher::{
    gauges::{ByPhase, Waits},
    read::Summary,
};
use godel_domain::{lifecycle::UnitPhase, unit::WorkloadClass};
use godel_kit::metrics::{Metrics, wait_histogram};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

/// Labels of waits.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

/// Labels of units.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UnitsLabel {
    queue: String,
    phase: &'static str,
}

type WaitsByClass = Family<ClassLabel, Histogram, fn() -> Histogram>;

/// Queues that have time series of their own.
pub(crate) const N_QUEUES_SHOWN: usize = 100;
/// The series of all others.
const OTHER_QUEUES: &str = "(others)";

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
    queue_wait: WaitsByClass,
    scheduling: WaitsByClass,
    units_by_queue: Family<UnitsLabel, Gauge>,
    submitted: Counter,
    redispatched: Counter,
    repairs: Counter,
    surges_started: Counter,
    surges_given_up: Counter,
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
            rejected: metrics
                .counter("dispatcher_rejected", "Submissions with wrong fields or a name in use"),
            duplicates: metrics.counter("dispatcher_duplicates", "Submissions of a known uid"),
            overloaded: metrics.counter(
                "dispatcher_overloaded",
                "Submissions refused because the control plane is behind or a queue is full",
            ),
            assigned: metrics
                .counter("dispatcher_assigned", "Assignments of units to schedulers, repeated ones included"),
            txns: metrics.counter("dispatcher_txns", "Transactions committed"),
            txns_refused: metrics.counter("dispatcher_txns_refused", "Transactions refused by the store"),
            evictions_asked: metrics
                .counter("dispatcher_evictions_asked", "Evictions requested from the binder"),
            streams_cut: metrics.counter(
                "dispatcher_streams_cut",
                "Scheduler streams closed because the scheduler did not read them",
            ),
            submit_seconds: metrics.durations(
                "dispatcher_submit_seconds",
                "Time from the admission of a unit to its durability",
            ),
            queue_wait: metrics.register(
                "dispatcher_queue_wait_seconds",
                "Time from the submission of a unit to its assignment to a scheduler, by workload class",
                Family::new_with_constructor(wait_histogram as fn() -> Histogram),
            ),
            scheduling: metrics.register(
                "dispatcher_scheduling_seconds",
                "Time from the submission of a unit to its first binding, by workload class",
                Family::new_with_constructor(wait_histogram as fn() -> Histogram),
            ),
            units_by_queue: metrics.register(
                "dispatcher_units_by_queue",
                "Units by queue and phase: the 100 queues with most units, and the rest together",
                Family::default(),
            ),
            submitted: metrics.counter("dispatcher_submitted", "Units that became durable"),
            redispatched: metrics
                .counter("dispatcher_redispatched", "Units queued again after an assignment"),
            repairs: metrics.counter("dispatcher_repairs", "Repairs by the reconciler"),
            surges_started: metrics.counter(
                "dispatcher_surges_started",
                "Replicas that were to start before those stop that they replace",
            ),
            surges_given_up: metrics.counter(
                "dispatcher_surges_given_up",
                "Replicas that were to start before others, and were given up",
            ),
            leader: metrics.gauge("dispatcher_leader", "1 while this dispatcher leads"),
            units: metrics.gauge("dispatcher_units", "Units known"),
            queued: metrics.gauge("dispatcher_queued", "Units that wait for a scheduler"),
            dispatched: metrics.gauge("dispatcher_dispatched", "Units assigned to a scheduler"),
            parked: metrics.gauge("dispatcher_parked", "Units without a place (parked)"),
            ended: metrics.gauge("dispatcher_ended", "Ended units kept"),
            watches: metrics.gauge("dispatcher_watches", "Watches of units open now"),
            in_hand: metrics.gauge(
                "dispatcher_in_hand",
                "Units in hand: submitted by calls, and waiting only for the control plane",
            ),
            in_hand_max: metrics
                .gauge("dispatcher_in_hand_max", "Maximum of units in hand; lower in an overload"),
            streams_paused: metrics.gauge(
                "dispatcher_streams_paused",
                "1 while submission streams are paused because schedulers are busy",
            ),
            nodes_not_ready: metrics.gauge("dispatcher_nodes_not_ready", "Nodes that are not ready"),
            nodes_draining: metrics
                .gauge("dispatcher_nodes_draining", "Drained nodes that are not empty yet"),
            gangs_waiting: metrics.gauge(
                "dispatcher_gangs_waiting",
                "Gangs that have waited long enough to gather room in turn",
            ),
            evictions_paused: metrics.gauge(
                "dispatcher_evictions_paused",
                "1 while evictions from lost nodes are stopped because too many were lost at once",
            ),
            revision: metrics
                .gauge("dispatcher_revision", "Store revision up to which the dispatcher has read"),
        }
    }

    /// Takes over how long units waited.
    pub(crate) fn waited(&self, waits: &Waits) {
        let into = |family: &WaitsByClass, waits: &[(WorkloadClass, u64)]| {
            for (class, ms) in waits {
                let label = ClassLabel { class: class_name(*class) };
                let seconds = std::time::Duration::from_millis(*ms).as_secs_f64();
                family.get_or_create(&label).observe(seconds);
            }
        };
        into(&self.queue_wait, &waits.to_scheduler);
        into(&self.scheduling, &waits.to_binding);
    }

    /// Shows units by queue and phase; queues without units disappear.
    pub(crate) fn show_queues(&self, queues: Vec<(&str, ByPhase)>, others: ByPhase) {
        self.units_by_queue.clear();
        for (queue, by_phase) in queues.into_iter().chain([(OTHER_QUEUES, others)]) {
            for (phase, n) in UnitPhase::ALL.into_iter().zip(by_phase) {
                if n > 0 {
                    let label = UnitsLabel { queue: queue.to_owned(), phase: phase.name() };
                    self.units_by_queue.get_or_create(&label).set(i64::try_from(n).unwrap_or(i64::MAX));
                }
            }
        }
    }

    /// Follows the core's lengths and counters; `before` is what the last call saw in this term.
    pub(crate) fn follow(&self, before: &Summary, now: &Summary) {
        self.submitted.inc_by(now.counters.submitted - before.counters.submitted);
        self.redispatched.inc_by(now.counters.redispatched - before.counters.redispatched);
        self.repairs.inc_by(now.counters.repairs - before.counters.repairs);
        self.surges_started.inc_by(now.counters.surges_started - before.counters.surges_started);
        self.surges_given_up.inc_by(now.counters.surges_given_up - before.counters.surges_given_up);
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

fn class_name(class: WorkloadClass) -> &'static str {
    match class {
        WorkloadClass::Service => "service",
        WorkloadClass::Stateful => "stateful",
        WorkloadClass::Batch => "batch",
        WorkloadClass::Gang => "gang",
        WorkloadClass::Stream => "stream",
        WorkloadClass::Training => "training",
        WorkloadClass::Yarn => "yarn",
        WorkloadClass::Daemon => "daemon",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_queues_are_shown_with_few_labels() {
        let registry = Metrics::new("dispatcher");
        let metrics = DispatcherMetrics::new(&registry);
        let waits = Waits {
            to_scheduler: vec![(WorkloadClass::Gang, 3)],
            to_binding: vec![(WorkloadClass::Gang, 250), (WorkloadClass::Gang, 90_000)],
        };
        metrics.waited(&waits);
        let mut phases = ByPhase::default();
        phases[UnitPhase::Queued.idx()] = 7;
        metrics.show_queues(vec![("prod", phases), ("dev", phases)], phases);
        metrics.show_queues(vec![("prod", phases)], ByPhase::default());
        let text = registry.encode();
        for line in [
            "godel_dispatcher_scheduling_seconds_count{service=\"dispatcher\",class=\"gang\"} 2",
            "godel_dispatcher_queue_wait_seconds_count{service=\"dispatcher\",class=\"gang\"} 1",
            "godel_dispatcher_units_by_queue{service=\"dispatcher\",queue=\"prod\",phase=\"Queued\"} 7",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("queue=\"dev\""), "a queue without units is not shown");
    }
}
