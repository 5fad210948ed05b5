//! Filter `device`: the node has the devices asked for, of an accepted model and with enough left on each.

use godel_cluster::{Cluster, Unfit};
use godel_domain::ids::NodeId;

use crate::{Ask, Filter};

/// The plugin.
#[derive(Debug)]
pub struct Devices;

impl Filter for Devices {
    fn name(&self) -> &'static str {
        "device"
    }

    fn is_room(&self) -> bool {
        true
    }

    fn passes(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool {
        cluster.has_devices(ask.shape(), idx)
    }

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Unfit> {
        cluster.fits_devices(ask.shape(), node)
    }
}
