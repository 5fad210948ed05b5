//! What is left to place of a unit, as rows, holds and outcomes come in.

use std::sync::Arc;

use godel_base::{
    ids::{ReplicaId, UnitId},
    time::Millis,
};
use godel_domain::{
    decision::{Claim, Decision, GroupPlacement, Outcome, RejectionReason},
    hold::Hold,
    refusals::{RefusalCount, Refusals, WaitReason},
    unit_report::ReportState,
};
use godel_placement::place::templates::Templates;
use rustc_hash::FxHashSet;

use super::AssignedUnits;
use crate::{
    assigned_unit::{AssignedUnit, GroupWork, UnitState},
    in_flight::{InFlight, Unread},
    park::WaitKey,
    picture::{Picture, is_past},
};

/// Rejections in a row after which a unit in backoff holds no credits: by then it waits a tenth of a second and more.
const N_FAILURES_CREDITED: u32 = 6;

/// A running unit that the binder refused: its group in the decision, itself, why.
type RefusedReplica = (u16, ReplicaId, RejectionReason);

/// A decision with its outcome.
pub(crate) struct Answered<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) refused: &'a [RefusedReplica],
    pub(crate) n_bound: usize,
}

impl AssignedUnits {
    /// The binder holds room for a decision: while the hold lasts it is tried elsewhere, and nobody else leaves for it. The
    /// rest of a unit that was never bound has to wait for that first binding, at the dispatcher.
    pub(crate) fn await_hold(&mut self, decision: &Decision) {
        let is_same = |assigned: &&mut AssignedUnit| assigned.revision == decision.spec_revision;
        if let Some(assigned) = self.get_mut(decision.unit).filter(is_same) {
            let of_group = |group: &GroupPlacement| group.replicas().map(|one| (group.group, one)).collect();
            let held = decision.groups.iter().flat_map::<Vec<(u16, ReplicaId)>, _>(of_group);
            assigned.awaiting_hold.extend(held);
        }
    }

    /// Nothing of a unit is to be placed beside what room is held for.
    pub(crate) fn wait_for_hold(&mut self, unit: UnitId, templates: &mut Templates) {
        if let Some(mut assigned) = self.detach(unit) {
            assigned.is_partial |= assigned.pending() > 0;
            assigned.groups.iter_mut().for_each(GroupWork::clear);
            self.attach(assigned, UnitState::Waiting, templates);
        }
    }

    /// The binder says that a queue of the unit is full. Nothing seen here ends that, so the unit goes back to the
    /// dispatcher, which knows what queues use; what else is decided of it stays under way.
    ///
    /// If nothing of a decision was bound, task groups that are not in it are tried before: the queue may have room for them, and
    /// the nodes too once these leave them to them. Claims for several are refused together, though the queue may have room
    /// for some.
    pub(crate) fn on_queue_full(
        &mut self,
        decision: &Decision,
        what: &str,
        n_bound: usize,
        picture: &mut Picture,
    ) {
        let Some(mut assigned) = self.detach(decision.unit) else { return };
        let queue = picture.shares.told_apart(assigned.queue);
        let templates = &mut picture.placer.templates;
        if decision.claim != Claim::FreeRoom
            && decision.len() > 1
            && assigned.gang.lacking() == 0
            && !assigned.tries.one_by_one
        {
            assigned.tries.one_by_one = true;
            self.attach(assigned, UnitState::Ready, templates);
            return;
        }
        let reason = RefusalCount::waits(WaitReason::Queue, what.to_owned());
        let refusals =
            Refusals { reasons: vec![reason], attempts: assigned.tries.attempts, ..Refusals::default() };
        let refusals = Arc::new(refusals);
        if n_bound == 0 && assigned.gang.lacking() == 0 {
            for placed in &decision.groups {
                if let Some(group) = assigned.groups.get_mut(usize::from(placed.group)) {
                    group.clear();
                }
            }
            if assigned.pending() > 0 {
                // What the refused ones give back is new to it; those that wait for the same are called in their order.
                let is_wanted = |group: &GroupWork| {
                    self.parked.has_units(&WaitKey::one(templates, group.template, queue))
                };
                let is_alone = !assigned.pending_groups().any(is_wanted);
                assigned.permit.called = is_alone;
                assigned.full = Some(refusals);
                self.attach(assigned, UnitState::Ready, templates);
                return;
            }
        }
        self.give_back(assigned, ReportState::QueueFull, Some(refusals), templates);
    }

