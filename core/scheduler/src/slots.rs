//! Slots of reservations: an owner takes those that have all that it asks for, before any other place.

use godel_cluster::{Cluster, Owned, ShapeId};
use godel_domain::{demand::Pool, hold::Member, ids::NodeId};
use godel_placement::place::{PlacementChoice, Placer, templates::TemplateId};

use super::{Scheduler, assigned_unit::AssignedUnit};

impl Scheduler {
    /// Reservations that a unit owns.
    pub(super) fn owned(&self, assigned: &AssignedUnit) -> Owned {
        self.owned_by(assigned.pool, &assigned.marks)
    }

    pub(super) fn owned_by(&self, pool: Pool, marks: &[u64]) -> Owned {
        if !self.cluster.has_slots() {
            return Owned::new();
        }
        self.cluster.owned(pool, |spec| spec.is_marked(marks))
    }

    /// Whether some slot would do for some running unit of a unit.
    pub(super) fn has_slots(&self, assigned: &AssignedUnit) -> bool {
        let owned = self.owned(assigned);
        let mut pending = assigned.groups.iter().filter(|group| !group.pending().is_empty());
        !owned.is_empty()
            && pending.any(|group| {
                let shape = self.placer.templates.get(group.template).ask.shape();
                !self.cluster.free_slots(&owned, shape).is_empty()
            })
    }

    /// Nodes of the slots that replicas of a template may take, one for each slot.
    pub(super) fn slots(&mut self, owned: &Owned, template: TemplateId) -> Vec<NodeId> {
        if owned.is_empty() {
            return Vec::new();
        }
        let shape = self.placer.templates.get(template).ask.shape();
        let slots = self.cluster.free_slots(owned, shape).into_iter().map(|(_, node)| node);
        slots.filter(|node| self.placer.admits(&self.cluster, template, *node)).collect()
    }

    /// Takes a slot on a node: room first, then the slot gives way.
    pub(super) fn enter_slot(
        &mut self,
        owned: &Owned,
        shape: ShapeId,
        node: NodeId,
        member: Member,
    ) -> Option<PlacementChoice> {
        let (slot, mask) = self.cluster.slot_on(owned, shape, node)?;
        let Member { unit, ordinal, incarnation } = member;
        self.cluster.assume(unit, ordinal, incarnation, shape, node, mask);
        self.cluster.occupy(slot, member);
        Some(PlacementChoice { node, mask })
    }
}

/// Whether a slot on a node would do for a template, whoever owns it: then a unit that waits may have a place.
pub(super) fn may_serve(placer: &mut Placer, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
    if !cluster.has_slots() {
        return false;
    }
    let shape = placer.templates.get(template).ask.shape();
    cluster.may_serve(shape, node) && placer.admits(cluster, template, node)
}
