//! One pass of assignments: which units go to which schedulers now.

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    assignment::{Assignment, Permit},
    change::NodeScope,
    queue_spec::Band,
};
use godel_queueing::{FloorChange, RoomIdx, Waiting};

use smallvec::SmallVec;

use super::{
    Action,
    assignments::Assignments,
    gangs::Gangs,
    policy::SchedulerCandidate,
    rooms::{Rooms, Way},
    unit_entry::{Dispatched, Whereabouts},
};

/// Where several queues wait for room, the next one in their order gets a part of what is free, one place at least, before it is asked again whose
/// turn it is: a queue gets no more than that too much, and a pass looks some hundred times at most.
const PARTS_OF_ROOM: u64 = 64;
/// Units handed out in one step.
const DISPATCH_MAX: usize = 4_096;
/// Units passed over in one step because the schedulers that they may go to have no credit.
const SKIPPED_MAX: usize = 128;

/// What a pass changes, and what it goes by.
pub(super) struct AssignmentPass<'a> {
    pub(super) assignments: &'a mut Assignments,
    pub(super) rooms: &'a mut Rooms,
    pub(super) gangs: &'a mut Gangs,
    /// Where a unit is tried that no node had room for when all were asked.
    pub(super) scope_of_all: NodeScope,
    /// Slots of reservations go by labels, and so do units that keep others away.
    pub(super) by_labels: bool,
    /// Everything up to here is known.
    pub(super) read: Revision,
    pub(super) now: Millis,
    pub(super) actions: &'a mut Vec<Action>,
    /// Units that are called in this pass, and still wait: they may get more places.
    pub(super) calls: Vec<BegunCall>,
}

/// A unit that is called for some of its running units.
pub(super) struct BegunCall {
    waiting: Waiting,
    scheduler: usize,
    /// Places that it gets.
    n: u32,
    /// Counted in its queue for them until the unit is handed out, by task group.
    charged: SmallVec<[(usize, u32); 2]>,
    /// What bands earned and spent for them.
    floor: FloorChange,
}

