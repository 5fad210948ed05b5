//! One decision against the records and against everything under way.

use std::{cmp::Reverse, sync::Arc};

use godel_cluster::{Cluster, Owned, Unfit};
use godel_domain::{
    decision::{Decision, N_PLACEMENTS_MAX, Rejection, RejectionReason},
    hold::{self, Borrower},
    ids::{HoldId, NodeId, Revision, UnitId},
    lifecycle,
    running_units::{Bind, Phase, PreemptionTerms},
};
use godel_queueing::QueueIdx;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{
    Accepted, Binder, Open, Ticket, Verdict, Wait,
    quotas::{Needs, Quotas},
    requeue::Requeues,
    unit::{Group, Unit},
};

/// One running unit of a decision: position of its group in the decision, position in the group's columns,
/// and the devices it gets.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) group: usize,
    pub(super) idx: usize,
    pub(super) mask: u64,
}

/// Most decisions that come in great numbers place one.
pub(super) type Members = SmallVec<[Member; 1]>;

/// Rejections under construction, one per reason, node and detail, in order of first sight.
#[derive(Default)]
pub(super) struct Refused {
    pub(super) rejections: Vec<Rejection>,
    by_key: FxHashMap<(RejectionReason, NodeId, String), usize>,
}

impl Refused {
    pub(super) fn add(&mut self, reason: RejectionReason, ordinal: u32, node: NodeId, detail: String) {
        self.add_all(reason, [ordinal], node, detail);
    }

    pub(super) fn add_all(
        &mut self,
        reason: RejectionReason,
        ordinals: impl IntoIterator<Item = u32>,
        node: NodeId,
        detail: String,
    ) {
        let idx = *self.by_key.entry((reason, node, detail)).or_insert_with_key(|(reason, node, detail)| {
            let (reason, node, detail) = (*reason, *node, detail.clone());
            self.rejections.push(Rejection { reason, ordinals: Vec::new(), node, detail });
            self.rejections.len() - 1
        });
        self.rejections[idx].ordinals.extend(ordinals);
    }
}

impl Binder {
    /// Checks a decision as of now and takes room for what can be bound.
    ///
    /// Its scheduler may have read more than is read here, and count on what has left in the meantime: before anything is
    /// refused that this could end, all of the decision waits until as much is read here. What fits waits for nothing.
    ///
    /// Resources and devices are always checked, against everything committed and under way. Labels and
    /// taints are checked if the node has changed since the revision that the decision rests on. Of what the nodes
    /// have room for the maxima of its queue and those above it let the first ones through. All or nothing until the
    /// unit has `min_member`.
    ///
    /// O(running units placed + task groups × depth of the queue); the number of nodes does not matter.
    pub fn check(&mut self, decision: &Decision) -> Verdict {
        let verdict = self.check_as_of_now(decision);
        if decision.nodes_as_of <= self.revision {
            return verdict;
        }
        let refused = match &verdict {
            Verdict::Bind(accepted) => &accepted.rejections,
            Verdict::Reject(rejections) => rejections,
            Verdict::Wait(_) => return verdict,
        };
        if !refused.iter().any(|rejection| rejection.reason.may_end_by_reading()) {
            return verdict;
        }
        if let Verdict::Bind(accepted) = &verdict {
            self.take_back(accepted.ticket);
        }
        Verdict::Wait(Wait::Revision(decision.nodes_as_of))
    }

