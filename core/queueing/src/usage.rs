//! What each queue uses, against what it may and what it is guaranteed: sums by small integers.
//!
//! A row per queue: running units first, then amounts by resource. What a running unit takes is interned, so that a
//! change costs a few additions per level and a question a few comparisons; no name is looked at and nothing is
//! allocated. The binder counts what is bound or under way, the dispatcher also what it handed out.

use std::collections::BTreeSet;

use godel_base::resources::{CPU, MEMORY, N_NAMES_MAX};
use godel_domain::demand::Demand;
use smallvec::SmallVec;

use super::{
    limit_gate::LimitRow,
    tree::{QueueIdx, QueueTree},
};

mod choice;
mod guarantee;
mod maxima;
mod owners;
mod scale;

use self::{choice::InternedAsks, owners::OwnerTable, scale::Scale};

pub use self::{
    guarantee::{Amounts, at},
    maxima::{Lack, MoveLack, sum_of},
    owners::{OwnerLimitIdx, PayerIdx},
};

/// Most resources told apart: what a cluster may have, and as many kinds of devices. One that comes later is not
/// counted, and no queue may name it.
const N_RESOURCES_MAX: usize = 2 * N_NAMES_MAX;
/// The first column: running units.
const RUNNING_UNITS: ResourceIdx = ResourceIdx(0);
/// What follows the name of a resource where it is that of what application masters take. No resource has a blank in its name.
const OF_MASTERS: &str = " of application masters";
/// Of an amount without a maximum.
const UNLIMITED: i64 = i64::MAX;
/// A resource as a column: running units, or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceIdx(u8);

impl ResourceIdx {
    pub(super) fn idx(self) -> usize {
        usize::from(self.0)
    }
}

/// What a running unit takes, any one of several, or so many of several together; interned by [`Usage::intern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(u32);

/// Amounts by column, ascending.
type AskColumns = SmallVec<[(ResourceIdx, i64); 4]>;

/// How often something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Need {
    /// What.
    pub ask: AskId,
    /// How often.
    pub n: u32,
}

/// A maximum of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueMaximum {
    /// The queue.
    pub queue: QueueIdx,
    /// Of what.
    pub resource: ResourceIdx,
    /// The maximum is what the queue lets this owner take; `None`: what all running units take.
    pub owner: Option<OwnerLimitIdx>,
}

impl QueueMaximum {
    fn of_all(queue: QueueIdx, resource: ResourceIdx) -> Self {
        Self { queue, resource, owner: None }
    }
}

/// What still fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How often. `u32::MAX`: without end.
    pub n: u32,
    /// What ends it: of equal ones the lowest in the tree.
    pub limit: Option<QueueMaximum>,
}

/// Why something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) limit: QueueMaximum,
    /// Asked for.
    pub(super) amount: i64,
    /// Not even if nothing else were there.
    pub(super) is_hopeless: bool,
}

/// Rank of a queue among its siblings, the smallest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShareKey {
    /// Has its guarantee.
    pub borrows: bool,
    /// Weighted dominant share.
    pub share: u64,
}

/// Sums per queue.
#[derive(Clone, Debug)]
pub struct Usage {
    names: Vec<String>,
    asks: InternedAsks,
    queues: Vec<Meta>,
    /// Rows of as many columns as there are names. Wide enough for a hundred thousand running units of the largest
    /// demand, handed out before anybody looked whether they fit anywhere.
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
    /// By column.
    scales: Vec<Scale>,
    /// Queues that guarantee something.
    n_guaranteed: usize,
    /// By column, that of the same resource as far as application masters take it.
    of_masters: Vec<Option<ResourceIdx>>,
    n_of_masters: usize,
    owners: OwnerTable,
}

/// Which sums.
#[derive(Clone, Copy, Debug)]
enum SumKind {
    Used,
    Bound,
    Leaving,
    Promised,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    parent: QueueIdx,
    weight: u32,
    is_limited: bool,
    is_guaranteed: bool,
}

