//! Labels and taints of nodes as small integers, so that the cycle compares numbers.

use std::collections::BTreeMap;

use godel_domain::{
    label_expression::LabelExpression,
    node::{Taint, Toleration, may_come},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Label pairs and taint lists seen on nodes, and whether some node runs processes.
#[derive(Clone, Debug)]
pub struct Labels {
    has_processes: bool,
    pairs: FxHashMap<String, FxHashMap<String, u32>>,
    n_pairs: u32,
    taint_lists: Vec<Vec<Taint>>,
    taint_ids: FxHashMap<Vec<Taint>, u32>,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            has_processes: false,
            pairs: FxHashMap::default(),
            n_pairs: 0,
            taint_lists: vec![Vec::new()],
            taint_ids: std::iter::once((Vec::new(), 0)).collect(),
        }
    }
}

impl Labels {
    /// Rises when a pair or a taint list is new, and with the first node that runs processes: what was resolved before is to be resolved again.
    pub fn version(&self) -> usize {
        self.n_pairs as usize + self.taint_lists.len() + usize::from(self.has_processes)
    }

    /// Some node runs processes.
    pub(crate) fn note_processes(&mut self) {
        self.has_processes = true;
    }

    /// Whether some node has run processes.
    pub fn has_processes(&self) -> bool {
        self.has_processes
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

    /// Whether some node has had a label.
    pub fn has_key(&self, key: &str) -> bool {
        self.pairs.contains_key(key)
    }

    /// Returns the integers of the pairs of a selector; `None` if no node has ever had one of them.
    pub fn pairs(&self, selector: &BTreeMap<String, String>) -> Option<Box<[u32]>> {
        selector.iter().map(|(key, value)| self.find(key, value)).collect()
    }

    /// Returns conditions that must all hold as sets of label pairs, as the labels are now.
    pub fn resolve(&self, conditions: &[LabelExpression]) -> LabelSets {
        LabelSets(conditions.iter().map(|condition| self.resolve_one(condition)).collect())
    }

    fn resolve_one(&self, condition: &LabelExpression) -> LabelSet {
        // Conditions that hold without the label are those that some values break.
        let is_wanted = !condition.accepts(None);
        let values = self.pairs.get(&condition.key);
        let pairs = values.into_iter().flatten();
        let deciding = pairs.filter(|(value, _)| condition.accepts(Some(value)) == is_wanted);
        let mut pairs: Vec<u32> = deciding.map(|(_, id)| *id).collect();
        pairs.sort_unstable();
        LabelSet { pairs: pairs.into_boxed_slice(), is_wanted }
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

/// Conditions on labels that must all hold, resolved against the label pairs that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSets(SmallVec<[LabelSet; 2]>);

/// A condition on one label: the node has one of the pairs, or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelSet {
    /// Ascending.
    pairs: Box<[u32]>,
    is_wanted: bool,
}

impl LabelSets {
    /// Whether a node with these label pairs, ascending, meets all conditions.
    #[inline]
    pub fn accept(&self, labels: &[u32]) -> bool {
        self.0.iter().all(|set| set.meets(labels) == set.is_wanted)
    }
}

impl LabelSet {
    /// Whether one of the pairs is among the labels.
    #[inline]
    fn meets(&self, labels: &[u32]) -> bool {
        let (few, many) =
            if self.pairs.len() <= labels.len() { (&*self.pairs, labels) } else { (labels, &*self.pairs) };
        few.iter().any(|pair| many.binary_search(pair).is_ok())
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
    for taint in taints {
        if !may_come(taint, tolerations) {
            return TaintVerdict::Refused;
        }
        soft += u32::from(!taint.effect.is_hard() && !is_tolerated(taint, tolerations));
    }
    TaintVerdict::Soft(soft)
}

/// Whether some toleration accepts a taint, for however long.
pub(crate) fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

#[cfg(test)]
mod tests {
    use godel_domain::label_expression::parse;

    use super::*;

    #[test]
    fn resolved_conditions_say_what_the_expressions_say() {
        let nodes: [&[(&str, &str)]; 5] = [
            &[("zone", "a"), ("cores", "96")],
            &[("zone", "b"), ("cores", "8"), ("gpu", "")],
            &[("zone", "c")],
            &[("cores", "many")],
            &[],
        ];
        let maps = nodes.map(|pairs| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        });
        let mut labels = Labels::default();
        let ids = maps.clone().map(|map| labels.intern(&map, &BTreeMap::new()));
        let texts = [
            "zone = a",
            "zone != a",
            "zone in (a, b, x)",
            "zone notin (a, b, x)",
            "gpu",
            "!gpu",
            "cores > 8",
            "cores < 96",
            "zone, cores > 7, !gpu",
            "nothing",
            "!nothing",
            "nothing notin (a)",
        ];
        for text in texts {
            let conditions = parse(text).unwrap();
            let resolved = labels.resolve(&conditions);
            for (map, ids) in maps.iter().zip(&ids) {
                let expected =
                    conditions.iter().all(|one| one.accepts(map.get(&one.key).map(String::as_str)));
                assert_eq!(resolved.accept(ids), expected, "{text} on {map:?}");
            }
        }
    }
}