    fn check_as_of_now(&mut self, decision: &Decision) -> Verdict {
        if let Err(detail) = well_formed(decision) {
            return Verdict::Reject(whole(decision, RejectionReason::Invalid, detail));
        }
        if decision.spec_revision > self.revision {
            return Verdict::Wait(Wait::Revision(decision.spec_revision));
        }
        if let Some((reason, detail)) = self.frozen_for(decision) {
            return Verdict::Reject(whole(decision, reason, detail));
        }
        self.settle_reliefs();
        let mut refused = Refused::default();
        let own = self.replaced(decision);
        let members = match self.not_bound(decision, &own, &mut refused) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let Some(unit) =
            self.units.get(&decision.unit).filter(|unit| decision.spec_revision == unit.revision)
        else {
            return Verdict::Reject(all_of(decision, &members, refused, "the unit's record is another one"));
        };
        if !unit.is_wanted {
            return Verdict::Reject(all_of(
                decision,
                &members,
                refused,
                "the unit is cancelled, suspended or has ended",
            ));
        }
        if decision.preemption.is_some() {
            return self.check_claims(decision, (members, &own), refused);
        }
        let members = match wanted(
            unit,
            &self.cluster,
            (&self.requeues, self.revision),
            decision,
            members,
            &mut refused,
        ) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let owned = self.owned(unit);
        let queue = unit.queue;
        let (mut own, mut members, mut full) = (own, members, None);
        let (accepted, taken) = loop {
            let gathers = own.iter().any(|id| self.cluster.hold(*id).is_some_and(|hold| hold.turn.is_some()));
            let borrower = if gathers { None } else { self.borrower(decision.unit) };
            if !own.is_empty() {
                self.holds.lift(&own, &mut self.cluster, &mut self.quotas);
            }
            let room = (&mut self.cluster, borrower.as_ref(), &owned);
            let mut accepted = take_room(unit, room, decision, &members, &mut refused);
            let quota = (&mut self.quotas, &mut self.cluster);
            let mut taken = take_quota(unit, quota, decision, &mut accepted, &mut refused);
            taken.full = full.take().or(taken.full);
            let gone = self.gone_with(&own, placed(decision, &accepted));
            if gone.len() == own.len() {
                break (accepted, taken);
            }
            // Some of the holds stay, as nothing of them is bound, and with them the room that the others may have taken.
            taken.needs.iter().for_each(|(_, need)| self.quotas.give_back(queue, *need));
            for (ordinal, incarnation) in placed(decision, &accepted) {
                self.cluster.forget(decision.unit, ordinal, incarnation);
            }
            self.holds.settle(&own, &mut self.cluster, &mut self.quotas);
            own.retain(|id| gone.iter().any(|(gone, _)| gone == id));
            (members, full) = (accepted, taken.full);
        };
        let standing = self.classes.standing(unit, self.quotas.path(unit.queue));
        let binds = binds(unit, &self.cluster, decision, &accepted, &standing);
        if let Some(verdict) = self.too_few(decision, &accepted, taken.full, &mut refused) {
            taken.needs.iter().for_each(|(_, need)| self.quotas.give_back(queue, *need));
            self.holds.settle(&own, &mut self.cluster, &mut self.quotas);
            return verdict;
        }
        if !own.is_empty() {
            self.holds.settle(&own, &mut self.cluster, &mut self.quotas);
        }
        if accepted.is_empty() {
            return Verdict::Reject(refused.rejections);
        }
        let ticket = self.open(decision, &accepted, queue, taken.needs);
        let gone = self.gone_with(&own, placed(decision, &accepted));
        self.end_with(ticket, &gone);
        Verdict::Bind(Box::new(Accepted {
            ticket,
            unit: decision.unit,
            unit_revision: decision.spec_revision,
            queue,
            binds,
            holds: Vec::new(),
            evictions: Vec::new(),
            ends: Vec::new(),
            rejections: refused.rejections,
            budgets: Vec::new(),
            slots: self.slots_taken(decision, &accepted),
            gone,
        }))
    }

