//! The unit cycle: say what may fit, try ready units in order, decide or park.

use std::sync::Arc;

use godel_cluster::Owned;
use godel_domain::unit_report::ReportState;
use godel_domain::{
    decision::{Decision, GroupPlacement, Preemption},
    hold::Member,
    ids::UnitId,
    lifecycle,
    refusals::{RefusalCount, Refusals},
    time::Millis,
};
use godel_placement::place::templates::{TemplateId, Templates};
use godel_queueing::QueueIdx;

use super::{
    Scheduler, Step,
    assigned_unit::{AssignedUnit, GroupWork, State, Wanted},
    elsewhere::{Rest, held_templates},
    park::{Counted, WaitKey},
    preemption::SEEK_EVERY_MS,
};

/// What a try placed, and which templates fit nowhere (any more).
#[derive(Default)]
pub(super) struct Try {
    pub(super) groups: Vec<GroupPlacement>,
    pub(super) n_placed: usize,
    pub(super) failed: Vec<TemplateId>,
    /// Who has to leave for it.
    pub(super) preemption: Option<Box<Preemption>>,
    /// Units spared because they preempted this one before.
    pub(super) n_loops: usize,
}

impl Scheduler {
    /// Decides about `budget` running units at most (a first binding is never split below its minimum), and
    /// says what became of units since the last step.
    pub fn step(&mut self, now: Millis, budget: usize) -> Step {
        self.end_notes(now);
        self.wake_backoff(now);
        self.offer_gained();
        self.wake_seekers(now);
        let mut decisions = Vec::new();
        let mut left = budget;
        while left > 0 && self.window.is_open(self.in_flight) {
            let Some(next) = self.ready.next() else { break };
            let n_decisions = decisions.len();
            let n_tried = self.try_unit(next.unit, left.min(next.limit), now, &mut decisions);
            self.ready.tried(next, n_tried, decisions.len() > n_decisions);
            left = left.saturating_sub(n_tried.max(1));
        }
        if !decisions.is_empty() {
            self.parked.note_change();
        }
        let rooms = self.state_rooms();
        Step { decisions, reports: std::mem::take(&mut self.reports), rooms }
    }

    fn end_notes(&mut self, now: Millis) {
        while let Some(&(end, node)) = self.notes.first() {
            if end > now {
                break;
            }
            self.notes.pop_first();
            self.noted.remove(&node);
            self.cluster.clear_foreign(node);
            self.seek_anew(now);
        }
    }

    fn wake_backoff(&mut self, now: Millis) {
        while let Some(&(end, unit)) = self.backoff.first() {
            if end > now {
                break;
            }
            match self.detach(unit) {
                Some(mut assigned) => match assigned.full.take() {
                    Some(refusals) => self.return_full(assigned, refusals),
                    None => self.attach(assigned, State::Ready),
                },
                None => {
                    self.backoff.pop_first();
                }
            }
        }
    }

