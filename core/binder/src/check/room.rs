//! Room for the members of a decision, on nodes and in queues.

use std::cmp::Reverse;

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::{Cluster, Owned, ShapeId, Unfit};
use godel_domain::{
    allocation::Allocation,
    decision::{Decision, RejectionReason},
    hold::Borrower,
    lifecycle,
};
use godel_framework::{
    ConcernedFilters, NodeAsk, UnitAsk,
    plugins::movement::{entered_on, target_of},
};
use smallvec::SmallVec;

use super::{PlacedReplica, PlacedReplicas, RejectionList, reason};
use crate::{
    quotas::{GroupNeeds, Quotas},
    unit::{KnownGroup, Unit},
};

/// What a unit says about running units, by task group; nothing where no unit says anything.
pub(crate) struct UnitAsks(SmallVec<[Option<UnitAsk>; 1]>);

impl UnitAsks {
    pub(crate) fn of(cluster: &Cluster, id: UnitId, unit: &Unit) -> Self {
        let groups = if cluster.domains().is_active() { &unit.groups[..] } else { &[] };
        let ask = |group: &KnownGroup| UnitAsk::of(cluster, id, group.shape, group.on_node().requirements);
        Self(groups.iter().map(ask).collect())
    }

    /// What is asked about replicas of a task group of the unit.
    pub(crate) fn asked<'a>(
        &'a self,
        cluster: &Cluster,
        unit: UnitId,
        idx: u16,
        group: &'a KnownGroup,
    ) -> Asked<'a> {
        let about_units = self.0.get(usize::from(idx)).and_then(Option::as_ref);
        let on_node =
            NodeAsk { unit: about_units, daemon: cluster.taken().daemons.find(unit), ..group.on_node() };
        Asked { unit, idx, on_node, concerned: godel_framework::concerned(cluster, &on_node) }
    }
}

/// Where a decision takes room, and what of it is kept for its unit.
pub(super) struct DecisionRoom<'a> {
    pub(super) cluster: &'a mut Cluster,
    /// What a gang gathers is for it, if that admits it.
    pub(super) borrower: Option<&'a Borrower>,
    /// Reservations that it owns.
    pub(super) owned: &'a Owned,
    /// Holds for its replicas, which do not count at present.
    pub(super) own: &'a [HoldId],
}

/// Takes room for each member that its node has room for, in the decision's order. Devices that another took
/// meanwhile are replaced by others of the node that serve the request as well: who packs chooses the same
/// ones, and sending the decision back for that would only choose these. What a gang gathers is for whom it admits, and a
/// slot of a reservation for whoever owns that: an owner takes one where there is one.
pub(super) fn take_room(
    unit: &Unit,
    DecisionRoom { cluster, borrower, owned, own }: DecisionRoom<'_>,
    decision: &Decision,
    members: &[PlacedReplica],
    refused: &mut RejectionList,
) -> PlacedReplicas {
    let mut accepted = PlacedReplicas::with_capacity(members.len());
    let asks = UnitAsks::of(cluster, decision.unit, unit);
    for of_group in members.chunk_by(|a, b| a.group == b.group) {
        let placement = &decision.groups[of_group[0].group];
        let group = &unit.groups[usize::from(placement.group)];
        let asked = asks.asked(cluster, decision.unit, placement.group, group);
        for &member in of_group {
            let id = RunningUnitId { unit: decision.unit, replica: placement.replica(member.idx) };
            let node = placement.nodes[member.idx];
            let ordinal = id.replica.ordinal;
            if !owned.is_empty()
                && let Some((slot, allocation)) = cluster.held().slot_on(owned, group.shape, node)
                && may_stand(cluster, &asked, ordinal, node, decision.nodes_as_of).is_ok()
            {
                cluster.try_out(id, group.shape, node, allocation);
                cluster.held_mut().occupy(slot, id);
                accepted.push(PlacedReplica { allocation, ..member });
                continue;
            }
            // For others of the unit it counts on its target until it has a place.
            let mut mark = cluster.lift_target(id);
            if let Some(mark) = mark {
                let entered = entered_beside(cluster, id, node, own);
                let mut trial = cluster.resume(mark);
                trial.lift_holds(&entered);
                trial.pause();
            }
            let mut may = may_go(cluster, &asked, ordinal, node, member.allocation, decision.nodes_as_of);
            if may.is_err()
                && let Some(borrower) = borrower
            {
                let mut trial = cluster.trial();
                if trial.lift_gathered(borrower, Some(node)) {
                    may = may_go(&trial, &asked, ordinal, node, member.allocation, decision.nodes_as_of);
                }
                mark = mark.or(Some(trial.pause()));
            }
            match may {
                Ok(allocation) => {
                    cluster.try_out(id, group.shape, node, allocation);
                    accepted.push(PlacedReplica { allocation, ..member });
                }
                Err(refusal) => {
                    let (reason, detail) = reason(refusal);
                    refused.add(reason, ordinal, node, detail);
                }
            }
            if let Some(mark) = mark {
                cluster.resume(mark).join();
            }
        }
    }
    accepted
}

