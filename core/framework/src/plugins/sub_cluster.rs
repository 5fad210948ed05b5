//! Locator `sub-cluster`: a unit that demands a sub-cluster looks at the nodes of it only.

use godel_cluster::{Cluster, NodeBlocks, Unfit};

use super::node_selector::NodeSelector;
use crate::{
    ask::Ask,
    point::{Locate, Plugin},
};

/// The plugin.
#[derive(Debug)]
pub struct SubClusterNodes;

impl Plugin for SubClusterNodes {
    const NAME: &'static str = "sub-cluster";
    const DOC: &'static str = "A unit whose `node_selector` names a sub-cluster looks at the nodes of that sub-cluster only. The others count as \
                               refused by `node-selector`, without being looked at.";
}

impl Locate for SubClusterNodes {
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        Some(cluster.catalogue().sub_clusters().blocks_of(ask.sub_cluster()?))
    }

    fn elsewhere(&self, cluster: &Cluster, ask: &Ask) -> Option<(&'static str, Unfit)> {
        let key = cluster.catalogue().sub_clusters().key();
        let value = ask.requirements().node_selector.get(key)?;
        Some((NodeSelector::NAME, Unfit::Selector { key: key.to_owned(), value: value.clone() }))
    }
}