    /// One try of a ready unit, `left` running units at most. Returns how many it tried to place.
    fn try_unit(&mut self, unit: UnitId, left: usize, now: Millis, decisions: &mut Vec<Decision>) -> usize {
        let Some(mut assigned) = self.detach(unit) else { return 0 };
        assigned.attempts += 1;
        self.placer.set_scope(assigned.scope);
        if !assigned.awaiting_hold.is_empty() {
            assigned = match self.try_elsewhere(assigned, left, now, decisions) {
                Rest::Nothing(n_tried) => return n_tried,
                Rest::Of(assigned) => assigned,
            };
        }
        let together = self.together(&mut assigned);
        if assigned.at_maximum {
            match self.try_at_maximum(assigned, (together, left), now, decisions) {
                Ok(n_tried) => return n_tried,
                Err(with_room) => assigned = with_room,
            }
        }
        let has_turn = std::mem::take(&mut assigned.has_turn) && together > 1;
        if let Some((need, refusals)) = self.settled(&assigned, together)
            && !has_turn
            && !assigned.is_called
            && !self.may_seek(&assigned, &need, self.is_represented(&assigned, &need), now)
            && !self.may_enter(&assigned)
        {
            self.park(assigned, &need, refusals, now);
            return 1;
        }
        let mut tried = self.place(&assigned, left.max(together));
        if tried.n_placed < together || tried.n_placed == 0 {
            self.enter(&assigned, left.max(together), &mut tried);
        }
        if tried.n_placed < together || tried.n_placed == 0 {
            let need = self.need_of(&assigned, together, &tried);
            self.seek(&assigned, &need, together, left, &mut tried, now);
        }
        let n_tried = tried.n_placed;
        if n_tried < together {
            let need = self.need_of(&assigned, together, &tried);
            let mut refusals = self.explain(&need, &tried.failed, now);
            if let (Counted::Now(refusals), 2..) = (&mut refusals, together) {
                let nearest = std::mem::take(&mut refusals.nearest_miss);
                refusals.nearest_miss = format!("room for {n_tried} of {together} together; {nearest}");
            }
            note_loops(&mut refusals, tried.n_loops);
            self.undo(unit, &tried.groups);
            if has_turn {
                if let Some(gathers) = self.gather(&assigned, together) {
                    self.decide(&mut assigned, gathers, decisions);
                    self.attach(assigned, State::Ready);
                    return together;
                }
                assigned.no_turn = true;
            }
            note_no_turn(&mut refusals, assigned.no_turn);
            self.park(assigned, &need, refusals, now);
            return n_tried;
        }
        let (failed, n_loops) = (tried.failed.clone(), tried.n_loops);
        self.decide(&mut assigned, tried, decisions);
        let mut pending = assigned.groups.iter().filter(|group| !group.pending().is_empty());
        if assigned.pending() > 0 && pending.all(|group| failed.contains(&group.template)) {
            let mut needed = failed.clone();
            needed.extend(held_templates(&assigned));
            let need = any_need(&self.placer.templates, &needed, self.shares.told_apart(assigned.queue));
            if n_tried > 0 && self.may_seek(&assigned, &need, false, now) {
                // Nothing is free: the next try looks for those who have to leave.
                self.attach(assigned, State::Ready);
                return n_tried;
            }
            let mut refusals = self.explain(&need, &failed, now);
            note_loops(&mut refusals, n_loops);
            self.park(assigned, &need, refusals, now);
        } else {
            self.attach(assigned, State::Ready);
        }
        n_tried
    }

    /// Any one replica of a template.
    fn one_need(&self, template: TemplateId, queue: Option<QueueIdx>) -> WaitKey {
        WaitKey::one(self.placer.templates.alike(template), queue)
    }

    /// What a unit lacks whose try has failed.
    fn need_of(&self, assigned: &AssignedUnit, together: usize, tried: &Try) -> WaitKey {
        let queue = self.shares.told_apart(assigned.queue);
        if together > 1 {
            return together_need(&self.placer.templates, assigned, together, queue);
        }
        if assigned.awaiting_hold.is_empty() {
            return any_need(&self.placer.templates, &tried.failed, queue);
        }
        let mut templates = held_templates(assigned);
        templates.extend(&tried.failed);
        any_need(&self.placer.templates, &templates, queue)
    }

    /// Whether the unit's first binding is still to be made.
    pub(super) fn is_first(&self, assigned: &mut AssignedUnit) -> bool {
        if assigned.together() > 0
            && let Some(rows) = self.cluster.rows(assigned.unit())
        {
            // As the binder counts.
            let counted = lifecycle::counted(rows, &assigned.terms);
            assigned.bound = assigned.bound.max(u32::try_from(counted).unwrap_or(u32::MAX));
        }
        assigned.together() > 0
    }

    /// Running units that must be placed at once for the unit's first binding.
    pub(super) fn together(&self, assigned: &mut AssignedUnit) -> usize {
        self.is_first(assigned);
        // Should too few be pending the binder has the last word.
        (assigned.together() as usize).min(assigned.pending())
    }

    /// Whether it is known already that the unit finds no place: a settled group waits for the same.
    fn settled(&self, assigned: &AssignedUnit, together: usize) -> Option<(WaitKey, Counted)> {
        if self.parked.is_empty() || !assigned.awaiting_hold.is_empty() {
            return None;
        }
        let queue = self.shares.told_apart(assigned.queue);
        if together > 1 {
            let need = together_need(&self.placer.templates, assigned, together, queue);
            let refusals = self.parked.settled(&need)?.clone();
            return Some((need, Counted::Before(refusals)));
        }
        let mut none_fits = Vec::new();
        let mut refusals = None;
        for group in assigned.groups.iter().filter(|group| !group.pending().is_empty()) {
            refusals = Some(self.parked.settled(&self.one_need(group.template, queue))?);
            none_fits.push(group.template);
        }
        Some((any_need(&self.placer.templates, &none_fits, queue), Counted::Before(refusals?.clone())))
    }