    /// Members that no committed binding and none under way covers, nor a hold but the unit's `own` ones.
    fn not_bound(&self, decision: &Decision, own: &[HoldId], refused: &mut Refused) -> Result<Members, Wait> {
        let replaced = if own.is_empty() { FxHashSet::default() } else { self.members_of(own) };
        let rows = self.cluster.rows(decision.unit);
        let open: Vec<(Ticket, &Open)> = self
            .open_of
            .get(&decision.unit)
            .into_iter()
            .flatten()
            .filter_map(|ticket| Some((*ticket, self.open.get(ticket)?)))
            .collect();
        let mut members = Members::with_capacity(decision.len());
        for (group, placement) in decision.groups.iter().enumerate() {
            for (idx, &ordinal) in placement.ordinals.iter().enumerate() {
                let incarnation = placement.incarnation(idx);
                let row = rows.map(|rows| rows.row(ordinal)).unwrap_or_default();
                if row.incarnation == incarnation && row.phase != Phase::Pending {
                    refused.add(RejectionReason::AlreadyBound, ordinal, row.node, String::new());
                    continue;
                }
                if let Some((ticket, _)) = open.iter().find(|(_, open)| open.contains((ordinal, incarnation)))
                {
                    return Err(self.outcome_of(*ticket));
                }
                if self.holds.has(decision.unit, (ordinal, incarnation))
                    && !replaced.contains(&(ordinal, incarnation))
                {
                    refused.add(RejectionReason::AlreadyHeld, ordinal, NodeId(0), String::new());
                    continue;
                }
                members.push(Member { group, idx, mask: placement.device_mask(idx) });
            }
        }
        Ok(members)
    }

    /// The unit's first binding would be too small: gives the room back. It may have to wait for a binding of
    /// the same unit that is under way.
    fn too_few(
        &mut self,
        decision: &Decision,
        accepted: &[Member],
        full: Option<String>,
        refused: &mut Refused,
    ) -> Option<Verdict> {
        let terms = &self.units.get(&decision.unit)?.terms;
        let min_member = terms.min_member as usize;
        if accepted.is_empty() || accepted.len() >= min_member {
            return None;
        }
        let rows = self.cluster.rows(decision.unit);
        let existing = rows.map_or(0, |rows| lifecycle::counted(rows, terms));
        if accepted.len() + existing >= min_member {
            return None;
        }
        for &Member { group, idx, .. } in accepted {
            let placement = &decision.groups[group];
            self.cluster.forget(decision.unit, placement.ordinals[idx], placement.incarnation(idx));
        }
        let tickets = self.open_of.get(&decision.unit).into_iter().flatten();
        let under_way: usize =
            tickets.clone().filter_map(|ticket| Some(self.open.get(ticket)?.members.len())).sum();
        if accepted.len() + existing + under_way >= min_member {
            let ticket = *tickets.last()?;
            return Some(Verdict::Wait(self.outcome_of(ticket)));
        }
        let (reason, detail) = match full {
            Some(full) => (RejectionReason::QueueFull, full),
            None => {
                let n_bound = accepted.len() + existing;
                (RejectionReason::MinMember, format!("{n_bound} of {min_member} would be bound"))
            }
        };
        let ordinals = accepted.iter().map(|member| decision.groups[member.group].ordinals[member.idx]);
        refused.add_all(reason, ordinals, NodeId(0), detail);
        Some(Verdict::Reject(std::mem::take(&mut refused.rejections)))
    }

    pub(super) fn open(
        &mut self,
        decision: &Decision,
        accepted: &[Member],
        queue: QueueIdx,
        needs: Needs,
    ) -> Ticket {
        let members: SmallVec<_> = accepted
            .iter()
            .map(|member| (&decision.groups[member.group], member.idx))
            .map(|(placement, idx)| (placement.ordinals[idx], placement.incarnation(idx)))
            .collect();
        self.open_members(decision.unit, members, queue, needs)
    }

    pub(super) fn open_members(
        &mut self,
        unit: UnitId,
        mut members: SmallVec<[(u32, u32); 1]>,
        queue: QueueIdx,
        needs: Needs,
    ) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        members.sort_unstable();
        let open = Open { unit, members, landed: None, queue, needs, holds: None, is_listed: false };
        self.open.insert(ticket, open);
        self.open_of.entry(unit).or_default().push(ticket);
        ticket
    }
}

