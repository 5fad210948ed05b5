//! One step: the outbox, assignments, evictions, deletions, the split of nodes.

use std::sync::Arc;

use godel_domain::{
    change::{PartitionMode, Scope},
    ids::UnitId,
    lifecycle,
    time::Millis,
};
use godel_queueing::{RoomIdx, Waiting};

use super::{
    Action, Assignment, Dispatched, Dispatcher, EvictRequest, Settle, Whereabouts,
    policy::SchedulerCandidate, rooms::Way,
};

/// Units handed out in one step.
const DISPATCH_MAX: usize = 4_096;
/// Units passed over in one step because the schedulers that they may go to have no credit.
const SKIPPED_MAX: usize = 128;
/// Running units in one request to the binder.
pub(super) const EVICT_ORDINALS_MAX: usize = 4_096;
/// Requests to the binder and deletions in one step.
const FOLLOW_UP_MAX: usize = 1_000;
/// Between two passes over ended units that are to be deleted, milliseconds.
const DELETE_PASS_MS: u64 = 50;

impl Dispatcher {
    /// Decides what is to be done now. Call after events, and at [`Self::next_wake`].
    pub fn step(&mut self, now: Millis) -> Vec<Action> {
        self.stepped_at = now;
        self.check_settled(now);
        self.follow_total();
        if now >= self.reconcile_at && self.settle != Settle::Loading {
            self.reconcile(now);
            self.reconcile_at = now.plus(self.config.reconcile_ms);
        }
        let mut actions = std::mem::take(&mut self.outbox);
        if self.settle == Settle::Loading {
            return actions;
        }
        if self.frozen.is_all() {
            // It may be any record: nothing is decided before all are listed again.
            return actions;
        }
        self.limit(now);
        self.turn_gangs(now);
        self.send_again(now, &mut actions);
        self.dispatch(now, &mut actions);
        self.evict(now, &mut actions);
        self.end(now, &mut actions);
        self.depart(now, &mut actions);
        self.delete_ended(now, &mut actions);
        self.shuffle(now, &mut actions);
        self.split_nodes(now, &mut actions);
        actions
    }

    /// When to step again without an event; `None`: only after one.
    pub fn next_wake(&self, now: Millis) -> Option<Millis> {
        let mut wake = self.reconcile_at;
        if self.frozen.is_all() {
            return (self.settle != Settle::Loading).then_some(wake);
        }
        if !self.outbox.is_empty()
            || (self.queues.is_ready() && self.schedulers.candidates().next().is_some())
        {
            wake = now;
        }
        if let Some(at) = self.full_queues_due() {
            wake = wake.min(at);
        }
        if let Some(end) = self.window_ends() {
            wake = wake.min(end);
        }
        if let Settle::Until(until) = self.settle {
            wake = wake.min(until);
        }
        if let Some((at, _)) = self.ended.first() {
            wake = wake.min((*at).max(self.delete_from));
        }
        if let Some(due) = self.partition_due.filter(|_| !self.partition_writing) {
            wake = wake.min(due);
        }
        if let Some(at) = self.limits.next_at() {
            wake = wake.min(at);
        }
        if let Some(at) = self.gangs.next_at() {
            wake = wake.min(at);
        }
        if let Some(at) = self.departures_due(now) {
            wake = wake.min(at);
        }
        if let Some(at) = self.ends.values().min() {
            wake = wake.min(*at);
        }
        if let Some(at) = self.evictions.values().map(|eviction| eviction.next_at).min() {
            wake = wake.min(at);
        }
        (self.settle != Settle::Loading).then_some(wake)
    }

    /// Units whose schedulers have yet to hear of the newest record or rows; those without a stream hear of it
    /// when they are back.
    fn send_again(&mut self, now: Millis, actions: &mut Vec<Action>) {
        for unit in std::mem::take(&mut self.resend) {
            let Some(entry) = self.units.get_mut(&unit) else { continue };
            let (n_to_place, to_place) = (entry.to_place(), entry.pending());
            let Whereabouts::Dispatched(held) = &mut entry.place else { continue };
            let scheduler = &mut self.schedulers.all[held.scheduler];
            let Some(session) = scheduler.session.filter(|_| held.resend) else { continue };
            // It tries again with what is new, parked or not.
            scheduler.parked -= u32::from(held.parked.is_some());
            if let Some(waiting) = held.parked.take() {
                self.queues.remove(&waiting);
            }
            scheduler.n_assigned += 1;
            self.counters.assigned += 1;
            (held.done_at, held.resend) = (None, false);
            held.revision = entry.revision;
            let (ordinals, incarnations) = (to_place.0, to_place.1);
            let (scope, at_maximum) = (held.scope, held.at_maximum);
            scheduler.reload(&mut held.load, n_to_place);
            actions.push(Action::Assign(Assignment {
                session,
                spec: entry.spec.clone(),
                revision: entry.revision,
                ordinals,
                incarnations,
                bound: entry.counts.bound(),
                scope,
                at_maximum,
                turn: self.gangs.is_offered(unit),
                called: false,
            }));
            self.refresh_ends(unit, now);
        }
    }

