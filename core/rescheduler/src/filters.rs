//! What says whether a running unit may be on a node.
//!
//! The room is the layout's own question. Everything else (selectors, affinity, taints, zones, spread) is the scheduler's
//! filters, which the service plugs in here, so that a plan names no target that the scheduler would refuse.

use crate::layout::{Layout, NodeIdx, RunIdx};

/// Says which nodes a running unit may be sent to, apart from the room that it needs there.
pub trait Filters {
    /// Whether a running unit may be on a node, as the layout is now. Moves may only take nodes away: what is refused while everything is where
    /// the snapshot has it is refused always, since [`bound_of`](crate::bound_of) asks then.
    fn admits(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> bool;
}

/// The least that always holds: the node accepts work, and is of the same sub-cluster as the one that the unit is on.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeFilters;

impl Filters for NodeFilters {
    fn admits(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> bool {
        let (target, home) = (layout.node(node), layout.node(layout.home(unit)));
        target.accepts && target.sub_cluster == home.sub_cluster
    }
}
