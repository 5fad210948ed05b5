//! Sums, maxima and guarantees of queues: rows of one column for each resource.

use super::{Amounts, Lack, QueueMaximum, RUNNING_UNITS, ResourceIdx, ShareKey, UNLIMITED, at, scale::Scale};
use crate::tree::{QueueIdx, QueueTree};

/// Which sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SumKind {
    Used,
    /// Shown, not judged.
    Bound,
    Leaving,
    Promised,
}

/// A row of each kind per queue.
#[derive(Clone, Debug, Default)]
pub struct QueueSums {
    queues: Vec<QueueMeta>,
    /// Columns of a row.
    width: usize,
    /// Wide enough for a hundred thousand running units of the largest demand, handed out before anybody looked whether
    /// they fit anywhere.
    used: Vec<i128>,
    /// The part of it that is bound, where that is told apart.
    bound: Vec<i128>,
    /// The part of it that is told to leave, and that which is about to be.
    leaving: Vec<i128>,
    promised: Vec<i128>,
    /// What victims give up for the holds that they back: it does not count against maxima.
    lent: Vec<i128>,
    max: Vec<i64>,
    guaranteed: Vec<i64>,
    /// Queues that guarantee something.
    n_guaranteed: usize,
}

#[derive(Clone, Copy, Debug)]
struct QueueMeta {
    parent: QueueIdx,
    weight: u32,
    is_limited: bool,
    is_guaranteed: bool,
}

/// What a queue may use and what it is guaranteed, by column.
pub(super) struct QueueBounds {
    pub(super) max: Vec<(ResourceIdx, i64)>,
    pub(super) guaranteed: Vec<(ResourceIdx, i64)>,
    /// It lets one owner take no more than so much.
    pub(super) limits_owners: bool,
}

/// What changes.
impl QueueSums {
    /// Makes rows for every queue that has none.
    pub(crate) fn grow(&mut self, tree: &QueueTree) {
        if self.queues.len() == tree.len() {
            return;
        }
        for idx in self.queues.len()..tree.len() {
            let queue = QueueIdx(u32::try_from(idx).expect("queues are numbered in 32 bits"));
            let (parent, weight) = (tree.parent(queue), tree.weight(queue));
            self.queues.push(QueueMeta { parent, weight, is_limited: false, is_guaranteed: false });
        }
        let len = self.queues.len() * self.width;
        for sums in [&mut self.used, &mut self.bound, &mut self.leaving, &mut self.promised, &mut self.lent] {
            sums.resize(len, 0);
        }
        self.max.resize(len, UNLIMITED);
        self.guaranteed.resize(len, 0);
    }

    /// Makes one more column.
    pub(super) fn widen(&mut self) {
        for sums in [&mut self.used, &mut self.bound, &mut self.leaving, &mut self.promised, &mut self.lent] {
            widen(sums, self.width, 0);
        }
        widen(&mut self.max, self.width, UNLIMITED);
        widen(&mut self.guaranteed, self.width, 0);
        self.width += 1;
    }

    /// Takes over what the record of a queue says.
    pub(super) fn set_bounds(&mut self, queue: QueueIdx, weight: u32, bounds: &QueueBounds) {
        let QueueBounds { max, guaranteed, limits_owners } = bounds;
        let row = self.row(queue);
        self.max[row.clone()].fill(UNLIMITED);
        self.guaranteed[row.clone()].fill(0);
        for &(resource, amount) in max {
            self.max[row.start + resource.idx()] = amount.max(0);
        }
        for &(resource, amount) in guaranteed {
            self.guaranteed[row.start + resource.idx()] = amount;
        }
        let meta = &mut self.queues[queue.idx()];
        meta.weight = weight;
        self.n_guaranteed -= usize::from(meta.is_guaranteed);
        meta.is_limited = !max.is_empty() || *limits_owners;
        meta.is_guaranteed = !guaranteed.is_empty();
        self.n_guaranteed += usize::from(meta.is_guaranteed);
    }

