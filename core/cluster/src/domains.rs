//! Running units by domain: how many of the units that a term selects are in each rack, in each zone or on each node.
//!
//! One count for each pair of a selector and a topology key, whoever asks; it follows rows and assumptions, so that a question
//! costs a look into a map. Nothing is kept before the first unit has terms.
//!
//! A unit with a required term `apart` keeps away the units that the term selects: its running units are counted under the same
//! selector, for those.

mod counter;
mod groups;
mod rules;
mod takers;
mod topology;

use std::sync::Arc;

use godel_base::ids::{IdMap, NodeId, UnitId};
use godel_domain::{
    label_expression::LabelExpression,
    unit_affinity::{TERM_WEIGHT_MAX, UnitTerm},
    unit_topology::UnitTopology,
};
use godel_rules::budget::UnitIdentity;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use self::{
    counter::{Counted, Counter, Opened, Selector, Tallied},
    takers::TakerSets,
    topology::NodeDomains,
};
pub use self::{
    groups::{GroupCache, GroupRef, NodeGroups, TopologyLevel},
    rules::{
        AffinityTerms, ApartRule, GroupRules, NearRule, SegmentRule, SpreadRule, TopologyKeys, UnitRules,
    },
    takers::{StandingTerms, TakersIdx, names_classes},
    topology::DomainIdx,
};
use super::free_view::FreeView;

/// Counters that nothing uses are kept up to this many, for terms to come.
const N_UNUSED_MAX: usize = 1_024;
/// Of so many domains the one that holds a spread back is named.
const N_NAMED_MAX: usize = 64;

/// Position of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterIdx(u32);

/// Where selected units are found: the namespace, and the first label whose value the selector fixes.
type SelectorKey = (String, Option<(String, String)>);

/// Running units by domain.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    topologies: Vec<NodeDomains>,
    counters: Vec<Option<Counter>>,
    free: Vec<u32>,
    ids: FxHashMap<(usize, Counted), CounterIdx>,
    by_label: FxHashMap<SelectorKey, Vec<CounterIdx>>,
    /// Units whose records were offered.
    units: IdMap<UnitId, KnownUnit>,
    /// The same by each of their labels, and by their namespace alone.
    labelled: FxHashMap<SelectorKey, FxHashSet<UnitId>>,
    /// Units that have terms.
    terms: IdMap<UnitId, Arc<UnitRules>>,
    n_unused: usize,
    takers: TakerSets,
    /// Rises when a node is of another domain.
    nodes_version: u64,
    /// Groups of nodes that are alike, or that a grouper made.
    pub groups: GroupCache,
    /// What has opened since somebody took it.
    pub(crate) opened: OpenedNodes,
    /// What trials have opened: only if they come to something has anything been gained.
    pub(crate) opened_by_trial: OpenedNodes,
}

/// A unit as counters and terms of others know it.
#[derive(Clone, Debug, Default)]
struct KnownUnit {
    identity: UnitIdentity,
    /// Those that count it.
    counters: SmallVec<[CounterIdx; 2]>,
    /// Those of units that keep it away.
    kept_away: SmallVec<[CounterIdx; 1]>,
}

/// Where the replicas of a unit are, as terms count them.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitPlaces {
    /// The nodes of all of them; one that moves may have two.
    pub(crate) all: Vec<NodeId>,
    /// Of these, the nodes that a replica leaves, or does not go to any more.
    pub(crate) leaving: Vec<NodeId>,
}

/// Domains on whose nodes more may fit than before.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenedNodes {
    all: bool,
    domains: Vec<(usize, DomainIdx)>,
}

impl OpenedNodes {
    /// Whether more may fit somewhere.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.all || !self.domains.is_empty()
    }

    /// Adds others.
    pub(crate) fn join(&mut self, other: &Self) {
        self.all |= other.all;
        self.domains.extend(&other.domains);
    }
}

