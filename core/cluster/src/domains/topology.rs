//! Which domain each node is of, by topology key.

use godel_domain::unit_affinity::NODE;
use rustc_hash::FxHashMap;

/// Small integer of a domain of one topology key. With the key `node` it is the index of the node.
pub type DomainIdx = u32;

/// Nodes by their value of one label.
#[derive(Clone, Debug)]
pub(super) struct NodeDomains {
    pub(super) key: String,
    /// Each node is a domain: the columns below stay empty, but for `n_usable`.
    is_node: bool,
    values: FxHashMap<String, DomainIdx>,
    /// By node index.
    of_node: Vec<Option<DomainIdx>>,
    /// By domain.
    nodes: Vec<Vec<u32>>,
    /// By domain, how many of its nodes may be used.
    n_usable: Vec<u32>,
    usable: Vec<bool>,
}

/// What a node's records changed about its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeMove {
    pub(super) from: Option<DomainIdx>,
    pub(super) to: Option<DomainIdx>,
    /// Domains that have their first usable node since, or none any more.
    pub(super) opened: Option<DomainIdx>,
    pub(super) closed: Option<DomainIdx>,
}

impl NodeDomains {
    pub(super) fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            is_node: key == NODE,
            values: FxHashMap::default(),
            of_node: Vec::new(),
            nodes: Vec::new(),
            n_usable: Vec::new(),
            usable: Vec::new(),
        }
    }

    /// No node is known any more; domains keep their integers.
    pub(super) fn forget_nodes(&mut self) {
        self.of_node.clear();
        self.usable.clear();
        self.nodes.iter_mut().for_each(Vec::clear);
        self.n_usable.fill(0);
    }

    /// The records of a node say this now; with the key `node` any value says that there is such a node.
    pub(super) fn set_node(&mut self, idx: usize, value: Option<&str>, is_usable: bool) -> NodeMove {
        if self.of_node.len() <= idx {
            self.of_node.resize(idx + 1, None);
            self.usable.resize(idx + 1, false);
        }
        let node = u32::try_from(idx).unwrap_or(u32::MAX);
        let to = value.map(|value| if self.is_node { node } else { self.intern(value) });
        let from = std::mem::replace(&mut self.of_node[idx], to);
        if from != to && !self.is_node {
            if let Some(from) = from {
                self.nodes[from as usize].retain(|one| *one != node);
            }
            if let Some(to) = to {
                self.nodes[to as usize].push(node);
            }
        }
        let was_usable = std::mem::replace(&mut self.usable[idx], is_usable);
        let closed = from.filter(|domain| was_usable && self.shift_usable(*domain, false));
        let opened = to.filter(|domain| is_usable && self.shift_usable(*domain, true));
        // What closes and opens at once has not changed.
        if closed.is_some() && closed == opened {
            return NodeMove { from, to, opened: None, closed: None };
        }
        NodeMove { from, to, opened, closed }
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

    /// Returns whether the domain has its first usable node since, or lost its last one.
    fn shift_usable(&mut self, domain: DomainIdx, is_more: bool) -> bool {
        let at = domain as usize;
        if self.n_usable.len() <= at {
            self.n_usable.resize(at + 1, 0);
        }
        let n = &mut self.n_usable[at];
        *n = if is_more { *n + 1 } else { n.saturating_sub(1) };
        *n == u32::from(is_more)
    }

    #[inline]
    pub(super) fn of(&self, idx: usize) -> Option<DomainIdx> {
        self.of_node.get(idx).copied().flatten()
    }

    pub(super) fn is_open(&self, domain: DomainIdx) -> bool {
        self.n_usable.get(domain as usize).is_some_and(|n| *n > 0)
    }

    /// Returns the domains that have a usable node.
    pub(super) fn open(&self) -> impl Iterator<Item = DomainIdx> {
        (0..).zip(&self.n_usable).filter(|(_, n)| **n > 0).map(|(domain, _)| domain)
    }

    /// Returns the nodes of a domain.
    pub(super) fn nodes_of(&self, domain: DomainIdx) -> &[u32] {
        if self.is_node { &[] } else { self.nodes.get(domain as usize).map_or(&[], Vec::as_slice) }
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
    fn nodes_move_between_domains_which_open_and_close() {
        let mut racks = NodeDomains::new("rack");
        let moved = |from, to, opened, closed| NodeMove { from, to, opened, closed };
        assert_eq!(racks.set_node(0, Some("r1"), true), moved(None, Some(0), Some(0), None));
        assert_eq!(racks.set_node(1, Some("r1"), false), moved(None, Some(0), None, None));
        assert_eq!(racks.set_node(2, None, true), moved(None, None, None, None));
        assert_eq!(racks.set_node(0, Some("r1"), true), moved(Some(0), Some(0), None, None));
        assert_eq!(racks.set_node(0, Some("r2"), true), moved(Some(0), Some(1), Some(1), Some(0)));
        assert_eq!(racks.set_node(1, Some("r1"), true), moved(Some(0), Some(0), Some(0), None));
        assert_eq!(racks.open().collect::<Vec<_>>(), [0, 1]);
        assert_eq!((racks.nodes_of(0), racks.nodes_of(1)), (&[1][..], &[0][..]));
        racks.forget_nodes();
        assert!(racks.of(0).is_none() && racks.open().next().is_none());
    }

    #[test]
    fn each_node_is_a_domain_of_its_own() {
        let mut nodes = NodeDomains::new(NODE);
        nodes.set_node(3, Some(""), true);
        assert_eq!((nodes.of(3), nodes.of(2)), (Some(3), None));
        assert_eq!(nodes.open().collect::<Vec<_>>(), [3]);
    }
}