    /// Counts `n` times an ask in a queue and all above it. `O(depth)`.
    pub(super) fn count(&mut self, queue: QueueIdx, ask: &[(ResourceIdx, i64)], n: i64, sums: SumKind) {
        let width = self.width;
        let sums = match sums {
            SumKind::Used => &mut self.used,
            SumKind::Bound => &mut self.bound,
            SumKind::Leaving => &mut self.leaving,
            SumKind::Promised => &mut self.promised,
        };
        let mut level = queue;
        loop {
            let row = &mut sums[level.idx() * width..][..width];
            for &(resource, amount) in ask {
                row[resource.idx()] += i128::from(amount) * i128::from(n);
            }
            if level == QueueIdx::ROOT {
                return;
            }
            level = self.queues[level.idx()].parent;
        }
    }

    /// Counts so much of a queue, and of it alone, as given up for holds (`sign` 1), or no more (-1).
    pub fn lend(&mut self, queue: QueueIdx, amounts: &[i128], sign: i128) {
        let row = self.row(queue);
        for (lent, amount) in self.lent[row].iter_mut().zip(amounts) {
            *lent += amount * sign;
        }
    }

    /// Nothing is used.
    pub(super) fn clear(&mut self) {
        let Self { used, bound, leaving, promised, lent, .. } = self;
        for sums in [used, bound, leaving, promised, lent] {
            sums.fill(0);
        }
    }
}

/// What is read.
impl QueueSums {
    fn row(&self, queue: QueueIdx) -> std::ops::Range<usize> {
        queue.idx() * self.width..(queue.idx() + 1) * self.width
    }

    /// Used, by column.
    pub(super) fn used(&self, queue: QueueIdx) -> &[i128] {
        &self.used[self.row(queue)]
    }

    /// Used of one resource.
    pub(super) fn used_of(&self, queue: QueueIdx, resource: ResourceIdx) -> i128 {
        self.used[queue.idx() * self.width + resource.idx()]
    }

    /// Of what is used, what is bound.
    pub(super) fn bound(&self, queue: QueueIdx) -> &[i128] {
        &self.bound[self.row(queue)]
    }

    /// Of what is used, what is about to be told to leave.
    pub(super) fn promised(&self, queue: QueueIdx) -> &[i128] {
        &self.promised[self.row(queue)]
    }

    /// Used without what is told to leave.
    pub(super) fn staying(&self, queue: QueueIdx, idx: usize) -> i128 {
        let at = queue.idx() * self.width + idx;
        self.used[at] - self.leaving[at]
    }

    /// What a queue is guaranteed, by column.
    pub(super) fn guaranteed(&self, queue: QueueIdx) -> &[i64] {
        &self.guaranteed[self.row(queue)]
    }

    pub(super) fn is_guaranteed(&self, queue: QueueIdx) -> bool {
        self.queues[queue.idx()].is_guaranteed
    }

    /// Some queue guarantees something.
    pub(super) fn has_guarantees(&self) -> bool {
        self.n_guaranteed > 0
    }

    pub(super) fn max(&self, queue: QueueIdx, resource: ResourceIdx) -> i64 {
        self.max[queue.idx() * self.width + resource.idx()]
    }

    /// Left under a maximum: less than nothing where more is used than allowed, without end where there is none.
    pub(crate) fn room(&self, queue: QueueIdx, resource: ResourceIdx) -> i64 {
        let at = queue.idx() * self.width + resource.idx();
        let max = self.max[at];
        if max == UNLIMITED {
            return UNLIMITED;
        }
        i64::try_from(i128::from(max) - (self.used[at] - self.lent[at])).unwrap_or(i64::MIN)
    }

    pub(crate) fn is_limited(&self, queue: QueueIdx) -> bool {
        self.queues[queue.idx()].is_limited
    }

