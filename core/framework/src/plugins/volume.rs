//! Filter `volume` and locator `volume-node`: a replica whose volumes a node keeps goes back to that node.
//!
//! Its row names the node on which it ran last. As long as that node has a record the replica waits for it, whatever keeps it from
//! there: what it has written is there and nowhere else. The volumes are lost once the record of the node is deleted, and then any node will do.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, NodeBlocks, Unfit};

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Locate, Plugin, RestsOn},
};

/// The filter.
#[derive(Debug)]
pub struct VolumeFilter;

/// The locator.
#[derive(Debug)]
pub struct VolumeNode;

/// Of all nodes but the one that keeps the volumes; `None`: it has no record any more.
fn kept_elsewhere(cluster: &Cluster, keeper: NodeId) -> Option<Unfit> {
    Some(Unfit::Volume { node: cluster.nodes().spec(keeper)?.name.clone() })
}

impl Plugin for VolumeFilter {
    const NAME: &'static str = "volume";
    const DOC: &'static str = "A replica with `volumes` that ran before goes back to the node that keeps them, and waits for it as long as the node has a \
                               record. Nobody is preempted on other nodes for it.";
}

impl Filter for VolumeFilter {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    type State = NodeId;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<NodeId> {
        ask.volume_node()
    }

    #[inline]
    fn passes(keeper: &NodeId, cluster: &Cluster, idx: usize) -> bool {
        keeper.idx() == idx || cluster.nodes().spec(*keeper).is_none()
    }

    #[inline]
    fn concerns(&self, _cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        ask.requirements.has_volumes || ask.volume_node.is_some()
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        match ask.volume_node.filter(|keeper| *keeper != node) {
            Some(keeper) => kept_elsewhere(cluster, keeper).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }
}

impl Plugin for VolumeNode {
    const NAME: &'static str = "volume-node";
    const DOC: &'static str = "A replica whose volumes a node keeps looks at that node only. The others count as refused by `volume`, without being looked \
                               at.";
}

impl Locate for VolumeNode {
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        let (keeper, block) = ask.volume_block()?;
        cluster.nodes().spec(keeper).is_some().then_some(std::slice::from_ref(block))
    }

    fn elsewhere(&self, cluster: &Cluster, ask: &Ask) -> Option<(&'static str, Unfit)> {
        Some((VolumeFilter::NAME, kept_elsewhere(cluster, ask.volume_node()?)?))
    }
}