    fn dispatch(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let mut skipped: Vec<Waiting> = Vec::new();
        let mut candidates: Vec<SchedulerCandidate> = Vec::new();
        for unit in self.follow_rooms().into_iter().chain(self.gangs.take_offered()) {
            self.hand_out(unit, now, actions);
        }
        for _ in 0..DISPATCH_MAX {
            candidates.clear();
            candidates.extend(self.schedulers.candidates());
            if candidates.is_empty() || skipped.len() >= SKIPPED_MAX {
                break;
            }
            let Some(waiting) = self.queues.next(now) else { break };
            let way = self.way_of(waiting.unit, waiting.room);
            let watcher = self.rooms.watcher();
            let (behind, anywhere) = (self.behind(waiting.unit), self.scope_of_all());
            let Some(entry) = self.units.get_mut(&waiting.unit) else { continue };
            if std::mem::take(&mut entry.gives_way) {
                skipped.push(waiting);
                continue;
            }
            let mut scope = Scope::Partition;
            match way {
                Way::Any => {}
                Way::Joined(room) => {
                    self.join(waiting.unit, room, now);
                    continue;
                }
                Way::Called(scheduler) => {
                    self.assign(&waiting, (scheduler, anywhere, false), way, now, actions);
                    continue;
                }
                Way::Later => {
                    self.queues.push(waiting);
                    self.starve(waiting.room);
                    continue;
                }
                Way::Scout(scheduler) => {
                    entry.tried.clear();
                    self.assign(&waiting, (scheduler, anywhere, false), way, now, actions);
                    continue;
                }
            }
            if let Some(scheduler) = behind
                && candidates.iter().any(|one| one.scheduler == scheduler)
            {
                candidates.retain(|one| one.scheduler == scheduler);
            }
            if !entry.tried.is_empty() {
                // Not back to one that gave it back while another is untried; then one tries all nodes.
                let untried = |idx: usize| !entry.tried.iter().any(|tried| *tried as usize == idx);
                let mut attached = self.schedulers.all.iter().enumerate();
                if attached.any(|(idx, one)| one.session.is_some() && untried(idx)) {
                    candidates.retain(|one| untried(one.scheduler));
                    if candidates.is_empty() {
                        skipped.push(waiting);
                        continue;
                    }
                } else {
                    scope = Scope::Global;
                    // Should it find no place it waits where all that do are watched.
                    if let Some(watcher) = watcher {
                        candidates.retain(|one| one.scheduler == watcher);
                    }
                    if candidates.is_empty() {
                        skipped.push(waiting);
                        continue;
                    }
                }
            }
            let last = candidates.len() - 1;
            let chosen = candidates[self.policy.pick(waiting.unit, &candidates).min(last)].scheduler;
            self.assign(&waiting, (chosen, scope, false), way, now, actions);
        }
        for waiting in skipped {
            self.queues.push(waiting);
        }
        self.dispatch_to_full(now, actions);
    }

    /// Where a unit is tried that no node had room for when all were asked.
    fn scope_of_all(&self) -> Scope {
        if self.mode == PartitionMode::Strict { Scope::Global } else { Scope::Partition }
    }

    /// Hands a unit out that waits for room, though nobody says that there is some.
    fn hand_out(&mut self, unit: UnitId, now: Millis, actions: &mut Vec<Action>) {
        let Some(Whereabouts::Queued(waiting)) = self.units.get(&unit).map(|entry| &entry.place) else {
            return;
        };
        let waiting = *waiting;
        let Some(watcher) = self.watcher().filter(|_| self.queues.remove(&waiting).is_some()) else { return };
        self.assign(&waiting, (watcher, self.scope_of_all(), false), Way::Any, now, actions);
    }

