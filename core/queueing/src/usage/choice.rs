//! What running units take, interned, and several of these of which not all have to fit: the groups of a unit.

use smallvec::SmallVec;

use super::{Amounts, AskColumns, AskId, Need, ResourceIdx, times};
use crate::{interned::Interned, limit_gate::LimitRow};

/// Marks the numbers of choices among those of asks.
const CHOICE: u32 = 1 << 31;

/// Asks in order, none twice.
type AskChoice = SmallVec<[AskId; 4]>;

impl AskId {
    /// Any one of several.
    pub(crate) fn is_choice(self) -> bool {
        self.0 & CHOICE != 0
    }
}

/// Asks and choices of these, each kept for as long as it is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct InternedAsks {
    asks: Interned<AskColumns>,
    choices: Interned<AskChoice>,
}

impl InternedAsks {
    pub(super) fn intern(&mut self, ask: AskColumns) -> AskId {
        AskId(self.asks.intern(ask))
    }

    /// Any one of several asks, which must be used longer; kept until [`Self::release`].
    pub(crate) fn intern_any(&mut self, asks: impl IntoIterator<Item = AskId>) -> AskId {
        let mut choice: AskChoice = asks.into_iter().collect();
        choice.sort_unstable();
        choice.dedup();
        match choice.as_slice() {
            [one] => {
                self.retain(*one);
                *one
            }
            _ => AskId(CHOICE | self.choices.intern(choice)),
        }
    }

    /// `n` of these together take at least this, those of each up to its minimum and any others beyond; kept until [`Self::release`].
    pub(crate) fn intern_least(&mut self, of: &[(Need, u32)], n: u32) -> AskId {
        let mut columns: SmallVec<[ResourceIdx; 8]> =
            of.iter().flat_map(|(need, _)| self.columns(need.ask)).map(|(resource, _)| *resource).collect();
        columns.sort_unstable();
        columns.dedup();
        let least = |resource: ResourceIdx| {
            let amount = |need: &Need| self.amount(Need { n: 1, ..*need }, resource);
            let minima = of.iter().map(|(need, minimum)| (amount(need), *minimum));
            let mut beyond: SmallVec<[(i64, u32); 4]> =
                of.iter().map(|(need, minimum)| (amount(need), need.n.saturating_sub(*minimum))).collect();
            beyond.sort_unstable();
            let (sum, _) = minima.chain(beyond).fold((0i64, n), |(sum, left), (amount, n)| {
                let n = n.min(left);
                (sum.saturating_add(times(amount, n)), left - n)
            });
            sum
        };
        let ask: AskColumns = columns.into_iter().map(|resource| (resource, least(resource))).collect();
        self.intern(ask)
    }

    /// One use more.
    pub(crate) fn retain(&mut self, ask: AskId) {
        match ask.is_choice() {
            true => self.choices.retain(ask.0 & !CHOICE),
            false => self.asks.retain(ask.0),
        }
    }

    /// Ends one use. What is counted must be in use: its amounts are needed to end that.
    pub(crate) fn release(&mut self, ask: AskId) {
        match ask.is_choice() {
            true => self.choices.release(ask.0 & !CHOICE),
            false => self.asks.release(ask.0),
        }
    }

    /// Amounts by column, ascending; none of a choice.
    pub(super) fn columns(&self, ask: AskId) -> &[(ResourceIdx, i64)] {
        self.asks.get(ask.0).map_or(&[], SmallVec::as_slice)
    }

    /// Of a need, by column; 0 of what it does not ask for.
    pub(super) fn amount(&self, need: Need, resource: ResourceIdx) -> i64 {
        let asked = self.columns(need.ask).iter().find(|(other, _)| *other == resource);
        asked.map_or(0, |(_, amount)| times(*amount, need.n))
    }

    /// Adds `sign` × a need to a row of the caller's, which grows as it must.
    pub(crate) fn add_to(&self, row: &mut Amounts, need: Need, sign: i128) {
        for &(resource, amount) in self.columns(need.ask) {
            if row.len() <= resource.idx() {
                row.resize(resource.idx() + 1, 0);
            }
            row[resource.idx()] += i128::from(amount) * i128::from(need.n) * sign;
        }
    }

    /// Room of a resource that has to be there for a need to be worth another look. Of a choice any: what it needs may
    /// be there without that resource.
    pub(crate) fn worth(&self, need: Need, resource: ResourceIdx) -> i64 {
        if need.ask.is_choice() { i64::MIN } else { self.amount(need, resource) }
    }

    /// Of a need, so many columns: of a choice the least of each.
    pub(crate) fn amounts(&self, need: Need, n_columns: usize) -> LimitRow {
        let row = |ask: AskId| {
            let mut row = LimitRow::from_elem(0, n_columns);
            for &(resource, amount) in self.columns(ask) {
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
        self.choice(need.ask).iter().map(|ask| row(*ask)).reduce(least).unwrap_or_default()
    }

    /// The asks of a choice.
    pub(super) fn choice(&self, ask: AskId) -> &[AskId] {
        self.choices.get(ask.0 & !CHOICE).map_or(&[], SmallVec::as_slice)
    }
}
