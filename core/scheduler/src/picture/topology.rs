//! Places for the first replicas of a unit with a topology: all of them in one domain, the narrowest level first.
//!
//! The levels of a unit go from its preferred topology keys to the required one. Of each level the domains are tried one after
//! the other, from a start that differs from unit to unit, so that schedulers seldom choose the same: those are left out at once
//! whose free room could not hold the replicas. What is placed in a domain that does not hold all is taken back.
//!
//! Whether later replicas go there too is the business of the filter `unit-affinity` where the topology is required, and of the
//! score `unit-preference` where it is preferred: to both a unit is near to itself.

use std::sync::Arc;

use godel_cluster::{GroupRef, NodeGroups, Owned, TopologyLevel, UnitRules};
use godel_placement::place::templates::TemplateId;

use super::{Picture, Try};
use crate::assigned_unit::AssignedUnit;

/// Most domains of a level in which placing is tried for real; others are only judged by their free room.
const N_TRIED_MAX: usize = 8;

/// Places the first replicas of a unit in one domain, if it wants that; `None`: it does not, or no domain holds them.
pub(super) fn place_in_domain(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    owned: &Owned,
    quota: usize,
) -> Option<Try> {
    let together = assigned.together() as usize;
    if together == 0 || !picture.cluster.has_terms() {
        return None;
    }
    let rules = picture.cluster.domains().rules_of(assigned.unit())?;
    // What runs of it already says where the rest goes.
    if rules.levels.is_empty() || has_live(picture, assigned) {
        return None;
    }
    rules.levels.iter().find_map(|level| place_at_level(picture, assigned, (owned, quota, together), level))
}

fn place_at_level(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    (owned, quota, together): (&Owned, usize, usize),
    level: &TopologyLevel,
) -> Option<Try> {
    let (number, groups): (usize, Arc<NodeGroups>) = picture.cluster.groups(level);
    let n_groups = groups.len();
    let start = usize::try_from(assigned.unit().0).unwrap_or(0) % n_groups.max(1);
    let mut n_tried = 0;
    for group in (start..n_groups).chain(0..start) {
        if n_tried >= N_TRIED_MAX {
            break;
        }
        // What is kept in slots is not free, and is there for who owns it.
        if owned.is_empty() && !may_hold(picture, assigned, groups.nodes(group), together) {
            continue;
        }
        n_tried += 1;
        let tried = picture.place_in(assigned, owned, quota, Some((number, group)));
        if tried.n_placed >= together {
            return Some(tried);
        }
        picture.undo(assigned.unit(), &tried.groups);
    }
    None
}

/// The level of which a unit's first replicas have to be in one domain; `None`: there is none, or some of the unit runs
/// already, which says where the rest goes.
pub(crate) fn required_level(picture: &Picture, assigned: &AssignedUnit) -> Option<TopologyLevel> {
    if assigned.together() == 0 || !picture.cluster.has_terms() || has_live(picture, assigned) {
        return None;
    }
    let rules = picture.cluster.domains().rules_of(assigned.unit())?;
    rules.levels.last().filter(|_| rules.needs_level).cloned()
}

/// The rules of a unit of which some replicas go to one domain together: segments, or task groups with a topology of their own;
/// `None`: it has no such replicas.
pub(crate) fn rules_of_parts(picture: &Picture, assigned: &AssignedUnit) -> Option<Arc<UnitRules>> {
    if !picture.cluster.has_terms() {
        return None;
    }
    picture.cluster.domains().rules_of(assigned.unit()).filter(|rules| rules.has_parts())
}

/// Whether it matters where on its node a replica of some task group lies.
pub(crate) fn is_placed(picture: &Picture, assigned: &AssignedUnit) -> bool {
    assigned.groups.iter().any(|work| {
        let shape = picture.placer.templates.get(work.template).ask.shape();
        picture.cluster.shapes().get(shape).is_placed
    })
}

/// Whether where a replica may go depends on where others of its unit go: on their ports, their nodes or their domains, those of
/// a required topology aside.
pub(crate) fn is_one_by_one(picture: &Picture, assigned: &AssignedUnit) -> bool {
    let has_ports = |template| {
        let shape = picture.placer.templates.get(template).ask.shape();
        picture.cluster.shapes().get(shape).has_ports
    };
    let is_daemon = picture.cluster.daemon(assigned.unit()).is_some();
    if is_daemon || assigned.groups.iter().any(|work| has_ports(work.template)) {
        return true;
    }
    picture.cluster.has_terms()
        && picture.cluster.domains().rules_of(assigned.unit()).is_some_and(|rules| {
            let is_near = !rules.needs_level && rules.near.iter().any(|rule| rule.weight == 0);
            let is_apart = rules.apart.iter().any(|rule| rule.weight == 0);
            is_near || is_apart || rules.spread.iter().any(|rule| rule.weight == 0)
        })
}

fn has_live(picture: &Picture, assigned: &AssignedUnit) -> bool {
    picture.cluster.rows(assigned.unit()).is_some_and(|rows| rows.live().next().is_some())
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
