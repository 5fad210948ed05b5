//! One decision against the records and against everything under way.

mod members;
mod rejections;
mod room;

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    decision::{Claim, Decision, RejectionReason},
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
    holds::replace::{TAKEN_OVER, TakenOver},
    maxima::settle_reliefs,
    picture::BinderPicture,
    quotas::GroupNeeds,
    reservations::{owned, slots_taken},
    under_way::{Open, OpenHolds},
};

use self::{
    members::{binds, placed, wanted, with_placed},
    rejections::{all_of, well_formed},
    room::{DecisionRoom, may_stand_anew, take_quota, take_room},
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
        let verdict = self.check_as_of_now(decision);
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

    fn check_as_of_now(&mut self, decision: &Decision) -> Verdict {
        if let Err(detail) = well_formed(decision) {
            return Verdict::Reject(whole(decision, RejectionReason::Invalid, detail));
        }
        if decision.spec_revision > self.picture.revision {
            return Verdict::Wait(Wait::Revision(decision.spec_revision));
        }
        if let Some((reason, detail)) = self.picture.frozen_for(decision) {
            return Verdict::Reject(whole(decision, reason, detail));
        }
        settle_reliefs(&mut self.holds, &mut self.picture);
        let mut refused = RejectionList::default();
        let own = self.holds.replaced_by(decision, &self.picture);
        let members = match self.not_bound(decision, &own, &mut refused) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let Some(unit) =
            self.picture.units.get(&decision.unit).filter(|unit| decision.spec_revision == unit.revision)
        else {
            return Verdict::Reject(all_of(decision, &members, refused, "the unit's record is another one"));
        };
        if !unit.is_wanted {
            let why = "the unit is cancelled, suspended or has ended";
            return Verdict::Reject(all_of(decision, &members, refused, why));
        }
        if decision.claim != Claim::FreeRoom {
            return self.check_claims(decision, members, &own, refused);
        }
        let (read, cluster) = (self.picture.revision, &self.picture.cluster);
        let members = match wanted(unit, cluster, &self.requeues, read, decision, members, &mut refused) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        let owned = owned(unit, &self.picture.cluster);
        let (queue, payer) = (unit.queue, unit.payer);
        let (mut own, mut members, mut full) = (own, members, None);
        let (accepted, taken) = loop {
            let gathers = own
                .iter()
                .any(|id| self.picture.cluster.holds().get(*id).is_some_and(|hold| hold.turn.is_some()));
            let borrower = if gathers { None } else { borrower(decision.unit, &self.picture) };
            if !own.is_empty() {
                self.holds.lift(&own, &mut self.picture.cluster, &mut self.picture.quotas);
            }
            let (cluster, borrower) = (&mut self.picture.cluster, borrower.as_ref());
            let room = DecisionRoom { cluster, borrower, owned: &owned, own: &own };
            let mut accepted = take_room(unit, room, decision, &members, &mut refused);
            // Those that move count already.
            let (quotas, cluster) = (&mut self.picture.quotas, &mut self.picture.cluster);
            let movers = self.holds.lift_movers(decision.unit, placed(decision, &accepted), cluster, quotas);
            let mut taken = take_quota(unit, quotas, cluster, decision, &movers, &mut accepted, &mut refused);
            self.holds.shift_movers(&movers, quotas, 1);
            taken.full = full.take().or(taken.full);
            let gone = self.holds.gone_with(&own, placed(decision, &accepted));
            if gone.len() == own.len() {
                break (accepted, taken);
            }
            // Some of the holds stay, as nothing of them is bound, and with them the room that the others may have taken.
            taken.needs.iter().for_each(|(_, need)| self.picture.quotas.give_back(payer, *need));
            for replica in placed(decision, &accepted) {
                self.picture.cluster.forget(RunningUnitId { unit: decision.unit, replica });
            }
            self.holds.restore(&own, &mut self.picture.cluster, &mut self.picture.quotas);
            own.retain(|id| gone.iter().any(|(gone, _)| gone == id));
            (members, full) = (accepted, taken.full);
        };
        let standings = self.picture.classes.standings(unit, self.picture.quotas.path(unit.queue));
        let binds = binds(unit, &self.picture.cluster, decision, &accepted, &standings);
        if let Some(verdict) = self.too_few(decision, &accepted, taken.full, &mut refused) {
            taken.needs.iter().for_each(|(_, need)| self.picture.quotas.give_back(payer, *need));
            self.holds.restore(&own, &mut self.picture.cluster, &mut self.picture.quotas);
            return verdict;
        }
        if !own.is_empty() {
            self.holds.restore(&own, &mut self.picture.cluster, &mut self.picture.quotas);
        }
        if accepted.is_empty() {
            return Verdict::Reject(refused.rejections);
        }
        // What is accepted counts by its ticket.
        self.holds.settle_movers(decision.unit, &mut self.picture);
        let replicas = placed(decision, &accepted).collect();
        let ticket = self.under_way.open(decision.unit, replicas, payer, taken.needs, None);
        let gone = self.holds.gone_with(&own, placed(decision, &accepted));
        self.end_with(ticket, &gone);
        Verdict::Bind(Box::new(Accepted {
            ticket,
            unit: decision.unit,
            unit_revision: decision.spec_revision,
            queue,
            binds,
            holds: Vec::new(),
            evictions: Vec::new(),
            victims: Vec::new(),
            ends: Vec::new(),
            rejections: refused.rejections,
            budgets: Vec::new(),
            slots: slots_taken(decision, &accepted, &self.picture.cluster),
            gone,
        }))
    }

    /// Members that no committed binding and none under way covers, nor a hold but the unit's `own` ones.
    fn not_bound(
        &self,
        decision: &Decision,
        own: &[HoldId],
        refused: &mut RejectionList,
    ) -> Result<PlacedReplicas, Wait> {
        let replaced = if own.is_empty() { FxHashSet::default() } else { self.holds.replicas_of(own) };
        let rows = self.picture.cluster.rows().of(decision.unit);
        let open: Vec<(Ticket, &Open)> = self.under_way.of_unit(decision.unit).collect();
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
                    return Err(self.under_way.outcome_of(*ticket));
                }
                let id = RunningUnitId { unit: decision.unit, replica };
                let is_held = self.holds.has(id) && !replaced.contains(&replica);
                // A target keeps nobody from going elsewhere.
                if is_held && !self.holds.is_moving(id, &self.picture.cluster) {
                    refused.add(RejectionReason::AlreadyHeld, ordinal, NodeId(0), String::new());
                    continue;
                }
                if is_held && self.holds.ends_target(id, &self.picture.cluster) {
                    // Should that be refused, the binding is to end it: no target is there after its replica has moved.
                    return Err(Wait::Revision(Revision(self.picture.revision.0 + 1)));
                }
                members.push(PlacedReplica { group, idx, allocation: placement.allocation(idx) });
            }
        }
        Ok(members)
    }

    /// The unit's first binding would be too small: gives the room back. It may have to wait for a binding of
    /// the same unit that is under way.
    fn too_few(
        &mut self,
        decision: &Decision,
        accepted: &[PlacedReplica],
        full: Option<String>,
        refused: &mut RejectionList,
    ) -> Option<Verdict> {
        let unit = self.picture.units.get(&decision.unit)?;
        let terms = &unit.terms;
        let is_enough = terms.groups().is_empty() && accepted.len() >= terms.min_member as usize;
        if accepted.is_empty() || is_enough {
            return None;
        }
        let rows = self.picture.cluster.rows().of(decision.unit);
        let existing = rows.map(|rows| lifecycle::counted(rows, terms)).unwrap_or_default();
        let bound = with_placed(unit, existing, decision, accepted);
        if terms.is_reached(&bound) {
            return None;
        }
        let open = self.under_way.of_unit(decision.unit).flat_map(|(_, open)| &open.replicas);
        let with_open = open.fold(bound.clone(), |count, replica| unit.count_one(count, replica.ordinal));
        let (is_coming, words) = (terms.is_reached(&with_open), terms.words(&bound));
        for &PlacedReplica { group, idx, .. } in accepted {
            let replica = decision.groups[group].replica(idx);
            self.picture.cluster.forget(RunningUnitId { unit: decision.unit, replica });
        }
        if is_coming {
            return Some(Verdict::Wait(self.under_way.outcome_of_last(decision.unit)?));
        }
        let (reason, detail) = match full {
            Some(full) => (RejectionReason::QueueFull, full),
            None => (RejectionReason::MinMember, format!("{words} would be bound")),
        };
        let ordinals = accepted.iter().map(|member| decision.groups[member.group].ordinals[member.idx]);
        refused.add_all(reason, ordinals, NodeId(0), detail);
        Some(Verdict::Reject(std::mem::take(&mut refused.rejections)))
    }

    /// Checks a decision with victims: whether each of them may be preempted for this unit, whether their units are
    /// left whole or not at all, and whether what they leave behind suffices. Takes the room as holds.
    ///
    /// O(running units placed + victims + running units of their units).
    fn check_claims(
        &mut self,
        decision: &Decision,
        members: PlacedReplicas,
        own: &[HoldId],
        mut refused: RejectionList,
    ) -> Verdict {
        if let Some(wait) = self.under_way.outcome_of_last(decision.unit) {
            return Verdict::Wait(wait);
        }
        let Some(unit) = self.picture.units.get(&decision.unit) else {
            return Verdict::Reject(refused.rejections);
        };
        let (read, cluster) = (self.picture.revision, &self.picture.cluster);
        let members = match wanted(unit, cluster, &self.requeues, read, decision, members, &mut refused) {
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
            return Verdict::Reject(refused.rejections);
        }
        let rows = self.picture.cluster.rows().of(decision.unit);
        let existing = rows.map(|rows| lifecycle::counted(rows, &unit.terms)).unwrap_or_default();
        let held = with_placed(unit, existing, decision, &members);
        if !unit.terms.is_reached(&held) {
            let detail = format!("{} would be held", unit.terms.words(&held));
            return Verdict::Reject(whole(decision, RejectionReason::MinMember, detail));
        }
        let gathers = decision.claim == Claim::Gathering;
        if let Some(kept) = self.picture.keeps_all(gathers) {
            let reason = if gathers { RejectionReason::GangTurn } else { RejectionReason::VictimGone };
            return Verdict::Reject(whole(decision, reason, kept));
        }
        let Some(preemption) = decision.claim.preemption() else {
            return match turn_for(decision, &self.picture, &self.holds) {
                Ok(turn) => self.hold(decision, &members, Some(turn), Vec::new(), &[], TakenOver::default()),
                Err(rejections) => Verdict::Reject(rejections),
            };
        };
        let seeker = Seeker {
            unit: decision.unit,
            priority: self.picture.classes.value(unit.priority),
            pool: unit.pool,
            now_ms: self.picture.now_ms,
            spares_masters: false,
        };
        let (queue, needs) = (unit.queue, self.picture.needs_of(decision, &members));
        // Those that move count already.
        let (quotas, cluster) = (&mut self.picture.quotas, &mut self.picture.cluster);
        let movers = self.holds.lift_movers(decision.unit, placed(decision, &members), cluster, quotas);
        let Self { picture, under_way, holds, evictions, .. } = &*self;
        let claims = ClaimCheck { picture, under_way, holds, evictions };
        let judged = claims.judge(&seeker, decision, preemption, queue, &needs);
        self.holds.shift_movers(&movers, &mut self.picture.quotas, 1);
        match judged {
            Ok(ClaimTerms { taken, budgets }) => self.hold(decision, &members, None, budgets, own, taken),
            Err(ClaimRefused::Wait(wait)) => Verdict::Wait(wait),
            Err(ClaimRefused::Reject(rejections)) => Verdict::Reject(rejections),
        }
    }

    /// Takes room for all of a decision as holds, what its victims leave, by the leave of these budgets, or what a gang's
    /// turn gathers. The unit's `own` holds go, and those that it takes over.
    fn hold(
        &mut self,
        decision: &Decision,
        members: &[PlacedReplica],
        turn: Option<GangTurn>,
        budgets: Vec<(String, Revision)>,
        own: &[HoldId],
        mut taken: TakenOver,
    ) -> Verdict {
        let Self { picture, under_way, holds: known, evictions, .. } = self;
        let unit = &picture.units[&decision.unit];
        let (queue, payer, spec_revision) = (unit.queue, unit.payer, unit.revision);
        let priority = Some(picture.classes.value(unit.priority));
        let judged = picture.revision;
        let mut gone = known.gone_with(own, placed(decision, members));
        gone.extend(taken.ids.iter().map(|id| (*id, TAKEN_OVER)));
        let lifted: Vec<HoldId> = gone.iter().map(|(id, _)| *id).collect();
        known.lift_with_movers(&lifted, &mut picture.cluster, &mut picture.quotas);
        let lasts_ms = if turn.is_some() { known.turn_ms() } else { known.hold_ms() };
        let mut holds: Vec<Arc<Hold>> = Vec::new();
        let mut refusal = None;
        let (made, at_maximum) = match backed_holds(decision, members, queue, &taken, known, picture) {
            Ok(made) => made,
            Err(rejections) => {
                refusal = Some(rejections);
                (Vec::new(), false)
            }
        };
        let asks = UnitAsks::of(&picture.cluster, decision.unit, &picture.units[&decision.unit]);
        for mut hold in made {
            if let Some((victims, from)) = taken.by_place.remove(&(hold.group, hold.node)) {
                hold.victims.extend(victims);
                hold.victims.sort_unstable();
                hold.taken_from = from;
            }
            let group = &picture.units[&decision.unit].groups[usize::from(hold.group)];
            let hold = Hold {
                id: known.next(),
                spec_revision,
                demand: Arc::clone(picture.cluster.catalogue().demand(group.shape)),
                pool: picture.units[&decision.unit].pool,
                expires_ms: picture.now_ms.saturating_add(lasts_ms),
                queue: picture.quotas.path(queue).cloned(),
                judged,
                priority,
                turn: turn.clone(),
                at_maximum,
                ..hold
            };
            let shape = group.shape;
            let asked = asks.asked(&picture.cluster, decision.unit, hold.group, group);
            let may = hold.replicas().try_for_each(|replica| {
                let id = RunningUnitId { unit: decision.unit, replica };
                may_stand_anew(&mut picture.cluster, &asked, id, hold.node, decision.nodes_as_of)
            });
            let fits = may.and_then(|()| match turn {
                Some(_) => picture.cluster.held().could_hold(shape, &hold),
                None => {
                    let mut chosen = (0..hold.ordinals.len()).map(|idx| hold.allocation(idx));
                    chosen.try_for_each(|chosen| picture.cluster.free().suits(shape, hold.node, chosen))?;
                    picture.cluster.held().fits_hold(shape, &hold)
                }
            });
            if let Err(wrong) = fits {
                let (why, detail) = reason(wrong);
                refusal = Some(at_node(decision, why, hold.node, detail));
                break;
            }
            // There is room for all of them together.
            let need = picture.need_of_hold(&hold);
            picture.quotas.add_need(payer, need);
            let hold = Arc::new(hold);
            picture.cluster.put_hold(Arc::clone(&hold));
            known.begin(Arc::clone(&hold), queue, payer, need);
            holds.push(hold);
        }
        known.restore_with_movers(&lifted, &mut picture.cluster, &mut picture.quotas);
        if let Some(rejections) = refusal {
            for hold in holds {
                known.give_up(hold.id, picture);
            }
            known.follow_again(&lifted, &mut picture.cluster);
            return Verdict::Reject(rejections);
        }
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
        Verdict::Bind(Box::new(Accepted {
            ticket,
            unit: decision.unit,
            unit_revision: decision.spec_revision,
            queue,
            binds: Vec::new(),
            holds,
            evictions,
            victims: judged_by,
            ends: Vec::new(),
            rejections: Vec::new(),
            budgets,
            slots: Vec::new(),
            gone,
        }))
    }

    /// These holds end with a ticket.
    fn end_with(&mut self, ticket: Ticket, gone: &[(HoldId, &'static str)]) {
        if !gone.is_empty() {
            self.holds.begin_ends(gone);
            self.under_way.end_holds(ticket, gone.iter().map(|(id, _)| *id));
        }
    }
}

/// The records that victims were judged by.
fn judged_by(evictions: &[(UnitId, Evict)], picture: &BinderPicture) -> Vec<(UnitId, Revision)> {
    let record = |(victim, _): &(UnitId, Evict)| Some((*victim, picture.units.get(victim)?.revision));
    evictions.iter().filter_map(record).filter(|(_, revision)| *revision > Revision(0)).collect()
}
