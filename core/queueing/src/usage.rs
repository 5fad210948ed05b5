//! What each queue uses, against what it may and what it is guaranteed: sums by small integers.
//!
//! A row per queue: running units first, then amounts by resource. What a running unit takes is interned, so that a
//! change costs a few additions per level and a question a few comparisons; no name is looked at and nothing is
//! allocated. The binder counts what is bound or under way, the dispatcher also what it handed out.

use godel_base::resources::{CPU, MEMORY};
use godel_domain::demand::Demand;
use smallvec::SmallVec;

use super::tree::{QueueIdx, QueueTree};

mod choice;
mod columns;
mod guarantee;
mod maxima;
mod owners;
mod scale;
mod sums;

use self::{columns::Columns, scale::Scale, sums::QueueBounds};

pub(crate) use self::{choice::InternedAsks, sums::SumKind};
pub use self::{
    guarantee::{Amounts, Guarantees, at},
    maxima::{Lack, MoveLack, sum_of},
    owners::{OwnerLimitIdx, OwnerTable, PayerIdx},
    sums::QueueSums,
};

/// The first column: running units.
const RUNNING_UNITS: ResourceIdx = ResourceIdx(0);
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

/// Sums per queue, and what they are made of.
#[derive(Clone, Debug)]
pub struct Usage {
    columns: Columns,
    asks: InternedAsks,
    sums: QueueSums,
    /// By column.
    scales: Vec<Scale>,
    owners: OwnerTable,
}

impl Default for Usage {
    fn default() -> Self {
        let mut usage = Self {
            columns: Columns::default(),
            asks: InternedAsks::default(),
            sums: QueueSums::default(),
            scales: Vec::new(),
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
        self.sums.grow(tree);
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
        self.sums.set_bounds(queue, tree.weight(queue), &QueueBounds { max, guaranteed, limits_owners });
    }

    /// What running units take, interned.
    pub(crate) fn asks(&self) -> &InternedAsks {
        &self.asks
    }

    /// The same, to hold and to release some.
    pub(crate) fn asks_mut(&mut self) -> &mut InternedAsks {
        &mut self.asks
    }

    /// Resources by column.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Sums and bounds of queues.
    pub fn sums(&self) -> &QueueSums {
        &self.sums
    }

    /// The same, for queues that are new and for what is lent.
    pub fn sums_mut(&mut self) -> &mut QueueSums {
        &mut self.sums
    }

    /// Owners, and the limits that they are under.
    pub fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    /// The same, for owners that come and go.
    pub(crate) fn owners_mut(&mut self) -> &mut OwnerTable {
        &mut self.owners
    }

    /// What queues are guaranteed.
    pub fn guarantees(&self) -> Guarantees<'_> {
        Guarantees { sums: &self.sums, columns: &self.columns }
    }

    /// What a running unit of this demand takes, devices by their kind in thousandths; kept for good unless [`crate::Queues`] releases it.
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

    /// The same of an application master, which counts beside all else as one; kept as [`Self::intern`] keeps it.
    pub fn intern_master(&mut self, ask: AskId) -> AskId {
        let mut all = AskColumns::from_slice(self.asks.columns(ask));
        for (resource, amount) in all.clone().into_iter().filter(|(resource, _)| *resource != RUNNING_UNITS) {
            let column = self.column_of_masters(resource);
            add(&mut all, column, amount);
        }
        self.asks.intern(all)
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
        let (ask, n) = (self.asks.columns(need.ask), i64::from(need.n) * sign);
        let queue = self.owners.charge(payer, ask, n);
        self.sums.count(queue, ask, n, SumKind::Used);
    }

    /// Notes that so much of what is counted is told to leave (`sign` 1), or no more (-1). `O(depth)`.
    pub fn note_leaving(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.note(queue, need, sign, SumKind::Leaving);
    }

