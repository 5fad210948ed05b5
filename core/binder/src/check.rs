//! One decision against the records and against everything under way.

mod members;
mod rejections;
mod room;

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_cluster::{Cluster, Unfit};
use godel_domain::{
    decision::{Claim, Decision, Rejection, RejectionReason},
    hold::{GangTurn, Hold},
    lifecycle,
    running_units::{Evict, Phase},
};
use godel_framework::point::Seeker;
use rustc_hash::FxHashSet;

use super::{
    Accepted, Binder, Ticket, Verdict, Wait,
    claims::{ClaimCheck, ClaimRefused, ClaimTerms, backed_holds, evictions_of},
    gangs::{borrower, turn_for},
    holds::{
        BinderHolds,
        replace::{HoldIds, TAKEN_OVER, TakenOver},
    },
    maxima::settle_reliefs,
    picture::BinderPicture,
    quotas::GroupNeeds,
    reservations::{owned, slots_taken},
    under_way::{Open, OpenHolds},
};

use self::{
    members::{binds, placed, wanted, with_placed},
    rejections::{all_of, well_formed},
    room::{Asked, DecisionRoom, may_stand_anew, take_quota, take_room},
};

pub(crate) use self::{
    members::first_to_run,
    rejections::reason,
    room::{UnitAsks, may_go, may_stand},
};
pub(super) use self::{
    members::{PlacedReplica, PlacedReplicas},
    rejections::{RejectionList, at_node, whole},
};

impl Binder {
    /// Checks a decision as of now and takes room for what can be bound.
    ///
    /// Its scheduler may have read more than is read here, and count on what has left in the meantime: before anything is
    /// refused that this could end, all of the decision waits until as much is read here. What fits waits for nothing.
    ///
    /// Resources and devices are always checked, against everything committed and under way. The filters that judge the records
    /// of a node (labels, taints) run if the node has changed since the revision that the decision rests on. Of what the nodes
    /// have room for the maxima of its queue and those above it let the first ones through. All or nothing until the
    /// unit has `min_member`.
    ///
    /// O(running units placed + task groups × depth of the queue); the number of nodes does not matter.
    pub fn check(&mut self, decision: &Decision) -> Verdict {
        let verdict = DecisionCheck { binder: self, decision, refused: RejectionList::default() }.judge();
        if decision.nodes_as_of <= self.picture.revision {
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
}

/// A decision that is checked.
struct DecisionCheck<'a> {
    binder: &'a mut Binder,
    decision: &'a Decision,
    /// What is refused of it.
    refused: RejectionList,
}

impl DecisionCheck<'_> {
    /// Judges the decision by what is read now.
    fn judge(mut self) -> Verdict {
        let (decision, Binder { picture, holds, .. }) = (self.decision, &mut *self.binder);
        if let Err(detail) = well_formed(decision) {
            return Verdict::Reject(whole(decision, RejectionReason::Invalid, detail));
        }
        if decision.spec_revision > picture.revision {
            return Verdict::Wait(Wait::Revision(decision.spec_revision));
        }
        if let Some((reason, detail)) = picture.frozen_for(decision) {
            return Verdict::Reject(whole(decision, reason, detail));
        }
        settle_reliefs(holds, picture);
        let own = holds.known.replaced_by(decision, picture);
        let members = match self.not_bound(&own) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let unit = self.binder.picture.units.get(&decision.unit);
        let Some(unit) = unit.filter(|unit| decision.spec_revision == unit.revision) else {
            let why = "the unit's record is another one";
            return Verdict::Reject(all_of(decision, &members, self.refused, why));
        };
        if !unit.is_wanted {
            let why = "the unit is cancelled, suspended or has ended";
            return Verdict::Reject(all_of(decision, &members, self.refused, why));
        }
        match decision.claim {
            Claim::FreeRoom => self.judge_binding(members, own),
            Claim::Preemption(_) | Claim::Gathering => self.judge_claims(members, &own),
        }
    }

