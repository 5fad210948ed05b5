//! Filter `node-selector`: the node has every label that is asked for.

use godel_cluster::{Cluster, Unfit};
use godel_domain::{decision::RejectionReason, ids::NodeId};

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct NodeSelector;

impl Plugin for NodeSelector {
    const NAME: &'static str = "node-selector";
    const DOC: &'static str =
        "The node has every label of `node_selector`, given by an administrator or found by its agent.";
}

impl Filter for NodeSelector {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::NodeSelector];
    type State = Option<Box<[u32]>>;

    /// Keeps the integers of the pairs; `None` within if no node has one of them.
    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<Self::State> {
        let selector = &ask.requirements().node_selector;
        (!selector.is_empty()).then(|| cluster.labels().pairs(selector))
    }

    #[inline]
    fn passes(pairs: &Self::State, cluster: &Cluster, idx: usize) -> bool {
        let labels = cluster.node_labels(idx);
        pairs.as_ref().is_some_and(|pairs| pairs.iter().all(|pair| labels.binary_search(pair).is_ok()))
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.has_labels(&ask.requirements.node_selector, node)
    }
}
