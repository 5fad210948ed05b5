//! Units for which room is held: as soon as they fit elsewhere they are placed there, and what is held goes.
//!
//! A unit whose first binding is held for is tried as a whole, with what is held for it as if it were free; so is a gang that
//! gathers, which may also have others leave. Of a unit that is bound each hold is tried by itself: all that is held on one
//! node, or nothing. Such a unit is parked as others are, and tried when room is gained, also on the nodes of its holds.

use godel_cluster::Owned;
use godel_domain::{
    decision::Decision,
    hold::Hold,
    ids::{HoldId, NodeId, UnitId},
    time::Millis,
};
use godel_placement::place::templates::TemplateId;

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, GroupWork, State, Wanted},
    cycle::{Try, any_need, together_need},
    park::{Counted, WaitKey},
};

/// What is left to try of a unit.
pub(super) enum Rest {
    /// Nothing now; so many were tried.
    Nothing(usize),
    /// What no room is held for.
    Of(Box<AssignedUnit>),
}

impl Scheduler {
    /// Tries to place elsewhere what room is held for.
    pub(super) fn try_elsewhere(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> Rest {
        let ids = self.own_holds(&assigned);
        // Also what decisions under way bind.
        let is_first = self.is_first(&mut assigned);
        if ids.iter().all(|id| self.is_ready(*id)) {
            if assigned.pending() > 0 && !is_first {
                return Rest::Of(assigned);
            }
            // What is held is about to be read, or to be bound.
            self.attach(assigned, State::Waiting);
            return Rest::Nothing(1);
        }
        // What is held at a maximum of the queue goes together: those who leave the queue leave it for all of that.
        let at_maximum = |id: &HoldId| self.cluster.hold(*id).is_some_and(|hold| hold.at_maximum);
        let free: Vec<HoldId> = ids.iter().copied().filter(|id| !at_maximum(id)).collect();
        if is_first && free.len() == ids.len() {
            return Rest::Nothing(self.try_whole(assigned, &ids, left, now, decisions));
        }
        let n_tried = if is_first { 0 } else { self.try_each(&mut assigned, &free, decisions) };
        if assigned.pending() > 0 {
            return Rest::Of(assigned);
        }
        if assigned.awaiting_hold.is_empty() {
            self.attach(assigned, State::Ready);
            return Rest::Nothing(n_tried.max(1));
        }
        let need = any_need(
            &self.placer.templates,
            &held_templates(&assigned),
            self.shares.told_apart(assigned.queue),
        );
        let refusals = self.explain(&need, &held_templates(&assigned), now);
        self.park(assigned, &need, refusals, now);
        Rest::Nothing(n_tried.max(1))
    }

    /// The first holds of a unit that are enough for its first binding, all that is held by them together. Nothing else of the
    /// unit is tried with it.
    fn try_whole(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        ids: &[HoldId],
        left: usize,
        now: Millis,
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let rest: Vec<Vec<Wanted>> = assigned.groups.iter().map(|work| work.pending().to_vec()).collect();
        assigned.groups.iter_mut().for_each(GroupWork::clear);
        let least = usize::try_from(assigned.together()).unwrap_or(usize::MAX);
        let (mut lifted, mut together) = (Vec::new(), 0);
        for id in ids {
            if together >= least {
                break;
            }
            let Some(hold) = self.cluster.hold(*id).cloned() else { continue };
            let Some(work) = assigned.groups.get_mut(usize::from(hold.group)) else { continue };
            let wanted: Vec<Wanted> = hold.members().collect();
            work.add(&wanted);
            assigned.awaiting_hold.retain(|(group, member)| *group != hold.group || !wanted.contains(member));
            lifted.push(*id);
            together += wanted.len();
        }
        if together == 0 {
            // The record is another one; what is held ends with that.
            assigned.groups.iter_mut().zip(rest).for_each(|(work, rest)| work.add(&rest));
            self.attach(assigned, State::Waiting);
            return 1;
        }
        let is_turn = |id: &HoldId| self.cluster.hold(*id).is_some_and(|hold| hold.turn.is_some());
        let gathers = lifted.iter().all(is_turn);
        let waits = lifted.iter().filter(|id| !gathers && !self.is_ready(**id));
        let waits_for: Vec<NodeId> =
            waits.filter_map(|id| self.cluster.hold(*id)).map(|hold| hold.node).collect();
        self.cluster.lift_holds(&lifted);
        let mut tried = self.place(&assigned, together);
        if tried.n_placed < together && !gathers {
            self.enter(&assigned, together, &mut tried);
        }
        let queue = self.shares.told_apart(assigned.queue);
        let need = WaitKey {
            own: Some(assigned.unit()),
            ..together_need(&self.placer.templates, &assigned, together, queue)
        };
        if tried.n_placed < together && gathers {
            self.seek(&assigned, &need, together, left, &mut tried, now);
        }
        let n_tried = tried.n_placed;
        // Where others have yet to leave for a hold its room is not there yet.
        let is_there = |node: &NodeId| !waits_for.contains(node);
        let is_placed =
            n_tried >= together && tried.groups.iter().flat_map(|group| &group.nodes).all(is_there);
        let mut refusals = None;
        if is_placed {
            self.cluster.settle_holds(&lifted);
            self.decide(&mut assigned, tried, decisions);
        } else {
            let mut counted = self.explain(&need, &tried.failed, now);
            if let Counted::Now(refusals) = &mut counted {
                let nearest = std::mem::take(&mut refusals.nearest_miss);
                refusals.nearest_miss = format!("room for {n_tried} of {together} together; {nearest}");
            }
            refusals = Some(counted);
            self.undo(assigned.unit(), &tried.groups);
            self.cluster.settle_holds(&lifted);
        }
        for (work, rest) in assigned.groups.iter_mut().zip(rest) {
            work.add(&rest);
        }
        self.leave_out_held(&mut assigned);
        match refusals {
            Some(refusals) => self.park(assigned, &need, refusals, now),
            None => self.attach(assigned, State::Ready),
        }
        n_tried
    }

    /// What is held on each node by itself. Returns how many running units were placed elsewhere.
    fn try_each(
        &mut self,
        assigned: &mut AssignedUnit,
        ids: &[HoldId],
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let mut n_placed = 0;
        for id in ids {
            let Some(hold) = self.cluster.hold(*id).cloned() else { continue };
            let Some(template) = assigned.groups.get(usize::from(hold.group)).map(|work| work.template)
            else {
                continue;
            };
            let wanted: Vec<Wanted> = hold.members().collect();
            let is_whole =
                wanted.iter().all(|member| assigned.awaiting_hold.contains(&(hold.group, *member)));
            if !is_whole || self.is_ready(*id) {
                continue;
            }
            self.cluster.lift_holds(&[*id]);
            let owned = Owned::new();
            let placement = self.place_group(assigned.unit(), (hold.group, &owned), template, &wanted);
            let n = placement.ordinals.len();
            let groups = vec![placement];
            if n < wanted.len() {
                self.undo(assigned.unit(), &groups);
                self.cluster.settle_holds(&[*id]);
                continue;
            }
            self.cluster.settle_holds(&[*id]);
            assigned.awaiting_hold.retain(|(group, member)| *group != hold.group || !wanted.contains(member));
            n_placed += n;
            self.send(assigned, Try { groups, n_placed: n, ..Try::default() }, decisions);
        }
        n_placed
    }

    /// Everyone who leaves for a hold has left, or it has gathered all of its room: the binder binds it, or it ends.
    fn is_ready(&self, id: HoldId) -> bool {
        let Some(hold) = self.cluster.hold(id) else { return true };
        match hold.turn {
            Some(_) => self.cluster.has_gathered(id),
            None => hold.victims.iter().all(|victim| self.cluster.remains(victim).is_none()),
        }
    }

    /// Holds that are read of what a unit holds room for elsewhere.
    fn own_holds(&self, assigned: &AssignedUnit) -> Vec<HoldId> {
        let is_own = |hold: &Hold| {
            let mut members = hold.members();
            members.any(|member| assigned.awaiting_hold.contains(&(hold.group, member)))
        };
        let ids = self.cluster.holds_of(assigned.unit()).into_iter();
        ids.filter(|id| self.cluster.hold(*id).is_some_and(|hold| is_own(hold))).collect()
    }

    /// What is pending and held for is no more to be placed than that.
    fn leave_out_held(&mut self, assigned: &mut AssignedUnit) {
        let held_now = self.held_of(assigned.unit(), assigned.revision);
        for (idx, work) in (0u16..).zip(&mut assigned.groups) {
            let elsewhere = &mut assigned.awaiting_hold;
            work.retain(|wanted| {
                let is_held = held_now.contains(wanted);
                if is_held {
                    elsewhere.push((idx, *wanted));
                }
                !is_held
            });
        }
    }

    /// Room gained on a node may be what a unit lacks beside what is held for it there.
    pub(super) fn wake_holders(&mut self, gained: &[NodeId]) {
        let mut units: Vec<UnitId> = Vec::new();
        for node in gained {
            let holds = self.cluster.holds_on(*node).iter().filter_map(|id| self.cluster.hold(*id));
            units.extend(holds.map(|hold| hold.unit).filter(|unit| self.is_parked_for(*unit)));
        }
        units.sort_unstable();
        units.dedup();
        for unit in units {
            if let Some(assigned) = self.detach(unit) {
                self.attach(assigned, State::Ready);
            }
        }
    }

    fn is_parked_for(&self, unit: UnitId) -> bool {
        let is_parked = |assigned: &AssignedUnit| {
            matches!(assigned.state, State::Parked(_)) && !assigned.awaiting_hold.is_empty()
        };
        self.units.get(&unit).is_some_and(|assigned| is_parked(assigned))
    }

    /// A hold is read: its unit may be tried elsewhere.
    pub(super) fn try_held(&mut self, unit: UnitId) {
        let is_next = |assigned: &AssignedUnit| {
            assigned.state == State::Waiting
                && !assigned.awaits
                && !assigned.awaiting_hold.is_empty()
                && assigned.decisions.is_empty()
        };
        if self.units.get(&unit).is_some_and(|assigned| is_next(assigned))
            && let Some(assigned) = self.detach(unit)
        {
            self.attach(assigned, State::Ready);
        }
    }
}

/// Templates of what room is held for.
pub(super) fn held_templates(assigned: &AssignedUnit) -> Vec<TemplateId> {
    let of = |group: &u16| assigned.groups.get(usize::from(*group)).map(|work| work.template);
    assigned.awaiting_hold.iter().filter_map(|(group, _)| of(group)).collect()
}