    /// Judges a decision that asks for free room, and takes room for what can be bound. Of the unit's `own` holds those go of which
    /// something is bound.
    fn judge_binding(mut self, members: PlacedReplicas, mut own: HoldIds) -> Verdict {
        let (decision, refused) = (self.decision, &mut self.refused);
        let Binder { picture, holds: BinderHolds { known, .. }, requeues, .. } = &mut *self.binder;
        let (unit, cluster) = (&picture.units[&decision.unit], &picture.cluster);
        let mut members = match wanted(unit, cluster, requeues, picture.revision, decision, members, refused)
        {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let owned = owned(unit, cluster);
        let (queue, payer, mut full) = (unit.queue, unit.payer, None);
        let mark = cluster.trial_mark();
        let (accepted, taken) = loop {
            let gathers =
                own.iter().any(|id| picture.cluster.holds().get(*id).is_some_and(|hold| hold.turn.is_some()));
            let borrower = if gathers { None } else { borrower(decision.unit, picture) };
            let (cluster, quotas) = (&mut picture.cluster, &mut picture.quotas);
            if !own.is_empty() {
                known.lift(&own, cluster, quotas);
            }
            let room = DecisionRoom { cluster, borrower: borrower.as_ref(), owned: &owned, own: &own };
            let mut accepted = take_room(unit, room, decision, &members, refused);
            // Those that move count already.
            let movers = known.lift_movers(decision.unit, placed(decision, &accepted), cluster, quotas);
            let mut taken = take_quota(unit, quotas, cluster, decision, &movers, &mut accepted, refused);
            known.shift_movers(&movers, quotas, 1);
            taken.full = full.take().or(taken.full);
            let gone = known.gone_with(&own, placed(decision, &accepted));
            if gone.len() == own.len() {
                break (accepted, taken);
            }
            // Some of the holds stay, as nothing of them is bound, and with them the room that the others may have taken.
            taken.needs.iter().for_each(|(_, need)| quotas.give_back(payer, *need));
            cluster.take_back(mark);
            known.restore(mark, &own, cluster, quotas);
            own.retain(|id| gone.iter().any(|(gone, _)| gone == id));
            (members, full) = (accepted, taken.full);
        };
        let standings = picture.classes.standings(unit, picture.quotas.path(queue));
        let binds = binds(unit, &picture.cluster, decision, &accepted, &standings);
        let too_few = self.too_few(&accepted, taken.full);
        let Binder { picture, under_way, holds, .. } = &mut *self.binder;
        if too_few.is_some() {
            picture.cluster.take_back(mark);
            taken.needs.iter().for_each(|(_, need)| picture.quotas.give_back(payer, *need));
        }
        if !own.is_empty() {
            holds.known.restore(mark, &own, &mut picture.cluster, &mut picture.quotas);
        }
        picture.cluster.keep_trial();
        if let Some(verdict) = too_few {
            return verdict;
        }
        if accepted.is_empty() {
            return Verdict::Reject(self.refused.rejections);
        }
        // What is accepted counts by its ticket.
        holds.settle_movers(decision.unit, picture);
        let replicas = placed(decision, &accepted).collect();
        let ticket = under_way.open(decision.unit, replicas, payer, taken.needs, None);
        let gone = holds.known.gone_with(&own, placed(decision, &accepted));
        let slots = slots_taken(decision, &accepted, &picture.cluster);
        self.end_with(ticket, &gone);
        let rejections = self.refused.rejections;
        let accepted = Accepted::new(ticket, decision.unit, decision.spec_revision, queue);
        Verdict::Bind(Box::new(Accepted { binds, rejections, slots, gone, ..accepted }))
    }

    /// Members that no committed binding and none under way covers, nor a hold but the unit's `own` ones.
    fn not_bound(&mut self, own: &[HoldId]) -> Result<PlacedReplicas, Wait> {
        let (decision, refused) = (self.decision, &mut self.refused);
        let Binder { picture, under_way, holds: BinderHolds { known, .. }, .. } = &*self.binder;
        let replaced = if own.is_empty() { FxHashSet::default() } else { known.replicas_of(own) };
        let rows = picture.cluster.rows().of(decision.unit);
        let open: Vec<(Ticket, &Open)> = under_way.of_unit(decision.unit).collect();
        let mut members = PlacedReplicas::with_capacity(decision.len());
        for (group, placement) in decision.groups.iter().enumerate() {
            for (idx, &ordinal) in placement.ordinals.iter().enumerate() {
                let replica = placement.replica(idx);
                let row = rows.map(|rows| rows.row(ordinal)).unwrap_or_default();
                if row.incarnation == replica.incarnation && row.phase != Phase::Pending {
                    refused.add(RejectionReason::AlreadyBound, ordinal, row.node, String::new());
                    continue;
                }
                if let Some((ticket, _)) = open.iter().find(|(_, open)| open.contains(replica)) {
                    return Err(under_way.outcome_of(*ticket));
                }
                let id = RunningUnitId { unit: decision.unit, replica };
                let is_held = known.has(id) && !replaced.contains(&replica);
                // A target keeps nobody from going elsewhere.
                if is_held && !known.is_moving(id, &picture.cluster) {
                    refused.add(RejectionReason::AlreadyHeld, ordinal, NodeId(0), String::new());
                    continue;
                }
                if is_held && known.ends_target(id, &picture.cluster) {
                    // Should that be refused, the binding is to end it: no target is there after its replica has moved.
                    return Err(Wait::Revision(Revision(picture.revision.0 + 1)));
                }
                members.push(PlacedReplica { group, idx, allocation: placement.allocation(idx) });
            }
        }
        Ok(members)
    }

    /// The unit's first binding would be too small. It may have to wait for a binding of the same unit that is under way.
    fn too_few(&mut self, accepted: &[PlacedReplica], full: Option<String>) -> Option<Verdict> {
        let decision = self.decision;
        let Binder { picture: BinderPicture { units, cluster, .. }, under_way, .. } = &mut *self.binder;
        let unit = units.get(&decision.unit)?;
        let terms = &unit.terms;
        let is_enough = terms.groups().is_empty() && accepted.len() >= terms.min_member as usize;
        if accepted.is_empty() || is_enough {
            return None;
        }
        let rows = cluster.rows().of(decision.unit);
        let existing = rows.map(|rows| lifecycle::counted(rows, terms)).unwrap_or_default();
        let bound = with_placed(unit, existing, decision, accepted);
        if terms.is_reached(&bound) {
            return None;
        }
        let open = under_way.of_unit(decision.unit).flat_map(|(_, open)| &open.replicas);
        let with_open = open.fold(bound.clone(), |count, replica| unit.count_one(count, replica.ordinal));
        let (is_coming, words) = (terms.is_reached(&with_open), terms.words(&bound));
        if is_coming {
            return Some(Verdict::Wait(under_way.outcome_of_last(decision.unit)?));
        }
        let (reason, detail) = match full {
            Some(full) => (RejectionReason::QueueFull, full),
            None => (RejectionReason::MinMember, format!("{words} would be bound")),
        };
        let ordinals = accepted.iter().map(|member| decision.groups[member.group].ordinals[member.idx]);
        self.refused.add_all(reason, ordinals, NodeId(0), detail);
        Some(Verdict::Reject(std::mem::take(&mut self.refused.rejections)))
    }

    /// Checks a decision with victims: whether each of them may be preempted for this unit, whether their units are
    /// left whole or not at all, and whether what they leave behind suffices. Takes the room as holds.
    ///
    /// O(running units placed + victims + running units of their units).
    fn judge_claims(mut self, members: PlacedReplicas, own: &[HoldId]) -> Verdict {
        let (decision, refused) = (self.decision, &mut self.refused);
        let Binder { picture, under_way, holds, evictions, requeues, .. } = &mut *self.binder;
        if let Some(wait) = under_way.outcome_of_last(decision.unit) {
            return Verdict::Wait(wait);
        }
        let (unit, cluster) = (&picture.units[&decision.unit], &picture.cluster);
        let members = match wanted(unit, cluster, requeues, picture.revision, decision, members, refused) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        if members.len() < decision.len() {
            // Those not refused are to be placed again, with others or without.
            let rest = members.iter().map(|member| decision.groups[member.group].ordinals[member.idx]);
            let detail = "others of the decision cannot be bound any more".to_owned();
            if !members.is_empty() {
                refused.add_all(RejectionReason::MinMember, rest, NodeId(0), detail);
            }
            return Verdict::Reject(self.refused.rejections);
        }
        let rows = cluster.rows().of(decision.unit);
        let existing = rows.map(|rows| lifecycle::counted(rows, &unit.terms)).unwrap_or_default();
        let held = with_placed(unit, existing, decision, &members);
        if !unit.terms.is_reached(&held) {
            let detail = format!("{} would be held", unit.terms.words(&held));
            return Verdict::Reject(whole(decision, RejectionReason::MinMember, detail));
        }
        let gathers = decision.claim == Claim::Gathering;
        if let Some(kept) = picture.keeps_all(gathers) {
            let reason = if gathers { RejectionReason::GangTurn } else { RejectionReason::VictimGone };
            return Verdict::Reject(whole(decision, reason, kept));
        }
        let Some(preemption) = decision.claim.preemption() else {
            return match turn_for(decision, picture, &holds.known) {
                Ok(turn) => self.hold(&members, Some(turn), Vec::new(), &[], TakenOver::default()),
                Err(rejections) => Verdict::Reject(rejections),
            };
        };
        let seeker = Seeker {
            unit: decision.unit,
            priority: picture.classes.value(unit.priority),
            pool: unit.pool,
            now_ms: picture.now_ms,
            spares_masters: false,
        };
        let (queue, needs) = (unit.queue, picture.needs_of(decision, &members));
        // Those that move count already.
        let placed = placed(decision, &members);
        let movers = holds.known.lift_movers(decision.unit, placed, &picture.cluster, &mut picture.quotas);
        let claims = ClaimCheck { picture, under_way, holds: &holds.known, evictions };
        let judged = claims.judge(&seeker, decision, preemption, queue, &needs);
        holds.known.shift_movers(&movers, &mut picture.quotas, 1);
        match judged {
            Ok(ClaimTerms { taken, budgets }) => self.hold(&members, None, budgets, own, taken),
            Err(ClaimRefused::Wait(wait)) => Verdict::Wait(wait),
            Err(ClaimRefused::Reject(rejections)) => Verdict::Reject(rejections),
        }
    }

    /// Takes room for all of a decision as holds, what its victims leave, by the leave of these budgets, or what a gang's
    /// turn gathers. The unit's `own` holds go, and those that it takes over.
    fn hold(
        mut self,
        members: &[PlacedReplica],
        turn: Option<GangTurn>,
        budgets: Vec<(String, Revision)>,
        own: &[HoldId],
        taken: TakenOver,
    ) -> Verdict {
        let Binder { picture, holds: BinderHolds { known, .. }, .. } = &mut *self.binder;
        let mut gone = known.gone_with(own, placed(self.decision, members));
        gone.extend(taken.ids.iter().map(|id| (*id, TAKEN_OVER)));
        let lifted: Vec<HoldId> = gone.iter().map(|(id, _)| *id).collect();
        let mark = known.lift_with_movers(&lifted, &mut picture.cluster, &mut picture.quotas);
        let mut made = Vec::new();
        let is_made = self.make_holds(members, turn, taken, &mut made);
        let Binder { picture, holds, .. } = &mut *self.binder;
        holds.known.restore_with_movers(mark, &lifted, &mut picture.cluster, &mut picture.quotas);
        if let Err(rejections) = is_made {
            for hold in made {
                holds.give_up(hold.id, picture);
            }
            holds.known.follow_again(&lifted, &mut picture.cluster);
            return Verdict::Reject(rejections);
        }
        self.open_holds(members, made, budgets, gone)
    }

    /// Makes the holds of a decision one after the other, each beside those that are `made` before it.
    ///
    /// # Errors
    /// One of them has no room: the rejection of all of the decision.
    fn make_holds(
        &mut self,
        members: &[PlacedReplica],
        turn: Option<GangTurn>,
        mut taken: TakenOver,
        made: &mut Vec<Arc<Hold>>,
    ) -> Result<(), Vec<Rejection>> {
        let decision = self.decision;
        let Binder { picture, holds, .. } = &mut *self.binder;
        let unit = &picture.units[&decision.unit];
        let (queue, payer, spec_revision, pool) = (unit.queue, unit.payer, unit.revision, unit.pool);
        let priority = Some(picture.classes.value(unit.priority));
        let lasts_ms = if turn.is_some() { holds.issuer.turn_ms() } else { holds.issuer.hold_ms() };
        let (backed, at_maximum) = backed_holds(decision, members, queue, &taken, holds, picture)?;
        let asks = UnitAsks::of(&picture.cluster, decision.unit, &picture.units[&decision.unit]);
        for mut hold in backed {
            if let Some((victims, from)) = taken.by_place.remove(&(hold.group, hold.node)) {
                hold.victims.extend(victims);
                hold.victims.sort_unstable();
                hold.taken_from = from;
            }
            let group = &picture.units[&decision.unit].groups[usize::from(hold.group)];
            let hold = Hold {
                id: holds.issuer.next(),
                spec_revision,
                demand: Arc::clone(picture.cluster.catalogue().demand(group.shape)),
                pool,
                expires_ms: picture.now_ms.saturating_add(lasts_ms),
                queue: picture.quotas.path(queue).cloned(),
                judged: picture.revision,
                priority,
                turn: turn.clone(),
                at_maximum,
                ..hold
            };
            let asked = asks.asked(&picture.cluster, decision.unit, hold.group, group);
            may_be_held(&mut picture.cluster, &asked, &hold, decision.nodes_as_of).map_err(|wrong| {
                let (why, detail) = reason(wrong);
                at_node(decision, why, hold.node, detail)
            })?;
            // There is room for all of them together.
            let need = picture.need_of_hold(&hold);
            picture.quotas.add_need(payer, need);
            let hold = Arc::new(hold);
            picture.cluster.held_mut().put(Arc::clone(&hold));
            holds.begin(Arc::clone(&hold), queue, payer, need);
            made.push(hold);
        }
        Ok(())
    }

    /// The holds of a decision are under way, with the evictions of its victims and the ends of the holds that are `gone`.
    fn open_holds(
        mut self,
        members: &[PlacedReplica],
        holds: Vec<Arc<Hold>>,
        budgets: Vec<(String, Revision)>,
        gone: Vec<(HoldId, &'static str)>,
    ) -> Verdict {
        let decision = self.decision;
        let Binder { picture, under_way, evictions, .. } = &mut *self.binder;
        let unit = &picture.units[&decision.unit];
        let (queue, payer) = (unit.queue, unit.payer);
        let victims: Vec<_> =
            decision.claim.victims().map(|victim| (victim.unit, victim.replica.ordinal)).collect();
        evictions.add_victims(&victims, picture);
        let evictions = evictions_of(decision.unit, &decision.claim);
        let judged_by = judged_by(&evictions, picture);
        let made = holds.iter().map(|hold| hold.id).collect();
        let concerns = Box::new(OpenHolds { made, victims, ..OpenHolds::default() });
        let placed = placed(decision, members).collect();
        let ticket = under_way.open(decision.unit, placed, payer, GroupNeeds::new(), Some(concerns));
        self.end_with(ticket, &gone);
        let accepted = Accepted::new(ticket, decision.unit, decision.spec_revision, queue);
        Verdict::Bind(Box::new(Accepted { holds, evictions, victims: judged_by, budgets, gone, ..accepted }))
    }

    /// These holds end with a ticket.
    fn end_with(&mut self, ticket: Ticket, gone: &[(HoldId, &'static str)]) {
        if !gone.is_empty() {
            self.binder.holds.begin_ends(gone);
            self.binder.under_way.end_holds(ticket, gone.iter().map(|(id, _)| *id));
        }
    }
}

/// The records that victims were judged by.
fn judged_by(evictions: &[(UnitId, Evict)], picture: &BinderPicture) -> Vec<(UnitId, Revision)> {
    let record = |(victim, _): &(UnitId, Evict)| Some((*victim, picture.units.get(victim)?.revision));
    evictions.iter().filter_map(record).filter(|(_, revision)| *revision > Revision(0)).collect()
}

/// Whether room for a hold is there, or can be gathered, and its replicas may stand on its node.
fn may_be_held(
    cluster: &mut Cluster,
    asked: &Asked<'_>,
    hold: &Hold,
    nodes_as_of: Revision,
) -> Result<(), Unfit> {
    let shape = asked.shape();
    for replica in hold.replicas() {
        let id = RunningUnitId { unit: asked.unit, replica };
        may_stand_anew(cluster, asked, id, hold.node, nodes_as_of)?;
    }
    if hold.turn.is_some() {
        return cluster.held().could_hold(shape, hold);
    }
    for idx in 0..hold.ordinals.len() {
        cluster.free().suits(shape, hold.node, hold.allocation(idx))?;
    }
    cluster.held().fits_hold(shape, hold)
}
