//! Units that wait for room on nodes: classes that are shut until there is some.
//!
//! A unit that found no place waits in its lane as any other one does, in a class of those that lack the same. While the
//! class is shut nothing of it is served, and it costs nothing; while it is open its units are served in the order of all
//! that waits. Who lacks what, and when there is room, is the dispatcher's business. Opening and shutting cost
//! `O(lanes × log)`: one member of each heap from a lane upwards that has units of the class.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use godel_base::ids::UnitId;
use godel_domain::queue_spec::Band;

use super::{leaf::ClassRef, order::Waiting, tree::QueueIdx};

/// What units lack that found no place, interned by the dispatcher; the default: nothing is known to be lacking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomIdx(pub u32);

impl RoomIdx {
    /// Nothing is known to be lacking.
    pub const NONE: Self = Self(0);
}

/// Those who lack the same.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    /// Their classes.
    spots: BTreeSet<(QueueIdx, ClassRef)>,
    is_open: bool,
    n_units: usize,
    /// Those that no scheduler has, the highest priority first.
    unheld: BTreeSet<(Reverse<i32>, UnitId)>,
    /// Those that schedulers have, by scheduler.
    held: BTreeMap<u32, BTreeSet<(Reverse<i32>, UnitId)>>,
}

impl Lacking {
    fn enter(&mut self, waiting: &Waiting) {
        let key = (Reverse(waiting.priority), waiting.unit);
        self.n_units += 1;
        match waiting.held_by {
            Some(scheduler) => self.held.entry(scheduler).or_default().insert(key),
            None => self.unheld.insert(key),
        };
    }

    fn remove(&mut self, waiting: &Waiting) {
        let key = (Reverse(waiting.priority), waiting.unit);
        self.n_units -= 1;
        match waiting.held_by {
            Some(scheduler) => {
                if let Some(held) = self.held.get_mut(&scheduler) {
                    held.remove(&key);
                    if held.is_empty() {
                        self.held.remove(&scheduler);
                    }
                }
            }
            None => {
                self.unheld.remove(&key);
            }
        }
    }

    fn note_class(&mut self, queue: QueueIdx, spot: ClassRef) {
        self.spots.insert((queue, spot));
    }

    fn forget_class(&mut self, queue: QueueIdx, spot: ClassRef) {
        self.spots.remove(&(queue, spot));
    }
}

/// By room, who waits for it.
#[derive(Debug, Default)]
pub struct RoomWaits {
    lacking: Vec<Lacking>,
    /// Rooms for which somebody began or ended to wait.
    touched: BTreeSet<RoomIdx>,
    /// How many units wait for room, by queue and band.
    by_queue: BTreeMap<(QueueIdx, Band), usize>,
}

impl RoomWaits {
    /// Opens or shuts a room. Returns its classes, none if the room was open or shut before.
    pub(super) fn set_open(&mut self, room: RoomIdx, is_open: bool) -> Vec<(QueueIdx, ClassRef)> {
        let Some(lacking) = self.lacking.get_mut(room.0 as usize) else { return Vec::new() };
        if std::mem::replace(&mut lacking.is_open, is_open) == is_open {
            return Vec::new();
        }
        lacking.spots.iter().copied().collect()
    }

    /// Takes the rooms for which somebody began or ended to wait.
    pub(super) fn take_touched(&mut self) -> BTreeSet<RoomIdx> {
        std::mem::take(&mut self.touched)
    }

    /// Units of a room are served.
    pub fn is_open(&self, room: RoomIdx) -> bool {
        room == RoomIdx::NONE || self.get(room).is_some_and(|lacking| lacking.is_open)
    }

    /// Units that wait for a room.
    pub fn n_lacking(&self, room: RoomIdx) -> usize {
        self.get(room).map_or(0, |lacking| lacking.n_units)
    }

    /// Classes of those that wait for a room.
    pub(super) fn spots(&self, room: RoomIdx) -> impl Iterator<Item = &(QueueIdx, ClassRef)> {
        self.get(room).into_iter().flat_map(|lacking| &lacking.spots)
    }

    /// Units that wait for room and that no scheduler has. `O(rooms)`.
    pub fn n_unheld(&self) -> usize {
        self.lacking.iter().map(|lacking| lacking.unheld.len()).sum()
    }

    /// The unit of highest priority that waits for a room and that no scheduler has.
    pub fn first_unheld(&self, room: RoomIdx) -> Option<(i32, UnitId)> {
        let (Reverse(priority), unit) = *self.get(room)?.unheld.first()?;
        Some((priority, unit))
    }

    /// Schedulers that have units that wait for a room, ascending, with the highest priority of these.
    pub fn holders(&self, room: RoomIdx) -> impl Iterator<Item = (u32, i32)> {
        let held = self.get(room).into_iter().flat_map(|lacking| &lacking.held);
        held.filter_map(|(scheduler, units)| Some((*scheduler, units.first()?.0.0)))
    }

    fn get(&self, room: RoomIdx) -> Option<&Lacking> {
        self.lacking.get(room.0 as usize)
    }

    /// Units of another queue or band wait for room.
    pub(super) fn has_others(&self, queue: QueueIdx, band: Band) -> bool {
        self.by_queue.keys().any(|other| *other != (queue, band))
    }

    /// A unit waits for room, in place of another one or not.
    pub(super) fn enter(&mut self, waiting: &Waiting, old: Option<&Waiting>, spot: ClassRef) {
        if old.is_none() {
            *self.by_queue.entry((waiting.queue, waiting.band)).or_default() += 1;
        }
        let lacking = self.touch(waiting.room);
        old.into_iter().for_each(|old| lacking.remove(old));
        lacking.enter(waiting);
        lacking.note_class(waiting.queue, spot);
    }

    /// A unit waits for room no longer; `is_last`: it was the last one of its class.
    pub(super) fn remove(&mut self, waiting: &Waiting, spot: ClassRef, is_last: bool) {
        let of = (waiting.queue, waiting.band);
        if let Some(n) = self.by_queue.get_mut(&of) {
            *n -= 1;
            if *n == 0 {
                self.by_queue.remove(&of);
            }
        }
        let lacking = self.touch(waiting.room);
        lacking.remove(waiting);
        if is_last {
            lacking.forget_class(waiting.queue, spot);
        }
    }

    /// Somebody begins or ends to wait for a room.
    fn touch(&mut self, room: RoomIdx) -> &mut Lacking {
        let idx = room.0 as usize;
        self.touched.insert(room);
        if self.lacking.len() <= idx {
            self.lacking.resize_with(idx + 1, Lacking::default);
        }
        &mut self.lacking[idx]
    }
}
