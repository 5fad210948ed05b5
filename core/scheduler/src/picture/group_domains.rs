//! Places for task groups that have a topology of their own: each in one domain, inside of that of the unit.
//!
//! What has to be placed together is placed task group by task group. Of each the domains are tried level by level, the narrowest
//! first, and of a level those that may hold all of the group before those that hold only what is needed of it. Where a later
//! group finds no place, another domain is tried for an earlier one, [`N_TRIES_MAX`] tries at most.
//!
//! What comes later goes where the rest of its group is: where the topology is required nowhere else, and where it is preferred to the
//! narrowest domain around the rest that has room.

use godel_base::ids::{NodeId, ReplicaId};
use godel_cluster::{GroupRules, Owned, SegmentRule, UnitRules};
use godel_domain::decision::GroupPlacement;
use godel_placement::place::templates::TemplateId;

use super::{
    Picture, Try,
    grouping::Together,
    placing::append,
    segments::{LevelDomains, LevelGroup, besides, place_one_by_one, whole_segments},
    topology::look_within,
};
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// Most domains of a level in which placing a task group is tried; others are only judged by their free room.
const N_DOMAINS_MAX: usize = 8;
/// Most tries of one task group in one domain for a first binding.
const N_TRIES_MAX: usize = 64;

/// What all task groups of a try have in common.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    rules: &'a UnitRules,
    owned: &'a Owned,
    /// The domain of the whole unit.
    within: Option<LevelGroup>,
}

/// Replicas of one task group that have to be placed together with others.
#[derive(Clone, Copy)]
pub(crate) struct GroupPart<'a> {
    pub(crate) work: &'a GroupWork,
    pub(crate) wanted: &'a [ReplicaId],
}

/// Replicas for which one domain is chosen at a time.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) part: GroupPart<'a>,
    /// All of them are one segment. Of other pieces each segment has a domain of its own, inside of the one that is chosen.
    pub(crate) is_segment: bool,
}

impl<'a> Piece<'a> {
    /// Returns a part as one piece, whatever segments it has.
    pub(crate) fn whole(part: GroupPart<'a>) -> Self {
        Self { part, is_segment: false }
    }

    /// Returns some parts with each of their segments by itself, but for those of task groups that require a domain around their
    /// segments.
    pub(crate) fn by_segment(rules: &UnitRules, parts: &[GroupPart<'a>]) -> Vec<Self> {
        let mut pieces = Vec::new();
        for part in parts {
            let needs_level = rules.of_group(part.work.group).is_some_and(GroupRules::needs_level);
            let Some(rule) = segments_of(rules, part.work).filter(|_| !needs_level) else {
                pieces.push(Self::whole(*part));
                continue;
            };
            let segments = part.wanted.chunk_by(|a, b| rule.of(a.ordinal) == rule.of(b.ordinal));
            pieces.extend(
                segments.map(|wanted| Self { part: GroupPart { wanted, ..*part }, is_segment: true }),
            );
        }
        pieces
    }

    /// Returns where it may go: in each domain that could hold it if nothing ran there, if it has to be in one; `None`: wherever the
    /// unit may, which is `within`.
    pub(crate) fn choices(
        self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        rules: &UnitRules,
        within: Option<LevelGroup>,
    ) -> Vec<Option<LevelGroup>> {
        let GroupPart { work, wanted } = self.part;
        let of_group = rules.of_group(work.group).filter(|rules| rules.needs_level());
        let whole = of_group.map(|rules| (&rules.whole, 0));
        let segment = segments_of(rules, work).zip(wanted.first()).filter(|_| self.is_segment);
        let segment = segment.map(|(rule, first)| (rule, rule.of(first.ordinal)));
        let Some((rule, segment)) = segment.or(whole) else { return vec![within] };
        let others = besides(wanted, rule.ordinals(segment));
        let there = picture.cluster.taken().node_of_any(assigned.unit(), others);
        let domains = LevelDomains::new(picture, &rule.level, within);
        let n_wanted = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        let may_be = |domain: &usize| {
            let nodes = domains.groups.nodes(*domain);
            there.is_none_or(|NodeId(node)| nodes.contains(&node))
                && picture.placer.could_hold(&picture.cluster, work.template, nodes, n_wanted)
        };
        let inside = domains.inside.iter().copied().filter(may_be);
        inside.map(|domain| Some((domains.level, domain))).collect()
    }
}

/// The segments of a task group, those of its unit or its own.
pub(crate) fn segments_of<'a>(rules: &'a UnitRules, work: &GroupWork) -> Option<&'a SegmentRule> {
    let of_group = rules.of_group(work.group).and_then(|rules| rules.segments.as_ref());
    rules.segments.as_ref().or(of_group)
}

