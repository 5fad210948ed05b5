//! What is left to place of a unit, as assignments, rows and outcomes come in.

use std::sync::Arc;

use godel_domain::unit_report::ReportState;
use godel_domain::{
    decision::{Decision, GroupPlacement, Outcome, RejectionReason},
    hold::Hold,
    ids::{Revision, UnitId},
    refusals::{RefusalCount, Refusals},
    running_units::{Phase, RunningUnit, RunningUnits},
    time::Millis,
    unit::UnitSpec,
};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, GroupWork, State, Wanted},
};

/// A unit of which nothing was bound stays so long before it goes back, milliseconds: ten rounds a second are no load,
/// and a tenth of a second is nothing to one that waits for others to end.
const FULL_PAUSE_MS: u64 = 100;

/// A running unit that the binder refused: its group in the decision, itself, why.
type Refused = (u16, Wanted, RejectionReason);

impl Scheduler {
    /// The binder's answer. One to a decision that is not known (any more) changes nothing.
    pub fn on_outcome(&mut self, outcome: &Outcome, now: Millis) {
        let Some(decision) = self.undecided.remove(&outcome.decision_id) else { return };
        if let Some(preemption) = decision.preemption.as_ref().filter(|_| !outcome.held) {
            self.unclaim(preemption);
        }
        let n_decided = decision.len();
        let refused = refused(&decision, outcome);
        let n_bound = n_decided - refused.len();
        self.count_outcome(decision.id, outcome.revision, refused.is_empty());
        self.in_flight -= n_decided as u64;
        self.placed += if outcome.held { 0 } else { n_bound as u64 };
        let n_conflicts = refused.iter().filter(|(_, _, reason)| reason.is_conflict()).count() as u64;
        self.conflicts += n_conflicts;
        self.window.on_answers(n_decided as u64, n_conflicts);
        for (_, (ordinal, incarnation), _) in &refused {
            self.cluster.forget(decision.unit, *ordinal, *incarnation);
        }
        if !refused.is_empty() {
            // Others may have those that it claimed, or its room.
            self.seek_anew(now);
        }
        for fresh in &outcome.nodes {
            self.cluster.note_foreign(fresh.node, fresh.pool, &fresh.allocated, &fresh.device_free_milli);
            let end = now.plus(self.config.foreign_ms);
            if let Some(before) = self.noted.insert(fresh.node, end) {
                self.notes.remove(&(before, fresh.node));
            }
            self.notes.insert((end, fresh.node));
        }
        let full = outcome.rejections.iter().find(|one| one.reason == RejectionReason::QueueFull);
        if outcome.held {
            self.note_held(&decision);
            self.settle_decision(&decision, &refused, 0, now);
            self.on_hold_granted(decision, outcome.revision);
            return;
        }
        self.settle_decision(&decision, &refused, n_bound, now);
        if let Some(full) = full {
            self.on_full(&decision, &full.detail, n_bound, now);
        }
        if n_bound > 0 && (outcome.revision > self.revision || outcome.revision <= self.unread.listed) {
            self.unread.decisions.push_back((outcome.revision, decision));
            self.forget_read();
        }
    }

    /// What is read is assumed no longer. Rows see to that, but for bindings that had gone when a list was made.
    pub(super) fn forget_read(&mut self) {
        while self.unread.decisions.front().is_some_and(|(at, _)| *at <= self.revision) {
            let Some((at, decision)) = self.unread.decisions.pop_front() else { return };
            for group in decision.groups.iter().filter(|_| at <= self.unread.listed) {
                for (idx, ordinal) in group.ordinals.iter().enumerate() {
                    self.cluster.forget(decision.unit, *ordinal, group.incarnation(idx));
                }
            }
        }
    }

    /// The binder holds room for a decision: while the hold lasts it is tried elsewhere, and nobody else leaves for it. The
    /// rest of a unit that was never bound has to wait for that first binding, at the dispatcher.
    fn note_held(&mut self, decision: &Decision) {
        if let Some(assigned) =
            self.units.get_mut(&decision.unit).filter(|assigned| assigned.revision == decision.spec_revision)
        {
            let of_group = |group: &GroupPlacement| group.members().map(|one| (group.group, one)).collect();
            assigned.awaiting_hold.extend(decision.groups.iter().flat_map::<Vec<(u16, Wanted)>, _>(of_group));
        }
    }

