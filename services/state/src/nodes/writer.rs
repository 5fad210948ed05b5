//! The one writer of node records: registrations, inventories, readiness and administrators' changes, many in
//! one commit. It waits until the feed has delivered each commit before it composes the next, so it always
//! composes on what it has written.
//!
//! Readiness is level-triggered: a scan compares each node's lease with its committed readiness, and so does a
//! nudge when a node is heard of that is not ready. Nothing about it has to be remembered. A scan that found
//! nothing to do need not come again before the first of the leases that it saw may be over.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use godel_base::{ids::NodeId, time::Millis};
use godel_domain::change_line::ChangeLine;
use godel_kit::status::{self, reason, with_info};
use godel_membership::node_absence::{self, NodePresence};
use godel_proto::{raw, v1};
use godel_store::{Key, RefusalReason, TxnRefusal};
use godel_wire::to_proto;
use prost::Message as _;
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{
    expiry::AgentLeaves,
    names::NotFound,
    round::{Job, JobAnswer, Round, RoundNodes, Stored, answer},
    view,
};
use crate::{
    error,
    sessions::{NodeSessions, failures::NodeMeasure},
};

/// Jobs that may wait. One registration takes about 1 KiB.
pub(crate) const N_JOBS_MAX: usize = 8_192;
/// Pause after the store has refused a round.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// Absent nodes that one scan takes: each deletion is a commit of its own.
const N_ABSENT_MAX: usize = 16;

/// What the writer knows of the nodes: the feed's names, the store's records, the cells' leases.
struct Known<'a>(&'a NodeSessions);

/// Readiness and inventories under way in a round.
#[derive(Default)]
struct Changes {
    /// Whether their agents said goodbye.
    lost: Vec<(NodeId, bool)>,
    inventories: Vec<(NodeId, Box<v1::NodeReport>)>,
}

