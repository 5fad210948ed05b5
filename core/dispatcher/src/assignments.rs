//! Where every unit is, and what follows from its record, its running units and its place: where it waits, what its queue
//! is told, its phase, its end.
//!
//! The parts that one event of a unit concerns together stand here. What concerns only one of them is that part's own.

use std::{collections::BTreeSet, sync::Arc};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{lifecycle, txn::Receipt, unit::UnitRecord};
use godel_queueing::Waiting;
use godel_rules::admission::feasibility::Capacities;

use super::{
    Config, Counters, DeleteRefusal, NameClaim,
    ends::Ends,
    following::{N_TRIES_AT_ONCE, Settle, Settling},
    gates::AssignmentGates,
    gauges::Waits,
    queues::Queueing,
    schedulers::{Revocation, Schedulers},
    unit_entry::{UnitEntry, Whereabouts},
    units::Units,
};

/// Units, and all that knows where they are: queues, schedulers, gates and ends.
#[derive(Debug)]
pub struct Assignments {
    pub(super) units: Units,
    pub(super) queueing: Queueing,
    pub(super) schedulers: Schedulers,
    pub(super) gates: AssignmentGates,
    pub(super) settling: Settling,
    pub(super) ends: Ends,
    /// Units of which a replica may have come back that room is held for elsewhere.
    pub(super) moved: BTreeSet<UnitId>,
    /// Unix time of the last look at the clock, milliseconds.
    pub(super) wall_ms: i64,
    pub(super) counters: Counters,
}

