//! Metrics of the state service.

use godel_kit::metrics::{
    Metrics,
    prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use godel_membership::agent_admission::AssignmentRefusal;

/// What state counts. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct StateMetrics {
    /// Transactions of clients, committed.
    pub(crate) txns: Counter,
    refusals: Family<Vec<(&'static str, &'static str)>, Counter>,
    /// Grants, releases and expiries of leases.
    pub(crate) lease_changes: Counter,
    /// Registrations answered.
    pub(crate) registrations: Counter,
    /// Nodes that became not ready.
    pub(crate) nodes_lost: Counter,
    /// Run statuses made durable.
    pub(crate) statuses: Counter,
    /// Assignments sent.
    pub(crate) assignments: Counter,
    /// Assignments that agents did not start, by reason.
    pub(crate) assignments_refused: Family<Vec<(&'static str, &'static str)>, Counter>,
    /// Nodes quarantined now.
    pub(crate) nodes_quarantined: Gauge,
    /// Sessions open now.
    pub(crate) sessions: Gauge,
    /// Watches open now.
    pub(crate) watchers: Gauge,
    /// Watches cut off for slowness.
    pub(crate) slow_watchers: Counter,
    revision: Gauge,
    disk_bytes: Gauge,
    full: Gauge,
}

impl StateMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let shown = Self {
            txns: metrics.counter("txns", "Transactions of clients committed"),
            refusals: metrics.register("refusals", "Requests refused, by reason", Family::default()),
            lease_changes: metrics.counter("lease_changes", "Grants, releases and expiries of leases"),
            registrations: metrics.counter("registrations", "Registrations of nodes answered"),
            nodes_lost: metrics.counter("nodes_lost", "Nodes that became not ready"),
            statuses: metrics.counter("run_statuses", "Run statuses made durable"),
            assignments: metrics.counter("assignments", "Assignments sent to agents"),
            assignments_refused: metrics.register(
                "assignments_refused",
                "Assignments that agents did not start, by reason; 0 in a healthy cluster",
                Family::default(),
            ),
            nodes_quarantined: metrics.gauge(
                "nodes_quarantined",
                "Quarantined nodes: their agents refused too many assignments, or units failed there",
            ),
            sessions: metrics.gauge("sessions", "Agent sessions open now"),
            watchers: metrics.gauge("watchers", "Watches open now"),
            slow_watchers: metrics.counter("slow_watchers", "Watches closed because they were too slow"),
            revision: metrics.gauge("store_revision", "Last durable revision"),
            disk_bytes: metrics.gauge("store_disk_bytes", "Bytes of the store on disk"),
            full: metrics.gauge("store_full", "1 while writes are refused because the disk is full"),
        };
        // From the start, so that whoever looks for them finds them at 0.
        for why in AssignmentRefusal::ALL {
            drop(shown.assignments_refused.get_or_create(&vec![("why", why.name())]));
        }
        shown
    }

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
    }
}
