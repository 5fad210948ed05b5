//! Schedulers come and go.

use std::collections::BTreeMap;

use godel_domain::{
    change::{Lease, Scope},
    ids::{Epoch, Revision, UnitId},
    running_units::Phase as RowPhase,
    time::Millis,
    unit_report::{ReportState, UnitReport},
};

use super::{Action, Dispatched, Dispatcher, Revocation, SessionId, Settle, Whereabouts};

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

impl Dispatcher {
    /// A lease was granted, released or expired; others than those of schedulers are ignored.
    pub fn on_lease(&mut self, lease: &Lease, now: Millis) {
        let Some(name) = lease.name.strip_prefix(LEASE_PREFIX) else { return };
        let idx = self.schedulers.intern(name);
        let scheduler = &mut self.schedulers.all[idx];
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
            self.touch_partition(now);
        }
        self.check_settled(now);
    }

    /// Who holds a lease cannot be told: nobody does, until it is granted anew.
    pub(super) fn forget_lease(&mut self, lease: &str, now: Millis) {
        let Some(name) = lease.strip_prefix(LEASE_PREFIX) else { return };
        let idx = self.schedulers.intern(name);
        let epoch = self.schedulers.all[idx].epoch;
        self.on_lease(&Lease { name: lease.to_owned(), epoch, ..Lease::default() }, now);
    }

    /// A scheduler opens its stream: what it holds rightly is adopted, the rest revoked, what it should hold
    /// and does not is sent again. An older stream of the same scheduler is closed.
    ///
    /// # Errors
    /// Its epoch is not in force.
    pub fn on_attached(&mut self, attach: Attach, now: Millis) -> Result<(), AttachRefusal> {
        let idx = self.schedulers.intern(&attach.name);
        let scheduler = &mut self.schedulers.all[idx];
        let (current, asked) = (scheduler.epoch, attach.epoch);
        if asked < current || (asked == current && !scheduler.live) {
            return Err(AttachRefusal::StaleEpoch { current, asked });
        }
        if asked > current {
            // Granted, but the watch has yet to say so.
            scheduler.epoch = asked;
            if !scheduler.live {
                scheduler.live = true;
                self.touch_partition(now);
            }
            self.lose(idx, now);
        }
        if let Some(old) = self.schedulers.close(idx) {
            self.outbox.push(Action::Close(old));
        }
        self.schedulers.open(idx, attach.session, attach.credits);
        self.forget_rooms_of(idx);
        let inventory: BTreeMap<UnitId, Revision> = attach.inventory.into_iter().collect();
        for (&unit, &revision) in &inventory {
            if !self.adopt(idx, unit, revision, now) {
                self.outbox.push(Action::Revoke(attach.session, unit));
            }
        }
        // Lost on the way to it, or dropped because all is bound and the rows have yet to say so: then hearing
        // of it again does no harm.
        let missing: Vec<UnitId> = self.schedulers.all[idx]
            .held
            .iter()
            .filter(|unit| !inventory.contains_key(unit))
            .copied()
            .collect();
        for unit in missing {
            if let Some(held) = self.held_mut(unit) {
                held.resend = true;
                self.resend.insert(unit);
            }
        }
        self.check_settled(now);
        Ok(())
    }

    /// A stream has ended. What the scheduler holds stays with it until its lease is lost.
    pub fn on_detached(&mut self, session: SessionId) {
        if let Some(idx) = self.schedulers.of_session(session) {
            self.schedulers.close(idx);
            self.forget_rooms_of(idx);
        }
    }

    /// A scheduler says how many running units more it takes.
    pub fn on_credits(&mut self, session: SessionId, credits: u32) {
        if let Some(idx) = self.schedulers.of_session(session) {
            self.schedulers.all[idx].credits = i64::from(credits);
            self.feed(idx);
        }
    }

    /// A scheduler says what became of a try; what it says of older records or of units it does not hold is
    /// ignored. True when the unit's shown state may have changed.
    pub fn on_report(&mut self, session: SessionId, report: UnitReport, now: Millis) -> bool {
        let Some(idx) = self.schedulers.of_session(session) else { return false };
        let Some(entry) = self.units.get_mut(&report.unit) else { return false };
        let n_to_place = entry.to_place();
        let Whereabouts::Dispatched(held) = &mut entry.place else { return false };
        if held.scheduler != idx || report.spec_revision < held.revision {
            return false;
        }
        if report.refusals.is_some() {
            entry.refusals.clone_from(&report.refusals);
        }
        let scheduler = &mut self.schedulers.all[idx];
        match report.state {
            ReportState::Parked => {
                (held.done_at, held.unplaced) = (None, report.unplaced);
                scheduler.reload(&mut held.load, 0);
                if entry.spec.min_member > 1 {
                    self.gangs.note(report.unit, now);
                }
                self.wait_for_room(report.unit, (idx, report.need), report.refusals);
            }
            ReportState::Woken => {
                scheduler.parked -= u32::from(held.parked.is_some());
                held.done_at = None;
                scheduler.reload(&mut held.load, n_to_place);
                if let Some(waiting) = held.parked.take() {
                    self.queues.remove(&waiting);
                }
            }
            ReportState::Returned => {
                entry.tried.push(u32::try_from(idx).unwrap_or(u32::MAX));
                self.queue_again(report.unit, now);
            }
            // It is not the scheduler's fault.
            ReportState::QueueFull if held.at_maximum => {
                self.queues.note_vain(report.unit, now);
                self.queue_again(report.unit, now);
            }
            ReportState::QueueFull => {
                self.queue_again(report.unit, now);
                if let Some(entry) = self.units.get_mut(&report.unit) {
                    entry.gives_way = true;
                }
            }
            ReportState::Done => {
                scheduler.parked -= u32::from(held.parked.is_some());
                held.done_at = Some(now);
                scheduler.reload(&mut held.load, 0);
                if let Some(waiting) = held.parked.take() {
                    self.queues.remove(&waiting);
                }
            }
        }
        self.refresh_ends(report.unit, now);
        true
    }

    /// Takes a unit of an inventory as held by scheduler `idx`; false when it must not hold it.
    fn adopt(&mut self, idx: usize, unit: UnitId, revision: Revision, now: Millis) -> bool {
        let Some(entry) = self.units.get_mut(&unit) else { return false };
        let mut held = match entry.place {
            Whereabouts::Idle | Whereabouts::Paused => return false,
            Whereabouts::Dispatched(held) if held.scheduler != idx => return false,
            Whereabouts::Dispatched(held) => Dispatched { revision, done_at: None, ..held },
            Whereabouts::Unsettled | Whereabouts::Queued(_) => {
                // One that it has for all nodes goes on there; should it be sent again, partitions are tried anew.
                let scope = Scope::default();
                Dispatched {
                    scheduler: idx,
                    parked: None,
                    done_at: None,
                    revision,
                    load: 0,
                    resend: false,
                    scope,
                    at_maximum: false,
                    unplaced: None,
                }
            }
        };
        // An inventory names no ordinals: what came back after an eviction it may not know.
        held.resend |=
            entry.rows.rows.iter().any(|row| row.phase == RowPhase::Pending && row.incarnation > 0);
        held.resend |= revision < entry.revision;
        if held.resend {
            self.resend.insert(unit);
        }
        match std::mem::replace(&mut entry.place, Whereabouts::Dispatched(held)) {
            Whereabouts::Queued(waiting) => {
                self.queues.remove(&waiting);
            }
            Whereabouts::Unsettled => {
                self.unsettled.remove(&unit);
            }
            Whereabouts::Idle | Whereabouts::Paused | Whereabouts::Dispatched(_) => {}
        }
        self.schedulers.all[idx].held.insert(unit);
        self.refresh(unit, now);
        true
    }

    fn held_mut(&mut self, unit: UnitId) -> Option<&mut Dispatched> {
        match &mut self.units.get_mut(&unit)?.place {
            Whereabouts::Dispatched(held) => Some(held),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => None,
        }
    }

    /// Everything that a scheduler holds goes back to the queue, and its stream ends.
    fn lose(&mut self, idx: usize, now: Millis) {
        if let Some(session) = self.schedulers.close(idx) {
            self.outbox.push(Action::Close(session));
        }
        self.forget_rooms_of(idx);
        let held: Vec<UnitId> = self.schedulers.all[idx].held.iter().copied().collect();
        for unit in held {
            self.queue_again(unit, now);
        }
    }

    /// Ends the wait for schedulers once all with a lease are back, or the time is up.
    pub(super) fn check_settled(&mut self, now: Millis) {
        let Settle::Until(until) = self.settle else { return };
        if now < until && !self.schedulers.all_attached() {
            return;
        }
        self.settle = Settle::Settled;
        for unit in std::mem::take(&mut self.unsettled) {
            if let Some(entry) = self.units.get_mut(&unit) {
                let waiting = entry.waiting(entry.was_placed(), &self.classes);
                entry.place = Whereabouts::Queued(waiting);
                self.queues.push(waiting);
            }
        }
    }

    /// A unit is no longer to be where it is; for the reconciler.
    pub(super) fn displace(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        match std::mem::replace(&mut entry.place, Whereabouts::Idle) {
            Whereabouts::Dispatched(held) => self.take_back(unit, held, Revocation::Tell),
            Whereabouts::Queued(waiting) => {
                self.queues.remove(&waiting);
            }
            Whereabouts::Unsettled => {
                self.unsettled.remove(&unit);
            }
            Whereabouts::Idle | Whereabouts::Paused => {}
        }
        self.refresh(unit, now);
    }
}