impl Assignments {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            units: Units::new(config.history),
            queueing: Queueing::new(config.queues),
            schedulers: Schedulers::new(config.policy.build()),
            gates: AssignmentGates::default(),
            settling: Settling::new(config.settle_ms),
            ends: Ends::new(config),
            moved: BTreeSet::new(),
            wall_ms: 0,
            counters: Counters::default(),
        }
    }

    /// Takes uid and name of a submission, or says what they are already. `uid` must be a UUID.
    pub fn reserve(&mut self, namespace: &str, name: &str, uid: &str) -> NameClaim {
        if let Some(unit) = self.gates.frozen.has_name(namespace, name) {
            return NameClaim::NameTaken(unit);
        }
        self.units.directory.reserve(namespace, name, uid)
    }

    /// Waits that have ended since the last call.
    pub fn take_waits(&mut self) -> Waits {
        std::mem::take(&mut self.units.waits)
    }

    /// Forgets what was counted: what a standby reads, its leader counts.
    pub fn forget_counts(&mut self) {
        self.counters = Counters::default();
        self.take_waits();
    }

    /// Begins to delete the record of a unit that has ended, as retention does in the end. Whoever asked writes the
    /// deletion, or calls [`Self::on_delete_failed`]. False: it is being deleted already.
    ///
    /// # Errors
    /// The unit has not ended, or something of it is still on a node.
    pub(super) fn delete(&mut self, unit: UnitId) -> Result<bool, DeleteRefusal> {
        self.ends.delete(unit, &mut self.units)
    }

    /// The transaction that was to delete a unit failed.
    pub(super) fn on_delete_failed(&mut self, unit: UnitId, now: Millis) {
        if let Some(entry) = self.units.get_mut(unit) {
            self.ends.on_delete_failed(entry, now);
        }
    }

    /// A unit is known from now on. What follows from that is the caller's business.
    pub(super) fn insert(&mut self, record: Arc<UnitRecord>, revision: Revision, created: Receipt) {
        let account = self.queueing.queues.enroll(&record.spec);
        self.queueing.records.note_unit(&record, account.queue);
        self.units.insert(UnitEntry::new(record, revision, created, account));
        if !self.settling.is_loading() {
            self.counters.submitted += 1;
        }
    }

    /// A unit's record is gone: it is nowhere any more.
    pub(super) fn remove(&mut self, unit: UnitId, now: Millis) -> bool {
        let Some(mut entry) = self.units.remove(unit) else { return false };
        self.units.directory.remove(&entry.record, entry.create_revision, now);
        self.ends.remove(unit, entry.delete_at);
        self.vacate(unit, entry.place);
        self.schedulers.forget(unit);
        self.queueing.remove(&mut entry);
        self.moved.remove(&unit);
        true
    }

    /// Brings everything derived from a unit's record and rows up to date.
    pub(super) fn refresh(&mut self, unit: UnitId, now: Millis) {
        let is_frozen = self.frozen_for(unit).is_some();
        let Self { units, queueing: Queueing { queues, classes, .. }, schedulers, settling, gates, .. } =
            self;
        let Some(entry) = units.get_mut(unit) else { return };
        entry.choose(queues);
        let n_to_place = entry.to_place();
        let wants = n_to_place > 0;
        if wants && (is_frozen || gates.is_paused(&entry.record.spec)) {
            return self.set_aside(unit, now);
        }
        if entry.place == Whereabouts::Paused {
            entry.place = Whereabouts::Idle;
        }
        match &mut entry.place {
            Whereabouts::Idle if wants => {
                if settling.is_loading() {
                    entry.place = Whereabouts::Unsettled;
                    settling.unsettled.insert(unit);
                } else {
                    let waiting = entry.waiting(entry.was_placed(), classes);
                    entry.place = Whereabouts::Queued(waiting);
                    queues.push(waiting);
                }
            }
            Whereabouts::Idle | Whereabouts::Paused => {}
            Whereabouts::Unsettled => {
                if !wants {
                    entry.place = Whereabouts::Idle;
                    settling.unsettled.remove(&unit);
                }
            }
            Whereabouts::Queued(waiting) if wants => {
                let old = *waiting;
                let new = entry.waiting_again(&old, classes);
                if (Waiting { running_units: old.running_units, ..new }) != old {
                    queues.remove(&old);
                }
                entry.place = Whereabouts::Queued(new);
                queues.push(new);
            }
            Whereabouts::Queued(waiting) => {
                queues.remove(waiting);
                entry.place = Whereabouts::Idle;
            }
            Whereabouts::Dispatched(held) if wants => {
                let parked = held.parked;
                if let Some(old) = parked {
                    let new = entry.waiting_again(&old, classes);
                    if (Waiting { running_units: old.running_units, ..new }) != old {
                        queues.remove(&old);
                    }
                    queues.push(new);
                    if let Some(waiting) = entry.place.waiting_mut() {
                        *waiting = new;
                    }
                }
                let Whereabouts::Dispatched(held) = &mut entry.place else { return };
                if held.revision < entry.revision {
                    schedulers.tell_again(unit, held);
                }
                let load = if parked.is_some() || held.done_at.is_some() { 0 } else { n_to_place };
                schedulers.all[held.scheduler].reload(&mut held.load, load);
            }
            Whereabouts::Dispatched(held) => {
                let held = *held;
                entry.place = Whereabouts::Idle;
                entry.tried.clear();
                // Who placed all of it knows; who works with an older record does not.
                // One of an ordered unit may have to wait again for those before it.
                let is_news = held.revision < entry.revision || entry.record.spec.is_ordered();
                let tell = if is_news { Revocation::Tell } else { Revocation::Silent };
                schedulers.take_back(unit, held, tell, queues);
            }
        }
        self.refresh_ends(unit, now);
    }

    /// What its queue is told, phase, evictions and retention.
    pub(super) fn refresh_ends(&mut self, unit: UnitId, now: Millis) {
        let Self { units, queueing, gates, settling, ends, wall_ms, .. } = self;
        let Units { entries, tally, overtaken, .. } = units;
        let Some(entry) = entries.get_mut(&unit) else { return };
        queueing.charge(entry);
        let phase = lifecycle::phase(&entry.record, &entry.counts, entry.soft());
        if phase != entry.phase {
            tally.uncount(entry.account.queue, entry.phase);
            tally.enter(entry.account.queue, phase);
            entry.phase = phase;
        }
        if entry.counts.pending == 0 && !overtaken.is_empty() {
            overtaken.remove(&unit);
        }
        if entry.counts.pending == 0 {
            entry.refusals = None;
        }
        if gates.frozen.unit(unit).is_some() {
            ends.suspend(entry);
        } else {
            ends.update(entry, settling.phase, *wall_ms, now);
        }
    }

    /// Brings every unit up to date: what keeps units from being assigned changes rarely.
    pub(super) fn refresh_all(&mut self, now: Millis) {
        if self.settling.is_loading() {
            return;
        }
        for unit in self.units.all() {
            self.refresh(unit, now);
        }
    }

    /// Brings units up to date that were set aside: while nothing is decided, nobody looks whether what kept them from being assigned has ended.
    pub(super) fn refresh_set_aside(&mut self, now: Millis) {
        let entries = self.units.entries.iter();
        let set_aside = entries.filter(|(_, entry)| entry.place == Whereabouts::Paused);
        for unit in set_aside.map(|(unit, _)| *unit).collect::<Vec<_>>() {
            self.refresh(unit, now);
        }
    }

    /// Puts a unit that a scheduler had back at the head of the queue; one that waits for room keeps its place there.
    pub(super) fn queue_again(&mut self, unit: UnitId, now: Millis) {
        let Self { units, queueing: Queueing { queues, classes, .. }, schedulers, counters, .. } = self;
        let Some(entry) = units.get_mut(unit) else { return };
        if let Whereabouts::Dispatched(mut held) = entry.place {
            let waiting = match schedulers.unpark(&mut held, queues) {
                None => entry.waiting(true, classes),
                Some(old) => Waiting { held_by: None, ..old },
            };
            entry.place = Whereabouts::Queued(waiting);
            queues.push(waiting);
            counters.redispatched += 1;
            schedulers.take_back(unit, held, Revocation::Silent, queues);
            self.refresh_ends(unit, now);
        }
    }

    /// A unit has come back because its queue was full. The binder counts otherwise than the dispatcher for a moment: then
    /// the unit keeps its place, for others would take what comes free. Or only those replicas find a node that the queue has
    /// no room for: then it would go round and round, and as the first of those that wait keep others from the queue for ever.
    /// So it rests when that happens again and again, and the others go first.
    pub(super) fn send_back(&mut self, unit: UnitId, now: Millis) {
        self.queue_again(unit, now);
        let Some(entry) = self.units.get_mut(unit) else { return };
        let Whereabouts::Queued(waiting) = entry.place else { return };
        let (times, n_wanted) = entry.sent_back;
        let times = if n_wanted == waiting.running_units { times.saturating_add(1) } else { 1 };
        entry.sent_back = (times, waiting.running_units);
        if times > N_TRIES_AT_ONCE {
            self.queueing.queues.remove(&waiting);
            entry.place = Whereabouts::Unsettled;
            self.settling.rest(unit, now);
        }
    }

    /// Units that have rested are in their queues again.
    pub(super) fn end_rests(&mut self, now: Millis) {
        while let Some(unit) = self.settling.take_rested(now) {
            let Some(entry) = self.units.get_mut(unit) else { continue };
            if entry.place == Whereabouts::Unsettled {
                let waiting = entry.waiting(true, &self.queueing.classes);
                entry.place = Whereabouts::Queued(waiting);
                self.queueing.queues.push(waiting);
            }
        }
    }

    /// A unit that wants places is not assigned, and the scheduler that has it is told so.
    fn set_aside(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(unit) else { return };
        let place = std::mem::replace(&mut entry.place, Whereabouts::Paused);
        self.vacate(unit, place);
        self.refresh_ends(unit, now);
    }

    /// A unit is no longer to be where it is; for the reconciler.
    pub(super) fn displace(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(unit) else { return };
        let place = std::mem::replace(&mut entry.place, Whereabouts::Idle);
        self.vacate(unit, place);
        self.refresh(unit, now);
    }

    /// A unit has left a place: whatever knew of it there forgets it.
    fn vacate(&mut self, unit: UnitId, place: Whereabouts) {
        match place {
            Whereabouts::Dispatched(held) => {
                self.schedulers.take_back(unit, held, Revocation::Tell, &mut self.queueing.queues);
            }
            Whereabouts::Queued(waiting) => {
                self.queueing.queues.remove(&waiting);
            }
            Whereabouts::Unsettled => {
                self.settling.unsettled.remove(&unit);
            }
            Whereabouts::Idle | Whereabouts::Paused => {}
        }
    }

    /// Ends the wait for schedulers once all with a lease are back, or the time is up.
    pub(super) fn check_settled(&mut self, now: Millis) {
        let Settle::Until(until) = self.settling.phase else { return };
        if now < until && !self.schedulers.all_attached() {
            return;
        }
        self.settling.phase = Settle::Settled;
        for unit in std::mem::take(&mut self.settling.unsettled) {
            if let Some(entry) = self.units.get_mut(unit) {
                let waiting = entry.waiting(entry.was_placed(), &self.queueing.classes);
                entry.place = Whereabouts::Queued(waiting);
                self.queueing.queues.push(waiting);
            }
        }
    }

    /// Looks at the time limits that end.
    pub(super) fn check_limits(&mut self, now: Millis) {
        if self.settling.is_loading() {
            return;
        }
        self.ends.limits.start(&mut self.units, self.wall_ms, now);
        for (at, unit) in self.ends.limits.take_due(now) {
            let Some(entry) = self.units.get_mut(unit) else { continue };
            entry.is_overdue |= entry.wait_due == at;
            self.refresh_ends(unit, now);
        }
    }

    /// Whether any node known now could hold a replica of a unit.
    pub(super) fn set_feasible(&mut self, unit: UnitId, capacities: &Capacities) {
        let Units { entries, infeasible, .. } = &mut self.units;
        let Some(entry) = entries.get_mut(&unit) else { return };
        if self.settling.is_loading() || entry.phase.is_terminal() {
            return;
        }
        entry.infeasible = capacities.infeasible(&entry.record.spec).is_some();
        if entry.infeasible {
            infeasible.insert(unit);
        } else {
            infeasible.remove(&unit);
        }
    }

    /// After a change of nodes. After the list every unit that waits is looked at, later only those that no node could hold.
    pub(super) fn recheck_feasibility(&mut self, capacities: &Capacities, now: Millis) {
        let units: Vec<UnitId> = self.units.infeasible.union(&self.settling.unsettled).copied().collect();
        for unit in units {
            self.set_feasible(unit, capacities);
            self.refresh_ends(unit, now);
        }
    }

    /// When units of full queues are worth a try next; `None`: only after an event.
    pub(super) fn full_queues_due(&self) -> Option<Millis> {
        let at = self.queueing.queues.full_due()?;
        let is_paused = self.gates.is_preemption_paused();
        (!is_paused && self.schedulers.candidates().next().is_some()).then_some(at)
    }
}
