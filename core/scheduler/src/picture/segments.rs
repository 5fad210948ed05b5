//! Places for the segments of a unit: groups of replicas, each in one domain.
//!
//! Segment by segment, the domains are tried from the one that took the last segment on, so that they are filled one after the
//! other. A segment of which something runs already goes on in the domain of that.

use godel_cluster::{GroupRef, NodeGroups, Owned, SegmentRule};
use godel_domain::{
    decision::GroupPlacement,
    ids::{NodeId, ReplicaId},
};

use super::{Picture, Try, placing::append, topology::look_within};
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// A group of a level, as [`godel_cluster::Cluster::groups`] numbers levels.
pub(crate) type LevelGroup = (usize, usize);

/// Places pending running units segment by segment, `quota` at most, in one group of nodes if there is one. What is left of
/// a segment that no domain holds waits, and so does what comes after it.
pub(super) fn place_segments(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    rule: &SegmentRule,
    (owned, quota): (&Owned, usize),
    within: Option<LevelGroup>,
) -> Try {
    let (number, groups) = picture.cluster.groups(&rule.level);
    let outer = within.map(|(level, group)| GroupRef::new(level, group));
    let is_inside = |nodes: &[u32]| {
        let first = nodes.first().copied().unwrap_or(0) as usize;
        outer.is_none_or(|outer| picture.cluster.domains().is_in(outer, first))
    };
    let candidates: Vec<usize> = (0..groups.len()).filter(|group| is_inside(groups.nodes(*group))).collect();
    let mut tried = Try::default();
    let mut start = 0;
    let mut place = |picture: &mut Picture, work: &GroupWork, wanted: &[ReplicaId], tried: &mut Try| {
        let mut placement = GroupPlacement { group: work.group, ..GroupPlacement::default() };
        let mut is_placed = true;
        for segment in wanted.chunk_by(|a, b| rule.of(a.ordinal) == rule.of(b.ordinal)) {
            let from = (&candidates[..], start, &*groups);
            let Some((at, placed)) =
                place_segment(picture, assigned, rule, (work.group, owned), (number, from), segment)
            else {
                tried.failed.push(work.template);
                is_placed = false;
                break;
            };
            start = at;
            tried.n_placed += segment.len();
            append(&mut placement, &placed);
        }
        match tried.part_of(work) {
            Some(at) => append(&mut tried.groups[at], &placement),
            None if placement.ordinals.is_empty() => {}
            None => tried.groups.push(placement),
        }
        is_placed
    };
    for (work, n) in assigned.minima() {
        // No segment is begun and left for later.
        let last = rule.of(work.pending()[n - 1].ordinal);
        let n = work.pending().partition_point(|replica| rule.of(replica.ordinal) <= last);
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

/// Places one segment in the first domain that holds it. Returns the position of the domain.
fn place_segment(
    picture: &mut Picture,
    assigned: &AssignedUnit,
    rule: &SegmentRule,
    (group, owned): (u16, &Owned),
    (level, (candidates, start, groups)): (usize, (&[usize], usize, &NodeGroups)),
    segment: &[ReplicaId],
) -> Option<(usize, GroupPlacement)> {
    let template = assigned.groups[usize::from(group)].template;
    let ordinals = rule.ordinals(rule.of(segment.first()?.ordinal));
    let there = picture.cluster.node_of_segment(assigned.unit(), ordinals, None);
    let is_there = |nodes: &[u32]| there.is_none_or(|NodeId(node)| nodes.contains(&node));
    let n_wanted = u32::try_from(segment.len()).unwrap_or(u32::MAX);
    for at in (start..candidates.len()).chain(0..start) {
        let nodes = groups.nodes(candidates[at]);
        // What is kept in slots is not free, and is there for who owns it.
        let may_hold =
            !owned.is_empty() || picture.placer.may_hold(&picture.cluster, template, nodes, n_wanted);
        if !is_there(nodes) || !may_hold {
            continue;
        }
        look_within(picture, assigned, Some((level, candidates[at])));
        let placed = picture.place_group(assigned, (group, owned), template, segment);
        look_within(picture, assigned, None);
        if placed.ordinals.len() == segment.len() {
            return Some((at, placed));
        }
        picture.undo_part(assigned.unit(), std::slice::from_ref(&placed));
    }
    None
}
