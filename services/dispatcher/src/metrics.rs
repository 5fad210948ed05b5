//! Counters of the dispatcher.

use godel_core_dispatcher::{
    gauges::{ByPhase, Waits},
    read::Summary,
};
use godel_domain::{lifecycle::UnitPhase, unit::WorkloadClass};
use godel_kit::metrics::{duration_histogram, wait_histogram};
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

godel_kit::metrics! {
    /// Counters of the dispatcher; clones share them.
    pub(crate) struct DispatcherMetrics {
        pub(crate) rejected: Counter = "dispatcher_rejected", "Submissions with wrong fields or a name in use";
        pub(crate) duplicates: Counter = "dispatcher_duplicates", "Submissions of a known uid";
        pub(crate) overloaded: Counter = "dispatcher_overloaded",
            "Submissions refused because the control plane is behind or a queue is full";
        pub(crate) assigned: Counter = "dispatcher_assigned",
            "Assignments of units to schedulers, repeated ones included";
        pub(crate) txns: Counter = "dispatcher_txns", "Transactions committed";
        pub(crate) txns_refused: Counter = "dispatcher_txns_refused", "Transactions refused by the store";
        pub(crate) evictions_asked: Counter = "dispatcher_evictions_asked", "Evictions requested from the binder";
        pub(crate) streams_cut: Counter = "dispatcher_streams_cut",
            "Scheduler streams closed because the scheduler did not read them";
        pub(crate) submit_seconds: Histogram = "dispatcher_submit_seconds",
            "Time from the admission of a unit to its durability", duration_histogram();
        queue_wait: WaitsByClass = "dispatcher_queue_wait_seconds",
            "Time from the submission of a unit to its assignment to a scheduler, by workload class",
            Family::new_with_constructor(wait_histogram as fn() -> Histogram);
        scheduling: WaitsByClass = "dispatcher_scheduling_seconds",
            "Time from the submission of a unit to its first binding, by workload class",
            Family::new_with_constructor(wait_histogram as fn() -> Histogram);
        units_by_queue: Family<UnitsLabel, Gauge> = "dispatcher_units_by_queue",
            "Units by queue and phase: the 100 queues with most units, and the rest together";
        submitted: Counter = "dispatcher_submitted", "Units that became durable";
        redispatched: Counter = "dispatcher_redispatched", "Units queued again after an assignment";
        repairs: Counter = "dispatcher_repairs", "Repairs by the reconciler";
        surges_started: Counter = "dispatcher_surges_started",
            "Replicas that were to start before those stop that they replace";
        surges_given_up: Counter = "dispatcher_surges_given_up",
            "Replicas that were to start before others, and were given up";
        pub(crate) leader: Gauge = "dispatcher_leader", "1 while this dispatcher leads";
        pub(crate) units: Gauge = "dispatcher_units", "Units known";
        pub(crate) queued: Gauge = "dispatcher_queued", "Units that wait for a scheduler";
        dispatched: Gauge = "dispatcher_dispatched", "Units assigned to a scheduler";
        parked: Gauge = "dispatcher_parked", "Units without a place (parked)";
        ended: Gauge = "dispatcher_ended", "Ended units kept";
        pub(crate) watches: Gauge = "dispatcher_watches", "Watches of units open now";
        pub(crate) in_hand: Gauge = "dispatcher_in_hand",
            "Units in hand: submitted by calls, and waiting only for the control plane";
        pub(crate) in_hand_max: Gauge = "dispatcher_in_hand_max", "Maximum of units in hand; lower in an overload";
        pub(crate) streams_paused: Gauge = "dispatcher_streams_paused",
            "1 while submission streams are paused because schedulers are busy";
        nodes_not_ready: Gauge = "dispatcher_nodes_not_ready", "Nodes that are not ready";
        nodes_draining: Gauge = "dispatcher_nodes_draining", "Drained nodes that are not empty yet";
        gangs_waiting: Gauge = "dispatcher_gangs_waiting",
            "Gangs that have waited long enough to gather room in turn";
        evictions_paused: Gauge = "dispatcher_evictions_paused",
            "1 while evictions from lost nodes are stopped because too many were lost at once";
        revision: Gauge = "dispatcher_revision", "Store revision up to which the dispatcher has read";
    }
}

impl DispatcherMetrics {
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
    use godel_kit::metrics::Metrics;

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
