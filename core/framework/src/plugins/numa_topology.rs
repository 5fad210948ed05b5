//! Filter `numa-topology`: the zones and devices of the node go together as a replica asks.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, ShapeId, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct NumaTopology;

impl Plugin for NumaTopology {
    const NAME: &'static str = "numa-topology";
    const DOC: &'static str = "The node has zones with enough free that `topology.policy` allows, dedicated cores if \
                               `topology.cpu_mode` asks for them, and free devices near these zones; devices lie beside one another \
                               as `same_zone_as` asks.";
}

impl Filter for NumaTopology {
    const RESTS_ON: RestsOn = RestsOn::Room;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::ZoneTaken];
    type State = ShapeId;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<ShapeId> {
        cluster.catalogue().shape(ask.shape()).is_placed.then(|| ask.shape())
    }

    #[inline]
    fn passes(shape: &ShapeId, cluster: &Cluster, idx: usize) -> bool {
        cluster.free().has_zones(*shape, idx)
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.free().fits_zones(ask.shape, node)
    }
}