impl Default for Usage {
    fn default() -> Self {
        let mut usage = Self {
            names: Vec::new(),
            asks: InternedAsks::default(),
            queues: Vec::new(),
            used: Vec::new(),
            bound: Vec::new(),
            leaving: Vec::new(),
            promised: Vec::new(),
            lent: Vec::new(),
            max: Vec::new(),
            guaranteed: Vec::new(),
            scales: Vec::new(),
            n_guaranteed: 0,
            of_masters: Vec::new(),
            n_of_masters: 0,
            owners: OwnerTable::default(),
        };
        for name in ["running units", CPU, MEMORY] {
            usage.column(name);
        }
        usage
    }
}

impl Usage {
    /// Takes over what the record of a queue says, and makes a row for it and for every queue interned before.
    pub fn update_queue(&mut self, tree: &QueueTree, queue: QueueIdx) {
        self.grow(tree);
        let record = tree.record(queue);
        let (mut max, mut guaranteed) = (Vec::new(), Vec::new());
        for (name, &amount) in record.iter().flat_map(|record| &record.max) {
            max.extend(self.resource(name).map(|resource| (resource, amount)));
        }
        let n_max = record.map_or(0, |record| record.max_running_units);
        max.extend((n_max > 0).then_some((RUNNING_UNITS, i64::from(n_max))));
        for (name, amount) in record.iter().flat_map(|record| record.max_of_masters()) {
            let column = self.resource(name).map(|resource| self.column_of_masters(resource));
            max.extend(column.map(|resource| (resource, amount)));
        }
        let mut per_owner = SmallVec::new();
        for (name, &amount) in record.iter().flat_map(|record| &record.max_per_owner) {
            per_owner.extend(self.resource(name).map(|resource| (resource, amount.max(0))));
        }
        let limits_owners = !per_owner.is_empty();
        self.owners.set_max(queue, per_owner, |of| tree.upwards(of));
        for (name, &amount) in tree.guaranteed(queue) {
            guaranteed.extend(self.resource(name).map(|resource| (resource, amount)));
        }
        let row = self.row(queue);
        self.max[row.clone()].fill(UNLIMITED);
        self.guaranteed[row.clone()].fill(0);
        for &(resource, amount) in &max {
            self.max[row.start + resource.idx()] = amount.max(0);
        }
        for &(resource, amount) in &guaranteed {
            self.guaranteed[row.start + resource.idx()] = amount;
        }
        let meta = &mut self.queues[queue.idx()];
        meta.weight = tree.weight(queue);
        self.n_guaranteed -= usize::from(meta.is_guaranteed);
        meta.is_limited = !max.is_empty() || limits_owners;
        meta.is_guaranteed = !guaranteed.is_empty();
        self.n_guaranteed += usize::from(meta.is_guaranteed);
    }

    /// Makes a row for every queue that has none.
    pub fn grow(&mut self, tree: &QueueTree) {
        if self.queues.len() == tree.len() {
            return;
        }
        for idx in self.queues.len()..tree.len() {
            let queue = QueueIdx(u32::try_from(idx).expect("queues are numbered in 32 bits"));
            let (parent, weight) = (tree.parent(queue), tree.weight(queue));
            self.queues.push(Meta { parent, weight, is_limited: false, is_guaranteed: false });
        }
        let len = self.queues.len() * self.names.len();
        self.used.resize(len, 0);
        self.bound.resize(len, 0);
        self.leaving.resize(len, 0);
        self.promised.resize(len, 0);
        self.lent.resize(len, 0);
        self.max.resize(len, UNLIMITED);
        self.guaranteed.resize(len, 0);
    }

    /// What a running unit of this demand takes, devices by their kind in thousandths; kept until
    /// [`Self::release`].
    pub fn intern(&mut self, demand: &Demand) -> AskId {
        let mut ask = AskColumns::from_slice(&[(RUNNING_UNITS, 1)]);
        for (name, amount) in demand.requests.iter() {
            if let Some(resource) = self.resource(name) {
                add(&mut ask, resource, amount);
            }
        }
        for devices in &demand.devices {
            if let Some(resource) = self.resource(&devices.kind) {
                add(&mut ask, resource, i64::from(devices.count) * i64::from(devices.milli));
            }
        }
        self.asks.intern(ask)
    }

    /// The same of an application master, which counts beside all else as one; kept until [`Self::release`].
    pub fn intern_master(&mut self, ask: AskId) -> AskId {
        let mut all = AskColumns::from_slice(self.ask(ask));
        for (resource, amount) in all.clone().into_iter().filter(|(resource, _)| *resource != RUNNING_UNITS) {
            let column = self.column_of_masters(resource);
            add(&mut all, column, amount);
        }
        self.asks.intern(all)
    }

