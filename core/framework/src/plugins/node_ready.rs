//! Filter `node-ready`: the node exists, its session lives, and it takes new placements.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct NodeReady;

impl Plugin for NodeReady {
    const NAME: &'static str = "node-ready";
    const DOC: &'static str = "The node exists, has contact with its agent, which can start something and whose certificate has not expired, is neither cordoned, drained nor quarantined, and all of its records can be read.";
}

impl Filter for NodeReady {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] =
        &[RejectionReason::NodeGone, RejectionReason::NodeNotReady, RejectionReason::NodeCordoned];
    type State = ();

    fn prepare(&self, _cluster: &Cluster, _ask: &Ask) -> Option<()> {
        Some(())
    }

    #[inline]
    fn passes((): &(), cluster: &Cluster, idx: usize) -> bool {
        cluster.nodes().is_usable(idx)
    }

    #[inline]
    fn check(&self, cluster: &Cluster, _ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.nodes().usable(node)
    }
}
