//! Which domain each node is of, by topology key.

use godel_domain::unit_affinity::NODE;
use rustc_hash::FxHashMap;

/// Small integer of a domain of one topology key. With the key `node` it is the index of the node.
pub type DomainIdx = u32;

/// Nodes by their value of one label.
#[derive(Clone, Debug)]
pub(super) struct NodeDomains {
    pub(super) key: String,
    /// Each node is a domain: the columns below stay empty.
    is_node: bool,
    values: FxHashMap<String, DomainIdx>,
    /// By node index.
    of_node: Vec<Option<DomainIdx>>,
    /// By domain.
    nodes: Vec<Vec<u32>>,
}

impl NodeDomains {
    pub(super) fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            is_node: key == NODE,
            values: FxHashMap::default(),
            of_node: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// No node is known any more; domains keep their integers.
    pub(super) fn forget_nodes(&mut self) {
        self.of_node.clear();
        self.nodes.iter_mut().for_each(Vec::clear);
    }

    /// Returns the domain of a value; with the key `node` that of the node at `idx`.
    pub(super) fn domain(&mut self, idx: usize, value: &str) -> DomainIdx {
        if self.is_node { u32::try_from(idx).unwrap_or(u32::MAX) } else { self.intern(value) }
    }

    /// A node is of this domain now.
    pub(super) fn move_node(&mut self, idx: usize, to: Option<DomainIdx>) {
        if self.of_node.len() <= idx {
            self.of_node.resize(idx + 1, None);
        }
        let node = u32::try_from(idx).unwrap_or(u32::MAX);
        let from = std::mem::replace(&mut self.of_node[idx], to);
        if from != to && !self.is_node {
            if let Some(from) = from {
                self.nodes[from as usize].retain(|one| *one != node);
            }
            if let Some(to) = to {
                self.nodes[to as usize].push(node);
            }
        }
    }

    fn intern(&mut self, value: &str) -> DomainIdx {
        if let Some(domain) = self.values.get(value) {
            return *domain;
        }
        let domain = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.values.insert(value.to_owned(), domain);
        self.nodes.push(Vec::new());
        domain
    }

    #[inline]
    pub(super) fn of(&self, idx: usize) -> Option<DomainIdx> {
        self.of_node.get(idx).copied().flatten()
    }

    /// Returns the value of the label that a domain stands for; `None` with the key `node`.
    pub(super) fn value_of(&self, domain: DomainIdx) -> Option<&str> {
        self.values.iter().find(|(_, known)| **known == domain).map(|(value, _)| value.as_str())
    }

    /// Returns the nodes of a domain.
    pub(super) fn nodes_of(&self, domain: DomainIdx) -> &[u32] {
        if self.is_node { &[] } else { self.nodes.get(domain as usize).map_or(&[], Vec::as_slice) }
    }

    /// Returns how many domains have had nodes; 0 with the key `node`.
    pub(super) fn n_domains(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes known are below this.
    pub(super) fn n_nodes(&self) -> usize {
        self.of_node.len()
    }

    pub(super) fn is_node(&self) -> bool {
        self.is_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_move_between_domains() {
        let mut racks = NodeDomains::new("rack");
        let put = |racks: &mut NodeDomains, idx, value: Option<&str>| {
            let to = value.map(|value| racks.domain(idx, value));
            racks.move_node(idx, to);
        };
        put(&mut racks, 0, Some("r1"));
        put(&mut racks, 1, Some("r1"));
        put(&mut racks, 2, None);
        assert_eq!((racks.of(0), racks.of(1), racks.of(2)), (Some(0), Some(0), None));
        put(&mut racks, 0, Some("r2"));
        assert_eq!((racks.nodes_of(0), racks.nodes_of(1)), (&[1][..], &[0][..]));
        assert_eq!((racks.value_of(0), racks.value_of(1)), (Some("r1"), Some("r2")));
        racks.forget_nodes();
        assert!(racks.of(0).is_none() && racks.nodes_of(1).is_empty());
    }

    #[test]
    fn each_node_is_a_domain_of_its_own() {
        let mut nodes = NodeDomains::new(NODE);
        let to = nodes.domain(3, "");
        nodes.move_node(3, Some(to));
        assert_eq!((nodes.of(3), nodes.of(2), nodes.value_of(3)), (Some(3), None, None));
    }
}
