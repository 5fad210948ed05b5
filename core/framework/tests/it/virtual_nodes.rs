//! Filter `virtual-nodes`: nodes labelled `node-class=virtual` are for units that name their class.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit};
use godel_framework::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

const KEY: &str = "node-class";
const VIRTUAL: &str = "virtual";

/// The plugin.
#[derive(Debug)]
pub struct VirtualNodes;

impl Plugin for VirtualNodes {
    const NAME: &'static str = "virtual-nodes";
    const DOC: &'static str =
        "A node labelled `node-class=virtual` takes only units that select a `node-class`.";
}

impl Filter for VirtualNodes {
    // The binder asks again only if the node has changed since the decision.
    const RESTS_ON: RestsOn = RestsOn::Records;
    /// The integer of the label.
    type State = u32;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<u32> {
        if ask.requirements().node_selector.contains_key(KEY) {
            return None;
        }
        // None if no node has the label: then nodes are not asked at all.
        cluster.catalogue().labels().find(KEY, VIRTUAL)
    }

    fn passes(label: &u32, cluster: &Cluster, idx: usize) -> bool {
        cluster.nodes().node_labels(idx).binary_search(label).is_err()
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let is_named = ask.requirements.node_selector.contains_key(KEY);
        if is_named || cluster.nodes().label(node, KEY) != Some(VIRTUAL) {
            return Ok(());
        }
        Err(Unfit::Other { reason: "the node is virtual, and the unit does not select its class".to_owned() })
    }
}
