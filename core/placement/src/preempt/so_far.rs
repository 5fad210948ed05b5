//! What a decision has already while more is searched for it.
//!
//! A victim whose unit cannot do without it takes the whole unit along, wherever that runs. The next search for the same decision finds
//! the room of those others free: they leave whatever is found. As a hold is of one task group on one node, and a victim backs one
//! hold, a search may only take room of those that back nothing yet, or that leave for the same task group.

use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::allocation::Allocation;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// What a decision has already, as a search for more replicas of one of its task groups sees it.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// Running units that leave for the decision and whose room may be taken, with their nodes.
    pub(super) leaving: FxHashMap<(UnitId, u32), NodeId>,
    /// By node where one of them is: what replicas of the task group are given there, which is assumed.
    pub(super) placed: FxHashMap<NodeId, SmallVec<[Allocation; 2]>>,
}

impl SoFar {
    /// Returns what a search may take of the room of some running units that leave; `placed` are the places of the same task group,
    /// which are assumed.
    pub fn new(
        cluster: &Cluster,
        leaving: impl IntoIterator<Item = RunningUnitId>,
        placed: impl IntoIterator<Item = (NodeId, Allocation)>,
    ) -> Self {
        let mut so_far = Self::default();
        for RunningUnitId { unit, replica } in leaving {
            if let Some(rows) = cluster.rows().of(unit) {
                let node = rows.row(replica.ordinal).node;
                so_far.leaving.insert((unit, replica.ordinal), node);
                so_far.placed.entry(node).or_default();
            }
        }
        if so_far.leaving.is_empty() {
            return so_far;
        }
        for (node, given) in placed {
            if let Some(on_node) = so_far.placed.get_mut(&node) {
                on_node.push(given);
            }
        }
        so_far.placed.retain(|_, on_node| !on_node.is_empty());
        so_far
    }

    /// Whether a running unit leaves already, and its room may be taken.
    pub(super) fn has(&self, unit: UnitId, ordinal: u32) -> bool {
        self.leaving.contains_key(&(unit, ordinal))
    }
}
