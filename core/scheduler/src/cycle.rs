//! The unit cycle: say what may fit, try ready units in order, decide or park.

use std::sync::Arc;

use godel_base::{
    ids::{HoldId, UnitId},
    time::Millis,
};
use godel_cluster::TrialMark;
use godel_domain::{
    decision::Decision,
    refusals::{RefusalCount, Refusals, WaitReason},
    unit_report::ReportState,
};
use godel_placement::place::templates::TemplateId;

use super::{
    Scheduler, Step,
    assigned_unit::{AssignedUnit, UnitState},
    elsewhere::{Rest, Whole, is_ready, own_holds, remove_held, try_each},
    movers::place_on_targets,
    park::{CountedRefusals, Parked, WaitKey},
    picture::{Picture, Try, TurnSearch, follow_topology, part_by_volumes},
    preemption::{PreemptionSearch, full_refusals, lacks_of},
};

impl Scheduler {
    /// Decides about `budget` running units at most (a first binding is never split below its minimum), and
    /// says what became of units since the last step.
    pub fn step(&mut self, now: Millis, budget: usize) -> Step {
        let Self { units, picture, search, .. } = self;
        if picture.foreign.end_expired(now, &mut picture.cluster) {
            search.on_nodes_changed(&units.parked, now);
        }
        units.end_backoff(now, &mut picture.placer.templates);
        units.offer_gained(picture);
        picture.shares.forget_maxima(&mut picture.cluster, now);
        search.wake_due(units, picture, now);
        let mut decisions = Vec::new();
        let mut left = budget;
        while left > 0 && self.in_flight.is_open() {
            let Some(next) = self.units.ready.next() else { break };
            let n_decisions = decisions.len();
            let n_tried = self.try_unit(next.unit, left.min(next.limit), now, &mut decisions);
            debug_assert_eq!(
                self.picture.cluster.trial_mark(),
                TrialMark::default(),
                "what is tried is decided or taken back"
            );
            self.units.ready.note_tried(next, n_tried, decisions.len() > n_decisions);
            left = left.saturating_sub(n_tried.max(1));
        }
        if !decisions.is_empty() {
            self.units.parked.note_change();
        }
        let rooms = self.units.take_rooms(&mut self.picture);
        Step { decisions, reports: self.units.reports.take(), rooms }
    }

    /// One try of a ready unit, `left` running units at most. Returns how many it tried to place.
    fn try_unit(
        &mut self,
        unit: UnitId,
        mut left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let Some(mut assigned) = self.units.detach(unit) else { return 0 };
        if self.picture.has_other_rules(&assigned) {
            // What was interned for it no longer holds: it comes back, and is seen anew.
            let templates = &mut self.picture.placer.templates;
            self.units.give_back(assigned, ReportState::Returned, None, templates);
            return 1;
        }
        if assigned.permit.read > self.picture.revision {
            self.units.await_reading(assigned, &mut self.picture.placer.templates);
            return 1;
        }
        assigned.tries.attempts += 1;
        part_by_volumes(&mut self.picture, &mut assigned);
        self.picture.placer.set_scope(assigned.permit.scope);
        if !assigned.permit.at_maximum {
            match self.try_targets(assigned, decisions) {
                Ok(n_moved) => return n_moved,
                Err(rest) => assigned = rest,
            }
        }
        if !assigned.awaiting_hold.is_empty() {
            assigned = match self.try_elsewhere(assigned, left, now, decisions) {
                Rest::Nothing(n_tried) => return n_tried,
                Rest::Of(assigned) => assigned,
            };
        }
        let together = assigned.together(&self.picture.cluster);
        if assigned.permit.at_maximum {
            match self.try_at_maximum(assigned, together, left, now, decisions) {
                Ok(n_tried) => return n_tried,
                Err(with_room) => match self.try_targets(with_room, decisions) {
                    Ok(n_moved) => return n_moved,
                    Err(rest) => assigned = rest,
                },
            }
        }
        if let Some(n) = assigned.permit.places_max.filter(|_| together <= 1) {
            if n == 0 {
                self.wait_for_call(assigned, now);
                return 1;
            }
            left = left.min(n as usize);
        }
        let has_turn = std::mem::take(&mut assigned.permit.turn);
        let Self { units, picture, search, .. } = self;
        let (templates, queue) = (&picture.placer.templates, picture.shares.told_apart(assigned.queue));
        if let Some((need, refusals)) = units.parked.settled_for(&assigned, together, templates, queue)
            && !has_turn
            && !assigned.permit.called
            && !may_try(picture, search, &units.parked, &assigned, &need, now)
        {
            self.park(assigned, &need, refusals, now);
            return 1;
        }
        let mut tried = picture.place(&assigned, left.max(together));
        if tried.n_placed < together || tried.n_placed == 0 {
            picture.place_in_gathered(&assigned, left.max(together), &mut tried);
        }
        if tried.n_placed < together || tried.n_placed == 0 {
            let need = self.need_of(&assigned, together, &tried);
            let Self { picture, search, .. } = self;
            search.find_victims(picture, &assigned, &need, together, left, &mut tried, now);
        }
        if tried.n_placed < together || (has_turn && tried.n_placed == 0) {
            return self.give_up(assigned, tried, together, has_turn, now, decisions);
        }
        self.decide_placed(assigned, tried, now, decisions)
    }

