//! What does not fit under maxima: why, what is lacking, and what victims give up for the holds that they back.

use super::{
    Amounts, AskId, Headroom, LimitRow, Need, OF_MASTERS, OwnerLimitIdx, PayerIdx, ResourceIdx, Shortage,
    UNLIMITED, Usage, at, times,
};
use crate::{QueueIdx, QueueMaximum, tree::QueueTree};

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

/// What moves from one queue to another and does not fit there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveLack {
    /// Whose maximum it is.
    pub queue: QueueIdx,
    /// It is what the queue lets this owner take.
    pub owner: Option<String>,
    /// Of what.
    pub resource: String,
    /// Only what application masters take of it counts.
    pub of_masters: bool,
    /// So much moves.
    pub asked: i64,
    /// So much is used there.
    pub used: i64,
    /// So much may be used.
    pub max: i64,
}

impl Usage {
    /// How often something fits under every maximum from a payer upwards. `O(depth)`.
    pub fn headroom(&self, payer: impl Into<PayerIdx>, ask: AskId) -> Headroom {
        let payer = payer.into();
        let mut headroom = Headroom { n: u32::MAX, limit: None };
        let ask = self.ask(ask);
        for limit in self.owners.limits(payer) {
            for (resource, amount, room) in self.under_owner(*limit, ask) {
                let n = u32::try_from((room.max(0) / amount).min(i64::from(u32::MAX))).unwrap_or(u32::MAX);
                if n < headroom.n {
                    headroom = Headroom { n, limit: self.owner_maximum(*limit, resource) };
                }
            }
        }
        for level in self.limited_upwards(self.owners.queue(payer)) {
            for &(resource, amount) in ask {
                let max = self.max(level, resource);
                if max == UNLIMITED || amount == 0 {
                    continue;
                }
                let n = (self.room(level, resource).max(0) / amount).min(i64::from(u32::MAX));
                let n = u32::try_from(n).unwrap_or(u32::MAX);
                if n < headroom.n {
                    headroom = Headroom { n, limit: Some(QueueMaximum::of_all(level, resource)) };
                }
            }
        }
        headroom
    }

    /// The first maximum from a payer upwards under which all of this does not fit together.
    pub fn lacking(&self, payer: impl Into<PayerIdx>, needs: &[Need]) -> Option<QueueMaximum> {
        let payer = payer.into();
        let of_owner = self.lacking_of_owner(payer, |resource| {
            needs.iter().map(|need| i128::from(self.amount(*need, resource))).sum()
        });
        of_owner.or_else(|| self.lacking_of_queue(self.owners.queue(payer), needs))
    }

    fn lacking_of_queue(&self, queue: QueueIdx, needs: &[Need]) -> Option<QueueMaximum> {
        self.limited_upwards(queue).find_map(|level| {
            let lacks = |resource: &ResourceIdx| {
                let asked: i128 = needs.iter().map(|need| i128::from(self.amount(*need, *resource))).sum();
                asked > 0 && asked > i128::from(self.room(level, *resource))
            };
            self.limits(level).find(lacks).map(|resource| QueueMaximum::of_all(level, resource))
        })
    }

    /// Why a need does not fit, of a choice why nothing of it does: that of the one which may fit, under the highest
    /// maximum, so that whatever makes room for any of them makes room below that one.
    pub(crate) fn shortage(&self, payer: impl Into<PayerIdx>, need: Need) -> Option<Shortage> {
        let payer = payer.into();
        let queue = self.owners.queue(payer);
        if !need.ask.is_choice() {
            return self.shortage_of(queue, payer, need).map(|(_, shortage)| shortage);
        }
        let mut worst: Option<(usize, Shortage)> = None;
        for ask in self.asks.choice(need.ask) {
            let (height, shortage) = self.shortage_of(queue, payer, Need { ask: *ask, ..need })?;
            let place = |(height, shortage): &(usize, Shortage)| (!shortage.is_hopeless, *height);
            if worst.as_ref().is_none_or(|worst| place(worst) < place(&(height, shortage))) {
                worst = Some((height, shortage));
            }
        }
        worst.map(|(_, shortage)| shortage)
    }

