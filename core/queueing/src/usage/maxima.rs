//! What does not fit under maxima: why, what is lacking, and what victims give up for the holds that they back.

use super::{
    Amounts, AskId, Columns, Headroom, Need, PayerIdx, ResourceIdx, Shortage, UNLIMITED, Usage, at, times,
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

impl Lack {
    /// The first of what is lacking, as a maximum.
    pub fn first(&self) -> QueueMaximum {
        let at = self.amounts.iter().position(|amount| *amount > 0).unwrap_or(0);
        QueueMaximum::of_all(self.queue, ResourceIdx(u8::try_from(at).unwrap_or(0)))
    }
}

impl MoveLack {
    fn of(
        columns: &Columns,
        limit: QueueMaximum,
        asked: i128,
        used: i128,
        max: i64,
        owner: Option<&str>,
    ) -> Self {
        let short = |amount: i128| i64::try_from(amount).unwrap_or(i64::MAX);
        let (resource, of_masters) = columns.resource_of(limit);
        Self {
            queue: limit.queue,
            owner: owner.map(str::to_owned),
            resource: resource.to_owned(),
            of_masters,
            asked: short(asked),
            used: short(used),
            max,
        }
    }
}

impl Usage {
    /// How often something fits under every maximum from a payer upwards. `O(depth)`.
    pub fn headroom(&self, payer: impl Into<PayerIdx>, ask: AskId) -> Headroom {
        let payer = payer.into();
        let mut headroom = Headroom { n: u32::MAX, limit: None };
        let ask = self.asks.columns(ask);
        for limit in self.owners.limits(payer) {
            for (resource, amount, room) in self.owners.asked_under(*limit, ask) {
                let n = u32::try_from((room.max(0) / amount).min(i64::from(u32::MAX))).unwrap_or(u32::MAX);
                if n < headroom.n {
                    headroom = Headroom { n, limit: self.owners.maximum(*limit, resource) };
                }
            }
        }
        for level in self.sums.limited_upwards(self.owners.queue(payer)) {
            for &(resource, amount) in ask {
                let max = self.sums.max(level, resource);
                if max == UNLIMITED || amount == 0 {
                    continue;
                }
                let n = (self.sums.room(level, resource).max(0) / amount).min(i64::from(u32::MAX));
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
        let asked = |resource: ResourceIdx| {
            needs.iter().map(|need| i128::from(self.asks.amount(*need, resource))).sum::<i128>()
        };
        let of_owner = self.owners.lacking(payer, asked);
        of_owner.or_else(|| self.sums.lacking(self.owners.queue(payer), asked, |_, _| 0))
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
        let ask = self.asks.columns(need.ask);
        let mut first: Option<(usize, Shortage)> = None;
        for &limit in self.owners.limits(payer) {
            let Some((level, _)) = self.owners.name(limit) else { continue };
            let Some(height) = self.sums.limited_upwards(queue).position(|other| other == level) else {
                continue;
            };
            for (resource, amount, room) in self.owners.asked_under(limit, ask) {
                let amount = times(amount, need.n);
                let Some(of) = self.owners.maximum(limit, resource).filter(|_| amount > room) else {
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
        for (height, level) in self.sums.limited_upwards(queue).enumerate() {
            for &(resource, amount) in ask {
                let (max, amount) = (self.sums.max(level, resource), times(amount, need.n));
                if max == UNLIMITED || amount == 0 || amount <= self.sums.room(level, resource) {
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

    /// The first maximum from a payer upwards under which all that is asked does not fit, if `lent` says what more is given up
    /// for it at each level. Nobody gives up anything under the limit of an owner.
    pub fn exceeded(
        &self,
        payer: impl Into<PayerIdx>,
        asked: &[i128],
        lent: impl Fn(QueueIdx, usize) -> i128,
    ) -> Option<QueueMaximum> {
        let payer = payer.into();
        let asked = |resource: ResourceIdx| at(asked, resource.idx());
        let of_owner = self.owners.lacking(payer, asked);
        of_owner.or_else(|| self.sums.lacking(self.owners.queue(payer), asked, lent))
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
        let entered = owner_limits.filter(|(level, ..)| !self.sums.is_below(from, *level));
        for (level, owner, max, used) in entered {
            for (resource, max) in max {
                let (asked, used) = (at(&asked, resource.idx()), at(used, resource.idx()));
                if asked > 0 && asked + used > i128::from(*max) {
                    let limit = QueueMaximum::of_all(level, *resource);
                    return Some(MoveLack::of(&self.columns, limit, asked, used, *max, Some(owner)));
                }
            }
        }
        let mut entered = self.sums.limited_upwards(to).filter(|level| !self.sums.is_below(from, *level));
        entered.find_map(|level| {
            let mut limits = self.sums.limits(level).map(|resource| (resource, at(&asked, resource.idx())));
            let lacks = |(resource, asked): &(ResourceIdx, i128)| {
                *asked > 0 && *asked > i128::from(self.sums.room(level, *resource))
            };
            let (resource, asked) = limits.find(lacks)?;
            let (used, max) = (self.sums.used_of(level, resource), self.sums.max(level, resource));
            let limit = QueueMaximum::of_all(level, resource);
            Some(MoveLack::of(&self.columns, limit, asked, used, max, None))
        })
    }

    /// Used of a resource by one owner in a queue and below it; `None` while the queue does not limit owners, or does not know
    /// this one.
    pub fn used_by_owner(&self, queue: QueueIdx, owner: &str, name: &str) -> Option<i128> {
        let limit = self.owners.limit_named(queue, owner)?;
        Some(self.columns.find(name).map_or(0, |resource| self.owners.used(limit, resource)))
    }

    /// How much a maximum allows.
    pub fn max_of(&self, limit: QueueMaximum) -> i64 {
        match limit.owner {
            Some(owner) => self.owners.room(owner, limit.resource).saturating_add(self.taken_of(limit)),
            None => self.sums.max(limit.queue, limit.resource),
        }
    }

    /// Taken of what a maximum is about.
    pub fn taken_of(&self, limit: QueueMaximum) -> i64 {
        let used = match limit.owner {
            Some(owner) => self.owners.used(owner, limit.resource),
            None => self.sums.used_of(limit.queue, limit.resource),
        };
        i64::try_from(used).unwrap_or(i64::MAX)
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
            let lacks = usage.sums().lacks(x, &asked);
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
        usage.sums_mut().lend(a, &gives, 1);
        assert_eq!((told(usage, 1), told(usage, 2)), (vec![], vec![(x, 1, false), (a, 2, false)]));
        let asked = usage.sum(&[Need { n: 2, ..one }]);
        let exceeded = |usage: &Usage, more: i128| usage.exceeded(x, &asked, |_, _| more);
        assert_eq!(exceeded(usage, 2), None);
        assert_eq!(exceeded(usage, 1).map(|limit| limit.queue), Some(a));
        usage.sums_mut().lend(a, &gives, -1);
        assert!(usage.sums().share_maximum(x, y) && usage.sums().share_maximum(a, x));
        assert!(!usage.sums().share_maximum(x, QueueIdx::DEFAULT));
    }
}