    /// Places what of a unit moves, before anything else of it; `Err`, with the unit, if nothing does that has a place. Returns how many
    /// running units it placed.
    fn try_targets(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        decisions: &mut Vec<Decision>,
    ) -> Result<usize, Box<AssignedUnit>> {
        let Self { units, picture, in_flight, .. } = self;
        match place_on_targets(picture, in_flight, &mut assigned, decisions) {
            0 => Err(assigned),
            n_moved => {
                units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
                Ok(n_moved)
            }
        }
    }

    /// Too few of a unit's running units have places. Returns how many it tried to place.
    fn give_up(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        tried: Try,
        together: usize,
        has_turn: bool,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let n_tried = tried.n_placed;
        let need = self.need_of(&assigned, together, &tried);
        let mut refusals = self.explain(&need, &tried.failed, now);
        if together > 1 {
            note_partial(&mut refusals, n_tried, together);
        }
        note_loops(refusals.refusals_mut(), tried.n_loops);
        let Self { units, picture, search, in_flight, .. } = self;
        picture.cluster.take_back(tried.mark);
        if has_turn {
            let gathers = match together {
                0 | 1 => TurnSearch::new(picture, &assigned).for_one(),
                _ => TurnSearch::new(picture, &assigned).for_gang(together),
            };
            if search.n_tried() == 0 {
                // Nobody else asks for them.
                picture.cluster.taken_mut().occupants.forget();
            }
            if let Some(gathers) = gathers {
                in_flight.decide(picture, &mut assigned, gathers, decisions);
                units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
                return together.max(1);
            }
            assigned.tries.no_turn = true;
        }
        note_no_turn(refusals.refusals_mut(), assigned.tries.no_turn);
        self.park(assigned, &need, refusals, now);
        n_tried
    }

    /// Decides what a try has placed, and parks the unit if nothing of the rest fits anywhere. Returns how many it tried to
    /// place.
    fn decide_placed(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        mut tried: Try,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let n_tried = tried.n_placed;
        let (failed, n_loops) = (tried.failed.clone(), tried.n_loops);
        let Self { units, picture, search, in_flight, .. } = self;
        follow_topology(picture, &assigned, &mut tried);
        in_flight.decide(picture, &mut assigned, tried, decisions);
        let fits_nowhere =
            assigned.pending() > 0 && assigned.pending_groups().all(|group| failed.contains(&group.template));
        assigned.permit.note_placed(n_tried);
        if !fits_nowhere {
            if assigned.permit.places_max == Some(0) && assigned.pending() > 0 {
                self.wait_for_call(assigned, now);
            } else {
                units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
            }
            return n_tried;
        }
        let mut needed = failed.clone();
        needed.extend(assigned.held_templates());
        let queue = picture.shares.told_apart(assigned.queue);
        let need = WaitKey::any(&picture.placer.templates, &needed, queue);
        if n_tried > 0 && search.may_search(picture, &assigned, &need, false, now) {
            // Nothing is free: the next try searches for victims.
            units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
            return n_tried;
        }
        let mut refusals = self.explain(&need, &failed, now);
        note_loops(refusals.refusals_mut(), n_loops);
        self.park(assigned, &need, refusals, now);
        n_tried
    }

