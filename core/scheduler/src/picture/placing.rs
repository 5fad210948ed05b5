//! Places for the running units of a unit: on nodes that hold them, and in slots of reservations. What is placed is assumed at
//! once, and taken back if nothing comes of it.
//!
//! Recommended nodes come first: a replica that is moved takes the room that is held for it, an owner takes slots that have all that
//! it asks for before any other place, and a replica that returns the node on which it ran.

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_cluster::{Cluster, Owned, ShapeId, TrialMark};
use godel_domain::decision::{Claim, GroupPlacement};
use godel_framework::plugins::movement::{entered_on, target_of};
use godel_placement::place::{PlacementChoice, Placer, templates::TemplateId};

use super::{
    Picture,
    group_domains::{GroupPart, place_in_own_domains},
    recommended::Recommended,
    segments::{LevelGroup, place_segments},
    topology::{look_within, place_in_group},
};
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// What a try placed, and which templates fit nowhere (any more).
#[derive(Default)]
pub(crate) struct Try {
    /// What had been tried before.
    pub(crate) mark: TrialMark,
    pub(crate) groups: Vec<GroupPlacement>,
    pub(crate) n_placed: usize,
    pub(crate) failed: Vec<TemplateId>,
    /// The room that the decision will claim.
    pub(crate) claim: Claim,
    /// Units spared because they preempted this one before.
    pub(crate) n_loops: usize,
}

impl Try {
    /// Returns a try that has placed nothing yet.
    #[inline]
    pub(crate) fn begin(cluster: &Cluster) -> Self {
        Self { mark: cluster.trial_mark(), ..Self::default() }
    }

    /// Which part of a try is of these replicas.
    pub(crate) fn part_of(&self, work: &GroupWork) -> Option<usize> {
        let first = work.pending().first();
        let is_of =
            |part: &GroupPlacement| part.group == work.group && part.replicas().next().as_ref() == first;
        self.groups.iter().position(is_of)
    }
}

/// Adds the columns of a placement to another one of the same group.
pub(crate) fn append(to: &mut GroupPlacement, more: &GroupPlacement) {
    for (idx, replica) in more.replicas().enumerate() {
        to.push(replica, more.nodes[idx], more.allocation(idx));
    }
}

impl Picture {
    /// Places pending running units group by group, `quota` at most, and assumes them.
    pub(crate) fn place(&mut self, assigned: &AssignedUnit, quota: usize) -> Try {
        let owned = self.owned(assigned);
        self.place_with(assigned, &owned, quota)
    }

    /// The same with the slots of these reservations.
    pub(crate) fn place_with(&mut self, assigned: &AssignedUnit, owned: &Owned, quota: usize) -> Try {
        match place_in_group(self, assigned, owned, quota) {
            Some(tried) => tried,
            None => self.place_in(assigned, owned, quota, None),
        }
    }

    /// The same on the nodes of one group, or wherever the unit's topology lets it: it is not tried domain by domain.
    pub(crate) fn place_in(
        &mut self,
        assigned: &AssignedUnit,
        owned: &Owned,
        quota: usize,
        within: Option<LevelGroup>,
    ) -> Try {
        if self.cluster.domains().is_active()
            && let Some(rules) = self.cluster.domains().rules_of(assigned.unit())
            && rules.has_parts()
        {
            return match &rules.segments {
                Some(segments) => place_segments(self, assigned, segments, owned, quota, within),
                None => place_in_own_domains(self, assigned, &rules, owned, quota, within),
            };
        }
        if within.is_none() {
            return self.place_groups(assigned, owned, quota);
        }
        look_within(self, assigned, within);
        let tried = self.place_groups(assigned, owned, quota);
        look_within(self, assigned, None);
        tried
    }

    fn place_groups(&mut self, assigned: &AssignedUnit, owned: &Owned, quota: usize) -> Try {
        let mut tried = Try::begin(&self.cluster);
        for (work, n) in assigned.minima() {
            let part = GroupPart { work, wanted: &work.pending()[..n] };
            if !self.place_more(assigned, owned, part, &mut tried) {
                // Without that the others are worth nothing.
                return tried;
            }
        }
        self.place_rest(assigned, owned, quota, &mut tried);
        tried
    }

    /// Places what is left of each task group, `quota` at most with what was placed before.
    pub(super) fn place_rest(
        &mut self,
        assigned: &AssignedUnit,
        owned: &Owned,
        quota: usize,
        tried: &mut Try,
    ) {
        for work in assigned.works() {
            let wanted = match tried.part_of(work) {
                Some(at) => &work.pending()[tried.groups[at].ordinals.len()..],
                None => work.pending(),
            };
            let wanted = &wanted[..wanted.len().min(quota.saturating_sub(tried.n_placed))];
            if !wanted.is_empty() {
                self.place_more(assigned, owned, GroupPart { work, wanted }, tried);
            }
        }
    }

    /// Places some more replicas, and adds them to what was placed of the same ones. True: all of them have places.
    fn place_more(
        &mut self,
        assigned: &AssignedUnit,
        owned: &Owned,
        GroupPart { work, wanted }: GroupPart<'_>,
        tried: &mut Try,
    ) -> bool {
        let placement = self.place_group(assigned, owned, work.group, work.template, wanted);
        let n = placement.ordinals.len();
        let is_placed = n == wanted.len();
        if !is_placed {
            tried.failed.push(work.template);
        }
        tried.n_placed += n;
        match tried.part_of(work) {
            Some(at) => append(&mut tried.groups[at], &placement),
            None => tried.groups.push(placement),
        }
        is_placed
    }