    /// A decision has its outcome: what was refused is to be placed again, at once or after a while.
    pub(crate) fn on_answer(
        &mut self,
        answered: &Answered<'_>,
        in_flight: &InFlight,
        picture: &mut Picture,
        now: Millis,
    ) {
        let Answered { decision, refused, n_bound } = *answered;
        let unit = decision.unit;
        if let Some(orphan) = self.orphans.get_mut(&unit) {
            orphan.retain(|id| *id != decision.id);
            if orphan.is_empty() {
                self.orphans.remove(&unit);
            }
        }
        let held_now = match !refused.is_empty() && picture.cluster.holds().is_any() {
            true => picture.held_of(unit, decision.spec_revision),
            false => FxHashSet::default(),
        };
        let Some(assigned) = self.units.get_mut(&unit) else { return };
        assigned.decisions.retain(|id| *id != decision.id);
        if refused.iter().any(|(_, _, reason)| *reason == RejectionReason::MinMember) {
            // Fewer count than was thought.
            assigned.gang.forget_bound();
        }
        let n_refused = |group| refused.iter().filter(|(of, ..)| *of == group).count();
        assigned.gang.note_answered(decision, n_bound, n_refused);
        let is_overtaken = |assigned: &AssignedUnit, replica: ReplicaId| {
            let is_later = |other: &ReplicaId| {
                other.ordinal == replica.ordinal && other.incarnation > replica.incarnation
            };
            let decisions = assigned.decisions.iter().filter_map(|id| in_flight.get(*id));
            assigned.groups.iter().any(|group| group.pending().iter().any(is_later))
                || decisions
                    .flat_map(|decision| &decision.groups)
                    .any(|group| group.replicas().any(|one| is_later(&one)))
        };
        let n_held = assigned.awaiting_hold.len();
        let again = wanted_again(assigned, decision, refused, is_overtaken, &held_now);
        let templates = &mut picture.placer.templates;
        if again.is_empty() && assigned.awaiting_hold.len() == n_held {
            assigned.tries.failures = if n_bound > 0 { 0 } else { assigned.tries.failures };
            // Done, or it waited for this to go back.
            if assigned.decisions.is_empty()
                && assigned.state == UnitState::Waiting
                && !assigned.awaits
                && let Some(assigned) = self.detach(unit)
            {
                self.attach(assigned, UnitState::Ready, templates);
            }
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        assigned.tries.note_rejection(decision.id, in_flight.last_id());
        for (group, wanted) in again {
            if let Some(group) = assigned.groups.get_mut(usize::from(group)) {
                group.add(&[wanted]);
            }
        }
        let state = if assigned.tries.failures > 1 {
            let end = now.plus(self.delays.after(unit, assigned.tries.failures));
            UnitState::Backoff { end, rests: assigned.tries.failures > N_FAILURES_CREDITED }
        } else {
            UnitState::Ready
        };
        self.attach(assigned, state, templates);
    }

    /// A hold has ended. If the dispatcher knew so before it assigned the unit, or another one leads since, nobody
    /// says so again; what is bound in the same transaction is taken out right away, and what another hold is for that took
    /// the place of this one stays held.
    pub(crate) fn requeue_after_hold(&mut self, hold: &Hold, picture: &mut Picture) {
        let Some(assigned) = self.get(hold.unit).filter(|assigned| !assigned.awaiting_hold.is_empty()) else {
            return;
        };
        let held_now = match picture.cluster.holds().has_of(hold.unit) {
            true => picture.held_of(hold.unit, assigned.revision),
            false => FxHashSet::default(),
        };
        let is_free = |wanted: &ReplicaId| {
            !held_now.contains(wanted) && hold.replicas().any(|replica| replica == *wanted)
        };
        self.requeue(hold.unit, |(_, wanted)| is_free(wanted), picture);
    }

    /// The end of holds of a unit may have gone unseen: what no hold is for that was read, or is about to be read, is to be
    /// placed again.
    pub(crate) fn requeue_released(&mut self, unit: UnitId, unread: &Unread, picture: &mut Picture) {
        let Some(assigned) = self.get(unit) else { return };
        let mut held_now = picture.held_of(unit, assigned.revision);
        held_now.extend(unread.held_of(unit, picture.revision));
        self.requeue(unit, |(_, wanted)| !held_now.contains(wanted), picture);
    }

    /// The same of all units, after a list.
    pub(crate) fn requeue_all_released(&mut self, unread: &Unread, picture: &mut Picture) {
        let waiting = self.units.values().filter(|assigned| !assigned.awaiting_hold.is_empty());
        let mut units: Vec<UnitId> = waiting.map(|assigned| assigned.unit()).collect();
        units.sort_unstable();
        units.into_iter().for_each(|unit| self.requeue_released(unit, unread, picture));
    }

    fn requeue(&mut self, unit: UnitId, is_free: impl Fn(&(u16, ReplicaId)) -> bool, picture: &mut Picture) {
        if !self.get(unit).is_some_and(|assigned| assigned.awaiting_hold.iter().any(&is_free)) {
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        let (free, kept) = std::mem::take(&mut assigned.awaiting_hold).into_iter().partition(is_free);
        assigned.awaiting_hold = kept;
        for (group, wanted) in free {
            let row =
                picture.cluster.rows().of(unit).map(|rows| rows.row(wanted.ordinal)).unwrap_or_default();
            if let Some(group) =
                assigned.groups.get_mut(usize::from(group)).filter(|_| !is_past(&row, wanted.incarnation))
            {
                group.add(&[wanted]);
            }
        }
        self.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
    }

    /// Takes out what others bound: all of the unit's rows, or those of `ordinals`.
    pub(crate) fn remove_bound(&mut self, unit: UnitId, ordinals: Option<&[u32]>, picture: &mut Picture) {
        let Some(assigned) = self.get(unit) else { return };
        let Some(rows) = picture.cluster.rows().of(unit) else { return };
        let is_past_one = |wanted: &ReplicaId| is_past(&rows.row(wanted.ordinal), wanted.incarnation);
        let any = assigned.groups.iter().map(GroupWork::pending).any(|pending| match ordinals {
            Some(ordinals) => ordinals.iter().any(|ordinal| {
                let at = pending.partition_point(|wanted| wanted.ordinal < *ordinal);
                pending.get(at).is_some_and(|wanted| wanted.ordinal == *ordinal && is_past_one(wanted))
            }),
            None => pending.iter().any(is_past_one),
        });
        if !any {
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        for group in &mut assigned.groups {
            group.retain(|wanted| !is_past_one(wanted));
        }
        self.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
    }
}

/// The refused running units of a decision, in its order; what an outcome says of others is ignored.
pub(crate) fn refused(decision: &Decision, outcome: &Outcome) -> Vec<RefusedReplica> {
    let mut reasons: Vec<(u32, RejectionReason)> = Vec::new();
    for rejection in &outcome.rejections {
        reasons.extend(rejection.ordinals.iter().map(|ordinal| (*ordinal, rejection.reason)));
    }
    reasons.sort_unstable();
    reasons.dedup_by_key(|(ordinal, _)| *ordinal);
    let mut refused = Vec::with_capacity(reasons.len());
    for group in decision.groups.iter().filter(|_| !reasons.is_empty()) {
        for (idx, &ordinal) in group.ordinals.iter().enumerate() {
            if let Ok(at) = reasons.binary_search_by_key(&ordinal, |(ordinal, _)| *ordinal) {
                refused.push((group.group, group.replica(idx), reasons[at].1));
            }
        }
    }
    refused
}

/// Which refused running units are to be placed again, and in which group. `is_overtaken`: a later incarnation has been
/// assigned since, so that the news that the binder speaks of is here already. `held_now`: the hold that the binder speaks
/// of is known.
fn wanted_again(
    assigned: &mut AssignedUnit,
    decision: &Decision,
    refused: &[RefusedReplica],
    is_overtaken: impl Fn(&AssignedUnit, ReplicaId) -> bool,
    held_now: &FxHashSet<ReplicaId>,
) -> Vec<(u16, ReplicaId)> {
    let mut again = Vec::new();
    for &(group, wanted, reason) in refused {
        let newer = assigned.wanted_again.iter().position(|(_, other)| *other == wanted);
        match (reason, newer) {
            (RejectionReason::AlreadyBound, _) => {}
            (_, Some(at)) => again.push(assigned.wanted_again.swap_remove(at)),
            (RejectionReason::UnitChanged, None) => {
                assigned.awaits |=
                    decision.spec_revision == assigned.revision && !is_overtaken(assigned, wanted);
            }
            // Else that hold has ended, or is about to be read.
            (_, None) if decision.spec_revision == assigned.revision && held_now.contains(&wanted) => {
                assigned.awaiting_hold.push((group, wanted));
            }
            (_, None) if decision.spec_revision == assigned.revision => again.push((group, wanted)),
            (_, None) => {}
        }
    }
    if !assigned.wanted_again.is_empty() {
        // What the outcome did not refuse is bound.
        let placed =
            |wanted: &ReplicaId| decision.groups.iter().any(|group| group.ordinals.contains(&wanted.ordinal));
        assigned.wanted_again.retain(|(_, wanted)| !placed(wanted));
    }
    again
}
