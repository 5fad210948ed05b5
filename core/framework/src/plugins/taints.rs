//! Filter `taints`: every `NoSchedule` and `NoExecute` taint of the node is tolerated, for however long. Soft taints that are not tolerated put
//! the node behind all nodes with fewer of them (see [`crate::NodeScore`]).

use godel_cluster::{Cluster, Unfit, labels::TaintVerdict};
use godel_domain::ids::NodeId;

use crate::{Ask, Filter};

/// The plugin.
#[derive(Debug)]
pub struct Taints;

impl Filter for Taints {
    fn name(&self) -> &'static str {
        "taints"
    }

    fn concerns(&self, _cluster: &Cluster, ask: &Ask) -> bool {
        ask.constraint().is_refused_anywhere()
    }

    fn passes(&self, cluster: &Cluster, ask: &Ask, idx: usize) -> bool {
        ask.constraint().verdict(cluster.node_taints(idx)) != TaintVerdict::Refused
    }

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Unfit> {
        cluster.is_tolerated_on(&ask.constraint().tolerations, node)
    }
}
