//! Labels and taints of nodes as small integers, so that the cycle compares numbers.

use std::collections::BTreeMap;

use godel_domain::node::{Taint, TaintEffect, Toleration};
use rustc_hash::FxHashMap;

/// Label pairs and taint lists seen on nodes.
#[derive(Clone, Debug)]
pub struct Labels {
    pairs: FxHashMap<String, FxHashMap<String, u32>>,
    n_pairs: u32,
    taint_lists: Vec<Vec<Taint>>,
    taint_ids: FxHashMap<Vec<Taint>, u32>,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            pairs: FxHashMap::default(),
            n_pairs: 0,
            taint_lists: vec![Vec::new()],
            taint_ids: std::iter::once((Vec::new(), 0)).collect(),
        }
    }
}

impl Labels {
    /// Rises when a pair or a taint list is new: what was resolved before is to be resolved again.
    pub fn version(&self) -> usize {
        self.n_pairs as usize + self.taint_lists.len()
    }

    /// The label map of a node, `over` winning over `under`, as ascending integers.
    pub fn intern(
        &mut self,
        under: &BTreeMap<String, String>,
        over: &BTreeMap<String, String>,
    ) -> Box<[u32]> {
        let under = under.iter().filter(|(key, _)| !over.contains_key(*key));
        let mut ids: Vec<u32> = under.chain(over).map(|(key, value)| self.pair(key, value)).collect();
        ids.sort_unstable();
        ids.into_boxed_slice()
    }

    fn pair(&mut self, key: &str, value: &str) -> u32 {
        if let Some(id) = self.find(key, value) {
            return id;
        }
        let id = self.n_pairs;
        self.n_pairs += 1;
        self.pairs.entry(key.to_owned()).or_default().insert(value.to_owned(), id);
        id
    }

    /// Returns the integer of a label pair; `None` if no node has ever had it.
    pub fn find(&self, key: &str, value: &str) -> Option<u32> {
        self.pairs.get(key)?.get(value).copied()
    }

    /// Returns the integers of the pairs of a selector; `None` if no node has ever had one of them.
    pub fn pairs(&self, selector: &BTreeMap<String, String>) -> Option<Box<[u32]>> {
        selector.iter().map(|(key, value)| self.find(key, value)).collect()
    }

    /// Returns what tolerations say of each taint list known, by its integer.
    pub fn verdicts(&self, tolerations: &[Toleration]) -> Box<[TaintVerdict]> {
        self.taint_lists.iter().map(|taints| verdict(taints, tolerations)).collect()
    }

    /// The integer of a taint list, whenever each was set; 0 is the empty one.
    pub fn taints(&mut self, taints: &[Taint]) -> u32 {
        let taints: Vec<Taint> = taints.iter().map(|taint| Taint { added_ms: 0, ..taint.clone() }).collect();
        if let Some(id) = self.taint_ids.get(&taints) {
            return *id;
        }
        let id = u32::try_from(self.taint_lists.len()).expect("memory ends before 2^32 taint lists");
        self.taint_lists.push(taints.clone());
        self.taint_ids.insert(taints, id);
        id
    }
}

/// What tolerations say of one taint list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintVerdict {
    /// Tolerated, but for so many soft taints.
    Soft(u32),
    /// A hard taint is not tolerated.
    Refused,
}

fn verdict(taints: &[Taint], tolerations: &[Toleration]) -> TaintVerdict {
    let mut soft = 0;
    for taint in taints.iter().filter(|taint| !is_tolerated(taint, tolerations)) {
        match taint.effect {
            TaintEffect::NoSchedule | TaintEffect::NoExecute => return TaintVerdict::Refused,
            TaintEffect::PreferNoSchedule => soft += 1,
        }
    }
    TaintVerdict::Soft(soft)
}

pub(crate) fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| toleration.tolerates(taint))
}
