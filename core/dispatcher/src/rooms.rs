//! Room on nodes is given out in the order of queues: see ADR 0018.
//!
//! A unit that found no place on any node waits in its lane again, in a class of those that lack the same (a *room*, see
//! [`godel_queueing::RoomIdx`]); units of the same need join it without being handed out. One scheduler watches all rooms: it has
//! the unit of highest priority of each, and states how many places there are now. A room is open for so many: its units are
//! *called* in the order of all that waits, and what is called takes off what other rooms may draw from the same nodes, until
//! that is counted by a newer statement. A room of which the watcher has no unit is open for one try there.
//!
//! Nothing survives a restart: a new leader hears from schedulers what they have parked.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    demand::Pool,
    queue_spec::Band,
    refusals::Refusals,
    unit_report::{RoomReport, UnitReport},
};
use godel_queueing::{QueueIdx, Queues, RoomIdx, Waiting};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    assignments::Assignments,
    gangs::Gangs,
    queues::Queueing,
    schedulers::{Revocation, SchedulerEntry, Schedulers},
    unit_entry::{UnitEntry, Whereabouts},
    units::Units,
};

mod key;
mod starved;

use key::{RoomKey, lack_of, lack_of_parked};

/// Statements that wait to be read up to at most; then the oldest counts as it is.
const N_EARLY_MAX: usize = 4_096;

/// Rooms by number.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// The first one is nobody's.
    all: Vec<Option<RoomEntry>>,
    free: Vec<RoomIdx>,
    by_hash: FxHashMap<u64, SmallVec<[RoomIdx; 1]>>,
    /// By the watcher's number of the need.
    by_need: BTreeMap<u64, SmallVec<[RoomIdx; 1]>>,
    /// Called and not answered yet.
    calls: Vec<Call>,
    /// Statements that rest on more than has been read, in order.
    early: VecDeque<RoomReport>,
    /// Something about them has changed since the last look.
    touched: BTreeSet<RoomIdx>,
    /// Those whose scouts are out.
    scouting: BTreeSet<RoomIdx>,
    /// The scheduler that watches all of them: statements of several would come one after the other, and the first one would
    /// not know of whom the next one has room for.
    watcher: Option<usize>,
}

/// What some units lack.
#[derive(Debug)]
struct RoomEntry {
    lack: RoomKey,
    hash: u64,
    /// Of the last try.
    refusals: Option<Arc<Refusals>>,
    /// What the watcher says of it.
    statement: Option<Statement>,
    /// Places to be given out.
    left: u64,
    /// On its way to a scheduler, which will watch the room if it parks there.
    scout: Option<UnitId>,
    /// Since when others are bound before its first unit while it has no place to give out.
    passed_since: Option<Millis>,
    /// It gave out a place since that was looked at last.
    gave: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Statement {
    need: u64,
    places: u32,
    assigned: u64,
}

/// A unit that was called.
#[derive(Clone, Copy, Debug)]
struct Call {
    unit: UnitId,
    scheduler: usize,
    /// Number of the assignment in its stream; [`u64::MAX`] until it is sent.
    seq: u64,
    room: RoomIdx,
    queue: QueueIdx,
    band: Band,
    pool: Pool,
    /// Places that it takes of its own room, and how many that had.
    n: u64,
    of: u64,
}

impl Call {
    /// What it takes of a room with so many places: the same part as of its own, which has `of` by now.
    fn cost(&self, room: RoomIdx, places: u64, of: u64) -> u64 {
        if room == self.room { self.n } else { (self.n * places).div_ceil(self.of.max(of).max(1)) }
    }
}

/// What is to be done with a unit that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Any scheduler may try it.
    Any,
    /// The watcher tries it on all nodes, and keeps it if it finds no place.
    Scout(usize),
    /// There is room for it, says the watcher.
    Called(usize),
    /// It waits with those who lack the same.
    Joined(RoomIdx),
    /// Its scheduler takes nothing now.
    Later,
}

impl Rooms {
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// The scheduler that watches rooms, while there are some.
    pub(super) fn watcher(&self) -> Option<usize> {
        self.watcher.filter(|_| !self.is_empty())
    }

