//! Replicas whose volumes a node keeps go back to that node, and wait for it.

use godel_base::ids::{NodeId, ReplicaId};
use godel_domain::decision::GroupPlacement;

use super::Picture;
use crate::assigned_unit::{AssignedUnit, GroupWork};

/// Parts what is pending of a unit by the nodes that keep its volumes, as they are known now.
pub(crate) fn part_by_volumes(picture: &mut Picture, assigned: &mut AssignedUnit) {
    if !assigned.facts.has_volumes {
        return;
    }
    let unit = assigned.unit();
    let is_own = |work: &GroupWork| picture.placer.templates.get(work.template).ask.volume_node().is_none();
    let n_groups = assigned.groups.iter().take_while(|work| is_own(work)).count();
    let mut parted: Vec<(u16, NodeId, Vec<ReplicaId>)> = Vec::new();
    for mut work in assigned.groups.drain(n_groups..).collect::<Vec<_>>() {
        let pending = work.pending().to_vec();
        work.clear();
        picture.placer.templates.release(work.template);
        assigned.groups[usize::from(work.group)].add(&pending);
    }
    let Picture { placer, cluster, .. } = picture;
    let keeper = |ordinal| {
        cluster.rows().last_node(unit, ordinal).filter(|node| cluster.nodes().spec(*node).is_some())
    };
    for work in &mut assigned.groups {
        if !placer.templates.get(work.template).ask.requirements().has_volumes {
            continue;
        }
        for replica in work.pending() {
            let Some(node) = keeper(replica.ordinal) else { continue };
            let same = parted.iter_mut().find(|(group, known, _)| (*group, *known) == (work.group, node));
            match same {
                Some((_, _, replicas)) => replicas.push(*replica),
                None => parted.push((work.group, node, vec![*replica])),
            }
        }
        work.retain(|replica| keeper(replica.ordinal).is_none());
    }
    for (group, node, replicas) in parted {
        let template = picture.placer.intern_on(assigned.groups[usize::from(group)].template, node);
        let mut work = GroupWork::new(group, template);
        work.add(&replicas);
        assigned.groups.push(work);
    }
}

/// Joins the placements of one task group: a decision has one of each.
pub(crate) fn join_groups(groups: &mut Vec<GroupPlacement>) {
    let mut parts = std::mem::take(groups);
    parts.sort_by_key(|placement| placement.group);
    for of_group in parts.chunk_by(|a, b| a.group == b.group) {
        if let [one] = of_group {
            groups.push(one.clone());
            continue;
        }
        let mut places: Vec<_> = of_group
            .iter()
            .flat_map(|part| {
                (0..part.ordinals.len()).map(|idx| (part.replica(idx), part.nodes[idx], part.allocation(idx)))
            })
            .collect();
        places.sort_unstable_by_key(|(replica, ..)| *replica);
        let mut joined = GroupPlacement { group: of_group[0].group, ..GroupPlacement::default() };
        places.into_iter().for_each(|(replica, node, allocation)| joined.push(replica, node, allocation));
        groups.push(joined);
    }
}
