//! The search for victims: who has to leave so that running units of one template find room.
//!
//! A victim is preemptible, of strictly lower [`Rank`] and of the same pool, has run long enough, does not leave already, and
//! is of no unit that the preemptor was preempted for itself. Of those on a node the search spares as many as it can, the
//! highest rank first. Going below a unit's minimum means that the whole unit leaves, wherever it is, at its whole cost.
//! Nor do more running units of a disruption budget leave than it allows, over all that is found.
//! The node with the least `Cost` is taken, again and again until all replicas have a place: one search serves a whole
//! template, and what leaves for one replica makes room for the next ones.
//!
//! Nodes on which too little could leave are dropped at a first look, without asking anything of their victims. It also says
//! the least that a node can cost; only nodes whose turn comes are looked at closely.

use std::{cmp::Reverse, collections::BTreeMap};

use rustc_hash::FxHashSet;

use crate::{
    cluster::{Cluster, ShapeId},
    hold::Member,
    ids::{HoldId, NodeId, UnitId},
};

mod lent;
mod looks;
mod plan;
mod rank;
mod rule;
#[cfg(test)]
mod tests;
mod trial;

pub(crate) use self::{
    lent::{Kept, Lent, lendable},
    rank::{Rights, Tally},
    rule::{is_loop, min_member, staying},
    trial::Trial,
};
use self::{
    looks::{Look, Looks},
    plan::Plan,
};
pub use self::{
    rank::{Rank, Sides},
    rule::{Seeker, Spared},
};

/// Most running units that have to leave for one decision.
pub const N_VICTIMS_MAX: usize = 4_096;

/// What a place costs; the least is taken. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// `None`: nobody (else) has to leave.
    highest: Option<Rank>,
    /// Each counted from 1 on, so that one more is never less.
    rank_sum: i64,
    n_victims: usize,
    n_gangs: usize,
    /// Milliseconds that victims have run.
    lost_ms: i64,
    /// Of the one that runs longest.
    start_ms: Reverse<i64>,
    idx: usize,
}

/// Places, and who has to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Node and devices, one per replica.
    pub(crate) places: Vec<(NodeId, u64)>,
    /// On nodes with places, ascending.
    pub(crate) claims: BTreeMap<NodeId, Vec<Member>>,
    /// On other nodes, ascending.
    pub(crate) others: Vec<Member>,
    /// Holds on nodes with places that are taken over, ascending.
    pub(crate) taken: BTreeMap<NodeId, Vec<HoldId>>,
    /// Units that were spared because the seeker was preempted for them.
    pub(crate) n_loops: usize,
    /// When somebody will have run long enough, Unix milliseconds.
    pub(crate) retry_ms: Option<i64>,
    /// Somebody was spared because of a disruption budget.
    pub(crate) is_kept: bool,
}

/// Looks for places for `wanted` replicas of a shape on some nodes. `claimed` are victims of decisions under way, `rights`
/// what the seeker's queue may claim for all that it asks, `None` while no queue guarantees anything.
///
/// `O(nodes + running units on them)`, and for each place as much again for the nodes that its victims' units are on; for
/// all nodes whenever a victim's queue borrows no more.
pub(crate) fn search(
    cluster: &mut Cluster,
    seeker: &Seeker,
    claimed: &FxHashSet<(UnitId, u32)>,
    rights: Option<&Rights<'_>>,
    shape: ShapeId,
    nodes: impl IntoIterator<Item = usize>,
    wanted: usize,
) -> Found {
    search_lent(cluster, seeker, claimed, (rights, &Lent::default()), shape, nodes, wanted)
}

/// The same where some holds may be taken over.
pub(crate) fn search_lent(
    cluster: &mut Cluster,
    seeker: &Seeker,
    claimed: &FxHashSet<(UnitId, u32)>,
    (rights, lent): (Option<&Rights<'_>>, &Lent),
    shape: ShapeId,
    nodes: impl IntoIterator<Item = usize>,
    wanted: usize,
) -> Found {
    cluster.keep_occupants();
    let mut plan = Plan::new(cluster, *seeker, claimed, (rights, lent), shape);
    let mut looks = Looks::new(nodes, |idx| plan.glance(idx));
    while plan.n_places() < wanted
        && let Some((idx, look)) = looks.cheapest()
    {
        let choice = match look {
            Look::Close(choice) if !plan.is_stale(&choice) && plan.affords(&choice.victims) => choice,
            Look::Close(_) | Look::Glance(_) => {
                looks.set(idx, plan.choose(idx).map(Look::Close));
                continue;
            }
        };
        if plan.n_gone() + choice.victims.len() > N_VICTIMS_MAX {
            continue;
        }
        let mut concerned = plan.take(idx, &choice);
        if plan.is_turned() {
            concerned.extend(looks.all());
        }
        for idx in concerned {
            if looks.has(idx) {
                looks.set(idx, plan.glance(idx).map(Look::Glance));
            }
        }
    }
    plan.found()
}
