//! What does not fit under maxima: why, what is lacking, and what victims give up for the holds that they back.

use super::{Amounts, AskId, LimitRow, Need, ResourceIdx, Shortage, UNLIMITED, Usage, at, times};
use crate::{QueueIdx, QueueMaximum};

/// What a queue has no room for, of what is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Whose maximum it is.
    pub queue: QueueIdx,
    /// By column; 0 of what there is room for.
    pub amounts: Amounts,
    /// Those who are told to leave leave room for all of it.
    pub is_coming: bool,
}

impl Usage {
    /// Why a need does not fit, of a choice why nothing of it does: that of the one which may fit, under the highest
    /// maximum, so that whatever makes room for any of them makes room below that one.
    pub(crate) fn shortage(&self, queue: QueueIdx, need: Need) -> Option<Shortage> {
        if !need.ask.is_choice() {
            return self.shortage_of(queue, need).map(|(_, shortage)| shortage);
        }
        let mut worst: Option<(usize, Shortage)> = None;
        for ask in self.asks.choice(need.ask) {
            let (height, shortage) = self.shortage_of(queue, Need { ask: *ask, ..need })?;
            let place = |(height, shortage): &(usize, Shortage)| (!shortage.is_hopeless, *height);
            if worst.as_ref().is_none_or(|worst| place(worst) < place(&(height, shortage))) {
                worst = Some((height, shortage));
            }
        }
        worst.map(|(_, shortage)| shortage)
    }

    /// The lowest maximum under which a need does not fit, or one under which it never will, and how far up that is.
    fn shortage_of(&self, queue: QueueIdx, need: Need) -> Option<(usize, Shortage)> {
        let mut first = None;
        let ask = self.ask(need.ask);
        for (height, level) in self.limited_upwards(queue).enumerate() {
            for &(resource, amount) in ask {
                let (max, amount) = (self.max(level, resource), times(amount, need.n));
                if max == UNLIMITED || amount == 0 || amount <= self.room(level, resource) {
                    continue;
                }
                let limit = QueueMaximum { queue: level, resource };
                if amount > max {
                    return Some((height, Shortage { limit, amount, is_hopeless: true }));
                }
                first = first.or(Some((height, Shortage { limit, amount, is_hopeless: false })));
            }
        }
        first
    }

    /// Room of a resource that has to be there for a need to be worth another look. Of a choice any: what it needs may
    /// be there without that resource.
    pub(crate) fn worth(&self, need: Need, resource: ResourceIdx) -> i64 {
        if need.ask.is_choice() { i64::MIN } else { self.amount(need, resource) }
    }

    /// Of a need, all columns: of a choice the least of each.
    pub(crate) fn amounts(&self, need: Need) -> LimitRow {
        let row = |ask: AskId| {
            let mut row = LimitRow::from_elem(0, self.names.len());
            for &(resource, amount) in self.ask(ask) {
                row[resource.idx()] = times(amount, need.n);
            }
            row
        };
        if !need.ask.is_choice() {
            return row(need.ask);
        }
        let least = |mut least: LimitRow, other: LimitRow| {
            least.iter_mut().zip(other).for_each(|(least, other)| *least = other.min(*least));
            least
        };
        self.asks.choice(need.ask).iter().map(|ask| row(*ask)).reduce(least).unwrap_or_default()
    }

    /// Counts so much of a queue, and of it alone, as given up for holds (`sign` 1), or no more (-1).
    pub fn lend(&mut self, queue: QueueIdx, amounts: &[i128], sign: i128) {
        let row = self.row(queue);
        for (lent, amount) in self.lent[row].iter_mut().zip(amounts) {
            *lent += amount * sign;
        }
    }

    /// What is lacking for all of this under the maxima from a queue upwards, the lowest queue first. `O(depth)`.
    pub fn lacks(&self, queue: QueueIdx, asked: &[i128]) -> Vec<Lack> {
        let mut lacks = Vec::new();
        for level in self.limited_upwards(queue) {
            let mut amounts = Amounts::from_elem(0, self.names.len());
            let mut is_coming = true;
            for resource in self.limits(level) {
                let (idx, asked) = (resource.idx(), at(asked, resource.idx()));
                let beyond = asked - i128::from(self.room(level, resource));
                if asked > 0 && beyond > 0 {
                    amounts[idx] = beyond;
                    is_coming &= asked + self.used_then(level, idx) <= i128::from(self.max(level, resource));
                }
            }
            if amounts.iter().any(|amount| *amount > 0) {
                lacks.push(Lack { queue: level, amounts, is_coming });
            }
        }
        lacks
    }

    /// The first maximum from a queue upwards under which all that is asked does not fit, if `lent` says what more is given up
    /// for it at each level.
    pub fn exceeded(
        &self,
        queue: QueueIdx,
        asked: &[i128],
        lent: impl Fn(QueueIdx, usize) -> i128,
    ) -> Option<QueueMaximum> {
        self.limited_upwards(queue).find_map(|level| {
            let is_short = |resource: &ResourceIdx| {
                let (room, idx) = (i128::from(self.room(level, *resource)), resource.idx());
                at(asked, idx) > 0 && at(asked, idx) > room + lent(level, idx)
            };
            self.limits(level).find(is_short).map(|resource| QueueMaximum { queue: level, resource })
        })
    }