    fn get(&self, room: RoomIdx) -> Option<&RoomEntry> {
        self.all.get(room.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, room: RoomIdx) -> Option<&mut RoomEntry> {
        self.all.get_mut(room.0 as usize)?.as_mut()
    }

    /// The rooms of those that lack the same: more than one where the watcher tells their needs apart.
    fn of_lack(&self, lack: &RoomKey) -> SmallVec<[RoomIdx; 2]> {
        let same = |room: &&RoomIdx| self.get(**room).is_some_and(|room| room.lack == *lack);
        self.by_hash.get(&lack.hash()).into_iter().flatten().filter(same).copied().collect()
    }

    fn insert(&mut self, lack: RoomKey) -> RoomIdx {
        let hash = lack.hash();
        let fresh = RoomEntry {
            lack,
            hash,
            refusals: None,
            statement: None,
            left: 0,
            scout: None,
            passed_since: None,
            gave: false,
        };
        if self.all.is_empty() {
            self.all.push(None);
        }
        let idx = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            RoomIdx(u32::try_from(self.all.len() - 1).expect("memory ends before 2^32 rooms"))
        });
        self.all[idx.0 as usize] = Some(fresh);
        self.by_hash.entry(hash).or_default().push(idx);
        idx
    }

    fn remove(&mut self, idx: RoomIdx) {
        let Some(room) = self.all.get_mut(idx.0 as usize).and_then(Option::take) else { return };
        if let Some(statement) = &room.statement {
            self.forget_need(statement.need, idx);
        }
        if let Some(same) = self.by_hash.get_mut(&room.hash) {
            same.retain(|one| *one != idx);
            if same.is_empty() {
                self.by_hash.remove(&room.hash);
            }
        }
        self.calls.retain(|call| call.room != idx);
        self.scouting.remove(&idx);
        self.free.push(idx);
    }

    fn forget_need(&mut self, need: u64, idx: RoomIdx) {
        if let Some(rooms) = self.by_need.get_mut(&need) {
            rooms.retain(|one| *one != idx);
            if rooms.is_empty() {
                self.by_need.remove(&need);
            }
        }
    }

    /// A scheduler asked all nodes and has parked a unit; `need` if it is the watcher. `was_called`: it was told that there is
    /// room.
    fn note_parked(
        &mut self,
        idx: RoomIdx,
        need: Option<u64>,
        refusals: Option<Arc<Refusals>>,
        was_called: bool,
    ) {
        self.touched.insert(idx);
        // What was counted before that try is old.
        self.early.retain(|report| Some(report.need) != need);
        let Some(room) = self.get_mut(idx) else { return };
        if refusals.is_some() {
            room.refusals = refusals;
        }
        let Some(need) = need else { return };
        let before = room.statement.map(|statement| statement.need);
        if was_called || before != Some(need) {
            room.statement = Some(Statement { need, places: 0, ..room.statement.unwrap_or_default() });
        }
        if let Some(before) = before.filter(|before| *before != need) {
            self.forget_need(before, idx);
        }
        let rooms = self.by_need.entry(need).or_default();
        if !rooms.contains(&idx) {
            rooms.push(idx);
        }
    }

    fn note_places(&mut self, report: &RoomReport) {
        let RoomReport { need, places, assigned, revision: _ } = *report;
        for idx in self.by_need.get(&need).cloned().unwrap_or_default() {
            self.touched.insert(idx);
            if let Some(room) = self.get_mut(idx) {
                room.statement = Some(Statement { need, places, assigned });
            }
        }
    }

    /// Nothing that was stated counts any longer, nor what was called.
    fn forget_statements(&mut self) {
        self.by_need.clear();
        self.calls.clear();
        self.early.clear();
        self.all.iter_mut().flatten().for_each(|room| room.statement = None);
    }

    /// Places of a room less what was called since they were counted.
    fn places_left(&self, idx: RoomIdx) -> u64 {
        let Some((room, statement)) = self.get(idx).and_then(|room| Some((room, room.statement?))) else {
            return 0;
        };
        let places = u64::from(statement.places);
        let pool = room.lack.like.spec.pool;
        let open = self.calls.iter().filter(|call| call.pool == pool && call.seq > statement.assigned);
        // More places may have been counted of its own room since it was called.
        let of =
            |call: &Call| self.get(call.room).and_then(|room| room.statement).map_or(0, |one| one.places);
        open.fold(places, |left, call| left.saturating_sub(call.cost(idx, places, u64::from(of(call)))))
    }

    /// A scheduler says how much room there is for what it has parked.
    pub(super) fn on_rooms(&mut self, scheduler: usize, reports: &[RoomReport], read: Revision) {
        if self.watcher == Some(scheduler) {
            self.early.extend(reports);
            self.take_statements(read);
        }
    }

    /// Room is shared out by what has been read: what came free before a statement was made must have been read too, for it is
    /// that which makes another queue's turn come.
    fn take_statements(&mut self, read: Revision) {
        while let Some(report) = self.early.front().copied()
            && (report.revision <= read || self.early.len() > N_EARLY_MAX)
        {
            self.early.pop_front();
            self.note_places(&report);
        }
    }

    /// A unit found no place on any node: it waits for room, in its place among all that waits.
    pub(super) fn wait_for_room(
        &mut self,
        scheduler: usize,
        report: UnitReport,
        assignments: &mut Assignments,
        by_labels: bool,
    ) {
        let unit = report.unit;
        let was_called = self.calls.iter().any(|call| call.unit == unit);
        self.calls.retain(|call| call.unit != unit);
        let Assignments { units, queueing, schedulers, .. } = assignments;
        let Some(entry) = units.get_mut(unit) else { return };
        let lack = lack_of_parked(entry, &report, queueing, by_labels);
        let is_watcher = *self.watcher.get_or_insert(scheduler) == scheduler;
        let need = is_watcher.then_some(report.need);
        let Whereabouts::Dispatched(held) = &mut entry.place else { return };
        schedulers.unpark(held, &mut queueing.queues);
        let room = self.room_for(lack, need, &queueing.queues);
        self.note_parked(room, need, report.refusals, was_called);
        let mut waiting = entry.waiting(entry.was_placed(), &queueing.classes);
        waiting.room = room;
        let Whereabouts::Dispatched(held) = &mut entry.place else { return };
        if is_watcher {
            waiting.held_by = u32::try_from(scheduler).ok();
            held.parked = Some(waiting);
            schedulers.all[scheduler].parked += 1;
        } else {
            let held = *held;
            entry.place = Whereabouts::Queued(waiting);
            schedulers.take_back(unit, held, Revocation::Tell, &mut queueing.queues);
        }
        queueing.queues.push(waiting);
        self.touch_all();
    }

    /// The room that a unit waits for which lacks this, and whose need has that number at the watcher. A room goes by one
    /// need: those that wait for it would not hear of places for another one. The watcher may tell apart what looks the same
    /// here, as it does with a unit for which room is held.
    fn room_for(&mut self, lack: RoomKey, need: Option<u64>, queues: &Queues) -> RoomIdx {
        let rooms = self.of_lack(&lack);
        let need_of = |idx: RoomIdx| self.get(idx)?.statement.map(|statement| statement.need);
        let same = |idx: &RoomIdx| need.is_none() || need_of(*idx) == need;
        // A need that nobody has at the watcher is over: what waits for its room goes by the next one.
        let is_free = |idx: &RoomIdx| need_of(*idx).is_none() || self.highest_watched(*idx, queues).is_none();
        let room = rooms.iter().find(|idx| same(idx)).or_else(|| rooms.iter().find(|idx| is_free(idx)));
        room.copied().unwrap_or_else(|| self.insert(lack))
    }

    /// A scheduler's stream ends or begins: if it watches the rooms another one does from now on, or the same one anew.
    pub(super) fn forget_rooms_of(&mut self, idx: usize) {
        if self.watcher == Some(idx) {
            self.watcher = None;
            self.forget_statements();
            self.recount_rooms();
        }
    }

    /// Calls were answered, or more was said: every room may have other places now.
    fn touch_all(&mut self) {
        for (idx, room) in (0u32..).zip(&self.all) {
            if room.as_ref().is_some_and(|room| room.statement.is_some_and(|one| one.places > 0)) {
                self.touched.insert(RoomIdx(idx));
            }
        }
    }

    /// Opens rooms that have places, shuts the others. Returns units that may find victims where those of their need that
    /// schedulers have could not.
    pub(super) fn follow_rooms(&mut self, assignments: &mut Assignments, read: Revision) -> Vec<UnitId> {
        let Assignments { units, queueing: Queueing { queues, .. }, schedulers, .. } = assignments;
        self.take_statements(read);
        self.touched.append(&mut queues.take_touched());
        if self.is_empty() {
            return Vec::new();
        }
        let attached = |one: &SchedulerEntry| one.session.is_some();
        if self.watcher.is_none() {
            self.watcher = schedulers.all.iter().position(attached);
        }
        self.forget_answered(units);
        // A scout that found its place leaves nobody who watches: the next one goes.
        let back: Vec<RoomIdx> =
            self.scouting.iter().copied().filter(|idx| self.scout_of(*idx, units).is_none()).collect();
        for idx in back {
            self.scouting.remove(&idx);
            self.touched.insert(idx);
        }
        let mut seekers = Vec::new();
        while let Some(idx) = self.touched.pop_first() {
            if queues.rooms().n_lacking(idx) == 0 && self.scout_of(idx, units).is_none() {
                queues.set_open(idx, false);
                self.remove(idx);
                continue;
            }
            seekers.extend(self.follow_room(idx, units, queues));
        }
        seekers
    }

    fn follow_room(&mut self, idx: RoomIdx, units: &Units, queues: &mut Queues) -> Option<UnitId> {
        let highest = self.highest_watched(idx, queues);
        let scout = self.scout_of(idx, units);
        let left = self.places_left(idx);
        let room = self.get_mut(idx)?;
        (room.scout, room.left) = (scout, left);
        let is_open = if highest.is_some() { left > 0 } else { scout.is_none() };
        queues.set_open(idx, is_open && self.watcher.is_some());
        let (priority, unit) = queues.rooms().first_unheld(idx)?;
        highest.is_some_and(|highest| priority > highest).then_some(unit)
    }

    /// The highest priority of a room's units that its watcher has.
    fn highest_watched(&self, idx: RoomIdx, queues: &Queues) -> Option<i32> {
        let watcher = self.watcher?;
        let of_watcher = |(scheduler, _): &(u32, i32)| usize::try_from(*scheduler) == Ok(watcher);
        queues.rooms().holders(idx).find(of_watcher).map(|(_, priority)| priority)
    }

    /// The unit that went out to find a watcher, while it is out.
    pub(super) fn scout_of(&self, idx: RoomIdx, units: &Units) -> Option<UnitId> {
        let scout = self.get(idx)?.scout?;
        let is_out = match units.place(scout) {
            Some(Whereabouts::Dispatched(held)) => held.parked.is_none() && held.done_at.is_none(),
            // What its queue is too full for, or nobody has any more, tells nothing.
            _ => false,
        };
        is_out.then_some(scout)
    }

    /// Calls are over once their units are placed, parked or no longer with their schedulers.
    fn forget_answered(&mut self, units: &Units) {
        let is_out = |call: &Call| match units.place(call.unit) {
            Some(Whereabouts::Dispatched(held)) => {
                held.scheduler == call.scheduler && held.parked.is_none() && held.done_at.is_none()
            }
            _ => false,
        };
        let n_calls = self.calls.len();
        self.calls.retain(is_out);
        if self.calls.len() < n_calls {
            self.touch_all();
        }
    }

    /// What is to be done with the unit whose turn it is, which was taken out of its queue.
    pub(super) fn way_of(
        &self,
        unit: UnitId,
        room: RoomIdx,
        assignments: &Assignments,
        by_labels: bool,
    ) -> Way {
        if self.is_empty() {
            return Way::Any;
        }
        let Some(entry) = assignments.units.get(unit) else { return Way::Any };
        let queueing = &assignments.queueing;
        if room == RoomIdx::NONE {
            return self.way_of_fresh(entry, queueing, by_labels);
        }
        let Some(watcher) = self.watcher else { return Way::Later };
        let is_elsewhere = matches!(&entry.place, Whereabouts::Dispatched(held) if held.scheduler != watcher);
        let scheduler = &assignments.schedulers.all[watcher];
        // What a scheduler has stays with it while its lease lasts, whether its stream is open or not.
        if is_elsewhere || scheduler.session.is_none() || scheduler.credits <= 0 {
            Way::Later
        } else if self.highest_watched(room, &queueing.queues).is_some()
            || matches!(entry.place, Whereabouts::Dispatched(_))
        {
            Way::Called(watcher)
        } else {
            Way::Scout(watcher)
        }
    }

    /// One that nothing is known of joins those who lack the same, unless it may find victims that they did not.
    fn way_of_fresh(&self, entry: &UnitEntry, queueing: &Queueing, by_labels: bool) -> Way {
        if !entry.tried.is_empty() {
            // It goes through the partitions, of which the rest have yet to be asked.
            return Way::Any;
        }
        let rooms = self.of_lack(&lack_of(entry, queueing, by_labels));
        let Some(room) = rooms.first().copied() else { return Way::Any };
        let highest = rooms.iter().filter_map(|room| self.highest_watched(*room, &queueing.queues)).max();
        let is_above = highest.is_some_and(|highest| queueing.classes.priority(&entry.record.spec) > highest);
        if is_above { Way::Any } else { Way::Joined(room) }
    }

    /// A unit waits with those who lack the same, without having been handed out.
    pub(super) fn join(
        &self,
        unit: UnitId,
        room: RoomIdx,
        assignments: &mut Assignments,
        gangs: &mut Gangs,
        now: Millis,
    ) {
        let refusals = self.get(room).and_then(|room| room.refusals.clone());
        let Some(entry) = assignments.units.get_mut(unit) else { return };
        let mut waiting = entry.waiting(entry.was_placed(), &assignments.queueing.classes);
        waiting.room = room;
        entry.place = Whereabouts::Queued(waiting);
        entry.refusals = refusals.or(entry.refusals.take());
        if entry.record.spec.min_member > 1 {
            gangs.note(unit, now);
        }
        assignments.queueing.queues.push(waiting);
        assignments.refresh_ends(unit, now);
    }

    /// A unit of a room was handed to a scheduler, as number `seq` of its stream.
    pub(super) fn note_out(&mut self, unit: UnitId, room: RoomIdx, way: Way, seq: u64, queues: &mut Queues) {
        if let Way::Called(_) = way {
            let given = self.calls.iter_mut().filter(|call| call.unit == unit && call.seq == u64::MAX);
            given.for_each(|call| call.seq = seq);
            return;
        }
        let Some(known) = self.get_mut(room) else { return };
        known.scout = Some(unit);
        self.scouting.insert(room);
        queues.set_open(room, false);
    }

    /// Whether what comes free is shared out among several queues or bands, or several owners of one: others wait for room as well, or are trying
    /// what they were given.
    pub(super) fn is_contested(&self, queue: QueueIdx, band: Band, room: RoomIdx, queues: &Queues) -> bool {
        queues.is_contested(queue, band)
            || self.calls.iter().any(|call| (call.queue, call.band) != (queue, band))
            || self.scouting.iter().any(|scouted| *scouted != room)
    }

    /// How many places of a room are to be given out, and whether those who wait for it need theirs together.
    pub(super) fn places_of(&self, room: RoomIdx) -> (u64, bool) {
        self.get(room).map_or((0, false), |room| (room.left, room.lack.together > 0))
    }

    /// A unit that is about to be called gets `n` places of its room, beside those that it got before: nobody else draws them.
    pub(super) fn give(
        &mut self,
        entry: &UnitEntry,
        waiting: &Waiting,
        scheduler: usize,
        n: u32,
        queues: &mut Queues,
    ) {
        let Waiting { unit, queue, band, room, .. } = *waiting;
        let pool = entry.record.spec.pool;
        let Some(known) = self.get_mut(room) else { return };
        known.gave = true;
        let of = known.left;
        // What must be placed together may take all that there is.
        let n = if known.lack.together > 0 { of } else { u64::from(n).min(of) };
        let call = Call { unit, scheduler, seq: u64::MAX, room, queue, band, pool, n, of };
        match self.calls.iter_mut().find(|call| call.unit == unit && call.seq == u64::MAX) {
            Some(begun) => begun.n += n,
            None => self.calls.push(call),
        }
        let mut shut = Vec::new();
        for (idx, other) in (0u32..).map(RoomIdx).zip(&mut self.all) {
            let Some(other) =
                other.as_mut().filter(|other| other.left > 0 && other.lack.like.spec.pool == pool)
            else {
                continue;
            };
            other.left = other.left.saturating_sub(call.cost(idx, other.left, of));
            if other.left == 0 {
                shut.push(idx);
            }
        }
        shut.into_iter().for_each(|idx| queues.set_open(idx, false));
    }

    /// A scheduler takes something: rooms that it watches may be open again.
    pub(super) fn feed(&mut self, scheduler: usize) {
        if self.watcher == Some(scheduler) {
            self.recount_rooms();
        }
    }

    /// While units that were called are with the watcher, others that could take their places go there too, after them.
    pub(super) fn behind(&self, unit: UnitId, units: &Units) -> Option<usize> {
        if self.calls.is_empty() {
            return None;
        }
        let pool = units.get(unit)?.record.spec.pool;
        self.calls.iter().any(|call| call.pool == pool).then_some(self.watcher?)
    }

    /// Who tries units that wait for room though nobody says that there is some.
    pub(super) fn ready_watcher(&self, schedulers: &Schedulers) -> Option<usize> {
        let idx = self.watcher?;
        let watcher = &schedulers.all[idx];
        (watcher.session.is_some() && watcher.credits > 0).then_some(idx)
    }

    /// Everything about rooms is looked at again.
    pub(super) fn recount_rooms(&mut self) {
        let all = (0u32..).zip(&self.all).filter(|(_, room)| room.is_some());
        self.touched.extend(all.map(|(idx, _)| RoomIdx(idx)));
    }
}
