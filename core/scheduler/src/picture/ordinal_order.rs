//! Ordinals follow the topology: of a unit that is placed by topology levels, replicas with consecutive ordinals are in one
//! domain where they can be, and on one node. Ranks of a training job that talk to their neighbours are then near them.
//!
//! Which places a unit gets is decided before; here its places are dealt out to its ordinals. Domains keep the order in which
//! they were taken.

use godel_base::ids::RunningUnitId;
use godel_cluster::TopologyLevel;
use godel_domain::decision::GroupPlacement;
use rustc_hash::FxHashMap;

use super::{Picture, Try, grouping::levels_of_keys};
use crate::assigned_unit::AssignedUnit;

/// Fewer replicas than this are in order however they are placed.
const N_LEAST: usize = 3;

/// Deals the places of a first placement out to the ordinals of its task groups: by the levels of a task group that has some of its own,
/// else by those of the unit. Slots of reservations keep who is in them, and segments have their ordinals already.
pub(crate) fn follow_topology(picture: &mut Picture, assigned: &AssignedUnit, tried: &mut Try) {
    if assigned.gang.lacking() == 0 || !picture.cluster.domains().is_active() {
        return;
    }
    let Some(rules) = picture.cluster.domains().rules_of(assigned.unit()) else { return };
    let has_levels = !rules.keys.is_empty() || !rules.groups.is_empty();
    if !has_levels || rules.segments.is_some() || !picture.owned(assigned).is_empty() {
        return;
    }
    let mut is_dealt_out = false;
    for placement in &mut tried.groups {
        if placement.ordinals.len() < N_LEAST {
            continue;
        }
        let of_group = rules.of_group(placement.group);
        if of_group.is_some_and(|of_group| of_group.segments.is_some()) {
            continue;
        }
        let own = of_group.map(|of_group| &of_group.keys).filter(|keys| !keys.is_empty());
        let Some(work) = assigned.groups.get(usize::from(placement.group)) else { continue };
        let keys = own.unwrap_or(&rules.keys);
        let levels = levels_of_keys(picture, assigned.unit(), work.template, keys);
        let order = order_of(picture, &levels, placement);
        if !order.is_sorted() {
            deal_out(placement, &order);
            is_dealt_out = true;
        }
    }
    if is_dealt_out {
        picture.cluster.take_back(tried.mark);
        tried.groups.iter().for_each(|placement| assume(picture, assigned, placement));
    }
}

/// Returns the positions of the places in the order in which ordinals get them: `O(places × levels)`, and a sort.
fn order_of(picture: &mut Picture, levels: &[TopologyLevel], placement: &GroupPlacement) -> Vec<usize> {
    // The widest level first, nodes last. What is of no domain stands by itself.
    let mut ranks: Vec<Vec<usize>> = Vec::with_capacity(levels.len() + 1);
    for level in levels.iter().rev() {
        let keys = placement.nodes.iter().map(|node| picture.cluster.domains().values_of(level, *node));
        ranks.push(by_first_seen(keys));
    }
    ranks.push(by_first_seen(placement.nodes.iter()));
    let mut order: Vec<usize> = (0..placement.ordinals.len()).collect();
    order.sort_by(|a, b| ranks.iter().map(|rank| rank[*a]).cmp(ranks.iter().map(|rank| rank[*b])));
    order
}

/// Numbers keys in the order in which they turn up.
fn by_first_seen<K: Eq + std::hash::Hash>(keys: impl Iterator<Item = K>) -> Vec<usize> {
    let mut seen: FxHashMap<K, usize> = FxHashMap::default();
    let mut ranks = Vec::new();
    for key in keys {
        let next = seen.len();
        ranks.push(*seen.entry(key).or_insert(next));
    }
    ranks
}

/// Gives the replicas, in the order of their ordinals, the places in another order.
fn deal_out(placement: &mut GroupPlacement, order: &[usize]) {
    let mut dealt = GroupPlacement { group: placement.group, ..GroupPlacement::default() };
    for (replica, at) in placement.replicas().zip(order) {
        dealt.push(replica, placement.nodes[*at], placement.allocation(*at));
    }
    *placement = dealt;
}

/// Assumes what is placed of a task group.
fn assume(picture: &mut Picture, assigned: &AssignedUnit, placement: &GroupPlacement) {
    let Some(work) = assigned.groups.get(usize::from(placement.group)) else { return };
    let shape = picture.placer.templates.get(work.template).ask.shape();
    for (idx, replica) in placement.replicas().enumerate() {
        let id = RunningUnitId { unit: assigned.unit(), replica };
        picture.cluster.try_out(id, shape, placement.nodes[idx], placement.allocation(idx));
    }
}
