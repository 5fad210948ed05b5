//! Recommender `movement`: a replica that a movement moves goes to the node where room is held for it.
//!
//! Whoever places it there takes no account of that hold, which is the replica's own: see [`target_of`].

use godel_base::ids::{HoldId, NodeId, ReplicaId, RunningUnitId};
use godel_cluster::Cluster;
use godel_domain::hold::Hold;
use smallvec::SmallVec;

use crate::point::{Plugin, Recommend, RecommendInput};

/// The plugin.
#[derive(Debug)]
pub struct Movement;

impl Plugin for Movement {
    const NAME: &'static str = "movement";
    const DOC: &'static str = "A replica that is being moved goes to the node where room is held for it. If it does not fit there any more, it goes wherever \
                               it fits.";
}

impl Recommend for Movement {
    fn concerns(&self, of: &RecommendInput<'_>) -> bool {
        of.moves
    }

    fn for_replica(&self, cluster: &Cluster, of: &RecommendInput<'_>, replica: ReplicaId) -> Option<NodeId> {
        target_of(cluster, RunningUnitId { unit: of.unit, replica }).map(|(_, node)| node)
    }
}

/// The hold of a movement for a running unit that is to be placed, and its node; the first one if there are several.
pub fn target_of(cluster: &Cluster, id: RunningUnitId) -> Option<(HoldId, NodeId)> {
    let holds = cluster.holds().of(id.unit).into_iter().filter_map(|hold| cluster.holds().get(hold));
    let mut targets = holds.filter(|hold| hold.movement.is_some());
    let hold = targets.find(|hold| hold.replicas().any(|replica| replica == id.replica))?;
    Some((hold.id, hold.node))
}

/// Holds of movements on a node whose running units were placed there and are not bound yet: what they took is what was held.
pub fn entered_on(cluster: &Cluster, node: NodeId) -> SmallVec<[HoldId; 4]> {
    let is_there = |hold: &Hold, replica: ReplicaId| {
        let assumed = cluster.taken().assumptions.get(hold.unit, replica.ordinal);
        assumed.is_some_and(|assumed| assumed.node == node)
    };
    let holds = cluster.holds().on(node).iter().filter_map(|hold| cluster.holds().get(*hold));
    holds
        .filter(|hold| hold.movement.is_some() && hold.replicas().all(|replica| is_there(hold, replica)))
        .map(|hold| hold.id)
        .collect()
}