/// Targets on a node that others have just been placed on: until that is read they count beside those, which is no reason to refuse
/// one that moves to the same node.
fn entered_beside(
    cluster: &Cluster,
    id: RunningUnitId,
    node: NodeId,
    own: &[HoldId],
) -> SmallVec<[HoldId; 4]> {
    if target_of(cluster, id).is_none_or(|(_, target)| target != node) {
        return SmallVec::new();
    }
    let mut entered = entered_on(cluster, node);
    entered.retain(|hold| !own.contains(hold));
    entered
}

/// What was taken of a queue.
pub(super) struct TakenQuota {
    pub(super) needs: GroupNeeds,
    /// The first maximum that was too low, in words.
    pub(super) full: Option<String>,
}

/// Takes of the unit's queue what its maxima allow, group by group; those beyond, the last ones of their group, are
/// refused and their room is given back. Of a gang the minima of its task groups go first, then the group of which most fit: as many as
/// possible count. Those that move come before all others, whatever the maxima are by now: they counted before.
pub(super) fn take_quota(
    unit: &Unit,
    quotas: &mut Quotas,
    cluster: &mut Cluster,
    decision: &Decision,
    movers: &[(HoldId, ReplicaId)],
    accepted: &mut PlacedReplicas,
    refused: &mut RejectionList,
) -> TakenQuota {
    let mut taken = TakenQuota { needs: GroupNeeds::new(), full: None };
    if movers.is_empty() {
        take_by_maxima(unit, quotas, cluster, decision, accepted, refused, &mut taken);
        return taken;
    }
    let moves = |member: &PlacedReplica| {
        let replica = decision.groups[member.group].replica(member.idx);
        movers.iter().any(|(_, mover)| *mover == replica)
    };
    let (moving, mut others): (PlacedReplicas, PlacedReplicas) =
        accepted.iter().copied().partition(|one| moves(one));
    for member in &moving {
        let group = decision.groups[member.group].group;
        let shape = unit.in_quota(group, unit.groups[usize::from(group)].shape);
        let need = quotas.need(shape, 1, cluster);
        quotas.add_need(unit.payer, need);
        taken.needs.push((group, need));
    }
    take_by_maxima(unit, quotas, cluster, decision, &mut others, refused, &mut taken);
    others.extend(moving);
    others.sort_unstable_by_key(|member| (member.group, member.idx));
    *accepted = others;
    taken
}

/// The same without those that move.
fn take_by_maxima(
    unit: &Unit,
    quotas: &mut Quotas,
    cluster: &mut Cluster,
    decision: &Decision,
    accepted: &mut PlacedReplicas,
    refused: &mut RejectionList,
    taken: &mut TakenQuota,
) {
    if accepted.first().map(|member| member.group) == accepted.last().map(|member| member.group) {
        let n_fit = take_group(unit, quotas, cluster, decision, accepted, refused, taken);
        accepted.truncate(n_fit);
        return;
    }
    let lacking: SmallVec<[(u16, usize); 2]> = match unit.terms.groups() {
        [] => SmallVec::new(),
        _ => {
            let count = cluster.rows().of(decision.unit).map(|rows| lifecycle::counted(rows, &unit.terms));
            unit.terms.lacking(&count.unwrap_or_default()).collect()
        }
    };
    let least = |members: &[PlacedReplica]| {
        let group = decision.groups[members[0].group].group;
        let lacks = lacking.iter().find(|(known, _)| *known == group);
        lacks.map_or(0, |(_, n)| members.len().min(*n))
    };
    let mut groups: SmallVec<[&[PlacedReplica]; 4]> = accepted.chunk_by(|a, b| a.group == b.group).collect();
    let minima: SmallVec<[&[PlacedReplica]; 4]> = groups.iter().map(|group| &group[..least(group)]).collect();
    if unit.terms.min_member > 1 {
        let shape = |group: usize| {
            let group = decision.groups[group].group;
            unit.in_quota(group, unit.groups[usize::from(group)].shape)
        };
        groups.sort_by_cached_key(|group| Reverse(quotas.n_fit(unit.payer, shape(group[0].group), cluster)));
    }
    let mut kept = PlacedReplicas::new();
    let beyond = groups.into_iter().map(|group| &group[least(group)..]);
    for group in minima.into_iter().chain(beyond).filter(|group| !group.is_empty()) {
        let n_fit = take_group(unit, quotas, cluster, decision, group, refused, taken);
        kept.extend_from_slice(&group[..n_fit]);
    }
    kept.sort_unstable_by_key(|member| (member.group, member.idx));
    *accepted = kept;
}

