//! How many running units of some are in each domain, and how many of these stay: whom a movement has leave is in the way of
//! others until it has left, but nobody has to be near to it, and it makes no spread uneven.

use std::collections::BTreeMap;

use godel_domain::{ids::UnitId, label_expression::LabelExpression};
use godel_rules::budget::Identity;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::topology::{DomainIdx, NodeDomains, NodeMove};

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
    fn follow(&mut self, node: u32, moved: NodeMove) {
        let n = self.by_node.get(&node).copied().unwrap_or(0);
        if n == 0 {
            return;
        }
        if let Some(from) = moved.from {
            let left = self.of(from).saturating_sub(n);
            put(&mut self.by_domain, from, left);
        }
        if let Some(to) = moved.to {
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
    /// In how many domains with a usable node so many stay; kept for spreads.
    levels: Option<BTreeMap<u32, u32>>,
}

impl Counter {
    pub(super) fn new(topology: usize, counted: Counted) -> Self {
        let (there, leaving) = (Tally::default(), Tally::default());
        Self { topology, counted, n_uses: 0, there, leaving, levels: None }
    }

    /// Nobody runs anywhere, and no node is known.
    pub(super) fn clear(&mut self) {
        (self.there, self.leaving) = (Tally::default(), Tally::default());
        if let Some(levels) = &mut self.levels {
            levels.clear();
        }
    }

    /// The least of all domains is asked for from now on.
    pub(super) fn keep_levels(&mut self, topology: &NodeDomains) {
        if self.levels.is_none() {
            let mut levels = BTreeMap::new();
            for domain in topology.open() {
                *levels.entry(self.staying(domain)).or_default() += 1;
            }
            self.levels = Some(levels);
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
        self.there.of(domain).saturating_sub(self.leaving.of(domain))
    }

    /// Returns how many stay where they are, in all domains together and in none.
    #[inline]
    pub(super) fn n_staying(&self) -> u32 {
        self.there.total.saturating_sub(self.leaving.total)
    }

    /// Returns how many stay in that of all domains with a usable node in which the fewest do; 0 if there are none, or if it is
    /// not kept.
    #[inline]
    pub(super) fn least(&self) -> u32 {
        let levels = self.levels.as_ref().and_then(|levels| levels.first_key_value());
        levels.map_or(0, |(level, _)| *level)
    }

    /// One more (`sign` 1) or one less (-1) on a node. Returns what that opens to others: its domain, or all of them.
    pub(super) fn shift(&mut self, topology: &NodeDomains, node: u32, sign: i8, which: Tallied) -> Opened {
        let domain = topology.of(node as usize);
        let least = self.least();
        let before = domain.map_or((0, 0), |domain| (self.of(domain), self.staying(domain)));
        match which {
            Tallied::There => self.there.shift(domain, node, sign),
            Tallied::Leaving => self.leaving.shift(domain, node, sign),
        }
        let Some(domain) = domain else { return Opened::Nothing };
        let after = (self.of(domain), self.staying(domain));
        if topology.is_open(domain) {
            self.leave_level(before.1);
            self.enter_level(after.1);
        }
        let is_less = after.0 < before.0 || after.1 < before.1;
        if self.least() > least || (is_less && self.n_staying() == 0) {
            return Opened::All;
        }
        let is_first = before.1 == 0 && after.1 > 0;
        if is_less || is_first { Opened::Domain(domain) } else { Opened::Nothing }
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
    pub(super) fn follow(&mut self, topology: &NodeDomains, node: u32, moved: NodeMove) {
        if let Some(closed) = moved.closed {
            self.leave_level(self.staying(closed));
        }
        if moved.from != moved.to {
            // A domain that has just closed has left its level, and one that has just opened has none yet.
            let has_level =
                |domain: &DomainIdx| moved.opened != Some(*domain) && moved.closed != Some(*domain);
            let both = [moved.from, moved.to].into_iter().flatten();
            let both = both.filter(has_level).filter(|domain| topology.is_open(*domain));
            let changed: SmallVec<[DomainIdx; 2]> = both.collect();
            changed.iter().for_each(|domain| self.leave_level(self.staying(*domain)));
            self.there.follow(node, moved);
            self.leaving.follow(node, moved);
            changed.iter().for_each(|domain| self.enter_level(self.staying(*domain)));
        }
        if let Some(opened) = moved.opened {
            self.enter_level(self.staying(opened));
        }
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