/// Ordinals and incarnations of members of a decision.
pub(super) fn placed<'a>(
    decision: &'a Decision,
    members: &'a [Member],
) -> impl Iterator<Item = (u32, u32)> + 'a {
    members.iter().map(|member| {
        let placement = &decision.groups[member.group];
        (placement.ordinals[member.idx], placement.incarnation(member.idx))
    })
}

/// Members that the unit wants, with the incarnation that is current.
pub(super) fn wanted(
    unit: &Unit,
    cluster: &Cluster,
    (requeues, read): (&Requeues, Revision),
    decision: &Decision,
    members: Members,
    refused: &mut Refused,
) -> Result<Members, Wait> {
    let rows = cluster.rows(decision.unit);
    let mut wanted = Members::with_capacity(members.len());
    for member in members {
        let placement = &decision.groups[member.group];
        let (ordinal, incarnation) = (placement.ordinals[member.idx], placement.incarnation(member.idx));
        let Some(group) = unit.groups.get(usize::from(placement.group)) else {
            let detail = "there is no such task group".to_owned();
            refused.add(RejectionReason::Invalid, ordinal, NodeId(0), detail);
            continue;
        };
        let current = rows.map_or(0, |rows| rows.row(ordinal).incarnation);
        if incarnation > current && requeues.is_under_way(decision.unit, ordinal, incarnation) {
            return Err(Wait::Revision(Revision(read.0 + 1)));
        }
        if !group.owns(ordinal) {
            let detail = "ordinal not wanted".to_owned();
            refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail);
        } else if incarnation != current {
            let detail = format!("incarnation {current} is current");
            refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail);
        } else {
            wanted.push(member);
        }
    }
    Ok(wanted)
}

/// Takes room for each member that its node has room for, in the decision's order. Devices that another took
/// meanwhile are replaced by others of the node that serve the request as well: who packs chooses the same
/// ones, and sending the decision back for that would only choose these. What a gang gathers is for whom it admits, and a
/// slot of a reservation for whoever owns that: an owner takes one where there is one.
fn take_room(
    unit: &Unit,
    (cluster, borrower, owned): (&mut Cluster, Option<&Borrower>, &Owned),
    decision: &Decision,
    members: &[Member],
    refused: &mut Refused,
) -> Members {
    let mut accepted = Members::with_capacity(members.len());
    for &member in members {
        let placement = &decision.groups[member.group];
        let (ordinal, node) = (placement.ordinals[member.idx], placement.nodes[member.idx]);
        let group = &unit.groups[usize::from(placement.group)];
        if !owned.is_empty()
            && let Some((slot, mask)) = cluster.slot_on(owned, group.shape, node)
            && may_stand(cluster, group, node, decision.nodes_as_of).is_ok()
        {
            let (unit, incarnation) = (decision.unit, placement.incarnation(member.idx));
            cluster.assume(unit, ordinal, incarnation, group.shape, node, mask);
            cluster.occupy(slot, hold::Member { unit, ordinal, incarnation });
            accepted.push(Member { mask, ..member });
            continue;
        }
        let mut may = may_go(cluster, group, node, member.mask, decision.nodes_as_of);
        let enters =
            may.is_err() && borrower.is_some_and(|borrower| cluster.lift_gathered(borrower, Some(node)));
        if enters {
            may = may_go(cluster, group, node, member.mask, decision.nodes_as_of);
        }
        match may {
            Ok(mask) => {
                let incarnation = placement.incarnation(member.idx);
                cluster.assume(decision.unit, ordinal, incarnation, group.shape, node, mask);
                accepted.push(Member { mask, ..member });
            }
            Err(refusal) => {
                let (reason, detail) = reason(refusal);
                refused.add(reason, ordinal, node, detail);
            }
        }
        if enters {
            cluster.settle_lifted();
        }
    }
    accepted
}

