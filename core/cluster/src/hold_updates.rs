//! Holds and slots, to be followed by all parts of the cluster.

use std::sync::Arc;

use godel_base::ids::{HoldId, RunningUnitId, UnitId};
use godel_domain::hold::Hold;

use super::{Cluster, movers};

/// Holds and slots, to be changed: all parts of the cluster follow.
#[derive(Debug)]
pub struct HoldUpdates<'a> {
    pub(super) cluster: &'a mut Cluster,
}

impl HoldUpdates<'_> {
    /// Keeps room; a hold known by its id is replaced.
    pub fn put(&mut self, hold: Arc<Hold>) {
        self.remove(hold.id);
        if self.cluster.free.index(&self.cluster.catalogue, hold.node).is_none() {
            return;
        }
        let shape = self.cluster.shape(&hold.demand, hold.pool);
        self.cluster.free.resolve(&mut self.cluster.catalogue, shape);
        let (unit, moves) = (hold.unit, hold.movement.is_some());
        let (holds, on) = self.cluster.holding();
        holds.put(on, hold, shape);
        self.settle_targets(unit, moves);
    }

    /// A target of a replica of a unit is held, or no longer, if `moves`.
    fn settle_targets(&mut self, unit: UnitId, moves: bool) {
        if moves {
            movers::settle_unit(&mut self.cluster.taken, &self.cluster.holds, unit, &[]);
            self.cluster.settle_opened();
        }
    }

    /// Gives a hold's room back.
    pub fn remove(&mut self, id: HoldId) -> Option<Arc<Hold>> {
        let (holds, on) = self.cluster.holding();
        let hold = holds.remove(on, id)?;
        self.settle_targets(hold.unit, hold.movement.is_some());
        Some(hold)
    }

    /// Lets somebody take a slot whose room is assumed.
    pub fn occupy(&mut self, id: HoldId, member: RunningUnitId) {
        let (holds, on) = self.cluster.holding();
        holds.occupy(on, id, member);
    }
}
