//! Places for the segments of a unit, or of a task group: groups of replicas, each in one domain.
//!
//! Segment by segment, the domains are tried from the one that took the last segment on, so that they are filled one after the
//! other. A segment of which something runs already goes on in the domain of that.

use std::sync::Arc;

use godel_base::ids::{NodeId, ReplicaId};
use godel_cluster::{GroupRef, NodeGroups, Owned, SegmentRule, TopologyLevel};
use godel_domain::decision::GroupPlacement;

use super::{Picture, Try, group_domains::GroupPart, placing::append, topology::look_within};
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// A group of a level, as [`godel_cluster::Domains::groups_at`] numbers levels.
pub(crate) type LevelGroup = (usize, usize);

/// The domains of a level that are inside of a group of nodes.
pub(crate) struct LevelDomains {
    /// The number of the level.
    pub(crate) level: usize,
    /// All domains of the level.
    pub(crate) groups: Arc<NodeGroups>,
    /// Those that count, ascending.
    pub(crate) inside: Vec<usize>,
}

impl LevelDomains {
    /// Returns the domains of a level inside of a group of another one: nodes that are alike in the keys of both. `O(domains)`
    /// while no node moves.
    pub(crate) fn new(picture: &mut Picture, level: &TopologyLevel, within: Option<LevelGroup>) -> Self {
        let mut keys = level.clone();
        if let Some((outer, _)) = within {
            let known = picture.cluster.domains().groups.keys_of(outer).iter();
            keys.extend(known.filter(|key| !level.contains(key)));
        }
        let (level, groups) = picture.cluster.taken_mut().domains.groups_at(&keys);
        let outer = within.map(|(level, group)| GroupRef::new(level, group));
        let is_inside = |nodes: &[u32]| {
            let first = nodes.first().copied().unwrap_or(0) as usize;
            outer.is_none_or(|outer| picture.cluster.domains().groups.is_in(outer, first))
        };
        let inside = (0..groups.len()).filter(|group| is_inside(groups.nodes(*group))).collect();
        Self { level, groups, inside }
    }
}

/// Places pending running units segment by segment, `quota` at most, in one group of nodes if there is one. What is left of
/// a segment that no domain holds waits, and so does what comes after it.
pub(super) fn place_segments(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    rule: &SegmentRule,
    owned: &Owned,
    quota: usize,
    within: Option<LevelGroup>,
) -> Try {
    let domains = LevelDomains::new(picture, &rule.level, within);
    let mut tried = Try::begin(&picture.cluster);
    let mut start = 0;
    let mut place = |picture: &mut Picture, work: &GroupWork, wanted: &[ReplicaId], tried: &mut Try| {
        let part = GroupPart { work, wanted };
        let placement = place_one_by_one(picture, assigned, owned, rule, &domains, part, &mut start);
        let n = placement.ordinals.len();
        if n < wanted.len() {
            tried.failed.push(work.template);
        }
        tried.n_placed += n;
        match tried.part_of(work) {
            Some(at) => append(&mut tried.groups[at], &placement),
            None if n == 0 => {}
            None => tried.groups.push(placement),
        }
        n == wanted.len()
    };
    for (work, n) in assigned.minima() {
        let n = whole_segments(rule, work, n);
        if !place(picture, work, &work.pending()[..n], &mut tried) {
            return tried;
        }
    }
    for work in &assigned.groups {
        let n_placed = tried.part_of(work).map_or(0, |at| tried.groups[at].ordinals.len());
        let wanted = &work.pending()[n_placed..];
        let wanted = &wanted[..wanted.len().min(quota.saturating_sub(tried.n_placed))];
        place(picture, work, wanted, &mut tried);
    }
    tried
}

/// Of the first `n` pending replicas of a task group so many that no segment is begun and left for later.
pub(crate) fn whole_segments(rule: &SegmentRule, work: &GroupWork, n: usize) -> usize {
    let Some(last) = n.checked_sub(1).and_then(|last| work.pending().get(last)) else { return 0 };
    let last = rule.of(last.ordinal);
    work.pending().partition_point(|replica| rule.of(replica.ordinal) <= last)
}

/// Returns the ordinals that are not of some replicas, which are in order of ordinals: one that is to be placed says nothing of where it
/// goes, though its target counts for the others.
pub(crate) fn besides(
    wanted: &[ReplicaId],
    ordinals: impl Iterator<Item = u32>,
) -> impl Iterator<Item = u32> {
    ordinals.filter(|ordinal| wanted.binary_search_by_key(ordinal, |replica| replica.ordinal).is_err())
}

/// Returns some replicas segment by segment.
pub(crate) fn by_segment<'a>(
    rule: &'a SegmentRule,
    wanted: &'a [ReplicaId],
) -> impl Iterator<Item = &'a [ReplicaId]> {
    wanted.chunk_by(move |a, b| rule.of(a.ordinal) == rule.of(b.ordinal))
}

/// Places the segments of some replicas of a task group one after the other, until one has no place. `start`: position of the
/// domain with which the search begins, which becomes that of the last one taken.
pub(super) fn place_one_by_one(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    owned: &Owned,
    rule: &SegmentRule,
    domains: &LevelDomains,
    part: GroupPart<'_>,
    start: &mut usize,
) -> GroupPlacement {
    let mut placement = GroupPlacement { group: part.work.group, ..GroupPlacement::default() };
    for wanted in by_segment(rule, part.wanted) {
        let segment = GroupPart { wanted, ..part };
        let placed = place_segment(picture, assigned, owned, rule, domains, segment, *start);
        let Some((at, placed)) = placed else { break };
        *start = at;
        append(&mut placement, &placed);
    }
    placement
}

/// Places one segment in the first domain that holds it. Returns the position of the domain.
fn place_segment(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    owned: &Owned,
    rule: &SegmentRule,
    domains: &LevelDomains,
    GroupPart { work, wanted: segment }: GroupPart<'_>,
    start: usize,
) -> Option<(usize, GroupPlacement)> {
    let ordinals = rule.ordinals(rule.of(segment.first()?.ordinal));
    let there = picture.cluster.taken().node_of_any(assigned.unit(), besides(segment, ordinals));
    let is_there = |nodes: &[u32]| there.is_none_or(|NodeId(node)| nodes.contains(&node));
    let n_wanted = u32::try_from(segment.len()).unwrap_or(u32::MAX);
    for at in (start..domains.inside.len()).chain(0..start) {
        let nodes = domains.groups.nodes(domains.inside[at]);
        // What is kept in slots is not free, and is there for who owns it.
        let may_hold =
            !owned.is_empty() || picture.placer.may_hold(&picture.cluster, work.template, nodes, n_wanted);
        if !is_there(nodes) || !may_hold {
            continue;
        }
        let mark = picture.cluster.trial_mark();
        look_within(picture, assigned, Some((domains.level, domains.inside[at])));
        let placed = picture.place_group(assigned, owned, work.group, work.template, segment);
        look_within(picture, assigned, None);
        if placed.ordinals.len() == segment.len() {
            return Some((at, placed));
        }
        picture.cluster.take_back(mark);
    }
    None
}
