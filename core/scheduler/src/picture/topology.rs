//! Places for the first replicas of a unit: all of them in one group of nodes, if the groupers of its profile split the nodes for it.
//!
//! For units with topology keys the groups are domains: the levels go from the preferred keys to the required one. Of each level the groups are
//! tried one after the other: those are left out at once whose free room could not hold the replicas. What is placed in a group that does not
//! hold all is taken back.
//!
//! Whether later replicas go there too is the business of the filter `unit-affinity` where the topology is required, and of the
//! score `unit-preference` where it is preferred: to both a unit is near to itself.

use std::sync::Arc;

use godel_cluster::{GroupRef, Owned, TopologyLevel, UnitRules};
use godel_framework::point::GroupLevel;
use godel_placement::place::templates::TemplateId;

use super::{Picture, Try, grouping::Together};
use crate::assigned_unit::AssignedUnit;

/// Most groups of a level in which placing is tried for real; others are only judged by their free room.
const N_TRIED_MAX: usize = 8;

/// Places the first replicas of a unit in one group of nodes, if its profile splits them; `None`: it does not, or no group holds them.
pub(super) fn place_in_group(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    owned: &Owned,
    quota: usize,
) -> Option<Try> {
    let together = assigned.gang.lacking() as usize;
    if together == 0 || !(picture.cluster.domains().is_active() || picture.placer.groups_all()) {
        return None;
    }
    let rules = picture.cluster.domains().rules_of(assigned.unit());
    let has_keys = rules.as_ref().is_some_and(|rules| !rules.keys.is_empty());
    // What runs of it already says where the rest goes.
    if !(has_keys || picture.placer.groups_all()) || has_live(picture, assigned) {
        return None;
    }
    let rules = rules.unwrap_or_default();
    let first = Together::of_unit(picture, assigned, &rules, owned, together)?;
    let levels = first.levels(picture);
    levels.iter().find_map(|level| place_at_level(picture, assigned, owned, quota, together, &first, level))
}

fn place_at_level(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    owned: &Owned,
    quota: usize,
    together: usize,
    first: &Together<'_>,
    level: &GroupLevel,
) -> Option<Try> {
    let (number, groups, order) = first.groups(picture, level);
    let mut n_tried = 0;
    for group in order {
        if n_tried >= N_TRIED_MAX {
            break;
        }
        // What is kept in slots is not free, and is there for who owns it.
        if owned.is_empty() && !may_hold(picture, assigned, groups.nodes(group), together) {
            continue;
        }
        n_tried += 1;
        let mut tried = picture.place_in(assigned, owned, quota, Some((number, group)));
        if tried.n_placed >= together {
            if !level.is_binding && tried.n_placed < quota {
                // Others of the unit may go elsewhere; those that go to domains of their own are tried again.
                tried.failed.clear();
                if rules_of_parts(picture, assigned).is_none() {
                    picture.place_rest(assigned, owned, quota, &mut tried);
                }
            }
            return Some(tried);
        }
        picture.cluster.take_back(tried.mark);
    }
    None
}

/// The level of which a unit's first replicas have to be in one domain; `None`: there is none, or some of the unit runs
/// already, which says where the rest goes.
pub(crate) fn required_level(picture: &Picture, assigned: &AssignedUnit) -> Option<TopologyLevel> {
    if assigned.gang.lacking() == 0 || !picture.cluster.domains().is_active() || has_live(picture, assigned) {
        return None;
    }
    let rules = picture.cluster.domains().rules_of(assigned.unit())?;
    Some(rules.keys.required_level()).filter(|level| !level.is_empty())
}

/// The rules of a unit of which some replicas go to one domain together: segments, or task groups with a topology of their own;
/// `None`: it has no such replicas.
pub(crate) fn rules_of_parts(picture: &Picture, assigned: &AssignedUnit) -> Option<Arc<UnitRules>> {
    if !picture.cluster.domains().is_active() {
        return None;
    }
    picture.cluster.domains().rules_of(assigned.unit()).filter(|rules| rules.has_parts())
}

/// Whether it matters where on its node a replica of some task group lies.
pub(crate) fn is_placed(picture: &Picture, assigned: &AssignedUnit) -> bool {
    assigned.groups.iter().any(|work| {
        let shape = picture.placer.templates.get(work.template).ask.shape();
        picture.cluster.catalogue().shape(shape).is_placed
    })
}

/// Whether where a replica may go depends on where others of its unit go: on their ports, their nodes or their domains, those of
/// a required topology aside.
pub(crate) fn is_one_by_one(picture: &Picture, assigned: &AssignedUnit) -> bool {
    let has_ports = |template| {
        let shape = picture.placer.templates.get(template).ask.shape();
        picture.cluster.catalogue().shape(shape).has_ports
    };
    let is_daemon = picture.cluster.taken().daemons.find(assigned.unit()).is_some();
    if is_daemon || assigned.groups.iter().any(|work| has_ports(work.template)) {
        return true;
    }
    picture.cluster.domains().is_active()
        && picture.cluster.domains().rules_of(assigned.unit()).is_some_and(|rules| {
            let is_near = !rules.keys.is_required() && rules.near.iter().any(|rule| rule.weight == 0);
            let is_apart = rules.apart.iter().any(|rule| rule.weight == 0);
            is_near || is_apart || rules.spread.iter().any(|rule| rule.weight == 0)
        })
}

fn has_live(picture: &Picture, assigned: &AssignedUnit) -> bool {
    picture.cluster.taken().is_somewhere(assigned.unit())
}

/// Whether the free room of some nodes could hold the replicas that go together, each task group by itself.
fn may_hold(picture: &Picture, assigned: &AssignedUnit, nodes: &[u32], together: usize) -> bool {
    all_groups(assigned, together, |template, wanted| {
        picture.placer.may_hold(&picture.cluster, template, nodes, wanted)
    })
}

/// The same if nothing ran there.
pub(crate) fn could_hold(picture: &Picture, assigned: &AssignedUnit, nodes: &[u32], together: usize) -> bool {
    all_groups(assigned, together, |template, wanted| {
        picture.placer.could_hold(&picture.cluster, template, nodes, wanted)
    })
}

fn all_groups(assigned: &AssignedUnit, together: usize, holds: impl Fn(TemplateId, u32) -> bool) -> bool {
    // Of several groups any may be the one of which fewer are needed.
    let spared = assigned.pending().saturating_sub(together);
    let minima = assigned.minima();
    assigned.pending_groups().all(|group| {
        let least = minima.iter().find(|(known, _)| std::ptr::eq(*known, group)).map_or(0, |(_, n)| *n);
        let wanted = group.pending().len().saturating_sub(spared).max(least);
        holds(group.template, u32::try_from(wanted).unwrap_or(u32::MAX))
    })
}

/// Looks for places in one group of a level from now on, or everywhere.
pub(crate) fn look_within(picture: &mut Picture, assigned: &AssignedUnit, group: Option<(usize, usize)>) {
    let group = group.map(|(level, group)| GroupRef::new(level, group));
    for work in &assigned.groups {
        picture.placer.set_group(work.template, group);
    }
}