    pub(super) fn assign(
        &mut self,
        waiting: &Waiting,
        (idx, scope, at_maximum): (usize, Scope, bool),
        way: Way,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        let unit = waiting.unit;
        let turn = self.gangs.is_offered(unit);
        // Room is gathered wherever there is some.
        let scope = if turn && self.mode == PartitionMode::Strict { Scope::Global } else { scope };
        let Some(entry) = self.units.get_mut(&unit) else { return };
        let scheduler = &mut self.schedulers.all[idx];
        let Some(session) = scheduler.session else { return };
        // Whoever was bound before has waited for something else since.
        if !std::mem::replace(&mut entry.was_handed_out, true) && entry.bound_time_ms == 0 {
            self.waits.handed_out(entry.spec.class, entry.create_time_ms, self.wall_ms);
        }
        let (ordinals, incarnations) = entry.pending();
        let n_pending = entry.to_place();
        if let Whereabouts::Dispatched(parked) = &entry.place {
            // It has it already.
            scheduler.parked -= u32::from(parked.parked.is_some());
        }
        let mut held = Dispatched {
            scheduler: idx,
            parked: None,
            done_at: None,
            revision: entry.revision,
            load: 0,
            resend: false,
            scope,
            at_maximum,
            unplaced: None,
        };
        match scope {
            Scope::Partition => {}
            // Whatever comes back after that goes round anew.
            Scope::Global => entry.tried.clear(),
        }
        scheduler.reload(&mut held.load, n_pending);
        scheduler.held.insert(unit);
        scheduler.credits -= i64::from(n_pending);
        scheduler.dispatched += u64::from(n_pending);
        scheduler.n_assigned += 1;
        self.counters.assigned += 1;
        let seq = scheduler.n_assigned;
        entry.place = Whereabouts::Dispatched(held);
        actions.push(Action::Assign(Assignment {
            session,
            spec: entry.spec.clone(),
            revision: entry.revision,
            ordinals,
            incarnations,
            bound: entry.counts.bound(),
            scope,
            at_maximum,
            turn,
            called: matches!(way, Way::Called(_)),
        }));
        if waiting.room != RoomIdx::NONE && way != Way::Any {
            self.note_out(unit, waiting.room, way, seq);
        }
        self.refresh_ends(unit, now);
        self.queues.served(waiting);
    }

    fn evict(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let due =
            self.evictions.iter_mut().filter(|(_, eviction)| eviction.next_at <= now).take(FOLLOW_UP_MAX);
        for (&unit, eviction) in due {
            if std::mem::take(&mut eviction.answered) {
                // The binder said that they leave, and a while later they still do not.
                self.counters.repairs += 1;
            }
            eviction.next_at = now.plus(self.config.evict_retry_ms);
            let Some(entry) = self.units.get(&unit) else { continue };
            let (reason, ordinals, incarnations) =
                lifecycle::leaving(&entry.spec, &entry.counts, &entry.rows, EVICT_ORDINALS_MAX);
            let by = format!("unit {}/{}", entry.spec.namespace, entry.spec.name);
            let read = self.revision;
            actions.push(Action::Evict(EvictRequest { unit, reason, ordinals, incarnations, by, read }));
        }
    }

    /// Units that do not go on with fewer than `min_member` or after a failure, or were active for as long as they may be, and
    /// those that start again as a whole.
    fn end(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let due = self.ends.iter_mut().filter(|(_, at)| **at <= now).take(FOLLOW_UP_MAX);
        for (unit, at) in due {
            *at = now.plus(self.config.evict_retry_ms);
            let Some(entry) = self.units.get(unit) else { continue };
            let turned = lifecycle::turned(&entry.spec, &entry.counts, &entry.rows, self.wall_ms);
            actions.extend(turned.map(|spec| Action::End(Arc::new(spec), entry.revision)));
        }
    }

    /// Deletes what ended long enough ago, in passes: each one costs a transaction, which everybody follows.
    fn delete_ended(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if now < self.delete_from {
            return;
        }
        for n in 0..FOLLOW_UP_MAX {
            let is_due = |at: Millis| at <= now || self.ended.len() > self.config.n_ended_max;
            let Some((_, unit)) = self.ended.first().copied().filter(|(at, _)| is_due(*at)) else {
                if n > 0 {
                    self.delete_from = now.plus(DELETE_PASS_MS);
                }
                return;
            };
            self.ended.pop_first();
            if let Some(entry) = self.units.get_mut(&unit) {
                entry.deleting = true;
                entry.delete_at = None;
                actions.push(Action::Delete(unit));
            }
        }
    }

    fn split_nodes(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.partition_writing || self.partition_due.is_none_or(|due| due > now) {
            return;
        }
        self.partition_due = None;
        if let Some(split) = self.split(self.mode) {
            self.partition_writing = true;
            actions.push(Action::WritePartition(split));
        }
    }
}
