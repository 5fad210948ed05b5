//! Filter `unit-affinity`: replicas go near to running units, and apart from others.
//!
//! As inter-pod affinity and anti-affinity in Kubernetes: a domain counts as a whole, and a unit that keeps others away does so
//! whoever comes first. Counts follow every placement, so that nothing is scanned.

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
pub struct UnitAffinityFilter;

impl Plugin for UnitAffinityFilter {
    const NAME: &'static str = "unit-affinity";
    const DOC: &'static str = "The domain of the node has running units that `affinity.near` requires, none that `affinity.apart` excludes, and none \
                               whose own `apart` excludes the unit. Nobody is preempted for that.";
}

impl Filter for UnitAffinityFilter {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::UnitAffinity];
    type State = Arc<UnitAsk>;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<Arc<UnitAsk>> {
        ask.unit().filter(|unit| unit.rules.restricts_by_others()).cloned()
    }

    #[inline]
    fn passes(unit: &Arc<UnitAsk>, cluster: &Cluster, idx: usize) -> bool {
        cluster.domains().is_admitted(&unit.rules, idx)
    }

    #[inline]
    fn concerns(&self, _cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        ask.unit.is_some()
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        ask.unit.map_or(Ok(()), |unit| cluster.domains().admits(&unit.rules, node.idx()))
    }
}