/// What was taken of a queue.
struct TakenQuota {
    needs: Needs,
    /// The first maximum that was too low, in words.
    full: Option<String>,
}

/// Takes of the unit's queue what its maxima allow, group by group; those beyond, the last ones of their group, are
/// refused and their room is given back. Of a gang the group goes first of which most fit: as many as possible count.
fn take_quota(
    unit: &Unit,
    (quotas, cluster): (&mut Quotas, &mut Cluster),
    decision: &Decision,
    accepted: &mut Members,
    refused: &mut Refused,
) -> TakenQuota {
    let mut taken = TakenQuota { needs: Needs::new(), full: None };
    if accepted.first().map(|member| member.group) == accepted.last().map(|member| member.group) {
        let n_fit = take_group(unit, (quotas, cluster), (decision, accepted), refused, &mut taken);
        accepted.truncate(n_fit);
        return taken;
    }
    let mut groups: SmallVec<[&[Member]; 4]> = accepted.chunk_by(|a, b| a.group == b.group).collect();
    if unit.terms.min_member > 1 {
        let shape = |group: usize| unit.groups[usize::from(decision.groups[group].group)].shape;
        groups.sort_by_cached_key(|group| Reverse(quotas.n_fit(unit.queue, shape(group[0].group), cluster)));
    }
    let mut kept = Members::new();
    for group in groups {
        let n_fit = take_group(unit, (quotas, cluster), (decision, group), refused, &mut taken);
        kept.extend_from_slice(&group[..n_fit]);
    }
    kept.sort_unstable_by_key(|member| (member.group, member.idx));
    *accepted = kept;
    taken
}

/// Takes for those of one group as many as fit, and refuses the rest.
fn take_group(
    unit: &Unit,
    (quotas, cluster): (&mut Quotas, &mut Cluster),
    (decision, members): (&Decision, &[Member]),
    refused: &mut Refused,
    taken: &mut TakenQuota,
) -> usize {
    let Some(first) = members.first() else { return 0 };
    let placement = &decision.groups[first.group];
    let shape = unit.groups[usize::from(placement.group)].shape;
    let asked = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let (need, limit) = quotas.take(unit.queue, shape, asked, cluster);
    if need.n > 0 {
        taken.needs.push((placement.group, need));
    }
    if let Some(limit) = limit {
        let detail = quotas.words(limit);
        let beyond = &members[need.n as usize..];
        for &Member { idx, .. } in beyond {
            cluster.forget(decision.unit, placement.ordinals[idx], placement.incarnation(idx));
        }
        let ordinals = beyond.iter().map(|member| placement.ordinals[member.idx]);
        refused.add_all(RejectionReason::QueueFull, ordinals, NodeId(0), detail.clone());
        taken.full.get_or_insert(detail);
    }
    need.n as usize
}

/// Whether one running unit may go where the decision wants it, labels and taints included if the node has
/// changed since; the devices that it gets there.
pub(super) fn may_go(
    cluster: &Cluster,
    group: &Group,
    node: NodeId,
    mask: u64,
    nodes_as_of: Revision,
) -> Result<u64, Unfit> {
    may_stand(cluster, group, node, nodes_as_of)?;
    cluster.fits(group.shape, node)?;
    cluster.grant_devices(group.shape, node, mask)
}

/// The same, room aside.
fn may_stand(cluster: &Cluster, group: &Group, node: NodeId, nodes_as_of: Revision) -> Result<(), Unfit> {
    cluster.usable(node)?;
    if cluster.changed_at(node) > nodes_as_of {
        let (selector, tolerations) = group.constraint();
        cluster.allows(selector, tolerations, node)?;
    }
    Ok(())
}

