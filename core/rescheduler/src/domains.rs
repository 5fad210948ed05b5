//! Which domain each node is of: nodes by themselves, or nodes with the same value of a label.

use rustc_hash::FxHashMap;

use crate::layout::{Layout, NodeIdx};

/// Nodes by domain.
#[derive(Clone, Debug)]
pub struct LayoutDomains {
    of_node: Vec<Option<u32>>,
    nodes: Vec<Vec<NodeIdx>>,
}

impl LayoutDomains {
    /// Returns the domains of a layout by a label of nodes; without one, each node is a domain. A node that lacks the label is
    /// of no domain. The empty label makes one domain of all nodes.
    pub fn new(layout: &Layout<'_>, label: Option<&str>) -> Self {
        let mut ids: FxHashMap<&str, u32> = FxHashMap::default();
        let mut domains = Self { of_node: Vec::new(), nodes: Vec::new() };
        for node in layout.nodes() {
            let next = u32::try_from(domains.nodes.len()).unwrap_or(u32::MAX);
            let domain = match label {
                None => Some(next),
                Some("") => Some(*ids.entry("").or_insert(next)),
                Some(label) => layout
                    .node(node)
                    .labels
                    .get(label)
                    .map(|value| *ids.entry(value.as_str()).or_insert(next)),
            };
            if domain == Some(next) {
                domains.nodes.push(Vec::new());
            }
            if let Some(domain) = domain {
                domains.nodes[domain as usize].push(node);
            }
            domains.of_node.push(domain);
        }
        domains
    }

    /// Keeps the nodes with one value of a label; the others are of no domain.
    pub fn inside(mut self, layout: &Layout<'_>, label: &str, value: &str) -> Self {
        let is_inside =
            |node: &NodeIdx| layout.node(*node).labels.get(label).is_some_and(|known| known == value);
        for (at, domain) in self.of_node.iter_mut().enumerate() {
            *domain = domain.filter(|_| is_inside(&NodeIdx::at(at)));
        }
        self.nodes.iter_mut().for_each(|nodes| nodes.retain(is_inside));
        self
    }

    /// Returns the domain of a node.
    pub fn of(&self, node: NodeIdx) -> Option<u32> {
        self.of_node.get(node.idx()).copied().flatten()
    }

    /// Returns the nodes of a domain.
    pub fn nodes(&self, domain: u32) -> &[NodeIdx] {
        self.nodes.get(domain as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of domains.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no node is of a domain.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
