//! What the binder does not decide while records cannot be read: see [`godel_domain::unreadable`].
//!
//! Room that is taken stays taken and counts where it counted; nothing is bound, held, made to leave or given back that
//! rests on such a record.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{
    decision::{Decision, RejectionReason},
    hold::Hold,
    running_units::EvictionReason,
    unreadable::Unreadable,
};

use super::{picture::BinderPicture, unit::Unit};

impl BinderPicture {
    /// A unit's record cannot be read from now on.
    pub(super) fn freeze_unit(&mut self, unit: UnitId) {
        match self.units.get_mut(&unit) {
            // It stands where it stood: its running units count there.
            Some(known) => known.is_unread = true,
            None => {
                self.units.insert(unit, Box::new(Unit::unread()));
                self.count_rows(unit, 1);
            }
        }
    }

    /// Of a unit whose record was never read the rows say whose queue pays: true if it is another one than before.
    pub(super) fn place_unread(&mut self, unit: UnitId) -> bool {
        let is_placed = self.units.get(&unit).is_some_and(|known| !known.is_unread || known.revision.0 > 0);
        let Some(rows) = self.cluster.rows().of(unit).filter(|_| !is_placed) else { return false };
        let standings = rows.groups.iter().flatten().filter_map(|group| group.standing.as_ref());
        let Some(path) = standings.filter_map(|standing| standing.queue.clone()).next() else { return false };
        let queue = self.quotas.queue(&path);
        if self.units.get(&unit).is_none_or(|known| known.queue == queue) {
            return false;
        }
        self.count_rows(unit, -1);
        if let Some(known) = self.units.get_mut(&unit) {
            // Whose it is the rows do not say: it counts for no owner.
            (known.queue, known.payer) = (queue, queue.into());
        }
        self.count_rows(unit, 1);
        true
    }

    /// Why nothing of a decision can be judged.
    pub(super) fn frozen_for(&self, decision: &Decision) -> Option<(RejectionReason, String)> {
        if self.cluster.nodes().frozen().is_empty() {
            return None;
        }
        // It goes back to the dispatcher, and is handed out again after a pause: what has thawed then is bound.
        Some((RejectionReason::QueueFull, self.frozen_unit(decision.unit)?.to_string()))
    }

    /// Why a unit is not placed further.
    fn frozen_unit(&self, unit: UnitId) -> Option<&Unreadable> {
        let frozen = self.cluster.nodes().frozen();
        if let Some(why) = frozen.unit(unit) {
            return Some(why);
        }
        let known = self.units.get(&unit)?;
        let class = known.class.and_then(|class| frozen.class(self.classes.name(class)?));
        let queue_of = |unit: UnitId| self.units.get(&unit).map(|unit| unit.queue);
        class.or_else(|| self.quotas.quota().tree().frozen_by(frozen, known.queue, queue_of))
    }

    /// A hold neither turns into a binding nor ends: one of the records that say so cannot be read.
    pub(super) fn is_hold_frozen(&self, hold: &Hold) -> bool {
        let frozen = self.cluster.nodes().frozen();
        !frozen.is_empty()
            && (frozen.has_hold(hold.id)
                || frozen.has_node(hold.node)
                || self.frozen_unit(hold.unit).is_some())
    }

    /// A slot stays as it is.
    pub(super) fn is_slot_frozen(&self, hold: &Hold) -> bool {
        let frozen = self.cluster.nodes().frozen();
        !frozen.is_empty()
            && (frozen.has_hold(hold.id)
                || frozen.has_node(hold.node)
                || hold.slot.as_ref().is_some_and(|slot| frozen.has_reservation(&slot.reservation)))
    }

    /// Why nobody leaves for others, or no gang gathers room.
    pub(super) fn keeps_all(&self, gathers: bool) -> Option<String> {
        let frozen = self.cluster.nodes().frozen();
        let is_kept = if gathers { frozen.has_holds() } else { frozen.keeps_all() };
        is_kept.then(|| {
            let n = frozen.len();
            let first = frozen.iter().next().map(ToString::to_string).unwrap_or_default();
            if n > 1 { format!("{first} (the first of {n} such records)") } else { first }
        })
    }

    /// A running unit stays: what it is, or whether its node is lost, cannot be told.
    pub(super) fn is_kept_there(&self, unit: UnitId, node: NodeId, reason: EvictionReason) -> bool {
        let frozen = self.cluster.nodes().frozen();
        if frozen.is_empty() {
            return false;
        }
        match reason {
            EvictionReason::NodeLost => frozen.has_report(node),
            EvictionReason::Drained
            | EvictionReason::Tainted
            | EvictionReason::Squeezed
            | EvictionReason::Rescheduled => frozen.unit(unit).is_some() || frozen.has_node(node),
            EvictionReason::Preempted => frozen.unit(unit).is_some() || frozen.keeps_all(),
            // What a unit wants of itself.
            EvictionReason::Cancelled
            | EvictionReason::ScaledIn
            | EvictionReason::Suspended
            | EvictionReason::Deadline
            | EvictionReason::BelowMin
            | EvictionReason::Failure => frozen.unit(unit).is_some(),
        }
    }
}
