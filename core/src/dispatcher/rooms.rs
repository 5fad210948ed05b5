//! Room on nodes is given out in the order of queues: see ADR 0018.
//!
//! A unit that found no place on any node waits in its lane again, in a class of those that lack the same (a *room*, see
//! [`crate::queue::RoomIdx`]); units of the same need join it without being handed out. Schedulers that have some of them
//! state how many places there are now. The room is open for so many: its units are *called* in the order of all that waits,
//! and what is called takes off what other rooms may draw from the same nodes, until that is counted by a newer statement.
//! A room of which no scheduler has a unit is open for one try, which tells who watches it.
//!
//! Nothing survives a restart: a new leader hears from schedulers what they have parked.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::{Dispatcher, Entry, Place, SessionId};
use crate::{
    demand::Pool,
    explain::Refusals,
    ids::UnitId,
    queue::{QueueIdx, RoomIdx},
    scheduler::RoomReport,
    time::Millis,
    unit::UnitSpec,
};

/// Rooms by number.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// The first one is nobody's.
    all: Vec<Option<Room>>,
    free: Vec<RoomIdx>,
    by_hash: FxHashMap<u64, SmallVec<[RoomIdx; 1]>>,
    /// By scheduler and its number of the need.
    by_need: BTreeMap<(usize, u64), SmallVec<[RoomIdx; 1]>>,
    /// Called and not answered yet.
    calls: Vec<Call>,
    /// Something about them has changed since the last look.
    touched: BTreeSet<RoomIdx>,
}

/// What some units lack.
#[derive(Debug)]
struct Room {
    lack: Lack,
    hash: u64,
    /// Of the last try.
    refusals: Option<Arc<Refusals>>,
    /// What schedulers say of it.
    statements: BTreeMap<usize, Statement>,
    /// Who calls: its statement counts.
    watcher: Option<usize>,
    /// Places to be given out.
    left: u64,
    /// On its way to a scheduler, which will watch the room if it parks there.
    scout: Option<UnitId>,
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
    /// Number of the assignment in its stream.
    seq: u64,
    room: RoomIdx,
    pool: Pool,
    /// Places that it takes of its own room, and how many that had.
    n: u64,
    of: u64,
}

impl Call {
    /// What it takes of a room with so many places: the same part as of its own.
    fn cost(&self, room: RoomIdx, places: u64) -> u64 {
        if room == self.room { self.n } else { (self.n * places).div_ceil(self.of.max(1)) }
    }
}

/// What a unit lacks: everything that the answer of all nodes depends on.
#[derive(Debug)]
pub(super) struct Lack {
    like: Arc<UnitSpec>,
    /// Running units that must be placed together; 0 when any one would do.
    together: u32,
    /// Task groups of `like`, with the running units pending of each; 0 where any one would do.
    groups: SmallVec<[(usize, u32); 1]>,
    /// Where those of one queue may have to leave for those of another.
    queue: Option<QueueIdx>,
    /// Slots of reservations go by labels.
    has_reservations: bool,
}

impl Lack {
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (self.together, self.queue, self.like.pool, self.like.active_deadline_ms).hash(&mut hasher);
        for (group, n) in &self.groups {
            let template = &self.like.task_groups[*group].template;
            (n, &template.demand, &template.node_selector, &template.tolerations).hash(&mut hasher);
        }
        if self.has_reservations {
            (&self.like.namespace, &self.like.labels).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl PartialEq for Lack {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.like, &other.like);
        let same_group = |(one, two): (&(usize, u32), &(usize, u32))| {
            let (x, y) = (&a.task_groups[one.0].template, &b.task_groups[two.0].template);
            one.1 == two.1
                && x.demand == y.demand
                && x.node_selector == y.node_selector
                && x.tolerations == y.tolerations
        };
        (self.together, self.queue, self.has_reservations)
            == (other.together, other.queue, other.has_reservations)
            && (a.pool, a.active_deadline_ms) == (b.pool, b.active_deadline_ms)
            && self.groups.len() == other.groups.len()
            && self.groups.iter().zip(&other.groups).all(same_group)
            && (!self.has_reservations || (&a.namespace, &a.labels) == (&b.namespace, &b.labels))
    }
}

