//! Filter `host-ports`: no other running unit of the node listens on a port that is asked for.
//!
//! A port is never freed by preemption: who needs one waits, or goes to another node.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, ShapeId, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct HostPorts;

impl Plugin for HostPorts {
    const NAME: &'static str = "host-ports";
    const DOC: &'static str =
        "No other running unit of the node has a port of `host_ports`. Nobody is preempted for a port.";
}

impl Filter for HostPorts {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::HostPort];
    type State = ShapeId;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<ShapeId> {
        let has_ports = cluster.catalogue().shape(ask.shape()).has_ports;
        has_ports.then(|| ask.shape())
    }

    #[inline]
    fn passes(shape: &ShapeId, cluster: &Cluster, idx: usize) -> bool {
        cluster.free().taken_port(*shape, idx).is_none()
    }

    #[inline]
    fn concerns(&self, cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        cluster.catalogue().shape(ask.shape).has_ports
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.free().fits_ports(ask.shape, node)
    }
}