    /// Columns of which a queue has a maximum.
    pub(crate) fn limits(&self, queue: QueueIdx) -> impl Iterator<Item = ResourceIdx> + '_ {
        let max = &self.max[self.row(queue)];
        (0u8..).zip(max).filter(|(_, max)| **max != UNLIMITED).map(|(resource, _)| ResourceIdx(resource))
    }

    /// The queue and those above it that have a maximum.
    pub(crate) fn limited_upwards(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
        let up = move |level: &QueueIdx| Some(self.queues[level.idx()].parent);
        std::iter::successors(Some(queue), up)
            .take_while(|level| *level != QueueIdx::ROOT)
            .filter(|level| self.is_limited(*level))
    }

    /// The first maximum from a queue upwards under which so much of each resource does not fit, if `lent` says what more
    /// is given up for it at each level.
    pub(super) fn lacking(
        &self,
        queue: QueueIdx,
        asked: impl Fn(ResourceIdx) -> i128,
        lent: impl Fn(QueueIdx, usize) -> i128,
    ) -> Option<QueueMaximum> {
        self.limited_upwards(queue).find_map(|level| {
            let lacks = |resource: &ResourceIdx| {
                let asked = asked(*resource);
                asked > 0 && asked > i128::from(self.room(level, *resource)) + lent(level, resource.idx())
            };
            self.limits(level).find(lacks).map(|resource| QueueMaximum::of_all(level, resource))
        })
    }

    /// What is lacking for all of this under the maxima from a queue upwards, the lowest queue first. `O(depth)`.
    pub fn lacks(&self, queue: QueueIdx, asked: &[i128]) -> Vec<Lack> {
        let mut lacks = Vec::new();
        for level in self.limited_upwards(queue) {
            let mut amounts = Amounts::from_elem(0, self.width);
            let mut is_coming = true;
            for resource in self.limits(level) {
                let (idx, asked) = (resource.idx(), at(asked, resource.idx()));
                let beyond = asked - i128::from(self.room(level, resource));
                if asked > 0 && beyond > 0 {
                    amounts[idx] = beyond;
                    // Once those have left that are told to, or are about to be.
                    let used_then = self.staying(level, idx) - self.promised(level)[idx];
                    is_coming &= asked + used_then <= i128::from(self.max(level, resource));
                }
            }
            if amounts.iter().any(|amount| *amount > 0) {
                lacks.push(Lack { queue: level, amounts, is_coming });
            }
        }
        lacks
    }

    /// Whether a queue is another one, or below it.
    pub(super) fn is_below(&self, mut queue: QueueIdx, other: QueueIdx) -> bool {
        while queue != other {
            if queue == QueueIdx::ROOT {
                return false;
            }
            queue = self.queues[queue.idx()].parent;
        }
        true
    }

    /// Whether a queue is below one on another's way upwards that has a maximum, or is one.
    pub fn share_maximum(&self, queue: QueueIdx, mut other: QueueIdx) -> bool {
        loop {
            if self.is_limited(other) && self.limited_upwards(queue).any(|level| level == other) {
                return true;
            }
            if other == QueueIdx::ROOT {
                return false;
            }
            other = self.queues[other.idx()].parent;
        }
    }

    /// Rank of a queue that uses this much; see [`super::Usage::share_key`].
    pub(super) fn share_key(&self, queue: QueueIdx, used: &[i128], scales: &[Scale]) -> ShareKey {
        let meta = &self.queues[queue.idx()];
        let guaranteed = self.guaranteed(queue);
        let is_met = |(used, min): (&i128, &i64)| *min > 0 && *used >= i128::from(*min);
        let borrows = !meta.is_guaranteed || used.iter().zip(guaranteed).any(is_met);
        let share = Scale::dominant_share(scales, used);
        let n_running = u64::try_from(used[RUNNING_UNITS.idx()]).unwrap_or(0);
        let half = share.checked_div(n_running.saturating_mul(2)).unwrap_or(0);
        ShareKey { borrows, share: share.saturating_add(half) / u64::from(meta.weight) }
    }
}

/// One more column in rows of `width`.
fn widen<T: Copy>(rows: &mut Vec<T>, width: usize, fill: T) {
    let Some(n_rows) = rows.len().checked_div(width) else { return };
    let mut wide = Vec::with_capacity(n_rows * (width + 1));
    for row in rows.chunks_exact(width) {
        wide.extend_from_slice(row);
        wide.push(fill);
    }
    *rows = wide;
}
