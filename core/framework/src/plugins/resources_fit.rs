//! Filter `resources-fit`: enough of every named resource is free on the node.

use godel_cluster::{Cluster, Unfit};
use godel_domain::ids::NodeId;

use crate::{Ask, Filter};

/// The plugin.
#[derive(Debug)]
pub struct ResourcesFit;

impl Filter for ResourcesFit {
    fn name(&self) -> &'static str {
        "resources-fit"
    }

    fn is_room(&self) -> bool {
        true
    }

    fn passes(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool {
        cluster.has_resources(ask.shape(), idx)
    }

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Unfit> {
        cluster.fits_resources(ask.shape(), node)
    }
}
