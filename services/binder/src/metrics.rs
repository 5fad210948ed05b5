//! Counters of the binder.

use godel_domain::{decision::RejectionReason, running_units::EvictionReason};
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

godel_kit::metrics! {
    /// Counters of the binder; clones share them.
    pub(crate) struct BinderMetrics {
        pub(crate) decisions: Counter = "binder_decisions", "Decisions received";
        pub(crate) bound: Counter = "binder_bound", "Running units bound durably";
        pub(crate) rejected: Family<ReasonLabel, Counter> = "binder_rejected", "Running units rejected, by reason";
        pub(crate) txns: Counter = "binder_txns", "Transactions committed";
        pub(crate) txns_refused: Counter = "binder_txns_refused", "Transactions refused by the store";
        pub(crate) evicted: Family<ReasonLabel, Counter> = "binder_evicted",
            "Running units evicted on request of the dispatcher or of a movement, by reason";
        pub(crate) moves: Counter = "binder_moves",
            "Running units that began to move to another node, or whose replacement began to start there";
        pub(crate) moves_refused: Family<ReasonLabel, Counter> = "binder_moves_refused", "Moves refused, by reason";
        pub(crate) squeezed: Counter = "binder_squeezed",
            "Best-effort running units found above the room of their nodes";
        pub(crate) requeued: Counter = "binder_requeued", "Running units pending again after an eviction";
        pub(crate) preempted: Counter = "binder_preempted", "Running units preempted";
        pub(crate) held: Counter = "binder_held", "Running units for which room was held";
        pub(crate) holds_bound: Counter = "binder_holds_bound", "Holds that became bindings";
        pub(crate) holds_dropped: Family<WhyLabel, Counter> = "binder_holds_dropped", "Holds dropped, by cause";
        pub(crate) holds: Gauge = "binder_holds", "Holds now";
        pub(crate) slots_held: Counter = "binder_slots_held", "Slots of reservations held durably";
        pub(crate) gang_turns: Counter = "binder_gang_turns", "Gang turns started";
        pub(crate) gang_turns_ended: Family<WhyLabel, Counter> = "binder_gang_turns_ended",
            "Gang turns ended, by cause; bound: the gang got all its room";
        pub(crate) gang_places: Gauge = "binder_gang_places", "Running units of gangs for which room is gathered now";
        pub(crate) gang_places_held: Gauge = "binder_gang_places_held",
            "Running units of gangs that have all their gathered room";
        pub(crate) rechecked: Counter = "binder_rechecked", "Decisions checked again after a wait or a refusal";
        pub(crate) streams_cut: Counter = "binder_streams_cut",
            "Streams closed because the scheduler did not read outcomes";
        pub(crate) queued: Gauge = "binder_queued", "Decisions that wait to be checked";
        pub(crate) schedulers: Gauge = "binder_schedulers", "Schedulers connected now";
        pub(crate) leader: Gauge = "binder_leader", "1 while this binder leads";
        pub(crate) revision: Gauge = "binder_revision", "Store revision up to which the binder has read";
    }
}

impl BinderMetrics {
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