    /// The same of what is about to be told so. `O(depth)`.
    pub fn note_promised(&mut self, queue: QueueIdx, need: Need, sign: i64) {
        self.note(queue, need, sign, SumKind::Promised);
    }

    /// Notes so much of what is counted as a part of it (`sign` 1), or no more (-1). `O(depth)`.
    pub(super) fn note(&mut self, queue: QueueIdx, need: Need, sign: i64, sums: SumKind) {
        self.sums.count(queue, self.asks.columns(need.ask), i64::from(need.n) * sign, sums);
    }

    /// Nothing is used.
    pub fn clear(&mut self) {
        self.sums.clear();
        self.owners.reset();
    }

    /// Used of a resource, 0 of one that nobody ever named.
    pub fn used(&self, queue: QueueIdx, name: &str) -> i128 {
        self.columns.find(name).map_or(0, |resource| self.sums.used_of(queue, resource))
    }

    /// Running units counted.
    pub fn running_units(&self, queue: QueueIdx) -> i128 {
        self.sums.used_of(queue, RUNNING_UNITS)
    }

    /// Of what is used, what is bound, where that is told apart: running units and, by name, amounts.
    pub fn bound(&self, queue: QueueIdx) -> (i128, impl Iterator<Item = (&str, i128)>) {
        let bound = self.sums.bound(queue);
        (bound[RUNNING_UNITS.idx()], self.columns.named(bound))
    }

    /// All that the cluster has: the whole of which shares are part. False if that makes no difference.
    pub fn set_total<'a>(&mut self, total: impl IntoIterator<Item = (&'a str, i64)>) -> bool {
        let mut totals = vec![0; self.columns.len()];
        for (name, amount) in total {
            if let Some(resource) = self.resource(name) {
                totals.resize(self.columns.len().max(totals.len()), 0);
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
        self.sums.share_key(queue, self.sums.used(queue), &self.scales)
    }

    /// The same with this used as well.
    pub(super) fn share_key_with(&self, queue: QueueIdx, more: Need) -> ShareKey {
        let mut used = Amounts::from_slice(self.sums.used(queue));
        self.asks.add_to(&mut used, more, 1);
        self.sums.share_key(queue, &used, &self.scales)
    }

    /// The largest share that a row has of any resource.
    pub(super) fn dominant_share(&self, row: &[i128]) -> u64 {
        Scale::dominant_share(&self.scales, row)
    }

    /// Several needs by column.
    pub fn sum(&self, needs: &[Need]) -> Amounts {
        let mut row = Amounts::new();
        needs.iter().for_each(|need| self.asks.add_to(&mut row, *need, 1));
        row
    }

    /// What a running unit of a demand takes; what nobody ever counted is left out.
    pub fn amounts_of(&self, demand: &Demand) -> Amounts {
        let mut row = Amounts::from_elem(0, self.columns.len());
        row[0] = 1;
        for (name, amount) in demand.amounts() {
            if let Some(resource) = self.columns.find(name) {
                row[resource.idx()] += i128::from(amount);
            }
        }
        row
    }

    /// The column of a resource, made now if it is new; `None` when there are too many.
    fn resource(&mut self, name: &str) -> Option<ResourceIdx> {
        self.columns.find(name).or_else(|| (!self.columns.is_full()).then(|| self.column(name)))
    }

    /// The column of what application masters take of a resource, made now if it is new.
    fn column_of_masters(&mut self, resource: ResourceIdx) -> ResourceIdx {
        if let Some(known) = self.columns.of_masters(resource) {
            return known;
        }
        let column = self.columns.push_of_masters(resource);
        self.widen();
        column
    }

    fn column(&mut self, name: &str) -> ResourceIdx {
        let column = self.columns.push(name);
        self.widen();
        column
    }

    /// Every row gets the column that was added last.
    fn widen(&mut self) {
        self.scales.push(Scale::default());
        self.sums.widen();
    }
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

#[cfg(test)]
mod tests;