    /// Places running units of one task group, and assumes them.
    pub(crate) fn place_group(
        &mut self,
        assigned: &AssignedUnit,
        owned: &Owned,
        group: u16,
        template: TemplateId,
        wanted: &[ReplicaId],
    ) -> GroupPlacement {
        let unit = assigned.unit();
        let mut placement = GroupPlacement { group, ..GroupPlacement::default() };
        let mut recommended = Recommended::new(self, assigned, owned, template);
        self.placer.begin(&mut self.cluster, template, unit, wanted.len());
        for (idx, &replica) in wanted.iter().enumerate() {
            let id = RunningUnitId { unit, replica };
            let Some(choice) = self.place_one(id, wanted.len() - idx, &mut recommended) else { break };
            placement.push(replica, choice.node, choice.allocation);
        }
        placement
    }

    /// Places one of `left` replicas: where it moves to, on a node that is recommended to any of them, on the one that is
    /// recommended to it, or on the best one. For its own sake it does not count on its target, as it counts there for others.
    fn place_one(
        &mut self,
        id: RunningUnitId,
        left: usize,
        recommended: &mut Recommended<'_>,
    ) -> Option<PlacementChoice> {
        let (template, owned) = (recommended.template, recommended.owned);
        let own = recommended.for_replica(self, id.replica);
        let shape = self.placer.templates.get(template).ask.shape();
        let lifted = self.cluster.lift_target(id);
        let choice = own.and_then(|node| self.enter_target(template, shape, node, id)).or_else(|| {
            let next = recommended.take_next(self);
            next.and_then(|node| self.enter_slot(owned, shape, node, id)).or_else(|| {
                let mut nodes = next.into_iter().chain(own);
                let choice = nodes.find_map(|node| self.placer.choose_on(&self.cluster, template, node));
                let choice =
                    choice.or_else(|| self.placer.next(&mut self.cluster, template, id.unit, left))?;
                self.cluster.try_out(id, shape, choice.node, choice.allocation);
                Some(choice)
            })
        });
        if let Some(mark) = lifted {
            self.cluster.resume(mark).join();
        }
        choice
    }

    /// Takes back what was tried, since it comes to nothing. Nothing is left in the try.
    pub(crate) fn take_back(&mut self, tried: &mut Try) {
        let mark = tried.mark;
        self.cluster.take_back(mark);
        *tried = Try { mark, ..Try::default() };
    }

    /// What was decided is assumed no longer: the records that were read say all that there is to know of it.
    pub(crate) fn forget_assumed(&mut self, unit: UnitId, groups: &[GroupPlacement]) {
        for group in groups {
            for replica in group.replicas() {
                self.cluster.forget(RunningUnitId { unit, replica });
            }
        }
    }

    /// Reservations that a unit owns.
    pub(crate) fn owned(&self, assigned: &AssignedUnit) -> Owned {
        if !self.cluster.held().has_slots() {
            return Owned::new();
        }
        self.cluster.held().owned(assigned.facts.pool, |spec| spec.is_marked(&assigned.facts.marks))
    }

    /// Whether some slot would do for some running unit of a unit.
    pub(crate) fn has_slots(&self, assigned: &AssignedUnit) -> bool {
        let owned = self.owned(assigned);
        !owned.is_empty()
            && assigned.pending_groups().any(|group| {
                let shape = self.placer.templates.get(group.template).ask.shape();
                !self.cluster.held().free_slots(&owned, shape).is_empty()
            })
    }

    /// Takes the room on a node that a movement holds for a replica, if it is held and the node still takes the replica. The hold
    /// counts beside it until the binder has bound it, so that nobody else gets the room meanwhile, but for others that are moved to
    /// this node.
    pub(crate) fn enter_target(
        &mut self,
        template: TemplateId,
        shape: ShapeId,
        node: NodeId,
        id: RunningUnitId,
    ) -> Option<PlacementChoice> {
        let (hold, _) = target_of(&self.cluster, id).filter(|(_, target)| *target == node)?;
        let mut holds = entered_on(&self.cluster, node);
        holds.push(hold);
        let mut trial = self.cluster.trial();
        trial.lift_holds(&holds);
        let choice = self.placer.choose_kept(&trial, template, node).or_else(|| {
            // What a rejection said of the node may count what is held there, and what entered it, twice.
            trial.nodes_mut().clear_foreign(node);
            self.placer.choose_kept(&trial, template, node)
        });
        if let Some(choice) = &choice {
            trial.assume(id, shape, choice.node, choice.allocation);
        }
        trial.join();
        choice
    }

    /// Takes a slot on a node: room first, then the slot gives way.
    fn enter_slot(
        &mut self,
        owned: &Owned,
        shape: ShapeId,
        node: NodeId,
        id: RunningUnitId,
    ) -> Option<PlacementChoice> {
        let (slot, allocation) = self.cluster.held().slot_on(owned, shape, node)?;
        self.cluster.try_out(id, shape, node, allocation);
        self.cluster.held_mut().occupy(slot, id);
        Some(PlacementChoice { node, allocation })
    }
}

/// Whether a slot on a node would do for a template, whoever owns it: then a unit that waits may have a place.
pub(crate) fn may_serve(placer: &mut Placer, cluster: &Cluster, template: TemplateId, node: NodeId) -> bool {
    if !cluster.held().has_slots() {
        return false;
    }
    let shape = placer.templates.get(template).ask.shape();
    cluster.held().may_serve(shape, node) && placer.admits(cluster, template, node)
}
