//! The rooms of both pools: what each of them has, and what is taken of it.

use godel_domain::demand::Pool;

use super::{
    best_effort::BestEffort,
    charge::Charge,
    room::{Asks, DeviceRoom, Room},
    shapes::Shape,
};

/// The room of each pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolRooms {
    guaranteed: Room,
    /// There from the first best-effort demand on.
    best_effort: Option<Box<BestEffort>>,
}

impl PoolRooms {
    /// Returns the room of a pool. While nothing of best-effort is known it is the guaranteed one.
    #[inline]
    pub(crate) fn of(&self, pool: Pool) -> &Room {
        match (pool, &self.best_effort) {
            (Pool::BestEffort, Some(best_effort)) => &best_effort.room,
            (Pool::Guaranteed, _) | (Pool::BestEffort, None) => &self.guaranteed,
        }
    }

    /// Returns the room of the guaranteed pool.
    #[inline]
    pub(crate) fn guaranteed(&self) -> &Room {
        &self.guaranteed
    }

    /// Returns the best-effort pool, if anything of it is known.
    #[inline]
    pub(crate) fn best_effort(&self) -> Option<&BestEffort> {
        self.best_effort.as_deref()
    }

    /// Returns the best-effort pool, if anything of it is known.
    #[inline]
    pub(crate) fn best_effort_mut(&mut self) -> Option<&mut BestEffort> {
        self.best_effort.as_deref_mut()
    }

    /// The best-effort pool is this from now on.
    pub(crate) fn begin_best_effort(&mut self, best_effort: Box<BestEffort>) {
        self.best_effort = Some(best_effort);
    }

    /// Forgets the best-effort pool, to be begun again. Returns whether it was known.
    pub(crate) fn end_best_effort(&mut self) -> bool {
        self.best_effort.take().is_some()
    }

    /// Makes place for `n_nodes` nodes and `stride` resources; never shrinks.
    pub(crate) fn grow(&mut self, n_nodes: usize, stride: usize) {
        self.guaranteed.grow(n_nodes, stride);
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.grow(n_nodes, stride);
        }
    }

    /// Replaces what a node has; `amounts` by resource integer.
    pub(crate) fn set_allocatable(&mut self, idx: usize, amounts: &[(u8, i64)]) {
        for room in self.both_mut() {
            room.set_allocatable(idx, amounts);
        }
    }

    /// Devices of a node may be freer than before.
    pub(crate) fn raise_devices(&mut self, idx: usize, devices: DeviceRoom) {
        for room in self.both_mut() {
            room.raise_devices(idx, devices);
        }
    }

    /// Takes what a running unit asks for (`sign` 1), or gives it back (-1).
    #[inline]
    pub(crate) fn shift(&mut self, idx: usize, shape: &Shape, sign: i64) {
        if shape.pool == Pool::Guaranteed {
            self.guaranteed.shift(idx, &shape.asks, sign);
        }
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.room.shift(idx, &shape.asks, sign);
        }
    }

    /// Takes what a hold of a pool keeps (`sign` 1), or gives it back (-1); devices aside.
    pub(crate) fn shift_charge(&mut self, idx: usize, pool: Pool, charge: &Charge, sign: i64) {
        if pool == Pool::Guaranteed && !charge.asks.is_empty() {
            self.guaranteed.shift(idx, &charge.asks, sign);
        }
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.room.shift(idx, &charge.best_effort, sign);
        }
    }

    /// Takes what is gathered of one pool alone (`sign` 1), or gives it back (-1). Best-effort room is not kept from others
    /// for what a guaranteed gang gathers: who takes it leaves when that is bound.
    pub(crate) fn shift_gathered(&mut self, idx: usize, pool: Pool, asks: &Asks, sign: i64) {
        if let Some(room) = self.room_mut(pool) {
            room.shift(idx, asks, sign);
        }
    }

    /// Replaces what others are believed to have taken of a pool unseen.
    pub(crate) fn set_foreign(&mut self, idx: usize, pool: Pool, amounts: &[(u8, i64)]) {
        if let Some(room) = self.room_mut(pool) {
            room.set_foreign(idx, amounts);
        }
    }

    /// A running unit that was believed to be there became seen.
    pub(crate) fn consume_foreign(&mut self, idx: usize, shape: &Shape) {
        if shape.pool == Pool::Guaranteed {
            self.guaranteed.consume_foreign(idx, &shape.asks);
        }
        if let Some(best_effort) = &mut self.best_effort {
            best_effort.room.consume_foreign(idx, &shape.asks);
        }
    }

    /// Whether something unseen is believed of a node.
    #[inline]
    pub(crate) fn has_foreign(&self, idx: usize) -> bool {
        self.guaranteed.has_foreign(idx)
            || self.best_effort.as_ref().is_some_and(|best_effort| best_effort.room.has_foreign(idx))
    }

    /// Makes the bounds of a block exact, in the room of a pool.
    pub(crate) fn tighten(&mut self, block: usize, pool: Pool, devices: &[DeviceRoom]) {
        let room = match (pool, &mut self.best_effort) {
            (Pool::BestEffort, Some(best_effort)) => &mut best_effort.room,
            (Pool::Guaranteed, _) | (Pool::BestEffort, None) => &mut self.guaranteed,
        };
        room.tighten(block, |idx| devices[idx]);
    }

    fn both_mut(&mut self) -> impl Iterator<Item = &mut Room> {
        let best_effort = self.best_effort.as_mut().map(|best_effort| &mut best_effort.room);
        std::iter::once(&mut self.guaranteed).chain(best_effort)
    }

    fn room_mut(&mut self, pool: Pool) -> Option<&mut Room> {
        match pool {
            Pool::Guaranteed => Some(&mut self.guaranteed),
            Pool::BestEffort => self.best_effort.as_mut().map(|best_effort| &mut best_effort.room),
        }
    }
}