impl Domains {
    /// Whether some unit has had terms.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.topologies.is_empty()
    }

    /// A new list begins: nobody runs, and no node is known. Terms and what units are known by stay.
    pub(crate) fn reset(mut self) -> Self {
        self.topologies.iter_mut().for_each(NodeDomains::forget_nodes);
        self.counters.iter_mut().flatten().for_each(Counter::clear);
        self.takers.forget_nodes();
        self.opened = OpenedNodes::default();
        self.opened_by_trial = OpenedNodes::default();
        self.nodes_version += 1;
        self
    }

    /// The records of a node changed, or what it has.
    pub(crate) fn set_node(&mut self, idx: usize, nodes: FreeView<'_>) {
        let node = u32::try_from(idx).unwrap_or(u32::MAX);
        let judged = self.takers.judge(idx, nodes);
        for (at, topology) in self.topologies.iter_mut().enumerate() {
            let from = topology.of(idx);
            let value = nodes.value(topology, idx);
            let to = value.map(|value| topology.domain(idx, value));
            let turns = from == to && from.is_some_and(|domain| self.takers.turns(&judged, idx, at, domain));
            if from == to && !turns {
                self.takers.follow(&judged, idx, at, from, to);
                continue;
            }
            let changed = || from.into_iter().chain(to.filter(|_| from != to));
            let mut counters: SmallVec<[&mut Counter; 4]> =
                self.counters.iter_mut().flatten().filter(|counter| counter.topology == at).collect();
            for counter in &mut counters {
                changed().for_each(|domain| counter.leave_levels(domain, &self.takers));
            }
            topology.move_node(idx, to);
            self.takers.follow(&judged, idx, at, from, to);
            for counter in &mut counters {
                counter.move_node(node, from, to);
                changed().for_each(|domain| counter.enter_levels(domain, &self.takers));
            }
            self.opened.all = true;
            self.nodes_version += u64::from(from != to);
        }
        self.takers.settle(&judged, idx);
    }

    /// Takes the terms of a unit, `places` being where the replicas of a unit are. Returns whether all units have to be
    /// offered, because nobody was known before; the unit itself has to be in any case.
    pub(crate) fn put_terms(
        &mut self,
        unit: UnitId,
        identity: &UnitIdentity,
        AffinityTerms { affinity, topology, groups, .. }: &AffinityTerms<'_>,
        standing: &[StandingTerms],
        known: FreeView<'_>,
        places: impl Fn(UnitId) -> UnitPlaces,
    ) -> bool {
        let was_active = self.is_active();
        let mut begin = Begin { domains: self, known, unit, identity, made: Vec::new() };
        let rules = UnitRules {
            near: affinity.near.iter().chain(&together(topology)).map(|term| begin.near(term)).collect(),
            apart: affinity.apart.iter().map(|term| begin.apart(term)).collect(),
            spread: affinity.spread.iter().map(|term| begin.spread(term)).collect(),
            keys: begin.keys_of_unit(topology, &affinity.near),
            segments: begin.segments(topology),
            groups: groups.iter().map(|group| begin.group(group)).collect(),
            takers: begin.takers(standing),
            kept_away: SmallVec::new(),
        };
        begin.keep_levels(&rules);
        let made = begin.made;
        for idx in made {
            self.count_known(idx, &places);
        }
        if let Some(old) = self.terms.insert(unit, Arc::new(rules)) {
            self.give_back(&old);
        }
        !was_active
    }

    /// Counts those of the known units that a new counter is of.
    fn count_known(&mut self, idx: CounterIdx, places: impl Fn(UnitId) -> UnitPlaces) {
        let Some(counted) = self.counter(idx).map(|counter| counter.counted.clone()) else { return };
        let (Counted::Selected(selector) | Counted::Keeping(selector)) = &counted else { return };
        let candidates = self.labelled.get(&key_of(selector)).cloned().unwrap_or_default();
        for unit in candidates {
            let Some(known) = self.units.get_mut(&unit).filter(|known| selector.selects(&known.identity))
            else {
                continue;
            };
            if matches!(counted, Counted::Keeping(_)) {
                known.kept_away.push(idx);
                known.kept_away.sort_unstable();
                continue;
            }
            known.counters.push(idx);
            known.counters.sort_unstable();
            self.shift_places(idx, &places(unit), 1);
        }
    }

    /// Whether a unit says something itself of where its replicas go, or did.
    pub fn has_terms_of(&self, unit: UnitId) -> bool {
        self.terms.contains_key(&unit)
    }

    /// Returns the terms of a unit, and what keeps it away; `None`: it may go anywhere.
    pub fn rules_of(&self, unit: UnitId) -> Option<Arc<UnitRules>> {
        let own = self.terms.get(&unit);
        let kept_away = self.units.get(&unit).map(|known| &known.kept_away).filter(|away| !away.is_empty());
        match (own, kept_away) {
            (None, None) => None,
            (Some(own), None) => Some(Arc::clone(own)),
            (own, Some(kept_away)) => {
                let mut rules = own.map(|own| UnitRules::clone(own)).unwrap_or_default();
                rules.kept_away.clone_from(kept_away);
                Some(Arc::new(rules))
            }
        }
    }

    /// Follows a unit's record, `places` being where its replicas are.
    pub(crate) fn offer(&mut self, unit: UnitId, identity: &UnitIdentity, places: impl Fn() -> UnitPlaces) {
        if !self.is_active() {
            return;
        }
        let mut counters: SmallVec<[CounterIdx; 2]> = SmallVec::new();
        let mut kept_away: SmallVec<[CounterIdx; 1]> = SmallVec::new();
        for key in keys_of(identity) {
            for idx in self.by_label.get(&key).into_iter().flatten() {
                match self.counter(*idx).map(|counter| &counter.counted) {
                    Some(Counted::Selected(selector)) if selector.selects(identity) => counters.push(*idx),
                    Some(Counted::Keeping(selector)) if selector.selects(identity) => kept_away.push(*idx),
                    _ => {}
                }
            }
        }
        if let Some(own) = self.terms.get(&unit) {
            counters.extend(own.own_counters());
        }
        counters.sort_unstable();
        counters.dedup();
        kept_away.sort_unstable();
        let known = self.units.entry(unit).or_default();
        let before = std::mem::replace(&mut known.counters, counters.clone());
        known.kept_away = kept_away;
        let old = std::mem::replace(&mut known.identity, identity.clone());
        if old != *identity {
            self.forget_labels(unit, &old);
            for key in keys_of(identity) {
                self.labelled.entry(key).or_default().insert(unit);
            }
        }
        if before == counters {
            return;
        }
        let is_in = |list: &[CounterIdx], idx: &CounterIdx| list.binary_search(idx).is_ok();
        let places = places();
        for idx in before.iter().filter(|idx| !is_in(&counters, idx)) {
            self.shift_places(*idx, &places, -1);
        }
        for idx in counters.iter().filter(|idx| !is_in(&before, idx)) {
            self.shift_places(*idx, &places, 1);
        }
    }

    fn forget_labels(&mut self, unit: UnitId, identity: &UnitIdentity) {
        for key in keys_of(identity) {
            if let Some(units) = self.labelled.get_mut(&key) {
                units.remove(&unit);
                if units.is_empty() {
                    self.labelled.remove(&key);
                }
            }
        }
    }

    /// A unit's records are gone, and all that ran of it.
    pub(crate) fn remove(&mut self, unit: UnitId) {
        if let Some(known) = self.units.remove(&unit) {
            self.forget_labels(unit, &known.identity);
        }
        if let Some(rules) = self.terms.remove(&unit) {
            self.give_back(&rules);
            if self.n_unused > N_UNUSED_MAX {
                self.sweep();
            }
        }
    }

    /// One more (`sign` 1) or one less (-1) of a unit on a node, assumed or there.
    #[cold]
    pub(crate) fn shift(&mut self, unit: UnitId, node: NodeId, sign: i8) {
        self.shift_all(unit, node, sign, Tallied::There);
    }

    /// One more (`sign` 1) or one less (-1) of those of a unit that are counted on a node leaves it.
    #[cold]
    pub(crate) fn shift_leaving(&mut self, unit: UnitId, node: NodeId, sign: i8) {
        self.shift_all(unit, node, sign, Tallied::Leaving);
    }

    /// Counts a running unit of a unit on another node than it is on. Its room stays where it was.
    pub fn move_member(&mut self, unit: UnitId, from: NodeId, to: NodeId) {
        if self.is_active() {
            self.shift(unit, from, -1);
            self.shift(unit, to, 1);
        }
    }

    fn shift_all(&mut self, unit: UnitId, node: NodeId, sign: i8, which: Tallied) {
        let Some(known) = self.units.get(&unit) else { return };
        for idx in known.counters.clone() {
            self.shift_one(idx, node, sign, which);
        }
    }

    /// Counts everything that is known of a unit (`sign` 1), or no longer (-1).
    fn shift_places(&mut self, idx: CounterIdx, places: &UnitPlaces, sign: i8) {
        places.all.iter().for_each(|node| self.shift_one(idx, *node, sign, Tallied::There));
        places.leaving.iter().for_each(|node| self.shift_one(idx, *node, sign, Tallied::Leaving));
    }

    fn shift_one(&mut self, idx: CounterIdx, node: NodeId, sign: i8, which: Tallied) {
        let Some(counter) = self.counters.get_mut(idx.0 as usize).and_then(Option::as_mut) else { return };
        match counter.shift(&self.topologies[counter.topology], &self.takers, node.0, sign, which) {
            Opened::Nothing => {}
            Opened::Domain(domain) => self.opened.domains.push((counter.topology, domain)),
            Opened::All => self.opened.all = true,
        }
    }

    /// Returns the nodes of what has opened, of `n_nodes`.
    pub(crate) fn nodes_of_opened(
        &self,
        OpenedNodes { all, mut domains }: OpenedNodes,
        n_nodes: usize,
    ) -> Vec<usize> {
        if all {
            return (0..n_nodes).collect();
        }
        domains.sort_unstable();
        domains.dedup();
        let nodes = domains.iter().flat_map(|(topology, domain)| {
            let topology = &self.topologies[*topology];
            let own = topology.is_node().then_some(*domain);
            own.into_iter().chain(topology.nodes_of(*domain).iter().copied())
        });
        nodes.map(|node| node as usize).collect()
    }

    #[cfg(test)]
    pub(crate) fn n_counters(&self) -> usize {
        self.ids.len()
    }

    fn counter(&self, idx: CounterIdx) -> Option<&Counter> {
        self.counters.get(idx.0 as usize)?.as_ref()
    }

    /// Returns how many a counter has in the domain of a node; `None`: the node is in none.
    #[inline]
    pub(crate) fn count(&self, idx: CounterIdx, node: usize) -> Option<u32> {
        let counter = self.counter(idx)?;
        Some(counter.of(self.topologies[counter.topology].of(node)?))
    }

    /// Returns how many of those that a counter has in the domain of a node stay there; `None`: the node is in none.
    #[inline]
    pub(crate) fn count_staying(&self, idx: CounterIdx, node: usize) -> Option<u32> {
        let counter = self.counter(idx)?;
        Some(counter.staying(self.topologies[counter.topology].of(node)?))
    }

    /// Returns how many of those that a counter has stay where they are, in all domains together.
    pub(crate) fn n_staying(&self, idx: CounterIdx) -> u32 {
        self.counter(idx).map_or(0, Counter::n_staying)
    }

    fn give_back(&mut self, rules: &UnitRules) {
        for (rule, takers) in rules.spreads_by_takers() {
            if let Some(counter) = self.counters.get_mut(rule.counter.0 as usize).and_then(Option::as_mut) {
                counter.release_levels(takers);
            }
        }
        rules.takers.iter().for_each(|takers| self.takers.release(*takers));
        for idx in rules.all_counters() {
            if let Some(counter) = self.counters.get_mut(idx.0 as usize).and_then(Option::as_mut) {
                counter.n_uses = counter.n_uses.saturating_sub(1);
                self.n_unused += usize::from(counter.n_uses == 0);
            }
        }
    }

    /// Drops all counters that nothing uses.
    fn sweep(&mut self) {
        self.n_unused = 0;
        let mut gone: Vec<CounterIdx> = Vec::new();
        for (idx, slot) in (0u32..).zip(&mut self.counters) {
            if let Some(counter) = slot.take_if(|counter| counter.n_uses == 0) {
                self.ids.remove(&(counter.topology, counter.counted));
                self.free.push(idx);
                gone.push(CounterIdx(idx));
            }
        }
        let is_gone = |idx: &CounterIdx| gone.binary_search(idx).is_ok();
        self.by_label.retain(|_, of_key| {
            of_key.retain(|idx| !is_gone(idx));
            !of_key.is_empty()
        });
        for known in self.units.values_mut() {
            known.counters.retain(|idx| !is_gone(idx));
            known.kept_away.retain(|idx| !is_gone(idx));
        }
    }
}

