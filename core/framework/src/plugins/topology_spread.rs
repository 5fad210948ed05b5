//! Filter `topology-spread`: running units are spread evenly over domains, as by the topology spread constraints of
//! Kubernetes.

use std::sync::Arc;

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk, UnitAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct TopologySpread;

impl Plugin for TopologySpread {
    const NAME: &'static str = "topology-spread";
    const DOC: &'static str = "After the placement the domain of the node has at most `max_skew` more running units than the domain with the fewest, for \
                               each entry of `affinity.spread` without a weight. Domains count that have a node which could take a replica if nothing ran there: \
                               ready and open, of a class, a runtime and labels that the replica accepts, with taints that it tolerates, and large enough.";
}

impl Filter for TopologySpread {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::TopologySpread];
    type State = Arc<UnitAsk>;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<Arc<UnitAsk>> {
        ask.unit().filter(|unit| unit.rules.restricts_by_spread()).cloned()
    }

    #[inline]
    fn passes(unit: &Arc<UnitAsk>, cluster: &Cluster, idx: usize) -> bool {
        unit.rules.spread.iter().all(|rule| cluster.domains().is_even(rule, unit.takers, idx))
    }

    #[inline]
    fn concerns(&self, _cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        ask.unit.is_some()
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let Some(unit) = ask.unit else { return Ok(()) };
        let mut spreads = unit.rules.spread.iter();
        spreads.try_for_each(|rule| cluster.domains().check_spread(rule, unit.takers, node.idx()))
    }
}
