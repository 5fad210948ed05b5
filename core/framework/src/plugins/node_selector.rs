//! Filter `node-selector`: the node has every label that is asked for, and meets one of the required terms of the node affinity.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit, labels::LabelSets};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct NodeSelector;

/// What nodes are asked for, resolved against the label pairs that are known.
#[derive(Debug)]
pub struct SelectedNodes {
    /// The node has all of these pairs; `None`: no node has one of them.
    pairs: Option<Box<[u32]>>,
    /// The node meets one of these; none: every node does.
    terms: Box<[LabelSets]>,
}

impl Plugin for NodeSelector {
    const NAME: &'static str = "node-selector";
    const DOC: &'static str = "The node has every label of `node_selector`, and meets one of the terms of `node_affinity.required`. Labels are given by \
                               an administrator or found by the agent of the node.";
}

impl Filter for NodeSelector {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::NodeSelector];
    type State = SelectedNodes;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<SelectedNodes> {
        let requirements = ask.requirements();
        let (selector, required) = (&requirements.node_selector, &requirements.node_affinity.required);
        if selector.is_empty() && required.is_empty() {
            return None;
        }
        let labels = cluster.catalogue().labels();
        let terms = required.iter().map(|term| labels.resolve(term)).collect();
        Some(SelectedNodes { pairs: labels.pairs(selector), terms })
    }

    #[inline]
    fn passes(selected: &SelectedNodes, cluster: &Cluster, idx: usize) -> bool {
        let labels = cluster.nodes().node_labels(idx);
        let has = |pairs: &[u32]| pairs.iter().all(|pair| labels.binary_search(pair).is_ok());
        selected.pairs.as_deref().is_some_and(has)
            && (selected.terms.is_empty() || selected.terms.iter().any(|term| term.accept(labels)))
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.nodes().has_labels(&ask.requirements.node_selector, node)?;
        cluster.nodes().meets(&ask.requirements.node_affinity, node)
    }
}
