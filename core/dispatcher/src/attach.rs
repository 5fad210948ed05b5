//! Schedulers come and go.

use std::collections::BTreeMap;

use godel_base::{
    ids::{Epoch, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    change::{Lease, NodeScope},
    running_units::Phase as RowPhase,
    unit_report::{ReportState, RoomReport, UnitReport},
};

use super::{
    SessionId,
    assignments::Assignments,
    gangs::Gangs,
    partition::Partitioning,
    reservations::ReservationRecords,
    rooms::Rooms,
    schedulers::Schedulers,
    unit_entry::{Dispatched, Whereabouts},
};

/// Prefix of schedulers' leases.
const LEASE_PREFIX: &str = "scheduler/";

/// A scheduler opens its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// As in its lease `scheduler/<name>`.
    pub name: String,
    /// Of that lease.
    pub epoch: Epoch,
    /// Its stream.
    pub session: SessionId,
    /// What it holds.
    pub inventory: Vec<(UnitId, Revision)>,
    /// Running units that it takes beyond that.
    pub credits: u32,
}

/// Why a scheduler may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachRefusal {
    /// Its lease is not in force.
    #[error("epoch {asked} of the lease is not in force; epoch {current} was the last")]
    StaleEpoch {
        /// Newest known.
        current: Epoch,
        /// Of the request.
        asked: Epoch,
    },
}

/// What schedulers say on their streams, and by their leases: the parts that it concerns.
pub struct SchedulerStreams<'a> {
    pub(super) assignments: &'a mut Assignments,
    pub(super) partition: &'a mut Partitioning,
    pub(super) rooms: &'a mut Rooms,
    pub(super) gangs: &'a mut Gangs,
    pub(super) reservations: &'a ReservationRecords,
    /// Everything up to here is known.
    pub(super) read: Revision,
}

impl SchedulerStreams<'_> {
    /// A lease was granted, released or expired; others than those of schedulers are ignored.
    pub fn on_lease(&mut self, lease: &Lease, now: Millis) {
        let Some(name) = lease.name.strip_prefix(LEASE_PREFIX) else { return };
        let schedulers = &mut self.assignments.schedulers;
        let idx = schedulers.intern(name);
        let scheduler = &mut schedulers.all[idx];
        if lease.epoch < scheduler.epoch {
            return;
        }
        let live = !lease.holder.is_empty();
        if live {
            scheduler.address.clone_from(&lease.address);
        }
        let (was_live, was_epoch) = (scheduler.live, scheduler.epoch);
        scheduler.live = live;
        scheduler.epoch = lease.epoch;
        if !live || lease.epoch > was_epoch {
            self.lose(idx, now);
        }
        if live != was_live {
            self.partition.touch(now);
        }
        self.assignments.check_settled(now);
    }

    /// A scheduler opens its stream: what it holds rightly is adopted, the rest revoked, what it should hold
    /// and does not is sent again. An older stream of the same scheduler is closed.
    ///
    /// # Errors
    /// Its epoch is not in force.
    pub fn on_attached(&mut self, attach: Attach, now: Millis) -> Result<(), AttachRefusal> {
        let schedulers = &mut self.assignments.schedulers;
        let idx = schedulers.intern(&attach.name);
        let scheduler = &mut schedulers.all[idx];
        let (current, asked) = (scheduler.epoch, attach.epoch);
        if asked < current || (asked == current && !scheduler.live) {
            return Err(AttachRefusal::StaleEpoch { current, asked });
        }
        if asked > current {
            // Granted, but the watch has yet to say so.
            scheduler.epoch = asked;
            if !scheduler.live {
                scheduler.live = true;
                self.partition.touch(now);
            }
            self.lose(idx, now);
        }
        let assignments = &mut *self.assignments;
        assignments.schedulers.close(idx);
        assignments.schedulers.open(idx, attach.session, attach.credits);
        self.rooms.forget_rooms_of(idx);
        let inventory: BTreeMap<UnitId, Revision> = attach.inventory.into_iter().collect();
        for (&unit, &revision) in &inventory {
            if !assignments.adopt(idx, unit, revision, now) {
                assignments.schedulers.revoke(attach.session, unit);
            }
        }
        // Lost on the way to it, or dropped because all is bound and the rows have yet to say so: then hearing
        // of it again does no harm.
        let missing: Vec<UnitId> = assignments.schedulers.all[idx]
            .held
            .iter()
            .filter(|unit| !inventory.contains_key(unit))
            .copied()
            .collect();
        for unit in missing {
            if let Some(held) = assignments.units.dispatched_mut(unit) {
                // It is assigned for the first time on this stream, whole.
                (held.unplaced, held.assigned, held.tried) = (None, 0, 0);
                assignments.schedulers.tell_again(unit, held);
            }
            assignments.refresh_ends(unit, now);
        }
        assignments.check_settled(now);
        Ok(())
    }

    /// A stream has ended. What the scheduler holds stays with it until its lease is lost.
    pub fn on_detached(&mut self, session: SessionId) {
        let schedulers = &mut self.assignments.schedulers;
        if let Some(idx) = schedulers.of_session(session) {
            schedulers.detach(idx);
            self.rooms.forget_rooms_of(idx);
        }
    }

    /// A scheduler says how many running units more it takes.
    pub fn on_credits(&mut self, session: SessionId, credits: u32) {
        let schedulers = &mut self.assignments.schedulers;
        if let Some(idx) = schedulers.of_session(session) {
            schedulers.all[idx].credits = i64::from(credits);
            self.rooms.feed(idx);
        }
    }

    /// A scheduler says how much room there is for what it has parked.
    pub fn on_rooms(&mut self, session: SessionId, reports: &[RoomReport]) {
        if let Some(idx) = self.assignments.schedulers.of_session(session) {
            self.rooms.on_rooms(idx, reports, self.read);
        }
    }

    /// A scheduler says what became of a try; what it says of older records or of units it does not hold is
    /// ignored. True when the unit's shown state may have changed.
    pub fn on_report(&mut self, session: SessionId, report: UnitReport, now: Millis) -> bool {
        let Self { assignments, rooms, gangs, reservations, .. } = self;
        let by_labels = reservations.decide_by_labels(&assignments.units);
        let Assignments { units, queueing, schedulers, .. } = &mut **assignments;
        let Some(idx) = schedulers.of_session(session) else { return false };
        let unit = report.unit;
        let Some(entry) = units.get_mut(unit) else { return false };
        let is_about_places = matches!(report.state, ReportState::Parked | ReportState::Woken);
        let n_to_place = if is_about_places { entry.to_place() } else { 0 };
        // They wait for the first binding of the unit, because room is held for others of it.
        let is_behind = !entry.record.spec.is_ordered();
        let n_behind = if is_behind { entry.counts.pending.saturating_sub(n_to_place) } else { 0 };
        let Whereabouts::Dispatched(held) = &mut entry.place else { return false };
        if held.scheduler != idx || held.is_outdated(&report) {
            return false;
        }
        if report.refusals.is_some() {
            entry.refusals.clone_from(&report.refusals);
        }
        if report.state != ReportState::Woken {
            // Whoever is done has all its places.
            let unplaced = if report.state == ReportState::Done { Some(0) } else { report.unplaced };
            queueing.queues.unserved(&held.take_floor(unplaced));
        }
        match report.state {
            ReportState::Parked => {
                (held.done_at, held.unplaced) = (None, report.unplaced.map(|n| n.saturating_add(n_behind)));
                schedulers.all[idx].reload(&mut held.load, 0);
                if entry.record.spec.min_member > 1 {
                    gangs.note(unit, now);
                }
                gangs.on_parked(unit, report.refusals.as_deref(), now);
                rooms.wait_for_room(idx, report, assignments, by_labels);
            }
            ReportState::Woken => {
                held.done_at = None;
                schedulers.all[idx].reload(&mut held.load, n_to_place);
                schedulers.unpark(held, &mut queueing.queues);
            }
            ReportState::Returned => {
                entry.tried.push(u32::try_from(idx).unwrap_or(u32::MAX));
                assignments.queue_again(unit, now);
            }
            // It is not the scheduler's fault.
            ReportState::QueueFull if held.at_maximum => {
                queueing.queues.note_vain(unit, now);
                assignments.queue_again(unit, now);
            }
            ReportState::QueueFull => assignments.send_back(unit, now),
            ReportState::Done => {
                (held.done_at, held.unplaced) = (Some(now), None);
                schedulers.all[idx].reload(&mut held.load, 0);
                schedulers.unpark(held, &mut queueing.queues);
            }
        }
        assignments.refresh_ends(unit, now);
        true
    }

    /// Everything that a scheduler holds goes back to the queue, and its stream ends.
    fn lose(&mut self, idx: usize, now: Millis) {
        self.assignments.schedulers.close(idx);
        self.rooms.forget_rooms_of(idx);
        let held: Vec<UnitId> = self.assignments.schedulers.all[idx].held.iter().copied().collect();
        for unit in held {
            self.assignments.queue_again(unit, now);
        }
    }
}