    /// Any one of several asks, which must be used longer; kept until [`Self::release`].
    pub(crate) fn intern_any(&mut self, asks: impl IntoIterator<Item = AskId>) -> AskId {
        self.asks.intern_any(asks)
    }

    /// `n` of these together take at least this, those of each up to its minimum and any others beyond; kept until [`Self::release`].
    pub(crate) fn intern_least(&mut self, of: &[(Need, u32)], n: u32) -> AskId {
        self.asks.intern_least(of, n)
    }

    /// One use more.
    pub fn retain(&mut self, ask: AskId) {
        self.asks.retain(ask);
    }

    /// Ends one use. What is counted must be in use: its amounts are needed to end that.
    pub fn release(&mut self, ask: AskId) {
        self.asks.release(ask);
    }

    /// Counts a need of a payer, in its queue and all above it. `O(depth)`.
    pub fn add(&mut self, payer: impl Into<PayerIdx>, need: Need) {
        self.charge(payer.into(), need, 1);
    }

    /// Ends an [`Self::add`]. `O(depth)`.
    pub fn sub(&mut self, payer: impl Into<PayerIdx>, need: Need) {
        self.charge(payer.into(), need, -1);
    }

    fn charge(&mut self, payer: PayerIdx, need: Need, sign: i64) {
        let n = i64::from(need.n) * sign;
        let queue = self.owners.charge(payer, self.asks.columns(need.ask), n);
        self.count(queue, need, sign, SumKind::Used);
    }

    /// Notes that so much of what is counted is bound (`sign` 1) or no more (-1): shown, not judged. `O(depth)`.
    pub(super) fn note_bound(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.count(queue, need, sign, SumKind::Bound);
    }

    /// Nothing is used.
    pub fn clear(&mut self) {
        let Self { used, bound, leaving, promised, lent, .. } = self;
        for sums in [used, bound, leaving, promised, lent] {
            sums.fill(0);
        }
        self.owners.reset();
    }

    /// Used of a resource, 0 of one that nobody ever named.
    pub fn used(&self, queue: QueueIdx, name: &str) -> i128 {
        self.find(name).map_or(0, |resource| self.used_of(queue, resource))
    }

    /// Running units counted.
    pub fn running_units(&self, queue: QueueIdx) -> i128 {
        self.used_of(queue, RUNNING_UNITS)
    }

    /// What is used, by name; running units apart.
    pub fn iter_used(&self, queue: QueueIdx) -> impl Iterator<Item = (&str, i128)> {
        let used = self.row_of(queue, &self.used);
        self.names
            .iter()
            .map(String::as_str)
            .zip(used.iter().copied())
            .skip(1)
            .filter(|(name, used)| *used > 0 && is_shown(name))
    }

    /// Of what is used, what is bound, where that is told apart: running units and, by name, amounts.
    pub fn bound(&self, queue: QueueIdx) -> (i128, impl Iterator<Item = (&str, i128)>) {
        let bound = self.row_of(queue, &self.bound);
        let amounts = self.names.iter().map(String::as_str).zip(bound.iter().copied()).skip(1);
        (bound[RUNNING_UNITS.idx()], amounts.filter(|(name, amount)| *amount > 0 && is_shown(name)))
    }

    /// As shown: `cpu`, or `running units`.
    pub fn resource_name(&self, resource: ResourceIdx) -> &str {
        self.names.get(resource.idx()).map_or("?", String::as_str)
    }

