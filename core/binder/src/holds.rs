//! Holds: room that is kept until its victims have left, or gathered until all of it is free, and what becomes of it then.
//!
//! All of it is in the records: a new binder reads them and goes on. A hold turns into a binding in the transaction after
//! the end of its last victim; it goes when its unit changes, its node is lost, or it expires. Of a unit that was never
//! bound the holds go together, and turn into its first binding together.

mod known;
pub(super) mod replace;
mod work;

use std::sync::Arc;

use godel_base::ids::{Epoch, HoldId, Revision, UnitId};
use godel_cluster::Cluster;
use godel_domain::{change::Change, hold::Hold, records::RecordKind};
use godel_queueing::{Need, PayerIdx, QueueIdx, Reliefs};

use super::{Ticket, picture::BinderPicture};

use self::known::KnownHold;
pub(super) use self::known::KnownHolds;
pub use self::work::HoldWork;

/// A hold lasts so long by default, milliseconds.
const HOLD_MS: u64 = 600_000;
/// A gang gathers room for so long by default, milliseconds.
const TURN_MS: u64 = 300_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldState {
    Held,
    /// Its end is under way.
    Ending,
    /// Its binding is under way: it takes no room of its own.
    Converting(Ticket),
}

/// Holds, and what becomes of them.
#[derive(Debug, Default)]
pub(super) struct BinderHolds {
    pub(super) known: KnownHolds,
    pub(super) issuer: HoldIssuer,
    /// Something happened that may end one.
    is_stale: bool,
    /// Not after the time at which the first one expires; `None`: none does.
    expiry_ms: Option<i64>,
    /// A slot of a reservation that was held, or to be held, is not.
    has_lost_slot: bool,
}

/// Ids of new holds, and how long they last.
#[derive(Debug, Default)]
pub(super) struct HoldIssuer {
    last: u64,
    hold_ms: Option<u64>,
    turn_ms: Option<u64>,
}

impl HoldIssuer {
    pub(super) fn lead(&mut self, epoch: Epoch, hold_ms: u64) {
        self.last = self.last.max(epoch.0 << 32);
        self.hold_ms = Some(hold_ms);
    }

    /// Gangs gather room for so long at most, milliseconds.
    pub(super) fn gather_for(&mut self, turn_ms: u64) {
        self.turn_ms = Some(turn_ms);
    }

    pub(super) fn next(&mut self) -> HoldId {
        self.last += 1;
        HoldId(self.last)
    }

    pub(super) fn hold_ms(&self) -> i64 {
        i64::try_from(self.hold_ms.unwrap_or(HOLD_MS)).unwrap_or(i64::MAX)
    }

    pub(super) fn turn_ms(&self) -> i64 {
        i64::try_from(self.turn_ms.unwrap_or(TURN_MS)).unwrap_or(i64::MAX)
    }
}

impl BinderHolds {
    fn insert(&mut self, kept: KnownHold) {
        let hold = &kept.hold;
        self.issuer.last = self.issuer.last.max(hold.id.0);
        self.expiry_ms = Some(self.expiry_ms.map_or(hold.expires_ms, |first| first.min(hold.expires_ms)));
        self.known.insert(kept);
        self.is_stale = true;
    }

    fn remove(&mut self, id: HoldId) -> Option<KnownHold> {
        let kept = self.known.remove(id)?;
        self.is_stale = true;
        Some(kept)
    }

    /// Some holds may have come to their end.
    pub(super) fn has_work(&self, now_ms: i64) -> bool {
        self.is_stale || self.has_lost_slot || self.expiry_ms.is_some_and(|at| at <= now_ms)
    }

