//! Filter `node-selector`: the node has every label that is asked for.

use std::collections::BTreeMap;

use crate::{
    cluster::{Cluster, Refusal},
    framework::{Ask, Filter},
    ids::NodeId,
};

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

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Refusal> {
        check(cluster, &ask.constraint().selector, node)
    }
}

/// Whether a node has every label of a selector.
///
/// # Errors
/// The first label that it lacks, in order of key.
pub fn check(cluster: &Cluster, selector: &BTreeMap<String, String>, node: NodeId) -> Result<(), Refusal> {
    for (key, value) in selector {
        if cluster.label(node, key) != Some(value.as_str()) {
            return Err(Refusal::Selector { key: key.clone(), value: value.clone() });
        }
    }
    Ok(())
}