impl Rooms {
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    fn get(&self, room: RoomIdx) -> Option<&Room> {
        self.all.get(room.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, room: RoomIdx) -> Option<&mut Room> {
        self.all.get_mut(room.0 as usize)?.as_mut()
    }

    pub(super) fn find(&self, lack: &Lack) -> Option<RoomIdx> {
        let same = |room: &&RoomIdx| self.get(**room).is_some_and(|room| room.lack == *lack);
        self.by_hash.get(&lack.hash())?.iter().find(same).copied()
    }

    fn intern(&mut self, lack: Lack) -> RoomIdx {
        if let Some(room) = self.find(&lack) {
            return room;
        }
        let hash = lack.hash();
        let fresh = Room {
            lack,
            hash,
            refusals: None,
            statements: BTreeMap::new(),
            watcher: None,
            left: 0,
            scout: None,
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
        for (scheduler, statement) in &room.statements {
            self.forget_need((*scheduler, statement.need), idx);
        }
        if let Some(same) = self.by_hash.get_mut(&room.hash) {
            same.retain(|one| *one != idx);
            if same.is_empty() {
                self.by_hash.remove(&room.hash);
            }
        }
        self.calls.retain(|call| call.room != idx);
        self.free.push(idx);
    }

    fn forget_need(&mut self, need: (usize, u64), idx: RoomIdx) {
        if let Some(rooms) = self.by_need.get_mut(&need) {
            rooms.retain(|one| *one != idx);
            if rooms.is_empty() {
                self.by_need.remove(&need);
            }
        }
    }

    /// A scheduler asked all nodes and has parked a unit. `was_called`: it was told that there is room.
    fn note_parked(
        &mut self,
        idx: RoomIdx,
        (scheduler, need): (usize, u64),
        refusals: Option<Arc<Refusals>>,
        was_called: bool,
    ) {
        self.touched.insert(idx);
        let Some(room) = self.get_mut(idx) else { return };
        if refusals.is_some() {
            room.refusals = refusals;
        }
        let statement =
            room.statements.entry(scheduler).or_insert(Statement { need, ..Statement::default() });
        let before = statement.need;
        if was_called || before != need {
            *statement = Statement { need, places: 0, ..*statement };
        }
        if before != need {
            self.forget_need((scheduler, before), idx);
        }
        let rooms = self.by_need.entry((scheduler, need)).or_default();
        if !rooms.contains(&idx) {
            rooms.push(idx);
        }
    }

    fn note_places(&mut self, scheduler: usize, report: &RoomReport) {
        for idx in self.by_need.get(&(scheduler, report.need)).cloned().unwrap_or_default() {
            self.touched.insert(idx);
            if let Some(room) = self.get_mut(idx) {
                let RoomReport { need, places, assigned } = *report;
                room.statements.insert(scheduler, Statement { need, places, assigned });
            }
        }
    }

    /// What a scheduler said counts no longer.
    fn forget_scheduler(&mut self, scheduler: usize) {
        let needs: Vec<_> =
            self.by_need.range((scheduler, 0)..=(scheduler, u64::MAX)).map(|(need, _)| *need).collect();
        for need in needs {
            for idx in self.by_need.remove(&need).unwrap_or_default() {
                self.touched.insert(idx);
                if let Some(room) = self.get_mut(idx) {
                    room.statements.remove(&scheduler);
                }
            }
        }
        self.calls.retain(|call| call.scheduler != scheduler);
    }

    /// Places of a room less what was called since they were counted.
    fn places_left(&self, idx: RoomIdx) -> u64 {
        let Some(room) = self.get(idx) else { return 0 };
        let Some((watcher, statement)) =
            room.watcher.and_then(|watcher| Some((watcher, room.statements.get(&watcher)?)))
        else {
            return 0;
        };
        let places = u64::from(statement.places);
        let is_counted = |call: &Call| call.scheduler == watcher && call.seq <= statement.assigned;
        let pool = room.lack.like.pool;
        let open = self.calls.iter().filter(|call| call.pool == pool && !is_counted(call));
        open.fold(places, |left, call| left.saturating_sub(call.cost(idx, places)))
    }

    /// The one scheduler that called units are with, if it is one.
    fn busy(&self, pool: Pool) -> Option<usize> {
        let mut schedulers = self.calls.iter().filter(|call| call.pool == pool).map(|call| call.scheduler);
        let first = schedulers.next()?;
        schedulers.all(|other| other == first).then_some(first)
    }
}

/// What is to be done with a unit that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Any scheduler may try it.
    Any,
    /// Any scheduler may try it on all nodes, and watches its room if it finds no place.
    Scout,
    /// There is room for it, says the scheduler that is to try it.
    Called(usize),
    /// It waits with those who lack the same.
    Joined(RoomIdx),
    /// Its scheduler takes nothing now.
    Later,
}

impl Dispatcher {
    /// A scheduler says how much room there is for what it has parked.
    pub fn on_rooms(&mut self, session: SessionId, reports: &[RoomReport]) {
        let Some(idx) = self.schedulers.of_session(session) else { return };
        reports.iter().for_each(|report| self.rooms.note_places(idx, report));
    }

