//! How many running units of some are in each domain, and how many of these stay: whom a movement has leave is in the way of
//! others until it has left, but nobody has to be near to it, and it makes no spread uneven.

use std::collections::BTreeMap;

use godel_base::ids::UnitId;
use godel_domain::label_expression::LabelExpression;
use godel_rules::budget::UnitIdentity;
use rustc_hash::FxHashMap;

use super::{
    takers::{TakerSets, TakersIdx},
    topology::{DomainIdx, NodeDomains},
};

/// Units by namespace and labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Selector {
    pub(super) namespace: String,
    pub(super) units: Vec<LabelExpression>,
}

impl Selector {
    pub(super) fn selects(&self, unit: &UnitIdentity) -> bool {
        unit.namespace() == self.namespace && self.units.iter().all(|one| one.accepts(unit.label(&one.key)))
    }
}

/// Whose running units are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Counted {
    /// Those of one unit.
    Unit(UnitId),
    /// Those of units that are selected.
    Selected(Selector),
    /// Those of units that keep away what is selected.
    Keeping(Selector),
}

/// Running units by node and by domain.
#[derive(Clone, Debug, Default)]
struct Tally {
    total: u32,
    /// Of nodes with some.
    by_node: FxHashMap<u32, u32>,
    /// Of domains with some.
    by_domain: FxHashMap<DomainIdx, u32>,
}

impl Tally {
    #[inline]
    fn of(&self, domain: DomainIdx) -> u32 {
        self.by_domain.get(&domain).copied().unwrap_or(0)
    }

    /// One more (`sign` 1) or one less (-1) on a node of a domain.
    fn shift(&mut self, domain: Option<DomainIdx>, node: u32, sign: i8) {
        let changed = |n: u32| if sign > 0 { n + 1 } else { n.saturating_sub(1) };
        let on_node = changed(self.by_node.get(&node).copied().unwrap_or(0));
        put(&mut self.by_node, node, on_node);
        self.total = changed(self.total);
        if let Some(domain) = domain {
            let in_domain = changed(self.of(domain));
            put(&mut self.by_domain, domain, in_domain);
        }
    }

    /// A node was of one domain and is of another now.
    fn move_node(&mut self, node: u32, from: Option<DomainIdx>, to: Option<DomainIdx>) {
        let n = self.by_node.get(&node).copied().unwrap_or(0);
        if n == 0 || from == to {
            return;
        }
        if let Some(from) = from {
            let left = self.of(from).saturating_sub(n);
            put(&mut self.by_domain, from, left);
        }
        if let Some(to) = to {
            let more = self.of(to) + n;
            put(&mut self.by_domain, to, more);
        }
    }
}

/// Which of the counts of a counter change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tallied {
    /// Somebody is there, or no longer.
    There,
    /// Somebody of those that are there leaves, or no longer.
    Leaving,
}

/// Running units of some by domain of one topology key.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    /// Position of the topology.
    pub(super) topology: usize,
    pub(super) counted: Counted,
    /// Terms that rest on it.
    pub(super) n_uses: u32,
    there: Tally,
    /// Of these, those that leave for where they count as well.
    leaving: Tally,
    /// Kept for spreads, one for each set of nodes that they may use.
    levels: Vec<UsableLevels>,
}

/// In how many of the domains that have a node of a set a given number of replicas stay.
#[derive(Clone, Debug)]
struct UsableLevels {
    takers: TakersIdx,
    n_uses: u32,
    n_domains: BTreeMap<u32, u32>,
}

impl UsableLevels {
    fn least(&self) -> u32 {
        self.n_domains.first_key_value().map_or(0, |(level, _)| *level)
    }

    fn enter(&mut self, level: u32) {
        *self.n_domains.entry(level).or_default() += 1;
    }

    fn leave(&mut self, level: u32) {
        if let Some(n) = self.n_domains.get_mut(&level) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.n_domains.remove(&level);
            }
        }
    }
}

impl Counter {
    pub(super) fn new(topology: usize, counted: Counted) -> Self {
        let (there, leaving) = (Tally::default(), Tally::default());
        Self { topology, counted, n_uses: 0, there, leaving, levels: Vec::new() }
    }

    /// Nobody runs anywhere, and no node is known.
    pub(super) fn clear(&mut self) {
        (self.there, self.leaving) = (Tally::default(), Tally::default());
        self.levels.iter_mut().for_each(|levels| levels.n_domains.clear());
    }

