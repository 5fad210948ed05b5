//! What the running units of each owner take of a queue, and of the queues above it that limit what one owner takes.
//!
//! Every pair of a queue and an owner has sums, with or without a limit, so that a limit that comes later starts from them.
//! An owner under a limit has one more sum for the queue that sets it, which counts the owner's running units in all queues
//! below. Pairs without units and without anything counted give their place to others.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Amounts, QueueMaximum, ResourceIdx, UNLIMITED};
use crate::QueueIdx;

/// Marks the numbers of owners in queues among those of queues.
const OWNER: u32 = 1 << 31;
/// Pairs without units that are looked at before one more place is made.
const N_IDLE_LOOKS: usize = 4;

/// Who pays for a running unit: an owner in a queue, or only a queue, where the owner is not known or does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayerIdx(u32);

/// An owner under a limit of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerLimitIdx(u32);

impl From<QueueIdx> for PayerIdx {
    fn from(queue: QueueIdx) -> Self {
        Self(queue.0)
    }
}

impl PayerIdx {
    /// Position in the table of owners; `None`: the payer is a queue.
    fn owner(self) -> Option<usize> {
        (self.0 & OWNER != 0).then_some((self.0 & !OWNER) as usize)
    }
}

/// Most that one owner takes, by column.
pub(super) type OwnerMax = SmallVec<[(ResourceIdx, i64); 2]>;

#[derive(Clone, Debug)]
struct Payer {
    queue: QueueIdx,
    owner: Arc<str>,
    used: Amounts,
    /// Limits that it is under, the lowest first.
    limits: SmallVec<[OwnerLimitIdx; 2]>,
    /// Units that were given this payer and have not given it back.
    n_units: u32,
    /// It stands in the list of those that may give their place away.
    is_idle: bool,
}

#[derive(Clone, Debug)]
struct OwnerLimit {
    queue: QueueIdx,
    owner: Arc<str>,
    used: Amounts,
    max: OwnerMax,
    n_payers: u32,
}

/// By queue, and in it by owner.
type ByOwner<I> = FxHashMap<QueueIdx, FxHashMap<Arc<str>, I>>;

/// All owners that have units, and what they take.
#[derive(Clone, Debug, Default)]
pub struct OwnerTable {
    payers: Vec<Payer>,
    payer_of: ByOwner<PayerIdx>,
    free_payers: Vec<PayerIdx>,
    idle: VecDeque<PayerIdx>,
    limits: Vec<OwnerLimit>,
    limit_of: ByOwner<OwnerLimitIdx>,
    free_limits: Vec<OwnerLimitIdx>,
    /// Of queues that limit owners.
    max: FxHashMap<QueueIdx, OwnerMax>,
}

impl OwnerTable {
    /// One unit more of an owner in a queue, which has this payer until [`Self::leave`]; `upwards` are the queue and those above it, the lowest first.
    pub(crate) fn enter(
        &mut self,
        queue: QueueIdx,
        owner: &str,
        upwards: impl Iterator<Item = QueueIdx>,
    ) -> PayerIdx {
        if let Some(known) = self.payer_of.get(&queue).and_then(|owners| owners.get(owner)) {
            let known = *known;
            self.payer_mut(known).n_units += 1;
            return known;
        }
        self.reclaim();
        let owner: Arc<str> = Arc::from(owner);
        let (used, limits) = (Amounts::new(), SmallVec::new());
        let fresh = Payer { queue, owner: Arc::clone(&owner), used, limits, n_units: 1, is_idle: false };
        let payer = match self.free_payers.pop() {
            Some(payer) => {
                *self.payer_mut(payer) = fresh;
                payer
            }
            None => {
                self.payers.push(fresh);
                PayerIdx(OWNER | number(self.payers.len() - 1))
            }
        };
        self.payer_of.entry(queue).or_default().insert(owner, payer);
        if !self.max.is_empty() {
            self.link(payer, upwards);
        }
        payer
    }

    /// One unit less; of a queue nothing happens.
    pub(crate) fn leave(&mut self, payer: PayerIdx) {
        let Some(known) = payer.owner().and_then(|at| self.payers.get_mut(at)) else { return };
        known.n_units = known.n_units.saturating_sub(1);
        if known.n_units == 0 && !known.is_idle {
            known.is_idle = true;
            self.idle.push_back(payer);
        }
    }

    /// The queue that a payer pays in.
    pub fn queue(&self, payer: PayerIdx) -> QueueIdx {
        payer.owner().map_or(QueueIdx(payer.0), |at| self.payers[at].queue)
    }

