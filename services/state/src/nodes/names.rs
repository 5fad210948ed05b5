//! Nodes by name and uid, and by unique prefixes of them. Built from the NodeSpec records; no lock, no I/O.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use godel_core::ids::NodeId;
use rustc_hash::FxHashMap;

/// Names and uids of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: BTreeMap<String, NodeId>,
    by_uid: BTreeMap<String, NodeId>,
    of: FxHashMap<NodeId, (String, String)>,
}

/// Why a name finds no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotFound {
    /// Nothing has it.
    #[error("no node has the name, uid or prefix {0:?}")]
    Unknown(String),
    /// Several do.
    #[error("{asked:?} is a prefix of several nodes: {some:?}")]
    Ambiguous {
        /// The prefix.
        asked: String,
        /// Up to three of them.
        some: Vec<String>,
    },
}

impl Names {
    /// A node has this name and uid (from now on).
    pub(crate) fn put(&mut self, node: NodeId, name: String, uid: String) {
        self.remove(node);
        self.by_name.insert(name.clone(), node);
        if !uid.is_empty() {
            self.by_uid.insert(uid.clone(), node);
        }
        self.of.insert(node, (name, uid));
    }

    /// A node is gone.
    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some((name, uid)) = self.of.remove(&node) {
            self.by_name.remove(&name);
            self.by_uid.remove(&uid);
        }
    }

    /// Node of exactly this name.
    pub(crate) fn by_name(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Node of exactly this uid.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<NodeId> {
        self.by_uid.get(uid).copied()
    }

    /// Name and uid of a node.
    pub(crate) fn of(&self, node: NodeId) -> Option<(&str, &str)> {
        self.of.get(&node).map(|(name, uid)| (name.as_str(), uid.as_str()))
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }

    /// The node that `asked` names: its name, its uid, or a prefix of one that no other node shares. A whole
    /// name wins over a uid, and both over prefixes.
    pub(crate) fn resolve(&self, asked: &str) -> Result<NodeId, NotFound> {
        if asked.is_empty() {
            return Err(NotFound::Unknown(String::new()));
        }
        if let Some(node) = self.by_name(asked).or_else(|| self.by_uid(asked)) {
            return Ok(node);
        }
        let mut found = Vec::new();
        for index in [&self.by_name, &self.by_uid] {
            let from = index.range::<str, _>((std::ops::Bound::Included(asked), Unbounded));
            for (_, node) in from.take_while(|(name, _)| name.starts_with(asked)).take(4) {
                if !found.contains(node) {
                    found.push(*node);
                }
            }
        }
        match found[..] {
            [] => Err(NotFound::Unknown(asked.to_owned())),
            [node] => Ok(node),
            _ => {
                let some = found.iter().take(3).filter_map(|node| self.of(*node));
                Err(NotFound::Ambiguous {
                    asked: asked.to_owned(),
                    some: some.map(|(name, _)| name.to_owned()).collect(),
                })
            }
        }
    }

    /// Nodes in order of name, those after `last` only.
    pub(crate) fn after(&self, last: &str) -> impl Iterator<Item = (&str, NodeId)> {
        let from = if last.is_empty() { Unbounded } else { Excluded(last) };
        self.by_name.range::<str, _>((from, Unbounded)).map(|(name, node)| (name.as_str(), *node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::default();
        for (id, name, uid) in [(1, "n1", "aa-1"), (2, "n10", "ab-2"), (3, "web", "n1x"), (4, "aa", "cc")] {
            names.put(NodeId(id), name.to_owned(), uid.to_owned());
        }
        names
    }

    #[test]
    fn whole_names_win_and_prefixes_must_be_unique() {
        let names = names();
        let unknown = |asked: &str| Err(NotFound::Unknown(asked.to_owned()));
        for (asked, expect) in [
            ("n1", Ok(NodeId(1))),
            ("n10", Ok(NodeId(2))),
            ("w", Ok(NodeId(3))),
            ("n1x", Ok(NodeId(3))),
            ("ab", Ok(NodeId(2))),
            ("aa", Ok(NodeId(4))),
            ("cc", Ok(NodeId(4))),
            ("", unknown("")),
            ("x", unknown("x")),
            ("n100", unknown("n100")),
        ] {
            assert_eq!(names.resolve(asked), expect, "{asked}");
        }
        let some = vec!["n1".to_owned(), "n10".to_owned(), "web".to_owned()];
        assert_eq!(names.resolve("n"), Err(NotFound::Ambiguous { asked: "n".to_owned(), some }));
    }

    #[test]
    fn a_new_uid_replaces_the_old_and_a_removed_node_is_gone() {
        let mut names = names();
        names.put(NodeId(1), "n1".to_owned(), "zz".to_owned());
        assert_eq!((names.by_uid("aa-1"), names.by_uid("zz"), names.len()), (None, Some(NodeId(1)), 4));
        names.remove(NodeId(1));
        assert_eq!((names.by_name("n1"), names.of(NodeId(1))), (None, None));
        assert_eq!(names.after("aa").map(|(name, _)| name).collect::<Vec<_>>(), ["n10", "web"]);
        assert_eq!(names.after("").count(), 3);
    }
}