fn binds(
    unit: &Unit,
    cluster: &Cluster,
    decision: &Decision,
    accepted: &[Member],
    standing: &Arc<PreemptionTerms>,
) -> Vec<Bind> {
    let mut binds = Vec::with_capacity(decision.groups.len());
    for of_group in accepted.chunk_by(|a, b| a.group == b.group) {
        let placement = &decision.groups[of_group[0].group];
        let column = || of_group.iter().map(|member| member.idx);
        let has_incarnations = column().any(|idx| placement.incarnation(idx) > 0);
        let has_devices = of_group.iter().any(|member| member.mask > 0);
        binds.push(Bind {
            group: placement.group,
            demand: Arc::clone(cluster.demand(unit.groups[usize::from(placement.group)].shape)),
            pool: unit.pool,
            ordinals: column().map(|idx| placement.ordinals[idx]).collect(),
            incarnations: column()
                .filter(|_| has_incarnations)
                .map(|idx| placement.incarnation(idx))
                .collect(),
            nodes: column().map(|idx| placement.nodes[idx]).collect(),
            device_masks: of_group.iter().filter(|_| has_devices).map(|member| member.mask).collect(),
            standing: Some(Arc::clone(standing)),
        });
    }
    binds
}

/// Columns of equal length, nothing twice, something and not too much.
fn well_formed(decision: &Decision) -> Result<(), String> {
    let n_placements = decision.len();
    if n_placements == 0 {
        return Err("places nothing".to_owned());
    }
    if n_placements > N_PLACEMENTS_MAX {
        return Err(format!("places {n_placements}, more than {N_PLACEMENTS_MAX}"));
    }
    for placement in &decision.groups {
        let len = placement.ordinals.len();
        let optional = [placement.incarnations.len(), placement.device_masks.len()];
        if placement.nodes.len() != len || optional.iter().any(|other| *other != 0 && *other != len) {
            return Err(format!("columns of group {} differ in length", placement.group));
        }
    }
    if let [one] = decision.groups.as_slice()
        && one.ordinals.is_sorted_by(|a, b| a < b)
    {
        return Ok(());
    }
    let mut groups: Vec<u16> = decision.groups.iter().map(|placement| placement.group).collect();
    groups.sort_unstable();
    if groups.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a task group stands twice".to_owned());
    }
    let mut ordinals: Vec<u32> =
        decision.groups.iter().flat_map(|placement| placement.ordinals.iter().copied()).collect();
    ordinals.sort_unstable();
    match ordinals.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(format!("ordinal {} stands twice", pair[0])),
    }
}

/// One rejection of everything.
pub(super) fn whole(decision: &Decision, reason: RejectionReason, detail: String) -> Vec<Rejection> {
    let ordinals = decision.groups.iter().flat_map(|placement| placement.ordinals.iter().copied()).collect();
    vec![Rejection { reason, ordinals, node: NodeId(0), detail }]
}

/// Rejections with `members` refused because of their unit.
fn all_of(decision: &Decision, members: &[Member], mut refused: Refused, detail: &str) -> Vec<Rejection> {
    for member in members {
        let ordinal = decision.groups[member.group].ordinals[member.idx];
        refused.add(RejectionReason::UnitChanged, ordinal, NodeId(0), detail.to_owned());
    }
    refused.rejections
}

pub(super) fn reason(refusal: Unfit) -> (RejectionReason, String) {
    match refusal {
        Unfit::Gone => (RejectionReason::NodeGone, String::new()),
        Unfit::NotReady => (RejectionReason::NodeNotReady, String::new()),
        Unfit::Cordoned => (RejectionReason::NodeCordoned, String::new()),
        Unfit::Unreadable => (RejectionReason::NodeNotReady, refusal.to_string()),
        Unfit::Selector { key, value } => (RejectionReason::NodeSelector, format!("{key}={value}")),
        Unfit::Taint { taint } => (RejectionReason::Taint, taint),
        Unfit::Resource { name } => (RejectionReason::InsufficientResources, name),
        Unfit::Device { reason } => (RejectionReason::DeviceTaken, reason),
    }
}
