//! Counters of the binder.

use godel_domain::{decision::RejectionReason, running_units::EvictionReason};
use godel_kit::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

/// Labels of rejected and of evicted running units.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    reason: &'static str,
}

/// Labels of holds that ended without a binding.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct WhyLabel {
    pub(crate) why: &'static str,
}

/// Counters of the binder; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct BinderMetrics {
    pub(crate) decisions: Counter,
    pub(crate) bound: Counter,
    pub(crate) rejected: Family<ReasonLabel, Counter>,
    pub(crate) txns: Counter,
    pub(crate) txns_refused: Counter,
    pub(crate) evicted: Family<ReasonLabel, Counter>,
    pub(crate) moves: Counter,
    pub(crate) moves_refused: Family<ReasonLabel, Counter>,
    pub(crate) squeezed: Counter,
    pub(crate) requeued: Counter,
    pub(crate) preempted: Counter,
    pub(crate) held: Counter,
    pub(crate) holds_bound: Counter,
    pub(crate) slots_held: Counter,
    pub(crate) holds_dropped: Family<WhyLabel, Counter>,
    pub(crate) holds: Gauge,
    pub(crate) gang_turns: Counter,
    pub(crate) gang_turns_ended: Family<WhyLabel, Counter>,
    pub(crate) gang_places: Gauge,
    pub(crate) gang_places_held: Gauge,
    pub(crate) rechecked: Counter,
    pub(crate) streams_cut: Counter,
    pub(crate) queued: Gauge,
    pub(crate) schedulers: Gauge,
    pub(crate) leader: Gauge,
    pub(crate) revision: Gauge,
}

impl BinderMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let help = "Running units rejected, by reason";
        Self {
            decisions: metrics.counter("binder_decisions", "Decisions received"),
            bound: metrics.counter("binder_bound", "Running units bound durably"),
            rejected: metrics.register("binder_rejected", help, Family::default()),
            txns: metrics.counter("binder_txns", "Transactions committed"),
            txns_refused: metrics.counter("binder_txns_refused", "Transactions refused by the store"),
            evicted: metrics.register(
                "binder_evicted",
                "Running units evicted on request of the dispatcher or of a movement, by reason",
                Family::default(),
            ),
            moves: metrics.counter(
                "binder_moves",
                "Running units that began to move to another node, or whose replacement began to start there",
            ),
            moves_refused: metrics.register(
                "binder_moves_refused",
                "Moves refused, by reason",
                Family::default(),
            ),
            squeezed: metrics
                .counter("binder_squeezed", "Best-effort running units found above the room of their nodes"),
            requeued: metrics.counter("binder_requeued", "Running units pending again after an eviction"),
            preempted: metrics.counter("binder_preempted", "Running units preempted"),
            held: metrics.counter("binder_held", "Running units for which room was held"),
            holds_bound: metrics.counter("binder_holds_bound", "Holds that became bindings"),
            holds_dropped: metrics.register(
                "binder_holds_dropped",
                "Holds dropped, by cause",
                Family::default(),
            ),
            holds: metrics.gauge("binder_holds", "Holds now"),
            slots_held: metrics.counter("binder_slots_held", "Slots of reservations held durably"),
            gang_turns: metrics.counter("binder_gang_turns", "Gang turns started"),
            gang_turns_ended: metrics.register(
                "binder_gang_turns_ended",
                "Gang turns ended, by cause; bound: the gang got all its room",
                Family::default(),
            ),
            gang_places: metrics
                .gauge("binder_gang_places", "Running units of gangs for which room is gathered now"),
            gang_places_held: metrics
                .gauge("binder_gang_places_held", "Running units of gangs that have all their gathered room"),
            rechecked: metrics
                .counter("binder_rechecked", "Decisions checked again after a wait or a refusal"),
            streams_cut: metrics
                .counter("binder_streams_cut", "Streams closed because the scheduler did not read outcomes"),
            queued: metrics.gauge("binder_queued", "Decisions that wait to be checked"),
            schedulers: metrics.gauge("binder_schedulers", "Schedulers connected now"),
            leader: metrics.gauge("binder_leader", "1 while this binder leads"),
            revision: metrics.gauge("binder_revision", "Store revision up to which the binder has read"),
        }
    }

    pub(crate) fn reject(&self, reason: RejectionReason, n_running_units: usize) {
        let count = u64::try_from(n_running_units).unwrap_or(u64::MAX);
        self.rejected.get_or_create(&ReasonLabel { reason: reason.name() }).inc_by(count);
    }

    pub(crate) fn refuse_move(&self, reason: RejectionReason) {
        self.moves_refused.get_or_create(&ReasonLabel { reason: reason.name() }).inc();
    }

    pub(crate) fn evict(&self, reason: EvictionReason, n_running_units: u64) {
        self.evicted.get_or_create(&ReasonLabel { reason: reason.name() }).inc_by(n_running_units);
    }

    /// Rejected running units by reason, those that occurred.
    pub(crate) fn rejected_by_reason(&self) -> Vec<(&'static str, u64)> {
        RejectionReason::ALL
            .into_iter()
            .filter_map(|reason| {
                let counter = self.rejected.get(&ReasonLabel { reason: reason.name() })?;
                Some((reason.name(), counter.get()))
            })
            .collect()
    }
}