impl AssignmentPass<'_> {
    /// Units whose schedulers have yet to hear of the newest record or rows; those without a stream hear of it
    /// when they are back.
    pub(super) fn send_again(&mut self) {
        for unit in self.assignments.schedulers.take_resend() {
            let Assignments { units, queueing, schedulers, counters, .. } = &mut *self.assignments;
            let Some(entry) = units.get_mut(unit) else { continue };
            let (n_to_place, to_place) = (entry.to_place(), entry.pending());
            let is_gang = entry.together() > 0;
            let Whereabouts::Dispatched(held) = &mut entry.place else { continue };
            let Some(session) = schedulers.all[held.scheduler].session.filter(|_| held.resend) else {
                continue;
            };
            let room = held.parked.map_or(RoomIdx::NONE, |waiting| waiting.room);
            let fresh = || Band::of(entry.record.spec.pool, queueing.classes.priority(&entry.record.spec));
            let band = || held.parked.map_or_else(fresh, |waiting| waiting.band);
            // What others wait for as well is given out in the order of queues, not to whoever has changed: the unit keeps its place.
            let turn = self.gangs.is_offered(unit);
            let waits = held.unplaced.is_some()
                && !is_gang
                && !turn
                && !held.at_maximum
                && self.rooms.is_contested(entry.account.queue, band(), room, &queueing.queues);
            if !waits {
                // It tries again with what is new, parked or not.
                schedulers.unpark(held, &mut queueing.queues);
                held.unplaced = None;
            }
            let places_max = match waits {
                true => Some(0),
                // Room is gathered for one at a time.
                false => (turn && !is_gang && n_to_place > 1).then_some(1),
            };
            if turn && let Some(n) = places_max {
                held.unplaced = Some(n_to_place - n);
            }
            let scheduler = &mut schedulers.all[held.scheduler];
            scheduler.n_assigned += 1;
            counters.assigned += 1;
            (held.done_at, held.resend) = (None, false);
            (held.revision, held.assigned) = (entry.revision, scheduler.n_assigned);
            let (ordinals, incarnations) = (to_place.0, to_place.1);
            let (scope, at_maximum) = (held.scope, held.at_maximum);
            if !waits {
                held.tried = held.assigned;
                scheduler.reload(&mut held.load, places_max.unwrap_or(n_to_place));
            }
            let (record, revision, bound) = (entry.record.clone(), entry.revision, entry.counts.bound());
            let read = entry.moves_revision;
            let permit = Permit { scope, at_maximum, turn, called: false, places_max, read };
            let assignment = Assignment { record, revision, ordinals, incarnations, bound, permit };
            self.actions.push(Action::Assign(session, assignment));
            self.assignments.refresh_ends(unit, self.now);
        }
    }

    /// Hands out units of which replicas move, whatever the others wait for: room is held for those that do, and nobody says that it is
    /// free. They count in their queue, so it does not matter whether that is at its maximum. The others wait on for their turn.
    fn hand_out_moved(&mut self) {
        for unit in std::mem::take(&mut self.assignments.moved) {
            let Assignments { units, queueing, schedulers, moved, .. } = &mut *self.assignments;
            let Some(entry) = units.get(unit).filter(|entry| entry.counts.pending > 0) else { continue };
            // What a scheduler has may come back.
            moved.insert(unit);
            let Whereabouts::Queued(waiting) = &entry.place else { continue };
            let is_past_maximum = entry.targets.has_pending(&entry.record, &entry.rows)
                && queueing.queues.is_at_maximum(waiting);
            if self.rooms.is_empty() && !is_past_maximum {
                // Nobody waits for room: it is handed out as any other.
                continue;
            }
            if !entry.has_moved() {
                moved.remove(&unit);
                continue;
            }
            let taken = if is_past_maximum {
                let candidates: Vec<SchedulerCandidate> = schedulers.candidates().collect();
                let scheduler = match self.rooms.watcher() {
                    // What finds no place waits where all that do are watched.
                    Some(_) => self.rooms.ready_watcher(schedulers),
                    None if candidates.is_empty() => None,
                    None => Some(schedulers.pick(unit, &candidates)),
                };
                scheduler.and_then(|idx| Some((idx, (queueing.queues.remove(waiting)?, false))))
            } else {
                let watcher = self.rooms.ready_watcher(schedulers);
                watcher.and_then(|idx| Some((idx, queueing.queues.take_seeker(waiting, self.now)?)))
            };
            let Some((watcher, (waiting, at_maximum))) = taken else { continue };
            self.assign(&waiting, watcher, self.scope_of_all, at_maximum, Way::Any, Some(0));
        }
    }

    /// Hands out units in the order of their queues while schedulers take some.
    pub(super) fn dispatch(&mut self) {
        let now = self.now;
        let mut skipped: Vec<Waiting> = Vec::new();
        let mut candidates: Vec<SchedulerCandidate> = Vec::new();
        let seekers = self.rooms.follow_rooms(self.assignments, self.read);
        for unit in seekers.into_iter().chain(self.gangs.take_offered()) {
            self.hand_out(unit);
        }
        self.hand_out_moved();
        for _ in 0..DISPATCH_MAX {
            candidates.clear();
            candidates.extend(self.assignments.schedulers.candidates());
            if candidates.is_empty() || skipped.len() >= SKIPPED_MAX {
                break;
            }
            let Some(waiting) = self.assignments.queueing.queues.next(now) else { break };
            let way = self.rooms.way_of(waiting.unit, waiting.room, self.assignments, self.by_labels);
            if matches!(way, Way::Any | Way::Scout(_)) {
                // It goes behind those that were called before it. One of these goes out with the places that it was called for.
                let is_called = self.calls.iter().any(|call| call.waiting.unit == waiting.unit);
                self.send_calls();
                if is_called {
                    continue;
                }
            }
            let Assignments { units, queueing, schedulers, .. } = &mut *self.assignments;
            let behind = self.rooms.behind(waiting.unit, units);
            let Some(entry) = units.get_mut(waiting.unit) else { continue };
            let mut scope = NodeScope::Partition;
            match way {
                Way::Any => {}
                Way::Joined(room) => {
                    self.rooms.join(waiting.unit, room, self.assignments, self.gangs, now);
                    continue;
                }
                Way::Called(scheduler) => {
                    self.call(waiting, scheduler);
                    continue;
                }
                Way::Later => {
                    queueing.queues.push(waiting);
                    // Units of the room wait until that scheduler says that it takes something.
                    queueing.queues.set_open(waiting.room, false);
                    continue;
                }
                Way::Scout(scheduler) => {
                    entry.tried.clear();
                    let is_alone = entry.together() > 0
                        || !self.rooms.is_contested(
                            waiting.queue,
                            waiting.band,
                            waiting.room,
                            &queueing.queues,
                        );
                    let n_max = if is_alone { None } else { Some(1) };
                    self.assign(&waiting, scheduler, self.scope_of_all, false, way, n_max);
                    continue;
                }
            }
            if let Some(scheduler) = behind
                && candidates.iter().any(|one| one.scheduler == scheduler)
            {
                candidates.retain(|one| one.scheduler == scheduler);
            }
            // The nodes without a replica of a daemon may be of any partition.
            let asks_all = self.scope_of_all == NodeScope::Global && entry.record.spec.is_daemon();
            if asks_all || !entry.tried.is_empty() {
                // Not back to one that gave it back while another is untried; then one tries all nodes.
                let untried = |idx: usize| !entry.tried.iter().any(|tried| *tried as usize == idx);
                let mut attached = schedulers.all.iter().enumerate();
                if !asks_all && attached.any(|(idx, one)| one.session.is_some() && untried(idx)) {
                    candidates.retain(|one| untried(one.scheduler));
                    if candidates.is_empty() {
                        skipped.push(waiting);
                        continue;
                    }
                } else {
                    scope = NodeScope::Global;
                    // Should it find no place it waits where all that do are watched.
                    if let Some(watcher) = self.rooms.watcher() {
                        candidates.retain(|one| one.scheduler == watcher);
                    }
                    if candidates.is_empty() {
                        skipped.push(waiting);
                        continue;
                    }
                }
            }
            let chosen = schedulers.pick(waiting.unit, &candidates);
            self.assign(&waiting, chosen, scope, false, way, None);
        }
        self.send_calls();
        for waiting in skipped {
            self.assignments.queueing.queues.push(waiting);
        }
        self.dispatch_to_full();
    }

    /// Hands a unit out that waits for room, though nobody says that there is some: running units might leave for it. Where its
    /// queue is at a maximum as well, it is for those of that queue to leave.
    fn hand_out(&mut self, unit: UnitId) {
        let Assignments { units, queueing, schedulers, .. } = &mut *self.assignments;
        let Some(Whereabouts::Queued(waiting)) = units.place(unit) else { return };
        let Some(watcher) = self.rooms.ready_watcher(schedulers) else { return };
        let Some((waiting, at_maximum)) = queueing.queues.take_seeker(waiting, self.now) else { return };
        // Room is gathered for one at a time.
        let is_gang = units.get(unit).is_some_and(|entry| entry.together() > 0);
        let n_max = (self.gangs.is_offered(unit) && !is_gang).then_some(1);
        self.assign(&waiting, watcher, self.scope_of_all, at_maximum, Way::Any, n_max);
    }

    /// Hands out units that wait under a maximum, where running units of lower rank there might have to leave for them.
    fn dispatch_to_full(&mut self) {
        let now = self.now;
        if self.assignments.full_queues_due().is_none_or(|at| at > now) {
            return;
        }
        for waiting in self.assignments.queueing.queues.take_full(now) {
            let Assignments { units, queueing, schedulers, .. } = &mut *self.assignments;
            let candidates: Vec<SchedulerCandidate> = schedulers.candidates().collect();
            if candidates.is_empty() || units.get(waiting.unit).is_none() {
                queueing.queues.push(waiting);
                continue;
            }
            let picked = schedulers.pick(waiting.unit, &candidates);
            // One that found no place on any node is with a scheduler already.
            let parked_at = waiting.held_by.and_then(|idx| usize::try_from(idx).ok());
            let scheduler = parked_at.unwrap_or(picked);
            if schedulers.all[scheduler].session.is_none() {
                queueing.queues.push(waiting);
                continue;
            }
            // Whoever has to leave may be anywhere.
            self.assign(&waiting, scheduler, self.scope_of_all, true, Way::Any, None);
        }
    }

    /// Gives a unit whose turn it is places of its room. If it needs more than it gets it waits on, and may get others in this pass once they are its
    /// queue's turn.
    fn call(&mut self, waiting: Waiting, scheduler: usize) {
        let Assignments { units, queueing, .. } = &mut *self.assignments;
        let queues = &mut queueing.queues;
        let Some(entry) = units.get(waiting.unit) else { return };
        let begun = self.calls.iter().position(|call| call.waiting.unit == waiting.unit);
        let before = begun.map_or(0, |at| self.calls[at].n);
        let n_lacking = entry.n_unplaced().saturating_sub(before);
        let (left, is_gang) = self.rooms.places_of(waiting.room);
        let is_contested = self.rooms.is_contested(waiting.queue, waiting.band, waiting.room, queues);
        let part = if is_contested { (left / PARTS_OF_ROOM).max(1) } else { left };
        let n = if is_gang { n_lacking } else { u32::try_from(part).map_or(n_lacking, |n| n.min(n_lacking)) };
        self.rooms.give(entry, &waiting, scheduler, n, queues);
        let n_served = if is_contested { n } else { n_lacking };
        let mut floor = queues.served(&Waiting { running_units: n_served, ..waiting });
        if !is_contested || n >= n_lacking {
            if let Some(at) = begun {
                let begun = self.calls.remove(at);
                begun.charged.iter().for_each(|(group, n)| queues.discharge(&entry.account, *group, *n));
                floor.add(&begun.floor);
            }
            self.assign(&waiting, scheduler, self.scope_of_all, false, Way::Called(scheduler), None);
            self.note_floor(waiting.unit, floor, before + n_served);
            return;
        }
        let at = begun.unwrap_or_else(|| {
            let floor = FloorChange::default();
            self.calls.push(BegunCall { waiting, scheduler, n: 0, charged: SmallVec::new(), floor });
            self.calls.len() - 1
        });
        let begun = &mut self.calls[at];
        begun.n += n;
        begun.floor.add(&floor);
        begun.charged.iter().for_each(|(group, n)| queues.discharge(&entry.account, *group, *n));
        begun.charged = entry.next_by_group(begun.n);
        begun.charged.iter().for_each(|(group, n)| queues.charge(&entry.account, *group, *n));
        queues.push(waiting);
    }

    /// Hands out the units that were called, in the order of their turns.
    fn send_calls(&mut self) {
        for BegunCall { waiting, scheduler, n, charged, floor } in std::mem::take(&mut self.calls) {
            let Assignments { units, queueing, .. } = &mut *self.assignments;
            let Some(entry) = units.get(waiting.unit) else { continue };
            for (group, n) in charged {
                queueing.queues.discharge(&entry.account, group, n);
            }
            queueing.queues.remove(&waiting);
            self.assign(&waiting, scheduler, self.scope_of_all, false, Way::Called(scheduler), Some(n));
            self.note_floor(waiting.unit, floor, n);
        }
    }

    /// Notes with a unit what bands earned and spent for `n` of its running units: what finds no place gives that back.
    fn note_floor(&mut self, unit: UnitId, floor: FloorChange, n: u32) {
        if let Some(held) = self.assignments.units.dispatched_mut(unit) {
            held.floor = (floor, n);
        }
    }

    /// Hands a unit to a scheduler, for so many of its running units at most.
    fn assign(
        &mut self,
        waiting: &Waiting,
        idx: usize,
        scope: NodeScope,
        at_maximum: bool,
        way: Way,
        places_max: Option<u32>,
    ) {
        let unit = waiting.unit;
        let turn = self.gangs.is_offered(unit);
        // Room is gathered wherever there is some.
        let scope = if turn && self.scope_of_all == NodeScope::Global { NodeScope::Global } else { scope };
        let Assignments { units, queueing, schedulers, counters, wall_ms, .. } = &mut *self.assignments;
        let Some(entry) = units.entries.get_mut(&unit) else { return };
        let scheduler = &mut schedulers.all[idx];
        let Some(session) = scheduler.session else { return };
        // Whoever was bound before has waited for something else since.
        if !std::mem::replace(&mut entry.was_handed_out, true) && entry.bound_time_ms == 0 {
            units.waits.handed_out(entry.record.spec.class, entry.create_time_ms, *wall_ms);
        }
        let (ordinals, incarnations) = entry.pending();
        let (n_pending, n_unplaced) = (entry.to_place(), entry.n_unplaced());
        let places_max = places_max.filter(|n| *n < n_unplaced);
        if let Whereabouts::Dispatched(parked) = &entry.place {
            // It has it already.
            scheduler.parked -= u32::from(parked.parked.is_some());
        }
        let mut held = Dispatched { at_maximum, ..Dispatched::to(idx, entry.revision, scope) };
        match scope {
            NodeScope::Partition => {}
            // Whatever comes back after that goes round anew.
            NodeScope::Global => entry.tried.clear(),
        }
        held.unplaced = places_max.map(|n| n_unplaced.saturating_sub(n));
        scheduler.reload(&mut held.load, places_max.unwrap_or(n_pending));
        scheduler.held.insert(unit);
        scheduler.credits -= i64::from(n_pending);
        scheduler.dispatched += u64::from(n_pending);
        scheduler.n_assigned += 1;
        counters.assigned += 1;
        let seq = scheduler.n_assigned;
        (held.assigned, held.tried) = (seq, seq);
        entry.place = Whereabouts::Dispatched(held);
        let (record, revision, bound) = (entry.record.clone(), entry.revision, entry.counts.bound());
        let (called, read) = (matches!(way, Way::Called(_)), entry.moves_revision);
        let permit = Permit { scope, at_maximum, turn, called, places_max, read };
        let assignment = Assignment { record, revision, ordinals, incarnations, bound, permit };
        self.actions.push(Action::Assign(session, assignment));
        if waiting.room != RoomIdx::NONE && way != Way::Any {
            self.rooms.note_out(unit, waiting.room, way, seq, &mut queueing.queues);
        }
        self.assignments.refresh_ends(unit, self.now);
        if !matches!(way, Way::Called(_)) {
            let n = places_max.unwrap_or(waiting.running_units);
            let served = Waiting { running_units: n, ..*waiting };
            let floor = self.assignments.queueing.queues.served(&served);
            self.note_floor(unit, floor, n);
        }
    }
}