    /// What was assigned after the hold had ended may come before this answer: then nothing of it has to wait.
    fn on_hold_granted(&mut self, decision: Decision, revision: Revision) {
        let (unit, spec_revision) = (decision.unit, decision.spec_revision);
        self.keep_until(revision, decision);
        let is_read = revision <= self.revision;
        if is_read {
            // It may have ended already.
            self.requeue_released(unit);
        }
        let was_bound = self.cluster.rows(unit).is_some_and(RunningUnits::was_placed);
        let waits = |assigned: &AssignedUnit| {
            assigned.revision == spec_revision
                && assigned.bound == 0
                && !(is_read && assigned.awaiting_hold.is_empty())
        };
        if !was_bound
            && self.units.get(&unit).is_some_and(|assigned| waits(assigned))
            && let Some(mut assigned) = self.detach(unit)
        {
            assigned.groups.iter_mut().for_each(GroupWork::clear);
            self.attach(assigned, State::Waiting);
        }
        if is_read {
            self.try_held(unit);
        }
    }

    /// The binder says that a queue of the unit is full. Nothing seen here ends that, so the unit goes back to the
    /// dispatcher, which knows what queues use; what else is decided of it stays under way.
    ///
    /// If nothing of a decision was bound the dispatcher counts otherwise than the binder, for a moment or because only
    /// replicas find a node that the queue has no room for: then not at once, or the unit would go round and round.
    /// Claims for several are refused together, though the queue may have room for some.
    fn on_full(&mut self, decision: &Decision, what: &str, n_bound: usize, now: Millis) {
        let Some(mut assigned) = self.detach(decision.unit) else { return };
        if decision.preemption.is_some()
            && decision.len() > 1
            && assigned.together() == 0
            && !assigned.one_by_one
        {
            assigned.one_by_one = true;
            self.attach(assigned, State::Ready);
            return;
        }
        let reason = RefusalCount { plugin: "queue", reason: what.to_owned(), nodes: 0 };
        let refusals = Refusals { reasons: vec![reason], attempts: assigned.attempts, ..Refusals::default() };
        let refusals = Arc::new(refusals);
        if n_bound == 0 && assigned.pending() > 0 {
            assigned.full = Some(refusals);
            self.attach(assigned, State::Backoff(now.plus(FULL_PAUSE_MS)));
        } else {
            self.return_full(assigned, refusals);
        }
    }

    /// Gives back a unit whose queue is full.
    pub(super) fn return_full(&mut self, assigned: Box<AssignedUnit>, refusals: Arc<Refusals>) {
        self.report(&assigned, ReportState::QueueFull, Some(refusals));
        self.let_go(assigned);
    }