    /// The first maximum under which all that moves from one queue to another does not fit, and how much of it moves. What both
    /// are below of counts it already.
    pub fn lacking_to_move(
        &self,
        (from, to): (QueueIdx, QueueIdx),
        needs: &[Need],
    ) -> Option<(QueueMaximum, i128)> {
        let asked = self.sum(needs);
        let mut entered = self.limited_upwards(to).filter(|level| !self.is_below(from, *level));
        entered.find_map(|level| {
            let mut limits = self.limits(level).map(|resource| (resource, at(&asked, resource.idx())));
            let lacks = |(resource, asked): &(ResourceIdx, i128)| {
                *asked > 0 && *asked > i128::from(self.room(level, *resource))
            };
            let (resource, asked) = limits.find(lacks)?;
            Some((QueueMaximum { queue: level, resource }, asked))
        })
    }

    /// Whether a queue is another one, or below it.
    fn is_below(&self, mut queue: QueueIdx, other: QueueIdx) -> bool {
        while queue != other {
            if queue == QueueIdx::ROOT {
                return false;
            }
            queue = self.queues[queue.idx()].parent;
        }
        true
    }

    /// Whether a queue is below one on another's way upwards that has a maximum, or is one.
    pub fn shares_maximum(&self, queue: QueueIdx, mut other: QueueIdx) -> bool {
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

    /// The first of what is lacking, as a maximum.
    pub fn first_of(&self, lack: &Lack) -> QueueMaximum {
        let at = lack.amounts.iter().position(|amount| *amount > 0).unwrap_or(0);
        QueueMaximum { queue: lack.queue, resource: ResourceIdx(u8::try_from(at).unwrap_or(0)) }
    }

    pub(super) fn lent_of(&self, queue: QueueIdx, resource: ResourceIdx) -> i128 {
        self.lent[queue.idx() * self.names.len() + resource.idx()]
    }

    /// Used once those have left that are told to, or are about to be.
    fn used_then(&self, queue: QueueIdx, idx: usize) -> i128 {
        let of = |sums: &[i128]| self.row_of(queue, sums)[idx];
        of(&self.used) - of(&self.leaving) - of(&self.promised)
    }
}

/// Adds `n` times as much to a row, which grows as it must.
pub fn sum_of(row: &mut Amounts, amounts: &[i128], n: i128) {
    if row.len() < amounts.len() {
        row.resize(amounts.len(), 0);
    }
    row.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount * n);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_domain::{demand::Demand, queue_spec::QueueSpec, resources::Resources};

    use super::*;
    use crate::Quota;

    fn quota() -> Quota {
        let max = |path: &str, cpu, max_running_units| {
            let max = [("cpu".to_owned(), cpu)].into();
            Arc::new(QueueSpec { max, max_running_units, ..QueueSpec::new(path) })
        };
        let mut quota = Quota::default();
        quota.put(max("a", 4, 0));
        quota.put(max("a.x", 9, 2));
        quota
    }

    #[test]
    fn a_move_needs_room_only_where_it_enters() {
        let mut quota = quota();
        let (a, x, y) = (quota.queue("a"), quota.queue("a.x"), quota.queue("a.y"));
        let elsewhere = quota.queue("b");
        let usage = quota.usage_mut();
        let demand = Demand {
            requests: Resources::new([("cpu", 2)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        };
        let two = Need { ask: usage.intern(&demand), n: 2 };
        usage.add(y, two);
        let moves = |usage: &Usage, from, to, n| {
            let lack = usage.lacking_to_move((from, to), &[Need { n, ..two }]);
            lack.map(|(limit, asked)| (limit.queue, usage.resource_name(limit.resource).to_owned(), asked))
        };
        // All of `a` is used, by what moves within it.
        assert_eq!(moves(usage, y, x, 2), None);
        assert_eq!(moves(usage, y, x, 3), Some((x, "running units".to_owned(), 3)));
        assert_eq!(moves(usage, elsewhere, x, 1), Some((a, "cpu".to_owned(), 2)));
        assert_eq!(moves(usage, y, elsewhere, 9), None);
        usage.sub(y, two);
        assert_eq!(moves(usage, elsewhere, x, 2), None);
    }

    #[test]
    fn what_lacks_is_told_by_level_and_what_leaves_may_be_enough() {
        let mut quota = quota();
        let (a, x, y) = (quota.queue("a"), quota.queue("a.x"), quota.queue("a.y"));
        let usage = quota.usage_mut();
        let demand = Demand {
            requests: Resources::new([("cpu", 2)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        };
        let one = Need { ask: usage.intern(&demand), n: 1 };
        let told = |usage: &Usage, n| {
            let asked = usage.sum(&[Need { n, ..one }]);
            let lacks = usage.lacks(x, &asked);
            let of = |lack: &Lack| (lack.queue, lack.amounts.iter().sum::<i128>(), lack.is_coming);
            lacks.iter().map(of).collect::<Vec<_>>()
        };
        usage.add(y, one);
        assert_eq!(told(usage, 1), []);
        assert_eq!(told(usage, 3), [(x, 1, false), (a, 4, false)]);
        usage.add(x, one);
        assert_eq!(told(usage, 1), [(a, 2, false)]);
        usage.note_leaving(y, one, 1);
        assert_eq!(told(usage, 1), [(a, 2, true)], "somebody leaves already");
        let gives = usage.sum(&[one]);
        usage.lend(a, &gives, 1);
        assert_eq!((told(usage, 1), told(usage, 2)), (vec![], vec![(x, 1, false), (a, 2, false)]));
        let asked = usage.sum(&[Need { n: 2, ..one }]);
        let exceeded = |usage: &Usage, more: i128| usage.exceeded(x, &asked, |_, _| more);
        assert_eq!(exceeded(usage, 2), None);
        assert_eq!(exceeded(usage, 1).map(|limit| limit.queue), Some(a));
        usage.lend(a, &gives, -1);
        assert!(usage.shares_maximum(x, y) && usage.shares_maximum(a, x));
        assert!(!usage.shares_maximum(x, QueueIdx::DEFAULT));
    }
}
