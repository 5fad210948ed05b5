//! Identities of agents: they expire, are renewed, and are revoked.
//!
//! State looks at the certificate of an agent that has a session at each scan, and writes what it finds into the record of the node. In between
//! the record says something else than is so: what is bound then was bound in time.

use godel_base::ids::NodeId;
use godel_domain::{change::Change, node::NodeSpec, records::Record, running_units::RunChange};

use super::{
    agents::PlayedLeaf,
    movements,
    net::Event,
    numbers::Numbers,
    reach::{Mark, MarkCounts},
    store::Store,
    world::Model,
};

/// State scans this often, milliseconds.
const SCAN_MS: u64 = 60;

/// The certificate of an agent expires. Most renew it after a while, as once state answers again.
pub(super) fn expire_leaf(model: &mut Model, node: NodeId, numbers: &mut Numbers) {
    let node = aim(model, node, numbers);
    if model.agents.leaf(node) != PlayedLeaf::Valid {
        return;
    }
    model.agents.set_leaf(node, PlayedLeaf::Expired);
    model.net.after(numbers.below(SCAN_MS), Event::ScanLeaf(node));
    if numbers.chance(80) {
        model.net.after(1 + numbers.below(2_000), Event::Renewed(node));
    }
}

pub(super) fn renew_leaf(model: &mut Model, node: NodeId) {
    if model.agents.leaf(node) == PlayedLeaf::Expired {
        model.agents.set_leaf(node, PlayedLeaf::Valid);
        let after_ms = model.net.numbers.below(SCAN_MS);
        model.net.after(after_ms, Event::ScanLeaf(node));
    }
}

/// State writes what it finds, if the agent has a session.
pub(super) fn scan_leaf(model: &mut Model, node: NodeId) {
    if model.agents.is_in_contact(node) {
        record_leaf(model, node);
    }
}

/// The record of a node says how the certificate of its agent counts.
pub(super) fn record_leaf(model: &mut Model, node: NodeId) {
    let Some(spec) = model.store.world.nodes.get(&node).and_then(|node| node.spec.as_ref()) else {
        return;
    };
    let has_expired = model.agents.leaf(node) == PlayedLeaf::Expired;
    if spec.value.identity_expired_since_ms.is_some() == has_expired {
        return;
    }
    let identity_expired_since_ms = has_expired.then(|| model.net.wall_ms());
    let spec = NodeSpec { identity_expired_since_ms, ..spec.value.clone() };
    if has_expired {
        mark_expired(node, &model.store, &mut model.net.reach);
    } else {
        model.net.reach.mark(Mark::IdentityRenewed);
    }
    model.write(vec![Change::Put(Record::NodeSpec(spec))]);
}

/// An agent is revoked: its session ends, and it has none until it is let in again, by then with another certificate.
pub(super) fn revoke_agent(model: &mut Model, node: NodeId, numbers: &mut Numbers) {
    let node = aim(model, node, numbers);
    model.net.reach.mark(Mark::Revoked);
    if movements::moving(&model.store).contains(&node) {
        model.net.reach.mark(Mark::RevokedInMove);
    }
    model.agents.set_leaf(node, PlayedLeaf::Revoked);
    model.agents.lose_contact(node);
    model.net.after(10 + numbers.below(100), Event::Judge(node));
    if numbers.chance(60) {
        model.net.after(30 + numbers.below(2_000), Event::Allowed(node));
    }
}

/// That node, or often one that running units are moving from or to.
fn aim(model: &Model, node: NodeId, numbers: &mut Numbers) -> NodeId {
    let moving: Vec<NodeId> = movements::moving(&model.store).into_iter().collect();
    if moving.is_empty() || numbers.chance(40) { node } else { numbers.pick(&moving) }
}

pub(super) fn allow_agent(model: &mut Model, node: NodeId) {
    if model.agents.leaf(node) == PlayedLeaf::Revoked {
        model.agents.set_leaf(node, PlayedLeaf::Valid);
        model.back(node);
    }
}

/// What goes on at a node whose agent's certificate has expired.
fn mark_expired(node: NodeId, store: &Store, reach: &mut MarkCounts) {
    reach.mark(Mark::IdentityExpired);
    let mut live = store.rows.values().flat_map(|rows| rows.live());
    if live.any(|(_, row)| row.node == node) {
        reach.mark(Mark::ExpiredWithRuns);
    }
    if store.world.holds.values().any(|hold| hold.value.node == node) {
        reach.mark(Mark::ExpiredUnderHold);
    }
    if movements::moving(store).contains(&node) {
        reach.mark(Mark::ExpiredInMove);
    }
}

/// That nothing is bound by the newest commit to a node whose record says that the identity of its agent has expired. A binder that has not read
/// the record binds nothing there: the store refuses what was decided before.
pub(super) fn check_bound(store: &Store) -> Result<(), String> {
    let Some(commit) = store.commits.last() else { return Ok(()) };
    for change in &commit.changes {
        let Change::Rows(unit, RunChange::Bind(bind)) = change else { continue };
        for id in &bind.nodes {
            let spec = store.world.nodes.get(id).and_then(|node| node.spec.as_ref());
            if let Some(since_ms) = spec.and_then(|spec| spec.value.identity_expired_since_ms) {
                return Err(format!(
                    "{unit} is bound to node {id}, whose identity is expired since {since_ms}, at {}",
                    commit.revision
                ));
            }
        }
    }
    Ok(())
}

/// At rest the record of each node that is in contact says how the certificate of its agent counts.
pub(super) fn at_rest(model: &Model) -> Result<(), String> {
    for (id, node) in &model.store.world.nodes {
        let Some(spec) = node.spec.as_ref().filter(|_| model.agents.is_in_contact(*id)) else { continue };
        let (says, leaf) = (spec.value.identity_expired_since_ms, model.agents.leaf(*id));
        if says.is_some() != (leaf == PlayedLeaf::Expired) {
            return Err(format!(
                "node {id} is recorded as expired since {says:?}, and its agent's is {leaf:?}"
            ));
        }
    }
    Ok(())
}
