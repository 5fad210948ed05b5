//! Filter `resources-fit`: enough of every named resource is free on the node.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, ShapeId, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct ResourcesFit;

impl Plugin for ResourcesFit {
    const NAME: &'static str = "resources-fit";
    const DOC: &'static str =
        "Enough of every requested resource is free on the node, in the pool of the unit.";
}

impl Filter for ResourcesFit {
    const RESTS_ON: RestsOn = RestsOn::Room;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::InsufficientResources];
    type State = ShapeId;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<ShapeId> {
        Some(ask.shape())
    }

    #[inline]
    fn passes(shape: &ShapeId, cluster: &Cluster, idx: usize) -> bool {
        cluster.free().has_resources(*shape, idx)
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.free().fits_resources(ask.shape, node)
    }
}
