//! Which nodes a daemon is for, and what that makes of its replicas.
//!
//! As a DaemonSet in Kubernetes: one replica on each node whose labels and taints its template accepts, whatever room the
//! node has and whether it is ready or cordoned. So many ordinals are wanted; which of them goes to which of the nodes is
//! the scheduler's to say, and the filter `daemon` keeps a second one from a node: an ordinal without a node is for one of the
//! nodes without a replica.

use std::collections::BTreeSet;

use godel_base::ids::NodeId;
use godel_domain::{
    lifecycle::GangTerms,
    limits::{ORDINAL_MAX, REPLICAS_MAX},
    node::{NODE_CLASS, NodeRuntime, Taint, TaintEffect, may_come},
    running_units::RunningUnits,
    unit::{Template, UnitRecord},
};

use crate::admission::{
    scale::{N_RANGES_MAX, extend},
    stop::{note_begin, remove},
};

/// What a node is to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeUse {
    /// Nothing of the daemon stays there.
    Refused,
    /// A replica that is there stays, and none comes: a taint keeps new ones away, or the node cannot be read.
    Kept,
    /// One replica is for it.
    Wanted,
}

/// Says what a node is to a daemon, by its taints, what its agent does with commands, and its labels.
pub fn node_use<'a>(
    template: &Template,
    taints: &[Taint],
    runtime: NodeRuntime,
    label: impl Fn(&str) -> Option<&'a str>,
) -> NodeUse {
    if !runtime.takes(&template.run) {
        return NodeUse::Refused;
    }
    let has_labels =
        template.node_selector.iter().all(|(key, value)| label(key.as_str()) == Some(value.as_str()));
    if !has_labels || !template.node_affinity.admits(&label) {
        return NodeUse::Refused;
    }
    let mut conditions = template.node_affinity.required.iter().flatten();
    let names_class =
        template.node_selector.contains_key(NODE_CLASS) || conditions.any(|one| one.key == NODE_CLASS);
    if !names_class && label(NODE_CLASS).is_some() {
        return NodeUse::Refused;
    }
    let is_tolerated =
        |taint: &Taint| template.tolerations.iter().any(|toleration| toleration.tolerates(taint));
    let refusing = taints.iter().filter(|taint| !may_come(taint, &template.tolerations));
    let uses = refusing.map(|taint| match taint.effect {
        // What tolerates it for a time stays until then.
        TaintEffect::NoExecute if is_tolerated(taint) => NodeUse::Kept,
        TaintEffect::NoExecute => NodeUse::Refused,
        TaintEffect::NoSchedule | TaintEffect::PreferNoSchedule => NodeUse::Kept,
    });
    uses.min().unwrap_or(NodeUse::Wanted)
}

/// What becomes of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Followed {
    /// The record with the replicas that the nodes want; `None`: it has them.
    pub record: Option<UnitRecord>,
    /// Replicas that have ended for good and are, or would be, replaced by others for the same nodes.
    pub n_ended: usize,
}

/// Says what becomes of the replicas of a daemon: `wanted` are the nodes that are for it, and `use_of` says so of any node.
/// Replicas that have ended for good are replaced if `replaces`. `rows` must be known up to the revision of the record.
///
/// What runs on a node that is not for it any more goes, and so do the highest ordinals without a node where there are too
/// many of them; new ones come after every ordinal that there ever was, [`ORDINAL_MAX`] at most. O(replicas + nodes).
pub fn follow(
    record: &UnitRecord,
    rows: &RunningUnits,
    wanted: impl Iterator<Item = NodeId>,
    use_of: impl Fn(NodeId) -> NodeUse,
    replaces: bool,
) -> Followed {
    let terms = GangTerms::of(record);
    let mut open: BTreeSet<NodeId> = wanted.collect();
    let (mut gone, mut waiting, mut ended) = (BTreeSet::new(), Vec::new(), Vec::new());
    for ordinal in record.iter_ordinals() {
        let row = rows.row(ordinal);
        if row.phase.is_live() {
            open.remove(&row.node);
            if use_of(row.node) == NodeUse::Refused {
                gone.insert(ordinal);
            }
        } else if row.phase.is_ended() && (!row.was_sent_away() || terms.is_over(&row)) {
            ended.push((ordinal, row.node));
        } else {
            waiting.push(ordinal);
        }
    }
    // One that has ended stands for its node for a while, unless another one runs there by now.
    let mut n_ended = 0;
    for (ordinal, node) in ended {
        let is_for_node = open.contains(&node);
        n_ended += usize::from(is_for_node);
        if !is_for_node || replaces || !open.remove(&node) {
            gone.insert(ordinal);
        }
    }
    let n_surplus = waiting.len().saturating_sub(open.len());
    let n_missing = open.len().saturating_sub(waiting.len());
    gone.extend(waiting.into_iter().rev().take(n_surplus));
    let changed = changed(record, rows, &gone, n_missing);
    Followed { record: changed, n_ended }
}

fn changed(
    record: &UnitRecord,
    rows: &RunningUnits,
    gone: &BTreeSet<u32>,
    n_missing: usize,
) -> Option<UnitRecord> {
    let n_bound = rows.rows.end();
    let begin = record.ranges().map(|range| range.1).max().unwrap_or(0).max(n_bound);
    let n_left = record.spec.replicas().saturating_sub(u32::try_from(gone.len()).unwrap_or(u32::MAX));
    let n_most = REPLICAS_MAX.saturating_sub(n_left).min(ORDINAL_MAX.saturating_sub(begin));
    let n_new = u32::try_from(n_missing).unwrap_or(u32::MAX).min(n_most);
    if gone.is_empty() && n_new == 0 {
        return None;
    }
    let mut changed = record.clone();
    changed.note_submitted();
    let (group, ranges) = (changed.spec.task_groups.first_mut()?, changed.status.ordinals.first_mut()?);
    remove(group, ranges, gone);
    if n_new > 0 {
        ranges.retain(|(start, end)| start < end);
        extend(ranges, begin, begin + n_new);
        group.replicas += n_new;
    }
    let end = begin + n_new;
    let end = end + shorten(ranges, end);
    if ranges.last().is_none_or(|last| last.1 < end) {
        note_begin(&mut changed, end);
    }
    Some(changed)
}

/// Keeps the ranges few enough for a record: the replicas of the shortest ones are replaced by others, with the ordinals from
/// `begin` on. Returns how many these are.
fn shorten(ranges: &mut Vec<(u32, u32)>, begin: u32) -> u32 {
    let mut n_moved = 0;
    while ranges.len() >= N_RANGES_MAX {
        let shortest = (0..ranges.len() - 1).min_by_key(|idx| ranges[*idx].1 - ranges[*idx].0);
        let len = |idx: usize| ranges[idx].1 - ranges[idx].0;
        let Some(idx) = shortest.filter(|idx| begin + n_moved + len(*idx) <= ORDINAL_MAX) else { break };
        n_moved += len(idx);
        ranges.remove(idx);
    }
    if n_moved > 0 {
        extend(ranges, begin, begin + n_moved);
    }
    n_moved
}

#[cfg(test)]
mod tests;
