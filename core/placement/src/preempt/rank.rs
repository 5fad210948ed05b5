//! Rank: a unit whose queue is within its guarantee stands above one whose queue borrows; then the priority decides.
//!
//! Two units are compared by what their queues do not share: of each of them the queues below the first that is above
//! both. A unit is *guaranteed* if one of these is within its guarantee, for the one that seeks with all that it asks
//! for, for the other without those that leave already. So `a.x` borrows from its sibling `a.y` that is owed what `a.x`
//! uses, though `a` as a whole is within its guarantee against all others. Units of one queue, and all of them as
//! long as nobody guarantees anything, are compared by priority.
//!
//! What is taken from a borrower may end its borrowing: each victim that had to be a borrower's must have been one
//! without those taken before it, in some order.

use godel_framework::point::Sides;
use godel_queueing::{Amounts, Need, QueueIdx, Quota, at};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// What the queue of one unit may claim from others.
#[derive(Clone, Debug)]
pub struct Rights<'a> {
    quota: &'a Quota,
    /// From its queue upwards, the root last: whether that one, or one before it, is within its guarantee.
    path: SmallVec<[(QueueIdx, bool); 5]>,
    /// What others are counted to use that may come to nothing: who borrows no more without it does not borrow.
    unsure: FxHashMap<QueueIdx, Amounts>,
}

/// What is taken from queues, by level.
#[derive(Clone, Debug, Default)]
pub struct QueueTally(FxHashMap<QueueIdx, Taken>);

#[derive(Clone, Debug, Default)]
struct Taken {
    sum: Amounts,
    /// The most at once.
    largest: Amounts,
}

impl<'a> Rights<'a> {
    /// Of a unit that asks for so much; `None` while nobody guarantees anything.
    pub fn new(quota: &'a Quota, queue: QueueIdx, needs: &[Need]) -> Option<Self> {
        let usage = quota.usage();
        if !usage.guarantees().is_any() {
            return None;
        }
        let asked = usage.sum(needs);
        let mut path = SmallVec::new();
        let mut guaranteed = false;
        for level in quota.tree().upwards(queue) {
            guaranteed |= usage.guarantees().is_within(level, &asked, |idx| at(&asked, idx));
            path.push((level, guaranteed));
        }
        path.push((QueueIdx::ROOT, guaranteed));
        Some(Self { quota, path, unsure: FxHashMap::default() })
    }

    /// The same where so much of what queues use, by level, may come to nothing.
    pub fn unsure_of(self, unsure: FxHashMap<QueueIdx, Amounts>) -> Self {
        Self { unsure, ..self }
    }

    /// Some queue of it is within its guarantee.
    pub fn is_guaranteed(&self) -> bool {
        self.path.last().is_some_and(|(_, guaranteed)| *guaranteed)
    }

    /// Bit i: so far up its path it is guaranteed.
    pub fn reach(&self) -> u64 {
        let levels = self.path.iter().enumerate().filter(|(idx, (_, guaranteed))| *guaranteed && *idx < 64);
        levels.fold(0, |bits, (idx, _)| bits | 1 << idx)
    }

    /// Returns the queues that the rights are of.
    pub fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// How it stands against a running unit of a queue that takes so much, once what is taken has left.
    pub fn against(&self, queue: QueueIdx, takes: &[i128], tally: &QueueTally) -> Sides {
        let (common, below) = self.common(queue);
        if common == 0 || below.is_empty() {
            // Of one line.
            let guaranteed = self.is_guaranteed();
            return Sides { seeker: guaranteed, other: guaranteed };
        }
        let usage = self.quota.usage();
        let other = below.iter().any(|level| {
            let taken = tally.0.get(level);
            let taken = |idx| taken.map_or(0, |taken| at(&taken.sum, idx));
            usage.guarantees().stays_within(*level, takes, |idx| self.unsure(*level, idx) + taken(idx))
        });
        Sides { seeker: self.path[common - 1].1, other }
    }

    /// Counts what is taken at once. True if some queue borrows less kinds of resources then.
    pub fn take(&self, queue: QueueIdx, takes: &[i128], tally: &mut QueueTally) -> bool {
        let usage = self.quota.usage();
        let mut ends = false;
        for level in self.common(queue).1 {
            if !usage.guarantees().concerns(level, takes) {
                continue;
            }
            let taken = tally.0.entry(level).or_default();
            let unsure = |idx| self.unsure(level, idx);
            let before = usage.guarantees().n_beyond(level, takes, |idx| unsure(idx) + at(&taken.sum, idx));
            let n_columns = taken.sum.len().max(takes.len());
            taken.sum.resize(n_columns, 0);
            taken.largest.resize(n_columns, 0);
            for (idx, amount) in takes.iter().enumerate() {
                taken.sum[idx] += amount;
                taken.largest[idx] = taken.largest[idx].max(*amount);
            }
            ends |=
                usage.guarantees().n_beyond(level, takes, |idx| unsure(idx) + at(&taken.sum, idx)) < before;
        }
        ends
    }

    /// The first queue that would borrow no more before all that is taken of it is, in whatever order.
    pub fn overdrawn(&self, tally: &QueueTally) -> Option<QueueIdx> {
        let usage = self.quota.usage();
        let is_within = |(level, taken): &(&QueueIdx, &Taken)| {
            let without = |idx| self.unsure(**level, idx) + at(&taken.sum, idx) - at(&taken.largest, idx);
            usage.guarantees().stays_within(**level, &taken.sum, without)
        };
        tally.0.iter().filter(is_within).map(|(level, _)| *level).min()
    }

    fn unsure(&self, level: QueueIdx, idx: usize) -> i128 {
        self.unsure.get(&level).map_or(0, |amounts| at(amounts, idx))
    }

    /// Position on its own path of the first queue above both, and the other's queues below that.
    fn common(&self, queue: QueueIdx) -> (usize, SmallVec<[QueueIdx; 4]>) {
        let mut below = SmallVec::new();
        for level in self.quota.tree().upwards(queue) {
            if let Some(at) = self.path.iter().position(|(own, _)| *own == level) {
                return (at, below);
            }
            below.push(level);
        }
        (self.path.len() - 1, below)
    }
}
