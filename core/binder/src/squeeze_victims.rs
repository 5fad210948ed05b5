//! Who has to leave when best-effort running units are above the room of their node.
//!
//! Lowest rank first: masters of applications after all others, those that may be preempted before those that may not, then by
//! priority, and of equal ones who came last. Only what gives back something that is short leaves. Pure; the binder says when, see
//! [`Binder::take_squeezes`](crate::Binder::take_squeezes).

use std::cmp::Reverse;

use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::demand::Pool;

/// The order in which running units of a node leave. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    is_master: bool,
    is_protected: bool,
    priority: i32,
    since_ms: Reverse<i64>,
    unit: UnitId,
    ordinal: u32,
}

/// Best-effort running units that have to leave a node so that the rest fits its room, in their order; `leaves` says who
/// is on the way out already. `O(n log n)` in the running units of the node, and once in those of the cluster.
pub(crate) fn victims(
    cluster: &mut Cluster,
    node: NodeId,
    leaves: impl Fn(UnitId, u32) -> bool,
) -> Vec<RunningUnitId> {
    if !cluster.free().is_over(node) {
        return Vec::new();
    }
    cluster.taken_mut().keep_occupants();
    let mut free: Vec<i64> = cluster.free().best_effort_free(node).to_vec();
    let mut staying = Vec::new();
    for one in cluster.taken().occupants.on(node).iter().filter(|one| one.pool == Pool::BestEffort) {
        let Some(rows) = cluster.rows().of(one.unit) else { continue };
        let row = rows.row(one.ordinal);
        if row.eviction.is_some() || leaves(one.unit, one.ordinal) {
            give_back(&mut free, cluster, one.shape);
            continue;
        }
        let standing = rows.standing(row.group);
        let order = Order {
            is_master: one.is_master,
            is_protected: one.priority.is_none(),
            priority: standing.map_or(0, |standing| standing.priority),
            since_ms: Reverse(row.bound_time_ms),
            unit: one.unit,
            ordinal: one.ordinal,
        };
        staying.push((order, one.shape, row.incarnation));
    }
    staying.sort_unstable();
    let mut victims = Vec::new();
    for (Order { unit, ordinal, .. }, shape, incarnation) in staying {
        let asks = &cluster.catalogue().shape(shape).asks;
        if asks.iter().any(|(id, amount)| *amount > 0 && free[usize::from(*id)] < 0) {
            give_back(&mut free, cluster, shape);
            victims.push(RunningUnitId::new(unit, ordinal, incarnation));
        }
    }
    victims
}

fn give_back(free: &mut [i64], cluster: &Cluster, shape: godel_cluster::ShapeId) {
    for (id, amount) in &cluster.catalogue().shape(shape).asks {
        let free = &mut free[usize::from(*id)];
        *free = free.saturating_add(*amount);
    }
}