    /// Counts so often what is asked for, and returns the queue that it counts in as well.
    pub(super) fn charge(&mut self, payer: PayerIdx, ask: &[(ResourceIdx, i64)], n: i64) -> QueueIdx {
        let Some(at) = payer.owner() else { return QueueIdx(payer.0) };
        let Self { payers, limits, .. } = self;
        let payer = &mut payers[at];
        add(&mut payer.used, ask, n);
        for limit in &payer.limits {
            add(&mut limits[limit.0 as usize].used, ask, n);
        }
        payer.queue
    }

    /// Limits of owners that a payer is under, the lowest first.
    pub(crate) fn limits(&self, payer: PayerIdx) -> &[OwnerLimitIdx] {
        payer.owner().map_or(&[], |at| self.payers[at].limits.as_slice())
    }

    /// Limits of these queues for the owner of a payer: the queue, the owner, what one may take and what the owner takes.
    pub(super) fn limits_in<'a>(
        &'a self,
        payer: PayerIdx,
        upwards: impl Iterator<Item = QueueIdx> + 'a,
    ) -> impl Iterator<Item = (QueueIdx, &'a str, &'a [(ResourceIdx, i64)], &'a [i128])> + 'a {
        let owner = payer.owner().map(|at| &*self.payers[at].owner);
        upwards.filter_map(move |level| {
            let (owner, max) = (owner?, self.max.get(&level)?);
            let limit = self.limit_named(level, owner);
            let used = limit.map_or(&[][..], |limit| self.limits[limit.0 as usize].used.as_slice());
            Some((level, owner, max.as_slice(), used))
        })
    }

    /// Most that an owner under a limit may take, by column.
    pub(super) fn max(&self, limit: OwnerLimitIdx) -> &[(ResourceIdx, i64)] {
        self.limits.get(limit.0 as usize).map_or(&[], |limit| limit.max.as_slice())
    }

    /// The queue whose limit it is, and the owner under it.
    pub(super) fn name(&self, limit: OwnerLimitIdx) -> Option<(QueueIdx, &str)> {
        self.limits.get(limit.0 as usize).map(|limit| (limit.queue, &*limit.owner))
    }

    /// The limit of a queue for an owner with units below it.
    pub(super) fn limit_named(&self, queue: QueueIdx, owner: &str) -> Option<OwnerLimitIdx> {
        self.limit_of.get(&queue)?.get(owner).copied()
    }

    /// Taken of a column under a limit.
    pub(super) fn used(&self, limit: OwnerLimitIdx, resource: ResourceIdx) -> i128 {
        self.limits.get(limit.0 as usize).map_or(0, |limit| super::at(&limit.used, resource.idx()))
    }

    /// Left of a column under a limit, without end where there is none.
    pub(crate) fn room(&self, limit: OwnerLimitIdx, resource: ResourceIdx) -> i64 {
        let max = self.max(limit).iter().find(|(other, _)| *other == resource);
        let Some((_, max)) = max else { return UNLIMITED };
        i64::try_from(i128::from(*max) - self.used(limit, resource)).unwrap_or(i64::MIN)
    }

    /// The owner whom a maximum is about.
    pub(crate) fn owner_of(&self, limit: QueueMaximum) -> Option<&str> {
        self.name(limit.owner?).map(|(_, owner)| owner)
    }

    /// Of what is asked that a limit names: the column, how much once, and the room there.
    pub(super) fn asked_under<'a>(
        &'a self,
        limit: OwnerLimitIdx,
        ask: &'a [(ResourceIdx, i64)],
    ) -> impl Iterator<Item = (ResourceIdx, i64, i64)> + 'a {
        let named = self.max(limit).iter();
        let asked = move |resource: ResourceIdx| ask.iter().find(|(other, _)| *other == resource);
        let asked = named.filter_map(move |(resource, _)| asked(*resource)).filter(|(_, amount)| *amount > 0);
        asked.map(move |(resource, amount)| (*resource, *amount, self.room(limit, *resource)))
    }

    /// The maximum of a resource under a limit.
    pub(super) fn maximum(&self, limit: OwnerLimitIdx, resource: ResourceIdx) -> Option<QueueMaximum> {
        let (queue, _) = self.name(limit)?;
        Some(QueueMaximum { queue, resource, owner: Some(limit) })
    }

    /// The first limit of a payer's owner under which so much of each resource does not fit.
    pub(super) fn lacking(
        &self,
        payer: PayerIdx,
        asked: impl Fn(ResourceIdx) -> i128,
    ) -> Option<QueueMaximum> {
        self.limits(payer).iter().find_map(|limit| {
            let mut named = self.max(*limit).iter().map(|(resource, _)| *resource);
            let is_short = |resource: &ResourceIdx| {
                let asked = asked(*resource);
                asked > 0 && asked > i128::from(self.room(*limit, *resource))
            };
            self.maximum(*limit, named.find(is_short)?)
        })
    }

    /// What a queue lets one owner take from now on; nothing: no limit. `upwards` says the queues above another one, itself
    /// first. `O(payers)` if the limit comes or goes.
    pub(super) fn set_max<U: Iterator<Item = QueueIdx>>(
        &mut self,
        queue: QueueIdx,
        max: OwnerMax,
        upwards: impl Fn(QueueIdx) -> U,
    ) {
        let known = self.max.get(&queue);
        if known.map_or(&[][..], SmallVec::as_slice) == max.as_slice() {
            return;
        }
        let is_other = known.is_some() == max.is_empty();
        if max.is_empty() {
            self.max.remove(&queue);
        } else {
            for limit in self.limit_of.get(&queue).into_iter().flat_map(FxHashMap::values) {
                self.limits[limit.0 as usize].max.clone_from(&max);
            }
            self.max.insert(queue, max);
        }
        if !is_other {
            return;
        }
        let all: Vec<PayerIdx> = self.payer_of.values().flat_map(FxHashMap::values).copied().collect();
        let mut given_up = Vec::new();
        for payer in all {
            let of = self.queue(payer);
            if upwards(of).any(|level| level == queue) {
                let before = std::mem::take(&mut self.payer_mut(payer).limits);
                self.link(payer, upwards(of));
                self.unlink(payer, &before, &mut given_up);
            }
        }
        // Only now: who waits under one of these is told before it stands for somebody else.
        self.free_limits.extend(given_up);
    }

    /// Nothing is used, and no unit is known.
    pub(super) fn reset(&mut self) {
        let all: Vec<PayerIdx> = self.payer_of.values().flat_map(FxHashMap::values).copied().collect();
        for payer in all {
            let known = self.payer_mut(payer);
            known.used.clear();
            known.n_units = 0;
            if !std::mem::replace(&mut known.is_idle, true) {
                self.idle.push_back(payer);
            }
        }
        self.limits.iter_mut().for_each(|limit| limit.used.clear());
    }

    /// Makes a place of one that nobody needs any more, if there is one.
    fn reclaim(&mut self) {
        for _ in 0..N_IDLE_LOOKS {
            let Some(payer) = self.idle.pop_front() else { return };
            let known = self.payer_mut(payer);
            if known.n_units > 0 {
                known.is_idle = false;
                continue;
            }
            if known.used.iter().any(|amount| *amount != 0) {
                self.idle.push_back(payer);
                continue;
            }
            known.is_idle = false;
            let (queue, owner) = (known.queue, Arc::clone(&known.owner));
            let limits = std::mem::take(&mut known.limits);
            let mut given_up = Vec::new();
            self.unlink(payer, &limits, &mut given_up);
            self.free_limits.extend(given_up);
            forget(&mut self.payer_of, queue, &owner);
            self.free_payers.push(payer);
            return;
        }
    }

    /// A payer is under the limits of these queues, with all that it takes.
    fn link(&mut self, payer: PayerIdx, upwards: impl Iterator<Item = QueueIdx>) {
        let limited: SmallVec<[QueueIdx; 4]> = upwards.filter(|level| self.max.contains_key(level)).collect();
        let owner = Arc::clone(&self.payer_mut(payer).owner);
        let used = self.payer_mut(payer).used.clone();
        for level in limited {
            let limit = self.limit(level, &owner);
            let under = &mut self.limits[limit.0 as usize];
            under.n_payers += 1;
            super::sum_of(&mut under.used, &used, 1);
            self.payer_mut(payer).limits.push(limit);
        }
    }

    /// A payer is no longer under these limits; those that nobody is under go to `given_up`.
    fn unlink(&mut self, payer: PayerIdx, limits: &[OwnerLimitIdx], given_up: &mut Vec<OwnerLimitIdx>) {
        let used = self.payer_mut(payer).used.clone();
        for limit in limits {
            let under = &mut self.limits[limit.0 as usize];
            super::sum_of(&mut under.used, &used, -1);
            under.n_payers -= 1;
            if under.n_payers == 0 {
                under.max.clear();
                let (queue, owner) = (under.queue, Arc::clone(&under.owner));
                forget(&mut self.limit_of, queue, &owner);
                given_up.push(*limit);
            }
        }
    }

    /// An owner under the limit of a queue, made now if it is new.
    fn limit(&mut self, queue: QueueIdx, owner: &Arc<str>) -> OwnerLimitIdx {
        if let Some(known) = self.limit_of.get(&queue).and_then(|owners| owners.get(owner)) {
            return *known;
        }
        let max = self.max.get(&queue).cloned().unwrap_or_default();
        let fresh = OwnerLimit { queue, owner: Arc::clone(owner), used: Amounts::new(), max, n_payers: 0 };
        let limit = match self.free_limits.pop() {
            Some(limit) => {
                self.limits[limit.0 as usize] = fresh;
                limit
            }
            None => {
                self.limits.push(fresh);
                OwnerLimitIdx(number(self.limits.len() - 1))
            }
        };
        self.limit_of.entry(queue).or_default().insert(Arc::clone(owner), limit);
        limit
    }

    fn payer_mut(&mut self, payer: PayerIdx) -> &mut Payer {
        &mut self.payers[(payer.0 & !OWNER) as usize]
    }
}

