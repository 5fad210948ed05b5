//! The running units of a decision: which of them are wanted, and what binds them.

use std::sync::Arc;

use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId};
use godel_cluster::Cluster;
use godel_domain::{
    allocation::Allocation,
    decision::{Decision, RejectionReason},
    lifecycle::{self, GangCount},
    running_units::{Bind, RunningUnits},
};
use smallvec::SmallVec;

use super::RejectionList;
use crate::{Wait, classes::Standings, requeue::Requeues, unit::Unit};

/// One running unit of a decision: position of its group in the decision, position in the group's columns,
/// and what it is given.
#[derive(Clone, Copy)]
pub(crate) struct PlacedReplica {
    pub(crate) group: usize,
    pub(crate) idx: usize,
    pub(crate) allocation: Allocation,
}

/// Most decisions that come in great numbers place one.
pub(crate) type PlacedReplicas = SmallVec<[PlacedReplica; 1]>;

/// Returns the replicas of some running units of a decision.
pub(super) fn placed<'a>(
    decision: &'a Decision,
    members: &'a [PlacedReplica],
) -> impl Iterator<Item = ReplicaId> + 'a {
    members.iter().map(|member| decision.groups[member.group].replica(member.idx))
}

/// Counts running units of a decision beside those that count already.
pub(super) fn with_placed(
    unit: &Unit,
    mut count: GangCount,
    decision: &Decision,
    members: &[PlacedReplica],
) -> GangCount {
    for of_group in members.chunk_by(|a, b| a.group == b.group) {
        unit.terms.add(&mut count, decision.groups[of_group[0].group].group, of_group.len());
    }
    count
}

/// Members that the unit wants, with the incarnation that is current.
pub(super) fn wanted(
    unit: &Unit,
    cluster: &Cluster,
    requeues: &Requeues,
    read: Revision,
    decision: &Decision,
    members: PlacedReplicas,
    refused: &mut RejectionList,
) -> Result<PlacedReplicas, Wait> {
    let rows = cluster.rows().of(decision.unit);
    let mut wanted = PlacedReplicas::with_capacity(members.len());
    for member in members {
        let placement = &decision.groups[member.group];
        let replica = placement.replica(member.idx);
        let ReplicaId { ordinal, incarnation } = replica;
        let Some(group) = unit.groups.get(usize::from(placement.group)) else {
            let detail = "there is no such task group".to_owned();
            refused.add(RejectionReason::Invalid, ordinal, NodeId(0), detail);
            continue;
        };
        let current = rows.map_or(0, |rows| rows.row(ordinal).incarnation);
        let id = RunningUnitId { unit: decision.unit, replica };
        if incarnation > current && requeues.is_under_way(id) {
            return Err(Wait::Revision(Revision(read.0 + 1)));
        }
        if !group.owns(ordinal) {
            let detail = "ordinal not wanted".to_owned();
            refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail);
        } else if incarnation != current {
            let detail = format!("incarnation {current} is current");
            refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail);
        } else if unit.is_ordered
            && let Some(before) = first_to_run(unit, rows, ordinal)
        {
            let detail = format!("ordinal {before} of the unit is to run first");
            refused.add(RejectionReason::MinMember, ordinal, NodeId(0), detail);
        } else {
            wanted.push(member);
        }
    }
    Ok(wanted)
}

/// The first replica of an ordered unit that has yet to run before `ordinal` is bound; `None`: it may be.
pub(crate) fn first_to_run(unit: &Unit, rows: Option<&RunningUnits>, ordinal: u32) -> Option<u32> {
    if !unit.is_ordered {
        return None;
    }
    let has_run = |before: &u32| rows.is_some_and(|rows| lifecycle::has_run(&rows.row(*before)));
    let before = unit.terms.ranges().flat_map(|(start, end)| start..end.min(ordinal));
    before.filter(|before| !has_run(before)).min()
}

/// What binds members of a decision, by task group.
pub(super) fn binds(
    unit: &Unit,
    cluster: &Cluster,
    decision: &Decision,
    accepted: &[PlacedReplica],
    standings: &Standings,
) -> Vec<Bind> {
    let mut binds = Vec::with_capacity(decision.groups.len());
    for of_group in accepted.chunk_by(|a, b| a.group == b.group) {
        let placement = &decision.groups[of_group[0].group];
        let column = || of_group.iter().map(|member| member.idx);
        let has_incarnations = column().any(|idx| placement.incarnation(idx) > 0);
        let allocations = || of_group.iter().map(|member| member.allocation);
        let has_devices = allocations().any(|given| !given.devices.is_empty());
        let has_zones = allocations().any(|given| !given.zones.is_empty());
        binds.push(Bind {
            group: placement.group,
            demand: Arc::clone(cluster.catalogue().demand(unit.groups[usize::from(placement.group)].shape)),
            pool: unit.pool,
            ordinals: column().map(|idx| placement.ordinals[idx]).collect(),
            incarnations: column()
                .filter(|_| has_incarnations)
                .map(|idx| placement.incarnation(idx))
                .collect(),
            nodes: column().map(|idx| placement.nodes[idx]).collect(),
            devices: allocations().filter(|_| has_devices).map(|given| given.devices).collect(),
            zones: allocations().filter(|_| has_zones).map(|given| given.zones).collect(),
            standing: Some(standings.of(placement.group)),
        });
    }
    binds
}
