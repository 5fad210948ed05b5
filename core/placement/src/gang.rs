//! On which nodes a gang that waits for long gathers room: where it would fit soonest.
//!
//! Nobody knows how long running units go on, but what has run for long mostly goes on for long: of processes the median
//! of what is left is about the age (Harchol-Balter and Downey, *Exploiting Process Lifetime Distributions for Dynamic Load
//! Balancing*, ACM TOCS 15(3), 1997). So a node is believed to have room for one more running unit after a wait as long as
//! the age of the oldest one that leaves for it, the youngest leaving first; at once where there is room. The places
//! with the shortest waits are taken, one after the other. What was believed wrongly costs a turn, and is older at the next.
//!
//! Who neither ends by itself nor may be preempted for the gang is waited for by nobody: a gang that fits only in the place of
//! such gathers nothing, or what is free would be kept from everybody for the whole of its turn, and again at the next one.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, UnitId};
use godel_cluster::{Cluster, ShapeId, shapes::Shape};
use godel_domain::allocation::Allocation;

use crate::preempt::NodeTrial;

/// Running units of one task group.
#[derive(Clone, Debug)]
pub struct GroupAsk {
    /// Whose they are: nobody waits for others of the same unit to end.
    pub unit: UnitId,
    /// What each running unit takes.
    pub shape: ShapeId,
    /// Nodes that it may use, room aside; ascending.
    pub nodes: Vec<usize>,
    /// Running units to place.
    pub n: usize,
}

/// A node as it will be once some have left.
#[derive(Clone, Debug)]
struct Site {
    trial: NodeTrial,
    /// How long those that end or may be preempted are believed to stay, milliseconds; the shortest last.
    stays: Vec<Stay>,
    /// Until the last of those that have left in this picture, milliseconds.
    wait_ms: i64,
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    left_ms: i64,
    shape: ShapeId,
    allocation: Allocation,
    /// The same pool pays: its room is given back, and not its devices only.
    is_own_pool: bool,
}

impl Site {
    fn new(cluster: &Cluster, ask: &GroupAsk, idx: usize, priority: i32, now_ms: i64) -> Self {
        let pool = cluster.catalogue().shape(ask.shape).pool;
        let node = NodeId(u32::try_from(idx).unwrap_or(0));
        let mut stays: Vec<_> = cluster
            .taken()
            .occupants
            .on(node)
            .iter()
            .filter(|one| one.unit != ask.unit)
            .filter_map(|one| {
                let row = cluster.rows().of(one.unit)?.row(one.ordinal);
                let is_below = one.pool == pool && one.priority.is_some_and(|below| below < priority);
                if !one.ends && !is_below && row.eviction.is_none() {
                    return None;
                }
                let age_ms = now_ms.saturating_sub(row.bound_time_ms).max(0);
                // What is free comes before what is about to be.
                let left_ms = 1 + if row.eviction.is_some() { 0 } else { age_ms };
                let stay = Stay {
                    left_ms,
                    shape: one.shape,
                    allocation: row.allocation,
                    is_own_pool: one.pool == pool,
                };
                Some(((left_ms, one.unit, one.ordinal), stay))
            })
            .collect();
        stays.sort_unstable_by_key(|stay| std::cmp::Reverse(stay.0));
        let stays = stays.into_iter().map(|(_, stay)| stay).collect();
        Self { trial: NodeTrial::new(cluster, ask.shape, idx), stays, wait_ms: 0 }
    }

    /// Lets them leave until there is room; how long that takes.
    fn wait_for(&mut self, cluster: &Cluster, shape: &Shape) -> Option<i64> {
        while self.trial.pick(shape).is_none() {
            let stay = self.stays.pop()?;
            self.wait_ms = self.wait_ms.max(stay.left_ms);
            let takes = cluster.catalogue().shape(stay.shape);
            if stay.is_own_pool {
                self.trial.shift(takes, stay.allocation, 1);
            } else {
                self.trial.shift_devices(takes, stay.allocation.devices, 1);
            }
        }
        Some(self.wait_ms)
    }
}

/// Where a gang gathers room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// A node for each running unit, by task group as asked, and what the running unit is believed to be given there.
    pub places: Vec<Vec<(NodeId, Allocation)>>,
    /// How long it is believed to take until there is room on all of them, milliseconds.
    pub wait_ms: i64,
}

/// A node for each running unit, by task group as asked; `None` if some have no node even once everyone has left who ends by
/// itself, or whom a gang of this priority may have leave.
///
/// Each group takes the shortest waits that the groups before it have left. What is assumed on a node takes room as what runs there does,
/// so that replicas of which the places depend on one another can be chosen one by one. Ties go to the node of lower id. Occupants
/// must be kept. `O(nodes + running units on them)` for each group, times the logarithm of one node's.
pub fn choose(cluster: &Cluster, asks: &[GroupAsk], priority: i32, now_ms: i64) -> Option<Sites> {
    let mut taken: BTreeMap<usize, Site> = BTreeMap::new();
    let mut chosen = Sites { places: Vec::with_capacity(asks.len()), wait_ms: 0 };
    for ask in asks {
        let shape = cluster.catalogue().shape(ask.shape);
        let mut sites: BTreeMap<usize, Site> = BTreeMap::new();
        let mut order: BTreeSet<(i64, usize)> = BTreeSet::new();
        for &idx in &ask.nodes {
            let known = taken.get(&idx).cloned();
            let mut site = known.unwrap_or_else(|| Site::new(cluster, ask, idx, priority, now_ms));
            if let Some(wait_ms) = site.wait_for(cluster, shape) {
                order.insert((wait_ms, idx));
                sites.insert(idx, site);
            }
        }
        let mut places = Vec::with_capacity(ask.n);
        while places.len() < ask.n {
            let (wait_ms, idx) = order.pop_first()?;
            chosen.wait_ms = chosen.wait_ms.max(wait_ms);
            let site = sites.get_mut(&idx)?;
            let given = site.trial.pick(shape)?;
            site.trial.shift(shape, given, -1);
            places.push((NodeId(u32::try_from(idx).ok()?), given));
            taken.insert(idx, site.clone());
            order.extend(site.wait_for(cluster, shape).map(|wait_ms| (wait_ms, idx)));
        }
        chosen.places.push(places);
    }
    Some(chosen)
}

#[cfg(test)]
mod tests;
