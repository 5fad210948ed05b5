//! Metrics of the state service.

use godel_kit::metrics::prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use godel_membership::agent_admission::AssignmentRefusal;

type ByReason = Family<Vec<(&'static str, &'static str)>, Counter>;

godel_kit::metrics! {
    /// What state counts. Clones share it.
    pub(crate) struct StateMetrics {
        pub(crate) txns: Counter = "txns", "Transactions of clients committed";
        refusals: ByReason = "refusals", "Requests refused, by reason";
        pub(crate) lease_changes: Counter = "lease_changes", "Grants, releases and expiries of leases";
        pub(crate) registrations: Counter = "registrations", "Registrations of nodes answered";
        pub(crate) nodes_lost: Counter = "nodes_lost", "Nodes that became not ready";
        pub(crate) statuses: Counter = "run_statuses", "Run statuses made durable";
        pub(crate) assignments: Counter = "assignments", "Assignments sent to agents";
        pub(crate) assignments_refused: ByReason = "assignments_refused",
            "Assignments that agents did not start, by reason; 0 in a healthy cluster", refusals_of_agents();
        pub(crate) nodes_quarantined: Gauge = "nodes_quarantined",
            "Quarantined nodes: their agents refused too many assignments, or units failed there";
        pub(crate) identities_expired: Gauge = "nodes_identity_expired",
            "Nodes that get nothing new because the certificates of their agents have expired";
        pub(crate) sessions: Gauge = "sessions", "Agent sessions open now";
        pub(crate) watchers: Gauge = "watchers", "Watches open now";
        pub(crate) slow_watchers: Counter = "slow_watchers", "Watches closed because they were too slow";
        revision: Gauge = "store_revision", "Last durable revision";
        disk_bytes: Gauge = "store_disk_bytes", "Bytes of the store on disk";
        full: Gauge = "store_full", "1 while writes are refused because the disk is full";
        waits: Gauge = "store_waits", "1 while commits wait for an etcd that does not answer";
    }
}

impl StateMetrics {
    /// A request was refused.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&vec![("reason", reason)]).inc();
    }

    /// Takes over what the store says of itself.
    pub(crate) fn store(&self, status: &godel_store::Status) {
        let as_gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.revision.set(as_gauge(status.revision.0));
        self.disk_bytes.set(as_gauge(status.disk_bytes));
        self.full.set(i64::from(status.full));
        self.waits.set(i64::from(status.waiting_for.is_some()));
    }
}

/// All of them from the start, so that whoever looks for them finds them at 0.
fn refusals_of_agents() -> ByReason {
    let family = ByReason::default();
    for why in AssignmentRefusal::ALL {
        drop(family.get_or_create(&vec![("why", why.name())]));
    }
    family
}
