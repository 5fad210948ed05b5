//! Recommender `movement`: a replica that a movement moves goes to the node where room is held for it.
//!
//! Whoever places it there takes no account of that hold, which is the replica's own: see [`target_of`].

use godel_cluster::Cluster;
use godel_domain::ids::{HoldId, NodeId, ReplicaId, RunningUnitId};

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
    let holds = cluster.holds_of(id.unit).into_iter().filter_map(|hold| cluster.hold(hold));
    let mut targets = holds.filter(|hold| hold.movement.is_some());
    let hold = targets.find(|hold| hold.replicas().any(|replica| replica == id.replica))?;
    Some((hold.id, hold.node))
}
