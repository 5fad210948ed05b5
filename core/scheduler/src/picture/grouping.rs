//! What the groupers of a unit's profile say: in which groups of nodes its first replicas are tried together.

use std::sync::Arc;

use godel_base::ids::UnitId;
use godel_cluster::{NodeGroups, Owned, ShapeId, TopologyKeys, TopologyLevel, UnitRules};
use godel_framework::{
    point::{GroupInput, GroupLevel, Split},
    profile::Groupers,
};
use godel_placement::place::templates::TemplateId;
use smallvec::SmallVec;

use super::{
    Picture,
    group_domains::GroupPart,
    segments::{LevelDomains, LevelGroup},
};
use crate::assigned_unit::AssignedUnit;

/// Replicas for which groups of nodes are tried.
pub(super) struct Together<'a> {
    unit: UnitId,
    /// The template whose profile decides: all groups of a unit have the same profile unless they are of different sub-clusters.
    template: TemplateId,
    keys: &'a TopologyKeys,
    is_plain: bool,
    wanted: SmallVec<[(ShapeId, u32); 2]>,
}

impl<'a> Together<'a> {
    /// Returns the first replicas of a unit; `None`: it has none.
    pub(super) fn of_unit(
        picture: &Picture,
        assigned: &AssignedUnit,
        rules: &'a UnitRules,
        owned: &Owned,
        together: usize,
    ) -> Option<Self> {
        let template = assigned.groups.first()?.template;
        let parts = assigned.first(together);
        let parts = parts.iter().filter(|(_, n)| *n > 0);
        let wanted = parts.map(|(work, n)| wanted(picture, work.template, *n)).collect();
        let is_recommended = !owned.is_empty() || assigned.facts.returns || assigned.facts.has_volumes;
        let is_plain = !is_recommended && !rules.has_parts();
        Some(Self { unit: assigned.unit(), template, keys: &rules.keys, is_plain, wanted })
    }

    /// Returns replicas of one task group with topology keys of its own.
    pub(super) fn of_group(
        picture: &Picture,
        assigned: &AssignedUnit,
        keys: &'a TopologyKeys,
        part: GroupPart<'_>,
    ) -> Self {
        let template = part.work.template;
        let wanted = SmallVec::from_iter([wanted(picture, template, part.wanted.len())]);
        Self { unit: assigned.unit(), template, keys, is_plain: false, wanted }
    }

    /// Returns the levels that are tried one after the other.
    pub(super) fn levels(&self, picture: &Picture) -> Vec<GroupLevel> {
        self.groupers(picture).levels(&self.input(picture))
    }

    /// Returns the groups of a level, with the number of the level, and in which order they are tried.
    pub(super) fn groups(
        &self,
        picture: &mut Picture,
        level: &GroupLevel,
    ) -> (usize, Arc<NodeGroups>, Vec<usize>) {
        let (number, groups) = match &level.split {
            Split::Alike(keys) => picture.cluster.taken_mut().domains.groups_at(keys),
            Split::Made(_) => {
                let made = self.groupers(picture).make_groups(&self.input(picture), level);
                picture.cluster.taken_mut().domains.groups.put(&made)
            }
        };
        let order = level.order.sort(&self.input(picture), &groups, (0..groups.len()).collect());
        (number, groups, order)
    }

    /// Returns the domains of a level inside of a group of nodes, in the order in which they are tried; `None`: nodes of the level are not
    /// alike in keys.
    pub(super) fn domains_inside(
        &self,
        picture: &mut Picture,
        level: &GroupLevel,
        within: Option<LevelGroup>,
    ) -> Option<LevelDomains> {
        let Split::Alike(keys) = &level.split else { return None };
        let LevelDomains { level: number, groups, inside } = LevelDomains::new(picture, keys, within);
        let inside = level.order.sort(&self.input(picture), &groups, inside);
        Some(LevelDomains { level: number, groups, inside })
    }

    fn groupers<'p>(&self, picture: &'p Picture) -> &'p Groupers {
        picture.placer.groupers(self.template)
    }

    fn input<'p>(&'p self, picture: &'p Picture) -> GroupInput<'p> {
        let Self { unit, keys, is_plain, wanted, .. } = self;
        GroupInput { cluster: &picture.cluster, unit: *unit, keys, is_plain: *is_plain, wanted }
    }
}

fn wanted(picture: &Picture, template: TemplateId, n: usize) -> (ShapeId, u32) {
    (picture.placer.templates.get(template).ask.shape(), u32::try_from(n).unwrap_or(u32::MAX))
}

/// Returns the levels of topology keys by which replicas with these keys are placed, the narrowest first.
pub(super) fn levels_of_keys(
    picture: &Picture,
    unit: UnitId,
    template: TemplateId,
    keys: &TopologyKeys,
) -> Vec<TopologyLevel> {
    let together = Together { unit, template, keys, is_plain: false, wanted: SmallVec::new() };
    let levels = together.levels(picture).into_iter().filter_map(|level| match level.split {
        Split::Alike(keys) => Some(keys),
        Split::Made(_) => None,
    });
    levels.collect()
}