/// Takes for those of one group as many as fit, and refuses the rest.
fn take_group(
    unit: &Unit,
    quotas: &mut Quotas,
    cluster: &mut Cluster,
    decision: &Decision,
    members: &[PlacedReplica],
    refused: &mut RejectionList,
    taken: &mut TakenQuota,
) -> usize {
    let Some(first) = members.first() else { return 0 };
    let placement = &decision.groups[first.group];
    let shape = unit.in_quota(placement.group, unit.groups[usize::from(placement.group)].shape);
    let asked = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let (need, limit) = quotas.take(unit.payer, shape, asked, cluster);
    if need.n > 0 {
        taken.needs.push((placement.group, need));
    }
    if let Some(limit) = limit {
        let detail = quotas.words(limit);
        let beyond = &members[need.n as usize..];
        for &PlacedReplica { idx, .. } in beyond {
            cluster.forget(RunningUnitId { unit: decision.unit, replica: placement.replica(idx) });
        }
        let ordinals = beyond.iter().map(|member| placement.ordinals[member.idx]);
        refused.add_all(RejectionReason::QueueFull, ordinals, NodeId(0), detail.clone());
        taken.full.get_or_insert(detail);
    }
    need.n as usize
}

/// Whose replicas are asked about: their unit, their task group, and what filters judge nodes by.
pub(crate) struct Asked<'a> {
    pub(crate) unit: UnitId,
    /// Position of the task group.
    idx: u16,
    /// The volumes of single replicas aside.
    on_node: NodeAsk<'a>,
    concerned: ConcernedFilters,
}

impl Asked<'_> {
    /// What each replica takes.
    pub(super) fn shape(&self) -> ShapeId {
        self.on_node.shape
    }
}

/// Whether one running unit may go where the decision wants it: by every filter that may say otherwise since the decision was
/// made, and by its room. Returns what it is given there.
pub(crate) fn may_go(
    cluster: &Cluster,
    asked: &Asked<'_>,
    ordinal: u32,
    node: NodeId,
    wanted: Allocation,
    nodes_as_of: Revision,
) -> Result<Allocation, Unfit> {
    may_stand(cluster, asked, ordinal, node, nodes_as_of)?;
    cluster.free().give(asked.on_node.shape, node, wanted)
}

/// The same, room aside.
pub(crate) fn may_stand(
    cluster: &Cluster,
    asked: &Asked<'_>,
    ordinal: u32,
    node: NodeId,
    nodes_as_of: Revision,
) -> Result<(), Unfit> {
    if let Some(ask) = asked.on_node.unit.filter(|ask| ask.rules.has_parts()) {
        for rule in ask.rules.segments_of(asked.idx) {
            cluster.taken().fits_segment(asked.unit, rule, ordinal, node)?;
        }
    }
    let mut ask = asked.on_node;
    if ask.requirements.has_volumes {
        ask.volume_node = cluster.rows().last_node(asked.unit, ordinal);
    }
    let has_changed = cluster.nodes().changed_at(node) > nodes_as_of;
    godel_framework::admit(cluster, ask, asked.concerned, node, has_changed)
}

/// The same for a replica that may have a target: its target is not in its own way.
pub(super) fn may_stand_anew(
    cluster: &mut Cluster,
    asked: &Asked<'_>,
    id: RunningUnitId,
    node: NodeId,
    nodes_as_of: Revision,
) -> Result<(), Unfit> {
    let mut trial = cluster.trial();
    trial.lift_target(id);
    may_stand(&trial, asked, id.replica.ordinal, node, nodes_as_of)
}