    fn settle_decision(&mut self, decision: &Decision, refused: &[Refused], n_bound: usize, now: Millis) {
        let unit = decision.unit;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        if let Some(orphan) = self.orphans.get_mut(&unit) {
            orphan.retain(|id| *id != decision.id);
            if orphan.is_empty() {
                self.orphans.remove(&unit);
            }
        }
        let held_now = match !refused.is_empty() && self.cluster.has_holds() {
            true => self.held_of(unit, decision.spec_revision),
            false => FxHashSet::default(),
        };
        let Some(assigned) = self.units.get_mut(&unit) else { return };
        assigned.decisions.retain(|id| *id != decision.id);
        assigned.in_flight = assigned.in_flight.saturating_sub(count(decision.len()));
        if refused.iter().any(|(_, _, reason)| *reason == RejectionReason::MinMember) {
            // Fewer count than was thought: what was bound has to come back whole.
            assigned.bound = 0;
        }
        assigned.bound = assigned.bound.saturating_add(count(n_bound));
        let undecided = &self.undecided;
        let is_overtaken = |assigned: &AssignedUnit, (ordinal, incarnation): Wanted| {
            let is_later = |other: &Wanted| other.0 == ordinal && other.1 > incarnation;
            let decisions = assigned.decisions.iter().filter_map(|id| undecided.get(id));
            assigned.groups.iter().any(|group| group.pending().iter().any(is_later))
                || decisions
                    .flat_map(|decision| &decision.groups)
                    .any(|group| group.members().any(|one| is_later(&one)))
        };
        let n_held = assigned.awaiting_hold.len();
        let again = wanted_again(assigned, decision, refused, is_overtaken, &held_now);
        if again.is_empty() && assigned.awaiting_hold.len() == n_held {
            assigned.failures = if n_bound > 0 { 0 } else { assigned.failures };
            // Done, or it waited for this to go back.
            if assigned.decisions.is_empty()
                && assigned.state == State::Waiting
                && !assigned.awaits
                && let Some(assigned) = self.detach(unit)
            {
                self.attach(assigned, State::Ready);
            }
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        assigned.failures += 1;
        for (group, wanted) in again {
            if let Some(group) = assigned.groups.get_mut(usize::from(group)) {
                group.add(&[wanted]);
            }
        }
        let state = if assigned.full.is_some() {
            // It goes back whatever becomes of its other decisions.
            State::Backoff(now.plus(FULL_PAUSE_MS))
        } else if assigned.failures > 1 {
            State::Backoff(now.plus(self.delay_ms(unit, assigned.failures)))
        } else {
            State::Ready
        };
        self.attach(assigned, state);
    }

    /// What is to be placed by task group, without what has a row already; and what is not because room is held for it.
    pub(super) fn group_work(
        &mut self,
        spec: &UnitSpec,
        revision: Revision,
        pending: &[Wanted],
    ) -> (SmallVec<[GroupWork; 1]>, Vec<(u16, Wanted)>) {
        let mut assigned = Vec::new();
        let mut by_group: Vec<Vec<Wanted>> = vec![Vec::new(); spec.task_groups.len()];
        let rows = self.cluster.rows(spec.id);
        let held_now = self.held_of(spec.id, revision);
        for wanted in pending {
            let row = rows.map(|rows| rows.row(wanted.0)).unwrap_or_default();
            let Some(group) = spec.group_of(wanted.0).filter(|_| !is_past(&row, wanted.1)) else { continue };
            if held_now.contains(wanted) {
                assigned.extend(u16::try_from(group).map(|group| (group, *wanted)));
            } else {
                by_group[group].push(*wanted);
            }
        }
        let spreads = spec.class.spreads() && spec.replicas() > 1;
        let groups = spec.task_groups.iter().zip(by_group).map(|(group, wanted)| {
            let (templates, cluster) = (&mut self.placer.templates, &mut self.cluster);
            let template = templates.intern(cluster, &group.template, spec.pool, spec.scoring, spreads);
            let mut work = GroupWork::new(template);
            work.add(&wanted);
            work
        });
        (groups.collect(), assigned)
    }

    /// Room is held no more. If the dispatcher knew so before it assigned the unit, or another one leads since, nobody
    /// says so again; what is bound in the same transaction is taken out right away, and what another hold is for that took
    /// the place of this one stays held.
    pub(super) fn requeue_after_hold(&mut self, hold: &Hold) {
        let Some(assigned) = self.units.get(&hold.unit).filter(|assigned| !assigned.awaiting_hold.is_empty())
        else {
            return;
        };
        let held_now = match self.cluster.has_holds_of(hold.unit) {
            true => self.held_of(hold.unit, assigned.revision),
            false => FxHashSet::default(),
        };
        let is_free =
            |wanted: &Wanted| !held_now.contains(wanted) && hold.members().any(|member| member == *wanted);
        self.take_on(hold.unit, |(_, wanted)| is_free(wanted));
    }

    /// The same where the end of holds may have gone unseen: whatever no hold that is read is for.
    pub(super) fn requeue_released(&mut self, unit: UnitId) {
        let Some(assigned) = self.units.get(&unit) else { return };
        let mut held_now = self.held_of(unit, assigned.revision);
        held_now.extend(self.unread_holds_of(unit));
        self.take_on(unit, |(_, wanted)| !held_now.contains(wanted));
    }

    /// After a list.
    pub(super) fn requeue_all_released(&mut self) {
        let waiting = self.units.values().filter(|assigned| !assigned.awaiting_hold.is_empty());
        let mut units: Vec<UnitId> = waiting.map(|assigned| assigned.unit()).collect();
        units.sort_unstable();
        units.into_iter().for_each(|unit| self.requeue_released(unit));
    }

    fn take_on(&mut self, unit: UnitId, is_free: impl Fn(&(u16, Wanted)) -> bool) {
        if !self.units.get(&unit).is_some_and(|assigned| assigned.awaiting_hold.iter().any(&is_free)) {
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        let (free, kept) = std::mem::take(&mut assigned.awaiting_hold).into_iter().partition(is_free);
        assigned.awaiting_hold = kept;
        for (group, wanted) in free {
            let row = self.cluster.rows(unit).map(|rows| rows.row(wanted.0)).unwrap_or_default();
            if let Some(group) =
                assigned.groups.get_mut(usize::from(group)).filter(|_| !is_past(&row, wanted.1))
            {
                group.add(&[wanted]);
            }
        }
        self.attach(assigned, State::Ready);
    }

    /// Running units of this record for which room is held. What is held by an older one is given up, though that may not
    /// be read yet.
    pub(super) fn held_of(&self, unit: UnitId, revision: Revision) -> FxHashSet<Wanted> {
        if !self.cluster.has_holds() {
            return FxHashSet::default();
        }
        let ids = self.cluster.holds_of(unit);
        let holds = ids.iter().filter_map(|id| self.cluster.hold(*id));
        holds.filter(|hold| hold.spec_revision >= revision).flat_map(|hold| hold.members()).collect()
    }

    /// Takes out of a new assignment what decisions under way place already.
    pub(super) fn leave_out_decided(&self, assigned: &mut AssignedUnit) {
        let decisions = assigned.decisions.iter().filter_map(|id| self.undecided.get(id));
        let mut decided: Vec<Wanted> = Vec::new();
        decided.extend(decisions.flat_map(|decision| &decision.groups).flat_map(GroupPlacement::members));
        assigned.in_flight = u32::try_from(decided.len()).unwrap_or(u32::MAX);
        decided.sort_unstable();
        let (again, elsewhere) = std::mem::take(&mut assigned.awaiting_hold)
            .into_iter()
            .partition(|(_, wanted)| decided.binary_search(wanted).is_ok());
        (assigned.wanted_again, assigned.awaiting_hold) = (again, elsewhere);
        for (idx, group) in (0u16..).zip(&mut assigned.groups) {
            let again = &mut assigned.wanted_again;
            group.retain(|wanted| {
                let is_decided = decided.binary_search(wanted).is_ok();
                if is_decided {
                    again.push((idx, *wanted));
                }
                !is_decided
            });
        }
    }

    /// Takes out what others bound: all of the unit's rows, or those of `ordinals`.
    pub(super) fn leave_out_bound(&mut self, unit: UnitId, ordinals: Option<&[u32]>) {
        let Some(assigned) = self.units.get(&unit) else { return };
        let Some(rows) = self.cluster.rows(unit) else { return };
        let is_past_one = |wanted: &Wanted| is_past(&rows.row(wanted.0), wanted.1);
        let any = assigned.groups.iter().map(GroupWork::pending).any(|pending| match ordinals {
            Some(ordinals) => ordinals.iter().any(|ordinal| {
                let at = pending.partition_point(|wanted| wanted.0 < *ordinal);
                pending.get(at).is_some_and(|wanted| wanted.0 == *ordinal && is_past_one(wanted))
            }),
            None => pending.iter().any(is_past_one),
        });
        if !any {
            return;
        }
        let Some(mut assigned) = self.detach(unit) else { return };
        if let Some(rows) = self.cluster.rows(unit) {
            for group in &mut assigned.groups {
                group.retain(|wanted| !is_past(&rows.row(wanted.0), wanted.1));
            }
        }
        self.attach(assigned, State::Ready);
    }
}

/// The refused running units of a decision, in its order; what an outcome says of others is ignored.
fn refused(decision: &Decision, outcome: &Outcome) -> Vec<Refused> {
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
                refused.push((group.group, (ordinal, group.incarnation(idx)), reasons[at].1));
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
    refused: &[Refused],
    is_overtaken: impl Fn(&AssignedUnit, Wanted) -> bool,
    held_now: &FxHashSet<Wanted>,
) -> Vec<(u16, Wanted)> {
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
        let placed = |wanted: &Wanted| decision.groups.iter().any(|group| group.ordinals.contains(&wanted.0));
        assigned.wanted_again.retain(|(_, wanted)| !placed(wanted));
    }
    again
}

/// A running unit of this incarnation cannot be bound any more: it was, or a later one is current.
fn is_past(row: &RunningUnit, incarnation: u32) -> bool {
    row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
}