    /// A unit has the places that its queue is due, or is due none: it waits for what it lacks, whether there is room or not. The
    /// dispatcher hears how much there is, and says who comes next.
    fn wait_for_call(&mut self, mut assigned: Box<AssignedUnit>, now: Millis) {
        let Self { units, picture, .. } = self;
        let mut lacks: Vec<TemplateId> = assigned.pending_groups().map(|group| group.template).collect();
        lacks.extend(assigned.held_templates());
        let queue = picture.shares.told_apart(assigned.queue);
        let need = WaitKey::any(&picture.placer.templates, &lacks, queue);
        let known = units.parked.settled(&need).cloned();
        let is_new = !units.parked.knows(&need);
        let refusals = match known {
            Some(known) => CountedRefusals::Before(known),
            None => self.explain(&need, &lacks, now),
        };
        (assigned.permit.called, assigned.permit.places_max) = (false, None);
        self.park(assigned, &need, refusals, now);
        if is_new {
            self.units.parked.ask_for(&need);
        }
    }

    /// Tries to place elsewhere what room is held for.
    fn try_elsewhere(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> Rest {
        let Self { units, picture, in_flight, .. } = self;
        let ids = own_holds(&picture.cluster, &assigned);
        // Also what decisions under way bind.
        let is_first = assigned.is_first(&picture.cluster);
        if ids.iter().all(|id| is_ready(&picture.cluster, *id)) {
            if assigned.pending() > 0 && !is_first {
                return Rest::Of(assigned);
            }
            // What is held is about to be read, or to be bound.
            units.attach(assigned, UnitState::Waiting, &mut picture.placer.templates);
            return Rest::Nothing(1);
        }
        // What is held at a maximum of the queue goes together: those who leave the queue leave it for all of that.
        let at_maximum = |id: &HoldId| picture.cluster.holds().get(*id).is_some_and(|hold| hold.at_maximum);
        let free: Vec<HoldId> = ids.iter().copied().filter(|id| !at_maximum(id)).collect();
        if is_first && free.len() == ids.len() {
            return Rest::Nothing(self.try_whole(assigned, &ids, left, now, decisions));
        }
        let n_tried = match is_first {
            true => 0,
            false => try_each(picture, in_flight, &mut assigned, &free, decisions),
        };
        if assigned.pending() > 0 {
            return Rest::Of(assigned);
        }
        if assigned.awaiting_hold.is_empty() {
            units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
            return Rest::Nothing(n_tried.max(1));
        }
        let (held, queue) = (assigned.held_templates(), picture.shares.told_apart(assigned.queue));
        let need = WaitKey::any(&picture.placer.templates, &held, queue);
        let refusals = self.explain(&need, &held, now);
        self.park(assigned, &need, refusals, now);
        Rest::Nothing(n_tried.max(1))
    }

    /// Tries the first binding of a unit for which room is held. Returns how many running units have places elsewhere.
    fn try_whole(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        ids: &[HoldId],
        left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let Self { units, picture, search, in_flight, .. } = self;
        let Some(whole) = Whole::begin(&mut assigned, ids, &mut picture.cluster) else {
            units.attach(assigned, UnitState::Waiting, &mut picture.placer.templates);
            return 1;
        };
        let together = whole.together;
        part_by_volumes(picture, &mut assigned);
        let mut tried = picture.place(&assigned, together);
        if tried.n_placed < together && !whole.gathers {
            picture.place_in_gathered(&assigned, together, &mut tried);
        }
        let queue = picture.shares.told_apart(assigned.queue);
        let need = WaitKey {
            own: Some(assigned.unit()),
            ..WaitKey::together(&picture.placer.templates, &assigned, together, queue)
        };
        if tried.n_placed < together && whole.gathers {
            search.find_victims(picture, &assigned, &need, together, left, &mut tried, now);
        }
        let n_tried = tried.n_placed;
        let mut refusals = None;
        if whole.is_placed(&tried) {
            picture.cluster.resume(whole.mark).join();
            in_flight.decide(picture, &mut assigned, tried, decisions);
        } else {
            let mut counted = self.explain(&need, &tried.failed, now);
            note_partial(&mut counted, n_tried, together);
            refusals = Some(counted);
            self.picture.cluster.take_back(whole.mark);
        }
        whole.put_back_rest(&mut assigned);
        remove_held(&self.picture, &mut assigned);
        match refusals {
            Some(refusals) => self.park(assigned, &need, refusals, now),
            None => self.units.attach(assigned, UnitState::Ready, &mut self.picture.placer.templates),
        }
        n_tried
    }

    /// Tries a unit that was handed out as one of a full queue; `Err`, with the unit, if there is room for it by now. Returns
    /// how many running units it tried to place.
    fn try_at_maximum(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        together: usize,
        left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> Result<usize, Box<AssignedUnit>> {
        let Self { units, picture, search, in_flight, .. } = self;
        picture.shares.count_for_maxima(&mut picture.cluster, now);
        let lacks = lacks_of(picture, &assigned, together.max(1));
        if lacks.is_empty() {
            assigned.permit.at_maximum = false;
            return Err(assigned);
        }
        match search.relieve_queues(picture, &assigned, together, left, &lacks) {
            Ok(tried) => {
                let n_tried = tried.n_placed;
                in_flight.decide(picture, &mut assigned, tried, decisions);
                units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
                Ok(n_tried)
            }
            Err(n_loops) => {
                let refusals = full_refusals(picture.shares.quota(), &assigned, &lacks, n_loops);
                let (state, templates) = (ReportState::QueueFull, &mut picture.placer.templates);
                units.give_back(assigned, state, Some(Arc::new(refusals)), templates);
                Ok(1)
            }
        }
    }

    /// What a unit lacks whose try has failed.
    fn need_of(&self, assigned: &AssignedUnit, together: usize, tried: &Try) -> WaitKey {
        let known = &self.picture.placer.templates;
        let queue = self.picture.shares.told_apart(assigned.queue);
        if together > 1 {
            return WaitKey::together(known, assigned, together, queue);
        }
        if assigned.awaiting_hold.is_empty() {
            return WaitKey::any(known, &tried.failed, queue);
        }
        let mut templates = assigned.held_templates();
        templates.extend(&tried.failed);
        WaitKey::any(known, &templates, queue)
    }

    /// Parks a unit that lacks something, or gives it back where another scheduler may place it.
    fn park(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        need: &WaitKey,
        refusals: CountedRefusals,
        now: Millis,
    ) {
        let Self { units, picture, search, .. } = self;
        let templates = &mut picture.placer.templates;
        let known = refusals.refusals().clone();
        let shown = Some(Arc::new(Refusals { attempts: assigned.tries.attempts, ..known }));
        if picture.placer.view.is_confined() {
            if assigned.decisions.is_empty() {
                units.give_back(assigned, ReportState::Returned, shown, templates);
            } else {
                // Another scheduler would place the same again: it goes back once these are answered.
                units.attach(assigned, UnitState::Waiting, templates);
            }
            return;
        }
        assigned.permit.places_max = None;
        if assigned.permit.called {
            search.times.on_call_failed(now);
        }
        units.park(assigned, need, refusals, shown, now, templates);
    }

    /// Why nothing fits, for the first template that failed.
    fn explain(&mut self, need: &WaitKey, failed: &[TemplateId], now: Millis) -> CountedRefusals {
        let Self { units, picture, .. } = self;
        match (units.parked.recent(need, now), failed.first()) {
            (Some(known), _) => CountedRefusals::Before(known.clone()),
            (None, Some(template)) => {
                CountedRefusals::Now(picture.placer.explain(&picture.cluster, *template))
            }
            (None, None) => CountedRefusals::Now(Refusals::default()),
        }
    }
}

/// Whether a unit may have a place though a settled group waits for the same: by having others leave, or where it is admitted to
/// what is kept from others.
fn may_try(
    picture: &Picture,
    search: &mut PreemptionSearch,
    parked: &Parked,
    assigned: &AssignedUnit,
    need: &WaitKey,
    now: Millis,
) -> bool {
    let is_settled = parked.is_represented(assigned, need, &picture.placer.templates);
    search.may_search(picture, assigned, need, is_settled, now) || picture.is_admitted_anywhere(assigned)
}

/// Says that only some of what has to be placed together has places.
fn note_partial(refusals: &mut CountedRefusals, n_placed: usize, together: usize) {
    if let CountedRefusals::Now(refusals) = refusals {
        let nearest = std::mem::take(&mut refusals.nearest_miss);
        refusals.nearest_miss = format!("room for {n_placed} of {together} together; {nearest}");
    }
}

/// Says that some units were spared.
fn note_loops(refusals: &mut Refusals, n_loops: usize) {
    refusals.reasons.retain(|reason| !reason.is(WaitReason::Preemption));
    if n_loops > 0 {
        let reason =
            format!("{} spared that preempted this one before", godel_base::words::count(n_loops, "unit"));
        refusals.reasons.push(RefusalCount::waits(WaitReason::Preemption, reason));
    }
}

/// Says that a unit has no turn to gather room.
fn note_no_turn(refusals: &mut Refusals, has_none: bool) {
    refusals.reasons.retain(|reason| !reason.is(WaitReason::GangTurn));
    if has_none {
        let reason = "there is no node to gather room on: what runs there neither ends nor may be preempted, or others gather there".to_owned();
        refusals.reasons.push(RefusalCount::waits(WaitReason::GangTurn, reason));
    }
}
