//! Nodes whose agents have only expired certificates: they get no new placements until the agent has renewed its certificate, and what runs there
//! continues.
//!
//! Level-triggered, as readiness is: each scan compares the certificates with the records of the nodes. Without a session nothing is known about an
//! agent, and the record of its node stays as it is.

use godel_base::ids::NodeId;
use godel_identity::book::IdentityBook;
use godel_kit::quiet::Quiet;

use super::round::Job;
use crate::{
    identities::IdentityLedger,
    sessions::{NodeEntry, NodeSessions},
};

/// Judges the certificates of agents that have sessions.
pub(crate) struct AgentLeaves {
    /// `None` if agents have no certificates.
    ledger: Option<IdentityLedger>,
    /// When the clock is set forward, thousands expire at once: one line is enough.
    expired_said: Quiet,
    renewed_said: Quiet,
}

impl AgentLeaves {
    pub(crate) fn new(ledger: Option<IdentityLedger>) -> Self {
        Self { ledger, expired_said: Quiet::default(), renewed_said: Quiet::default() }
    }

    /// Finds the records of nodes that must change.
    pub(crate) fn find_changes(&self, hub: &NodeSessions) -> Vec<Job> {
        let recorded = hub.expired_identities();
        if self.ledger.is_none() && recorded.is_empty() {
            return Vec::new();
        }
        let mut jobs = Vec::new();
        self.with_book(|now_ms, book| {
            hub.for_each_slot(|slot| {
                let Some(has_expired) = judge(slot, now_ms, book) else { return };
                match (has_expired, recorded.contains(&slot.node)) {
                    (true, false) => jobs.push(Job::ExpireIdentity(slot.node)),
                    (false, true) => jobs.push(Job::RenewIdentity(slot.node)),
                    (true, true) | (false, false) => {}
                }
            });
        });
        jobs.iter().for_each(|job| self.log_change(job, hub));
        jobs
    }

    /// Returns the job that records an expired certificate, if the record of the node does not say so yet. The node must not become ready before that.
    pub(crate) fn find_unrecorded(&self, slot: &NodeEntry, hub: &NodeSessions) -> Option<Job> {
        let is_unrecorded = self.ledger.is_some()
            && self.with_book(|now_ms, book| judge(slot, now_ms, book)) == Some(true)
            && !hub.is_recorded_expired(slot.node);
        let job = is_unrecorded.then_some(Job::ExpireIdentity(slot.node))?;
        self.log_change(&job, hub);
        Some(job)
    }

    fn with_book<R>(&self, read: impl FnOnce(u64, Option<&IdentityBook>) -> R) -> R {
        match &self.ledger {
            Some(ledger) => {
                let now_ms = ledger.now_ms();
                ledger.read(|book| read(now_ms, Some(book)))
            }
            None => read(0, None),
        }
    }

    fn log_change(&self, job: &Job, hub: &NodeSessions) {
        let name = |node: NodeId| hub.names.read().of(node).map(|(name, _)| name.to_owned());
        match job {
            Job::ExpireIdentity(node) if self.expired_said.may_speak() => {
                let node = name(*node).unwrap_or_default();
                tracing::warn!(
                    node,
                    "the certificate of an agent has expired: its node gets no new placements until the agent has renewed it"
                );
            }
            Job::RenewIdentity(node) if self.renewed_said.may_speak() => {
                let node = name(*node).unwrap_or_default();
                tracing::info!(node, "an agent has a valid certificate again: its node takes new placements");
            }
            _ => {}
        }
    }
}

/// Whether the agent of a node has only expired certificates; `None` if it has no session. An agent that calls in plain text has no certificate, so
/// none has expired.
fn judge(slot: &NodeEntry, now_ms: u64, book: Option<&IdentityBook>) -> Option<bool> {
    let mut cell = slot.cell.lock();
    if !cell.is_connected() {
        return None;
    }
    let leaf = cell.agent.leaf.as_mut().zip(book);
    Some(leaf.is_some_and(|(leaf, book)| leaf.has_expired(now_ms, |key| book.identity(key))))
}