    /// Others that lack the same wait, and search for victims in its place.
    fn is_represented(&self, assigned: &AssignedUnit, need: &WaitKey) -> bool {
        let queue = need.queue;
        let mut pending = assigned.groups.iter().filter(|group| !group.pending().is_empty());
        self.parked.has_units(need)
            || (need.together == 0
                && pending.all(|group| self.parked.has_units(&self.one_need(group.template, queue))))
    }

    pub(super) fn park(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        need: &WaitKey,
        refusals: Counted,
        now: Millis,
    ) {
        let (Counted::Now(known) | Counted::Before(known)) = &refusals;
        let shown = Some(Arc::new(Refusals { attempts: assigned.attempts, ..known.clone() }));
        if self.placer.view.is_confined() {
            if assigned.decisions.is_empty() {
                self.report(&assigned, ReportState::Returned, shown);
                self.let_go(assigned);
            } else {
                // Another scheduler would place the same again: it goes back once these are answered.
                self.attach(assigned, State::Waiting);
            }
            return;
        }
        let (id, is_new) = self.parked.park(need, assigned.turn, refusals, now);
        if is_new {
            need.templates.iter().for_each(|(template, _)| self.placer.templates.retain(*template));
        }
        if std::mem::take(&mut assigned.is_called) {
            self.parked.note_none(need);
            if std::mem::take(&mut self.seeks.was_put_off) {
                self.seek_again(now.plus(SEEK_EVERY_MS));
            }
        }
        self.report_parked(&assigned, ReportState::Parked, shown, id);
        if assigned.woken_from.as_ref() == Some(need) {
            assigned.woken_from = None;
        }
        self.attach(assigned, State::Parked(need.clone()));
    }

    /// Places pending running units group by group, `quota` at most, and assumes them.
    pub(super) fn place(&mut self, assigned: &AssignedUnit, quota: usize) -> Try {
        let owned = self.owned(assigned);
        self.place_in(assigned, &owned, quota)
    }

    /// The same with the slots of these reservations.
    pub(super) fn place_in(&mut self, assigned: &AssignedUnit, owned: &Owned, quota: usize) -> Try {
        let mut tried = Try::default();
        for (group, work) in (0u16..).zip(&assigned.groups) {
            let wanted = work.pending();
            let wanted = &wanted[..wanted.len().min(quota - tried.n_placed)];
            if wanted.is_empty() {
                continue;
            }
            let placement = self.place_group(assigned.unit(), (group, owned), work.template, wanted);
            if placement.ordinals.len() < wanted.len() {
                tried.failed.push(work.template);
            }
            tried.n_placed += placement.ordinals.len();
            tried.groups.push(placement);
        }
        tried
    }

    pub(super) fn place_group(
        &mut self,
        unit: UnitId,
        (group, owned): (u16, &Owned),
        template: TemplateId,
        wanted: &[Wanted],
    ) -> GroupPlacement {
        let mut placement = GroupPlacement { group, ..GroupPlacement::default() };
        let shape = self.placer.templates.get(template).ask.shape();
        let has_devices = self.cluster.demand(shape).devices.is_some();
        let has_incarnations = wanted.iter().any(|(_, incarnation)| *incarnation > 0);
        let mut slots = self.slots(owned, template).into_iter();
        self.placer.begin(&mut self.cluster, template, unit, wanted.len());
        for (idx, &(ordinal, incarnation)) in wanted.iter().enumerate() {
            let member = Member { unit, ordinal, incarnation };
            let spot = match slots.next().and_then(|node| self.enter_slot(owned, shape, node, member)) {
                Some(spot) => spot,
                None => {
                    let left = wanted.len() - idx;
                    let Some(spot) = self.placer.next(&mut self.cluster, template, unit, left) else { break };
                    self.cluster.assume(unit, ordinal, incarnation, shape, spot.node, spot.mask);
                    spot
                }
            };
            placement.ordinals.push(ordinal);
            placement.nodes.push(spot.node);
            if has_incarnations {
                placement.incarnations.push(incarnation);
            }
            if has_devices {
                placement.device_masks.push(spot.mask);
            }
        }
        placement
    }