impl Schedulers {
    /// A lease that nobody holds, as who holds it cannot be told; `None` if it is not a scheduler's.
    pub(super) fn released_lease(&mut self, lease: &str) -> Option<Lease> {
        let idx = self.intern(lease.strip_prefix(LEASE_PREFIX)?);
        Some(Lease { name: lease.to_owned(), epoch: self.all[idx].epoch, ..Lease::default() })
    }
}

impl Assignments {
    /// Takes a unit of an inventory as held by scheduler `idx`; false when it must not hold it.
    fn adopt(&mut self, idx: usize, unit: UnitId, revision: Revision, now: Millis) -> bool {
        let Some(entry) = self.units.get_mut(unit) else { return false };
        let mut held = match entry.place {
            Whereabouts::Idle | Whereabouts::Paused => return false,
            Whereabouts::Dispatched(held) if held.scheduler != idx => return false,
            Whereabouts::Dispatched(held) => {
                Dispatched { revision, done_at: None, assigned: 0, tried: 0, ..held }
            }
            // One that it has for all nodes goes on there; should it be sent again, partitions are tried anew.
            Whereabouts::Unsettled | Whereabouts::Queued(_) => {
                Dispatched::to(idx, revision, NodeScope::default())
            }
        };
        // An inventory names no ordinals: what came back after an eviction it may not know.
        held.resend |=
            entry.rows.rows.values().any(|row| row.phase == RowPhase::Pending && row.incarnation > 0);
        held.resend |= revision < entry.revision;
        if held.resend {
            self.schedulers.tell_again(unit, &mut held);
        }
        match std::mem::replace(&mut entry.place, Whereabouts::Dispatched(held)) {
            Whereabouts::Queued(waiting) => {
                self.queueing.queues.remove(&waiting);
            }
            Whereabouts::Unsettled => {
                self.settling.unsettled.remove(&unit);
            }
            Whereabouts::Idle | Whereabouts::Paused | Whereabouts::Dispatched(_) => {}
        }
        self.schedulers.all[idx].held.insert(unit);
        self.refresh(unit, now);
        true
    }
}
