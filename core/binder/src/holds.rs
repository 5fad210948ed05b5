//! Holds: room that is kept until its victims have left, or gathered until all of it is free, and what becomes of it then.
//!
//! All of it is in the records: a new binder reads them and goes on. A hold turns into a binding in the transaction after
//! the end of its last victim; it goes when its unit changes, its node is lost, or it expires. Of a unit that was never
//! bound the holds go together, and turn into its first binding together.

pub(super) mod replace;
mod work;

use std::{
    collections::{BTreeMap, hash_map::Entry},
    sync::Arc,
};

use godel_base::ids::{Epoch, HoldId, IdMap, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::{
    change::Change,
    demand::Pool,
    hold::{GangTurn, Hold},
    records::RecordKind,
    sub_cluster::overlap,
};
use godel_queueing::{Need, PayerIdx, QueueIdx, Reliefs};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Ticket, picture::BinderPicture, quotas::Quotas};

pub use self::work::HoldWork;

/// A hold lasts so long by default, milliseconds.
const HOLD_MS: u64 = 600_000;
/// A gang gathers room for so long by default, milliseconds.
const TURN_MS: u64 = 300_000;

#[derive(Clone, Debug)]
struct KnownHold {
    hold: Arc<Hold>,
    queue: QueueIdx,
    payer: PayerIdx,
    /// What it takes of the queue; of a movement's hold what those take that have no running unit.
    need: Need,
    /// Replicas that move to it of which the old incarnation counts, and leaves.
    n_returning: u32,
    /// Of its record; `None` while that is under way.
    revision: Option<Revision>,
    state: HoldState,
}