fn forget<I>(by_owner: &mut ByOwner<I>, queue: QueueIdx, owner: &str) {
    if let Some(owners) = by_owner.get_mut(&queue) {
        owners.remove(owner);
        if owners.is_empty() {
            by_owner.remove(&queue);
        }
    }
}

fn add(used: &mut Amounts, ask: &[(ResourceIdx, i64)], n: i64) {
    if let Some((last, _)) = ask.last()
        && used.len() <= last.idx()
    {
        used.resize(last.idx() + 1, 0);
    }
    for (resource, amount) in ask {
        used[resource.idx()] += i128::from(*amount) * i128::from(n);
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).ok().filter(|n| n & OWNER == 0).expect("memory ends before 2^31 owners")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::AskColumns;

    const CPU: ResourceIdx = ResourceIdx(1);
    const A: QueueIdx = QueueIdx(2);
    const X: QueueIdx = QueueIdx(3);
    const Y: QueueIdx = QueueIdx(4);

    /// `X` and `Y` are below `A`.
    fn upwards(queue: QueueIdx) -> impl Iterator<Item = QueueIdx> {
        [Some(queue), (queue != A).then_some(A)].into_iter().flatten()
    }

    fn cpu(n: i64) -> AskColumns {
        AskColumns::from_slice(&[(CPU, n)])
    }

    fn limit(n: i64) -> OwnerMax {
        OwnerMax::from_slice(&[(CPU, n)])
    }

    fn rooms(table: &OwnerTable, payer: PayerIdx) -> Vec<(u32, i64)> {
        table.limits(payer).iter().map(|one| (table.name(*one).unwrap().0.0, table.room(*one, CPU))).collect()
    }

    #[test]
    fn a_limit_counts_an_owner_in_all_queues_below() {
        let mut table = OwnerTable::default();
        let [ann_x, ann_y, bob_x] = [(X, "ann"), (Y, "ann"), (X, "bob")]
            .map(|(queue, owner)| table.enter(queue, owner, upwards(queue)));
        assert_eq!(table.enter(X, "ann", upwards(X)), ann_x);
        assert_eq!((table.charge(ann_x, &cpu(2), 2), table.queue(bob_x)), (X, X));
        table.charge(ann_y, &cpu(1), 1);
        assert!(rooms(&table, ann_x).is_empty());
        // A limit that comes later starts from what is used.
        table.set_max(A, limit(10), upwards);
        table.set_max(X, limit(4), upwards);
        assert_eq!(rooms(&table, ann_x), [(X.0, 0), (A.0, 5)]);
        assert_eq!((rooms(&table, ann_y), rooms(&table, bob_x)), (vec![(A.0, 5)], vec![(X.0, 4), (A.0, 10)]));
        table.charge(ann_y, &cpu(3), 1);
        table.set_max(A, limit(20), upwards);
        assert_eq!(rooms(&table, ann_x), [(X.0, 0), (A.0, 12)]);
        table.set_max(X, OwnerMax::new(), upwards);
        assert_eq!(rooms(&table, ann_x), [(A.0, 12)]);
        table.set_max(A, OwnerMax::new(), upwards);
        assert!(rooms(&table, ann_x).is_empty());
        assert_eq!(table.room(OwnerLimitIdx(0), CPU), UNLIMITED, "nobody waits there");
    }

    #[test]
    fn places_are_given_to_others_once_nothing_is_counted() {
        let mut table = OwnerTable::default();
        table.set_max(A, limit(3), upwards);
        let ann = table.enter(X, "ann", upwards(X));
        table.charge(ann, &cpu(1), 1);
        table.leave(ann);
        let bob = table.enter(X, "bob", upwards(X));
        assert_ne!(bob, ann, "something of ann's still runs");
        table.charge(ann, &cpu(1), -1);
        let eve = table.enter(X, "eve", upwards(X));
        assert_eq!((eve, rooms(&table, eve)), (ann, vec![(A.0, 3)]));
        table.leave(PayerIdx::from(X));
        for n in 0..1_000 {
            let one = table.enter(Y, &format!("owner-{n}"), upwards(Y));
            table.charge(one, &cpu(1), 1);
            table.charge(one, &cpu(1), -1);
            table.leave(one);
        }
        assert!(table.payers.len() < 10 && table.limits.len() < 10, "{}", table.payers.len());
    }
}
