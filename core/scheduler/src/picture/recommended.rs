//! Nodes that are recommended to the replicas of a unit: where one is moved to or ran, and slots of reservations.

use std::collections::VecDeque;

use godel_base::ids::{NodeId, ReplicaId, UnitId};
use godel_cluster::Owned;
use godel_framework::{
    point::{AnyRecommender, RecommendInput},
    registry::RECOMMENDERS,
};
use godel_placement::place::templates::TemplateId;
use smallvec::SmallVec;

use super::Picture;
use crate::assigned_unit::AssignedUnit;

/// What is recommended to replicas of a template of a unit; mostly nothing.
pub(super) struct Recommended<'a> {
    recommenders: SmallVec<[&'static dyn AnyRecommender; 2]>,
    pub(super) template: TemplateId,
    unit: UnitId,
    /// The slots that the unit owns.
    pub(super) owned: &'a Owned,
    returns: bool,
    moves: bool,
    /// Nodes that are recommended to any of the replicas and that none of them has got, the best first.
    for_any: VecDeque<NodeId>,
}

impl<'a> Recommended<'a> {
    pub(super) fn new(
        picture: &Picture,
        assigned: &AssignedUnit,
        owned: &'a Owned,
        template: TemplateId,
    ) -> Self {
        let (cluster, unit) = (&picture.cluster, assigned.unit());
        let is_target = |hold| cluster.holds().get(hold).is_some_and(|hold| hold.movement.is_some());
        let moves = cluster.holds().has_of(unit) && cluster.holds().of(unit).into_iter().any(is_target);
        let (recommenders, for_any) = (SmallVec::new(), VecDeque::new());
        let returns = assigned.facts.returns;
        let mut new = Self { recommenders, template, unit, owned, returns, moves, for_any };
        let of = new.input(picture);
        new.recommenders = RECOMMENDERS.into_iter().filter(|one| one.concerns(&of)).collect();
        if !new.recommenders.is_empty() {
            let of = new.input(picture);
            new.for_any = new.recommenders.iter().flat_map(|one| one.for_any(cluster, &of)).collect();
        }
        new
    }

    fn input<'p>(&self, picture: &'p Picture) -> RecommendInput<'p>
    where
        'a: 'p,
    {
        let ask = &picture.placer.templates.get(self.template).ask;
        RecommendInput { ask, unit: self.unit, owned: self.owned, returns: self.returns, moves: self.moves }
    }

    /// Returns the node that is recommended to one replica.
    pub(super) fn for_replica(&self, picture: &Picture, replica: ReplicaId) -> Option<NodeId> {
        if self.recommenders.is_empty() {
            return None;
        }
        let of = self.input(picture);
        self.recommenders.iter().find_map(|one| one.for_replica(&picture.cluster, &of, replica))
    }

    /// Takes the first of the nodes for any replica where one may stand beside those that were placed before it: they have its
    /// ports, or are too many of its unit in a domain.
    pub(super) fn take_next(&mut self, picture: &mut Picture) -> Option<NodeId> {
        let nodes = &mut self.for_any;
        if nodes.is_empty() {
            return None;
        }
        let Picture { placer, cluster, .. } = picture;
        let at = nodes.iter().position(|node| placer.admits(cluster, self.template, *node));
        if placer.templates.get(self.template).ask.unit().is_none() {
            // What keeps it away now does so for good.
            nodes.drain(..at.unwrap_or(nodes.len()));
            return nodes.pop_front();
        }
        nodes.remove(at?)
    }
}