impl KnownHold {
    /// Ends what replicas that move count for.
    fn count_nothing(&mut self, picture: &mut BinderPicture) {
        picture.quotas.count_movers(self.queue, self.payer, self.need, self.n_returning, -1);
        (self.need.n, self.n_returning) = (0, 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldState {
    Held,
    /// Its end is under way.
    Ending,
    /// Its binding is under way: it takes no room of its own.
    Converting(Ticket),
}

/// Holds by id.
#[derive(Debug, Default)]
pub(super) struct BinderHolds {
    by_id: BTreeMap<HoldId, KnownHold>,
    /// How many holds are for a running unit, by unit and replica. A hold that takes the place of another
    /// one is here before that one's end is read.
    replicas: IdMap<UnitId, FxHashMap<ReplicaId, u32>>,
    /// What victims give up in queues for those that they back.
    pub(super) reliefs: Reliefs,
    last: u64,
    hold_ms: Option<u64>,
    turn_ms: Option<u64>,
    /// Something happened that may end one.
    is_stale: bool,
    /// Not after the time at which the first one expires; `None`: none does.
    expiry_ms: Option<i64>,
    /// A slot of a reservation that was held, or to be held, is not.
    has_lost_slot: bool,
}

impl BinderHolds {
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

    /// Holds, those under way among them.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn hold(&self, id: HoldId) -> Option<&Hold> {
        self.by_id.get(&id).map(|kept| &*kept.hold)
    }

    /// Returns the queue of a hold, and what the hold takes of it.
    pub(super) fn pays(&self, id: HoldId) -> Option<(QueueIdx, Need)> {
        self.by_id.get(&id).map(|kept| (kept.queue, kept.need))
    }

    /// Some holds may have come to their end.
    pub(super) fn has_work(&self, now_ms: i64) -> bool {
        self.is_stale || self.has_lost_slot || self.expiry_ms.is_some_and(|at| at <= now_ms)
    }

    /// Takes whether slots of reservations are not held any more, or will not be, that were or were to be.
    pub(super) fn take_lost_slot(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_slot)
    }

    /// A hold at a maximum of a unit is about to end.
    pub(super) fn ends_at_maximum(&self, unit: UnitId) -> bool {
        let of_unit = |kept: &&KnownHold| kept.hold.unit == unit && kept.hold.at_maximum;
        self.by_id.values().filter(of_unit).any(|kept| kept.state == HoldState::Ending)
    }

    /// The unit of a pool that gathers room which one of `sub_cluster` may want, with holds under way or that end, if the two may not gather at the
    /// same time: two with one place each may, on two nodes. `nodes`: one for each place that `unit` asks for. `O(holds)`.
    pub(super) fn whose_turn(
        &self,
        unit: UnitId,
        pool: Pool,
        sub_cluster: Option<&str>,
        nodes: &[NodeId],
    ) -> Option<UnitId> {
        let meets = |turn: &GangTurn| overlap(turn.sub_cluster.as_deref(), sub_cluster);
        let gathering = self.by_id.values().map(|kept| &kept.hold).filter(|hold| hold.pool == pool);
        let mut n_places: BTreeMap<UnitId, usize> = BTreeMap::new();
        for hold in gathering.filter(|hold| hold.turn.as_ref().is_some_and(meets)) {
            let n = n_places.entry(hold.unit).or_default();
            *n += hold.ordinals.len();
            if *n > 1 || nodes.len() != 1 || hold.unit == unit || nodes.contains(&hold.node) {
                return Some(hold.unit);
            }
        }
        None
    }

    /// Room is held for a running unit.
    pub(super) fn has(&self, id: RunningUnitId) -> bool {
        !self.by_id.is_empty()
            && self.replicas.get(&id.unit).is_some_and(|replicas| replicas.contains_key(&id.replica))
    }

    /// Whether the record of a hold was read.
    pub(super) fn is_recorded(&self, id: HoldId) -> bool {
        self.by_id.get(&id).is_some_and(|kept| kept.revision.is_some())
    }

    /// Whether all that is held for a running unit are targets of moves.
    pub(super) fn is_moving(&self, id: RunningUnitId, cluster: &Cluster) -> bool {
        let holds = cluster.holds().of(id.unit).into_iter().filter_map(|hold| self.hold(hold));
        let mut own = holds.filter(|hold| hold.replicas().any(|replica| replica == id.replica));
        own.all(|hold| hold.movement.is_some())
    }

    /// Whether the end of a target that is held for a running unit is under way.
    pub(super) fn ends_target(&self, id: RunningUnitId, cluster: &Cluster) -> bool {
        let kept = cluster.holds().of(id.unit).into_iter().filter_map(|hold| self.by_id.get(&hold));
        let mut ending = kept.filter(|kept| kept.state == HoldState::Ending && kept.hold.movement.is_some());
        ending.any(|kept| kept.hold.replicas().any(|replica| replica == id.replica))
    }

    /// Holds are to be looked at.
    pub(super) fn mark_stale(&mut self) {
        self.is_stale |= !self.by_id.is_empty();
    }

    /// Slots of reservations whose records are read and that nothing is under way of, in order of ids.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let settled = |kept: &&KnownHold| kept.revision.is_some() && kept.state == HoldState::Held;
        self.by_id.values().filter(settled).map(|kept| &kept.hold).filter(|hold| hold.slot.is_some())
    }

    /// What holds take of queues whose records are under way.
    pub(super) fn uncommitted_needs(&self) -> impl Iterator<Item = (QueueIdx, Need)> {
        let made =
            self.by_id.values().filter(|kept| kept.revision.is_none() && kept.state == HoldState::Held);
        made.map(|kept| (kept.queue, kept.need))
    }

    pub(super) fn begin(&mut self, hold: Arc<Hold>, queue: QueueIdx, payer: PayerIdx, need: Need) {
        let (revision, state) = (None, HoldState::Held);
        self.insert(KnownHold { hold, queue, payer, need, n_returning: 0, revision, state });
    }