/// Writes until `stop`.
pub(crate) async fn run(
    hub: Arc<NodeSessions>,
    mut jobs: mpsc::Receiver<Job>,
    leaves: AgentLeaves,
    scan_interval: Duration,
    stop: CancellationToken,
) {
    let mut scan = tokio::time::interval(scan_interval);
    scan.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = VecDeque::new();
    let mut looks = VecDeque::new();
    let mut usages = BTreeSet::new();
    let mut next_scan = Millis(0);
    loop {
        if waiting.is_empty() && looks.is_empty() && usages.is_empty() {
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => waiting.push_back(job),
                    None => return,
                },
                () = hub.due_nodes.wait() => {}
                () = due(&mut scan) => {
                    // Many in one commit: nobody waits for them.
                    usages.extend(hub.due_nodes.take_usages());
                    let over = hub.over_quarantined();
                    waiting.extend(over.into_iter().map(|node| Job::Quarantine(node, None)));
                    waiting.extend(leaves.find_changes(&hub));
                    waiting.extend(absent(&hub).into_iter().map(Job::Forget));
                    waiting.extend(hub.review_failures().into_iter().map(measure));
                    if hub.now() >= next_scan {
                        let found;
                        (found, next_scan) = changed(&hub);
                        looks.extend(found);
                    }
                }
                () = stop.cancelled() => return,
            }
        }
        while let Ok(job) = jobs.try_recv() {
            waiting.push_back(job);
        }
        for (node, quarantine) in hub.due_nodes.take_offenders() {
            tracing::warn!(node_id = node.0, reason = quarantine.reason, "node quarantined");
            waiting.push_back(Job::Quarantine(node, Some(quarantine)));
        }
        if hub.is_review_due() {
            waiting.extend(hub.review_failures().into_iter().map(measure));
        }
        looks.extend(hub.due_nodes.take_looks());
        if !looks.is_empty() {
            // What is written now may differ again by then, or be refused.
            next_scan = Millis(0);
        }
        let (mut round, changes) = compose(&hub, &leaves, &mut waiting, &mut looks);
        for (node, rival) in std::mem::take(&mut round.rivals) {
            hub.note_rival(node, rival);
        }
        take_usages(&hub, &mut round, &mut usages);
        tokio::select! {
            () = commit(&hub, round, changes, &mut waiting) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// What is done to a node on which units fail.
fn measure(measure: NodeMeasure) -> Job {
    match measure {
        NodeMeasure::Suspect(node, effect) => Job::Suspect(node, effect),
        NodeMeasure::Quarantine(node, quarantine) => {
            tracing::warn!(node_id = node.0, reason = quarantine.reason, "node quarantined");
            Job::Quarantine(node, Some(quarantine))
        }
        NodeMeasure::Lift(node) => {
            tracing::warn!(
                node_id = node.0,
                "the quarantine of a node ends: something that waits could use no other one"
            );
            Job::Lift(node)
        }
    }
}

async fn due(scan: &mut Interval) {
    scan.tick().await;
}

/// Nodes whose lease and readiness differ, or with an inventory that is not written; and until when no further
/// lease can be over.
fn changed(hub: &NodeSessions) -> (Vec<NodeId>, Millis) {
    let now = hub.now();
    let mut changed = Vec::new();
    // Who is heard of from now on has a whole lease.
    let mut first_end = hub.deadline();
    hub.for_each_slot(|slot| {
        let cell = slot.cell.lock();
        let alive = now < cell.deadline;
        if alive != cell.ready || cell.inventory.is_some() {
            changed.push(slot.node);
        }
        if alive {
            first_end = first_end.min(cell.deadline);
        }
    });
    (changed, first_end)
}

/// Nodes whose records go because they are absent for too long.
fn absent(hub: &NodeSessions) -> Vec<NodeId> {
    let (now, limit_ms) = (hub.now(), hub.timing.node_absence_ms);
    if limit_ms == 0 {
        return Vec::new();
    }
    let mut presences = Vec::new();
    hub.for_each_slot(|slot| {
        let lease_ends = slot.cell.lock().deadline;
        if now.since(lease_ends) >= limit_ms {
            presences.push(NodePresence { node: slot.node, lease_ends, has_units: false });
        }
    });
    hub.store.read(|state| {
        for one in &mut presences {
            one.has_units = state.rows().live_on_node(one.node) > 0;
        }
    });
    node_absence::absent(presences, now, limit_ms, N_ABSENT_MAX)
}

fn compose(
    hub: &NodeSessions,
    leaves: &AgentLeaves,
    waiting: &mut VecDeque<Job>,
    looks: &mut VecDeque<NodeId>,
) -> (Round, Changes) {
    let (mut round, mut changes) = (Round::default(), Changes::default());
    // Lost and returning nodes go before newcomers.
    while let Some(node) = looks.pop_front() {
        let Some(slot) = hub.slot(node) else { continue };
        let mut cell = slot.cell.lock();
        let (ready, was_ready, inventory) = (hub.now() < cell.deadline, cell.ready, cell.inventory.take());
        let left = cell.left;
        drop(cell);
        if ready == was_ready && inventory.is_none() {
            continue;
        }
        let becomes_ready = ready && !was_ready;
        if let Some(job) = becomes_ready.then(|| leaves.find_unrecorded(&slot, hub)).flatten() {
            // Nothing may be placed there before the record says so: the next scan finds the node again.
            if let Some(inventory) = inventory {
                slot.cell.lock().inventory.get_or_insert(inventory);
            }
            waiting.push_back(job);
            continue;
        }
        let before = inventory.as_ref().and_then(|_| Known(hub).stored(node)?.report);
        let taken = round.change_report(node, inventory.as_deref(), ready, &Known(hub));
        if taken {
            if let (Some(before), Some(now)) = (before, &inventory) {
                say_trouble(hub, node, &before, now);
            }
            if was_ready && !ready {
                slot.cell.lock().measure.lose_load();
                hub.due_nodes.record_usage(node);
                changes.lost.push((node, left));
            }
            changes.inventories.extend(inventory.map(|inventory| (node, inventory)));
            continue;
        }
        if let Some(inventory) = inventory {
            slot.cell.lock().inventory.get_or_insert(inventory);
        }
        looks.push_front(node);
        break;
    }
    while let Some(job) = waiting.pop_front() {
        if let Err(job) = round.take(job, &Known(hub)) {
            if round.is_empty() {
                // It waits for nothing: a record of its node is missing or does not decode.
                tracing::error!(?job, "a node's records are broken");
                job.fail(|| Status::internal("the node's records are broken"));
                continue;
            }
            waiting.push_front(job);
            break;
        }
    }
    (round, changes)
}

/// Says what an agent can no longer do, or can do again.
fn say_trouble(hub: &NodeSessions, node: NodeId, before: &v1::NodeReport, now: &v1::NodeReport) {
    let name = hub.names.read().of(node).map(|(name, _)| name.to_owned()).unwrap_or_default();
    if before.trouble != now.trouble {
        match now.trouble.as_str() {
            "" => tracing::info!(node = name, "the node starts what it is given again"),
            why => tracing::warn!(node = name, why, "the node can start nothing and gets nothing new"),
        }
    }
    if before.images_trouble != now.images_trouble {
        match now.images_trouble.as_str() {
            "" => tracing::info!(node = name, "the node runs images again"),
            why => tracing::warn!(node = name, why, "the node can run no images and gets none"),
        }
    }
}

/// As many uses as the round takes. A node is looked at as it is now; one that is refused comes again with its next heartbeat.
fn take_usages(hub: &NodeSessions, round: &mut Round, usages: &mut BTreeSet<NodeId>) {
    while let Some(node) = usages.pop_first() {
        let due = hub.slot(node).and_then(|slot| slot.cell.lock().usage_due(node, hub.measuring));
        let Some(usage) = due else { continue };
        let is_registered = || {
            let key = Key::Id(u64::from(node.0));
            hub.store.read(|state| state.record(v1::Kind::NodeSpec, &key).is_some())
        };
        if !round.put_usage(&usage, is_registered) {
            usages.insert(node);
            return;
        }
    }
}

async fn commit(hub: &NodeSessions, round: Round, changes: Changes, waiting: &mut VecDeque<Job>) {
    let Round { role, ops, causes, answers, leaving, .. } = round;
    if let Some(node) = leaving {
        hub.set_leaving(node, true);
    }
    let revision = match role {
        None => None,
        Some(role) => {
            let lines = causes.into_iter().map(|cause| to_proto::change_line(&ChangeLine::done(cause)));
            let txn = raw::TxnRequest { ops, changes: lines.collect(), ..raw::TxnRequest::default() };
            match hub.store.submit(txn, role).await {
                Ok(committed) => {
                    hub.delivery.until(committed.revision).await;
                    Some(committed)
                }
                Err(refusal) => {
                    if let Some(node) = leaving {
                        hub.set_leaving(node, false);
                    }
                    refused(hub, &refusal, answers, changes);
                    if !matches!(refusal.reason, RefusalReason::RowConflict) {
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                    return;
                }
            }
        }
    };
    for (node, left) in &changes.lost {
        if *left {
            tracing::info!(node_id = node.0, "node not ready: its agent has signed off");
        } else {
            hub.metrics.nodes_lost.inc();
            tracing::info!(node_id = node.0, "node lost: the lease of its session has expired");
        }
    }
    hub.crash.hit("state.before-answer");
    let at = revision.map_or(0, |committed| committed.revision.0);
    for one in answers {
        match one {
            JobAnswer::Registered(node, reply) => {
                hub.metrics.registrations.inc();
                if let Some(slot) = hub.slot(node) {
                    // It is back: its absence does not end its record before it has opened a session.
                    let mut cell = slot.cell.lock();
                    cell.deadline = cell.deadline.max(hub.now());
                }
                let (epoch, store_id) = (hub.epochs.give(), hub.store_id().0);
                answer(reply, Ok(v1::RegisterNodeResponse { node_id: node.0, epoch, store_id }));
            }
            JobAnswer::Updated(spec, reply) => {
                let node = NodeId(spec.node_id);
                let spec = view::spec(hub, node).or(Some(*spec));
                answer(reply, Ok(v1::UpdateNodeResponse { spec, revision: at, changed: true }));
            }
            JobAnswer::Deleted(name, reply) => {
                tracing::info!(node = name, "node deleted");
                answer(reply, Ok(v1::DeleteNodeResponse { revision: at }));
            }
            JobAnswer::Forgotten(node) => {
                let absence_s = hub.timing.node_absence_ms / 1_000;
                tracing::info!(
                    node_id = node.0,
                    absence_s,
                    "node deleted: it was without a session for too long"
                );
            }
            JobAnswer::Again(job) => waiting.push_front(job),
        }
    }
}

fn refused(hub: &NodeSessions, refusal: &TxnRefusal, answers: Vec<JobAnswer>, changes: Changes) {
    hub.metrics.refused(error::reason_name(refusal.reason));
    let status = || match refusal.reason {
        // The clients' requests were checked: what the store finds wrong with them is state's fault.
        RefusalReason::Invalid
        | RefusalReason::Forbidden
        | RefusalReason::Precondition
        | RefusalReason::NodeChanged
        | RefusalReason::StaleEpoch
        | RefusalReason::StoreChanged
        | RefusalReason::FutureRevision => {
            tracing::error!(%refusal, "node records were refused");
            Status::internal("the store refused the node records")
        }
        RefusalReason::StoreFull | RefusalReason::RowConflict | RefusalReason::Closed => {
            error::status(refusal, None)
        }
    };
    for one in answers {
        match one {
            JobAnswer::Registered(_, reply) => answer(reply, Err(status())),
            JobAnswer::Updated(_, reply) => answer(reply, Err(status())),
            JobAnswer::Deleted(name, reply) if refusal.reason == RefusalReason::RowConflict => {
                answer(reply, Err(in_use(hub, &name)));
            }
            JobAnswer::Deleted(_, reply) => answer(reply, Err(status())),
            JobAnswer::Forgotten(node) => {
                // Room is held there: it is looked at again after as long an absence.
                tracing::debug!(node_id = node.0, "an absent node cannot be deleted yet");
                if let Some(slot) = hub.slot(node) {
                    slot.cell.lock().deadline = hub.now();
                }
            }
            JobAnswer::Again(job) => job.fail(status),
        }
    }
    // The scan finds them again.
    for (node, inventory) in changes.inventories {
        if let Some(slot) = hub.slot(node) {
            slot.cell.lock().inventory.get_or_insert(inventory);
        }
    }
}

impl RoundNodes for Known<'_> {
    fn by_name(&self, name: &str) -> Option<NodeId> {
        self.0.names.read().by_name(name)
    }

    fn by_uid(&self, uid: &str) -> Option<NodeId> {
        self.0.names.read().by_uid(uid)
    }

    fn find(&self, asked: &str) -> Result<NodeId, Status> {
        self.0.names.read().find(asked).map_err(not_found)
    }

    fn stored(&self, node: NodeId) -> Option<Stored> {
        let key = Key::Id(u64::from(node.0));
        let (spec, report, n_live) = self.0.store.read(|state| {
            let spec =
                state.record(v1::Kind::NodeSpec, &key).map(|record| (record.revision, record.value.clone()));
            let report = state.record(v1::Kind::NodeReport, &key).map(|record| record.value.clone());
            (spec, report, state.rows().live_on_node(node))
        });
        let (revision, spec) = spec?;
        Some(Stored {
            revision: revision.0,
            spec: v1::NodeSpec::decode(spec).ok()?,
            report: report.and_then(|report: Bytes| v1::NodeReport::decode(report).ok()),
            n_live,
        })
    }

    fn is_alive(&self, node: NodeId) -> bool {
        let now = self.0.now();
        self.0.slot(node).is_some_and(|slot| now < slot.cell.lock().deadline)
    }

    fn may_speak(&self, node: NodeId, instance: u64) -> bool {
        self.0.slot(node).is_none_or(|slot| {
            let cell = slot.cell.lock();
            cell.agent.instances.may_speak(instance, self.0.now() < cell.deadline)
        })
    }

    fn next_id(&self) -> NodeId {
        self.0.store.read(godel_store::State::next_node_id)
    }

    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
}

/// Something is bound to a node, or held there.
fn in_use(hub: &NodeSessions, name: &str) -> Status {
    let node = hub.names.read().find(name).ok();
    let n_live = node.map_or(0, |node| hub.store.read(|state| state.rows().live_on_node(node)));
    let what = match n_live {
        0 => "room is held there".to_owned(),
        1 => "1 running unit is bound there".to_owned(),
        n => format!("{n} running units are bound there"),
    };
    let message = format!(
        "node {name} is in use: {what}; drain it (`godel node drain {name}`) before its agent stops, or \
         wait until the grace of a lost node is over"
    );
    status::failed_precondition(reason::NODE_IN_USE, format!("node/{name}"), message)
}

/// The node that `asked` stands for, for whoever reads.
pub(crate) fn resolve(hub: &NodeSessions, asked: &str) -> Result<NodeId, Status> {
    hub.names.read().resolve(asked).map_err(not_found)
}

fn not_found(error: NotFound) -> Status {
    let (code, why) = match &error {
        NotFound::Unknown { .. } => (Code::NotFound, reason::UNKNOWN_NAME),
        NotFound::Ambiguous { .. } => (Code::InvalidArgument, reason::AMBIGUOUS_NAME),
    };
    let message = error.to_string();
    let (NotFound::Unknown { asked, near: some } | NotFound::Ambiguous { asked, some }) = error;
    with_info(code, why, message, [("name", asked), ("some", some.join(","))])
}