/// What a unit's topology says of its replicas one by one: each is near to the others.
fn together(topology: &UnitTopology) -> Vec<UnitTerm> {
    let term = |key: &String, weight| UnitTerm { units: Vec::new(), topology: key.clone(), weight };
    let required = [&topology.required, &topology.homogeneous].into_iter().filter(|key| !key.is_empty());
    let required = required.map(|key| term(key, 0));
    required.chain(topology.preferred.iter().map(|key| term(key, TERM_WEIGHT_MAX))).collect()
}

/// Where a unit is found: by each of its labels, and by its namespace alone.
fn keys_of(identity: &UnitIdentity) -> impl Iterator<Item = SelectorKey> {
    let namespace = identity.namespace().to_owned();
    let by_label = identity.labels().map(|(key, value)| Some((key.to_owned(), value.to_owned())));
    by_label.chain([None]).map(move |label| (namespace.clone(), label))
}

fn key_of(selector: &Selector) -> SelectorKey {
    let fixed = |one: &LabelExpression| Some((one.key.clone(), one.only_value()?.to_owned()));
    (selector.namespace.clone(), selector.units.iter().find_map(fixed))
}

/// What makes the counters of a unit's terms.
struct Begin<'a> {
    domains: &'a mut Domains,
    known: FreeView<'a>,
    unit: UnitId,
    identity: &'a UnitIdentity,
    /// Counters that were not there before.
    made: Vec<CounterIdx>,
}

