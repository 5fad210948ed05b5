//! `godel audit`: reads the live system through its public API and lets `core::invariants` judge it.
//!
//! Two lists and a watch from its floor are brought to one revision, so that what changes meanwhile does not
//! count as a fault; the state on which the history rests lets every commit of it be judged. What agents say and what waits
//! is a moment's picture: where that seems wrong, it is looked at again, and what has moved since the first look is no fault:
//! only what lasts is. What cannot be judged yet is waited for, within the audit's patience.

mod ledger;
mod quiet;
mod read;
#[cfg(test)]
mod tests;
mod unreadable;
mod view;

use std::{collections::BTreeSet, time::Duration};

use godel_audit::{Acknowledged, Before, Evidence, Invariant, InvariantReport, LocalProcess, check_all};
use godel_base::ids::NodeId;
use tokio::time::Instant;

use self::unreadable::Unreadables;
use crate::{client::Client, exit::Failure};

pub use self::read::list;
pub use self::{
    ledger::read_ledger,
    quiet::Quiet,
    view::{AuditFindings, AuditView, InvariantView},
};

/// Looks before a momentary picture counts as a fault.
const N_LOOKS: u32 = 8;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(400);

/// What an audit is to do.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Acknowledgements that submitters wrote down; `None`: there is no ledger.
    pub ledger: Option<Vec<Acknowledged>>,
    /// So long it waits for what cannot be judged yet.
    pub patience: Duration,
    /// Looks at the processes of this machine; `None`: they are not looked at.
    pub look_here: Option<fn() -> Vec<LocalProcess>>,
}

/// Audits the system behind `client`.
///
/// # Errors
/// It cannot be read.
pub async fn run(client: &Client, wanted: Wanted) -> Result<AuditFindings, Failure> {
    let mut evidence = Evidence { ledger: wanted.ledger, ..Evidence::default() };
    let mut unreadable = Unreadables::default();
    let until = Instant::now() + wanted.patience;
    let (mut n_looks, mut n_judged) = (0, 0);
    loop {
        let can_be_judged = read::look(client, &mut evidence, &mut unreadable).await?;
        evidence.local = wanted.look_here.map(|look| look()).unwrap_or_default();
        n_looks += 1;
        n_judged = if can_be_judged { n_judged + 1 } else { 0 };
        if n_judged >= N_LOOKS && evidence.before.is_some() {
            // It is never quiet: who has waited at every look is judged by the room that was there at every look.
            evidence.busy = None;
        }
        let may_wait = Instant::now() < until;
        // The whole history is judged again with each look: not while there is something to wait for.
        if !(may_wait && is_open(&evidence)) {
            evidence.unreadable = unreadable.to_vec();
            let reports = check_all(&evidence);
            let momentary =
                |report: &&InvariantReport| matches!(report.invariant, Invariant::I3 | Invariant::I8);
            let settled = !reports.iter().filter(momentary).any(InvariantReport::has_failed);
            let broken_for_good =
                reports.iter().filter(|report| !momentary(report)).any(InvariantReport::has_failed);
            if settled || broken_for_good || n_looks >= N_LOOKS {
                return Ok(AuditFindings {
                    revision: evidence.listed.revision.0,
                    reports,
                    unreadable: std::mem::take(&mut evidence.unreadable),
                    world: evidence.listed,
                });
            }
        }
        evidence.before = Some(Before::of(&evidence));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether something cannot be judged that may be soon: what waits while something is under way, or what runs on nodes
/// that are ready and whose agents are about to connect again, or have not said what runs.
fn is_open(evidence: &Evidence) -> bool {
    let connected: BTreeSet<NodeId> =
        evidence.agents.iter().filter(|agent| agent.connected).map(|agent| agent.node).collect();
    let is_silent = evidence.processes.iter().any(|on| on.failure.is_some());
    evidence.busy.is_some()
        || is_silent
        || evidence.listed.nodes.iter().any(|(id, node)| {
            node.report.as_ref().is_some_and(|report| report.value.ready) && !connected.contains(id)
        })
}
