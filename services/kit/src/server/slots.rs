//! Slots that clients share: a connection may hold as many as are free.
//!
//! One greedy connection gets half of them, two get a third each, and as many are left for whoever comes next.
//! A connection that holds none gets one as long as there is any.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A number of slots.
#[derive(Debug)]
pub(super) struct SlotPool {
    size: usize,
    used: AtomicUsize,
}

/// Slots of one [`SlotPool`] that one connection holds.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotShare(Arc<AtomicUsize>);

/// One slot, until it is dropped.
#[derive(Debug)]
pub(super) struct CallSlot {
    pool: Arc<SlotPool>,
    share: SlotShare,
}

impl SlotPool {
    /// At least one slot.
    pub(super) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size: size.max(1), used: AtomicUsize::new(0) })
    }

    /// A slot for the connection, unless it holds as many as are free already.
    pub(super) fn take(self: &Arc<Self>, share: &SlotShare) -> Option<CallSlot> {
        let held = share.0.load(Ordering::Relaxed);
        let take = |used: usize| (held < self.size.saturating_sub(used)).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).ok()?;
        share.0.fetch_add(1, Ordering::Relaxed);
        Some(CallSlot { pool: Arc::clone(self), share: share.clone() })
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.share.0.fetch_sub(1, Ordering::Relaxed);
        self.pool.used.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(pool: &Arc<SlotPool>, share: &SlotShare) -> Vec<CallSlot> {
        std::iter::from_fn(|| pool.take(share)).collect()
    }

    #[test]
    fn one_connection_gets_half_and_newcomers_get_in() {
        let pool = SlotPool::new(1_024);
        let connections: Vec<SlotShare> = (0..8).map(|_| SlotShare::default()).collect();
        let first = greedy(&pool, &connections[0]);
        assert_eq!(first.len(), 512);
        let second = greedy(&pool, &connections[1]);
        assert_eq!(second.len(), 256);
        let mut held: Vec<Vec<CallSlot>> =
            connections[2..].iter().map(|share| greedy(&pool, share)).collect();
        assert!(held.iter().all(|slots| !slots.is_empty()), "{:?}", pool.used());
        assert!(pool.take(&SlotShare::default()).is_some(), "somebody who holds nothing gets in");
        held.clear();
        drop((first, second));
        assert_eq!(pool.used(), 0);
        assert_eq!(greedy(&pool, &connections[0]).len(), 512, "what is given back is there again");
    }

    #[test]
    fn a_single_slot_is_a_slot() {
        let pool = SlotPool::new(0);
        let share = SlotShare::default();
        let slot = pool.take(&share);
        assert!(slot.is_some() && pool.take(&share).is_none() && pool.take(&SlotShare::default()).is_none());
    }
}
