//! Filter `taints`: every `NoSchedule` and `NoExecute` taint of the node is tolerated, for however long. Soft taints that are not tolerated put
//! the node behind all nodes with fewer of them (see [`crate::framework::Rank`]).

use crate::{
    cluster::{
        Cluster, Refusal,
        labels::{TaintVerdict, is_tolerated},
    },
    framework::{Ask, Filter},
    ids::NodeId,
    node::Toleration,
};

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

    fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), Refusal> {
        check(cluster, &ask.constraint().tolerations, node)
    }
}

/// Whether tolerations accept every hard taint of a node.
///
/// # Errors
/// The first hard taint that is not tolerated.
pub fn check(cluster: &Cluster, tolerations: &[Toleration], node: NodeId) -> Result<(), Refusal> {
    let spec = cluster.spec(node).ok_or(Refusal::Gone)?;
    for taint in &spec.taints {
        if taint.effect.is_hard() && !is_tolerated(taint, tolerations) {
            let separator = if taint.value.is_empty() { "" } else { "=" };
            return Err(Refusal::Taint { taint: format!("{}{separator}{}", taint.key, taint.value) });
        }
    }
    Ok(())
}