/// Places pending running units task group by task group, `quota` at most, in one group of nodes if there is one.
pub(super) fn place_in_own_domains(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    rules: &UnitRules,
    owned: &Owned,
    quota: usize,
    within: Option<LevelGroup>,
) -> Try {
    let bounds = Bounds { rules, owned, within };
    let mut tried = Try::begin(&picture.cluster);
    for parts in attempts(assigned, rules) {
        let mut left = N_TRIES_MAX;
        match place_parts(picture, assigned, bounds, &parts, &mut left, &mut tried.groups) {
            Ok(()) => {
                tried.n_placed = tried.groups.iter().map(|placed| placed.ordinals.len()).sum();
                tried.failed.clear();
                break;
            }
            Err(failed) => tried.failed.push(failed),
        }
    }
    if tried.n_placed == 0 && !assigned.minima().is_empty() {
        // Without the minima the others are worth nothing.
        return tried;
    }
    tried.failed.clear();
    for work in assigned.works() {
        let at = tried.part_of(work);
        let n_placed = at.map_or(0, |at| tried.groups[at].ordinals.len());
        let wanted = &work.pending()[n_placed..];
        let wanted = &wanted[..wanted.len().min(quota.saturating_sub(tried.n_placed))];
        if wanted.is_empty() {
            continue;
        }
        let placed = place_rest(picture, assigned, bounds, GroupPart { work, wanted });
        let n = placed.ordinals.len();
        tried.n_placed += n;
        if n < wanted.len() {
            tried.failed.push(work.template);
        }
        match at {
            Some(at) => append(&mut tried.groups[at], &placed),
            None if n == 0 => {}
            None => tried.groups.push(placed),
        }
    }
    tried
}

/// What may be placed together, the best first: as many as the first binding needs, or of each task group its minimum.
fn attempts<'a>(assigned: &'a AssignedUnit, rules: &UnitRules) -> Vec<Vec<GroupPart<'a>>> {
    let together = assigned.gang.lacking() as usize;
    if together == 0 {
        return Vec::new();
    }
    let (first, minima) = (assigned.first(together), assigned.minima());
    let is_more = !minima.is_empty() && minima.iter().map(|(_, n)| n).sum::<usize>() < together;
    let parts = |of: &[(&'a GroupWork, usize)]| parts_of(rules, of);
    let mut attempts = vec![parts(&first)];
    attempts.extend(is_more.then(|| parts(&minima)));
    attempts
}

/// So many pending replicas of each task group, and the rest of each segment that is begun.
pub(crate) fn parts_of<'a>(rules: &UnitRules, of: &[(&'a GroupWork, usize)]) -> Vec<GroupPart<'a>> {
    let part = |&(work, n): &(&'a GroupWork, usize)| {
        let n = match segments_of(rules, work) {
            Some(rule) => whole_segments(rule, work, n),
            None => n,
        };
        GroupPart { work, wanted: &work.pending()[..n] }
    };
    of.iter().map(part).filter(|part| !part.wanted.is_empty()).collect()
}

/// Places all of some parts, or nothing.
///
/// # Errors
/// No domains were found for all of them: the template of one that has none beside those before it.
fn place_parts(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    bounds: Bounds<'_>,
    parts: &[GroupPart<'_>],
    left: &mut usize,
    placed: &mut Vec<GroupPlacement>,
) -> Result<(), TemplateId> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let mut failed = part.work.template;
    for within in places_of(picture, assigned, bounds, *part) {
        let Some(fewer) = left.checked_sub(1) else { break };
        *left = fewer;
        let mark = picture.cluster.trial_mark();
        let here = place_there(picture, assigned, bounds, *part, within);
        let is_whole = here.ordinals.len() == part.wanted.len();
        placed.push(here);
        if is_whole {
            match place_parts(picture, assigned, bounds, rest, left, placed) {
                Ok(()) => return Ok(()),
                Err(template) => failed = template,
            }
        }
        placed.pop();
        picture.cluster.take_back(mark);
    }
    Err(failed)
}

