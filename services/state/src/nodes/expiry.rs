//! Nodes whose agents have nothing but expired certificates: they get nothing new until these are renewed, and what runs there continues.
//!
//! Level-triggered, as readiness is: each scan compares what is so with what the records of nodes say. Of a node without a session nothing is
//! known, and its record stays as it is.

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
    /// `None`: agents have none.
    ledger: Option<IdentityLedger>,
    /// A clock that is set forward expires thousands at once: one line is enough.
    expired_said: Quiet,
    renewed_said: Quiet,
}

impl AgentLeaves {
    pub(crate) fn new(ledger: Option<IdentityLedger>) -> Self {
        Self { ledger, expired_said: Quiet::default(), renewed_said: Quiet::default() }
    }

    /// What is to be changed in the records of nodes.
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
        jobs.iter().for_each(|job| self.say(job, hub));
        jobs
    }

    /// Whether the certificate of a node's agent has expired, and its record does not say so yet. Until it does, the node is not to become ready.
    pub(crate) fn is_unrecorded(&self, slot: &NodeEntry, hub: &NodeSessions) -> bool {
        self.ledger.is_some()
            && self.with_book(|now_ms, book| judge(slot, now_ms, book)) == Some(true)
            && !hub.is_recorded_expired(slot.node)
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

    fn say(&self, job: &Job, hub: &NodeSessions) {
        let name = |node: NodeId| hub.names.read().of(node).map(|(name, _)| name.to_owned());
        match job {
            Job::ExpireIdentity(node) if self.expired_said.may_speak() => {
                let node = name(*node).unwrap_or_default();
                tracing::warn!(
                    node,
                    "the certificate of an agent has expired: its node gets nothing new until it is renewed"
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

/// Whether the agent of a node has nothing but expired certificates; `None`: it has no session. An agent that calls in plain text has none that
/// could expire.
fn judge(slot: &NodeEntry, now_ms: u64, book: Option<&IdentityBook>) -> Option<bool> {
    let mut cell = slot.cell.lock();
    if !cell.is_connected() {
        return None;
    }
    let leaf = cell.agent.leaf.as_mut().zip(book);
    Some(leaf.is_some_and(|(leaf, book)| leaf.has_expired(now_ms, |key| book.identity(key))))
}
