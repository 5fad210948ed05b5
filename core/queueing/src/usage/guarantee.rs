//! Guarantees: which queues are within theirs, counted without those that leave.

use smallvec::SmallVec;

use super::{Columns, QueueSums};
use crate::QueueIdx;

/// Amounts by column; columns beyond its end are 0.
pub type Amounts = SmallVec<[i128; 4]>;

/// Running units, CPU and memory: a guarantee may leave them out and still be one of room for whole running units.
/// Whatever else a running unit takes, as devices, it has no right to unless the guarantee names it.
const N_COMMON: usize = 3;

/// What queues are guaranteed, beside what they use.
#[derive(Clone, Copy)]
pub struct Guarantees<'a> {
    pub(super) sums: &'a QueueSums,
    pub(super) columns: &'a Columns,
}

impl Guarantees<'_> {
    /// Some queue guarantees something.
    pub fn is_any(&self) -> bool {
        self.sums.has_guarantees()
    }

    /// Whether a queue's own guarantee is about what is asked: it names some of it, and all of it but running units,
    /// CPU and memory.
    pub fn concerns(&self, queue: QueueIdx, asked: &[i128]) -> bool {
        if !self.sums.is_guaranteed(queue) {
            return false;
        }
        let guaranteed = self.sums.guaranteed(queue);
        let mut named = false;
        for (idx, _) in asked.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            match guaranteed.get(idx) {
                Some(min) if *min > 0 => named = true,
                Some(_) | None if idx < N_COMMON || self.columns.is_of_masters(idx) => {}
                Some(_) | None => return false,
            }
        }
        named
    }

    /// Whether a queue is within its guarantee with so much `more` of what is asked: of nothing asked that the guarantee
    /// names it uses more. Those told to leave do not count.
    pub fn is_within(&self, queue: QueueIdx, asked: &[i128], more: impl Fn(usize) -> i128) -> bool {
        self.concerns(queue, asked)
            && self.named(queue, asked).all(|(idx, min)| self.sums.staying(queue, idx) + more(idx) <= min)
    }

    /// Whether a queue is within its guarantee without so much of it, which has to leave: what is about to be told to
    /// leave does not count either.
    pub fn stays_within(&self, queue: QueueIdx, asked: &[i128], without: impl Fn(usize) -> i128) -> bool {
        self.concerns(queue, asked) && self.n_beyond(queue, asked, without) == 0
    }

    /// Of how many resources asked for a queue uses more than it is guaranteed, as [`Self::stays_within`] counts.
    pub fn n_beyond(&self, queue: QueueIdx, asked: &[i128], without: impl Fn(usize) -> i128) -> usize {
        let promised = self.sums.promised(queue);
        let left = |idx: usize| self.sums.staying(queue, idx) - promised[idx] - without(idx);
        self.named(queue, asked).filter(|(idx, min)| left(*idx) > *min).count()
    }

    /// How often something fits under a queue's guarantee beside what is asked already.
    pub fn fits_within(&self, queue: QueueIdx, before: &[i128], ask: &[i128]) -> u32 {
        let asked: Amounts =
            (0..before.len().max(ask.len())).map(|idx| at(before, idx) + at(ask, idx)).collect();
        if !self.concerns(queue, &asked) {
            return 0;
        }
        let rooms = self.named(queue, &asked).map(|(idx, min)| {
            let room = min - self.sums.staying(queue, idx) - at(before, idx);
            match at(ask, idx) {
                _ if room < 0 => 0,
                0 => i128::from(u32::MAX),
                amount => room / amount,
            }
        });
        rooms.min().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Columns asked for that a queue's guarantee names.
    fn named<'a>(&'a self, queue: QueueIdx, asked: &'a [i128]) -> impl Iterator<Item = (usize, i128)> + 'a {
        let guaranteed = self.sums.guaranteed(queue);
        let both = guaranteed.iter().zip(asked).enumerate();
        both.filter(|(_, (min, asked))| **min > 0 && **asked > 0)
            .map(|(idx, (min, _))| (idx, i128::from(*min)))
    }
}

/// Of a row that may be shorter.
pub fn at(row: &[i128], idx: usize) -> i128 {
    row.get(idx).copied().unwrap_or(0)
}
