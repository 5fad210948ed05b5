//! Which nodes take replicas of a template at all, and which domains have such nodes.
//!
//! A node that can never take a replica of a template, whatever runs there, makes no domain usable for it: one that is gone, not ready,
//! cordoned, drained or quarantined, with an agent whose certificate has expired, of another class or runtime, without the labels that are asked for, with a taint that is not tolerated, or
//! too small for one replica even if nothing ran there. A node that is only full may be free later, and counts.
//!
//! One set for each kind of template that spreads, whoever asks; it follows the records of nodes, so that a question costs a look into a
//! list.

use std::collections::BTreeMap;

use godel_base::ids::NodeId;
use godel_domain::{
    node::{NODE_CLASS, RuntimeNeed, Toleration, may_come},
    node_affinity::{NodeAffinity, NodeTerm},
    unit::Template,
};
use rustc_hash::FxHashMap;

use super::topology::{DomainIdx, NodeDomains};
use crate::{free_view::FreeView, shapes::ShapeId};

/// Sets that nothing uses are kept up to this many, for units to come.
const N_UNUSED_MAX: usize = 64;

/// Position of a set of nodes that take replicas of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TakersIdx(u32);

/// What a template asks of a node that does not depend on what runs there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StandingTerms {
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// The node meets one of these; none: every node does.
    pub required: Vec<NodeTerm>,
    /// Taints that are accepted.
    pub tolerations: Vec<Toleration>,
    /// What it asks of the runtime of the node.
    pub runtime: RuntimeNeed,
    /// What an empty node has to have.
    pub shape: ShapeId,
}

/// Whether a template says something of the class of its nodes.
pub fn names_classes(node_selector: &BTreeMap<String, String>, required: &[NodeTerm]) -> bool {
    let mut conditions = required.iter().flatten();
    node_selector.contains_key(NODE_CLASS) || conditions.any(|one| one.key == NODE_CLASS)
}

impl FreeView<'_> {
    /// Whether the node at an index ever takes a replica of a template, whatever runs there: the one answer to the question which domains of a spread are
    /// usable.
    pub fn takes(self, terms: &StandingTerms, idx: usize) -> bool {
        let StandingTerms { node_selector, required, tolerations, runtime, shape } = terms;
        let Some(node) = self.records.id_at(idx).filter(|_| self.records.is_usable(idx)) else {
            return false;
        };
        let label = |key: &str| self.records.label(node, key);
        self.records.runtime(idx).meets(*runtime)
            && (label(NODE_CLASS).is_none() || names_classes(node_selector, required))
            && node_selector.iter().all(|(key, value)| label(key) == Some(value.as_str()))
            && NodeAffinity::meets_one(required, label)
            && self
                .records
                .spec(node)
                .is_some_and(|spec| spec.taints.iter().all(|taint| may_come(taint, tolerations)))
            && self.n_fit_empty(*shape, idx, 1) > 0
    }

    /// Returns the value of a topology key on the node at an index; `None`: it is in no domain.
    pub(super) fn value(&self, topology: &NodeDomains, idx: usize) -> Option<&str> {
        let node = self.records.id_at(idx);
        if topology.is_node() {
            return node.map(|_| "");
        }
        let node = node.or_else(|| u32::try_from(idx).ok().map(NodeId))?;
        self.records.label(node, &topology.key)
    }
}

impl StandingTerms {
    /// Returns what a template asks, `shape` being that of its demand.
    pub fn of(template: &Template, shape: ShapeId) -> Self {
        Self {
            node_selector: template.node_selector.clone(),
            required: template.node_affinity.required.clone(),
            tolerations: template.tolerations.clone(),
            runtime: template.run.runtime_need(),
            shape,
        }
    }
}

/// Nodes that take replicas of one kind of template.
#[derive(Clone, Debug)]
struct Takers {
    terms: StandingTerms,
    /// Task groups that rest on it.
    n_uses: u32,
    /// By node index.
    takes: Vec<bool>,
    /// By topology and domain, how many of its nodes these are.
    n_of: Vec<Vec<u32>>,
}

impl Takers {
    fn takes(&self, idx: usize) -> bool {
        self.takes.get(idx).copied().unwrap_or(false)
    }

    fn n_of(&self, topology: usize, domain: DomainIdx) -> u32 {
        let counts = self.n_of.get(topology);
        counts.and_then(|counts| counts.get(domain as usize)).copied().unwrap_or(0)
    }

    fn shift(&mut self, topology: usize, domain: DomainIdx, is_more: bool) {
        let at = domain as usize;
        if self.n_of.len() <= topology {
            self.n_of.resize_with(topology + 1, Vec::new);
        }
        let counts = &mut self.n_of[topology];
        if counts.len() <= at {
            counts.resize(at + 1, 0);
        }
        counts[at] = if is_more { counts[at] + 1 } else { counts[at].saturating_sub(1) };
    }

    /// Counts all nodes by a topology that was not known before.
    fn count_topology(&mut self, at: usize, topology: &NodeDomains) {
        for idx in 0..self.takes.len() {
            if let Some(domain) = topology.of(idx).filter(|_| self.takes(idx)) {
                self.shift(at, domain, true);
            }
        }
    }
}

/// The sets of all templates that spread.
#[derive(Clone, Debug, Default)]
pub(super) struct TakerSets {
    sets: Vec<Option<Takers>>,
    free: Vec<u32>,
    ids: FxHashMap<StandingTerms, TakersIdx>,
    n_unused: usize,
}

