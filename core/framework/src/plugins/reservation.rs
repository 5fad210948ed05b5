//! Recommender `reservation`: slots of reservations that the unit owns come before any other place.
//!
//! A slot covers all that a replica asks for, so that it has room whatever is free on its node. Who takes it is for the caller: the
//! replica first, then the slot gives way to it.

use godel_base::ids::NodeId;
use godel_cluster::Cluster;
use rustc_hash::FxHashSet;

use crate::point::{Plugin, Recommend, RecommendInput};

/// The plugin.
#[derive(Debug)]
pub struct SlotsFirst;

impl Plugin for SlotsFirst {
    const NAME: &'static str = "reservation";
    const DOC: &'static str = "Replicas go to free slots of reservations that their unit owns, one to each slot that has all that a replica asks for: those of \
                               the first reservation by name first.";
}

impl Recommend for SlotsFirst {
    fn concerns(&self, of: &RecommendInput<'_>) -> bool {
        !of.owned.is_empty()
    }

    fn for_any(&self, cluster: &Cluster, of: &RecommendInput<'_>) -> Vec<NodeId> {
        let free = cluster.held().free_slots(of.owned, of.ask.shape());
        let mut nodes: Vec<NodeId> = free.into_iter().map(|(_, node)| node).collect();
        if of.ask.daemon().is_some() {
            // One replica for each node, whatever slots it has.
            let mut seen = FxHashSet::default();
            nodes.retain(|node| seen.insert(*node));
        }
        nodes
    }
}
