//! What follows from a unit's record, rows and place: where it waits, what its queue is told, its phase, its end.

use godel_domain::{ids::UnitId, lifecycle, sub_cluster, time::Millis};
use godel_queueing::Waiting;

use super::{Action, Dispatcher, Eviction, Revocation, Settle, Whereabouts, unit_entry::Dispatched};

impl Dispatcher {
    /// Brings everything derived from a unit's record and rows up to date.
    pub(super) fn refresh(&mut self, unit: UnitId, now: Millis) {
        let is_frozen = !self.frozen.is_empty() && self.frozen_for(unit).is_some();
        let Some(entry) = self.units.get_mut(&unit) else { return };
        entry.choose(&mut self.queues);
        let n_to_place = entry.to_place();
        let wants = n_to_place > 0;
        let spec = &entry.spec;
        let is_paused = || self.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key)).is_some();
        if wants && (is_frozen || is_paused()) {
            return self.set_aside(unit, now);
        }
        if entry.place == Whereabouts::Paused {
            entry.place = Whereabouts::Idle;
        }
        match &mut entry.place {
            Whereabouts::Idle if wants => {
                if self.settle == Settle::Loading {
                    entry.place = Whereabouts::Unsettled;
                    self.unsettled.insert(unit);
                } else {
                    let waiting = entry.waiting(entry.was_placed(), &self.classes);
                    entry.place = Whereabouts::Queued(waiting);
                    self.queues.push(waiting);
                }
            }
            Whereabouts::Idle | Whereabouts::Paused => {}
            Whereabouts::Unsettled => {
                if !wants {
                    entry.place = Whereabouts::Idle;
                    self.unsettled.remove(&unit);
                }
            }
            Whereabouts::Queued(waiting) if wants => {
                let old = *waiting;
                let new = entry.waiting_again(&old, &self.classes);
                if (Waiting { running_units: old.running_units, ..new }) != old {
                    self.queues.remove(&old);
                }
                entry.place = Whereabouts::Queued(new);
                self.queues.push(new);
            }
            Whereabouts::Queued(waiting) => {
                self.queues.remove(waiting);
                entry.place = Whereabouts::Idle;
            }
            Whereabouts::Dispatched(held) if wants => {
                let parked = held.parked;
                if let Some(old) = parked {
                    let new = entry.waiting_again(&old, &self.classes);
                    if (Waiting { running_units: old.running_units, ..new }) != old {
                        self.queues.remove(&old);
                    }
                    self.queues.push(new);
                    if let Some(waiting) = entry.place.waiting_mut() {
                        *waiting = new;
                    }
                }
                let Whereabouts::Dispatched(held) = &mut entry.place else { return };
                if held.revision < entry.revision {
                    held.resend = true;
                    self.resend.insert(unit);
                }
                let load = if parked.is_some() || held.done_at.is_some() { 0 } else { n_to_place };
                self.schedulers.all[held.scheduler].reload(&mut held.load, load);
            }
            Whereabouts::Dispatched(held) => {
                let held = *held;
                entry.place = Whereabouts::Idle;
                entry.tried.clear();
                // Who placed all of it knows; who works with an older record does not.
                let tell = if held.revision < entry.revision { Revocation::Tell } else { Revocation::Silent };
                self.take_back(unit, held, tell);
            }
        }
        self.refresh_ends(unit, now);
    }

    /// What its queue is told, phase, evictions and retention.
    pub(super) fn refresh_ends(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        entry.charge(&mut self.queues);
        let is_wanting = entry.counts.pending > 0;
        if is_wanting != entry.is_wanting {
            entry.is_wanting = is_wanting;
            self.records.note_wanting(entry.account.queue, is_wanting);
        }
        let phase = lifecycle::phase(&entry.spec, &entry.counts, entry.soft());
        if phase != entry.phase {
            self.tally.leave(entry.account.queue, entry.phase);
            self.tally.enter(entry.account.queue, phase);
            entry.phase = phase;
        }
        if entry.counts.pending == 0 && !self.overtaken.is_empty() {
            self.overtaken.remove(&unit);
        }
        if entry.counts.pending == 0 {
            entry.refusals = None;
        }
        if self.frozen.unit(unit).is_some() {
            // What its record says of its end is not known, nor what its rows do.
            self.evictions.remove(&unit);
            self.ends.remove(&unit);
            if let Some(at) = entry.delete_at.take() {
                self.ended.remove(&(at, unit));
            }
            return;
        }
        let surplus = lifecycle::n_leaving(&entry.spec, &entry.counts);
        if surplus == 0 {
            self.evictions.remove(&unit);
        } else {
            let fresh = Eviction { next_at: now, surplus, answered: false };
            let eviction = self.evictions.entry(unit).or_insert(fresh);
            if eviction.surplus != surplus {
                *eviction = fresh;
            }
        }
        self.limits.follow(entry, now, self.wall_ms);
        if lifecycle::is_turning(&entry.spec, &entry.counts, &entry.rows, self.wall_ms) {
            self.ends.entry(unit).or_insert(now);
        } else {
            self.ends.remove(&unit);
        }
        let over = lifecycle::is_over(phase, &entry.counts);
        match entry.delete_at {
            None if over && !entry.deleting => {
                let at = now.plus(entry.spec.ttl_after_finished_ms);
                entry.delete_at = Some(at);
                entry.ended_at = (self.settle != Settle::Loading).then_some(now);
                self.ended.insert((at, unit));
            }
            Some(at) if !over => {
                entry.delete_at = None;
                entry.ended_at = None;
                self.ended.remove(&(at, unit));
            }
            None | Some(_) => {}
        }
    }

    /// Frees a unit's place at its scheduler; the unit's own place is the caller's business.
    pub(super) fn take_back(&mut self, unit: UnitId, mut held: Dispatched, tell: Revocation) {
        let scheduler = &mut self.schedulers.all[held.scheduler];
        scheduler.reload(&mut held.load, 0);
        scheduler.held.remove(&unit);
        if let Some(waiting) = held.parked.take() {
            scheduler.parked -= 1;
            self.queues.remove(&waiting);
        }
        self.resend.remove(&unit);
        if let (Revocation::Tell, Some(session)) = (tell, scheduler.session) {
            self.outbox.push(Action::Revoke(session, unit));
        }
    }

    /// Puts a unit that a scheduler had back at the head of the queue; one that waits for room keeps its place there.
    pub(super) fn queue_again(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        if let Whereabouts::Dispatched(mut held) = entry.place {
            let waiting = match held.parked.take() {
                None => entry.waiting(true, &self.classes),
                Some(old) => {
                    self.schedulers.all[held.scheduler].parked -= 1;
                    self.queues.remove(&old);
                    Waiting { held_by: None, ..old }
                }
            };
            entry.place = Whereabouts::Queued(waiting);
            self.queues.push(waiting);
            self.counters.redispatched += 1;
            self.take_back(unit, held, Revocation::Silent);
            self.refresh_ends(unit, now);
        }
    }
}
