//! Guarantees: which queues are within theirs, counted without those that leave.

use godel_domain::demand::Demand;
use smallvec::SmallVec;

use super::{SumKind, Usage};
use crate::{Need, QueueIdx};

/// Amounts by column; columns beyond its end are 0.
pub type Amounts = SmallVec<[i128; 4]>;

/// Running units, CPU and memory: a guarantee may leave them out and still be one of room for whole running units.
/// Whatever else a running unit takes, as devices, it has no right to unless the guarantee names it.
const N_COMMON: usize = 3;

impl Usage {
    /// Some queue guarantees something.
    pub fn has_guarantees(&self) -> bool {
        self.n_guaranteed > 0
    }

    /// Notes that so much of what is counted is told to leave (`sign` 1), or no more (-1). `O(depth)`.
    pub fn note_leaving(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.count(queue, need, sign, SumKind::Leaving);
    }

    /// The same of what is about to be told so. `O(depth)`.
    pub fn note_promised(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.count(queue, need, sign, SumKind::Promised);
    }

    /// Several needs by column.
    pub fn sum(&self, needs: &[Need]) -> Amounts {
        let mut row = Amounts::new();
        needs.iter().for_each(|need| self.add_to(&mut row, *need, 1));
        row
    }

    /// What a running unit of a demand takes; what nobody ever counted is left out.
    pub fn amounts_of(&self, demand: &Demand) -> Amounts {
        let mut row = Amounts::from_elem(0, self.names.len());
        row[0] = 1;
        for (name, amount) in demand.amounts() {
            if let Some(resource) = self.find(name) {
                row[resource.idx()] += i128::from(amount);
            }
        }
        row
    }

    /// Whether a queue's own guarantee is about what is asked: it names some of it, and all of it but running units,
    /// CPU and memory.
    pub fn concerns(&self, queue: QueueIdx, asked: &[i128]) -> bool {
        if !self.queues[queue.idx()].is_guaranteed {
            return false;
        }
        let guaranteed = self.row_of(queue, &self.guaranteed);
        let mut named = false;
        for (idx, _) in asked.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            match guaranteed.get(idx) {
                Some(min) if *min > 0 => named = true,
                Some(_) | None if idx < N_COMMON || self.is_of_masters(idx) => {}
                Some(_) | None => return false,
            }
        }
        named
    }

    /// Whether a queue is within its guarantee with so much `more` of what is asked: of nothing asked that the guarantee
    /// names it uses more. Those told to leave do not count.
    pub fn is_within(&self, queue: QueueIdx, asked: &[i128], more: impl Fn(usize) -> i128) -> bool {
        self.concerns(queue, asked)
            && self.named(queue, asked).all(|(idx, min)| self.staying(queue, idx) + more(idx) <= min)
    }

    /// Whether a queue is within its guarantee without so much of it, which has to leave: what is about to be told to
    /// leave does not count either.
    pub fn stays_within(&self, queue: QueueIdx, asked: &[i128], without: impl Fn(usize) -> i128) -> bool {
        self.concerns(queue, asked) && self.n_beyond(queue, asked, without) == 0
    }

    /// Of how many resources asked for a queue uses more than it is guaranteed, as [`Self::stays_within`] counts.
    pub fn n_beyond(&self, queue: QueueIdx, asked: &[i128], without: impl Fn(usize) -> i128) -> usize {
        let promised = self.row_of(queue, &self.promised);
        let left = |idx: usize| self.staying(queue, idx) - promised[idx] - without(idx);
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
            let room = min - self.staying(queue, idx) - at(before, idx);
            match at(ask, idx) {
                _ if room < 0 => 0,
                0 => i128::from(u32::MAX),
                amount => room / amount,
            }
        });
        rooms.min().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Application masters take it beside the same amount of the resource itself.
    fn is_of_masters(&self, idx: usize) -> bool {
        self.n_of_masters > 0 && self.of_masters.iter().flatten().any(|column| column.idx() == idx)
    }

    /// Columns asked for that a queue's guarantee names.
    fn named<'a>(&'a self, queue: QueueIdx, asked: &'a [i128]) -> impl Iterator<Item = (usize, i128)> + 'a {
        let guaranteed = self.row_of(queue, &self.guaranteed);
        let both = guaranteed.iter().zip(asked).enumerate();
        both.filter(|(_, (min, asked))| **min > 0 && **asked > 0)
            .map(|(idx, (min, _))| (idx, i128::from(*min)))
    }

    fn staying(&self, queue: QueueIdx, idx: usize) -> i128 {
        self.row_of(queue, &self.used)[idx] - self.row_of(queue, &self.leaving)[idx]
    }
}

/// Of a row that may be shorter.
pub fn at(row: &[i128], idx: usize) -> i128 {
    row.get(idx).copied().unwrap_or(0)
}
