//! Filter `daemon` and locator `daemon-nodes`: a node has at most one replica of a daemon, and a replica looks at the nodes
//! without one only.
//!
//! The dispatcher wants as many replicas as there are nodes for a daemon, so that one without a node is for one of those. What
//! has yet to leave a node counts: the next one comes when it has left.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, DaemonIdx, NodeBlocks, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Locate, Plugin, RestsOn},
};

/// The filter.
#[derive(Debug)]
pub struct DaemonFilter;

/// The locator.
#[derive(Debug)]
pub struct DaemonNodes;

fn has_replica() -> Unfit {
    Unfit::UnitAffinity { reason: "a replica of the unit is on the node".to_owned() }
}

impl Plugin for DaemonFilter {
    const NAME: &'static str = "daemon";
    const DOC: &'static str = "For units of class daemon: no other replica of the unit is on the node. Nobody is preempted for that.";
}

impl Filter for DaemonFilter {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::UnitAffinity];
    type State = DaemonIdx;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<DaemonIdx> {
        ask.daemon()
    }

    #[inline]
    fn passes(daemon: &DaemonIdx, cluster: &Cluster, idx: usize) -> bool {
        !cluster.taken().daemons.is_on(*daemon, idx)
    }

    #[inline]
    fn concerns(&self, _cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        ask.daemon.is_some()
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        match ask.daemon {
            Some(daemon) if cluster.taken().daemons.is_on(daemon, node.idx()) => Err(has_replica()),
            Some(_) | None => Ok(()),
        }
    }
}

impl Plugin for DaemonNodes {
    const NAME: &'static str = "daemon-nodes";
    const DOC: &'static str = "A unit of class daemon looks at the nodes without a replica of it only. The others count as refused by `daemon`, without \
                               being looked at.";
}

impl Locate for DaemonNodes {
    fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        Some(cluster.taken().daemons.open(ask.daemon()?))
    }

    fn elsewhere(&self, _cluster: &Cluster, _ask: &Ask) -> Option<(&'static str, Unfit)> {
        Some((DaemonFilter::NAME, has_replica()))
    }
}