    /// A unit found no place on any node: it waits for room, in its place among all that waits.
    pub(super) fn wait_for_room(
        &mut self,
        unit: UnitId,
        (scheduler, need): (usize, u64),
        refusals: Option<Arc<Refusals>>,
    ) {
        let was_called = self.rooms.calls.iter().any(|call| call.unit == unit);
        self.rooms.calls.retain(|call| call.unit != unit);
        let Some(lack) = self.units.get(&unit).map(|entry| self.lack_of(entry)) else { return };
        let room = self.rooms.intern(lack);
        self.rooms.note_parked(room, (scheduler, need), refusals, was_called);
        let Some(entry) = self.units.get_mut(&unit) else { return };
        let mut waiting = entry.waiting(entry.was_placed(), &self.classes);
        (waiting.room, waiting.held_by) = (room, u32::try_from(scheduler).ok());
        if let Place::Held(held) = &mut entry.place {
            if let Some(old) = held.parked.replace(waiting) {
                self.queues.remove(&old);
            }
            self.queues.push(waiting);
        }
        self.touch_all();
    }

    /// What a unit lacks if it finds no place.
    fn lack_of(&self, entry: &Entry) -> Lack {
        let spec = &entry.spec;
        let together = if entry.was_placed() || spec.min_member <= 1 { 0 } else { spec.min_member };
        let count = |group: usize| if together > 0 { entry.n_pending(group) } else { 0 };
        let all = || (0..spec.task_groups.len()).map(|group| (group, count(group)));
        let mut groups: SmallVec<[(usize, u32); 1]> =
            all().filter(|(group, _)| entry.n_pending(*group) > 0).collect();
        if groups.is_empty() {
            groups = all().collect();
        }
        let queue = self.quota().usage().has_guarantees().then_some(entry.account.queue);
        let has_reservations = !self.reservations.specs.is_empty();
        Lack { like: Arc::clone(spec), together, groups, queue, has_reservations }
    }

    /// A scheduler's stream ends or begins: what it said of room does not count. What it had parked waits on, for others.
    pub(super) fn forget_rooms_of(&mut self, idx: usize) {
        self.rooms.forget_scheduler(idx);
        self.recount_rooms();
    }

    /// Calls were answered, or more was said: every room may have other places now.
    fn touch_all(&mut self) {
        for (idx, room) in (0u32..).zip(&self.rooms.all) {
            if room.as_ref().is_some_and(|room| room.statements.values().any(|one| one.places > 0)) {
                self.rooms.touched.insert(RoomIdx(idx));
            }
        }
    }