    pub(super) fn undo(&mut self, unit: UnitId, groups: &[GroupPlacement]) {
        for group in groups {
            for (idx, ordinal) in group.ordinals.iter().enumerate() {
                self.cluster.undo(unit, *ordinal, group.incarnation(idx));
            }
        }
    }

    pub(super) fn decide(&mut self, assigned: &mut AssignedUnit, tried: Try, decisions: &mut Vec<Decision>) {
        if tried.n_placed == 0 {
            return;
        }
        for placement in &tried.groups {
            assigned.groups[usize::from(placement.group)].advance(placement.ordinals.len());
        }
        self.send(assigned, tried, decisions);
    }

    /// Decides on what is pending no more.
    pub(super) fn send(&mut self, assigned: &mut AssignedUnit, tried: Try, decisions: &mut Vec<Decision>) {
        self.last_decision += 1;
        let decision = Decision {
            id: self.last_decision,
            unit: assigned.unit(),
            spec_revision: assigned.revision,
            nodes_as_of: self.revision.min(self.seen),
            groups: tried.groups.into_iter().filter(|group| !group.ordinals.is_empty()).collect(),
            preemption: tried.preemption,
        };
        self.count_decision(assigned, &decision);
        assigned.decisions.push(decision.id);
        assigned.in_flight += u32::try_from(tried.n_placed).unwrap_or(u32::MAX);
        self.in_flight += tried.n_placed as u64;
        self.undecided.insert(decision.id, decision.clone());
        decisions.push(decision);
    }

    /// Why nothing fits, for the first template that failed.
    pub(super) fn explain(&mut self, need: &WaitKey, failed: &[TemplateId], now: Millis) -> Counted {
        match (self.parked.recent(need, now), failed.first()) {
            (Some(known), _) => Counted::Before(known.clone()),
            (None, Some(template)) => Counted::Now(self.placer.explain(&self.cluster, *template)),
            (None, None) => Counted::Now(Refusals::default()),
        }
    }
}

/// Says that some units were spared.
fn note_loops(refusals: &mut Counted, n_loops: usize) {
    let (Counted::Now(refusals) | Counted::Before(refusals)) = refusals;
    refusals.reasons.retain(|reason| reason.plugin != "preemption");
    if n_loops > 0 {
        let reason =
            format!("{} spared that preempted this one before", godel_domain::words::count(n_loops, "unit"));
        refusals.reasons.push(RefusalCount { plugin: "preemption", reason, nodes: 0 });
    }
}

/// Says that a gang has no turn to gather room.
fn note_no_turn(refusals: &mut Counted, has_none: bool) {
    let (Counted::Now(refusals) | Counted::Before(refusals)) = refusals;
    refusals.reasons.retain(|reason| reason.plugin != "gang-turn");
    if has_none {
        let reason = "room is gathered for no one beside what neither ends nor may be preempted".to_owned();
        refusals.reasons.push(RefusalCount { plugin: "gang-turn", reason, nodes: 0 });
    }
}

/// Any one replica of one of the templates would do.
pub(super) fn any_need(known: &Templates, templates: &[TemplateId], queue: Option<QueueIdx>) -> WaitKey {
    let mut templates: Vec<TemplateId> = templates.iter().map(|template| known.alike(*template)).collect();
    templates.sort_unstable();
    templates.dedup();
    let templates = templates.into_iter().map(|template| (template, 0)).collect();
    WaitKey { together: 0, templates, queue, own: None }
}

/// So many together, of everything pending.
pub(super) fn together_need(
    known: &Templates,
    assigned: &AssignedUnit,
    together: usize,
    queue: Option<QueueIdx>,
) -> WaitKey {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let pending = assigned.groups.iter().filter(|group| !group.pending().is_empty());
    let of_group = |group: &GroupWork| (known.alike(group.template), count(group.pending().len()));
    let mut templates: Vec<_> = pending.map(of_group).collect();
    templates.sort_unstable();
    WaitKey { together: count(together), templates: templates.into(), queue, own: None }
}
