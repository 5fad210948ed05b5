//! Which scheduler owns which node, in every mode but `global`.
//!
//! Even count: two schedulers' shares differ by one node at most. Even kind: nodes that joined together are mostly
//! alike, and have neighbouring ids, so neighbours go to different schedulers; a scheduler that owns no node of a kind
//! would have to place on others' nodes, and meet them there. On join, leave or node change only the necessary nodes
//! move. In `global` mode the record names the schedulers only, so that joining nodes cost no write.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    change::{Partition, PartitionMode},
    ids::NodeId,
};

/// Slot of a node: as listed, else `node_id % schedulers`; `None` without schedulers.
pub fn slot_of(partition: &Partition, node: NodeId) -> Option<u32> {
    let n_slots = u32::try_from(partition.schedulers.len()).ok().filter(|n_slots| *n_slots > 0)?;
    let listed = partition.slots.binary_search_by_key(&node, |(listed, _)| *listed);
    Some(listed.map_or(node.0 % n_slots, |idx| partition.slots[idx].1))
}

/// The split of `nodes` over `schedulers` with the fewest moves from `old`; `None` when nothing changes, or
/// when there is no scheduler to give nodes to. Ties go to the smaller slot and the smaller node.
///
/// O(nodes · log schedulers).
pub fn split(
    old: &Partition,
    mode: PartitionMode,
    schedulers: &BTreeSet<String>,
    nodes: &BTreeSet<NodeId>,
) -> Option<Partition> {
    if schedulers.is_empty() {
        return None;
    }
    let names = slots(&old.schedulers, schedulers);
    let slots = match mode {
        PartitionMode::Global => Vec::new(),
        PartitionMode::Preferred | PartitionMode::Strict => assign(old, &names, nodes),
    };
    let new = Partition {
        mode,
        generation: old.generation + 1,
        schedulers: names,
        slots,
        by_hand: old.by_hand,
        reason: old.reason.clone(),
        changed_ms: old.changed_ms,
    };
    let same = new.mode == old.mode && new.schedulers == old.schedulers && new.slots == old.slots;
    (!same).then_some(new)
}

/// Nodes of each slot, for display: all of them in `global` mode.
pub fn shares(partition: &Partition, nodes: impl Iterator<Item = NodeId>) -> Vec<u32> {
    let mut shares = vec![0u32; partition.schedulers.len()];
    for node in nodes {
        match partition.mode {
            PartitionMode::Global => shares.iter_mut().for_each(|share| *share += 1),
            PartitionMode::Preferred | PartitionMode::Strict => {
                if let Some(share) = slot_of(partition, node).and_then(|slot| shares.get_mut(slot as usize)) {
                    *share += 1;
                }
            }
        }
    }
    shares
}

/// Names by slot: who stays keeps the slot where that leaves no gap, who joins takes a leaver's.
fn slots(old: &[String], schedulers: &BTreeSet<String>) -> Vec<String> {
    let mut joiners = schedulers.iter().filter(|name| !old.contains(name));
    let mut names: Vec<String> = Vec::with_capacity(schedulers.len());
    for name in old {
        if schedulers.contains(name) && !names.contains(name) {
            names.push(name.clone());
        } else if let Some(joiner) = joiners.next() {
            names.push(joiner.clone());
        }
    }
    names.extend(joiners.cloned());
    names
}

fn assign(old: &Partition, names: &[String], nodes: &BTreeSet<NodeId>) -> Vec<(NodeId, u32)> {
    let n_slots = names.len();
    let new_slot: BTreeMap<&str, usize> =
        names.iter().enumerate().map(|(idx, name)| (name.as_str(), idx)).collect();
    // What each slot has now; a node whose owner left has none.
    let mut owned: Vec<Vec<NodeId>> = vec![Vec::new(); n_slots];
    let mut homeless = Vec::new();
    let listed: BTreeMap<NodeId, u32> = old.slots.iter().copied().collect();
    for &node in nodes {
        let owner = listed.get(&node).and_then(|slot| old.schedulers.get(*slot as usize));
        match owner.and_then(|name| new_slot.get(name.as_str())) {
            Some(slot) => owned[*slot].push(node),
            None => homeless.push(node),
        }
    }
    // The largest shares keep the odd nodes: the fewest have to move.
    let (share, odd) = (nodes.len() / n_slots, nodes.len() % n_slots);
    let mut by_size: Vec<usize> = (0..n_slots).collect();
    by_size.sort_by_key(|slot| (std::cmp::Reverse(owned[*slot].len()), *slot));
    let mut quota = vec![share; n_slots];
    for slot in &by_size[..odd] {
        quota[*slot] += 1;
    }
    for (own, quota) in owned.iter_mut().zip(&quota) {
        let surplus = own.len().saturating_sub(*quota);
        homeless.extend(take_evenly(own, surplus));
    }
    homeless.sort_unstable();
    let missing: Vec<usize> = quota.iter().zip(&owned).map(|(quota, own)| quota - own.len()).collect();
    let mut slots: Vec<(NodeId, u32)> = homeless.iter().copied().zip(turns(&missing)).collect();
    for (slot, own) in (0u32..).zip(owned) {
        slots.extend(own.into_iter().map(|node| (node, slot)));
    }
    slots.sort_unstable();
    slots
}

/// Takes so many nodes out, at equal distances.
fn take_evenly(nodes: &mut Vec<NodeId>, n_taken: usize) -> Vec<NodeId> {
    let len = nodes.len();
    let mut idx = 0;
    let is_taken = |_: &mut NodeId| {
        idx += 1;
        idx * n_taken / len > (idx - 1) * n_taken / len
    };
    nodes.extract_if(.., is_taken).collect()
}

/// Slots in turn, each as often as `counts` says and as evenly as that goes: next is the slot that lags most behind its
/// share, the smaller one on ties.
fn turns(counts: &[usize]) -> impl Iterator<Item = u32> {
    let n_turns: usize = counts.iter().sum();
    let counts: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
    let mut given = vec![0u64; counts.len()];
    (1..=n_turns as u64).filter_map(move |turn| {
        // What it should have by now less what it has, both times the number of turns.
        let lag = |slot: &usize| (turn * counts[*slot]).saturating_sub(given[*slot] * n_turns as u64);
        let open = (0..counts.len()).filter(|slot| given[*slot] < counts[*slot]);
        let next = open.max_by_key(|slot| (lag(slot), std::cmp::Reverse(*slot)))?;
        given[next] += 1;
        u32::try_from(next).ok()
    })
}

#[cfg(test)]
mod tests;
