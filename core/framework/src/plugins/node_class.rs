//! Filter `node-class`: nodes of a class are for units that name classes.
//!
//! A class marks nodes that most work would be wrong on: virtual nodes that stand for another cluster, external ones that are
//! rented by the minute. A taint says the same of nodes whose owner has to write it on each of them; a class is a label, which
//! an agent can find by itself.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit, labels::LabelSets};
use godel_domain::{
    decision::RejectionReason,
    label_expression::{LabelExpression, LabelOperator},
    node::NODE_CLASS,
};

use crate::{
    ask::{Ask, NodeAsk, NodeRequirements},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct NodeClass;

impl Plugin for NodeClass {
    const NAME: &'static str = "node-class";
    const DOC: &'static str = "A node with the label `godel.dev/node-class`, as a virtual or an external one, takes only replicas whose `node_selector` or \
                               required `node_affinity` names that label.";
}

impl Filter for NodeClass {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::NodeSelector];
    /// Nodes of any class.
    type State = LabelSets;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<LabelSets> {
        if names_classes(ask.requirements()) {
            return None;
        }
        let (key, operator) = (NODE_CLASS.to_owned(), LabelOperator::DoesNotExist);
        cluster.catalogue().labels().has_key(NODE_CLASS).then(|| {
            cluster.catalogue().labels().resolve(&[LabelExpression { key, operator, values: Vec::new() }])
        })
    }

    #[inline]
    fn passes(without: &LabelSets, cluster: &Cluster, idx: usize) -> bool {
        without.accept(cluster.nodes().node_labels(idx))
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        match cluster.nodes().label(node, NODE_CLASS) {
            Some(class) if !names_classes(ask.requirements) => {
                Err(Unfit::NodeClass { class: class.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a replica says something of the class of its nodes.
fn names_classes(requirements: &NodeRequirements) -> bool {
    godel_cluster::names_classes(&requirements.node_selector, &requirements.node_affinity.required)
}
