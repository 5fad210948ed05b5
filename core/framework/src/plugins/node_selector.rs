//! Filter `node-selector`: the node has every label that is asked for.

use godel_cluster::{Cluster, Unfit};
use godel_domain::ids::NodeId;

use crate::{Ask, Filter};

/// The plugin.
#[derive(Debug)]
pub struct NodeSelector;

impl Filter for NodeSelector {
    fn name(&self) -> &'static str {
        "node-selector"
    }

    fn concerns(&self, _cluster: &Cluster, ask: &Ask) -> bool {
        !ask.constraint().selector.is_empty()
    }

    fn passes(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool {
        ask.constraint().selects(cluster.node_labels(idx))
    }

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Unfit> {
        cluster.has_labels(&ask.constraint().selector, node)
    }
}
