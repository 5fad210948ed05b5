//! Several asks of which not all have to fit: the groups of a unit.

use smallvec::SmallVec;

use super::{Ask, AskId, Limit, LimitRow, Need, ResourceIdx, Shortage, UNLIMITED, Usage, times};
use crate::tree::QueueIdx;

/// Marks the numbers of choices among those of asks.
const CHOICE: u32 = 1 << 31;

/// Asks in order, none twice.
pub(super) type Choice = SmallVec<[AskId; 4]>;

impl AskId {
    /// Any one of several.
    pub(crate) fn is_choice(self) -> bool {
        self.0 & CHOICE != 0
    }
}

impl Usage {
    /// Any one of several asks, which must be held longer; held until [`Usage::release`].
    pub(crate) fn hold_any(&mut self, asks: impl IntoIterator<Item = AskId>) -> AskId {
        let mut choice: Choice = asks.into_iter().collect();
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

    /// So many of these together, whichever they are, take at least this; held until [`Usage::release`].
    pub(crate) fn hold_least(&mut self, of: &[Need], n: u32) -> AskId {
        let mut columns: SmallVec<[ResourceIdx; 8]> =
            of.iter().flat_map(|need| self.ask(need.ask)).map(|(resource, _)| *resource).collect();
        columns.sort_unstable();
        columns.dedup();
        let least = |resource: ResourceIdx| {
            let mut amounts: SmallVec<[(i64, u32); 4]> =
                of.iter().map(|need| (self.amount(Need { n: 1, ..*need }, resource), need.n)).collect();
            amounts.sort_unstable();
            let (sum, _) = amounts.into_iter().fold((0i64, n), |(sum, left), (amount, n)| {
                let n = n.min(left);
                (sum.saturating_add(times(amount, n)), left - n)
            });
            sum
        };
        let ask: Ask = columns.into_iter().map(|resource| (resource, least(resource))).collect();
        AskId(self.asks.intern(ask))
    }

    /// One use more.
    pub fn retain(&mut self, ask: AskId) {
        match ask.is_choice() {
            true => self.choices.retain(ask.0 & !CHOICE),
            false => self.asks.retain(ask.0),
        }
    }

    /// Ends one use. What is counted must be in use: its amounts are needed to end that.
    pub fn release(&mut self, ask: AskId) {
        match ask.is_choice() {
            true => self.choices.release(ask.0 & !CHOICE),
            false => self.asks.release(ask.0),
        }
    }

    /// Why a need does not fit, of a choice why nothing of it does: that of the one which may fit, under the highest
    /// maximum, so that whatever makes room for any of them makes room below that one.
    pub(crate) fn shortage(&self, queue: QueueIdx, need: Need) -> Option<Shortage> {
        if !need.ask.is_choice() {
            return self.shortage_of(queue, need).map(|(_, shortage)| shortage);
        }
        let mut worst: Option<(usize, Shortage)> = None;
        for ask in self.choice(need.ask) {
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
                let limit = Limit { queue: level, resource };
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
        self.choice(need.ask).iter().map(|ask| row(*ask)).reduce(least).unwrap_or_default()
    }

    fn choice(&self, ask: AskId) -> &[AskId] {
        self.choices.get(ask.0 & !CHOICE).map_or(&[], SmallVec::as_slice)
    }
}
