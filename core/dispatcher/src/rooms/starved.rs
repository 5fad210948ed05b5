//! Rooms that have no place to give out, while others are bound whose turn comes later.

use godel_base::time::Millis;
use godel_queueing::RoomIdx;
use smallvec::SmallVec;

use super::{RoomEntry, Rooms};

impl Rooms {
    /// Rooms of units that are placed one by one, without a place to give out: at most `n_max` rooms are looked at, from `next` on.
    pub(crate) fn starvable(&self, next: &mut usize, n_max: usize) -> SmallVec<[RoomIdx; 16]> {
        let n_all = self.all.len();
        let begin = if *next < n_all { *next } else { 0 };
        let end = begin + n_max.min(n_all);
        *next = end;
        let of_one = |room: &RoomEntry| room.lack.together == 0 && room.left == 0;
        let looked = (begin..end).map(|at| at % n_all.max(1));
        let starvable = looked.filter(|at| self.all[*at].as_ref().is_some_and(of_one));
        starvable.filter_map(|at| u32::try_from(at).ok().map(RoomIdx)).collect()
    }

    /// Whether a room has given out a place since this was asked last.
    pub(crate) fn take_gave(&mut self, room: RoomIdx) -> bool {
        self.get_mut(room).is_some_and(|room| std::mem::take(&mut room.gave))
    }

    /// Somebody was bound before the first unit of a room, or nobody is any more. Returns since when that is so.
    pub(crate) fn note_passed(&mut self, room: RoomIdx, is_passed: bool, now: Millis) -> Option<Millis> {
        let room = self.get_mut(room)?;
        room.passed_since = is_passed.then(|| room.passed_since.unwrap_or(now));
        room.passed_since
    }
}
