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

use godel_domain::ids::UnitId;

use super::{
    leaf::ClassRef,
    order::{Queues, Waiting},
    tree::QueueIdx,
};

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
    pub(super) is_open: bool,
    n_units: usize,
    /// Those that no scheduler has, the highest priority first.
    unheld: BTreeSet<(Reverse<i32>, UnitId)>,
    /// Those that schedulers have, by scheduler.
    held: BTreeMap<u32, BTreeSet<(Reverse<i32>, UnitId)>>,
}

impl Lacking {
    pub(super) fn enter(&mut self, waiting: &Waiting) {
        let key = (Reverse(waiting.priority), waiting.unit);
        self.n_units += 1;
        match waiting.held_by {
            Some(scheduler) => self.held.entry(scheduler).or_default().insert(key),
            None => self.unheld.insert(key),
        };
    }

    pub(super) fn leave(&mut self, waiting: &Waiting) {
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

    pub(super) fn note_class(&mut self, queue: QueueIdx, spot: ClassRef) {
        self.spots.insert((queue, spot));
    }

    pub(super) fn forget_class(&mut self, queue: QueueIdx, spot: ClassRef) {
        self.spots.remove(&(queue, spot));
    }
}

impl Queues {
    /// Units of a room are served from now on, or are not.
    pub fn set_open(&mut self, room: RoomIdx, is_open: bool) {
        let Some(lacking) = self.rooms.get_mut(room.0 as usize) else { return };
        if std::mem::replace(&mut lacking.is_open, is_open) == is_open {
            return;
        }
        let spots: Vec<(QueueIdx, ClassRef)> = lacking.spots.iter().copied().collect();
        for (queue, spot) in spots {
            let leaf = &mut self.branches[queue.idx()].leaf;
            leaf.set_shut(spot, !is_open, self.quota.usage());
            let is_stalled = leaf.lane(spot.band, spot.seat).and_then(|lane| lane.stall);
            if is_open {
                if let Some(need) = leaf.ready_need(spot) {
                    self.entered(queue, spot.band, need);
                }
            } else {
                if is_stalled.is_some_and(|stall| stall.class == spot.class) {
                    self.set_stall(queue, spot, None);
                }
                self.deactivate(queue, spot.band);
            }
        }
    }

    /// Rooms for which somebody began or ended to wait since this was asked last.
    pub fn take_touched(&mut self) -> BTreeSet<RoomIdx> {
        std::mem::take(&mut self.touched)
    }

    /// Units of a room are served.
    pub fn is_open(&self, room: RoomIdx) -> bool {
        room == RoomIdx::NONE || self.lacking(room).is_some_and(|lacking| lacking.is_open)
    }

    /// Units that wait for a room.
    pub fn n_lacking(&self, room: RoomIdx) -> usize {
        self.lacking(room).map_or(0, |lacking| lacking.n_units)
    }

    /// Units that wait for room and that no scheduler has. `O(rooms)`.
    pub fn n_unheld(&self) -> usize {
        self.rooms.iter().map(|lacking| lacking.unheld.len()).sum()
    }

    /// The unit of highest priority that waits for a room and that no scheduler has.
    pub fn first_unheld(&self, room: RoomIdx) -> Option<(i32, UnitId)> {
        let (Reverse(priority), unit) = *self.lacking(room)?.unheld.first()?;
        Some((priority, unit))
    }

    /// Schedulers that have units that wait for a room, ascending, with the highest priority of these.
    pub fn holders(&self, room: RoomIdx) -> impl Iterator<Item = (u32, i32)> {
        let held = self.lacking(room).into_iter().flat_map(|lacking| &lacking.held);
        held.filter_map(|(scheduler, units)| Some((*scheduler, units.first()?.0.0)))
    }

    fn lacking(&self, room: RoomIdx) -> Option<&Lacking> {
        self.rooms.get(room.0 as usize)
    }

    pub(super) fn lacking_mut(&mut self, room: RoomIdx) -> &mut Lacking {
        let idx = room.0 as usize;
        self.touched.insert(room);
        if self.rooms.len() <= idx {
            self.rooms.resize_with(idx + 1, Lacking::default);
        }
        &mut self.rooms[idx]
    }
}
