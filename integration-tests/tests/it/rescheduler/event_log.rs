//! What the store has committed, and what that says of moves.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use godel_integration_tests::cluster::Cluster;
use godel_proto::v1::{self, op::Op};
use prost::Message as _;

/// Every operation with the revision of its commit.
pub(super) struct EventLog(Vec<(u64, Op)>);

impl EventLog {
    /// Reads it after a revision and up to now.
    pub(super) async fn read(cluster: &Cluster, after: u64) -> Result<Self> {
        let last = cluster.api.store_status().await?.revision;
        let mut ops = Vec::new();
        let accept = |commit: &godel_proto::raw::Commit| {
            let decoded = commit.ops.iter().filter_map(|op| v1::Op::decode(op.clone()).ok()?.op);
            ops.extend(decoded.map(|op| (commit.revision, op)));
            commit.revision >= last
        };
        cluster.api.watch_until(after + 1, &[], accept).await?;
        Ok(Self(ops))
    }

    /// The nodes that each replica of a unit was bound to, in order.
    pub(super) fn nodes_of(&self, unit_id: u64) -> BTreeMap<u32, Vec<u32>> {
        let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (_, op) in &self.0 {
            let Op::Bind(bind) = op else { continue };
            if bind.unit_id == unit_id {
                for (ordinal, node) in bind.ordinals.iter().zip(&bind.node_ids) {
                    nodes.entry(*ordinal).or_default().push(*node);
                }
            }
        }
        nodes
    }

    /// After every revision from the one on at which `n` replicas of a unit ran for the first time: how many do not run, or were
    /// told to leave.
    pub(super) fn missing(&self, unit_id: u64, n: usize) -> Vec<(u64, usize)> {
        let (mut there, mut missing) = (BTreeSet::new(), Vec::new());
        let mut has_begun = false;
        for (revision, op) in &self.0 {
            match op {
                Op::Evict(evict) if evict.unit_id == unit_id => {
                    for ordinal in &evict.ordinals {
                        there.remove(ordinal);
                    }
                }
                Op::RunStatus(status) if status.unit_id == unit_id => {
                    for (ordinal, phase) in status.ordinals.iter().zip(&status.phases) {
                        match *phase == i32::from(v1::RunPhase::Running) {
                            true => there.insert(*ordinal),
                            false => there.remove(ordinal),
                        };
                    }
                }
                _ => continue,
            }
            has_begun |= there.len() == n;
            if has_begun {
                missing.push((*revision, n - there.len()));
            }
        }
        missing
    }

    /// Bindings to a node on which room was held for somebody else who moves: revision, unit and node of each, and how many such
    /// holds there were.
    pub(super) fn bound_beside_holds(&self) -> (Vec<(u64, u64, u32)>, usize) {
        let (mut held, mut found, mut n_holds) = (BTreeMap::new(), Vec::new(), 0);
        for (revision, op) in &self.0 {
            match op {
                Op::PutHold(hold) if hold.movement.is_some() => {
                    let is_new = held.insert(hold.hold_id, (hold.unit_id, hold.node_id)).is_none();
                    n_holds += usize::from(is_new);
                }
                Op::Delete(delete) if delete.kind() == v1::Kind::Hold => {
                    held.remove(&delete.key.clone().unwrap_or_default().id);
                }
                Op::Bind(bind) => {
                    let beside = bind
                        .node_ids
                        .iter()
                        .filter(|node| held.values().any(|(unit, at)| at == *node && *unit != bind.unit_id));
                    found.extend(beside.map(|node| (*revision, bind.unit_id, *node)));
                }
                _ => {}
            }
        }
        (found, n_holds)
    }
}