    /// The lowest maximum under which a need does not fit, or one under which it never will, and how far up that is.
    fn shortage_of(&self, queue: QueueIdx, payer: PayerIdx, need: Need) -> Option<(usize, Shortage)> {
        let ask = self.ask(need.ask);
        let mut first: Option<(usize, Shortage)> = None;
        for &limit in self.owners.limits(payer) {
            let Some((level, _)) = self.owners.name(limit) else { continue };
            let Some(height) = self.limited_upwards(queue).position(|other| other == level) else { continue };
            for (resource, amount, room) in self.under_owner(limit, ask) {
                let amount = times(amount, need.n);
                let Some(of) = self.owner_maximum(limit, resource).filter(|_| amount > room) else {
                    continue;
                };
                let is_hopeless = amount > self.max_of(of);
                let found = (height, Shortage { limit: of, amount, is_hopeless });
                if is_hopeless {
                    return Some(found);
                }
                first = first.or(Some(found));
            }
        }
        for (height, level) in self.limited_upwards(queue).enumerate() {
            for &(resource, amount) in ask {
                let (max, amount) = (self.max(level, resource), times(amount, need.n));
                if max == UNLIMITED || amount == 0 || amount <= self.room(level, resource) {
                    continue;
                }
                let limit = QueueMaximum::of_all(level, resource);
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

    /// The first maximum from a payer upwards under which all that is asked does not fit, if `lent` says what more is given up
    /// for it at each level. Nobody gives up anything under the limit of an owner.
    pub fn exceeded(
        &self,
        payer: impl Into<PayerIdx>,
        asked: &[i128],
        lent: impl Fn(QueueIdx, usize) -> i128,
    ) -> Option<QueueMaximum> {
        let payer = payer.into();
        let of_owner = self.lacking_of_owner(payer, |resource| at(asked, resource.idx()));
        if of_owner.is_some() {
            return of_owner;
        }
        let queue = self.owners.queue(payer);
        self.limited_upwards(queue).find_map(|level| {
            let is_short = |resource: &ResourceIdx| {
                let (room, idx) = (i128::from(self.room(level, *resource)), resource.idx());
                at(asked, idx) > 0 && at(asked, idx) > room + lent(level, idx)
            };
            self.limits(level).find(is_short).map(|resource| QueueMaximum::of_all(level, resource))
        })
    }

    /// The first maximum under which all that moves from one queue to another does not fit, and how much of it moves. What both
    /// are below of counts it already.
    ///
    /// What moves is all of one owner: `payer` in `from`. `tree` says which queues are above others.
    pub fn lacking_to_move(
        &self,
        payer: PayerIdx,
        to: QueueIdx,
        needs: &[Need],
        tree: &QueueTree,
    ) -> Option<MoveLack> {
        let (from, asked) = (self.owners.queue(payer), self.sum(needs));
        let owner_limits = self.owners.limits_in(payer, tree.upwards(to));
        let entered = owner_limits.filter(|(level, ..)| !self.is_below(from, *level));
        for (level, owner, max, used) in entered {
            for (resource, max) in max {
                let (asked, used) = (at(&asked, resource.idx()), at(used, resource.idx()));
                if asked > 0 && asked + used > i128::from(*max) {
                    let limit = QueueMaximum::of_all(level, *resource);
                    return Some(self.move_lack(limit, asked, used, *max, Some(owner)));
                }
            }
        }
        let mut entered = self.limited_upwards(to).filter(|level| !self.is_below(from, *level));
        entered.find_map(|level| {
            let mut limits = self.limits(level).map(|resource| (resource, at(&asked, resource.idx())));
            let lacks = |(resource, asked): &(ResourceIdx, i128)| {
                *asked > 0 && *asked > i128::from(self.room(level, *resource))
            };
            let (resource, asked) = limits.find(lacks)?;
            let (used, max) = (self.used_of(level, resource), self.max(level, resource));
            Some(self.move_lack(QueueMaximum::of_all(level, resource), asked, used, max, None))
        })
    }

    fn move_lack(
        &self,
        limit: QueueMaximum,
        asked: i128,
        used: i128,
        max: i64,
        owner: Option<&str>,
    ) -> MoveLack {
        let short = |amount: i128| i64::try_from(amount).unwrap_or(i64::MAX);
        let (resource, of_masters) = self.resource_of(limit);
        MoveLack {
            queue: limit.queue,
            owner: owner.map(str::to_owned),
            resource: resource.to_owned(),
            of_masters,
            asked: short(asked),
            used: short(used),
            max,
        }
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
        QueueMaximum::of_all(lack.queue, ResourceIdx(u8::try_from(at).unwrap_or(0)))
    }

    /// A payer of one unit more: an owner in a queue. Kept until [`Self::leave_payer`].
    pub(crate) fn enter_payer(&mut self, queue: QueueIdx, owner: &str, tree: &QueueTree) -> PayerIdx {
        self.owners.enter(queue, owner, tree.upwards(queue))
    }

    /// Ends one use of a payer.
    pub(crate) fn leave_payer(&mut self, payer: PayerIdx) {
        self.owners.leave(payer);
    }

    /// The queue that a payer pays in.
    pub fn queue_of(&self, payer: PayerIdx) -> QueueIdx {
        self.owners.queue(payer)
    }

    /// Limits of owners that a payer is under.
    pub(crate) fn owner_limits(&self, payer: PayerIdx) -> &[OwnerLimitIdx] {
        self.owners.limits(payer)
    }

    /// Left of a resource under the limit of an owner, without end where there is none.
    pub(crate) fn room_of_owner(&self, limit: OwnerLimitIdx, resource: ResourceIdx) -> i64 {
        self.owners.room(limit, resource)
    }

    /// Used of a resource by one owner in a queue and below it; `None` while the queue does not limit owners, or does not know
    /// this one.
    pub fn used_by_owner(&self, queue: QueueIdx, owner: &str, name: &str) -> Option<i128> {
        let limit = self.owners.limit_named(queue, owner)?;
        Some(self.find(name).map_or(0, |resource| self.owners.used(limit, resource)))
    }

    /// Used of a resource by application masters in a queue and below it.
    pub fn used_by_masters(&self, queue: QueueIdx, name: &str) -> i128 {
        let column = self.find(name).and_then(|resource| self.of_masters[resource.idx()]);
        column.map_or(0, |column| self.used_of(queue, column))
    }

    /// The owner whom a maximum is about.
    pub(crate) fn owner_of(&self, limit: QueueMaximum) -> Option<&str> {
        self.owners.name(limit.owner?).map(|(_, owner)| owner)
    }

    /// Taken of what a maximum is about.
    pub fn taken_of(&self, limit: QueueMaximum) -> i64 {
        let used = match limit.owner {
            Some(owner) => self.owners.used(owner, limit.resource),
            None => self.used_of(limit.queue, limit.resource),
        };
        i64::try_from(used).unwrap_or(i64::MAX)
    }

    /// The resource of a maximum, and whether only what application masters take of it counts.
    pub(crate) fn resource_of(&self, limit: QueueMaximum) -> (&str, bool) {
        let name = self.resource_name(limit.resource);
        name.strip_suffix(OF_MASTERS).map_or((name, false), |name| (name, true))
    }

    /// A maximum that keeps no room for those that wait, and for which nobody has to leave: of an owner, or of masters.
    pub(crate) fn is_quiet(&self, limit: QueueMaximum) -> bool {
        limit.owner.is_some() || self.resource_of(limit).1
    }

    /// Of what is asked that an owner's limit names: the column, how much once, and the room there.
    pub(super) fn under_owner<'a>(
        &'a self,
        limit: OwnerLimitIdx,
        ask: &'a [(ResourceIdx, i64)],
    ) -> impl Iterator<Item = (ResourceIdx, i64, i64)> + 'a {
        let named = self.owners.max(limit).iter();
        let asked = move |resource: ResourceIdx| ask.iter().find(|(other, _)| *other == resource);
        let asked = named.filter_map(move |(resource, _)| asked(*resource)).filter(|(_, amount)| *amount > 0);
        asked.map(move |(resource, amount)| (*resource, *amount, self.owners.room(limit, *resource)))
    }

    /// The maximum of a resource under an owner's limit.
    pub(super) fn owner_maximum(&self, limit: OwnerLimitIdx, resource: ResourceIdx) -> Option<QueueMaximum> {
        let (queue, _) = self.owners.name(limit)?;
        Some(QueueMaximum { queue, resource, owner: Some(limit) })
    }

    /// The first limit of an owner under which so much of each resource does not fit.
    pub(super) fn lacking_of_owner(
        &self,
        payer: PayerIdx,
        asked: impl Fn(ResourceIdx) -> i128,
    ) -> Option<QueueMaximum> {
        self.owners.limits(payer).iter().find_map(|limit| {
            let mut named = self.owners.max(*limit).iter().map(|(resource, _)| *resource);
            let is_short = |resource: &ResourceIdx| {
                let asked = asked(*resource);
                asked > 0 && asked > i128::from(self.owners.room(*limit, *resource))
            };
            self.owner_maximum(*limit, named.find(is_short)?)
        })
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

    use godel_base::resources::Resources;
    use godel_domain::{demand::Demand, queue_spec::QueueSpec};

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
        let tree = quota.tree().clone();
        let usage = quota.usage_mut();
        let demand = Demand {
            requests: Resources::new([("cpu", 2)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        };
        let two = Need { ask: usage.intern(&demand), n: 2 };
        usage.add(y, two);
        let moves = |usage: &Usage, from: QueueIdx, to, n| {
            let lack = usage.lacking_to_move(from.into(), to, &[Need { n, ..two }], &tree);
            lack.map(|lack| (lack.queue, lack.resource, lack.asked))
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
