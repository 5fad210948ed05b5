//! Holds set aside for a moment, as if they were not there: a unit looks for room beside what is held for it, or in place of
//! what is held for others of lower rank.
//!
//! Nothing that is lifted counts as room given back: whoever is parked is not woken by somebody who only looks.

use godel_domain::{
    hold::Hold,
    ids::{HoldId, NodeId},
    running_units::RunningUnit,
};
use smallvec::SmallVec;

use super::{Cluster, holds::Charge, shapes::ShapeId};

/// Running units that have yet to leave, as shapes and devices.
pub(crate) type Remaining = SmallVec<[(ShapeId, u64); 2]>;

impl Cluster {
    /// Takes no account of some holds until [`Self::settle_holds`] of the same ones. Slots stay.
    pub fn lift_holds(&mut self, ids: &[HoldId]) {
        if self.is_gathering() && !ids.is_empty() {
            // Who gathers there does not take what is lifted meanwhile.
            self.holds.gathering.lift();
        }
        for id in ids {
            let Some(kept) = self.holds.kept_mut(*id).filter(|kept| kept.hold.slot.is_none()) else {
                continue;
            };
            let (idx, pool, shape) = (kept.hold.node.idx(), kept.hold.pool, kept.shape);
            let (gathers, charge) = (kept.hold.turn.is_some(), std::mem::take(&mut kept.charge));
            if gathers {
                self.shift_gathered(idx, pool, &charge, -1);
            } else {
                self.shift_charge(idx, shape, &charge, -1);
            }
            self.touch(idx);
        }
    }

    /// Holds that were lifted count again: those that gather take what is free then, the others all that they did.
    pub fn settle_holds(&mut self, ids: &[HoldId]) {
        for id in ids {
            let not_slot =
                |kept: &&super::holds::HoldEntry| kept.hold.slot.is_none() && kept.hold.turn.is_none();
            let Some(kept) = self.holds.kept(*id).filter(not_slot) else { continue };
            let (idx, shape) = (kept.hold.node.idx(), kept.shape);
            let charge = self.charge_of(shape, &kept.hold);
            self.shift_charge(idx, shape, &charge, 1);
            if let Some(kept) = self.holds.kept_mut(*id) {
                kept.charge = charge;
            }
            self.touch(idx);
        }
        if self.is_gathering() && !ids.is_empty() {
            self.settle_lifted();
        }
    }

    /// Holds on a node but for slots, in no order that may show.
    pub fn holds_on(&self, node: NodeId) -> &[HoldId] {
        self.holds.on_node.get(&node).map_or(&[], SmallVec::as_slice)
    }

    /// Holds of preemptions, in order of ids.
    pub fn claims(&self) -> Vec<&Hold> {
        let mut claims: Vec<&Hold> = self.holds.all().filter(|hold| hold.is_claim()).collect();
        claims.sort_unstable_by_key(|hold| hold.id);
        claims
    }

    /// Whether some preemption's hold is of a lower priority; `None`: of any.
    pub fn has_claims_below(&self, priority: Option<i32>) -> bool {
        let lowest = self.holds.priorities.first_key_value();
        lowest.is_some_and(|(lowest, _)| priority.is_none_or(|priority| *lowest < priority))
    }

    /// What a hold takes now, and those who take the rest of its room until they have left, as shapes and devices.
    pub fn given_by(&self, id: HoldId) -> Option<(&Charge, Remaining)> {
        let kept = self.holds.kept(id)?;
        let is_there = |row: &&RunningUnit| row.node == kept.hold.node;
        let victims = kept.hold.victims.iter().filter_map(|victim| {
            let row = self.remains(victim).filter(is_there)?;
            Some((self.taken_shape(victim.unit, row)?, row.device_mask))
        });
        Some((&kept.charge, victims.collect()))
    }
}
