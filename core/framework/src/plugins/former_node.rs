//! Recommender `former-node`: a replica of a stateful unit goes back to the node on which it ran last.

use godel_base::ids::{NodeId, ReplicaId};
use godel_cluster::Cluster;

use crate::point::{Plugin, Recommend, RecommendInput};

/// The plugin.
#[derive(Debug)]
pub struct FormerNode;

impl Plugin for FormerNode {
    const NAME: &'static str = "former-node";
    const DOC: &'static str =
        "A replica of a unit of class stateful goes back to the node on which it ran last.";
}

impl Recommend for FormerNode {
    fn concerns(&self, of: &RecommendInput<'_>) -> bool {
        of.returns
    }

    fn for_replica(&self, cluster: &Cluster, of: &RecommendInput<'_>, replica: ReplicaId) -> Option<NodeId> {
        // The row may still be that of the incarnation before: the dispatcher may have read of its end earlier.
        let node = cluster.rows().of(of.unit)?.row(replica.ordinal).node;
        (node != NodeId(0)).then_some(node)
    }
}