    /// Counts the replicas of a unit that move as they are to be counted now: from the end of the old incarnation until the next one is
    /// placed, or the hold goes. Call after whatever changes rows, assumptions, holds or the queue of the unit.
    pub(super) fn settle_movers(&mut self, id: UnitId, picture: &mut BinderPicture) {
        if self.by_id.is_empty() || !self.replicas.contains_key(&id) {
            return;
        }
        for hold in picture.cluster.holds().of(id) {
            let Some(kept) = self.by_id.get_mut(&hold).filter(|kept| kept.hold.movement.is_some()) else {
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
            if let Some(kept) = self.by_id.get_mut(&hold).filter(|kept| kept.hold.movement.is_some()) {
                kept.count_nothing(picture);
            }
        }
    }

    /// Does not count those replicas of a unit that are being placed and count already, because they move. Returns them with their holds.
    pub(super) fn lift_movers(
        &self,
        id: UnitId,
        placed: impl Iterator<Item = ReplicaId>,
        cluster: &Cluster,
        quotas: &mut Quotas,
    ) -> SmallVec<[(HoldId, ReplicaId); 2]> {
        let mut movers = SmallVec::new();
        if self.by_id.is_empty() || !self.replicas.contains_key(&id) {
            return movers;
        }
        let holds = cluster.holds().of(id).into_iter().filter_map(|hold| self.by_id.get(&hold));
        let counted = holds.filter(|kept| kept.hold.movement.is_some() && kept.need.n > 0);
        let counted: SmallVec<[&KnownHold; 2]> = counted.collect();
        if counted.is_empty() {
            return movers;
        }
        for replica in placed {
            let of = counted.iter().find(|kept| kept.hold.replicas().any(|other| other == replica));
            movers.extend(of.map(|kept| (kept.hold.id, replica)));
        }
        self.shift_movers(&movers, quotas, -1);
        movers
    }

    /// Does not count replicas that move and are being placed (`sign` -1), or counts them again (1).
    pub(super) fn shift_movers(&self, movers: &[(HoldId, ReplicaId)], quotas: &mut Quotas, sign: i64) {
        for kept in movers.iter().filter_map(|(id, _)| self.by_id.get(id)) {
            quotas.count_movers(kept.queue, kept.payer, Need { n: 1, ..kept.need }, 0, sign);
        }
    }

    fn insert(&mut self, kept: KnownHold) {
        let hold = &kept.hold;
        self.last = self.last.max(hold.id.0);
        self.expiry_ms = Some(self.expiry_ms.map_or(hold.expires_ms, |first| first.min(hold.expires_ms)));
        let replicas = self.replicas.entry(hold.unit).or_default();
        hold.replicas().for_each(|replica| *replicas.entry(replica).or_default() += 1);
        self.reliefs.put(hold, kept.queue);
        self.by_id.insert(hold.id, kept);
        self.is_stale = true;
    }

    fn remove(&mut self, id: HoldId) -> Option<KnownHold> {
        let kept = self.by_id.remove(&id)?;
        self.reliefs.remove(&kept.hold);
        if let Some(replicas) = self.replicas.get_mut(&kept.hold.unit) {
            for replica in kept.hold.replicas() {
                if let Entry::Occupied(mut n_holds) = replicas.entry(replica) {
                    *n_holds.get_mut() -= 1;
                    if *n_holds.get() == 0 {
                        n_holds.remove();
                    }
                }
            }
            if replicas.is_empty() {
                self.replicas.remove(&kept.hold.unit);
            }
        }
        self.is_stale = true;
        Some(kept)
    }

    /// The binding of a ticket is read, and with it that its holds are gone.
    pub(super) fn converted(&mut self, ticket: Ticket, holds: &[HoldId]) {
        for id in holds {
            if self.by_id.get(id).is_some_and(|kept| kept.state == HoldState::Converting(ticket)) {
                self.remove(*id);
            }
        }
    }

    /// Whatever may end a hold makes it be looked at.
    pub(super) fn on_change(&mut self, change: &Change, cluster: &Cluster) {
        if self.by_id.is_empty() {
            return;
        }
        if let Some(unit) = change.unit() {
            self.reliefs.look_at(unit);
        }
        let may_matter = match change {
            Change::Rows(unit, _) | Change::RowsLoaded(unit, _) => {
                self.replicas.contains_key(unit)
                    || cluster.holds().backs_any(*unit)
                    || self.reliefs.is_backed_by(*unit)
                    || cluster.held().is_in_slots(*unit)
            }
            Change::Put(record) => match record.kind() {
                RecordKind::NodeSpec | RecordKind::NodeReport | RecordKind::NodeAllocatable => true,
                RecordKind::Unit => record.unit().is_some_and(|unit| self.replicas.contains_key(&unit)),
                _ => false,
            },
            Change::Gone(key) => matches!(key.kind(), Some(RecordKind::NodeSpec | RecordKind::Unit)),
            Change::Unreadable(_) => true,
        };
        self.is_stale |= may_matter;
    }

    /// A hold's record.
    pub(super) fn put(&mut self, hold: Arc<Hold>, revision: Revision, picture: &mut BinderPicture) {
        if let Some(known) = self.by_id.get_mut(&hold.id) {
            known.revision = Some(revision);
            if hold.slot.is_some() {
                known.hold = Arc::clone(&hold);
                let is_ending = known.state == HoldState::Ending;
                picture.cluster.put_hold(Arc::clone(&hold));
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
        picture.cluster.put_hold(Arc::clone(&hold));
        let (of, moves) = (hold.unit, hold.movement.is_some());
        let (revision, state) = (Some(revision), HoldState::Held);
        self.insert(KnownHold { hold, queue, payer, need, n_returning: 0, revision, state });
        if moves {
            self.settle_movers(of, picture);
        }
    }

    /// A hold's record is gone.
    pub(super) fn on_deleted(&mut self, id: HoldId, picture: &mut BinderPicture) {
        match self.by_id.get(&id).map(|kept| kept.state) {
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
            picture.cluster.remove_hold(id);
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
        let Some(unit) = picture.units.get(&id).filter(|_| !self.by_id.is_empty()) else { return };
        for kept in self.by_id.values_mut() {
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
                self.reliefs.put(&kept.hold, kept.queue);
            }
        }
        self.settle_movers(id, picture);
    }

    /// A list follows: what is under way stays.
    pub(super) fn reset(&mut self, picture: &mut BinderPicture) {
        self.reliefs = Reliefs::default();
        let known = std::mem::take(&mut self.by_id);
        self.replicas.clear();
        for (_, kept) in known {
            match (kept.state, kept.revision) {
                // Whether its record is still there the list says.
                (HoldState::Converting(_), _) => self.insert(KnownHold { revision: None, ..kept }),
                (HoldState::Held | HoldState::Ending, None) => {
                    picture.cluster.put_hold(Arc::clone(&kept.hold));
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
            if self.by_id.get(id).is_some_and(|kept| kept.revision.is_none()) {
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
            match self.by_id.get_mut(id).filter(|kept| kept.state == HoldState::Converting(ticket)) {
                Some(kept) if kept.revision.is_some() => {
                    kept.state = HoldState::Held;
                    picture.cluster.put_hold(Arc::clone(&kept.hold));
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
            if let Some(kept) = self.by_id.get_mut(id).filter(|kept| kept.state == HoldState::Ending) {
                kept.state = HoldState::Held;
                self.is_stale = true;
                cluster.holds_mut().close_slot(*id, false);
            }
        }
    }

    /// Gives up ends under way, whose fate is unknown.
    pub(super) fn cancel_all_ends(&mut self, picture: &mut BinderPicture) {
        let ending = self.by_id.values_mut().filter(|kept| kept.state == HoldState::Ending);
        for kept in ending {
            kept.state = HoldState::Held;
            picture.cluster.holds_mut().close_slot(kept.hold.id, false);
        }
        let made = self.by_id.values().filter(|kept| !kept.hold.counts_in_queue() && kept.revision.is_none());
        let made: Vec<HoldId> = made.map(|kept| kept.hold.id).collect();
        self.forget_made(&made, picture);
        self.is_stale = !self.by_id.is_empty();
    }
}