/// Which nodes of which sets are others since a node's records changed.
pub(super) struct Judgement(Vec<bool>);

impl TakerSets {
    /// No node is known any more.
    pub(super) fn forget_nodes(&mut self) {
        for set in self.sets.iter_mut().flatten() {
            set.takes.clear();
            set.n_of.clear();
        }
    }

    /// Returns the set of a template, with one use more. `O(nodes)` for one that is not known.
    pub(super) fn retain(
        &mut self,
        terms: &StandingTerms,
        topologies: &[NodeDomains],
        nodes: FreeView<'_>,
    ) -> TakersIdx {
        if let Some(idx) = self.ids.get(terms).copied() {
            if let Some(set) = self.sets.get_mut(idx.0 as usize).and_then(Option::as_mut) {
                self.n_unused -= usize::from(set.n_uses == 0);
                set.n_uses += 1;
            }
            return idx;
        }
        let n_nodes = nodes.records.n_entries();
        let takes = (0..n_nodes).map(|idx| nodes.takes(terms, idx)).collect();
        let mut set = Takers { terms: terms.clone(), n_uses: 1, takes, n_of: Vec::new() };
        for (at, topology) in topologies.iter().enumerate() {
            set.count_topology(at, topology);
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.sets.push(None);
            u32::try_from(self.sets.len() - 1).unwrap_or(u32::MAX)
        });
        self.sets[at as usize] = Some(set);
        self.ids.insert(terms.clone(), TakersIdx(at));
        TakersIdx(at)
    }

    /// One use less. Sets that nothing uses are dropped, all at once, when they have become many.
    pub(super) fn release(&mut self, idx: TakersIdx) {
        let Some(set) = self.sets.get_mut(idx.0 as usize).and_then(Option::as_mut) else { return };
        set.n_uses = set.n_uses.saturating_sub(1);
        self.n_unused += usize::from(set.n_uses == 0);
        if self.n_unused <= N_UNUSED_MAX {
            return;
        }
        self.n_unused = 0;
        for (at, slot) in (0u32..).zip(&mut self.sets) {
            if let Some(unused) = slot.take_if(|set| set.n_uses == 0) {
                self.ids.remove(&unused.terms);
                self.free.push(at);
            }
        }
    }

    /// Returns what a set rests on.
    pub(super) fn terms(&self, idx: TakersIdx) -> Option<&StandingTerms> {
        self.sets.get(idx.0 as usize)?.as_ref().map(|set| &set.terms)
    }

    /// A topology is known from now on.
    pub(super) fn add_topology(&mut self, at: usize, topology: &NodeDomains) {
        self.sets.iter_mut().flatten().for_each(|set| set.count_topology(at, topology));
    }

    /// Whether a domain has a node of a set.
    #[inline]
    pub(super) fn is_open(&self, idx: TakersIdx, topology: usize, domain: DomainIdx) -> bool {
        let set = self.sets.get(idx.0 as usize).and_then(Option::as_ref);
        set.is_some_and(|set| set.n_of(topology, domain) > 0)
    }

    /// Returns the domains that have a node of a set.
    pub(super) fn open(&self, idx: TakersIdx, topology: usize) -> impl Iterator<Item = DomainIdx> {
        let set = self.sets.get(idx.0 as usize).and_then(Option::as_ref);
        let counts = set.and_then(|set| set.n_of.get(topology)).into_iter().flatten();
        (0..).zip(counts).filter(|(_, n)| **n > 0).map(|(domain, _)| domain)
    }

    /// Judges a node whose records changed for all sets. Nothing changes before [`Self::follow`] and [`Self::settle`].
    pub(super) fn judge(&self, idx: usize, nodes: FreeView<'_>) -> Judgement {
        let takes = |set: &Option<Takers>| set.as_ref().is_some_and(|set| nodes.takes(&set.terms, idx));
        Judgement(self.sets.iter().map(takes).collect())
    }

    /// Whether a node that stays in its domain makes it usable for a set, or no longer.
    pub(super) fn turns(&self, judged: &Judgement, idx: usize, topology: usize, domain: DomainIdx) -> bool {
        self.sets.iter().zip(&judged.0).any(|(set, takes)| {
            set.as_ref().is_some_and(|set| {
                *takes != set.takes(idx) && set.n_of(topology, domain) == u32::from(!*takes)
            })
        })
    }

    /// Counts a node by one topology as judged now, in the domain that it is of now.
    pub(super) fn follow(
        &mut self,
        judged: &Judgement,
        idx: usize,
        topology: usize,
        from: Option<DomainIdx>,
        to: Option<DomainIdx>,
    ) {
        for (set, takes) in self.sets.iter_mut().zip(&judged.0) {
            let Some(set) = set else { continue };
            if let Some(from) = from.filter(|_| set.takes(idx)) {
                set.shift(topology, from, false);
            }
            if let Some(to) = to.filter(|_| *takes) {
                set.shift(topology, to, true);
            }
        }
    }

    /// Keeps the judgement, once all topologies have followed.
    pub(super) fn settle(&mut self, judged: &Judgement, idx: usize) {
        for (set, takes) in self.sets.iter_mut().zip(&judged.0) {
            let Some(set) = set else { continue };
            if set.takes.len() <= idx {
                set.takes.resize(idx + 1, false);
            }
            set.takes[idx] = *takes;
        }
    }
}