    /// Opens rooms that have places, shuts the others. Returns units that may find victims where those of their need that
    /// schedulers have could not.
    pub(super) fn follow_rooms(&mut self) -> Vec<UnitId> {
        self.rooms.touched.append(&mut self.queues.take_touched());
        if self.rooms.is_empty() {
            return Vec::new();
        }
        self.forget_answered();
        let mut seekers = Vec::new();
        while let Some(idx) = self.rooms.touched.pop_first() {
            if self.queues.n_lacking(idx) == 0 && self.scout_of(idx).is_none() {
                self.queues.set_open(idx, false);
                self.rooms.remove(idx);
                continue;
            }
            seekers.extend(self.follow_room(idx));
        }
        seekers
    }

    fn follow_room(&mut self, idx: RoomIdx) -> Option<UnitId> {
        let attached = |scheduler: &usize| self.schedulers.all[*scheduler].session.is_some();
        let holders: SmallVec<[(usize, i32); 4]> =
            self.queues.holders(idx).map(|(scheduler, priority)| (scheduler as usize, priority)).collect();
        let highest = holders.iter().filter(|(one, _)| attached(one)).map(|(_, priority)| *priority).max();
        let scout = self.scout_of(idx);
        let room = self.rooms.get_mut(idx)?;
        room.scout = scout;
        let knows = |one: &usize| room.statements.contains_key(one) && attached(one);
        room.watcher = holders.iter().map(|(one, _)| *one).find(knows);
        let is_watched = highest.is_some();
        let left = self.rooms.places_left(idx);
        if let Some(room) = self.rooms.get_mut(idx) {
            room.left = left;
        }
        self.queues.set_open(idx, if is_watched { left > 0 } else { scout.is_none() });
        let (priority, unit) = self.queues.first_unheld(idx)?;
        highest.is_some_and(|highest| priority > highest).then_some(unit)
    }

    /// The unit that went out to find a watcher, while it is out.
    pub(super) fn scout_of(&self, idx: RoomIdx) -> Option<UnitId> {
        let scout = self.rooms.get(idx)?.scout?;
        let is_out = match self.units.get(&scout).map(|entry| &entry.place) {
            Some(Place::Held(held)) => held.parked.is_none() && held.done_at.is_none(),
            Some(Place::Queued(waiting)) => waiting.room == RoomIdx::NONE,
            _ => false,
        };
        is_out.then_some(scout)
    }

    /// Calls are over once their units are placed, parked or no longer with their schedulers.
    fn forget_answered(&mut self) {
        let units = &self.units;
        let is_out = |call: &Call| match units.get(&call.unit).map(|entry| &entry.place) {
            Some(Place::Held(held)) => {
                held.scheduler == call.scheduler && held.parked.is_none() && held.done_at.is_none()
            }
            _ => false,
        };
        let n_calls = self.rooms.calls.len();
        self.rooms.calls.retain(is_out);
        if self.rooms.calls.len() < n_calls {
            self.touch_all();
        }
    }

    /// What is to be done with the unit whose turn it is, which was taken out of its queue.
    pub(super) fn way_of(&mut self, unit: UnitId, room: RoomIdx) -> Way {
        if self.rooms.is_empty() {
            return Way::Any;
        }
        let Some(entry) = self.units.get(&unit) else { return Way::Any };
        if room == RoomIdx::NONE {
            return self.way_of_fresh(entry);
        }
        let Some(known) = self.rooms.get(room) else { return Way::Any };
        let held_by = match &entry.place {
            Place::Held(held) => Some(held.scheduler),
            _ => None,
        };
        let Some(idx) = held_by.or(known.watcher) else { return Way::Scout };
        // What a scheduler has stays with it while its lease lasts, whether its stream is open or not.
        let scheduler = &self.schedulers.all[idx];
        if scheduler.session.is_some() && scheduler.credits > 0 { Way::Called(idx) } else { Way::Later }
    }

