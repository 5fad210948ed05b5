//! Which scheduler owns which node, in every mode but `global`.
//!
//! A strategy says what is balanced: the number of nodes, what is free on them, or that of whole racks. On join, leave
//! or node change only the necessary nodes move, a leaver's to where there is least. In `global` mode nothing but the
//! schedulers' names is recorded, so that joining nodes cost no write. Else each block of nodes has a record of its own
//! ([`PartitionRecords`]): what moves nodes writes the blocks in which they are, and no more.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
};

use godel_base::ids::NodeId;
use godel_domain::change::{Partition, PartitionMode};
use rustc_hash::FxHashMap;

mod even;
mod records;
mod weighed;

pub use records::PartitionRecords;
pub use records::blocks;

/// Nodes of one scheduler, ascending.
pub type OwnedNodes = Vec<NodeId>;

/// What a strategy may ask of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits<'a> {
    /// By node: how much it can take, see [`weight`].
    pub weights: &'a [u64],
    /// What fails together, a rack for example; a node that is not here is alone.
    pub domains: Option<&'a FxHashMap<NodeId, Arc<str>>>,
}

/// A way to give nodes to schedulers.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// Nodes of each scheduler, from what each has (there is at least one) and nodes that nobody has.
    fn assign(&self, traits: &Traits<'_>, owned: Vec<OwnedNodes>, homeless: OwnedNodes) -> Vec<OwnedNodes>;
}

/// Names of the strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrategyKind {
    /// As many nodes for each.
    EvenCount,
    /// As much free room for each.
    #[default]
    FreeResources,
    /// The same, but all nodes of a rack have one owner.
    Topology,
}

impl StrategyKind {
    /// The strategy.
    pub fn strategy(self) -> &'static dyn Strategy {
        match self {
            Self::EvenCount => &even::EvenCount,
            Self::FreeResources => &weighed::FreeResources,
            Self::Topology => &weighed::Topology,
        }
    }

    /// Whether it looks at [`Traits::weights`].
    pub fn weighs(self) -> bool {
        self != Self::EvenCount
    }
}

/// All that all nodes have together, in the unit of [`share`] and [`weight`], for each resource.
const WHOLE: i128 = 1 << 40;

/// What part these amounts are of the `total`, all resources alike.
pub fn share<'a>(amounts: impl Iterator<Item = (&'a str, i64)>, total: &BTreeMap<String, i64>) -> u64 {
    let part = |(name, amount): (&str, i64)| {
        let total = total.get(name).filter(|total| **total > 0)?;
        Some(i128::from(amount.max(0)) * WHOLE / i128::from(*total))
    };
    u64::try_from(amounts.filter_map(part).sum::<i128>()).unwrap_or(u64::MAX)
}

/// How much a node can take: what is free now, and an eighth of all it has, since what runs there ends one day. Both
/// by [`share`].
pub fn weight(capacity: u64, used: u64) -> u64 {
    capacity.saturating_sub(used) + capacity / 8 + 1
}

/// Slot of a node: as listed, else `node_id % schedulers`; `None` without schedulers.
pub fn slot_of(partition: &Partition, node: NodeId) -> Option<u32> {
    let n_slots = u32::try_from(partition.schedulers.len()).ok().filter(|n_slots| *n_slots > 0)?;
    let listed = partition.slots.binary_search_by_key(&node, |(listed, _)| *listed);
    Some(listed.map_or(node.0 % n_slots, |idx| partition.slots[idx].1))
}

/// The split of `nodes` over `schedulers` as the strategy has it, from `old`; `None` when nothing changes, or
/// when there is no scheduler to give nodes to. Ties go to the smaller slot and the smaller node.
///
/// O(nodes · schedulers).
pub fn split(
    old: &Partition,
    mode: PartitionMode,
    schedulers: &BTreeSet<String>,
    nodes: &BTreeSet<NodeId>,
    strategy: &dyn Strategy,
    traits: &Traits<'_>,
) -> Option<Partition> {
    if schedulers.is_empty() {
        return None;
    }
    let names = slots(&old.schedulers, schedulers);
    let slots = match mode {
        PartitionMode::Global => Vec::new(),
        PartitionMode::Preferred | PartitionMode::Strict => {
            let (owned, homeless) = owners(old, &names, nodes);
            listed(strategy.assign(traits, owned, homeless))
        }
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

/// Names by slot: who stays keeps the slot, who joins takes a leaver's. What is vacant then is filled from the end, as each
/// node whose slot is numbered anew is written.
fn slots(old: &[String], schedulers: &BTreeSet<String>) -> Vec<String> {
    let mut joiners = schedulers.iter().filter(|name| !old.contains(name)).cloned();
    let mut names: Vec<Option<String>> = Vec::with_capacity(schedulers.len());
    for name in old {
        let stays = schedulers.contains(name) && !names.iter().flatten().any(|other| other == name);
        names.push(if stays { Some(name.clone()) } else { joiners.next() });
    }
    names.extend(joiners.map(Some));
    let mut filled = Vec::with_capacity(schedulers.len());
    let mut rest: VecDeque<Option<String>> = names.into();
    while let Some(name) = rest.pop_front() {
        let last = || std::iter::from_fn(|| rest.pop_back()).flatten().next();
        filled.extend(name.or_else(last));
    }
    filled
}

/// What each slot has now; a node whose owner left has none.
fn owners(old: &Partition, names: &[String], nodes: &BTreeSet<NodeId>) -> (Vec<OwnedNodes>, OwnedNodes) {
    let new_slot: BTreeMap<&str, usize> =
        names.iter().enumerate().map(|(idx, name)| (name.as_str(), idx)).collect();
    let mut owned = vec![OwnedNodes::new(); names.len()];
    let mut homeless = OwnedNodes::new();
    let listed: BTreeMap<NodeId, u32> = old.slots.iter().copied().collect();
    for &node in nodes {
        let owner = listed.get(&node).and_then(|slot| old.schedulers.get(*slot as usize));
        match owner.and_then(|name| new_slot.get(name.as_str())) {
            Some(slot) => owned[*slot].push(node),
            None => homeless.push(node),
        }
    }
    (owned, homeless)
}

fn listed(owned: Vec<OwnedNodes>) -> Vec<(NodeId, u32)> {
    let of_slot = |(slot, own): (u32, OwnedNodes)| own.into_iter().map(move |node| (node, slot));
    let mut slots: Vec<(NodeId, u32)> = (0u32..).zip(owned).flat_map(of_slot).collect();
    slots.sort_unstable();
    slots
}

#[cfg(test)]
mod tests;