    /// Whether a resource is known, or there is place for it beside others that are new.
    pub(super) fn has_place_for<'a>(&self, name: &'a str, new: &mut BTreeSet<&'a str>) -> bool {
        self.find(name).is_some() || new.contains(name) || {
            new.insert(name);
            self.n_resources() + new.len() <= N_RESOURCES_MAX
        }
    }

    /// All that the cluster has: the whole of which shares are part. False if that makes no difference.
    pub fn set_total<'a>(&mut self, total: impl IntoIterator<Item = (&'a str, i64)>) -> bool {
        let mut totals = vec![0; self.names.len()];
        for (name, amount) in total {
            if let Some(resource) = self.resource(name) {
                totals.resize(self.names.len().max(totals.len()), 0);
                totals[resource.idx()] = amount;
            }
        }
        let is_stale = self.scales.iter().zip(&totals).skip(1).any(|(scale, total)| scale.is_stale(*total));
        if is_stale {
            self.scales = totals.into_iter().map(Scale::new).collect();
            self.scales[RUNNING_UNITS.idx()] = Scale::default();
        }
        is_stale
    }

    /// Rank of a queue among its siblings: below its guarantee first, then by dominant share over weight (Ghodsi et
    /// al. 2011, 4.3), with half of what one of its running units takes on average.
    ///
    /// What comes next is given to one queue whole. Without that half each queue would be ahead by half of it as a rule, whatever its weight, and
    /// those of little weight would have more than their part of few places (the divisors of Sainte-Laguë instead of Adams' in
    /// Balinski and Young: *Fair Representation*, 1982).
    ///
    /// A guarantee is met once one of the resources that it names is used up: who uses one of them only would
    /// otherwise come first for ever.
    pub fn share_key(&self, queue: QueueIdx) -> ShareKey {
        self.key_of(queue, self.row_of(queue, &self.used))
    }

    /// The same with this used as well.
    pub(super) fn share_key_with(&self, queue: QueueIdx, more: Need) -> ShareKey {
        let mut used: SmallVec<[i128; 4]> = SmallVec::from_slice(self.row_of(queue, &self.used));
        self.add_to(&mut used, more, 1);
        self.key_of(queue, &used)
    }

    fn key_of(&self, queue: QueueIdx, used: &[i128]) -> ShareKey {
        let meta = &self.queues[queue.idx()];
        let guaranteed = self.row_of(queue, &self.guaranteed);
        let is_met = |(used, min): (&i128, &i64)| *min > 0 && *used >= i128::from(*min);
        let borrows = !meta.is_guaranteed || used.iter().zip(guaranteed).any(is_met);
        let share = self.dominant_share(used);
        let n_running = u64::try_from(used[RUNNING_UNITS.idx()]).unwrap_or(0);
        let half = share.checked_div(n_running.saturating_mul(2)).unwrap_or(0);
        ShareKey { borrows, share: share.saturating_add(half) / u64::from(meta.weight) }
    }

    /// The largest share that a row has of any resource.
    pub(super) fn dominant_share(&self, row: &[i128]) -> u64 {
        row.iter().zip(&self.scales).map(|(used, scale)| scale.share(*used)).max().unwrap_or(0)
    }

    /// Left under a maximum: less than nothing where more is used than allowed, without end where there is none.
    pub(super) fn room(&self, queue: QueueIdx, resource: ResourceIdx) -> i64 {
        let max = self.max(queue, resource);
        if max == UNLIMITED {
            return UNLIMITED;
        }
        let used = self.used_of(queue, resource) - self.lent_of(queue, resource);
        i64::try_from(i128::from(max) - used).unwrap_or(i64::MIN)
    }

    pub(super) fn is_limited(&self, queue: QueueIdx) -> bool {
        self.queues[queue.idx()].is_limited
    }

    /// Columns of which a queue has a maximum.
    pub(super) fn limits(&self, queue: QueueIdx) -> impl Iterator<Item = ResourceIdx> + '_ {
        let max = self.row_of(queue, &self.max);
        (0u8..).zip(max).filter(|(_, max)| **max != UNLIMITED).map(|(resource, _)| ResourceIdx(resource))
    }

    /// Of a need, by column; 0 of what it does not ask for.
    pub(super) fn amount(&self, need: Need, resource: ResourceIdx) -> i64 {
        self.asks.amount(need, resource)
    }

    /// Adds `sign` × a need to a row of the caller's, which grows as it must.
    pub(super) fn add_to(&self, row: &mut SmallVec<[i128; 4]>, need: Need, sign: i128) {
        for &(resource, amount) in self.ask(need.ask) {
            if row.len() <= resource.idx() {
                row.resize(resource.idx() + 1, 0);
            }
            row[resource.idx()] += i128::from(amount) * i128::from(need.n) * sign;
        }
    }

    /// How much a maximum allows.
    pub fn max_of(&self, limit: QueueMaximum) -> i64 {
        match limit.owner {
            Some(owner) => self.room_of_owner(owner, limit.resource).saturating_add(self.taken_of(limit)),
            None => self.max(limit.queue, limit.resource),
        }
    }

    /// The queue and those above it that have a maximum.
    pub(super) fn limited_upwards(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
        let up = move |level: &QueueIdx| Some(self.queues[level.idx()].parent);
        std::iter::successors(Some(queue), up)
            .take_while(|level| *level != QueueIdx::ROOT)
            .filter(|level| self.is_limited(*level))
    }

    fn count(&mut self, queue: QueueIdx, need: Need, sign: i64, sums: SumKind) {
        let ask = self.asks.columns(need.ask);
        let sums = match sums {
            SumKind::Used => &mut self.used,
            SumKind::Bound => &mut self.bound,
            SumKind::Leaving => &mut self.leaving,
            SumKind::Promised => &mut self.promised,
        };
        let (n, width) = (i64::from(need.n) * sign, self.names.len());
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

    fn ask(&self, ask: AskId) -> &[(ResourceIdx, i64)] {
        self.asks.columns(ask)
    }

    fn max(&self, queue: QueueIdx, resource: ResourceIdx) -> i64 {
        self.max[queue.idx() * self.names.len() + resource.idx()]
    }

    fn used_of(&self, queue: QueueIdx, resource: ResourceIdx) -> i128 {
        self.used[queue.idx() * self.names.len() + resource.idx()]
    }

    fn row(&self, queue: QueueIdx) -> std::ops::Range<usize> {
        let width = self.names.len();
        queue.idx() * width..(queue.idx() + 1) * width
    }

    fn row_of<'a, T>(&self, queue: QueueIdx, column: &'a [T]) -> &'a [T] {
        &column[self.row(queue)]
    }

    /// There are few: looking through them beats hashing.
    fn find(&self, name: &str) -> Option<ResourceIdx> {
        let at = self.names.iter().skip(1).position(|known| known == name)?;
        u8::try_from(at + 1).ok().map(ResourceIdx)
    }

    /// The column of a resource, made now if it is new; `None` when there are too many.
    fn resource(&mut self, name: &str) -> Option<ResourceIdx> {
        self.find(name).or_else(|| (self.n_resources() < N_RESOURCES_MAX).then(|| self.column(name)))
    }

    /// Columns but for those of application masters: there are no more of these.
    fn n_resources(&self) -> usize {
        self.names.len() - self.n_of_masters
    }

    /// The column of what application masters take of a resource, made now if it is new.
    fn column_of_masters(&mut self, resource: ResourceIdx) -> ResourceIdx {
        if let Some(known) = self.of_masters.get(resource.idx()).copied().flatten() {
            return known;
        }
        let name = format!("{}{OF_MASTERS}", self.resource_name(resource));
        let column = self.column(&name);
        self.n_of_masters += 1;
        self.of_masters[resource.idx()] = Some(column);
        column
    }

    fn column(&mut self, name: &str) -> ResourceIdx {
        let width = self.names.len();
        self.names.push(name.to_owned());
        self.scales.push(Scale::default());
        self.of_masters.push(None);
        widen(&mut self.used, width, 0);
        widen(&mut self.bound, width, 0);
        widen(&mut self.leaving, width, 0);
        widen(&mut self.promised, width, 0);
        widen(&mut self.lent, width, 0);
        widen(&mut self.max, width, UNLIMITED);
        widen(&mut self.guaranteed, width, 0);
        ResourceIdx(u8::try_from(width).expect("names are fewer than 256"))
    }
}

/// Whether people see a column as a resource.
fn is_shown(name: &str) -> bool {
    !name.ends_with(OF_MASTERS)
}

/// Adds to the amount of a column; columns stay in order.
fn add(ask: &mut AskColumns, resource: ResourceIdx, amount: i64) {
    if ask.last().is_some_and(|(last, _)| *last < resource) {
        return ask.push((resource, amount));
    }
    match ask.binary_search_by_key(&resource, |(other, _)| *other) {
        Ok(at) => ask[at].1 = ask[at].1.saturating_add(amount),
        Err(at) => ask.insert(at, (resource, amount)),
    }
}

fn times(amount: i64, n: u32) -> i64 {
    amount.saturating_mul(i64::from(n))
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

#[cfg(test)]
mod tests;
