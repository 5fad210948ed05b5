//! Locator `topology-domain`: while a whole unit is tried in one group of nodes, its replicas look at the nodes of that group only.

use godel_cluster::{Cluster, NodeBlocks, Unfit};

use crate::{
    ask::Ask,
    point::{Locate, Plugin},
};

/// The plugin.
#[derive(Debug)]
pub struct TopologyDomain;

impl Plugin for TopologyDomain {
    const NAME: &'static str = "topology-domain";
    const DOC: &'static str = "The first replicas of a unit that a grouper splits the nodes for, as for one with a `topology`, are placed together: group by group they \
                               look at the nodes of that group only. It takes precedence over other locators, whose filters are asked all the same.";
}

impl Locate for TopologyDomain {
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        cluster.domains().groups.blocks_of(ask.within()?)
    }

    fn elsewhere(&self, _cluster: &Cluster, _ask: &Ask) -> Option<(&'static str, Unfit)> {
        None
    }
}