/// Places as many of some replicas of a task group as possible.
fn place_rest(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    bounds: Bounds<'_>,
    part: GroupPart<'_>,
) -> GroupPlacement {
    let places = places_of(picture, assigned, bounds, part);
    let rules = bounds.rules.of_group(part.work.group);
    if rules.is_none_or(|rules| node_of(picture, assigned, rules, part.wanted).is_some()) {
        // The narrowest domain around what is there is filled first.
        let mut placement = GroupPlacement { group: part.work.group, ..GroupPlacement::default() };
        for within in places {
            let wanted = &part.wanted[placement.ordinals.len()..];
            if wanted.is_empty() {
                break;
            }
            append(
                &mut placement,
                &place_there(picture, assigned, bounds, GroupPart { wanted, ..part }, within),
            );
        }
        return placement;
    }
    let mut best: Option<(usize, Option<LevelGroup>)> = None;
    for within in places {
        let mark = picture.cluster.trial_mark();
        let here = place_there(picture, assigned, bounds, part, within);
        let n = here.ordinals.len();
        if n == part.wanted.len() {
            return here;
        }
        picture.cluster.take_back(mark);
        if n > best.map_or(0, |(most, _)| most) {
            best = Some((n, within));
        }
    }
    match best {
        Some((_, within)) => place_there(picture, assigned, bounds, part, within),
        None => GroupPlacement { group: part.work.group, ..GroupPlacement::default() },
    }
}

/// Where some replicas of a task group may be placed, the best first; `None`: anywhere.
fn places_of(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    Bounds { rules, owned, within }: Bounds<'_>,
    part: GroupPart<'_>,
) -> Vec<Option<LevelGroup>> {
    let GroupPart { work, wanted } = part;
    let Some(rules) = rules.of_group(work.group) else { return vec![within] };
    let there = node_of(picture, assigned, rules, wanted);
    let is_there = |nodes: &[u32]| there.is_none_or(|NodeId(node)| nodes.contains(&node));
    let counts = [work.pending().len(), wanted.len()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let mut places = Vec::new();
    let together = Together::of_group(picture, assigned, &rules.keys, part);
    for level in together.levels(picture) {
        let Some(domains) = together.domains_inside(picture, &level, within) else { continue };
        let (mut for_all, mut for_some) = (Vec::new(), Vec::new());
        for domain in domains.inside {
            let nodes = domains.groups.nodes(domain);
            if !is_there(nodes) {
                continue;
            }
            // What is kept in slots is not free, and is there for who owns it; what runs there already may be joined by a few.
            let holds = |n| picture.placer.may_hold(&picture.cluster, work.template, nodes, n);
            let place = Some((domains.level, domain));
            if there.is_some() || !owned.is_empty() || holds(counts[0]) {
                for_all.push(place);
            } else if for_some.len() < N_DOMAINS_MAX && holds(counts[1]) {
                for_some.push(place);
            }
            if for_all.len() >= N_DOMAINS_MAX {
                break;
            }
        }
        places.extend(for_all.into_iter().chain(for_some).take(N_DOMAINS_MAX));
    }
    if !rules.needs_level() {
        places.push(within);
    }
    places
}

/// The node of some replica of a task group beside those that are to be placed, assumed or there; of one that moves its target.
fn node_of(
    picture: &Picture,
    assigned: &AssignedUnit,
    rules: &GroupRules,
    wanted: &[ReplicaId],
) -> Option<NodeId> {
    picture.cluster.taken().node_of_any(assigned.unit(), besides(wanted, rules.whole.ordinals(0)))
}

/// Places some replicas of a task group in one group of nodes, as many as fit there.
fn place_there(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    Bounds { rules, owned, .. }: Bounds<'_>,
    part: GroupPart<'_>,
    within: Option<LevelGroup>,
) -> GroupPlacement {
    let GroupPart { work, wanted } = part;
    if let Some(rule) = rules.of_group(work.group).and_then(|rules| rules.segments.as_ref()) {
        let domains = LevelDomains::new(picture, &rule.level, within);
        return place_one_by_one(picture, assigned, owned, rule, &domains, part, &mut 0);
    }
    look_within(picture, assigned, within);
    let placed = picture.place_group(assigned, owned, work.group, work.template, wanted);
    look_within(picture, assigned, None);
    placed
}
