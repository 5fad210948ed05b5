//! Filter `node-ready`: the node exists, its session lives, and it is not cordoned.

use godel_cluster::{Cluster, Unfit};
use godel_domain::ids::NodeId;

use crate::{Ask, Filter};

/// The plugin.
#[derive(Debug)]
pub struct NodeReady;

impl Filter for NodeReady {
    fn name(&self) -> &'static str {
        "node-ready"
    }

    fn passes(&self, cluster: &Cluster, _ask: &Ask, idx: usize) -> bool {
        cluster.is_usable(idx)
    }

    fn check(&self, cluster: &Cluster, _ask: &Ask, node: NodeId) -> Result<(), Unfit> {
        cluster.usable(node)
    }
}
