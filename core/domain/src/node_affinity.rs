//! Which nodes a replica may have and which it prefers, by their labels.

use std::collections::BTreeMap;

use crate::label_expression::LabelExpression;

/// Heaviest preference.
pub const PREFERENCE_WEIGHT_MAX: u32 = 100;

/// Conditions on the labels of one node that must all hold.
pub type NodeTerm = Vec<LabelExpression>;

/// Which nodes a replica may have and which it prefers, beyond the labels of its node selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeAffinity {
    /// The node meets one of these terms; none: every node does.
    pub required: Vec<NodeTerm>,
    /// Nodes that are better than others.
    pub preferred: Vec<PreferredNodes>,
}

/// Nodes that are better than others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreferredNodes {
    /// 1 to [`PREFERENCE_WEIGHT_MAX`]: how much better.
    pub weight: u32,
    /// Which nodes these are.
    pub term: NodeTerm,
}

impl NodeAffinity {
    /// Whether every node is as good as any.
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }

    /// Whether a node meets one of the required terms, `label` being its labels.
    pub fn admits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        Self::meets_one(&self.required, label)
    }

    /// Whether labels meet one of some terms; true if there are none.
    pub fn meets_one<'a>(required: &[NodeTerm], label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let meets = |term: &NodeTerm| term.iter().all(|one| one.accepts(label(&one.key)));
        required.is_empty() || required.iter().any(meets)
    }

    /// Requires conditions of every term, beside what the terms say.
    pub fn require(&mut self, conditions: &[LabelExpression]) {
        if conditions.is_empty() {
            return;
        }
        if self.required.is_empty() {
            self.required.push(Vec::new());
        }
        self.required.iter_mut().for_each(|term| term.extend_from_slice(conditions));
    }
}

/// Splits conditions into labels that a node must have with one value each and the others. A second condition on a label of
/// the first kind is one of the others.
pub fn split_selector(conditions: Vec<LabelExpression>) -> (BTreeMap<String, String>, Vec<LabelExpression>) {
    let (mut labels, mut others) = (BTreeMap::new(), Vec::new());
    for condition in conditions {
        match condition.only_value() {
            Some(value) if !labels.contains_key(&condition.key) => {
                labels.insert(condition.key.clone(), value.to_owned());
            }
            _ => others.push(condition),
        }
    }
    (labels, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label_expression::parse;

    #[test]
    fn a_node_meets_one_of_the_required_terms() {
        let node =
            |key: &str| [("zone", "a"), ("cores", "96")].into_iter().find(|(k, _)| *k == key).map(|(_, v)| v);
        let affinity = |terms: &[&str]| NodeAffinity {
            required: terms.iter().map(|term| parse(term).unwrap()).collect(),
            preferred: Vec::new(),
        };
        let table: [(&[&str], bool); 5] = [
            (&[], true),
            (&["zone=b", "cores > 64"], true),
            (&["zone=a, cores > 96"], false),
            (&["zone=b", "!cores"], false),
            (&["zone=a, !virtual"], true),
        ];
        for (terms, admits) in table {
            assert_eq!(affinity(terms).admits(node), admits, "{terms:?}");
        }
    }

    #[test]
    fn conditions_are_required_of_every_term() {
        let mut affinity = NodeAffinity::default();
        affinity.require(&[]);
        assert!(affinity.is_empty());
        affinity.require(&parse("!virtual").unwrap());
        assert_eq!(affinity.required, [parse("!virtual").unwrap()]);
        affinity.required.push(parse("zone=b").unwrap());
        affinity.require(&parse("disk").unwrap());
        assert_eq!(affinity.required, [parse("!virtual, disk").unwrap(), parse("zone=b, disk").unwrap()]);
    }

    #[test]
    fn equalities_become_labels_and_the_rest_stays() {
        let (labels, others) = split_selector(parse("zone=a, rack in (1, 2), zone=b, !virtual").unwrap());
        assert_eq!(labels, [("zone".to_owned(), "a".to_owned())].into());
        assert_eq!(others, parse("rack in (1, 2), zone=b, !virtual").unwrap());
    }
}