    /// The least of all domains with a node of a set is asked for from now on, by one more spread.
    pub(super) fn keep_levels(&mut self, takers: TakersIdx, sets: &TakerSets) {
        if let Some(known) = self.levels.iter_mut().find(|levels| levels.takers == takers) {
            known.n_uses += 1;
            return;
        }
        let mut levels = UsableLevels { takers, n_uses: 1, n_domains: BTreeMap::new() };
        sets.open(takers, self.topology).for_each(|domain| levels.enter(self.staying(domain)));
        self.levels.push(levels);
    }

    /// One spread less asks for that.
    pub(super) fn release_levels(&mut self, takers: TakersIdx) {
        if let Some(at) = self.levels.iter().position(|levels| levels.takers == takers) {
            self.levels[at].n_uses = self.levels[at].n_uses.saturating_sub(1);
            if self.levels[at].n_uses == 0 {
                self.levels.swap_remove(at);
            }
        }
    }

    /// Returns how many are in a domain.
    #[inline]
    pub(super) fn of(&self, domain: DomainIdx) -> u32 {
        self.there.of(domain)
    }

    /// Returns how many are in a domain and stay.
    #[inline]
    pub(super) fn staying(&self, domain: DomainIdx) -> u32 {
        let there = self.there.of(domain);
        if self.leaving.total == 0 { there } else { there.saturating_sub(self.leaving.of(domain)) }
    }

    /// Returns how many stay where they are, in all domains together and in none.
    #[inline]
    pub(super) fn n_staying(&self) -> u32 {
        self.there.total.saturating_sub(self.leaving.total)
    }

    /// Returns how many stay in that of all domains with a node of a set in which the fewest do; 0 if there are none, or if it is
    /// not kept.
    #[inline]
    pub(super) fn least(&self, takers: TakersIdx) -> u32 {
        let levels = self.levels.iter().find(|levels| levels.takers == takers);
        levels.map_or(0, UsableLevels::least)
    }

    /// One more (`sign` 1) or one less (-1) on a node. Returns what that opens to others: its domain, or all of them.
    pub(super) fn shift(
        &mut self,
        topology: &NodeDomains,
        sets: &TakerSets,
        node: u32,
        sign: i8,
        which: Tallied,
    ) -> Opened {
        let domain = topology.of(node as usize);
        let before = domain.map_or((0, 0), |domain| (self.of(domain), self.staying(domain)));
        match which {
            Tallied::There => self.there.shift(domain, node, sign),
            Tallied::Leaving => self.leaving.shift(domain, node, sign),
        }
        let Some(domain) = domain else { return Opened::Nothing };
        let after = (self.of(domain), self.staying(domain));
        let mut has_risen = false;
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                let least = levels.least();
                levels.leave(before.1);
                levels.enter(after.1);
                has_risen |= levels.least() > least;
            }
        }
        let is_less = after.0 < before.0 || after.1 < before.1;
        if has_risen || (is_less && self.n_staying() == 0) {
            return Opened::All;
        }
        let is_first = before.1 == 0 && after.1 > 0;
        if is_less || is_first { Opened::Domain(domain) } else { Opened::Nothing }
    }

    /// A domain leaves the levels, as long as its nodes change; [`Self::enter_levels`] counts it again.
    pub(super) fn leave_levels(&mut self, domain: DomainIdx, sets: &TakerSets) {
        let n = self.staying(domain);
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                levels.leave(n);
            }
        }
    }

    /// The nodes of a domain have changed.
    pub(super) fn enter_levels(&mut self, domain: DomainIdx, sets: &TakerSets) {
        let n = self.staying(domain);
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                levels.enter(n);
            }
        }
    }

    /// A node was of one domain and is of another now; both have left the levels.
    pub(super) fn move_node(&mut self, node: u32, from: Option<DomainIdx>, to: Option<DomainIdx>) {
        self.there.move_node(node, from, to);
        self.leaving.move_node(node, from, to);
    }
}

fn put(counts: &mut FxHashMap<u32, u32>, of: u32, n: u32) {
    if n == 0 {
        counts.remove(&of);
    } else {
        counts.insert(of, n);
    }
}

/// Where more may fit than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Nothing,
    Domain(DomainIdx),
    All,
}
