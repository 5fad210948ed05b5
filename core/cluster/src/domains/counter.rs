//! How many running units of some are in each domain.

use std::collections::BTreeMap;

use godel_domain::{ids::UnitId, label_expression::LabelExpression};
use godel_rules::budget::Identity;
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
    pub(super) fn selects(&self, unit: &Identity) -> bool {
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

/// Running units of some by domain of one topology key.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    /// Position of the topology.
    pub(super) topology: usize,
    pub(super) counted: Counted,
    /// Terms that rest on it.
    pub(super) n_uses: u32,
    pub(super) total: u32,
    /// Of nodes with some.
    by_node: FxHashMap<u32, u32>,
    /// Of domains with some.
    by_domain: FxHashMap<DomainIdx, u32>,
    /// Kept for spreads, one for each set of nodes that they may use.
    levels: Vec<UsableLevels>,
}

/// How many of the domains that have a node of a set have so many.
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
        Self {
            topology,
            counted,
            n_uses: 0,
            total: 0,
            by_node: FxHashMap::default(),
            by_domain: FxHashMap::default(),
            levels: Vec::new(),
        }
    }

    /// Nobody runs anywhere, and no node is known.
    pub(super) fn clear(&mut self) {
        (self.total, self.by_node, self.by_domain) = (0, FxHashMap::default(), FxHashMap::default());
        self.levels.iter_mut().for_each(|levels| levels.n_domains.clear());
    }

    /// The least of all domains with a node of a set is asked for from now on, by one more spread.
    pub(super) fn keep_levels(&mut self, takers: TakersIdx, sets: &TakerSets) {
        if let Some(known) = self.levels.iter_mut().find(|levels| levels.takers == takers) {
            known.n_uses += 1;
            return;
        }
        let mut levels = UsableLevels { takers, n_uses: 1, n_domains: BTreeMap::new() };
        sets.open(takers, self.topology).for_each(|domain| levels.enter(self.of(domain)));
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
        self.by_domain.get(&domain).copied().unwrap_or(0)
    }

    /// Returns the least of all domains that have a node of a set; 0 if there are none, or if it is not kept.
    #[inline]
    pub(super) fn least(&self, takers: TakersIdx) -> u32 {
        let levels = self.levels.iter().find(|levels| levels.takers == takers);
        levels.map_or(0, UsableLevels::least)
    }

    /// One more (`sign` 1) or one less (-1) on a node. Returns what that opens to others: its domain, or all of them.
    pub(super) fn shift(&mut self, topology: &NodeDomains, sets: &TakerSets, node: u32, sign: i8) -> Opened {
        let count = self.by_node.entry(node).or_default();
        *count = if sign > 0 { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.by_node.remove(&node);
        }
        self.total = if sign > 0 { self.total + 1 } else { self.total.saturating_sub(1) };
        let Some(domain) = topology.of(node as usize) else { return Opened::Nothing };
        let before = self.of(domain);
        let after = if sign > 0 { before + 1 } else { before.saturating_sub(1) };
        self.put(domain, after);
        let mut has_risen = false;
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                let least = levels.least();
                levels.leave(before);
                levels.enter(after);
                has_risen |= levels.least() > least;
            }
        }
        if has_risen || (sign < 0 && self.total == 0) {
            return Opened::All;
        }
        if sign < 0 || before == 0 { Opened::Domain(domain) } else { Opened::Nothing }
    }

    /// A domain leaves the levels, as long as its nodes change; [`Self::enter_levels`] counts it again.
    pub(super) fn leave_levels(&mut self, domain: DomainIdx, sets: &TakerSets) {
        let n = self.of(domain);
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                levels.leave(n);
            }
        }
    }

    /// The nodes of a domain have changed.
    pub(super) fn enter_levels(&mut self, domain: DomainIdx, sets: &TakerSets) {
        let n = self.of(domain);
        for levels in &mut self.levels {
            if sets.is_open(levels.takers, self.topology, domain) {
                levels.enter(n);
            }
        }
    }

    /// A node was of one domain and is of another now; both have left the levels.
    pub(super) fn move_node(&mut self, node: u32, from: Option<DomainIdx>, to: Option<DomainIdx>) {
        let n = self.by_node.get(&node).copied().unwrap_or(0);
        if n == 0 || from == to {
            return;
        }
        if let Some(from) = from {
            self.put(from, self.of(from).saturating_sub(n));
        }
        if let Some(to) = to {
            self.put(to, self.of(to) + n);
        }
    }

    fn put(&mut self, domain: DomainIdx, n: u32) {
        if n == 0 {
            self.by_domain.remove(&domain);
        } else {
            self.by_domain.insert(domain, n);
        }
    }
}

/// Where more may fit than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Nothing,
    Domain(DomainIdx),
    All,
}