    /// One that nothing is known of joins those who lack the same, unless it may find victims that they did not.
    fn way_of_fresh(&self, entry: &Entry) -> Way {
        let room = self.rooms.find(&self.lack_of(entry));
        let Some(room) = room else { return Way::Any };
        let is_scout = self.rooms.get(room).is_some_and(|known| known.scout == Some(entry.spec.id));
        let highest = self.queues.holders(room).map(|(_, priority)| priority).max();
        let priority = self.classes.priority(&entry.spec);
        if is_scout || highest.is_none_or(|highest| priority > highest) && self.is_watched_or_free(room) {
            Way::Any
        } else {
            Way::Joined(room)
        }
    }

    /// Somebody watches a room, or nobody is on the way to.
    fn is_watched_or_free(&self, room: RoomIdx) -> bool {
        let is_held = self.queues.holders(room).next().is_some();
        is_held || self.scout_of(room).is_none()
    }

    /// A unit waits with those who lack the same, without having been handed out.
    pub(super) fn join(&mut self, unit: UnitId, room: RoomIdx, now: Millis) {
        let refusals = self.rooms.get(room).and_then(|room| room.refusals.clone());
        let Some(entry) = self.units.get_mut(&unit) else { return };
        let mut waiting = entry.waiting(entry.was_placed(), &self.classes);
        waiting.room = room;
        entry.place = Place::Queued(waiting);
        entry.refusals = refusals.or(entry.refusals.take());
        if entry.spec.min_member > 1 {
            self.gangs.note(unit, now);
        }
        self.queues.push(waiting);
        self.refresh_ends(unit, now);
    }

    /// A unit of a room was handed to a scheduler, as number `seq` of its stream.
    pub(super) fn note_out(&mut self, unit: UnitId, room: RoomIdx, way: Way, seq: u64) {
        let Some(entry) = self.units.get(&unit) else { return };
        let (n, pool) = (u64::from(entry.to_place()), entry.spec.pool);
        let Some(known) = self.rooms.get_mut(room) else { return };
        let Way::Called(scheduler) = way else {
            known.scout = Some(unit);
            self.rooms.touched.insert(room);
            self.queues.set_open(room, false);
            return;
        };
        let of = known.left;
        // What must be placed together may take all that there is.
        let n = if known.lack.together > 0 { of } else { n.min(of) };
        let call = Call { unit, scheduler, seq, room, pool, n, of };
        self.rooms.calls.push(call);
        let mut shut = Vec::new();
        for (idx, other) in (0u32..).map(RoomIdx).zip(&mut self.rooms.all) {
            let Some(other) = other.as_mut().filter(|other| other.left > 0 && other.lack.like.pool == pool)
            else {
                continue;
            };
            other.left = other.left.saturating_sub(call.cost(idx, other.left));
            if other.left == 0 {
                shut.push(idx);
            }
        }
        shut.into_iter().for_each(|idx| self.queues.set_open(idx, false));
    }

    /// A scheduler that is to try units of a room takes nothing now: they wait until it says that it does.
    pub(super) fn starve(&mut self, room: RoomIdx) {
        self.queues.set_open(room, false);
    }

    /// A scheduler takes something: rooms that it watches may be open again.
    pub(super) fn feed(&mut self, scheduler: usize) {
        for (idx, room) in (0u32..).map(RoomIdx).zip(&self.rooms.all) {
            if room.as_ref().is_some_and(|room| room.watcher == Some(scheduler)) {
                self.rooms.touched.insert(idx);
            }
        }
    }

    /// While units that were called are with one scheduler, others that could take their places go there too, after them.
    pub(super) fn behind(&self, unit: UnitId) -> Option<usize> {
        if self.rooms.calls.is_empty() {
            return None;
        }
        self.rooms.busy(self.units.get(&unit)?.spec.pool)
    }

    /// Everything about rooms is looked at again.
    pub(super) fn recount_rooms(&mut self) {
        let all = (0u32..).zip(&self.rooms.all).filter(|(_, room)| room.is_some());
        self.rooms.touched.extend(all.map(|(idx, _)| RoomIdx(idx)));
    }

    /// Whether no unit of a room is served now.
    pub(super) fn is_without_room(&self, room: RoomIdx) -> bool {
        room != RoomIdx::NONE && !self.queues.is_open(room)
    }
}
