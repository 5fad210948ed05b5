//! How many running units of some are in each domain.

use std::collections::BTreeMap;

use godel_domain::{ids::UnitId, label_expression::LabelExpression};
use godel_rules::budget::Identity;
use rustc_hash::FxHashMap;

use super::topology::{DomainIdx, NodeDomains};

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
    /// How many domains with a usable node have so many; kept for spreads.
    levels: Option<BTreeMap<u32, u32>>,
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
            levels: None,
        }
    }

    /// Nobody runs anywhere, and no node is known.
    pub(super) fn clear(&mut self) {
        (self.total, self.by_node, self.by_domain) = (0, FxHashMap::default(), FxHashMap::default());
        if let Some(levels) = &mut self.levels {
            levels.clear();
        }
    }

    /// The least of all domains is asked for from now on.
    pub(super) fn keep_levels(&mut self, topology: &NodeDomains) {
        if self.levels.is_none() {
            let mut levels = BTreeMap::new();
            for domain in topology.open() {
                *levels.entry(self.of(domain)).or_default() += 1;
            }
            self.levels = Some(levels);
        }
    }

    /// Returns how many are in a domain.
    #[inline]
    pub(super) fn of(&self, domain: DomainIdx) -> u32 {
        self.by_domain.get(&domain).copied().unwrap_or(0)
    }

    /// Returns the least of all domains that have a usable node; 0 if there are none, or if it is not kept.
    #[inline]
    pub(super) fn least(&self) -> u32 {
        let levels = self.levels.as_ref().and_then(|levels| levels.first_key_value());
        levels.map_or(0, |(level, _)| *level)
    }

    /// One more (`sign` 1) or one less (-1) on a node. Returns what that opens to others: its domain, or all of them.
    pub(super) fn shift(&mut self, topology: &NodeDomains, node: u32, sign: i8) -> Opened {
        let count = self.by_node.entry(node).or_default();
        *count = if sign > 0 { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.by_node.remove(&node);
        }
        self.total = if sign > 0 { self.total + 1 } else { self.total.saturating_sub(1) };
        let Some(domain) = topology.of(node as usize) else { return Opened::Nothing };
        let least = self.least();
        let before = self.of(domain);
        let after = if sign > 0 { before + 1 } else { before.saturating_sub(1) };
        self.set(topology, domain, after);
        if self.least() > least || (sign < 0 && self.total == 0) {
            return Opened::All;
        }
        if sign < 0 || before == 0 { Opened::Domain(domain) } else { Opened::Nothing }
    }

    fn set(&mut self, topology: &NodeDomains, domain: DomainIdx, n: u32) {
        let before = self.of(domain);
        if n == 0 {
            self.by_domain.remove(&domain);
        } else {
            self.by_domain.insert(domain, n);
        }
        if topology.is_open(domain) {
            self.leave_level(before);
            self.enter_level(n);
        }
    }

    fn enter_level(&mut self, level: u32) {
        if let Some(levels) = &mut self.levels {
            *levels.entry(level).or_default() += 1;
        }
    }

    fn leave_level(&mut self, level: u32) {
        let Some(levels) = &mut self.levels else { return };
        if let Some(n) = levels.get_mut(&level) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                levels.remove(&level);
            }
        }
    }

    /// A node was of one domain and is of another now; domains that open or close come and go with what they have.
    pub(super) fn follow(&mut self, topology: &NodeDomains, node: u32, moved: super::topology::NodeMove) {
        if let Some(closed) = moved.closed {
            self.leave_level(self.of(closed));
        }
        let n = self.by_node.get(&node).copied().unwrap_or(0);
        if n > 0 && moved.from != moved.to {
            for (domain, is_more) in [(moved.from, false), (moved.to, true)] {
                let Some(domain) = domain else { continue };
                let before = self.of(domain);
                let after = if is_more { before + n } else { before.saturating_sub(n) };
                // A domain that has just closed has left its level, and one that has just opened has none yet.
                if moved.opened == Some(domain) || moved.closed == Some(domain) {
                    self.put(domain, after);
                } else {
                    self.set(topology, domain, after);
                }
            }
        }
        if let Some(opened) = moved.opened {
            self.enter_level(self.of(opened));
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