impl Begin<'_> {
    fn topology(&mut self, key: &str) -> usize {
        let known = self.domains.topologies.iter().position(|topology| topology.key == key);
        known.unwrap_or_else(|| {
            let mut topology = NodeDomains::new(key);
            for node in self.known.records.ids() {
                let idx = node.idx();
                let value = self.known.value(&topology, idx);
                let to = value.map(|value| topology.domain(idx, value));
                topology.move_node(idx, to);
            }
            let at = self.domains.topologies.len();
            self.domains.takers.add_topology(at, &topology);
            self.domains.topologies.push(topology);
            self.domains.nodes_version += 1;
            at
        })
    }

    /// Which nodes take replicas, by task group, each with one use more.
    fn takers(&mut self, standing: &[StandingTerms]) -> SmallVec<[TakersIdx; 1]> {
        let Domains { takers, topologies, .. } = &mut *self.domains;
        standing.iter().map(|terms| takers.retain(terms, topologies, self.known)).collect()
    }

    /// The least of what spreads count is kept from now on.
    fn keep_levels(&mut self, rules: &UnitRules) {
        let Domains { takers, counters, .. } = &mut *self.domains;
        for (rule, of) in rules.spreads_by_takers() {
            if let Some(counter) = counters.get_mut(rule.counter.0 as usize).and_then(Option::as_mut) {
                counter.keep_levels(of, takers);
            }
        }
    }

    /// The topology keys of a unit or of a task group.
    fn keys(&mut self, topology: &UnitTopology) -> TopologyKeys {
        let mut named = |key: &String| (!key.is_empty()).then(|| self.topology(key));
        let (required, homogeneous) = (named(&topology.required), named(&topology.homogeneous));
        let preferred = topology.preferred.iter().filter_map(named).collect();
        TopologyKeys { required, preferred, homogeneous }
    }

    /// The topology keys of a unit. One that has to be near to itself has all of its replicas in one domain, as one that requires that topology.
    fn keys_of_unit(&mut self, topology: &UnitTopology, near: &[UnitTerm]) -> TopologyKeys {
        let mut keys = self.keys(topology);
        for term in near.iter().filter(|term| term.weight == 0) {
            if !term.units.is_empty() && !self.is_selected(&term.units) {
                continue;
            }
            let key = Some(self.topology(&term.topology));
            if keys.required.is_none() {
                keys.required = key;
            } else if keys.homogeneous.is_none() && keys.required != key {
                keys.homogeneous = key;
            }
        }
        keys
    }

    /// The counter of some units by a topology key, with one use more.
    fn counter(&mut self, key: &str, counted: Counted) -> CounterIdx {
        let topology = self.topology(key);
        let domains = &mut *self.domains;
        let id = (topology, counted);
        if let Some(idx) = domains.ids.get(&id).copied() {
            if let Some(counter) = domains.counters.get_mut(idx.0 as usize).and_then(Option::as_mut) {
                domains.n_unused -= usize::from(counter.n_uses == 0);
                counter.n_uses += 1;
            }
            return idx;
        }
        let at = domains.free.pop().unwrap_or_else(|| {
            domains.counters.push(None);
            u32::try_from(domains.counters.len() - 1).unwrap_or(u32::MAX)
        });
        let idx = CounterIdx(at);
        if let Counted::Selected(selector) | Counted::Keeping(selector) = &id.1 {
            domains.by_label.entry(key_of(selector)).or_default().push(idx);
            self.made.push(idx);
        }
        let mut counter = Counter::new(topology, id.1.clone());
        counter.n_uses = 1;
        domains.counters[at as usize] = Some(counter);
        domains.ids.insert(id, idx);
        idx
    }

    fn selected(&mut self, key: &str, units: &[LabelExpression]) -> CounterIdx {
        let counted = match units {
            [] => Counted::Unit(self.unit),
            units => Counted::Selected(self.selector(units)),
        };
        self.counter(key, counted)
    }

    fn selector(&self, units: &[LabelExpression]) -> Selector {
        Selector { namespace: self.identity.namespace().to_owned(), units: units.to_vec() }
    }

    /// Whether the unit itself is one of those that a term selects.
    fn is_selected(&self, units: &[LabelExpression]) -> bool {
        units.is_empty() || self.selector(units).selects(self.identity)
    }
}
