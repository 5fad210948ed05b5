//! Filter `device`: the node has the devices asked for, of an accepted model and with enough left on each.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, ShapeId, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct Devices;

impl Plugin for Devices {
    const NAME: &'static str = "device";
    const DOC: &'static str =
        "The node has the requested devices, of an accepted model and with enough left on each.";
}

impl Filter for Devices {
    const RESTS_ON: RestsOn = RestsOn::Room;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::DeviceTaken];
    type State = ShapeId;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<ShapeId> {
        Some(ask.shape())
    }

    #[inline]
    fn passes(shape: &ShapeId, cluster: &Cluster, idx: usize) -> bool {
        cluster.free().has_devices(*shape, idx)
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.free().fits_devices(ask.shape, node)
    }
}