    /// Takes whether slots of reservations are not held any more, or will not be, that were or were to be.
    pub(super) fn take_lost_slot(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_slot)
    }

    /// Holds are to be looked at.
    pub(super) fn mark_stale(&mut self) {
        self.is_stale |= !self.known.by_id.is_empty();
    }

    pub(super) fn begin(&mut self, hold: Arc<Hold>, queue: QueueIdx, payer: PayerIdx, need: Need) {
        let (revision, state) = (None, HoldState::Held);
        self.insert(KnownHold { hold, queue, payer, need, n_returning: 0, revision, state });
    }

    /// Counts the replicas of a unit that move as they are to be counted now: from the end of the old incarnation until the next one is
    /// placed, or the hold goes. Call after whatever changes rows, assumptions, holds or the queue of the unit.
    pub(super) fn settle_movers(&mut self, id: UnitId, picture: &mut BinderPicture) {
        if self.known.by_id.is_empty() || !self.known.replicas.contains_key(&id) {
            return;
        }
        for hold in picture.cluster.holds().of(id) {
            let Some(kept) = self.known.by_id.get_mut(&hold).filter(|kept| kept.hold.movement.is_some())
            else {
                continue;
            };
            let Some(unit) = picture.units.get(&id) else {
                // Nobody knows where it counts.
                kept.count_nothing(picture);
                continue;
            };
            let share = picture.cluster.taken().mover_share(&kept.hold);
            let is_same = kept.payer == unit.payer && kept.queue == unit.queue;
            if is_same && (kept.need.n, kept.n_returning) == (share.n_counted, share.n_returning) {
                continue;
            }
            let shape = picture.cluster.shape(&kept.hold.demand, kept.hold.pool);
            let shape = unit.in_quota(kept.hold.group, shape);
            let (queue, payer) = (unit.queue, unit.payer);
            kept.count_nothing(picture);
            kept.need = picture.quotas.need(shape, share.n_counted, &picture.cluster);
            kept.n_returning = share.n_returning;
            (kept.queue, kept.payer) = (queue, payer);
            picture.quotas.count_movers(queue, payer, kept.need, kept.n_returning, 1);
        }
    }

    /// A unit's records go: its replicas that move count nowhere.
    pub(super) fn forget_movers(&mut self, id: UnitId, picture: &mut BinderPicture) {
        for hold in picture.cluster.holds().of(id) {
            if let Some(kept) = self.known.by_id.get_mut(&hold).filter(|kept| kept.hold.movement.is_some()) {
                kept.count_nothing(picture);
            }
        }
    }

    /// The binding of a ticket is read, and with it that its holds are gone.
    pub(super) fn converted(&mut self, ticket: Ticket, holds: &[HoldId]) {
        for id in holds {
            if self.known.by_id.get(id).is_some_and(|kept| kept.state == HoldState::Converting(ticket)) {
                self.remove(*id);
            }
        }
    }

    /// Whatever may end a hold makes it be looked at.
    pub(super) fn on_change(&mut self, change: &Change, cluster: &Cluster) {
        if self.known.by_id.is_empty() {
            return;
        }
        if let Some(unit) = change.unit() {
            self.known.reliefs.look_at(unit);
        }
        let may_matter = match change {
            Change::Rows(unit, _) | Change::RowsLoaded(unit, _) => {
                self.known.replicas.contains_key(unit)
                    || cluster.holds().backs_any(*unit)
                    || self.known.reliefs.is_backed_by(*unit)
                    || cluster.held().is_in_slots(*unit)
            }
            Change::Put(record) => match record.kind() {
                RecordKind::NodeSpec | RecordKind::NodeReport | RecordKind::NodeAllocatable => true,
                RecordKind::Unit => record.unit().is_some_and(|unit| self.known.replicas.contains_key(&unit)),
                _ => false,
            },
            Change::Gone(key) => matches!(key.kind(), Some(RecordKind::NodeSpec | RecordKind::Unit)),
            Change::Unreadable(_) => true,
        };
        self.is_stale |= may_matter;
    }

    /// A hold's record.
    pub(super) fn put(&mut self, hold: Arc<Hold>, revision: Revision, picture: &mut BinderPicture) {
        if let Some(known) = self.known.by_id.get_mut(&hold.id) {
            known.revision = Some(revision);
            if hold.slot.is_some() {
                known.hold = Arc::clone(&hold);
                let is_ending = known.state == HoldState::Ending;
                picture.cluster.held_mut().put(Arc::clone(&hold));
                picture.cluster.holds_mut().close_slot(hold.id, is_ending);
            }
            self.is_stale = true;
            return;
        }
        let shape = picture.cluster.shape(&hold.demand, hold.pool);
        let (queue, payer, shape) = match picture.units.get(&hold.unit) {
            Some(unit) => (unit.queue, unit.payer, unit.in_quota(hold.group, shape)),
            // Its unit is read later, or gone: then it goes without ever being bound.
            None => (QueueIdx::DEFAULT, QueueIdx::DEFAULT.into(), shape.into()),
        };
        // Who takes a slot counts in its own queue; what moves is counted below.
        let n_held = u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX);
        let n = if hold.counts_in_queue() { n_held } else { 0 };
        let need = picture.quotas.need(shape, n, &picture.cluster);
        picture.quotas.add_need(payer, need);
        picture.cluster.held_mut().put(Arc::clone(&hold));
        let (of, moves) = (hold.unit, hold.movement.is_some());
        let (revision, state) = (Some(revision), HoldState::Held);
        self.insert(KnownHold { hold, queue, payer, need, n_returning: 0, revision, state });
        if moves {
            self.settle_movers(of, picture);
        }
    }

    /// A hold's record is gone.
    pub(super) fn on_deleted(&mut self, id: HoldId, picture: &mut BinderPicture) {
        match self.known.by_id.get(&id).map(|kept| kept.state) {
            // What it took its binding takes, until that is shown.
            Some(HoldState::Converting(_)) => {
                self.remove(id);
            }
            Some(HoldState::Held | HoldState::Ending) => self.give_up(id, picture),
            None => {}
        }
    }

    /// Forgets a hold, and gives back what it takes.
    pub(super) fn give_up(&mut self, id: HoldId, picture: &mut BinderPicture) {
        if let Some(mut kept) = self.remove(id) {
            picture.cluster.held_mut().remove(id);
            if kept.hold.movement.is_some() {
                kept.count_nothing(picture);
            } else {
                picture.quotas.give_back(kept.payer, kept.need);
            }
            self.has_lost_slot |= kept.hold.slot.is_some();
        }
    }

    /// A unit's queue is known (anew): its holds count there.
    pub(super) fn move_to(&mut self, id: UnitId, picture: &mut BinderPicture) {
        let Some(unit) = picture.units.get(&id).filter(|_| !self.known.by_id.is_empty()) else { return };
        for kept in self.known.by_id.values_mut() {
            if kept.hold.unit == id
                && kept.hold.movement.is_none()
                && kept.payer != unit.payer
                && !matches!(kept.state, HoldState::Converting(_))
            {
                picture.quotas.give_back(kept.payer, kept.need);
                let shape = picture.cluster.shape(&kept.hold.demand, kept.hold.pool);
                let shape = unit.in_quota(kept.hold.group, shape);
                kept.need = picture.quotas.need(shape, kept.need.n, &picture.cluster);
                (kept.queue, kept.payer) = (unit.queue, unit.payer);
                picture.quotas.add_need(kept.payer, kept.need);
                self.known.reliefs.put(&kept.hold, kept.queue);
            }
        }
        self.settle_movers(id, picture);
    }

    /// A list follows: what is under way stays.
    pub(super) fn reset(&mut self, picture: &mut BinderPicture) {
        self.known.reliefs = Reliefs::default();
        let known = std::mem::take(&mut self.known.by_id);
        self.known.replicas.clear();
        for (_, kept) in known {
            match (kept.state, kept.revision) {
                // Whether its record is still there the list says.
                (HoldState::Converting(_), _) => self.insert(KnownHold { revision: None, ..kept }),
                (HoldState::Held | HoldState::Ending, None) => {
                    picture.cluster.held_mut().put(Arc::clone(&kept.hold));
                    picture.cluster.holds_mut().close_slot(kept.hold.id, true);
                    if kept.hold.movement.is_some() {
                        // It counts once its unit and its rows are listed.
                        let need = Need { n: 0, ..kept.need };
                        self.insert(KnownHold { need, n_returning: 0, ..kept });
                        continue;
                    }
                    picture.quotas.add_need(kept.payer, kept.need);
                    self.insert(kept);
                }
                (HoldState::Held | HoldState::Ending, Some(_)) => {}
            }
        }
    }

    /// Holds that were made and that the records do not show are gone again.
    pub(super) fn forget_made(&mut self, made: &[HoldId], picture: &mut BinderPicture) {
        for id in made {
            if self.known.by_id.get(id).is_some_and(|kept| kept.revision.is_none()) {
                self.give_up(*id, picture);
            }
        }
    }

    /// The transaction of a ticket was refused: the holds that it made are gone, those that it was to bind are back.
    pub(super) fn take_back(
        &mut self,
        ticket: Ticket,
        made: &[HoldId],
        converted: &[HoldId],
        picture: &mut BinderPicture,
    ) {
        self.forget_made(made, picture);
        for id in converted {
            match self.known.by_id.get_mut(id).filter(|kept| kept.state == HoldState::Converting(ticket)) {
                Some(kept) if kept.revision.is_some() => {
                    kept.state = HoldState::Held;
                    picture.cluster.held_mut().put(Arc::clone(&kept.hold));
                    picture.quotas.add_need(kept.payer, kept.need);
                }
                // Not listed (yet): if it is there, the list brings it back.
                Some(_) => {
                    self.remove(*id);
                }
                None => {}
            }
        }
        self.mark_stale();
    }

    /// The transaction that was to end some holds was refused.
    pub(super) fn cancel_ends(&mut self, ids: &[(HoldId, Revision)], cluster: &mut Cluster) {
        for (id, _) in ids {
            if let Some(kept) = self.known.by_id.get_mut(id).filter(|kept| kept.state == HoldState::Ending) {
                kept.state = HoldState::Held;
                self.is_stale = true;
                cluster.holds_mut().close_slot(*id, false);
            }
        }
    }

    /// Gives up ends under way, whose fate is unknown.
    pub(super) fn cancel_all_ends(&mut self, picture: &mut BinderPicture) {
        let ending = self.known.by_id.values_mut().filter(|kept| kept.state == HoldState::Ending);
        for kept in ending {
            kept.state = HoldState::Held;
            picture.cluster.holds_mut().close_slot(kept.hold.id, false);
        }
        let made =
            self.known.by_id.values().filter(|kept| !kept.hold.counts_in_queue() && kept.revision.is_none());
        let made: Vec<HoldId> = made.map(|kept| kept.hold.id).collect();
        self.forget_made(&made, picture);
        self.is_stale = !self.known.by_id.is_empty();
    }
}
